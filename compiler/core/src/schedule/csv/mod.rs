//! Schedules as PyTorch's pipeline CSV.
//!
//! A row is a device, a cell an action: stage, kind, micro-batch. The file calls our B `I` and our BW `B`. It has two
//! dialects: `compute_only` holds passes and blank cells for idle time, `compute_comms` messages, waits and reductions
//! too, as torch 2.15 reads them. Rows, stages and micro-batches are what the cells say; there is no head.
//!
//! The file has no word for slices, copies of a pipeline, recomputation or parts of weight gradients.

mod read;
mod write;

pub use read::read;
pub use write::write;

use super::ProblemError;
use pipec_program::{DeviceId, Unit};
use std::fmt;

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Passes.
    ComputeOnly,
    /// Passes, messages, waits and reductions.
    ComputeComms,
}

/// What a file cannot say, or says wrongly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CsvError {
    /// A sequence in slices.
    Slices(u32),
    /// Several copies of the pipeline.
    Copies(u32),
    /// A cut for each direction.
    Cuts,
    /// A recomputation; without it the schedule needs more memory.
    Recomputation(Unit),
    /// A part of weight gradients; a whole W stands for all parts.
    Part(Unit),
    /// A schedule whose passes wait for each other, so that messages cannot be placed.
    Deadlock(DeviceId),
    /// A device without passes, which would be an empty line.
    Idle(DeviceId),
    /// A cell that is no action, at a row and a column, both from 1.
    Cell {
        /// The row.
        row: usize,
        /// The column.
        column: usize,
        /// What stands there.
        text: String,
    },
    /// A stage in two rows, from 1.
    TwoRows {
        /// The stage.
        stage: u32,
        /// The rows.
        rows: [usize; 2],
    },
    /// Numbers that no pipeline has.
    Problem(ProblemError),
}

impl CsvError {
    /// Whether a lossy file may leave it out.
    pub fn can_be_lost(&self) -> bool {
        matches!(self, Self::Recomputation(_) | Self::Part(_))
    }
}

impl fmt::Display for CsvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slices(slices) => write!(
                f,
                "the file has no word for slices, and there are {slices}; as micro-batches they would be independent"
            ),
            Self::Copies(copies) => {
                write!(f, "the file numbers the stages of one pipeline, and there are {copies} copies")
            }
            Self::Cuts => {
                f.write_str("the file has one number for a stage, and there is a cut for each direction")
            }
            Self::Recomputation(unit) => write!(f, "the file has no word for R {unit}"),
            Self::Part(unit) => write!(f, "the file has no word for parts of W {unit}"),
            Self::Deadlock(device) => write!(f, "{device} waits for ever"),
            Self::Idle(device) => write!(f, "{device} has no passes"),
            Self::Cell { row, column, text } => {
                write!(f, "row {row}, column {column}: `{text}` is no action")
            }
            Self::TwoRows { stage, rows: [first, second] } => {
                write!(f, "stage {stage} stands in rows {first} and {second}")
            }
            Self::Problem(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CsvError {}
