//! One worker in one step: the thread of a device drives all of its queues but those that compute on its host, which have
//! a thread of their own.
//!
//! The thread executes the head of any queue that is ready, communication before computing, because others may wait
//! for it; when no head is ready it sleeps until another worker changes something. Waits between queues of one worker
//! are its own affair; a device and its host tell each other how far their queues are. A send offers its bytes where they are; the receiving thread copies them into its own arena.

use super::exchange::{Exchange, Source};
use super::{Arenas, At, EngineError, StepInputs, Worker};
use crate::arena::Region;
use crate::device::{DeviceError, ScalarValue};
use crate::shared::SharedArena;
use crate::splitmix;
use pipec_program::id::Id;
use pipec_program::{
    Argument, Bytes, ChannelId, DeviceId, Event, FunctionId, GroupId, Instruction, Nanos, Position, Program,
    QueueId, QueueKind, Shared, Space, StepInput, View, Work,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// A view resolved to an arena.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    device: DeviceId,
    space: Space,
    offset: Bytes,
    bytes: Bytes,
}

impl Place {
    pub(super) fn of(program: &Program, view: View) -> Self {
        let buffer = &program.buffers[view.buffer];
        Self {
            device: buffer.device,
            space: buffer.space,
            offset: buffer.offset + view.offset,
            bytes: view.bytes,
        }
    }

    pub(super) fn device(self) -> DeviceId {
        self.device
    }

    pub(super) fn region(self, arenas: &[Arenas]) -> Result<Region<'_>, DeviceError> {
        arenas
            .get(self.device.index())
            .and_then(|arenas| arenas.get(self.space))
            .and_then(|arena| arena.region(self.offset, self.bytes))
            .ok_or_else(|| DeviceError::Failed("a view lies outside its arena".to_owned()))
    }
}

/// What all devices share in a step.
pub(super) struct Step<'a> {
    pub(super) program: &'a Program,
    pub(super) arenas: &'a [Arenas],
    /// The slots of each channel that has some.
    pub(super) slots: &'a [Option<SharedArena>],
    pub(super) exchange: &'a Exchange,
    /// The worker that computes on the host of each device, by its number among all; none where nothing does.
    pub(super) hosts: &'a [Option<usize>],
    pub(super) inputs: &'a StepInputs,
    pub(super) clock: Instant,
    pub(super) record: bool,
}

impl Step<'_> {
    /// Runs the step of one worker to its end, or to that of all; returns its events.
    pub(super) fn drive(&self, worker: &mut Worker) -> Vec<Event> {
        let mut driver = Driver::new(self, worker);
        let outcome = catch_unwind(AssertUnwindSafe(|| driver.run()));
        let at = || Box::new(At::new(self.program, driver.worker.id, driver.current));
        match outcome {
            Ok(Ok(())) => self.exchange.finish(),
            Ok(Err(error)) => self.exchange.fail(EngineError::Device { at: at(), error }),
            Err(panic) => {
                let message = panic
                    .downcast_ref::<String>()
                    .map(String::as_str)
                    .or_else(|| panic.downcast_ref::<&str>().copied())
                    .unwrap_or("no message")
                    .to_owned();
                self.exchange.fail(EngineError::Panicked { at: at(), message });
            }
        }
        driver.events
    }
}

/// A queue and how far it is.
struct Head {
    queue: QueueId,
    kind: QueueKind,
    finished: Position,
    stage: Stage,
    /// When the instruction at the head began to work.
    since: Option<Nanos>,
}

/// How far the instruction at the head of a queue is.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Not begun.
    Fresh,
    /// The message of this number is offered and not yet received.
    Posted(u64),
    /// The tensor has been brought to the reduction.
    Arrived,
    /// The first member holds the sum, which others still copy.
    Summed,
}

/// What became of an attempt to execute the head of a queue.
enum Attempt {
    /// It has finished.
    Finished,
    /// It must wait for something.
    Blocked,
}

