//! Memory that devices must not exceed, and the test that keeps them able to end.

use super::{Problem, Refusal};
use pipec_program::id::{Id, IdVec};
use pipec_program::{DeviceId, MicroBatch, Slice, StageId, Unit};

/// What each unit holds from the start of F to the end of its last backward pass, and the most of each device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    /// By stage and slice.
    weights: Vec<u64>,
    caps: IdVec<DeviceId, u64>,
    slices: u32,
}

impl Limit {
    /// At most so many units on every device.
    pub(super) fn units(problem: &Problem, most: u32) -> Self {
        let entries = problem.stages().len() * problem.slices() as usize;
        let caps = problem.devices().values().map(|_| u64::from(most));
        Self { weights: vec![1; entries], caps: caps.collect(), slices: problem.slices() }
    }

    /// The caps of a problem, less what the accumulators of slices may take. A unit counts with its activations and, where
    /// backward passes are `split`, with what they keep for the weight gradients. None where there are no caps.
    pub(super) fn memory(problem: &Problem, split: bool) -> Option<Self> {
        let caps = problem.caps.as_ref()?;
        let slices = || (0..problem.slices()).map(Slice);
        let prefix = |stage: StageId| -> u64 {
            let before_last = slices().take(problem.slices() as usize - 1);
            before_last.map(|slice| problem.cost(stage, slice).prefix).sum()
        };
        let caps = problem.devices().iter().map(|(device, stages)| {
            let reserved: u64 = stages.iter().map(|&stage| prefix(stage)).sum();
            caps.get(device).copied().unwrap_or(0).saturating_sub(reserved)
        });
        let caps = caps.collect();
        let weight = |stage, slice| {
            let cost = problem.cost(stage, slice);
            cost.activations + if split { cost.gradients } else { 0 }
        };
        let weights = problem.stages().flat_map(|stage| slices().map(move |slice| weight(stage, slice)));
        Some(Self { weights: weights.collect(), caps, slices: problem.slices() })
    }

    /// As [`Limit::memory`] where the weight gradients of a unit run right after its backward pass, so that what they need is
    /// there for one unit at a time.
    pub(super) fn one_waits(problem: &Problem) -> Option<Self> {
        let mut limit = Self::memory(problem, false)?;
        for (device, stages) in problem.devices().iter() {
            let units =
                stages.iter().flat_map(|&stage| (0..problem.slices()).map(move |i| (stage, Slice(i))));
            let most = units.map(|(stage, slice)| problem.cost(stage, slice).gradients).max().unwrap_or(0);
            limit.caps[device] = limit.caps[device].saturating_sub(most);
        }
        Some(limit)
    }

    fn weight(&self, stage: StageId, slice: Slice) -> u64 {
        self.weights[stage.index() * self.slices as usize + slice.index()]
    }

    /// What one micro-batch holds on a device once all its forward passes are done and no backward pass.
    fn whole(&self, problem: &Problem, device: DeviceId, micro_batch: MicroBatch) -> u64 {
        let copy = micro_batch.0 % problem.copies();
        let stages = problem.devices()[device].iter().filter(|&&stage| problem.copy(stage) == copy);
        let slices = || (0..problem.slices()).map(Slice);
        stages.flat_map(|&stage| slices().map(move |slice| self.weight(stage, slice))).sum()
    }

    /// Whether every device holds one micro-batch.
    pub(super) fn holds_one(&self, problem: &Problem) -> bool {
        self.shortage(problem).is_none()
    }

    /// The first device that does not hold one micro-batch.
    pub(super) fn shortage(&self, problem: &Problem) -> Option<Refusal> {
        let copies = || (0..problem.copies().min(problem.micro_batches())).map(MicroBatch);
        let needed = |device| copies().map(|copy| self.whole(problem, device, copy)).max().unwrap_or(0);
        let devices = self.caps.iter().map(|(device, &cap)| (device, needed(device), cap));
        devices
            .into_iter()
            .find(|&(_, needed, cap)| needed > cap)
            .map(|(device, needed, cap)| Refusal::Memory { device, needed, cap })
    }
}

/// What a device holds of each micro-batch.
pub(super) struct Room<'a> {
    limit: &'a Limit,
    cap: u64,
    total: u64,
    /// What a micro-batch of each copy takes in all.
    whole: Vec<u64>,
    /// The micro-batch before which all have given everything back.
    oldest: usize,
    live: Vec<u64>,
    taken: Vec<u64>,
}

impl<'a> Room<'a> {
    pub(super) fn new(problem: &Problem, limit: &'a Limit, device: DeviceId) -> Self {
        let none = vec![0; problem.micro_batches() as usize];
        let copies = (0..problem.copies()).map(MicroBatch);
        Self {
            limit,
            cap: limit.caps[device],
            total: 0,
            whole: copies.map(|copy| limit.whole(problem, device, copy)).collect(),
            oldest: 0,
            live: none.clone(),
            taken: none,
        }
    }

    /// What a unit holds.
    pub(super) fn weight(&self, unit: Unit) -> u64 {
        self.limit.weight(unit.stage, unit.slice)
    }

    /// Whether there is room for a unit now.
    pub(super) fn holds(&self, unit: Unit) -> bool {
        self.total + self.weight(unit) <= self.cap
    }

    /// Whether a unit may be taken such that all micro-batches up to its own can still end in the order of their numbers:
    /// once those before have ended, each finds room for all the units that it still has to take.
    pub(super) fn stays_safe(&self, unit: Unit) -> bool {
        let weight = self.weight(unit);
        let own = unit.micro_batch.index();
        let mut total = self.total + weight;
        for micro_batch in self.oldest..=own {
            let added = if micro_batch == own { weight } else { 0 };
            let rest = self.whole[micro_batch % self.whole.len()] - self.taken[micro_batch] - added;
            if total + rest > self.cap {
                return false;
            }
            total -= self.live[micro_batch];
        }
        true
    }

    /// Notes that a unit is alive.
    pub(super) fn take(&mut self, unit: Unit) {
        let weight = self.weight(unit);
        self.total += weight;
        self.live[unit.micro_batch.index()] += weight;
        self.taken[unit.micro_batch.index()] += weight;
    }

    /// Notes that a unit gave something back, at most what it holds.
    pub(super) fn give(&mut self, unit: Unit, given: u64) {
        let given = given.min(self.weight(unit));
        self.total -= given;
        self.live[unit.micro_batch.index()] -= given;
        let ended = |room: &Self, micro_batch: usize| {
            room.live[micro_batch] == 0
                && room.taken[micro_batch] == room.whole[micro_batch % room.whole.len()]
        };
        while self.oldest < self.live.len() && ended(self, self.oldest) {
            self.oldest += 1;
        }
    }
}
