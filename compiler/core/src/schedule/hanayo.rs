//! Hanayo: waves over the devices, w of them with 2 w stages per device, and whole backward passes (Liu et al. 2023).
//!
//! The published order is not known to us in full; this one is found by simulation with the memory of 1F1B, `2 w p` units
//! per device. It comes near the published `(p - 1) / (p - 1 + 2 w n)` but does not reach it in this memory.

use super::limit::Limit;
use super::list::Backward;
use super::{Problem, Refusal, Schedule, require, zb_v};

/// The fastest of the orders that the rules of ZB-V give with whole backward passes.
pub(super) fn order(problem: &Problem) -> Result<Schedule, Refusal> {
    require::zigzag(problem)?;
    require::slices(problem, 1)?;
    let chunks = problem.chunks();
    if chunks % 2 == 1 {
        return Err(Refusal::Chunks { needed: chunks + 1, found: chunks });
    }
    let limit = Limit::units(problem, chunks * problem.devices().len() as u32);
    zb_v::best(problem, Backward::Whole, &limit).ok_or(Refusal::NotAZigzag)
}