/// The thread of a worker in a step.
struct Driver<'a> {
    step: &'a Step<'a>,
    worker: &'a mut Worker,
    /// Its number among all workers.
    number: usize,
    /// The worker that has the other queues of the device.
    other: Option<usize>,
    heads: Vec<Head>,
    events: Vec<Event>,
    /// The instruction that is being executed.
    current: Option<(QueueId, Position)>,
    regions: Vec<Region<'a>>,
    scalars: Vec<ScalarValue>,
}

/// Which worker of its device has a queue: the device, or what computes on its host.
pub(super) fn space(kind: QueueKind) -> Space {
    match kind {
        QueueKind::HostCompute => Space::Host,
        QueueKind::Compute
        | QueueKind::Send
        | QueueKind::Receive
        | QueueKind::Collective
        | QueueKind::HostToDevice
        | QueueKind::DeviceToHost => Space::Device,
    }
}

/// Others wait for messages and reductions, so that those come first; a queue that computes comes last.
fn urgency(kind: QueueKind) -> u8 {
    match kind {
        QueueKind::Send => 0,
        QueueKind::Receive => 1,
        QueueKind::Collective => 2,
        QueueKind::HostToDevice => 3,
        QueueKind::DeviceToHost => 4,
        QueueKind::HostCompute => 5,
        QueueKind::Compute => 6,
    }
}

impl<'a> Driver<'a> {
    fn new(step: &'a Step<'a>, worker: &'a mut Worker) -> Self {
        let mut heads: Vec<Head> = step
            .program
            .queues
            .iter()
            .filter(|(_, queue)| queue.device == worker.id && space(queue.kind) == worker.space)
            .map(|(queue, of)| Head { queue, kind: of.kind, finished: 0, stage: Stage::Fresh, since: None })
            .collect();
        heads.sort_by_key(|head| (urgency(head.kind), head.queue));
        let host = step.hosts.get(worker.id.index()).copied().flatten();
        let (number, other) = match worker.space {
            Space::Device => (worker.id.index(), host),
            Space::Host => (host.unwrap_or(worker.id.index()), Some(worker.id.index())),
        };
        Self {
            step,
            worker,
            number,
            other,
            heads,
            events: Vec::new(),
            current: None,
            regions: Vec::new(),
            scalars: Vec::new(),
        }
    }

    fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.step.clock.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Executes all queues, or returns early when the step has failed elsewhere.
    fn run(&mut self) -> Result<(), DeviceError> {
        while !self.step.exchange.stopped() {
            if self.sweep()? {
                continue;
            }
            if self.heads.iter().all(|head| self.instruction(head).is_none()) {
                return Ok(());
            }
            self.step.exchange.sleep(self.number);
        }
        Ok(())
    }

