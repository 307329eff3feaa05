//! What 1F1B and its relatives share: units in rounds of micro-batches, a warm-up of forward passes, then alternation.

use super::{Schedule, Step};
use crate::plan::Plan;
use pipec_program::id::{Id, IdVec};
use pipec_program::{DeviceId, MicroBatch, Pass, Slice, Unit};

/// Every device passes its units in rounds of `group` micro-batches, chunk after chunk (backward from the last chunk),
/// slices ascending (backward descending). It starts with `warm_up(rank, forwards)` of its forward passes, then
/// alternates one forward and one backward pass while there are both.
///
/// A round shorter than the pipeline cannot fill it: a backward pass may then stand before the forward pass that it
/// needs on its way. Where all devices would wait for each other so, the one that holds the first missing forward pass
/// takes it ahead of its backward pass, and has one unit more alive until it falls back into step. There always is
/// one: forward passes stand in the same order on all devices, so the first missing one is ready. Linear in the number
/// of passes while rounds fill the pipeline.
pub(super) fn warm_up_then_alternate(
    plan: &Plan,
    group: u32,
    warm_up: impl Fn(usize, usize) -> usize,
) -> Schedule {
    let mut devices: IdVec<DeviceId, Progress> = plan
        .devices
        .ids()
        .map(|device| {
            let forward = forward_order(plan, device, group);
            let backward = backward_order(plan, device, group);
            let warm_up = warm_up(device.index(), forward.len());
            let steps = Vec::with_capacity(2 * forward.len());
            Progress { forward, backward, warm_up, forwards: 0, backwards: 0, steps }
        })
        .collect();
    let mut done = Done { forward: vec![false; plan.units()], backward: vec![false; plan.units()] };
    let mut awake: Vec<DeviceId> = devices.ids().rev().collect();
    loop {
        while let Some(device) = awake.pop() {
            while let Some(step) = devices[device].wanted() {
                if !done.ready(plan, step) {
                    break;
                }
                devices[device].take(step);
                done.set(plan, step);
                let neighbour = match step.pass {
                    Pass::F => plan.after(step.unit.stage),
                    Pass::B | Pass::W | Pass::BW | Pass::R => plan.before(step.unit.stage),
                };
                awake.extend(
                    neighbour.map(|stage| plan.stages[stage].device).filter(|&other| other != device),
                );
            }
        }
        let blocked = devices.iter().filter_map(|(id, device)| device.next_forward().map(|step| (step, id)));
        // The first missing forward pass is the least by position in the order, then by stage.
        let first = blocked.min_by_key(|&(step, id)| (devices[id].forwards, step.unit.stage));
        let Some((step, device)) = first.filter(|&(step, _)| done.ready(plan, step)) else { break };
        devices[device].take(step);
        done.set(plan, step);
        awake.push(device);
        awake.extend(plan.after(step.unit.stage).map(|stage| plan.stages[stage].device));
    }
    Schedule { devices: devices.values().map(|device| device.steps.clone()).collect() }
}

/// How far a device has come.
struct Progress {
    forward: Vec<Unit>,
    backward: Vec<Unit>,
    warm_up: usize,
    forwards: usize,
    backwards: usize,
    steps: Vec<Step>,
}

impl Progress {
    fn next_forward(&self) -> Option<Step> {
        self.forward.get(self.forwards).map(|&unit| Step { pass: Pass::F, unit })
    }

    /// What the pattern puts next: forward passes stay one more than the warm-up ahead of backward passes.
    fn wanted(&self) -> Option<Step> {
        let ahead = self.forwards <= self.warm_up.saturating_add(self.backwards);
        let backward = || self.backward.get(self.backwards).map(|&unit| Step { pass: Pass::BW, unit });
        self.next_forward().filter(|_| ahead).or_else(backward)
    }

    fn take(&mut self, step: Step) {
        match step.pass {
            Pass::F => self.forwards += 1,
            Pass::B | Pass::W | Pass::BW | Pass::R => self.backwards += 1,
        }
        self.steps.push(step);
    }
}

/// Which passes of which units are done.
struct Done {
    forward: Vec<bool>,
    backward: Vec<bool>,
}

impl Done {
    fn ready(&self, plan: &Plan, step: Step) -> bool {
        let at = |stage| plan.unit_index(Unit { stage, ..step.unit });
        match step.pass {
            Pass::F => plan.before(step.unit.stage).is_none_or(|before| self.forward[at(before)]),
            Pass::B | Pass::W | Pass::BW | Pass::R => {
                self.forward[at(step.unit.stage)]
                    && plan.after(step.unit.stage).is_none_or(|after| self.backward[at(after)])
            }
        }
    }

    fn set(&mut self, plan: &Plan, step: Step) {
        let index = plan.unit_index(step.unit);
        match step.pass {
            Pass::F => self.forward[index] = true,
            Pass::B | Pass::W | Pass::BW | Pass::R => self.backward[index] = true,
        }
    }
}

fn forward_order(plan: &Plan, device: DeviceId, group: u32) -> Vec<Unit> {
    let mut units = Vec::new();
    for round in rounds(plan.micro_batches, group) {
        for &stage in &plan.devices[device] {
            for micro_batch in round.clone().map(MicroBatch) {
                units.extend((0..plan.slices).map(|slice| Unit { stage, micro_batch, slice: Slice(slice) }));
            }
        }
    }
    units
}

fn backward_order(plan: &Plan, device: DeviceId, group: u32) -> Vec<Unit> {
    let mut units = Vec::new();
    for round in rounds(plan.micro_batches, group) {
        for &stage in plan.devices[device].iter().rev() {
            for micro_batch in round.clone().map(MicroBatch) {
                units.extend((0..plan.slices).rev().map(|slice| Unit {
                    stage,
                    micro_batch,
                    slice: Slice(slice),
                }));
            }
        }
    }
    units
}

fn rounds(micro_batches: u32, group: u32) -> impl Iterator<Item = std::ops::Range<u32>> {
    (0..micro_batches)
        .step_by(group.max(1) as usize)
        .map(move |start| start..(start + group).min(micro_batches))
}
