//! GPipe: all forward passes, then all backward passes (Huang et al. 2019).
//!
//! A device keeps all n micro-batches. With several stages per device it is the breadth-first schedule: every
//! micro-batch passes a stage before the first enters the next (Lamy-Poirier 2023), here with micro-batches ascending
//! backward too. With slices it is TeraPipe's order (Li et al. 2021).

use super::{Problem, Refusal, Schedule, require, rounds};
use pipec_program::Pass;

/// All forward passes, then all backward passes.
pub(super) fn order(problem: &Problem) -> Result<Schedule, Refusal> {
    require::loop_of_one_copy(problem)?;
    let all = problem.micro_batches();
    Ok(rounds::warm_up_then_alternate(problem, all, Pass::BW, |_, forwards| forwards))
}
