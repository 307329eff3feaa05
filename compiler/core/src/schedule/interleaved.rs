//! Interleaved 1F1B: v stages per device, passed depth-first in rounds of `group` micro-batches (Narayanan et al. 2021,
//! Megatron-LM).
//!
//! The bubble shrinks v times against 1F1B. The warm-up of `(v - 1) group + 2 (p - 1 - r)` forward passes gives every
//! message one pass of time to arrive, at the price of `p - 1` more units kept on the first device than the least; the
//! first device keeps `(v - 1) group + 2 p - 1` units.

use super::{Problem, Refusal, Schedule, require, rounds};
use pipec_program::Pass;

/// Device r starts with `(v - 1) group + 2 (p - 1 - r)` forward passes. The last round is as short as the remainder;
/// where n is below `group`, there is one round of n. Without a group, rounds have p micro-batches.
pub(super) fn order(problem: &Problem, group: Option<u32>) -> Result<Schedule, Refusal> {
    require::loop_of_one_copy(problem)?;
    require::slices(problem, 1)?;
    let p = problem.devices().len();
    let group = group.unwrap_or(p as u32).clamp(1, problem.micro_batches());
    let fill = (problem.chunks() as usize - 1) * group as usize;
    Ok(rounds::warm_up_then_alternate(problem, group, Pass::BW, |rank, _| fill + 2 * (p - 1 - rank)))
}
