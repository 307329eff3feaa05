//! Problems and schedules in a form to exchange: what the JSON of `pipec schedule` holds.
//!
//! Times and memory are numbers of any unit; a problem gets integers of a unit small enough that nothing is lost which a
//! double can say. Optional entries have the defaults of a uniform pipeline whose passes take one unit of time and whose
//! activations of one micro-batch over the whole model are one unit of memory, A.

mod problem;
mod steps;

use super::{Channels, Execution, Problem, ProblemError, Schedule, capacity, peaks};
use pipec_program::{DeviceId, Pass};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;

/// A problem, and a schedule for it if there are `ops`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleFile {
    /// Devices p.
    pub devices: u32,
    /// Chunks of each device: of both copies where the placement is `bidir`.
    #[serde(default = "one")]
    pub chunks: u32,
    /// Slices s of a sequence.
    #[serde(default = "one")]
    pub slices: u32,
    /// The tokens of each slice, where they are not equal: what a pipeline cuts its sequences by that takes the order.
    /// Times and memory are those of such slices already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lengths: Option<Vec<u64>>,
    /// Micro-batches n of a step.
    #[serde(default = "one")]
    pub microbatches: u32,
    /// Where stages stand.
    #[serde(default)]
    pub placement: Place,
    /// Times.
    #[serde(default)]
    pub costs: Times,
    /// Memory.
    #[serde(default)]
    pub memory: Amounts,
    /// For each device its passes in order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ops: Option<Vec<Vec<Op>>>,
    /// For each device the positions in `ops` of forward passes that are one block with the backward pass after them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pairs: Option<Vec<Vec<usize>>>,
    /// What the schedule takes. Written, and not read back.
    #[serde(default, deserialize_with = "unread", skip_serializing_if = "Option::is_none")]
    pub report: Option<Report>,
}

/// Times and memory of a schedule, in the units of its file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The end of the last pass.
    pub makespan: f64,
    /// Idle share of the makespan of all devices.
    pub bubble: f64,
    /// Idle share of the longest window of a device.
    pub bubble_window: f64,
    /// The most memory of any device.
    pub peak_memory: f64,
    /// By device.
    pub peak_memory_per_device: Vec<f64>,
    /// Messages that every channel must hold, with one channel per ordered pair of devices; none if their order differs.
    pub min_send_buffers_per_pair: Option<u32>,
    /// The same with one channel per kind of message and receiving stage.
    pub min_send_buffers_per_kind: Option<u32>,
}

impl Report {
    /// The figures of a schedule and its execution.
    pub fn new(problem: &Problem, schedule: &Schedule, execution: &Execution, scale: Scale) -> Self {
        let peaks = peaks(problem, schedule);
        let peaks: Vec<f64> = peaks.values().map(|&peak| peak as f64 / scale.memory).collect();
        Self {
            makespan: execution.makespan() as f64 / scale.time,
            bubble: execution.bubble(),
            bubble_window: execution.window_bubble(),
            peak_memory: peaks.iter().copied().fold(0.0, f64::max),
            peak_memory_per_device: peaks,
            min_send_buffers_per_pair: capacity(problem, schedule, Channels::PerPair),
            min_send_buffers_per_kind: capacity(problem, schedule, Channels::PerStage),
        }
    }
}

/// Where stages stand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Place {
    /// A usual placement.
    Named(PlaceName),
    /// For each device the stage of each chunk.
    Stages(Vec<Vec<u32>>),
}

/// The usual placements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PlaceName {
    /// Stage g on device `g mod p`.
    Interleave,
    /// Forth and back.
    Vshape,
    /// Two copies in opposite directions; micro-batch m runs on copy `m mod 2`.
    Bidir,
}

impl Default for Place {
    fn default() -> Self {
        Self::Named(PlaceName::Interleave)
    }
}

/// A number for all units, one for each slice, or one for each stage of a copy and slice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Table {
    /// The same everywhere.
    Everywhere(f64),
    /// By slice.
    Slices(Vec<f64>),
    /// By stage, then slice.
    Stages(Vec<Vec<f64>>),
}

