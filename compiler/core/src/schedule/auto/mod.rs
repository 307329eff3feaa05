//! The fastest order that is found for a problem within its memory.
//!
//! No single construction is best everywhere, so all of them are tried and the best is kept: every named policy, SVPP with
//! every warm-up and round, simulation under the cap by many rules, repeated patterns of one micro-batch ([`modulo`]),
//! warm-ups chosen for each device ([`warm_up`]), and at last exchanges of neighbours on the critical path ([`local`]). The
//! result is thus never slower than a named policy that fits the same memory. The same problem and effort give the same
//! order; nothing looks at a clock.

mod coarser;
mod local;
mod modulo;
pub(super) mod random;
mod warm_up;

pub use coarser::{coarser, explore};

use super::limit::Limit;
use super::list::{Backward, First, Rules, Weights, list};
use super::svpp::{Svpp, group};
use super::{Policy, Problem, Refusal, Schedule, WeightGrads, execute, peaks, require};

/// How long to search: each level tries what the one below does, and more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effort {
    /// Closed forms and simulation by rules.
    Least,
    /// Patterns and warm-ups too, and a short local search.
    #[default]
    Usual,
    /// Longer searches.
    More,
    /// Much longer searches.
    Most,
}

impl Effort {
    /// Steps that each of the two random searches orders at most.
    fn budget(self) -> usize {
        match self {
            Self::Least => 0,
            Self::Usual => 3_000_000,
            Self::More => 30_000_000,
            Self::Most => 300_000_000,
        }
    }

    /// Warm-ups tried at most.
    fn warm_ups(self) -> usize {
        match self {
            Self::Least => 0,
            Self::Usual => 150,
            Self::More => 1500,
            Self::Most => 15_000,
        }
    }
}

/// The best order so far.
struct Best<'a> {
    problem: &'a Problem,
    /// No order is faster.
    bound: u64,
    found: Option<Found>,
}

/// An order, its makespan and its peak.
#[derive(Clone, Debug)]
struct Found {
    makespan: u64,
    peak: u64,
    schedule: Schedule,
}

impl<'a> Best<'a> {
    /// Keeps an order if it fits the memory and is faster, or as fast with less memory. Tells whether it did.
    fn offer(&mut self, schedule: Schedule) -> bool {
        let problem = self.problem;
        let Ok(execution) = execute(problem, &schedule, |step| problem.duration(step)) else { return false };
        let makespan = execution.makespan();
        if self.found.as_ref().is_some_and(|found| found.makespan < makespan) {
            return false;
        }
        let peaks = peaks(problem, &schedule);
        if let Some(caps) = &problem.caps
            && peaks.values().zip(caps.values()).any(|(peak, cap)| peak > cap)
        {
            return false;
        }
        let peak = peaks.values().copied().max().unwrap_or(0);
        let better = self.found.as_ref().is_none_or(|found| (makespan, peak) < (found.makespan, found.peak));
        if better {
            self.found = Some(Found { makespan, peak, schedule });
        }
        better
    }

    /// Whether the best is as fast as any order can be.
    fn is_least(&self) -> bool {
        self.found.as_ref().is_some_and(|found| found.makespan <= self.bound)
    }
}

/// The fastest order found for a problem.
///
/// # Errors
/// A device whose memory does not hold one micro-batch.
pub(super) fn order(problem: &Problem, effort: Effort) -> Result<Schedule, Refusal> {
    let mut best = Best { problem, bound: bound(problem), found: None };
    named(&mut best);
    svpp(&mut best, problem);
    by_rules(&mut best, problem);
    within_less(&mut best);
    if effort > Effort::Least && !best.is_least() {
        modulo::search(&mut best, effort);
        warm_up::search(&mut best, effort);
        local::search(&mut best, effort);
    }
    let shortage = || Limit::memory(problem, false).and_then(|limit| limit.shortage(problem));
    match best.found {
        Some(found) => Ok(found.schedule),
        None => Err(shortage().unwrap_or(Refusal::Bias)),
    }
}

