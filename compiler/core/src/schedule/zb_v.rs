//! ZB-V: two stages per device, forth and back, with the memory of 1F1B and no idle time inside a device where F, B and W
//! take the same time (Qi et al. 2024, "Pipeline Parallelism with Controllable Memory").
//!
//! The order is found by simulation under a limit of 2 p units per device: the best of a few rules, with the times of the
//! problem and with equal times.

use super::limit::Limit;
use super::list::{Backward, First, Rules, Weights, list};
use super::{Problem, Refusal, Schedule, execute, require};

/// The fastest of the orders that the rules give.
pub(super) fn order(problem: &Problem) -> Result<Schedule, Refusal> {
    require::zigzag(problem)?;
    require::chunks(problem, 2)?;
    require::slices(problem, 1)?;
    let limit = Limit::units(problem, 2 * problem.devices().len() as u32);
    best(problem, Backward::Split, &limit).ok_or(Refusal::NotAZigzag)
}

/// The fastest order on a zigzag under a limit.
pub(super) fn best(problem: &Problem, backward: Backward, limit: &Limit) -> Option<Schedule> {
    let mut equal = problem.clone();
    equal.set_costs(|_, _| super::Cost::UNIT);
    equal.delay = 0;
    let mut best: Option<(u64, Schedule)> = None;
    for made_for in [&equal, problem] {
        for first in [First::Deep, First::Shallow, First::Oldest, First::Rounds(1)] {
            for weights in [Weights::Fill, Weights::Lazy] {
                for alternate in [false, true] {
                    let rules = Rules { backward, first, weights, alternate, limit: Some(limit) };
                    let Some(listed) = list(made_for, rules) else { continue };
                    let time = |schedule| execute(problem, schedule, |step| problem.duration(step)).ok();
                    let Some(time) = time(&listed.schedule) else { continue };
                    let makespan = time.makespan();
                    if best.as_ref().is_none_or(|(least, _)| makespan < *least) {
                        best = Some((makespan, listed.schedule));
                    }
                }
            }
        }
    }
    best.map(|(_, schedule)| schedule)
}
