//! The cut of a model into stages and their place on devices.
//!
//! A [`Plan`] places every piece on exactly one stage and every stage on exactly one device. It deliberately holds no
//! order of passes and no buffers.

use pipec_program::id::IdVec;
use pipec_program::{DeviceId, Nanos, StageId};
use std::ops::Range;

/// A cut and its placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The stages, from the input to the loss.
    pub stages: IdVec<StageId, Stage>,
    /// The stages of each device, ascending: the chunks of the device.
    pub devices: IdVec<DeviceId, Vec<StageId>>,
    /// Micro-batches n of a step.
    pub micro_batches: u32,
    /// Slices s of a sequence.
    pub slices: u32,
}

/// A stage: consecutive pieces of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// The pieces, at least one.
    pub pieces: Range<usize>,
    /// Where it runs.
    pub device: DeviceId,
    /// Estimated time of one forward pass.
    pub forward: Nanos,
    /// Estimated time of one whole backward pass.
    pub backward: Nanos,
}
