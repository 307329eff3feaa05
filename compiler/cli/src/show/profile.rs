//! Profiles as JSON: what `pipec profile` writes and `pipec simulate --costs` reads.

use pipec_program::cost::{DeviceProfile, FunctionProfile};
use pipec_program::{Bytes, BytesPerSecond, Flops, Nanos, Profile};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileView {
    devices: BTreeMap<String, DeviceView>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceView {
    overhead_ns: u64,
    message_latency_ns: u64,
    message_bytes_per_second: u64,
    memory_bytes_per_second: u64,
    functions: BTreeMap<String, FunctionView>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FunctionView {
    time_ns: u64,
    flops: u64,
    traffic_bytes: u64,
}

/// A profile as JSON.
pub fn profile_json(profile: &Profile) -> String {
    let functions = |device: &DeviceProfile| {
        let functions = device.functions.iter().map(|(name, function)| {
            let view = FunctionView {
                time_ns: function.time.0,
                flops: function.flops.0,
                traffic_bytes: function.traffic.0,
            };
            (name.clone(), view)
        });
        functions.collect()
    };
    let devices = profile.devices.iter().map(|(name, device)| {
        let view = DeviceView {
            overhead_ns: device.overhead.0,
            message_latency_ns: device.message_latency.0,
            message_bytes_per_second: device.message_bandwidth.0,
            memory_bytes_per_second: device.memory_bandwidth.0,
            functions: functions(device),
        };
        (name.clone(), view)
    });
    // A view of strings and numbers always serialises.
    let mut text =
        serde_json::to_string_pretty(&ProfileView { devices: devices.collect() }).unwrap_or_default();
    text.push('\n');
    text
}

/// Reads a profile.
///
/// # Errors
/// Text that is no JSON, or not of this form.
pub fn profile_from_json(text: &str) -> Result<Profile, serde_json::Error> {
    let view: ProfileView = serde_json::from_str(text)?;
    let function = |view: FunctionView| FunctionProfile {
        time: Nanos(view.time_ns),
        flops: Flops(view.flops),
        traffic: Bytes(view.traffic_bytes),
    };
    let device = |view: DeviceView| DeviceProfile {
        functions: view.functions.into_iter().map(|(name, view)| (name, function(view))).collect(),
        overhead: Nanos(view.overhead_ns),
        message_latency: Nanos(view.message_latency_ns),
        message_bandwidth: BytesPerSecond(view.message_bytes_per_second),
        memory_bandwidth: BytesPerSecond(view.memory_bytes_per_second),
    };
    Ok(Profile { devices: view.devices.into_iter().map(|(name, view)| (name, device(view))).collect() })
}
