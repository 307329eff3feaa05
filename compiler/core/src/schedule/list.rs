//! Ordering by simulation: whenever a device is free, it takes what is ready by a few rules.
//!
//! Any placement, any number of copies, slices and chunks, whole or split backward passes. On every stage forward passes
//! ascend by micro-batch and slice, backward passes ascend by micro-batch and descend by slice; what is chosen is which
//! stage of the device goes on and when weight gradients run. Memory never exceeds a limit and never deadlocks: a
//! forward pass is admitted only if the state stays safe in the sense of the banker's algorithm, where live
//! micro-batches end in the order of their numbers. Linear in the number of passes while few micro-batches are alive.

use super::limit::Room;
pub(super) use super::rules::{Backward, First, Pattern, Rules, Weights};
use super::{Problem, Schedule, Step, share};
use pipec_program::id::{Id, IdVec};
use pipec_program::{DeviceId, MicroBatch, Pass, Slice, StageId, Unit};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// An order and the time it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) schedule: Schedule,
    pub(super) makespan: u64,
}

/// Orders the passes of a problem by rules. None where a fixed order deadlocks or the limit is below one micro-batch.
pub(super) fn list(problem: &Problem, rules: Rules<'_>) -> Option<Listed> {
    if rules.limit.is_some_and(|limit| !limit.holds_one(problem)) {
        return None;
    }
    let mut state = State::new(problem, rules);
    let mut wakes = BinaryHeap::new();
    let mut pending: IdVec<DeviceId, u64> = problem.devices().values().map(|_| 0).collect();
    wakes.extend(pending.ids().map(|device| Reverse((0, device))));
    let mut touched = Vec::new();
    while let Some(Reverse((time, device))) = wakes.pop() {
        if pending[device] != time {
            continue;
        }
        pending[device] = NEVER;
        let mut wake = |time: u64, device: DeviceId| {
            if time < pending[device] {
                pending[device] = time;
                wakes.push(Reverse((time, device)));
            }
        };
        let free = state.devices[device].free;
        if time < free {
            wake(free, device);
            continue;
        }
        match state.choose(device, time) {
            Choice::Run(step) => {
                state.run(device, step, time, &mut touched);
                wake(state.devices[device].free, device);
                for (arrival, other) in touched.drain(..) {
                    wake(arrival.max(state.devices[other].free), other);
                }
            }
            Choice::Wait(until) => {
                if until != NEVER {
                    wake(until, device);
                }
            }
        }
    }
    state.finish()
}

const NEVER: u64 = u64::MAX;

/// What a device does next.
enum Choice {
    Run(Step),
    /// Nothing before this time.
    Wait(u64),
}

struct State<'a> {
    problem: &'a Problem,
    rules: Rules<'a>,
    devices: IdVec<DeviceId, Progress<'a>>,
    /// When F, and B or BW, of each unit end.
    forward: Vec<u64>,
    backward: Vec<u64>,
}

/// How far a device has come.
struct Progress<'a> {
    chunks: Vec<Chunk>,
    /// Forward and backward passes done in a fixed order.
    fixed: usize,
    free: u64,
    /// Whether the last pass but weight gradients was a forward pass.
    forward_last: bool,
    /// Units whose weight gradients wait, oldest first, and how many GEMMs of the first are done.
    waiting: VecDeque<Unit>,
    products: u16,
    room: Option<Room<'a>>,
    steps: Vec<Step>,
}

/// How far a stage has come.
struct Chunk {
    stage: StageId,
    /// The position of the stage among those of its copy on the device.
    depth: u64,
    forwards: u32,
    backwards: u32,
    units: u32,
}

