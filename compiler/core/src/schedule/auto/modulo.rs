//! Repeated patterns: one micro-batch is placed in a table of time slots per device, and micro-batch m has the same slots m
//! periods later, as instructions of a software-pipelined loop have.
//!
//! What is alive is the sum of lifetimes over the period, so that short lifetimes mean little memory. Hops between devices
//! of some slots each give the patterns of 1F1B, V-Min, V-Half and ZB-V among others. The pattern is taken as it is, and
//! simulated anew under the cap with passes allowed a little before their place, which closes the gaps at both ends.

use super::super::limit::Limit;
use super::super::list::{Backward, First, Pattern, Rules, Weights, list};
use super::super::{Problem, Schedule, Step};
use super::{Best, Effort};
use pipec_program::id::{Id, IdVec};
use pipec_program::{DeviceId, MicroBatch, Pass, Slice, StageId, Unit};
use std::collections::VecDeque;

/// The slots of the passes of one micro-batch.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Slots {
    /// Of F and of B or BW, by stage and slice.
    forward: Vec<u64>,
    backward: Vec<u64>,
    /// Of W, by device; the gradients that wait take them oldest first.
    weight: IdVec<DeviceId, Vec<u64>>,
    period: u64,
}

/// Slots from one stage to the next, for even and odd chunks.
type Hops = [u64; 2];

/// Offers patterns and what simulation makes of them.
pub(super) fn search(best: &mut Best<'_>, effort: Effort) {
    let problem = best.problem;
    if problem.copies() != 1 {
        return;
    }
    let most_hop = match effort {
        Effort::Least | Effort::Usual => 2,
        Effort::More | Effort::Most => 3,
    };
    let mut seen: Vec<Slots> = Vec::new();
    for hops in hops(problem.chunks(), most_hop) {
        if best.is_least() {
            return;
        }
        for backward in [Backward::Split, Backward::Whole] {
            let least = 3 * u64::from(problem.chunks() * problem.slices());
            let found = (least..least + 3).find_map(|period| slots(problem, backward, hops, period));
            let Some(slots) = found.filter(|slots| !seen.contains(slots)) else { continue };
            if let Some(schedule) = unroll(problem, backward, &slots) {
                best.offer(schedule);
            }
            squeeze(best, backward, &slots);
            seen.push(slots);
        }
    }
}

/// Forward and backward hops worth trying.
fn hops(chunks: u32, most: u64) -> Vec<(Hops, Hops)> {
    let mut all = Vec::new();
    for forward in 1..=most {
        for backward in 1..=most {
            if chunks == 1 {
                all.push(([forward; 2], [backward; 2]));
                continue;
            }
            for second in 1..=2 {
                all.extend((1..=2).map(|first| ([forward, second], [first, backward])));
            }
        }
    }
    all
}

/// A table of slots, which repeats after a period.
struct Reservations {
    taken: IdVec<DeviceId, Vec<bool>>,
    period: u64,
}

impl Reservations {
    /// Takes the first `length` slots in a row that are free from `start` on.
    fn take(&mut self, device: DeviceId, start: u64, length: u64) -> Option<u64> {
        let period = self.period;
        let slot = |place: u64| (place % period) as usize;
        let taken = &mut self.taken[device];
        let place =
            (start..=start + period).find(|place| (0..length).all(|offset| !taken[slot(place + offset)]))?;
        (0..length).for_each(|offset| taken[slot(place + offset)] = true);
        Some(place)
    }
}

