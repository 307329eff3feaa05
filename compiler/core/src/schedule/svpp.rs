//! SVPP, the sequence virtual pipeline of MEPipe: slices, several stages per device and 1F1B together (Sun et al. 2025).
//!
//! At full speed rounds have `g = max(1, ceil(p / s))` micro-batches, and device r starts with
//! `(v - 1) g s + s - 1 + b (p - 1 - r)` forward passes. With bias b = 1 the first device keeps
//! `f = (v - 1) g s + s - 1 + p` units, which is `v max(p, s) + min(p, s) - 1` where one of p and s divides the other; the
//! bubble is `(p - 1) / (p - 1 + n s v)`. With fewer units alive, down to the `v s` of one micro-batch, forward passes wait
//! for backward passes: each unit of memory costs at most one unit of idle time per round, between `g v s` and f.
//!
//! Split weight gradients wait in a queue of each device and run where it would wait for a message, or where memory would
//! hold back a forward pass. Units that wait there count as alive.

use super::limit::Limit;
use super::list::{Backward, First, Rules, Weights, list};
use super::{Problem, Refusal, Schedule, WeightGrads, peaks, require, rounds};
use pipec_program::id::IdVec;

/// The options of SVPP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Svpp {
    /// The most units alive on a device; as many as full speed takes without it.
    pub in_flight: Option<u32>,
    /// Forward passes of the warm-up per hop to the last device, in hundredths: 100 is tight, 200 gives every message one
    /// pass of time. Larger warm-ups can deadlock.
    pub bias: u16,
    /// When weight gradients run.
    pub weight_grads: WeightGrads,
    /// Micro-batches of a round; as many as are needed to fill the devices without it.
    pub group: Option<u32>,
}

/// The passes of weight gradients.
pub(super) fn backward(weight_grads: WeightGrads) -> Backward {
    match weight_grads {
        WeightGrads::Fused => Backward::Whole,
        WeightGrads::Split => Backward::Split,
        WeightGrads::PerGemm => Backward::Products,
    }
}

impl Svpp {
    /// Full speed, tight, whole backward passes.
    pub const FUSED: Self =
        Self { in_flight: None, bias: 100, weight_grads: WeightGrads::Fused, group: None };
}

/// The order at full speed where memory allows, or the fastest found with fewer units alive.
pub(super) fn order(problem: &Problem, options: Svpp) -> Result<Schedule, Refusal> {
    check(problem, options)?;
    let fastest = full_speed_units(problem, options);
    let least = problem.chunks() * problem.slices();
    let limit = match options.in_flight {
        Some(found) if found < least => return Err(Refusal::InFlight { least, found }),
        Some(units) if units < fastest => Limit::units(problem, units),
        Some(_) | None => {
            let schedule = closed_form(problem, options);
            match Limit::memory(problem, options.weight_grads != WeightGrads::Fused) {
                None => return schedule,
                Some(limit) => match schedule {
                    Ok(schedule) if fits(problem, &schedule) => return Ok(schedule),
                    // Weight gradients that find no room at full speed may find it with fewer units alive.
                    Ok(_) | Err(_) => limit,
                },
            }
        }
    };
    let mut rules = Rules {
        backward: backward(options.weight_grads),
        first: First::Rounds(1),
        weights: Weights::Fill,
        alternate: true,
        limit: Some(&limit),
    };
    let eager;
    if let Some(shortage) = limit.shortage(problem) {
        // Weight gradients that do not wait leave room for one unit of what they need.
        eager = Limit::one_waits(problem).filter(|_| rules.backward != Backward::Whole).ok_or(shortage)?;
        if let Some(shortage) = eager.shortage(problem) {
            return Err(shortage);
        }
        (rules.weights, rules.limit) = (Weights::Eager, Some(&eager));
    }
    // Where less than a whole round fits, smaller rounds may be faster.
    let full = group(problem, options);
    let groups = if options.group.is_some() { vec![full] } else { vec![full, full.div_ceil(2), 1] };
    let listed =
        groups.into_iter().filter_map(|group| list(problem, Rules { first: First::Rounds(group), ..rules }));
    let fastest = listed.min_by_key(|listed| listed.makespan);
    fastest.map(|listed| listed.schedule).ok_or(Refusal::InFlight { least, found: 0 })
}

/// Whether every device has the memory that a schedule takes.
fn fits(problem: &Problem, schedule: &Schedule) -> bool {
    let caps = problem.caps.iter().flat_map(IdVec::values);
    peaks(problem, schedule).values().zip(caps).all(|(peak, cap)| peak <= cap)
}

/// The order at full speed.
pub(super) fn closed_form(problem: &Problem, options: Svpp) -> Result<Schedule, Refusal> {
    check(problem, options)?;
    let p = problem.devices().len() as u32;
    let group = group(problem, options);
    let fill = (problem.chunks() - 1) * group * problem.slices() + problem.slices() - 1;
    let backward = backward(options.weight_grads);
    let warm_up = |rank: usize, _| (fill + hops(p - 1 - rank as u32, options.bias)) as usize;
    let order = rounds::warm_up_then_alternate(problem, group, backward.pass(), warm_up);
    if backward == Backward::Whole {
        return Ok(order);
    }
    let limit = Limit::memory(problem, true)
        .unwrap_or_else(|| Limit::units(problem, full_speed_units(problem, options)));
    let rules = Rules {
        backward,
        first: First::Fixed(&order),
        weights: Weights::Fill,
        alternate: false,
        limit: Some(&limit),
    };
    list(problem, rules).map(|listed| listed.schedule).ok_or(Refusal::Bias)
}

fn check(problem: &Problem, options: Svpp) -> Result<(), Refusal> {
    require::loop_of_one_copy(problem)?;
    if (100..=200).contains(&options.bias) { Ok(()) } else { Err(Refusal::Bias) }
}

/// Micro-batches of a round.
pub(super) fn group(problem: &Problem, options: Svpp) -> u32 {
    let fill = (problem.devices().len() as u32).div_ceil(problem.slices()).max(1);
    options.group.unwrap_or(fill).clamp(1, problem.micro_batches())
}

/// Units alive on the first device at full speed.
pub(super) fn full_speed_units(problem: &Problem, options: Svpp) -> u32 {
    let (v, s, p) = (problem.chunks(), problem.slices(), problem.devices().len() as u32);
    (v - 1) * group(problem, options) * s + s + hops(p - 1, options.bias)
}

fn hops(hops: u32, bias: u16) -> u32 {
    (hops * u32::from(bias)).div_ceil(100)
}
