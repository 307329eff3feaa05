//! The step of one device as instructions: passes with their messages, then ties, norm, clipping and update. Where state is on
//! the host, loads of weights come before the passes that read them, and gradients leave when they are complete ([`residence`]).

mod residence;

use super::arena::{ALIGNMENT, Fixed, Placed, part, tensor_view};
use super::functions::{Region, StageFunction};
use super::lifetimes::{Held, Lifetimes, Message};
use super::loads::Load;
use super::queues::{COMPUTE, Free, Local, Occupants, Queues};
use super::stages::Stages;
use super::table::{self, FunctionTable, PairKey};
use super::trips::Trip;
use crate::plan::{Part, Plan};
use crate::schedule::{Schedule, Step};
use crate::spec::{State, Updates};
use pipec_program::id::{Id, IdVec};
use pipec_program::{
    Argument, Bytes, ChannelId, DType, DeviceId, FunctionId, GroupId, Instruction, Pair, Pass, Position,
    QueueKind, Slice, StageId, StepInput, StepWork, Unit, View, Work,
};

use residence::Residence;
use std::collections::{BTreeMap, BTreeSet};

/// What all devices share.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) plan: &'a Plan,
    pub(super) schedule: &'a Schedule,
    pub(super) stages: &'a Stages,
    pub(super) functions: &'a FunctionTable,
    pub(super) lifetimes: &'a Lifetimes,
    pub(super) places: &'a IdVec<DeviceId, Vec<Placed>>,
    pub(super) host_places: &'a IdVec<DeviceId, Vec<Placed>>,
    pub(super) fixed: &'a IdVec<DeviceId, Fixed>,
    /// Where the passes of each stage add to its gradients.
    pub(super) gradients: &'a IdVec<StageId, Option<View>>,
    /// The stages whose gradients are complete only at the end.
    pub(super) late: &'a BTreeSet<StageId>,
    /// The weights of a forward cut.
    pub(super) loads: &'a [Load],
    pub(super) updates: Updates,
    pub(super) state: State,
    /// The gradients with several copies, in the order in which they are reduced.
    pub(super) ties: &'a [Tie],
    /// The weights that are handed from copy to copy, in order.
    pub(super) broadcasts: &'a [Broadcast],
    /// The group of all devices that adds up the squares; none on one device or without clipping.
    pub(super) norm: Option<GroupId>,
    /// Sequences of a micro-batch.
    pub(super) sequences: u64,
}

/// Weights that one copy of a stage updates and hands to the others.
#[derive(Clone, Debug)]
pub(super) struct Broadcast {
    pub(super) group: GroupId,
    /// The stage and the weights on each device, the one that updates them first.
    pub(super) members: Vec<(DeviceId, StageId, View)>,
}

/// Gradients whose copies on several devices are one: of one parameter, or of several that are neighbours everywhere.
#[derive(Clone, Debug)]
pub(super) struct Tie {
    pub(super) group: GroupId,
    /// By device, ascending.
    pub(super) members: Vec<Member>,
}

/// A copy of a gradient.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) device: DeviceId,
    pub(super) gradient: View,
    /// The last step of the device that adds to it.
    pub(super) after: Option<u32>,
}

impl Tie {
    /// Takes the copies of another gradient if they follow those of this one on every device, complete at the same time.
    pub(super) fn joins(&mut self, others: &[Member]) -> bool {
        let follows = |(own, other): (&Member, &Member)| {
            let end = own.gradient.offset + own.gradient.bytes;
            own.device == other.device
                && own.after == other.after
                && own.gradient.buffer == other.gradient.buffer
                && end.align_up(ALIGNMENT) == other.gradient.offset
        };
        let joins = self.members.len() == others.len() && self.members.iter().zip(others).all(follows);
        if joins {
            for (own, other) in self.members.iter_mut().zip(others) {
                own.gradient.bytes = other.gradient.offset + other.gradient.bytes - own.gradient.offset;
            }
        }
        joins
    }
}

/// Writes the queues of a device; `first` is the number of its first queue in the program.
pub(super) fn emit(context: Context<'_>, device: DeviceId, first: usize) -> Queues {
    let mut emission = Emission::new(context, device, first);
    emission.clear();
    emission.load_all();
    for (position, &step) in (0..).zip(&context.schedule.devices[device]) {
        emission.receive(position);
        emission.fetch(position);
        emission.load(position);
        emission.grow(position);
        emission.step(step);
        emission.leave(position);
    }
    emission.reduce_ties();
    emission.leave_late();
    emission.clip();
    emission.update();
    emission.queues
}

