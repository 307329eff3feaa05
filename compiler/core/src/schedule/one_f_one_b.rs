//! 1F1B: after a warm-up every forward pass is followed by the backward pass of the oldest micro-batch (Narayanan et al.
//! 2019, PipeDream-Flush; Fan et al. 2021, DAPPLE).
//!
//! Device r of p keeps at most `p - r` micro-batches, and the makespan is GPipe's.

use super::{Problem, Refusal, Schedule, require, rounds};
use pipec_program::Pass;

/// Device r starts with `p - 1 - r` forward passes.
pub(super) fn order(problem: &Problem) -> Result<Schedule, Refusal> {
    require::loop_of_one_copy(problem)?;
    require::chunks(problem, 1)?;
    require::slices(problem, 1)?;
    let p = problem.devices().len();
    Ok(rounds::warm_up_then_alternate(problem, 1, Pass::BW, |rank, _| p - 1 - rank))
}
