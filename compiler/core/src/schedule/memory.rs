//! The most memory that each device holds at once.
//!
//! Memory is taken at the start of a step and given back at its end, so that the order of a device alone decides its
//! peak. What counts is what [`super::Cost`] names; messages, workspaces and fragmentation do not.

use super::{Problem, Schedule, Step, share};
use pipec_program::id::IdVec;
use pipec_program::{DeviceId, Pass, Slice, Unit};

/// The peak of every device, in the unit of [`super::Cost`]. Steps must be of units of the problem.
pub fn peaks(problem: &Problem, schedule: &Schedule) -> IdVec<DeviceId, u64> {
    let mut recomputed = Vec::new();
    for step in schedule.devices.values().flatten() {
        if let &Step::Pass(Pass::R, unit) = step {
            recomputed.resize(problem.units(), false);
            recomputed[problem.unit_index(unit)] = true;
        }
    }
    let peak = |steps: &Vec<Step>| {
        let (mut held, mut peak) = (0_i128, 0_i128);
        for &step in steps {
            let recomputed = |unit| recomputed.get(problem.unit_index(unit)).copied().unwrap_or(false);
            let (taken, given) = change(problem, step, recomputed);
            held += taken;
            peak = peak.max(held);
            held -= given;
        }
        u64::try_from(peak).unwrap_or(u64::MAX)
    };
    schedule.devices.values().map(peak).collect()
}

/// What a step takes at its start and gives back at its end.
pub(super) fn change(problem: &Problem, step: Step, recomputed: impl Fn(Unit) -> bool) -> (i128, i128) {
    let wide = i128::from;
    if let Step::Product(unit, part) = step {
        let cost = problem.cost(unit.stage, unit.slice);
        let rest = cost.activations - cost.released + cost.gradients;
        return (0, wide(share(rest, problem.weight_parts, part)));
    }
    let (mut taken, mut given) = (0, 0);
    for (pass, unit) in step.passes() {
        let cost = problem.cost(unit.stage, unit.slice);
        let checkpoint = || if recomputed(unit) { cost.checkpoint } else { 0 };
        match pass {
            Pass::F => taken += wide(if recomputed(unit) { cost.checkpoint } else { cost.activations }),
            Pass::R => taken += wide(cost.activations),
            Pass::BW => given += wide(cost.activations) + wide(checkpoint()),
            Pass::B => {
                taken += wide(cost.gradients);
                given += wide(cost.released) + wide(checkpoint());
            }
            Pass::W => given += wide(cost.activations - cost.released) + wide(cost.gradients),
        }
        if matches!(pass, Pass::B | Pass::BW) {
            if unit.slice.0 + 1 == problem.slices() {
                taken += wide(prefix(problem, unit));
            } else {
                given += wide(cost.prefix);
            }
        }
    }
    (taken, given)
}

/// The accumulators of all slices before the last.
fn prefix(problem: &Problem, unit: Unit) -> u64 {
    (0..unit.slice.0).map(|slice| problem.cost(unit.stage, Slice(slice)).prefix).sum()
}