/// A pass of a unit: its function, what it waits for, the tensors that it makes, which of them is sent, and which way one
/// goes to the host.
struct Call<'a> {
    pass: Pass,
    unit: Unit,
    function: &'a StageFunction,
    id: FunctionId,
    reads: Vec<Held>,
    writes: Vec<Held>,
    made: Vec<(Held, (ChannelId, Local))>,
    stores: Option<u32>,
}

/// The channels of the output and of the input gradient of a stage, with their queues.
type Outgoing = [Option<(ChannelId, Local)>; 2];

/// What goes from a device to its host and back.
struct Travel<'a> {
    trips: &'a [Trip],
    download: Local,
    upload: Local,
    /// How many have been fetched.
    fetched: usize,
    /// The position after which each has been stored.
    stored: Vec<Position>,
    occupants: Occupants,
    /// The position after which each tensor of the host has been fetched.
    left: Vec<Option<Position>>,
}

struct Emission<'a> {
    context: Context<'a>,
    device: DeviceId,
    fixed: &'a Fixed,
    queues: Queues,
    collective: Option<Local>,
    /// The queue of the messages that passes of each stage and slice of the device make: outputs, gradients.
    outgoing: IdVec<StageId, Vec<Outgoing>>,
    /// The queue of what the forward cut passes to each backward stage.
    across: BTreeMap<StageId, (ChannelId, Local)>,
    /// The channels that come in, with their queue and the messages still to be received.
    incoming: Vec<(ChannelId, Local, &'a [Message])>,
    occupants: Occupants,
    /// The position after each pass in the compute queue.
    passes: Vec<Position>,
    /// The last reduction of gradients.
    tied: Option<(Local, Position)>,
    /// The queue and position after which each tensor is received, or sent.
    moved: Vec<Option<(Local, Position)>>,
    /// The ways to the host and back; none where nothing is offloaded.
    travel: Option<Travel<'a>>,
    /// None where state is on the device.
    residence: Option<Residence>,
    /// The stages whose squares have been added up.
    squared: BTreeSet<StageId>,
}

impl<'a> Emission<'a> {
    fn new(context: Context<'a>, device: DeviceId, first: usize) -> Self {
        let Context { plan, lifetimes, .. } = context;
        let mut kinds = vec![QueueKind::Compute];
        let mut outgoing: IdVec<StageId, Vec<Outgoing>> =
            plan.stages.ids().map(|_| vec![[None; 2]; plan.slices as usize]).collect();
        let mut across = BTreeMap::new();
        for (channel, stream) in lifetimes.streams.iter() {
            if plan.stages[stream.from].device == device && stream.across {
                across.insert(stream.to, (channel, Local(kinds.len())));
                kinds.push(QueueKind::Send);
            } else if plan.stages[stream.from].device == device {
                let direction = usize::from(stream.to < stream.from);
                // The functions on both sides have the slices whose messages are of this type.
                let of = context.stages.of(stream.from.min(stream.to));
                for (slice, passes) in of.slices.iter() {
                    if passes.output == stream.message {
                        outgoing[stream.from][slice.index()][direction] = Some((channel, Local(kinds.len())));
                    }
                }
                kinds.push(QueueKind::Send);
            }
        }
        let mut incoming = Vec::new();
        for (channel, stream) in lifetimes.streams.iter() {
            if plan.stages[stream.to].device == device {
                incoming.push((channel, Local(kinds.len()), stream.messages.as_slice()));
                kinds.push(QueueKind::Receive);
            }
        }
        let tied = context.ties.iter().any(|tie| tie.members.iter().any(|member| member.device == device));
        let shares = |broadcast: &Broadcast| broadcast.members.iter().any(|&(member, ..)| member == device);
        let shares = context.broadcasts.iter().any(shares);
        let collective = (tied || shares || context.norm.is_some()).then(|| {
            kinds.push(QueueKind::Collective);
            Local(kinds.len() - 1)
        });
        let trips = &lifetimes.trips[device];
        let travel = (!trips.is_empty()).then(|| {
            kinds.extend([QueueKind::DeviceToHost, QueueKind::HostToDevice]);
            Travel {
                trips,
                download: Local(kinds.len() - 2),
                upload: Local(kinds.len() - 1),
                fetched: 0,
                stored: vec![0; trips.len()],
                occupants: Occupants::new(),
                left: vec![None; lifetimes.hosts[device].len()],
            }
        });
        let residence = context.state.is_on_host().then(|| Residence::new(context, device, &mut kinds));
        Self {
            context,
            device,
            fixed: &context.fixed[device],
            queues: Queues::new(device, first, &kinds),
            collective,
            outgoing,
            across,
            incoming,
            occupants: Occupants::new(),
            passes: Vec::with_capacity(context.schedule.devices[device].len()),
            tied: None,
            moved: vec![None; lifetimes.tensors[device].len()],
            travel,
            residence,
            squared: BTreeSet::new(),
        }
    }

