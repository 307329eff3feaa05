//! What a device holds from one pass to another, and when messages move.
//!
//! Everything here is ordered by one *reference execution*: the schedule run in order with the times of the plan and
//! free messages. A message moves at a moment between the end of the pass that makes it and the start of the pass that
//! takes it; [`Message::receive`] fixes it. Because memory is reused only after that moment in the reference, every wait
//! that follows from reuse points backwards in it, so that no combination of waits can deadlock, whatever the real times.
//!
//! - A receive is posted as late as its consumer allows, then moved ahead up to one pass before its message is made, as
//!   far as the device needs no more memory for it than the most that any device of the pipeline needs anyway.
//! - A message stays with its sender for one pass longer than the reference says, so that sending overlaps with computing.

use super::functions::{Region, StageFunction};
use super::pack::{Span, live};
use super::stages::Stages;
use super::trips::{Stored, Trip};
use super::visits::{Growth, Visit};
use crate::plan::{Part, Plan};
use crate::schedule::{Execution, Schedule, Step};
use crate::spec::State;
use pipec_program::id::{Id, IdVec};
use pipec_program::{
    Bytes, Category, ChannelId, Device, DeviceId, Link, LinkId, Pass, StageId, TensorType, Unit,
};
use std::collections::{BTreeMap, BTreeSet};

/// The number of a tensor among those of its device.
pub(super) type Held = u32;

/// A tensor that a device holds for some passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tensor {
    /// What it is to the unit that made it here or received it.
    pub(super) region: Region,
    /// That unit.
    pub(super) unit: Unit,
    /// What the memory report counts it as.
    pub(super) category: Category,
    /// Its size and the passes of the device during which it is alive.
    pub(super) span: Span,
    /// The last pass that touches it.
    pub(super) last: u32,
    /// Whether it is sent.
    pub(super) sent: bool,
}

/// The tensors of a unit on its device; none where the stage has no such region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UnitTensors {
    pub(super) input: Option<Held>,
    pub(super) saved: Option<Held>,
    pub(super) held: Option<Held>,
    pub(super) stored: Option<Held>,
    /// What has come back; what is stored where that stays.
    pub(super) fetched: Option<Held>,
    /// Its way to the host and back, by its number among those of the device.
    pub(super) trip: Option<u32>,
    pub(super) output: Option<Held>,
    /// What the forward cut passes to it, on the device that makes it, where that is another one.
    pub(super) checkpoint: Option<Held>,
    pub(super) output_gradient: Option<Held>,
    pub(super) input_gradient: Option<Held>,
    pub(super) pending: Option<Held>,
    pub(super) state_gradient: Option<Held>,
}

/// A message of a channel. Positions count the passes of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    /// The unit whose pass makes it.
    pub(super) unit: Unit,
    /// That pass.
    pub(super) pass: Pass,
    /// The tensor at the sender and at the receiver.
    pub(super) sent: Held,
    pub(super) received: Held,
    /// The pass of the sender that makes it.
    pub(super) made: u32,
    /// The pass of the receiver that takes it first.
    pub(super) taken: u32,
    /// How many passes of the receiver are over when it may be received.
    pub(super) receive: u32,
}

/// A stream of messages between the devices of two neighbouring stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stream {
    /// The stage that makes the messages.
    pub(super) from: StageId,
    /// The stage that takes them.
    pub(super) to: StageId,
    /// Whether it is of a backward cut and they are what the forward cut passes.
    pub(super) across: bool,
    /// What is sent.
    pub(super) message: Vec<TensorType>,
    /// In the order in which they are made.
    pub(super) messages: Vec<Message>,
}

/// All tensors and messages.
pub(super) struct Lifetimes {
    /// The tensors of each device.
    pub(super) tensors: IdVec<DeviceId, Vec<Tensor>>,
    /// The backward stages that each forward stage passes something to.
    pub(super) fed: IdVec<StageId, Vec<StageId>>,
    /// The tensors of each unit, by its index in the plan.
    pub(super) units: Vec<UnitTensors>,
    /// The tensors that the host of each device holds.
    pub(super) hosts: IdVec<DeviceId, Vec<Tensor>>,
    /// The ways to the host and back, in the order in which they are fetched.
    pub(super) trips: IdVec<DeviceId, Vec<Trip>>,
    /// The messages of each channel.
    pub(super) streams: IdVec<ChannelId, Stream>,
    /// The visits of each device, where weights are loaded for them.
    pub(super) visits: IdVec<DeviceId, Vec<Visit>>,
    /// The steps in which the gradients of each stage grow, where they land on the host.
    pub(super) growths: BTreeMap<StageId, Growth>,
}

