//! State on the host: when weights come to the device, gradients leave it, and the host updates.
//!
//! Three queues beside those of the passes: loads, landings, and what the host computes. Weights of a forward cut come from other
//! hosts as messages; all of these keep to one order, so that none waits for one that waits for it. Every wait points back in the reference execution, as
//! in [`super`].

use super::super::arena::part;
use super::super::lifetimes::Held;
use super::super::queues::{COMPUTE, Free, Local};
use super::{Context, Emission};
use crate::plan::Part;
use crate::spec::{State, Updates};
use pipec_program::{DeviceId, Instruction, Position, QueueKind, StageId, StepWork, Work};
use std::collections::{BTreeMap, BTreeSet};

/// State on the host: the queues on which weights come, gradients go and the update runs, and how far they are.
pub(super) struct Residence {
    upload: Local,
    pub(super) download: Local,
    compute: Local,
    /// How many visits have been loaded.
    loaded: usize,
    /// The weights that are on the device for each stage, where they are loaded for a visit.
    pub(super) weights: BTreeMap<StageId, Held>,
    /// The queues of loads to other devices and from them. All keep to the order of all loads, so that none waits for one that
    /// waits for it.
    leaving: Option<Local>,
    arriving: Option<Local>,
    /// The positions after which the weights of each stage are on the device, the last time.
    ready: BTreeMap<StageId, BTreeMap<Local, Position>>,
    /// The positions after which the weights that live here with each stage have been read.
    taken: BTreeMap<StageId, BTreeMap<Local, Position>>,
    /// The position after which the gradients of each stage are on the host, in this order.
    pub(super) landed: Vec<(StageId, Position)>,
    /// The position after which the factor of clipping is.
    pub(super) factor: Option<Position>,
}

impl Residence {
    /// Nothing is loaded. The queues that it needs are added to those of the device.
    pub(super) fn new(context: Context<'_>, device: DeviceId, kinds: &mut Vec<QueueKind>) -> Self {
        let plan = context.plan;
        kinds.extend([QueueKind::HostToDevice, QueueKind::DeviceToHost, QueueKind::HostCompute]);
        let [upload, download, compute] = [3, 2, 1].map(|back| Local(kinds.len() - back));
        let messages = || context.loads.iter().filter(|load| load.channel.is_some());
        let mut queue = |is_needed: bool, kind: QueueKind| {
            is_needed.then(|| {
                kinds.push(kind);
                Local(kinds.len() - 1)
            })
        };
        let leaves = messages().any(|load| plan.stages[load.home].device == device);
        let arrives = messages().any(|load| plan.stages[load.stage].device == device);
        Residence {
            leaving: queue(leaves, QueueKind::Send),
            arriving: queue(arrives, QueueKind::Receive),
            upload,
            download,
            compute,
            loaded: 0,
            weights: BTreeMap::new(),
            ready: BTreeMap::new(),
            taken: BTreeMap::new(),
            landed: Vec::new(),
            factor: None,
        }
    }

    /// The weights of a stage that live here have been copied to the device at a position.
    fn is_loaded(&mut self, stage: StageId, queue: Local, position: Position) {
        // Positions of a queue ascend, and the last covers those before.
        self.ready.entry(stage).or_default().insert(queue, position);
        self.taken.entry(stage).or_default().insert(queue, position);
    }
}