    /// Sums start at zero.
    fn clear(&mut self) {
        for view in [self.fixed.gradients, self.fixed.squares].into_iter().flatten() {
            self.queues.push(COMPUTE, Instruction::Fill { view });
        }
        // The losses of the micro-batches of other copies stay zero here.
        if self.context.plan.copies > 1
            && let Some(view) = self.fixed.loss
        {
            self.queues.push(COMPUTE, Instruction::Fill { view });
        }
    }

    fn take(&mut self, held: Held) -> Free {
        let Context { lifetimes, places, .. } = self.context;
        self.occupants.take(held, &lifetimes.tensors[self.device], &places[self.device])
    }

    fn view(&self, held: Held) -> View {
        let Context { lifetimes, places, .. } = self.context;
        tensor_view(&places[self.device], &lifetimes.tensors[self.device], held)
    }

    /// Makes a queue wait until bytes may be overwritten.
    fn wait_until_free(&mut self, queue: Local, free: &Free) {
        if let Some(pass) = free.pass {
            self.queues.wait(queue, COMPUTE, self.passes[pass as usize]);
        }
        for &held in &free.sent {
            if let Some((sender, position)) = self.moved[held as usize] {
                self.queues.wait(queue, sender, position);
            }
        }
    }

    /// Posts the receives that may start when so many passes are over.
    fn receive(&mut self, passes: u32) {
        for channel in 0..self.incoming.len() {
            while let (id, queue, [message, rest @ ..]) = self.incoming[channel]
                && message.receive <= passes
            {
                self.incoming[channel].2 = rest;
                let free = self.take(message.received);
                self.wait_until_free(queue, &free);
                let work = Work::Pass(message.pass, message.unit);
                let view = self.view(message.received);
                let position = self.queues.push(queue, Instruction::Recv { channel: id, view, work });
                self.moved[message.received as usize] = Some((queue, position));
            }
        }
    }

    /// Runs a step once its messages are there, and sends what it makes. A pair is one call: it waits for the messages of
    /// both its passes, and both messages leave after it.
    fn step(&mut self, step: Step) {
        if let Step::Pass(Pass::BW, unit) = step {
            self.recompute(unit);
        }
        let calls = match step {
            Step::Pass(pass, unit) => vec![self.call(pass, unit, None)],
            Step::Product(unit, part) => vec![self.call(Pass::W, unit, Some(part))],
            Step::Pair { forward, backward, pass } => {
                vec![self.call(Pass::F, forward, None), self.call(pass, backward, None)]
            }
        };
        for call in &calls {
            for &held in &call.reads {
                if let Some((queue, position)) = self.moved[held as usize] {
                    self.queues.wait(COMPUTE, queue, position);
                }
            }
            self.wait_for_weights(call.unit.stage);
        }
        for &held in calls.iter().flat_map(|call| &call.writes) {
            let free = self.take(held);
            self.wait_until_free(COMPUTE, &free);
        }
        let mut last = self.passes.last().copied().unwrap_or_default();
        match step {
            Step::Pair { forward, backward, pass } => last = self.pair(forward, backward, pass),
            Step::Pass(..) | Step::Product(..) => calls.iter().for_each(|call| last = self.pass(call)),
        }
        self.passes.push(last);
        for call in calls {
            if let Some(trip) = call.stores {
                self.store(trip as usize, last);
            }
            for (held, (channel, queue)) in call.made {
                self.queues.wait(queue, COMPUTE, last);
                let (view, work) = (self.view(held), Work::Pass(call.pass, call.unit));
                let position = self.queues.push(queue, Instruction::Send { channel, view, work });
                self.moved[held as usize] = Some((queue, position));
            }
        }
    }

