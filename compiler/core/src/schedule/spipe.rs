//! SPipe: a cut of its own for each direction, and all micro-batches of a stage before the next (Ryu et al. 2025).
//!
//! Forward stage g stands on device `g mod p`, backward stage h on device `p - 1 - h mod p`, so that passes of both directions travel
//! the devices the same way, and the first device starts its backward passes when its forward passes end. Every device runs the same
//! order: its forward stages ascending, then its backward stages descending, of each all micro-batches ascending; a backward
//! stage is computed again from its input right before each backward pass. With forward and backward stages of equal length and at least
//! as many micro-batches as devices the bubble is `(p - 1)` passes.

use super::{Problem, Refusal, Schedule, Step, require};
use pipec_program::Pass;

/// The order of every device. Fewer micro-batches than devices leave every device waiting whenever it changes its stage.
pub(super) fn order(problem: &Problem) -> Result<Schedule, Refusal> {
    if problem.forward_stages().is_none() {
        return Err(Refusal::OneCut);
    }
    require::micro_batches(problem, problem.devices().len() as u32)?;
    let devices = problem.devices().values().map(|chunks| {
        let (backward, forward): (Vec<_>, Vec<_>) =
            chunks.iter().copied().partition(|&stage| problem.is_backward(stage));
        let units = |stage| problem.units_of(stage);
        let forward = forward.into_iter().flat_map(units).map(|unit| Step::Pass(Pass::F, unit));
        let backward = backward.into_iter().rev().flat_map(units);
        let backward = backward.flat_map(|unit| [Pass::R, Pass::BW].map(|pass| Step::Pass(pass, unit)));
        forward.chain(backward).collect()
    });
    Ok(Schedule { devices: devices.collect() })
}