/// What a device has and what it holds all the time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) capacity: Bytes,
    pub(super) fixed: Bytes,
}

/// Finds what is alive when.
pub(super) fn lifetimes(
    plan: &Plan,
    schedule: &Schedule,
    execution: &Execution,
    stages: &Stages,
    rooms: &IdVec<DeviceId, Room>,
    (devices, links): (&IdVec<DeviceId, Device>, &IdVec<LinkId, Link>),
    (state, late): (State, &BTreeSet<StageId>),
) -> Lifetimes {
    let passes = Passes::new(plan, schedule);
    let mut streams = streams(plan, schedule, stages, &passes);
    let mut held = Lifetimes {
        tensors: plan.devices.values().map(|_| Vec::new()).collect(),
        fed: IdVec::new(),
        units: vec![UnitTensors::default(); plan.units()],
        hosts: plan.devices.values().map(|_| Vec::new()).collect(),
        trips: plan.devices.values().map(|_| Vec::new()).collect(),
        streams: IdVec::new(),
        visits: plan.devices.values().map(|_| Vec::new()).collect(),
        growths: BTreeMap::new(),
    };
    let fed: IdVec<StageId, Vec<StageId>> = plan.stages.ids().map(|stage| plan.fed(stage)).collect();
    let mut stored: IdVec<DeviceId, Vec<Stored>> = plan.devices.values().map(|_| Vec::new()).collect();
    for (device, steps) in schedule.devices.iter() {
        for (pass, unit) in steps.iter().flat_map(|step| step.passes()) {
            let makes = match pass {
                Pass::F => true,
                Pass::R => plan.stages[unit.stage].part == Part::Backward,
                Pass::B | Pass::W | Pass::BW => false,
            };
            if makes {
                stored[device].extend(hold_unit(
                    plan,
                    stages,
                    &passes,
                    &mut held,
                    device,
                    unit,
                    &fed[unit.stage],
                ));
            }
        }
    }
    held.travel(plan, execution, &stored, devices, links);
    match state {
        State::Device => {}
        State::HostOptimizer => held.stay(plan, schedule),
        State::Host => held.visit(plan, schedule, execution, stages, late, (devices, links)),
    }
    for (_, stream) in streams.iter_mut() {
        for message in &mut stream.messages {
            let taker = held.units[plan.unit_index(Unit { stage: stream.to, ..message.unit })];
            let maker = held.units[plan.unit_index(message.unit)];
            let (sent, received) = match message.pass {
                Pass::F if stream.across => (taker.checkpoint, taker.input),
                Pass::F => (maker.output, taker.input),
                Pass::B | Pass::W | Pass::BW | Pass::R => (maker.input_gradient, taker.output_gradient),
            };
            (message.sent, message.received) = (sent.unwrap_or_default(), received.unwrap_or_default());
        }
    }
    held.streams = streams;
    held.fed = fed;
    held.receive_late(plan);
    held.keep_until_sent(plan, execution);
    held.receive_early(plan, execution, rooms);
    held.keep_until_sent(plan, execution);
    held
}

/// The position of the passes of every unit among the steps of its device.
struct Passes {
    forward: Vec<u32>,
    /// BW, or B where the weight gradients are a pass of their own.
    backward: Vec<u32>,
    /// The last pass of the unit: the last part of W, or else BW.
    weights: Vec<u32>,
}

impl Passes {
    fn new(plan: &Plan, schedule: &Schedule) -> Self {
        let zeros = || vec![0; plan.units()];
        let per_stage = (plan.units() / plan.stages.len().max(1)).max(1);
        let mut passes = Self { forward: zeros(), backward: zeros(), weights: zeros() };
        for steps in schedule.devices.values() {
            for (position, step) in (0..).zip(steps) {
                for (pass, unit) in step.passes() {
                    let unit = plan.unit_index(unit);
                    match pass {
                        Pass::F => passes.forward[unit] = position,
                        Pass::B | Pass::BW => {
                            passes.backward[unit] = position;
                            passes.weights[unit] = position;
                        }
                        Pass::W => passes.weights[unit] = position,
                        // Of a backward cut it makes what F makes elsewhere.
                        Pass::R if plan.stages[StageId::new(unit / per_stage)].part == Part::Backward => {
                            passes.forward[unit] = position;
                        }
                        // Recomputation makes no messages.
                        Pass::R => {}
                    }
                }
            }
        }
        passes
    }
}