    /// Computes again what the backward pass of a unit needs, where that is a pass of its own: before the gradient is there.
    fn recompute(&mut self, unit: Unit) {
        let Context { stages, .. } = self.context;
        if stages.passes(unit.stage, unit.slice).backward.recompute.is_none() {
            return;
        }
        let call = self.call(Pass::R, unit, None);
        for &held in &call.reads {
            if let Some((queue, position)) = self.moved[held as usize] {
                self.queues.wait(COMPUTE, queue, position);
            }
        }
        self.wait_for_weights(unit.stage);
        self.pass(&call);
    }

    /// Copies what a forward pass has made to the host, once that pass is over.
    fn store(&mut self, trip: usize, made: Position) {
        let Context { lifetimes, host_places, .. } = self.context;
        let Some(travel) = &mut self.travel else { return };
        let Trip { stored, host, .. } = travel.trips[trip];
        let (tensors, places) = (&lifetimes.hosts[self.device], &host_places[self.device]);
        let free = travel.occupants.take(host, tensors, places);
        let (download, upload) = (travel.download, travel.upload);
        for left in free.sent.iter().filter_map(|&held| travel.left[held as usize]) {
            self.queues.wait(download, upload, left);
        }
        self.queues.wait(download, COMPUTE, made);
        let to = tensor_view(places, tensors, host);
        let from = tensor_view(&self.context.places[self.device], &lifetimes.tensors[self.device], stored);
        let position = self.queues.push(download, Instruction::Copy { from, to });
        travel.stored[trip] = position;
        self.moved[stored as usize] = Some((download, position));
    }

    /// Copies back from the host what may be fetched when so many passes are over.
    fn fetch(&mut self, passes: u32) {
        while let Some(travel) = &self.travel
            && let Some(&Trip { host, fetched, fetch, .. }) = travel.trips.get(travel.fetched)
            && fetch <= passes
        {
            let (number, download, upload) = (travel.fetched, travel.download, travel.upload);
            let stored = travel.stored[number];
            let free = self.take(fetched);
            self.wait_until_free(upload, &free);
            self.queues.wait(upload, download, stored);
            let Context { lifetimes, host_places, .. } = self.context;
            let from = tensor_view(&host_places[self.device], &lifetimes.hosts[self.device], host);
            let to = self.view(fetched);
            let position = self.queues.push(upload, Instruction::Copy { from, to });
            self.moved[fetched as usize] = Some((upload, position));
            if let Some(travel) = &mut self.travel {
                travel.fetched += 1;
                travel.left[host as usize] = Some(position);
            }
        }
    }

    /// Calls the function of a pass.
    fn pass(&mut self, call: &Call<'_>) -> Position {
        let views = call.function.regions.iter().map(|(param, &region)| {
            let bytes = call.function.function.params[param].bytes;
            self.region(region, bytes, call.unit)
        });
        let (views, scalars) = (views.collect(), scalars(call.function));
        let work = Work::Pass(call.pass, call.unit);
        self.queues.push(COMPUTE, Instruction::Run { function: call.id, views, scalars, work })
    }

    /// Calls the function of a pair.
    fn pair(&mut self, forward: Unit, backward: Unit, pass: Pass) -> Position {
        let Context { stages, functions, .. } = self.context;
        let key = PairKey::new(stages, forward, backward, pass);
        let table::Call { id, function } =
            functions.pairs.get(&key).expect("there is a function for every pair of the schedule");
        let first = function.function.pair.map(|halves| halves.region);
        let views = function.regions.iter().map(|(param, &region)| {
            let unit = if first.is_some_and(|first| param < first) { forward } else { backward };
            self.region(region, function.function.params[param].bytes, unit)
        });
        let (views, scalars) = (views.collect(), scalars(function));
        let work = Work::Pair(Box::new(Pair { forward, backward, pass }));
        self.queues.push(COMPUTE, Instruction::Run { function: *id, views, scalars, work })
    }

