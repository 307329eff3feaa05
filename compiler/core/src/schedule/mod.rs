//! The order of the passes of every device.
//!
//! A policy is a function from a [`Plan`](crate::plan::Plan) to a [`Schedule`]; each stands in a file of its own. No
//! policy mentions messages: `lower` inserts them.

use pipec_program::id::IdVec;
use pipec_program::{DeviceId, Pass, Unit};

/// The passes of every device in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// For each device its passes.
    pub devices: IdVec<DeviceId, Vec<Step>>,
}

/// One pass of one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Step {
    /// Which pass.
    pub pass: Pass,
    /// Of which unit.
    pub unit: Unit,
}