impl<'a> State<'a> {
    fn new(problem: &'a Problem, rules: Rules<'a>) -> Self {
        let progress = |(device, stages): (DeviceId, &'a Vec<StageId>)| {
            let per_copy = (stages.len() as u32 / problem.copies()).max(1);
            let chunk = |(position, &stage): (usize, &StageId)| Chunk {
                stage,
                depth: u64::from(position as u32 % per_copy),
                forwards: 0,
                backwards: 0,
                units: problem.micro_batches_of(stage).count() as u32 * problem.slices(),
            };
            let chunks: Vec<Chunk> = stages.iter().enumerate().map(chunk).collect();
            let units: usize = chunks.iter().map(|chunk| chunk.units as usize).sum();
            Progress {
                steps: Vec::with_capacity(3 * units),
                chunks,
                fixed: 0,
                free: 0,
                forward_last: true,
                waiting: VecDeque::new(),
                products: 0,
                room: rules.limit.map(|limit| Room::new(problem, limit, device)),
            }
        };
        let never = vec![NEVER; problem.units()];
        Self {
            problem,
            rules,
            devices: problem.devices().iter().map(progress).collect(),
            forward: never.clone(),
            backward: never,
        }
    }

    /// When the inputs of a pass have arrived; [`NEVER`] where that is not yet known.
    fn ready(&self, pass: Pass, unit: Unit) -> u64 {
        let problem = self.problem;
        let made = |table: &[u64], unit: Unit| table[problem.unit_index(unit)];
        let arrived = |table: &[u64], stage: Option<StageId>| {
            let Some(stage) = stage else { return 0 };
            let end = made(table, Unit { stage, ..unit });
            let elsewhere = problem.device(stage) != problem.device(unit.stage);
            if elsewhere && end != NEVER { end.saturating_add(problem.delay) } else { end }
        };
        if pass == Pass::F {
            let before = unit.slice.0.checked_sub(1).map(Slice);
            let slice = before.map_or(0, |slice| made(&self.forward, Unit { slice, ..unit }));
            arrived(&self.forward, problem.before(unit.stage)).max(slice)
        } else {
            let next = Slice(unit.slice.0 + 1);
            let slice = if next.0 < problem.slices() {
                made(&self.backward, Unit { slice: next, ..unit })
            } else {
                0
            };
            arrived(&self.backward, problem.after(unit.stage)).max(slice).max(made(&self.forward, unit))
        }
    }

    fn choose(&self, device: DeviceId, time: u64) -> Choice {
        let progress = &self.devices[device];
        if self.rules.weights == Weights::Eager
            && let Some(step) = self.weight(progress)
        {
            return Choice::Run(step);
        }
        match self.rules.first {
            First::Fixed(order) => self.choose_fixed(progress, &order.devices[device], time),
            First::Rounds(_) | First::Deep | First::Shallow | First::Oldest | First::Pattern(_) => {
                self.choose_ready(progress, time)
            }
        }
    }

    fn choose_fixed(&self, progress: &Progress<'_>, order: &[Step], time: u64) -> Choice {
        let next = order.get(progress.fixed).and_then(|step| step.passes().next().map(|pass| (*step, pass)));
        let (mut until, mut over) = (NEVER, false);
        if let Some((step, (pass, unit))) = next {
            over = pass == Pass::F && progress.room.as_ref().is_some_and(|room| !room.holds(unit));
            let ready = self.ready(pass, unit);
            let held_back = over && !progress.waiting.is_empty();
            if ready <= time && !held_back {
                return Choice::Run(step);
            }
            if ready > time {
                until = ready;
            }
        }
        self.weight_or_wait(progress, time, until, over)
    }

