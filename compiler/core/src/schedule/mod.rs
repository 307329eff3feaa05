//! The order of the passes of every device.
//!
//! A policy is a function from a [`Plan`] to a [`Schedule`]; each stands in a file of its own and has one arm in
//! [`order`]. No policy mentions messages: `lower` inserts them. Micro-batches ascend in both directions, so that every
//! policy accumulates gradients in the same order.
//!
//! What this module deliberately does not do: predict times. The steps of [`mod@execute`] order passes; the simulator of
//! programs tells time.

mod execute;
mod gpipe;
mod interleaved;
mod one_f_one_b;
mod print;
mod rounds;
mod verify;

pub use execute::{Deadlock, Execution, execute};
pub use print::print;
pub use verify::{Violation, verify};

use crate::plan::Plan;
use crate::spec;
use pipec_program::id::IdVec;
use pipec_program::{DeviceId, Pass, Unit};
use std::fmt;

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

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.pass.name(), self.unit)
    }
}

/// Orders the passes of a plan by a policy.
pub fn order(policy: spec::Schedule, plan: &Plan) -> Schedule {
    match policy {
        spec::Schedule::GPipe => gpipe::order(plan),
        spec::Schedule::OneFOneB => one_f_one_b::order(plan),
        spec::Schedule::Interleaved { group, .. } => interleaved::order(plan, group),
    }
}

#[cfg(test)]
mod tests;