/// The channels of all boundaries between devices, outputs before gradients: one for each distinct type of message, which
/// differs where slices have different lengths.
fn streams(plan: &Plan, schedule: &Schedule, stages: &Stages, passes: &Passes) -> IdVec<ChannelId, Stream> {
    let mut streams = IdVec::new();
    // By stage and slice.
    let mut ids: IdVec<StageId, Vec<[Option<ChannelId>; 2]>> =
        plan.stages.ids().map(|_| vec![[None; 2]; plan.slices as usize]).collect();
    for stage in plan.stages.ids() {
        let Some(after) = plan.after(stage) else { continue };
        if plan.stages[stage].device == plan.stages[after].device {
            continue;
        }
        for (direction, from, to) in [(0, stage, after), (1, after, stage)] {
            // Forward and backward passes go one way each in cuts of their own.
            let part = plan.stages[stage].part;
            if part != Part::Both && (part == Part::Forward) != (direction == 0) {
                continue;
            }
            let mut known: Vec<(&[TensorType], ChannelId)> = Vec::new();
            for (slice, passes) in stages.of(stage).slices.iter() {
                let message = &passes.output[..];
                let channel = known.iter().find(|(ty, _)| *ty == message).map(|&(_, channel)| channel);
                let channel = channel.unwrap_or_else(|| {
                    let (of_stream, messages) = (message.to_vec(), Vec::new());
                    let stream = Stream { from, to, across: false, message: of_stream, messages };
                    known.push((message, streams.push(stream)));
                    known[known.len() - 1].1
                });
                ids[from][slice.index()][direction] = Some(channel);
            }
        }
    }
    // What the forward cut passes to each backward stage elsewhere.
    let mut across: IdVec<StageId, Vec<ChannelId>> = plan.stages.ids().map(|_| Vec::new()).collect();
    for from in plan.stages.ids() {
        for to in plan.fed(from) {
            if plan.stages[from].device == plan.stages[to].device {
                continue;
            }
            let message = stages.of(to).slices.values().next().map(|passes| passes.input.clone());
            let message = message.unwrap_or_default();
            across[from].push(streams.push(Stream { from, to, across: true, message, messages: Vec::new() }));
        }
    }
    for steps in schedule.devices.values() {
        let passes_of =
            |(made, step): (u32, &Step)| step.passes().map(move |(pass, unit)| (made, pass, unit));
        for (made, pass, unit) in (0..).zip(steps).flat_map(passes_of) {
            let (direction, taker) = match pass {
                Pass::F => (0, &passes.forward),
                Pass::B | Pass::BW => (1, &passes.backward),
                Pass::W | Pass::R => continue,
            };
            let across = if pass == Pass::F { &across[unit.stage][..] } else { &[] };
            for &channel in ids[unit.stage][unit.slice.index()][direction].iter().chain(across) {
                let taken = taker[plan.unit_index(Unit { stage: streams[channel].to, ..unit })];
                let (sent, received) = (0, 0);
                let message = Message { unit, pass, sent, received, made, taken, receive: taken };
                streams[channel].messages.push(message);
            }
        }
    }
    streams
}

/// The size of a region of a function; none where the function does not take it.
pub(super) fn region_bytes(function: &StageFunction, region: Region) -> Option<Bytes> {
    let position = function.regions.iter().find(|&(_, &taken)| taken == region)?.0;
    function.function.params.get(position).map(|param| param.bytes)
}

/// The size of a region of any of some functions; none where none of them takes it.
pub(super) fn any_bytes<'a>(
    functions: impl IntoIterator<Item = &'a StageFunction>,
    region: Region,
) -> Option<Bytes> {
    functions.into_iter().filter_map(|function| region_bytes(function, region)).max()
}