    /// What a pass of a unit takes and makes.
    fn call(&self, pass: Pass, unit: Unit, part: Option<u16>) -> Call<'a> {
        let Context { plan, stages, functions, .. } = self.context;
        let of = stages.passes(unit.stage, unit.slice);
        let ids = &functions.passes[stages.shape[unit.stage]][unit.slice];
        let backward = &of.backward;
        let is_backward = plan.stages[unit.stage].part == Part::Backward;
        let call = match (pass, part) {
            (Pass::F, _) => Some((&of.forward, ids.forward)),
            (Pass::R, _) if is_backward => Some((&of.forward, ids.forward)),
            (Pass::R, _) => backward.recompute.as_ref().zip(ids.recompute),
            (Pass::BW, _) => backward.fused.as_ref().zip(ids.fused),
            (Pass::B, _) => backward.inputs.as_ref().zip(ids.inputs),
            (Pass::W, None) => backward.weights.as_ref().zip(ids.weights),
            (Pass::W, Some(part)) => {
                let part = usize::from(part);
                backward.parts.get(part).zip(ids.parts.get(part).copied())
            }
        };
        let (function, id) = call.expect("there is a function for every pass of the schedule");
        let held = self.context.lifetimes.units[plan.unit_index(unit)];
        let (reads, writes, made) = match pass {
            Pass::R if is_backward => {
                ([held.input, None], [held.saved, held.held, held.output, held.stored], None)
            }
            Pass::F => (
                [held.input, None],
                [held.saved, held.held, held.output, held.stored],
                held.output.zip(self.outgoing(unit.stage, unit.slice, 0)),
            ),
            Pass::B | Pass::BW => (
                [held.output_gradient, held.fetched],
                [held.input_gradient, if pass == Pass::B { held.pending } else { None }, None, None],
                held.input_gradient.zip(self.outgoing(unit.stage, unit.slice, 1)),
            ),
            Pass::R => ([None, held.fetched], [None; 4], None),
            Pass::W => ([None; 2], [None; 4], None),
        };
        let mut writes: Vec<Held> = writes.into_iter().flatten().collect();
        // The last slice that sees a state makes the sum of its gradients.
        for region in function.regions.values() {
            if let Region::PrefixGradient(slice) = *region
                && stages.passes(unit.stage, slice).seen_until == unit.slice
            {
                let earlier = plan.unit_index(Unit { slice, ..unit });
                writes.extend(self.context.lifetimes.units[earlier].state_gradient);
            }
        }
        let mut made: Vec<(Held, (ChannelId, Local))> = made.into_iter().collect();
        if pass == Pass::F {
            for number in 0.. {
                let Some(tensor) = self.checkpoint(unit, number) else { break };
                writes.push(tensor.0);
                made.extend(tensor.1.map(|channel| (tensor.0, channel)));
            }
        }
        let stores = held.trip.filter(|_| pass == Pass::F);
        Call { pass, unit, function, id, reads: reads.into_iter().flatten().collect(), writes, made, stores }
    }

    /// What a forward pass passes to the backward stage of a number among those that it feeds, and the channel if that is elsewhere.
    fn checkpoint(&self, unit: Unit, number: u32) -> Option<(Held, Option<(ChannelId, Local)>)> {
        let Context { plan, lifetimes, .. } = self.context;
        let &fed = lifetimes.fed[unit.stage].get(number as usize)?;
        let held = lifetimes.units[plan.unit_index(Unit { stage: fed, ..unit })];
        match self.across.get(&fed) {
            Some(&channel) => Some((held.checkpoint?, Some(channel))),
            None => Some((held.input?, None)),
        }
    }

    /// The channel, with its queue, of what a stage makes forward (0) or backward (1).
    fn outgoing(&self, stage: StageId, slice: Slice, direction: usize) -> Option<(ChannelId, Local)> {
        self.outgoing[stage].get(slice.index())?[direction]
    }

    /// The view of a region in a pass of a unit.
    fn region(&self, region: Region, bytes: Bytes, unit: Unit) -> View {
        let Context { plan, lifetimes, sequences, .. } = self.context;
        let held = lifetimes.units[plan.unit_index(unit)];
        let stage = self.fixed.stages.get(&unit.stage);
        let micro_batch = u64::from(unit.micro_batch.0);
        let unit_index = micro_batch * u64::from(plan.slices) + u64::from(unit.slice.0);
        let tokens = |view: View| {
            let whole: u64 = plan.lengths.iter().sum();
            let before: u64 = plan.lengths.iter().take(unit.slice.index()).sum();
            part(view, DType::U32.bytes() * (sequences * (micro_batch * whole + before)), bytes)
        };
        let earlier = |slice: Slice| lifetimes.units[plan.unit_index(Unit { slice, ..unit })];
        let tensor = |held: Option<Held>| held.map(|held| part(self.view(held), Bytes::ZERO, bytes));
        let view = match region {
            Region::Weights => {
                let of_visit =
                    || self.residence.as_ref()?.weights.get(&unit.stage).map(|&held| self.view(held));
                stage.and_then(|stage| stage.weights).or_else(of_visit)
            }
            Region::Gradients => self.context.gradients[unit.stage],
            Region::Tokens => self.fixed.tokens.map(tokens),
            Region::Targets => self.fixed.targets.map(tokens),
            Region::Loss => self.fixed.loss.map(|view| part(view, bytes * unit_index, bytes)),
            Region::Input => tensor(held.input),
            Region::Prefix(slice) => tensor(earlier(slice).saved),
            Region::Saved => tensor(held.saved),
            Region::Held => tensor(held.held),
            Region::Stored => tensor(held.stored),
            Region::Fetched => tensor(held.fetched),
            Region::Recomputed => self.fixed.recomputed.map(|view| part(view, Bytes::ZERO, bytes)),
            Region::Output => tensor(held.output),
            Region::Checkpoint(number) => tensor(self.checkpoint(unit, number).map(|(held, _)| held)),
            Region::OutputGradient => tensor(held.output_gradient),
            Region::InputGradient => tensor(held.input_gradient),
            Region::Pending => tensor(held.pending),
            Region::StateGradient => tensor(held.state_gradient),
            Region::PrefixGradient(slice) => tensor(earlier(slice).state_gradient),
            Region::Workspace => self.fixed.workspace.map(|view| part(view, Bytes::ZERO, bytes)),
            Region::Moment
            | Region::Variance
            | Region::Master
            | Region::Squares
            | Region::Norm
            | Region::Factor => None,
        };
        view.expect("every region that a stage function takes was placed on the device of the stage")
    }

    /// Adds up the gradients of copies, each as soon as it is complete; what follows waits for all.
    fn reduce_ties(&mut self) {
        let Some(collective) = self.collective else { return };
        for tie in self.context.ties {
            let Some(member) = tie.members.iter().find(|member| member.device == self.device) else {
                continue;
            };
            // Without a pass there are only the zeros of the start.
            let complete = member.after.map_or(1, |after| self.passes[after as usize]);
            self.queues.wait(collective, COMPUTE, complete);
            let (view, work) = (member.gradient, Work::Step(StepWork::Tie));
            let position = self.queues.push(collective, Instruction::Reduce { group: tie.group, view, work });
            self.tied = Some((collective, position));
        }
        if let Some((collective, position)) = self.tied {
            self.queues.wait(COMPUTE, collective, position);
        }
    }

    /// The global norm of the gradients and the factor that it asks for.
    fn clip(&mut self) {
        let Some(clip) = &self.context.functions.clip else { return };
        for &stage in &self.context.plan.devices[self.device] {
            self.square(stage);
        }
        if let (Some(group), Some(collective), Some(view)) =
            (self.context.norm, self.collective, self.fixed.squares)
        {
            // A device without parameters adds its zeros.
            let squared = self.queues.position(COMPUTE);
            self.queues.wait(collective, COMPUTE, squared);
            let work = Work::Step(StepWork::Norm);
            let position = self.queues.push(collective, Instruction::Reduce { group, view, work });
            self.queues.wait(COMPUTE, collective, position);
        }
        let made = self.run(COMPUTE, clip.id, &clip.function, None, Work::Step(StepWork::Clip));
        let factors = self.fixed.factor.zip(self.fixed.host_factor);
        if let (Some(residence), Some((from, to))) = (&mut self.residence, factors) {
            self.queues.wait(residence.download, COMPUTE, made);
            let position = self.queues.push(residence.download, Instruction::Copy { from, to });
            residence.factor = Some(position);
        }
    }

    /// Adds up the squares of the gradients of a stage, once.
    fn square(&mut self, stage: StageId) {
        let Some(norm) = &self.context.functions.norm[stage] else { return };
        if self.squared.insert(stage) {
            let work = Work::Stage(StepWork::Norm, stage);
            self.run(COMPUTE, norm.id, &norm.function, Some(stage), work);
        }
    }

    /// The optimizer: every stage updates what is its share, and broadcasts it where other copies have the rest.
    fn update(&mut self) {
        if let Some(residence) = &self.residence {
            let landed = residence.landed.clone();
            let last = landed.last().map(|&(_, position)| position);
            if !self.is_updated_early() {
                // All wait for the last.
                landed
                    .into_iter()
                    .for_each(|(stage, position)| self.update_on_host(stage, last.unwrap_or(position)));
            }
            return;
        }
        let updates = &self.context.functions.update;
        let mut updated: BTreeMap<StageId, Position> = BTreeMap::new();
        for &stage in &self.context.plan.devices[self.device] {
            if let Some(update) = &updates[stage] {
                let work = Work::Stage(StepWork::Update, stage);
                let position = self.run(COMPUTE, update.id, &update.function, Some(stage), work);
                updated.insert(stage, position);
            }
        }
        let Some(collective) = self.collective else { return };
        for broadcast in self.context.broadcasts {
            let Some(&(_, stage, view)) =
                broadcast.members.iter().find(|&&(member, ..)| member == self.device)
            else {
                continue;
            };
            // Weights may change when the last pass has read them.
            let is_first = broadcast.members.first().is_some_and(|&(_, first, _)| first == stage);
            let after = if is_first { updated.get(&stage).copied() } else { self.passes.last().copied() };
            if let Some(position) = after {
                self.queues.wait(collective, COMPUTE, position);
            }
            let work = Work::Step(StepWork::Update);
            self.queues.push(collective, Instruction::Reduce { group: broadcast.group, view, work });
        }
    }

    /// Runs a function of the optimizer step, on the device or on its host.
    fn run(
        &mut self,
        queue: Local,
        function: FunctionId,
        taken: &StageFunction,
        stage: Option<StageId>,
        work: Work,
    ) -> Position {
        let gradients = stage.and_then(|stage| self.context.gradients[stage]);
        let stage = stage.and_then(|stage| self.fixed.stages.get(&stage));
        let on_host = queue != COMPUTE;
        let view = |region: &Region| match region {
            Region::Weights => stage.map(|stage| stage.home),
            Region::Gradients if on_host => stage.and_then(|stage| stage.landed),
            Region::Gradients => gradients,
            Region::Moment => stage.and_then(|stage| stage.moment),
            Region::Variance => stage.and_then(|stage| stage.variance),
            Region::Master => stage.and_then(|stage| stage.master),
            Region::Squares => self.fixed.squares,
            Region::Norm => self.fixed.norm,
            Region::Factor if on_host => self.fixed.host_factor,
            Region::Factor => self.fixed.factor,
            Region::Tokens
            | Region::Targets
            | Region::Input
            | Region::Prefix(_)
            | Region::Saved
            | Region::Held
            | Region::Stored
            | Region::Fetched
            | Region::Recomputed
            | Region::Output
            | Region::Checkpoint(_)
            | Region::Loss
            | Region::OutputGradient
            | Region::InputGradient
            | Region::Pending
            | Region::StateGradient
            | Region::PrefixGradient(_)
            | Region::Workspace => None,
        };
        let views = taken.regions.values().map(|region| {
            view(region)
                .expect("every region that an optimizer function takes was placed on the device of the stage")
        });
        let run = Instruction::Run { function, views: views.collect(), scalars: scalars(taken), work };
        self.queues.push(queue, run)
    }
}

/// The arguments of a function, which names its scalars after what the engine computes for each step.
fn scalars(function: &StageFunction) -> Box<[Argument]> {
    let input = |name: &str| match name {
        "learning_rate" => StepInput::LearningRate,
        "step" => StepInput::Step,
        "loss_scale" => StepInput::LossScale,
        "seed" => StepInput::Seed,
        other => unreachable!("stage functions have no scalar `{other}`"),
    };
    function.function.scalars.values().map(|scalar| Argument::Step(input(&scalar.name))).collect()
}