fn slots(problem: &Problem, backward: Backward, (ahead, back): (Hops, Hops), period: u64) -> Option<Slots> {
    let s = problem.slices() as usize;
    let mut table = Reservations {
        taken: problem.devices().values().map(|_| vec![false; period as usize]).collect(),
        period,
    };
    let chunk = |stage: StageId| {
        let stages = &problem.devices()[problem.device(stage)];
        stages.iter().position(|&each| each == stage).unwrap_or(0) % 2
    };
    let entries = problem.stages().len() * s;
    let mut slots =
        Slots { forward: vec![0; entries], backward: vec![0; entries], weight: IdVec::new(), period };
    for stage in problem.stages() {
        for slice in 0..s {
            let mut start = 0;
            if let Some(before) = problem.before(stage) {
                let elsewhere = problem.device(before) != problem.device(stage);
                let hop = if elsewhere { ahead[chunk(stage)] } else { 1 };
                start = slots.forward[before.index() * s + slice] + hop;
            }
            if slice > 0 {
                start = start.max(slots.forward[stage.index() * s + slice - 1] + 1);
            }
            slots.forward[stage.index() * s + slice] = table.take(problem.device(stage), start, 1)?;
        }
    }
    let length = if backward == Backward::Whole { 2 } else { 1 };
    for stage in problem.stages().rev() {
        for slice in (0..s).rev() {
            let mut start = slots.forward[stage.index() * s + slice] + 1;
            if let Some(after) = problem.after(stage) {
                let elsewhere = problem.device(after) != problem.device(stage);
                let hop = if elsewhere { back[chunk(stage)].max(length) } else { length };
                start = start.max(slots.backward[after.index() * s + slice] + hop);
            }
            if slice + 1 < s {
                start = start.max(slots.backward[stage.index() * s + slice + 1] + length);
            }
            slots.backward[stage.index() * s + slice] = table.take(problem.device(stage), start, length)?;
        }
    }
    for (device, stages) in problem.devices().iter() {
        let mut weights = Vec::new();
        if backward != Backward::Whole {
            let mut gradients: Vec<u64> = stages
                .iter()
                .flat_map(|stage| slots.backward[stage.index() * s..(stage.index() + 1) * s].iter().copied())
                .collect();
            gradients.sort_unstable();
            for made in gradients {
                weights.push(table.take(device, made + 1, 1)?);
            }
        }
        slots.weight.push(weights);
    }
    Some(slots)
}

/// All micro-batches in the slots of the pattern.
fn unroll(problem: &Problem, backward: Backward, slots: &Slots) -> Option<Schedule> {
    let s = problem.slices() as usize;
    let mut devices = IdVec::new();
    for (device, stages) in problem.devices().iter() {
        // None stands for a weight gradient.
        let mut placed: Vec<(u64, Option<(Pass, Unit)>)> = Vec::new();
        for micro_batch in 0..problem.micro_batches() {
            let later = u64::from(micro_batch) * slots.period;
            for &stage in stages {
                for slice in 0..s {
                    let unit = Unit { stage, micro_batch: MicroBatch(micro_batch), slice: Slice::new(slice) };
                    let row = stage.index() * s + slice;
                    placed.push((slots.forward[row] + later, Some((Pass::F, unit))));
                    placed.push((slots.backward[row] + later, Some((backward.pass(), unit))));
                }
            }
            placed.extend(slots.weight[device].iter().map(|slot| (slot + later, None)));
        }
        placed.sort_unstable_by_key(|&(slot, _)| slot);
        let mut waiting = VecDeque::new();
        let mut steps = Vec::with_capacity(placed.len());
        for (_, pass) in placed {
            match pass {
                Some((pass, unit)) => {
                    if pass == Pass::B {
                        waiting.push_back(unit);
                    }
                    steps.push(Step::Pass(pass, unit));
                }
                None => steps.push(Step::Pass(Pass::W, waiting.pop_front()?)),
            }
        }
        devices.push(steps);
    }
    Some(Schedule { devices })
}

/// Simulates the pattern with passes before their place.
fn squeeze(best: &mut Best<'_>, backward: Backward, slots: &Slots) {
    let problem = best.problem;
    let slot = slot_time(problem);
    let timed = |table: &[u64]| table.iter().map(|place| place * slot).collect();
    let mut pattern = Pattern {
        forward: timed(&slots.forward),
        backward: timed(&slots.backward),
        period: slots.period * slot,
        lead: 0,
    };
    let units = u64::from(problem.chunks() * problem.slices());
    let limits = super::limits(problem, backward);
    for lead in [0, units / 2, units, 2 * units, 3 * units, 6 * units, 9 * units, 12 * units] {
        pattern.lead = lead * slot;
        for weights in [Weights::Fill, Weights::Lazy] {
            for limit in &limits {
                let limit: Option<&Limit> = limit.as_ref();
                let rules =
                    Rules { backward, first: First::Pattern(&pattern), weights, alternate: false, limit };
                if let Some(listed) = list(problem, rules) {
                    best.offer(listed.schedule);
                }
            }
            if backward == Backward::Whole {
                break;
            }
        }
    }
}

/// The time that a slot stands for: the mean of F, B and W.
fn slot_time(problem: &Problem) -> u64 {
    let slices = || (0..problem.slices()).map(Slice);
    let costs = problem.stages().flat_map(|stage| slices().map(move |slice| (stage, slice)));
    let (mut sum, mut count) = (0_u128, 0_u128);
    for (stage, slice) in costs {
        let cost = problem.cost(stage, slice);
        sum += u128::from(cost.forward) + u128::from(cost.input) + u128::from(cost.weight);
        count += 3;
    }
    u64::try_from(sum / count.max(1)).unwrap_or(u64::MAX).max(1)
}