/// Times of passes: F, B and W 1 by default, BW as B and W, R as F, a pair as F and BW, no delay, W in one part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Times {
    /// F.
    #[serde(rename = "F", default, skip_serializing_if = "Option::is_none")]
    pub forward: Option<Table>,
    /// B.
    #[serde(rename = "B", default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Table>,
    /// W.
    #[serde(rename = "W", default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<Table>,
    /// BW.
    #[serde(rename = "BW", default, skip_serializing_if = "Option::is_none")]
    pub backward: Option<Table>,
    /// R.
    #[serde(rename = "R", default, skip_serializing_if = "Option::is_none")]
    pub recompute: Option<Table>,
    /// F and BW of two units as one block, by the unit of BW: as long as the longer of the two at least.
    #[serde(rename = "FB", default, skip_serializing_if = "Option::is_none")]
    pub pair: Option<Table>,
    /// The delay of a message between devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comm: Option<f64>,
    /// GEMMs of W.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wparts: Option<u16>,
}

/// Memory of units: activations of `1 / (stages slices)` by default, and nothing else.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Amounts {
    /// Activations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub act: Option<Table>,
    /// The share of the activations that B frees, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub b_release: Option<f64>,
    /// What B makes for W.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grad_keep: Option<Table>,
    /// The accumulator of the gradients of keys and values of a slice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dkv: Option<Table>,
    /// What F keeps of a unit that is recomputed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ckpt: Option<Table>,
    /// The most of each device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<f64>,
}

/// A pass: its kind, micro-batch, slice and chunk, and the number of a GEMM of W.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Op {
    /// One GEMM of W.
    Part(Kind, u32, u32, u32, u16),
    /// A whole pass.
    Whole(Kind, u32, u32, u32),
}

/// The kinds of passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Forward.
    F,
    /// Backward with respect to inputs.
    B,
    /// Backward with respect to weights.
    W,
    /// Both backward passes in one.
    BW,
    /// Recomputation.
    R,
}

impl From<Kind> for Pass {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::F => Self::F,
            Kind::B => Self::B,
            Kind::W => Self::W,
            Kind::BW => Self::BW,
            Kind::R => Self::R,
        }
    }
}

impl From<Pass> for Kind {
    fn from(pass: Pass) -> Self {
        match pass {
            Pass::F => Self::F,
            Pass::B => Self::B,
            Pass::W => Self::W,
            Pass::BW => Self::BW,
            Pass::R => Self::R,
        }
    }
}

/// How many units of a problem are one of its file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// Of time.
    pub time: f64,
    /// Of memory.
    pub memory: f64,
}

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq)]
pub enum FileError {
    /// The problem cannot be.
    Problem(ProblemError),
    /// A table of another size than the stages and slices ask for, or a number that is negative or none.
    Table(&'static str),
    /// A pair that takes less than one of its passes.
    Short,
    /// A share outside 0 to 1.
    Share(f64),
    /// A placement with another number of devices or chunks.
    Place,
    /// Other numbers of lengths than of slices, or slices without tokens.
    Lengths,
    /// No GEMM of W.
    NoParts,
    /// Passes that name what the problem does not have, by device and position.
    Op(DeviceId, usize),
    /// Other numbers of devices with passes than there are devices.
    Devices(usize),
    /// No passes.
    NoOps,
    /// A pair that is no forward pass with a backward pass after it.
    Pair(DeviceId, usize),
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Problem(error) => error.fmt(f),
            Self::Table(name) => {
                write!(f, "`{name}` is no table of numbers of at least 0 by stage and slice")
            }
            Self::Short => {
                f.write_str("`FB` is less than F or BW: a pair takes as long as its longer pass at least")
            }
            Self::Share(share) => write!(f, "`b_release` is {share}, and must be between 0 and 1"),
            Self::Place => f.write_str("the placement does not match the numbers of devices and chunks"),
            Self::Lengths => f.write_str("`lengths` must be a number of tokens of at least 1 for each slice"),
            Self::NoParts => f.write_str("`wparts` must be at least 1"),
            Self::Op(device, position) => {
                write!(f, "pass {position} of {device} is of nothing that the problem has")
            }
            Self::Devices(found) => write!(f, "passes for {found} devices"),
            Self::NoOps => f.write_str("there are no `ops`"),
            Self::Pair(device, position) => {
                write!(f, "pass {position} of {device} is no forward pass with a backward pass after it")
            }
        }
    }
}

impl std::error::Error for FileError {}

/// Passes over whatever stands there.
fn unread<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Report>, D::Error> {
    IgnoredAny::deserialize(deserializer).map(|_| None)
}

fn one() -> u32 {
    1
}