    fn instruction(&self, head: &Head) -> Option<&'a Instruction> {
        self.step.program.queues[head.queue].instructions.get(head.finished as usize)
    }

    /// Goes through the heads in order of urgency, and executes what is ready; stops after a call of a function, since
    /// messages may have come meanwhile. Returns whether anything has finished.
    fn sweep(&mut self) -> Result<bool, DeviceError> {
        let mut progress = false;
        for index in 0..self.heads.len() {
            while let Some(instruction) = self.instruction(&self.heads[index]) {
                match self.attempt(index, instruction)? {
                    Attempt::Blocked => break,
                    Attempt::Finished => {
                        self.finish(index, instruction);
                        progress = true;
                        if matches!(instruction, Instruction::Run { .. }) {
                            return Ok(true);
                        }
                    }
                }
            }
        }
        Ok(progress)
    }

    fn finish(&mut self, index: usize, instruction: &Instruction) {
        let record = self.step.record && !matches!(instruction, Instruction::Wait { .. });
        let end = if record { self.now() } else { Nanos::ZERO };
        let head = &mut self.heads[index];
        if record {
            let start = head.since.unwrap_or(end);
            self.events.push(Event { queue: head.queue, position: head.finished, start, end });
        }
        head.finished += 1;
        head.stage = Stage::Fresh;
        head.since = None;
        if let Some(other) = self.other {
            self.step.exchange.advance(head.queue, head.finished, other);
        }
    }

    /// Notes that the instruction at a head begins to work: time that it was blocked does not count.
    fn begin(&mut self, index: usize) {
        if self.step.record {
            self.heads[index].since = Some(self.now());
        }
    }

    fn attempt(&mut self, index: usize, instruction: &'a Instruction) -> Result<Attempt, DeviceError> {
        self.current = Some((self.heads[index].queue, self.heads[index].finished));
        match instruction {
            Instruction::Wait { queue, position } => {
                let own = self.heads.iter().find(|head| head.queue == *queue).map(|head| head.finished);
                let finished = own.unwrap_or_else(|| self.step.exchange.finished(*queue));
                Ok(if finished >= *position { Attempt::Finished } else { Attempt::Blocked })
            }
            Instruction::Run { function, views, scalars, work } => {
                self.begin(index);
                self.call(*function, views, scalars, work)?;
                Ok(Attempt::Finished)
            }
            Instruction::Copy { from, to } => {
                self.begin(index);
                let (from, to) = (self.region(*from)?, self.region(*to)?);
                self.worker.device.copy(from, to)?;
                Ok(Attempt::Finished)
            }
            Instruction::Fill { view } => {
                self.begin(index);
                let to = self.region(*view)?;
                self.worker.device.fill(to)?;
                Ok(Attempt::Finished)
            }
            Instruction::Send { channel, view, work: _ } => self.send(index, *channel, *view),
            Instruction::Recv { channel, view, work: _ } => self.receive(index, *channel, *view),
            Instruction::Reduce { group, view, work: _ } => self.reduce(index, *group, *view),
        }
    }

    fn place(&self, view: View) -> Place {
        Place::of(self.step.program, view)
    }

    fn region(&self, view: View) -> Result<Region<'a>, DeviceError> {
        self.place(view).region(self.step.arenas)
    }

    fn call(
        &mut self,
        function: FunctionId,
        views: &[View],
        arguments: &[Argument],
        work: &Work,
    ) -> Result<(), DeviceError> {
        let Some(compiled) = self.worker.functions.get(function.index()).copied().flatten() else {
            return Err(DeviceError::Failed(format!("{function} was not compiled")));
        };
        self.regions.clear();
        for &view in views {
            let region = self.region(view)?;
            self.regions.push(region);
        }
        self.scalars.clear();
        let pair = self.step.program.functions[function].pair;
        for (position, &argument) in arguments.iter().enumerate() {
            let micro_batch = match work {
                Work::Pass(_, unit) => u64::from(unit.micro_batch.0),
                Work::Pair(of) => {
                    let is_forward = pair.is_none_or(|halves| position < halves.scalar.index());
                    let unit = if is_forward { of.forward } else { of.backward };
                    u64::from(unit.micro_batch.0)
                }
                Work::Stage(..) | Work::Step(_) => 0,
            };
            self.scalars.push(self.step.inputs.scalar(argument, micro_batch));
        }
        self.worker.device.run(compiled, &self.regions, &self.scalars)
    }

    fn slot(&self, channel: ChannelId, slot: u64) -> Result<Region<'a>, DeviceError> {
        let message = self.step.program.channels[channel].bytes();
        self.step
            .slots
            .get(channel.index())
            .and_then(Option::as_ref)
            .and_then(|arena| arena.region(message.align_up(64) * slot, message))
            .ok_or_else(|| DeviceError::Failed(format!("{channel} has no slot {slot}")))
    }

    fn send(&mut self, index: usize, channel: ChannelId, view: View) -> Result<Attempt, DeviceError> {
        let capacity = self.step.program.channels[channel].capacity;
        match self.heads[index].stage {
            Stage::Posted(number) => match self.step.exchange.received(channel, number) {
                None => Ok(Attempt::Blocked),
                Some(start) => {
                    self.heads[index].since = Some(start);
                    Ok(Attempt::Finished)
                }
            },
            Stage::Fresh | Stage::Arrived | Stage::Summed if capacity == 0 => {
                let from = self.place(view);
                // The view is resolved here once, so that an error names the sender and not the receiver.
                from.region(self.step.arenas)?;
                self.heads[index].stage = Stage::Posted(self.step.exchange.post(channel, from));
                Ok(Attempt::Blocked)
            }
            Stage::Fresh | Stage::Arrived | Stage::Summed => {
                let Some(slot) = self.step.exchange.reserve(channel, capacity) else {
                    return Ok(Attempt::Blocked);
                };
                self.begin(index);
                let (from, to) = (self.region(view)?, self.slot(channel, slot)?);
                self.worker.device.copy(from, to)?;
                self.step.exchange.fill(channel, slot);
                Ok(Attempt::Finished)
            }
        }
    }

    fn receive(&mut self, index: usize, channel: ChannelId, view: View) -> Result<Attempt, DeviceError> {
        let Some(source) = self.step.exchange.take(channel) else { return Ok(Attempt::Blocked) };
        let start = self.now();
        self.heads[index].since = Some(start);
        let to = self.region(view)?;
        let from = match source {
            Source::Sender(place) => place.region(self.step.arenas)?,
            Source::Slot(slot) => self.slot(channel, slot)?,
        };
        self.worker.device.copy(from, to)?;
        self.step.exchange.acknowledge(channel, start);
        Ok(Attempt::Finished)
    }

    /// The members meet; for a sum the first adds the tensors of the others to its own, in order; then the others copy
    /// what it has.
    fn reduce(&mut self, index: usize, group: GroupId, view: View) -> Result<Attempt, DeviceError> {
        let exchange = self.step.exchange;
        let of = &self.step.program.groups[group];
        let Some(member) = of.members.iter().position(|&member| member == self.worker.id) else {
            return Err(DeviceError::Failed(format!("{} is no member of {group}", self.worker.id)));
        };
        let own = self.region(view)?;
        if let Stage::Fresh = self.heads[index].stage {
            if !exchange.arrive(group, member, self.place(view)) {
                return Ok(Attempt::Blocked);
            }
            self.heads[index].stage = Stage::Arrived;
        }
        if member != 0 {
            let Some(sum) = exchange.sum(group) else { return Ok(Attempt::Blocked) };
            self.begin(index);
            self.worker.device.copy(sum.region(self.step.arenas)?, own)?;
            exchange.copied(group);
            return Ok(Attempt::Finished);
        }
        if let Stage::Arrived = self.heads[index].stage {
            let Some(places) = exchange.gathered(group) else { return Ok(Attempt::Blocked) };
            self.begin(index);
            let added = match of.result {
                Shared::Sum => places.len(),
                Shared::Broadcast => 0,
            };
            for place in places.into_iter().take(added).skip(1) {
                self.worker.device.add(of.ty.dtype, place.region(self.step.arenas)?, own)?;
            }
            exchange.summed(group);
            self.heads[index].stage = Stage::Summed;
        }
        Ok(if exchange.end(group) { Attempt::Finished } else { Attempt::Blocked })
    }
}

impl StepInputs {
    /// The value of an argument of a call for a micro-batch.
    fn scalar(&self, argument: Argument, micro_batch: u64) -> ScalarValue {
        match argument {
            Argument::Integer(value) => ScalarValue::Integer(value),
            Argument::Real(value) => ScalarValue::Real(value),
            Argument::Step(StepInput::LearningRate) => ScalarValue::Real(self.learning_rate),
            Argument::Step(StepInput::Step) => ScalarValue::Integer(self.step),
            Argument::Step(StepInput::LossScale) => ScalarValue::Real(self.loss_scale),
            Argument::Step(StepInput::Seed) => {
                ScalarValue::Integer(splitmix::at(splitmix::at(self.seed, self.step), micro_batch))
            }
        }
    }
}
