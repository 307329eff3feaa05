//! Measured times of functions and messages, as `pipec profile` writes them.

use crate::units::{Bytes, BytesPerSecond, Flops, Nanos};
use std::collections::BTreeMap;
use std::fmt;

/// Times that were measured. A profile belongs to functions, not to a program: any program whose functions have the
/// names and costs of the measured ones may use it, whatever its schedule.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// What was measured, by the name of the device (`cpu`): devices of one name are of one kind.
    pub devices: BTreeMap<String, DeviceProfile>,
}

/// The measured times of one kind of device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceProfile {
    /// The time of one call of each function, by its name.
    pub functions: BTreeMap<String, FunctionProfile>,
    /// What every instruction takes on top of its work.
    pub overhead: Nanos,
    /// The time of a message before its first byte; a device sends at the rates of its own kind.
    pub message_latency: Nanos,
    /// The rate of messages.
    pub message_bandwidth: BytesPerSecond,
    /// The rate of memory traffic in fills and copies.
    pub memory_bandwidth: BytesPerSecond,
}

/// A measured function. Operations and traffic tell whether the function of a program is the one that was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionProfile {
    /// The time of one call.
    pub time: Nanos,
    /// The operations of one call, by formula.
    pub flops: Flops,
    /// The memory traffic of one call, by formula.
    pub traffic: Bytes,
}

/// What a profile lacks for a program; all of it at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProfileError {
    /// Names of devices that were not measured, ascending.
    pub devices: Vec<String>,
    /// Functions that were not measured, as (device name, function name), ascending.
    pub missing: Vec<(String, String)>,
    /// Functions whose operations or traffic are not those that were measured, as (device name, function name),
    /// ascending.
    pub changed: Vec<(String, String)>,
}

impl ProfileError {
    /// Whether nothing is lacking.
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty() && self.missing.is_empty() && self.changed.is_empty()
    }
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the profile does not belong to this program")?;
        for device in &self.devices {
            write!(f, "; device `{device}` was not measured")?;
        }
        for (device, function) in &self.missing {
            write!(f, "; `{function}` was not measured on `{device}`")?;
        }
        for (device, function) in &self.changed {
            write!(f, "; `{function}` on `{device}` was another function when it was measured")?;
        }
        Ok(())
    }
}

impl std::error::Error for ProfileError {}
