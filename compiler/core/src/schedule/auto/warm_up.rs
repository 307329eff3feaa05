//! Warm-ups chosen for each device: orders of 1F1B shape whose number of forward passes before the first backward pass
//! differs from device to device, with weight gradients from the queue.
//!
//! A small space that holds 1F1B, interleaved 1F1B, Seq1F1B, SVPP and zero bubble. Best where messages take time and memory
//! is near that of full speed.

use super::super::list::{First, Rules, Weights, list};
use super::super::{rounds, svpp};
use super::random::Random;
use super::{Best, Effort, Schedule, limits, require};

/// Warm-ups of one round size.
#[derive(Clone, Debug)]
struct Shape {
    group: u32,
    warm_up: Vec<usize>,
}

/// Offers warm-ups that fall evenly from device to device, then changes the best at random.
pub(super) fn search(best: &mut Best<'_>, effort: Effort) {
    let problem = best.problem;
    if require::loop_of_one_copy(problem).is_err() {
        return;
    }
    let p = problem.devices().len();
    let (v, s) = (problem.chunks() as usize, problem.slices() as usize);
    let steps = 3 * problem.units();
    let tries = (effort.budget() / steps.max(1)).min(effort.warm_ups());
    let mut fastest: Option<(u64, Shape)> = None;
    for group in super::groups(problem) {
        for quarters in [2, 3, 4, 5, 6, 8] {
            let fill = (v - 1) * group as usize * s + s - 1;
            let warm_up = (0..p).map(|rank| fill + (quarters * (p - 1 - rank)).div_ceil(4)).collect();
            let shape = Shape { group, warm_up };
            if let Some(makespan) = offer(best, &shape)
                && fastest.as_ref().is_none_or(|(least, _)| makespan < *least)
            {
                fastest = Some((makespan, shape));
            }
        }
    }
    let Some((mut least, mut shape)) = fastest else { return };
    let mut random = Random::new(1);
    for _ in 0..tries {
        if best.is_least() {
            break;
        }
        let mut changed = shape.clone();
        for _ in 0..[1, 1, 2, 3][random.below(4)] {
            let warm_up = &mut changed.warm_up[random.below(p)];
            let by = [-2, -1, 1, 2][random.below(4)];
            *warm_up = warm_up.saturating_add_signed(by);
        }
        if let Some(makespan) = offer(best, &changed)
            && makespan <= least
        {
            (least, shape) = (makespan, changed);
        }
    }
}

/// Offers the orders of a shape and tells the makespan of the faster.
fn offer(best: &mut Best<'_>, shape: &Shape) -> Option<u64> {
    let problem = best.problem;
    let backward = svpp::backward(super::split(problem));
    let warm_up = |rank: usize, _| shape.warm_up.get(rank).copied().unwrap_or(0);
    let order: Schedule = rounds::warm_up_then_alternate(problem, shape.group, backward.pass(), warm_up);
    let mut least: Option<u64> = None;
    for limit in limits(problem, backward) {
        for weights in [Weights::Fill, Weights::Lazy] {
            let rules = Rules {
                backward,
                first: First::Fixed(&order),
                weights,
                alternate: false,
                limit: limit.as_ref(),
            };
            let Some(listed) = list(problem, rules) else { continue };
            let fits = problem.caps.as_ref().is_none_or(|caps| {
                let peaks = super::peaks(problem, &listed.schedule);
                peaks.values().zip(caps.values()).all(|(peak, cap)| peak <= cap)
            });
            if fits {
                least = Some(least.map_or(listed.makespan, |least| least.min(listed.makespan)));
                best.offer(listed.schedule);
            }
        }
    }
    least
}
