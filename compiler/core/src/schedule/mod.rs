//! The order of the passes of every device.
//!
//! A policy is a function from a [`Problem`], which knows times and memory but no model, to a [`Schedule`]; each stands
//! in a file of its own and has one arm in [`order`]. No policy mentions messages: `lower` inserts them. Micro-batches
//! of a copy ascend in both directions, so that every policy accumulates gradients in the same order.
//!
//! What this module deliberately does not do: predict the times of a program. [`mod@execute`] orders steps by the times
//! of a problem; the simulator of programs tells time.

mod auto;
mod breadth_first;
mod channels;
mod chimera;
mod controllable;
pub mod csv;
mod eight_phases;
mod execute;
mod file;
pub mod given;
mod gpipe;
mod hanayo;
mod interleaved;
mod limit;
mod list;
mod memory;
mod one_f_one_b;
mod planned;
mod policy;
mod print;
mod problem;
mod refusal;
mod require;
mod rounds;
mod rules;
mod seq1f1b;
mod slimpipe;
mod spipe;
mod step;
mod svpp;
mod terapipe;
mod verify;
mod zb_v;
mod zero_bubble;

pub use auto::{Effort, coarser, explore};
pub use channels::{Channels, capacity};
pub use execute::{Deadlock, Execution, execute};
pub use file::{Amounts, FileError, Kind, Op, Place, PlaceName, Report, Scale, ScheduleFile, Table, Times};
pub use memory::peaks;
pub use policy::{Policy, Uses, order};
pub use print::print;
pub use problem::{Cost, Problem, ProblemError};
pub use refusal::Refusal;
pub use step::Step;
pub use svpp::Svpp;
pub use verify::{Violation, verify};

pub use crate::spec::{Placement, WeightGrads};

use pipec_program::DeviceId;
use pipec_program::id::IdVec;
use problem::share;

/// The steps of every device in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// For each device its steps.
    pub devices: IdVec<DeviceId, Vec<Step>>,
}

#[cfg(test)]
mod tests;