/// Adds the tensors that a unit makes or receives on its device. Returns what may go to the host.
fn hold_unit(
    plan: &Plan,
    stages: &Stages,
    passes: &Passes,
    held: &mut Lifetimes,
    device: DeviceId,
    unit: Unit,
    fed: &[StageId],
) -> Option<Stored> {
    let index = plan.unit_index(unit);
    let functions = stages.passes(unit.stage, unit.slice);
    let (forward, backward, weights) = (passes.forward[index], passes.backward[index], passes.weights[index]);
    let tensors = &mut held.tensors[device];
    let mut add = |region, category, bytes: Bytes, start, end| {
        tensors.push(Tensor {
            region,
            unit,
            category,
            span: Span { bytes: bytes.0, start, end },
            last: end,
            sent: false,
        });
        Held::try_from(tensors.len() - 1).ok()
    };
    let elsewhere = |other: StageId| plan.stages[other].device != device;
    // The last backward pass of the unit of a stage that takes a region.
    let last = |stage: StageId, region: Region| {
        let (index, functions) = (plan.unit_index(Unit { stage, ..unit }), stages.passes(stage, unit.slice));
        if any_bytes(functions.weights(), region).is_some() {
            return Some(passes.weights[index]);
        }
        any_bytes(functions.backward(), region).map(|_| passes.backward[index])
    };

    let own = &mut held.units[index];
    let kept = Category::Activations;
    let made = |region| region_bytes(&functions.forward, region);
    own.saved = made(Region::Saved).and_then(|bytes| add(Region::Saved, kept, bytes, forward, backward));
    own.held = made(Region::Held).and_then(|bytes| add(Region::Held, kept, bytes, forward, weights));
    let taken = last(unit.stage, Region::Fetched).unwrap_or(backward);
    own.stored = made(Region::Stored).and_then(|bytes| add(Region::Stored, kept, bytes, forward, taken));
    own.fetched = own.stored;
    let stored = own.stored.zip(made(Region::Stored)).map(|(held, bytes)| Stored {
        unit: index,
        held,
        bytes: bytes.0,
        forward,
        backward: (backward, taken),
    });
    // A whole backward pass leaves nothing for later.
    own.pending = any_bytes(functions.backward(), Region::Pending)
        .filter(|_| backward != weights)
        .and_then(|bytes| add(Region::Pending, kept, bytes, backward, weights));
    own.state_gradient = any_bytes(functions.backward(), Region::StateGradient).and_then(|bytes| {
        let first = passes.backward[plan.unit_index(Unit { slice: functions.seen_until, ..unit })];
        let end = last(unit.stage, Region::StateGradient).unwrap_or(backward);
        add(Region::StateGradient, kept, bytes, first, end)
    });
    if let Some(source) = plan.source(unit.stage)
        && elsewhere(source)
    {
        let (category, end) = match last(unit.stage, Region::Input) {
            Some(end) => (Category::Activations, end),
            None => (Category::Communication, forward),
        };
        own.input = made(Region::Input).and_then(|bytes| add(Region::Input, category, bytes, forward, end));
    }
    if let Some(before) = plan.before(unit.stage) {
        // A neighbour on this device takes the gradient where it was made.
        let end = if elsewhere(before) { None } else { last(before, Region::OutputGradient) };
        own.input_gradient = any_bytes(functions.backward(), Region::InputGradient).and_then(|bytes| {
            add(Region::InputGradient, Category::Communication, bytes, backward, end.unwrap_or(backward))
        });
    }
    let mut shared_output = None;
    let is_backward = plan.stages[unit.stage].part == Part::Backward;
    if is_backward {
        // The output of what is computed again goes nowhere.
        own.output = made(Region::Output)
            .and_then(|bytes| add(Region::Output, Category::Communication, bytes, forward, forward));
    }
    if let Some(after) = plan.after(unit.stage) {
        let next = plan.unit_index(Unit { stage: after, ..unit });
        if !is_backward {
            let (category, end) = match (elsewhere(after), last(after, Region::Input)) {
                (true, _) => (Category::Communication, forward),
                (false, Some(end)) => (Category::Activations, end),
                (false, None) => (Category::Communication, passes.forward[next]),
            };
            own.output =
                made(Region::Output).and_then(|bytes| add(Region::Output, category, bytes, forward, end));
        }
        if elsewhere(after) {
            let end = last(unit.stage, Region::OutputGradient).unwrap_or(backward);
            own.output_gradient = any_bytes(functions.all(), Region::OutputGradient)
                .and_then(|bytes| add(Region::OutputGradient, Category::Communication, bytes, backward, end));
        } else if !is_backward {
            shared_output = Some((next, own.output));
        }
    }
    // What the forward cut passes to backward stages: sent, or kept where both are on one device.
    let mut passed: Vec<(usize, Option<Held>, bool)> = Vec::new();
    for (number, &fed) in (0..).zip(fed) {
        let index = plan.unit_index(Unit { stage: fed, ..unit });
        let is_sent = elsewhere(fed);
        let (category, end) = match is_sent {
            true => (Category::Communication, forward),
            false => (Category::Activations, last(fed, Region::Input).unwrap_or(passes.forward[index])),
        };
        let region = Region::Checkpoint(number);
        let tensor = made(region).and_then(|bytes| add(region, category, bytes, forward, end));
        passed.push((index, tensor, is_sent));
    }
    let input_gradient = own.input_gradient;
    if let Some((next, output)) = shared_output {
        held.units[next].input = output;
    }
    for (index, tensor, is_sent) in passed {
        let of_backward = &mut held.units[index];
        if is_sent { of_backward.checkpoint = tensor } else { of_backward.input = tensor }
    }
    if let Some(before) = plan.before(unit.stage).filter(|&before| !elsewhere(before)) {
        held.units[plan.unit_index(Unit { stage: before, ..unit })].output_gradient = input_gradient;
    }
    stored
}

