//! What 1F1B and its relatives share: units in rounds of micro-batches, a warm-up of forward passes, then alternation.

use super::{Problem, Schedule, Step};
use pipec_program::id::{Id, IdVec};
use pipec_program::{DeviceId, MicroBatch, Pass, Slice, StageId, Unit};

/// Every device passes its units in rounds of `group` micro-batches, chunk after chunk (backward from the last chunk),
/// slices ascending (backward descending). It starts with `warm_up(rank, forwards)` of its forward passes, then
/// alternates one forward and one backward pass, which is `backward` (B or BW), while there are both.
///
/// A round shorter than the pipeline cannot fill it: a backward pass may then stand before the forward pass that it
/// needs on its way. Where all devices would wait for each other so, the one that holds the first missing forward pass
/// takes it ahead of its backward pass, and has one unit more alive until it falls back into step. There always is
/// one: forward passes stand in the same order on all devices, so the first missing one is ready. Linear in the number
/// of passes while rounds fill the pipeline. For problems of one copy in a loop.
pub(super) fn warm_up_then_alternate(
    problem: &Problem,
    group: u32,
    backward: Pass,
    warm_up: impl Fn(usize, usize) -> usize,
) -> Schedule {
    let mut devices: IdVec<DeviceId, Progress> = problem
        .devices()
        .iter()
        .map(|(device, chunks)| {
            let forward = forward_order(problem, chunks, group);
            let gradients = backward_order(problem, chunks, group);
            let warm_up = warm_up(device.index(), forward.len());
            let steps = Vec::with_capacity(2 * forward.len());
            Progress { forward, gradients, backward, warm_up, forwards: 0, backwards: 0, steps }
        })
        .collect();
    let mut done = Done { forward: vec![false; problem.units()], backward: vec![false; problem.units()] };
    let mut awake: Vec<DeviceId> = devices.ids().rev().collect();
    loop {
        while let Some(device) = awake.pop() {
            while let Some((pass, unit)) = devices[device].wanted() {
                if !done.ready(problem, pass, unit) {
                    break;
                }
                devices[device].take(pass, unit);
                let neighbour = done.set(problem, pass, unit);
                awake.extend(neighbour.map(|stage| problem.device(stage)).filter(|&other| other != device));
            }
        }
        let blocked = devices.iter().filter_map(|(id, device)| device.next_forward().map(|unit| (unit, id)));
        // The first missing forward pass is the least by position in the order, then by stage.
        let first = blocked.min_by_key(|&(unit, id)| (devices[id].forwards, unit.stage));
        let Some((unit, device)) = first.filter(|&(unit, _)| done.ready(problem, Pass::F, unit)) else {
            break;
        };
        devices[device].take(Pass::F, unit);
        awake.push(device);
        awake.extend(done.set(problem, Pass::F, unit).map(|stage| problem.device(stage)));
    }
    Schedule { devices: devices.iter_mut().map(|(_, device)| std::mem::take(&mut device.steps)).collect() }
}

/// How far a device has come.
struct Progress {
    forward: Vec<Unit>,
    gradients: Vec<Unit>,
    backward: Pass,
    warm_up: usize,
    forwards: usize,
    backwards: usize,
    steps: Vec<Step>,
}

impl Progress {
    fn next_forward(&self) -> Option<Unit> {
        self.forward.get(self.forwards).copied()
    }

    /// What the pattern puts next: forward passes stay one more than the warm-up ahead of backward passes.
    fn wanted(&self) -> Option<(Pass, Unit)> {
        let ahead = self.forwards <= self.warm_up.saturating_add(self.backwards);
        let backward = || self.gradients.get(self.backwards).map(|&unit| (self.backward, unit));
        self.next_forward().filter(|_| ahead).map(|unit| (Pass::F, unit)).or_else(backward)
    }

    fn take(&mut self, pass: Pass, unit: Unit) {
        match pass {
            Pass::F => self.forwards += 1,
            Pass::B | Pass::W | Pass::BW | Pass::R => self.backwards += 1,
        }
        self.steps.push(Step::Pass(pass, unit));
    }
}

/// Which passes of which units are done.
struct Done {
    forward: Vec<bool>,
    backward: Vec<bool>,
}

impl Done {
    fn ready(&self, problem: &Problem, pass: Pass, unit: Unit) -> bool {
        let at = |stage| problem.unit_index(Unit { stage, ..unit });
        match pass {
            Pass::F => problem.before(unit.stage).is_none_or(|before| self.forward[at(before)]),
            Pass::B | Pass::W | Pass::BW | Pass::R => {
                self.forward[at(unit.stage)]
                    && problem.after(unit.stage).is_none_or(|after| self.backward[at(after)])
            }
        }
    }

    /// Notes that a pass is done and returns the stage that may wait for it.
    fn set(&mut self, problem: &Problem, pass: Pass, unit: Unit) -> Option<StageId> {
        let index = problem.unit_index(unit);
        match pass {
            Pass::F => {
                self.forward[index] = true;
                problem.after(unit.stage)
            }
            Pass::B | Pass::W | Pass::BW | Pass::R => {
                self.backward[index] = true;
                problem.before(unit.stage)
            }
        }
    }
}

fn forward_order(problem: &Problem, chunks: &[StageId], group: u32) -> Vec<Unit> {
    let mut units = Vec::new();
    for round in rounds(problem.micro_batches(), group) {
        for &stage in chunks {
            for micro_batch in round.clone().map(MicroBatch) {
                units.extend((0..problem.slices()).map(|slice| Unit {
                    stage,
                    micro_batch,
                    slice: Slice(slice),
                }));
            }
        }
    }
    units
}

fn backward_order(problem: &Problem, chunks: &[StageId], group: u32) -> Vec<Unit> {
    let mut units = Vec::new();
    for round in rounds(problem.micro_batches(), group) {
        for &stage in chunks.iter().rev() {
            for micro_batch in round.clone().map(MicroBatch) {
                let slices = (0..problem.slices()).rev().map(Slice);
                units.extend(slices.map(|slice| Unit { stage, micro_batch, slice }));
            }
        }
    }
    units
}

fn rounds(micro_batches: u32, group: u32) -> impl Iterator<Item = std::ops::Range<u32>> {
    (0..micro_batches)
        .step_by(group.max(1) as usize)
        .map(move |start| start..(start.saturating_add(group)).min(micro_batches))
}
