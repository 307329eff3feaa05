//! Why a policy has no order for a problem.

use pipec_program::DeviceId;
use std::fmt;

/// The condition of a policy that a problem does not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Stage g must stand on device `g mod p`.
    NotALoop,
    /// Stages must go forth and back over the devices.
    NotAZigzag,
    /// Two copies must run in opposite directions, one stage of each per device.
    NotBidirectional,
    /// Another number of copies of the pipeline.
    Copies {
        /// Copies that the policy is made for.
        needed: u32,
        /// Copies of the problem.
        found: u32,
    },
    /// It has a cut for each direction.
    OneCut,
    /// Another number of stages on each device.
    Chunks {
        /// Stages per device that the policy is made for.
        needed: u32,
        /// Stages per device of the problem.
        found: u32,
    },
    /// Another number of slices.
    Slices {
        /// Slices that the policy is made for.
        needed: u32,
        /// Slices of the problem.
        found: u32,
    },
    /// Slices that the devices do not divide.
    UnevenSlices {
        /// Slices of the problem.
        slices: u32,
        /// Devices.
        devices: u32,
    },
    /// Too few micro-batches.
    MicroBatches {
        /// The fewest.
        least: u32,
        /// Those of the problem.
        found: u32,
    },
    /// An odd number of micro-batches for two copies.
    OddMicroBatches(u32),
    /// An odd number of devices for two copies.
    OddDevices(u32),
    /// Too few units alive for one whole micro-batch.
    InFlight {
        /// The fewest.
        least: u32,
        /// Those asked for.
        found: u32,
    },
    /// A warm-up that deadlocks, or one without meaning.
    Bias,
    /// More memory than a device has.
    Memory {
        /// The first device that has too little.
        device: DeviceId,
        /// Its peak.
        needed: u64,
        /// What it has.
        cap: u64,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotALoop => f.write_str("it needs the stages in a loop over the devices"),
            Self::NotAZigzag => f.write_str("it needs the stages forth and back over the devices"),
            Self::NotBidirectional => {
                f.write_str("it needs two copies in opposite directions, one stage of each per device")
            }
            Self::Copies { needed, found } => {
                write!(f, "it is made for {needed} copies of the pipeline, not {found}")
            }
            Self::OneCut => f.write_str("it needs a cut for each direction"),
            Self::Chunks { needed, found } => write!(f, "it runs {needed} stages per device, not {found}"),
            Self::Slices { needed: 1, found } => {
                write!(f, "it does not slice sequences, and there are {found} slices")
            }
            Self::Slices { needed, found } => write!(f, "it is made for {needed} slices, not {found}"),
            Self::UnevenSlices { slices, devices } => {
                write!(f, "its slices must be a multiple of the devices: {slices} is none of {devices}")
            }
            Self::MicroBatches { least, found } => {
                write!(f, "it needs at least {least} micro-batches, not {found}")
            }
            Self::OddMicroBatches(found) => {
                write!(f, "it needs an even number of micro-batches, not {found}")
            }
            Self::OddDevices(found) => write!(f, "it needs an even number of devices, not {found}"),
            Self::InFlight { least, found } => {
                write!(f, "{found} units alive are too few: a micro-batch has {least} on a device")
            }
            Self::Bias => f.write_str("its bias must be between 1 and 2"),
            Self::Memory { device, needed, cap } => {
                write!(f, "{device} would hold {needed} of memory and has {cap}")
            }
        }
    }
}

impl std::error::Error for Refusal {}