impl Emission<'_> {
    /// Hands the weights that live here to the devices of forward stages, and loads those of all stages in the order of their first
    /// use where they stay for the whole step.
    pub(super) fn load_all(&mut self) {
        let Context { loads, plan, .. } = self.context;
        if let Some(residence) = &mut self.residence {
            let leaving = loads.iter().filter(|load| plan.stages[load.home].device == self.device);
            for load in leaving {
                let (Some(channel), Some(queue)) = (load.channel, residence.leaving) else { continue };
                let work = Work::Stage(StepWork::Load, load.stage);
                let position = self.queues.push(queue, Instruction::Send { channel, view: load.from, work });
                residence.taken.entry(load.home).or_default().insert(queue, position);
            }
        }
        if self.context.state != State::HostOptimizer {
            return;
        }
        if let (Some(residence), true, Some((from, to))) =
            (&mut self.residence, self.fixed.shares, self.fixed.home.zip(self.fixed.loaded))
        {
            let position = self.queues.push(residence.upload, Instruction::Copy { from, to });
            for &stage in self.fixed.stages.keys() {
                residence.is_loaded(stage, residence.upload, position);
            }
            return;
        }
        let mut seen = BTreeSet::new();
        let units = self.context.schedule.devices[self.device].iter().flat_map(|step| step.passes());
        for stage in units.map(|(_, unit)| unit.stage).filter(|&stage| seen.insert(stage)) {
            let views = self.fixed.stages.get(&stage);
            let (Some(residence), Some(views)) = (&mut self.residence, views) else { continue };
            let Some(to) = views.weights else { continue };
            let position = self.queues.push(residence.upload, Instruction::Copy { from: views.home, to });
            residence.is_loaded(stage, residence.upload, position);
        }
    }

    /// Loads the weights of the visits that may begin to be loaded when so many steps are over.
    pub(super) fn load(&mut self, steps: u32) {
        let visits = &self.context.lifetimes.visits[self.device];
        while let Some(residence) = &self.residence
            && let Some(&visit) = visits.get(residence.loaded)
            && visit.load <= steps
        {
            if let Some(held) = visit.weights {
                let free = self.take(held);
                match self.context.plan.stages[visit.stage].part {
                    Part::Both | Part::Backward => self.load_stage(visit.stage, held, &free),
                    Part::Forward => self.load_runs(visit.stage, held, &free),
                }
            }
            if let Some(residence) = &mut self.residence {
                residence.loaded += 1;
            }
        }
        let begin = visits.iter().filter(|visit| visit.first == steps);
        for visit in begin {
            if let (Some(residence), Some(held)) = (&mut self.residence, visit.weights) {
                residence.weights.insert(visit.stage, held);
            }
        }
    }

    /// Copies the weights of a stage from its host.
    fn load_stage(&mut self, stage: StageId, held: Held, free: &Free) {
        let views = self.fixed.stages.get(&stage);
        let Some((upload, from)) =
            self.residence.as_ref().map(|own| own.upload).zip(views.map(|own| own.home))
        else {
            return;
        };
        self.wait_until_free(upload, free);
        let to = self.view(held);
        let position = self.queues.push(upload, Instruction::Copy { from, to });
        if let Some(residence) = &mut self.residence {
            residence.ready.remove(&stage);
            residence.is_loaded(stage, upload, position);
        }
    }

    /// Brings the weights of a forward stage, run by run, from where each lives.
    fn load_runs(&mut self, stage: StageId, held: Held, free: &Free) {
        if let Some(residence) = &mut self.residence {
            residence.ready.remove(&stage);
        }
        for load in self.context.loads.iter().filter(|load| load.stage == stage) {
            let to = part(self.view(held), load.target, load.from.bytes);
            let Some(residence) = &self.residence else { return };
            let queue = load.channel.and(residence.arriving).unwrap_or(residence.upload);
            self.wait_until_free(queue, free);
            let instruction = match load.channel {
                None => Instruction::Copy { from: load.from, to },
                Some(channel) => {
                    Instruction::Recv { channel, view: to, work: Work::Stage(StepWork::Load, stage) }
                }
            };
            let position = self.queues.push(queue, instruction);
            let Some(residence) = &mut self.residence else { return };
            residence.ready.entry(stage).or_default().insert(queue, position);
            if load.channel.is_none() {
                residence.taken.entry(load.home).or_default().insert(queue, position);
            }
        }
    }

    /// Makes a pass wait until the weights of its stage are on the device.
    pub(super) fn wait_for_weights(&mut self, stage: StageId) {
        let Some(residence) = &self.residence else { return };
        for (&queue, &position) in residence.ready.get(&stage).into_iter().flatten() {
            self.queues.wait(COMPUTE, queue, position);
        }
    }

    /// Gradients that begin to grow with the next step start at zero.
    pub(super) fn grow(&mut self, steps: u32) {
        let growths = &self.context.lifetimes.growths;
        for &stage in &self.context.plan.devices[self.device] {
            let growth = growths.get(&stage).filter(|growth| growth.first == steps);
            let Some(held) = growth.and_then(|growth| growth.held) else { continue };
            let free = self.take(held);
            self.wait_until_free(COMPUTE, &free);
            let view = self.view(held);
            self.queues.push(COMPUTE, Instruction::Fill { view });
        }
    }

    /// Lets the gradients leave that are complete after a step.
    pub(super) fn leave(&mut self, step: u32) {
        if self.residence.is_none() {
            return;
        }
        for &stage in &self.context.plan.devices[self.device] {
            let growth = self.context.lifetimes.growths.get(&stage);
            if growth.is_some_and(|growth| growth.last == step) && !self.context.late.contains(&stage) {
                self.square(stage);
                let complete = self.queues.position(COMPUTE);
                self.land(stage, complete);
            }
        }
    }

    /// Lets the gradients leave that are sums over several stages.
    pub(super) fn leave_late(&mut self) {
        if self.residence.is_none() {
            return;
        }
        let late =
            self.context.plan.devices[self.device].iter().filter(|stage| self.context.late.contains(stage));
        for &stage in late {
            self.square(stage);
        }
        let complete = self.queues.position(COMPUTE);
        let late =
            self.context.plan.devices[self.device].iter().filter(|stage| self.context.late.contains(stage));
        let late: Vec<StageId> = late.copied().collect();
        match self.fixed.gradients.zip(self.fixed.landed).filter(|_| self.fixed.shares) {
            // Common gradients go at once.
            Some((from, to)) => {
                let Some(residence) = &self.residence else { return };
                let download = residence.download;
                self.queues.wait(download, COMPUTE, complete);
                let position = self.queues.push(download, Instruction::Copy { from, to });
                late.into_iter().for_each(|stage| self.landed(stage, position));
            }
            None => late.into_iter().for_each(|stage| self.land(stage, complete)),
        }
    }

    /// Copies the gradients of a stage to the host, once the compute queue has come to a position; without clipping, the update
    /// follows.
    fn land(&mut self, stage: StageId, complete: Position) {
        let gradients = self.context.gradients[stage];
        let landed = self.fixed.stages.get(&stage).and_then(|views| views.landed);
        let (Some(residence), Some(from), Some(to)) = (&self.residence, gradients, landed) else { return };
        let download = residence.download;
        self.queues.wait(download, COMPUTE, complete);
        let position = self.queues.push(download, Instruction::Copy { from, to });
        let growth = self.context.lifetimes.growths.get(&stage);
        if let Some(held) = growth.and_then(|growth| growth.held) {
            self.moved[held as usize] = Some((download, position));
        }
        self.landed(stage, position);
    }

    /// Gradients of a stage are on the host at a position of the download queue.
    fn landed(&mut self, stage: StageId, position: Position) {
        if let Some(residence) = &mut self.residence {
            residence.landed.push((stage, position));
        }
        if self.is_updated_early() {
            self.update_on_host(stage, position);
        }
    }

    /// Whether a stage is updated when its gradients are on the host: without clipping, if the schedule does not put it off.
    pub(super) fn is_updated_early(&self) -> bool {
        self.context.functions.clip.is_none() && self.context.updates == Updates::Async
    }

    /// Updates a stage on the host, once its gradients are there and its weights have been loaded the last time.
    pub(super) fn update_on_host(&mut self, stage: StageId, landed: Position) {
        let Some(residence) = &self.residence else { return };
        let Some(update) = &self.context.functions.update[stage] else { return };
        let (compute, download) = (residence.compute, residence.download);
        for (&queue, &position) in residence.taken.get(&stage).into_iter().flatten() {
            self.queues.wait(compute, queue, position);
        }
        let landed = residence.factor.map_or(landed, |factor| factor.max(landed));
        self.queues.wait(compute, download, landed);
        let work = Work::Stage(StepWork::Update, stage);
        self.run(compute, update.id, &update.function, Some(stage), work);
    }
}