/// No order is faster: a device works for the sum of its passes, less what pairs may save, and the device of stage g starts after g forward passes
/// and messages.
pub(super) fn bound(problem: &Problem) -> u64 {
    let slices = || (0..problem.slices()).map(pipec_program::Slice);
    let least = |stage| slices().map(|slice| problem.cost(stage, slice).forward).min().unwrap_or(0);
    let bounds = problem.devices().values().map(|stages| {
        let work = |&stage: &pipec_program::StageId| {
            let of_one: u64 = slices()
                .map(|slice| {
                    let cost = problem.cost(stage, slice);
                    let apart = cost.forward + (cost.input + cost.weight).min(cost.backward);
                    // Every backward pass may be half of a pair.
                    apart.saturating_sub(u64::try_from(cost.overlap()).unwrap_or(0))
                })
                .sum();
            of_one * problem.micro_batches_of(stage).count() as u64
        };
        let lead = |&stage: &pipec_program::StageId| {
            let mut lead = 0;
            let mut last = stage;
            while let Some(before) = problem.before(last) {
                let hop = if problem.device(before) == problem.device(last) { 0 } else { problem.delay };
                lead += least(before) + hop;
                last = before;
            }
            lead
        };
        stages.iter().map(work).sum::<u64>() + stages.iter().map(lead).min().unwrap_or(0)
    });
    bounds.max().unwrap_or(0)
}

/// Every named policy that has an order for the problem.
fn named(best: &mut Best<'_>) {
    let problem = best.problem;
    for (_, policy) in Policy::ALL {
        if let Ok(schedule) = super::order(policy, problem) {
            best.offer(schedule);
        }
    }
}

/// Orders made for seven eighths of the memory. Heuristics do not always make good use of more; with these, more memory is
/// seldom slower.
fn within_less(best: &mut Best<'_>) {
    let Some(caps) = &best.problem.caps else { return };
    if best.is_least() {
        return;
    }
    let mut less = best.problem.clone();
    less.caps = Some(caps.values().map(|cap| cap - cap.div_ceil(8)).collect());
    svpp(best, &less);
    by_rules(best, &less);
}

/// SVPP with every warm-up and round, made for a problem.
fn svpp(best: &mut Best<'_>, problem: &Problem) {
    let split = split(problem);
    for group in groups(problem) {
        for bias in [100, 125, 150, 175, 200] {
            for weight_grads in [WeightGrads::Fused, split] {
                let options = Svpp { in_flight: None, bias, weight_grads, group: Some(group) };
                if let Ok(schedule) = super::order(Policy::Svpp(options), problem) {
                    best.offer(schedule);
                }
            }
        }
    }
}

/// Split weight gradients in their smallest parts.
fn split(problem: &Problem) -> WeightGrads {
    if problem.weight_parts > 1 { WeightGrads::PerGemm } else { WeightGrads::Split }
}

/// Rounds worth trying, ascending.
fn groups(problem: &Problem) -> Vec<u32> {
    let full = group(problem, Svpp::FUSED);
    let mut groups = vec![1, full.div_ceil(2), full, (2 * full).min(problem.micro_batches())];
    groups.sort_unstable();
    groups.dedup();
    groups
}

/// The limits worth trying: what is sure to fit, and what fits where units do not all hold their most at once.
fn limits(problem: &Problem, backward: Backward) -> Vec<Option<Limit>> {
    if problem.caps.is_none() {
        let (p, v, s) = (problem.devices().len() as u32, problem.chunks(), problem.slices());
        let units = [v * s.max(p) + s.min(p), v * s.max(p) + 2 * p]
            .map(|units| Some(Limit::units(problem, units.max(v * s))));
        return units.into_iter().chain([None]).collect();
    }
    let sure = Limit::memory(problem, backward != Backward::Whole);
    let loose = Limit::memory(problem, false);
    if sure == loose { vec![sure] } else { vec![sure, loose] }
}

/// Simulation by rules, for a problem.
fn by_rules(best: &mut Best<'_>, problem: &Problem) {
    let orders: Vec<First<'_>> = groups(problem)
        .into_iter()
        .map(First::Rounds)
        .chain([First::Deep, First::Shallow, First::Oldest])
        .collect();
    let mut forms = vec![Backward::Whole, Backward::Split];
    if problem.weight_parts > 1 {
        forms.push(Backward::Products);
    }
    for backward in forms {
        let times: &[Weights] = match backward {
            Backward::Whole => &[Weights::Fill],
            Backward::Split | Backward::Products => &[Weights::Fill, Weights::Lazy, Weights::Eager],
        };
        for limit in limits(problem, backward) {
            for &first in &orders {
                if best.is_least() {
                    return;
                }
                for &weights in times {
                    for alternate in [true, false] {
                        let rules = Rules { backward, first, weights, alternate, limit: limit.as_ref() };
                        if let Some(listed) = list(problem, rules) {
                            best.offer(listed.schedule);
                        }
                    }
                }
            }
        }
    }
}