    fn choose_ready(&self, progress: &Progress<'_>, time: u64) -> Choice {
        let backward = self.rules.backward.pass();
        let mut until = NEVER;
        let mut first_forward: Option<(Key, Unit)> = None;
        let mut first_backward: Option<(Key, Unit)> = None;
        let mut refused = false;
        for chunk in &progress.chunks {
            if let Some(unit) = chunk.forward(self.problem) {
                let ready = self.ready(Pass::F, unit).max(self.earliest(Pass::F, unit));
                let key = self.key(Pass::F, unit, chunk.depth);
                if ready > time {
                    until = until.min(ready);
                } else if first_forward.is_none_or(|(least, _)| key < least) {
                    if progress.room.as_ref().is_none_or(|room| room.stays_safe(unit)) {
                        first_forward = Some((key, unit));
                    } else {
                        refused = true;
                    }
                }
            }
            if let Some(unit) = chunk.backward(self.problem) {
                let ready = self.ready(backward, unit).max(self.earliest(backward, unit));
                let key = self.key(backward, unit, chunk.depth);
                if ready > time {
                    until = until.min(ready);
                } else if first_backward.is_none_or(|(least, _)| key < least) {
                    first_backward = Some((key, unit));
                }
            }
        }
        let run = |pass, (_, unit): (Key, Unit)| Choice::Run(Step::Pass(pass, unit));
        match (first_forward, first_backward) {
            (Some(forward), Some(gradient)) => {
                let forward_first = match self.rules.first {
                    First::Pattern(_) => forward.0 < gradient.0,
                    First::Rounds(_) | First::Deep | First::Shallow | First::Oldest | First::Fixed(_) => {
                        self.rules.alternate && !progress.forward_last
                    }
                };
                if forward_first { run(Pass::F, forward) } else { run(backward, gradient) }
            }
            (Some(forward), None) => run(Pass::F, forward),
            (None, Some(gradient)) => run(backward, gradient),
            (None, None) => self.weight_or_wait(progress, time, until, refused),
        }
    }

    /// Weight gradients where they may run now. `over`: they must, to make room.
    fn weight_or_wait(&self, progress: &Progress<'_>, time: u64, until: u64, over: bool) -> Choice {
        match self.weight(progress) {
            Some(step)
                if self.rules.weights != Weights::Lazy
                    || over
                    || until >= time.saturating_add(self.problem.duration(step)) =>
            {
                Choice::Run(step)
            }
            Some(_) | None => Choice::Wait(until),
        }
    }

    /// The oldest weight gradient that waits.
    fn weight(&self, progress: &Progress<'_>) -> Option<Step> {
        let &unit = progress.waiting.front()?;
        Some(match self.rules.backward {
            Backward::Whole | Backward::Split => Step::Pass(Pass::W, unit),
            Backward::Products => Step::Product(unit, progress.products),
        })
    }

    fn earliest(&self, pass: Pass, unit: Unit) -> u64 {
        match self.rules.first {
            First::Pattern(pattern) => self.place(pattern, pass, unit).saturating_sub(pattern.lead),
            First::Rounds(_) | First::Deep | First::Shallow | First::Oldest | First::Fixed(_) => 0,
        }
    }

    fn place(&self, pattern: &Pattern, pass: Pass, unit: Unit) -> u64 {
        let row = unit.stage.index() * self.problem.slices() as usize + unit.slice.index();
        let table = if pass == Pass::F { &pattern.forward } else { &pattern.backward };
        table[row] + u64::from(unit.micro_batch.0) * pattern.period
    }

    fn key(&self, pass: Pass, unit: Unit, depth: u64) -> Key {
        let (m, forward) = (u64::from(unit.micro_batch.0), pass == Pass::F);
        let deep = u64::MAX - depth;
        match self.rules.first {
            First::Rounds(group) => [m / u64::from(group.max(1)), if forward { depth } else { deep }, m],
            First::Deep if forward => [deep, m, 0],
            First::Shallow if forward => [depth, m, 0],
            First::Oldest if forward => [m, depth, 0],
            First::Pattern(pattern) => [self.place(pattern, pass, unit), u64::from(forward), 0],
            First::Deep | First::Shallow | First::Oldest | First::Fixed(_) => [m, deep, 0],
        }
    }

