//! TeraPipe: GPipe with sequences cut into slices (Li et al. 2021).
//!
//! The bubble shrinks s times against GPipe's; all n micro-batches are kept.

use super::{Problem, Refusal, Schedule, gpipe, require};

/// All forward passes, slices ascending, then all backward passes, slices descending.
pub(super) fn order(problem: &Problem) -> Result<Schedule, Refusal> {
    require::chunks(problem, 1)?;
    gpipe::order(problem)
}