impl Lifetimes {
    /// Posts every receive when its consumer starts, or earlier where a later message of its channel is taken before.
    fn receive_late(&mut self, plan: &Plan) {
        for (_, stream) in self.streams.iter_mut() {
            let tensors = &mut self.tensors[plan.stages[stream.to].device];
            let mut latest = u32::MAX;
            for message in stream.messages.iter_mut().rev() {
                latest = latest.min(message.taken);
                message.receive = latest;
                tensors[message.received as usize].span.start = latest;
            }
        }
    }

    /// Holds every message at its sender until one pass after the reference has moved it.
    fn keep_until_sent(&mut self, plan: &Plan, execution: &Execution) {
        for (_, stream) in self.streams.iter() {
            let (sender, receiver) = (plan.stages[stream.from].device, plan.stages[stream.to].device);
            let (sender_passes, receiver_passes) = (&execution.devices[sender], &execution.devices[receiver]);
            let mut moved = 0;
            for message in &stream.messages {
                let posted =
                    (message.receive as usize).checked_sub(1).map_or(0, |last| receiver_passes[last].1);
                moved = sender_passes[message.made as usize].1.max(posted).max(moved);
                let next = sender_passes.partition_point(|pass| pass.0 < moved);
                let tensor = &mut self.tensors[sender][message.sent as usize];
                // At the end of the step nothing follows that could reuse the bytes.
                tensor.span.end = next.min(sender_passes.len() - 1) as u32;
                tensor.sent = true;
            }
        }
    }

    /// Posts receives ahead where memory allows it.
    fn receive_early(&mut self, plan: &Plan, execution: &Execution, rooms: &IdVec<DeviceId, Room>) {
        let mut alive: IdVec<DeviceId, Vec<u64>> = self
            .tensors
            .iter()
            .map(|(device, tensors)| {
                let mut alive = live(&tensors.iter().map(|tensor| tensor.span).collect::<Vec<_>>());
                alive.resize(execution.devices[device].len(), 0);
                alive
            })
            .collect();
        let peak = |device: DeviceId, alive: &[u64]| {
            rooms[device].fixed + Bytes(alive.iter().copied().max().unwrap_or(0))
        };
        let most = alive.iter().map(|(device, alive)| peak(device, alive)).max().unwrap_or_default();
        let limits: IdVec<DeviceId, Bytes> = alive
            .iter()
            .map(|(device, alive)| {
                most.min(rooms[device].capacity).max(peak(device, alive)) - rooms[device].fixed
            })
            .collect();
        for (_, stream) in self.streams.iter_mut() {
            let (sender, receiver) = (plan.stages[stream.from].device, plan.stages[stream.to].device);
            let alive = &mut alive[receiver];
            let mut previous = 0;
            for message in &mut stream.messages {
                let before = execution.devices[sender][message.made as usize].0;
                let over = execution.devices[receiver].partition_point(|pass| pass.1 <= before) as u32;
                let tensor = &mut self.tensors[receiver][message.received as usize];
                while message.receive > over.max(previous)
                    && alive[message.receive as usize - 1] + tensor.span.bytes <= limits[receiver].0
                {
                    message.receive -= 1;
                    alive[message.receive as usize] += tensor.span.bytes;
                }
                tensor.span.start = message.receive;
                previous = message.receive;
            }
        }
    }
}