    /// Runs a step and tells which devices what it makes arrives at, and when.
    fn run(&mut self, device: DeviceId, step: Step, time: u64, touched: &mut Vec<(u64, DeviceId)>) {
        let problem = self.problem;
        let parts = problem.weight_parts;
        let end = time.saturating_add(problem.duration(step)).min(NEVER - 1);
        let progress = &mut self.devices[device];
        progress.free = end;
        progress.steps.push(step);
        let fixed = matches!(self.rules.first, First::Fixed(_));
        for (pass, unit) in step.passes() {
            let index = problem.unit_index(unit);
            let neighbour = match pass {
                Pass::F => {
                    self.forward[index] = end;
                    progress.room.iter_mut().for_each(|room| room.take(unit));
                    problem.after(unit.stage)
                }
                Pass::B | Pass::BW => {
                    self.backward[index] = end;
                    match self.rules.backward {
                        Backward::Whole => {
                            progress.room.iter_mut().for_each(|room| room.give(unit, u64::MAX))
                        }
                        Backward::Split | Backward::Products => progress.waiting.push_back(unit),
                    }
                    problem.before(unit.stage)
                }
                Pass::W => {
                    let held = progress.room.as_ref().map_or(0, |room| room.weight(unit));
                    let given = match step {
                        Step::Product(_, part) => share(held, parts, part),
                        Step::Pass(..) | Step::Pair { .. } => held,
                    };
                    progress.room.iter_mut().for_each(|room| room.give(unit, given));
                    let last = match step {
                        Step::Product(_, part) => part + 1 >= parts,
                        Step::Pass(..) | Step::Pair { .. } => true,
                    };
                    progress.products = if last { 0 } else { progress.products + 1 };
                    if last {
                        progress.waiting.pop_front();
                    }
                    None
                }
                Pass::R => None,
            };
            if pass != Pass::W {
                progress.forward_last = pass == Pass::F;
                progress.fixed += usize::from(fixed);
                progress.advance(pass, unit.stage);
            }
            if let Some(stage) = neighbour {
                let other = problem.device(stage);
                let arrival = if other == device { end } else { end.saturating_add(problem.delay) };
                touched.push((arrival, other));
            }
        }
    }

    fn finish(self) -> Option<Listed> {
        let ended = |progress: &Progress<'_>| {
            let all = progress.chunks.iter().all(|chunk| chunk.backwards == chunk.units);
            all && progress.waiting.is_empty()
        };
        if !self.devices.values().all(ended) {
            return None;
        }
        let makespan = self.devices.values().map(|progress| progress.free).max().unwrap_or(0);
        let steps = self.devices.values().map(|progress| progress.steps.clone());
        Some(Listed { schedule: Schedule { devices: steps.collect() }, makespan })
    }
}

/// What is compared first, second and third; the least goes first.
type Key = [u64; 3];

impl Progress<'_> {
    fn advance(&mut self, pass: Pass, stage: StageId) {
        for chunk in self.chunks.iter_mut().filter(|chunk| chunk.stage == stage) {
            match pass {
                Pass::F => chunk.forwards += 1,
                Pass::B | Pass::BW => chunk.backwards += 1,
                Pass::W | Pass::R => {}
            }
        }
    }
}

impl Chunk {
    /// The next forward pass.
    fn forward(&self, problem: &Problem) -> Option<Unit> {
        (self.forwards < self.units).then(|| self.unit(problem, self.forwards, false))
    }

    /// The next backward pass, if its forward pass is done.
    fn backward(&self, problem: &Problem) -> Option<Unit> {
        (self.backwards < self.units).then(|| self.unit(problem, self.backwards, true))
    }

    fn unit(&self, problem: &Problem, position: u32, descending: bool) -> Unit {
        let s = problem.slices();
        let slice = if descending { s - 1 - position % s } else { position % s };
        let micro_batch = MicroBatch(problem.copy(self.stage) + position / s * problem.copies());
        Unit { stage: self.stage, micro_batch, slice: Slice(slice) }
    }
}
