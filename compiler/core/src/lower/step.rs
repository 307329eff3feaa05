//! The step of one device as instructions: passes with their messages, then ties, norm, clipping and update.

use super::arena::{Fixed, Placed, part, tensor_view};
use super::functions::{Region, StageFunction};
use super::lifetimes::{Held, Lifetimes, Message, UnitTensors};
use super::queues::{COMPUTE, Free, Local, Occupants, Queues};
use super::stages::Stages;
use super::table::FunctionTable;
use crate::plan::Plan;
use crate::schedule::{Schedule, Step};
use pipec_program::id::{Id, IdVec};
use pipec_program::{
    Argument, Bytes, ChannelId, DType, DeviceId, FunctionId, GroupId, Instruction, Pass, Position, QueueKind,
    Slice, StageId, StepInput, StepWork, Unit, View, Work,
};

/// What all devices share.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) plan: &'a Plan,
    pub(super) schedule: &'a Schedule,
    pub(super) stages: &'a Stages,
    pub(super) functions: &'a FunctionTable,
    pub(super) lifetimes: &'a Lifetimes,
    pub(super) places: &'a IdVec<DeviceId, Vec<Placed>>,
    pub(super) fixed: &'a IdVec<DeviceId, Fixed>,
    /// The gradients of tied parameters with their groups, in the order of parameters.
    pub(super) ties: &'a [Tie],
    /// The group of all devices that adds up the squares; none on one device or without clipping.
    pub(super) norm: Option<GroupId>,
    /// Sequences of a micro-batch.
    pub(super) sequences: u64,
}

/// A parameter whose copies on several devices are one.
#[derive(Clone, Debug)]
pub(super) struct Tie {
    pub(super) group: GroupId,
    /// The gradient on each member.
    pub(super) gradients: Vec<(DeviceId, View)>,
}

/// Writes the queues of a device; `first` is the number of its first queue in the program.
pub(super) fn emit(context: Context<'_>, device: DeviceId, first: usize) -> Queues {
    let mut emission = Emission::new(context, device, first);
    emission.clear();
    for (position, &step) in (0..).zip(&context.schedule.devices[device]) {
        emission.receive(position);
        emission.step(step);
    }
    emission.reduce_ties();
    emission.clip();
    emission.update();
    emission.queues
}

struct Emission<'a> {
    context: Context<'a>,
    device: DeviceId,
    fixed: &'a Fixed,
    queues: Queues,
    collective: Option<Local>,
    /// The queue of the messages that passes of each stage and slice of the device make: outputs, gradients.
    outgoing: IdVec<StageId, Vec<[Option<(ChannelId, Local)>; 2]>>,
    /// The channels that come in, with their queue and the messages still to be received.
    incoming: Vec<(ChannelId, Local, &'a [Message])>,
    occupants: Occupants,
    /// The position after each pass in the compute queue.
    passes: Vec<Position>,
    /// The queue and position after which each tensor is received, or sent.
    moved: Vec<Option<(Local, Position)>>,
}

impl<'a> Emission<'a> {
    fn new(context: Context<'a>, device: DeviceId, first: usize) -> Self {
        let Context { plan, lifetimes, .. } = context;
        let mut kinds = vec![QueueKind::Compute];
        let mut outgoing: IdVec<StageId, Vec<[Option<(ChannelId, Local)>; 2]>> =
            plan.stages.ids().map(|_| vec![[None; 2]; plan.slices as usize]).collect();
        for (channel, stream) in lifetimes.streams.iter() {
            if plan.stages[stream.from].device == device {
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
        let tied = context.ties.iter().any(|tie| tie.gradients.iter().any(|&(member, _)| member == device));
        let collective = (tied || context.norm.is_some()).then(|| {
            kinds.push(QueueKind::Collective);
            Local(kinds.len() - 1)
        });
        Self {
            context,
            device,
            fixed: &context.fixed[device],
            queues: Queues::new(device, first, &kinds),
            collective,
            outgoing,
            incoming,
            occupants: Occupants::new(),
            passes: Vec::with_capacity(context.schedule.devices[device].len()),
            moved: vec![None; lifetimes.tensors[device].len()],
        }
    }

    /// Sums start at zero.
    fn clear(&mut self) {
        for view in [self.fixed.gradients, self.fixed.squares].into_iter().flatten() {
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
    fn wait_until_free(&mut self, queue: Local, free: Free) {
        if let Some(pass) = free.pass {
            self.queues.wait(queue, COMPUTE, self.passes[pass as usize]);
        }
        for held in free.sent {
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
                self.wait_until_free(queue, free);
                let work = Work::Pass(message.pass, message.unit);
                let view = self.view(message.received);
                let position = self.queues.push(queue, Instruction::Recv { channel: id, view, work });
                self.moved[message.received as usize] = Some((queue, position));
            }
        }
    }

    /// Runs a step once its messages are there, and sends what it makes.
    fn step(&mut self, step: Step) {
        let Context { plan, stages, functions, .. } = self.context;
        let (pass, unit, part) = match step {
            Step::Pass(pass, unit) => (pass, unit, None),
            Step::Product(unit, part) => (Pass::W, unit, Some(part)),
            // Refused before.
            Step::Pair { .. } => return,
        };
        let of = stages.passes(unit.stage, unit.slice);
        let ids = &functions.passes[stages.shape[unit.stage]][unit.slice];
        let backward = &of.backward;
        let call = match (pass, part) {
            (Pass::F, _) => Some((&of.forward, ids.forward)),
            (Pass::BW | Pass::R, _) => backward.fused.as_ref().zip(ids.fused),
            (Pass::B, _) => backward.inputs.as_ref().zip(ids.inputs),
            (Pass::W, None) => backward.weights.as_ref().zip(ids.weights),
            (Pass::W, Some(part)) => {
                let part = usize::from(part);
                backward.parts.get(part).zip(ids.parts.get(part).copied())
            }
        };
        let (function, id) = call.expect("there is a function for every pass of the schedule");
        let held = self.context.lifetimes.units[plan.unit_index(unit)];
        let (reads, mut writes, made) = match pass {
            Pass::F => (
                held.input,
                vec![held.saved, held.held, held.output],
                held.output.zip(self.outgoing(unit.stage, unit.slice, 0)),
            ),
            Pass::B | Pass::BW => (
                held.output_gradient,
                vec![held.input_gradient, if pass == Pass::B { held.pending } else { None }],
                held.input_gradient.zip(self.outgoing(unit.stage, unit.slice, 1)),
            ),
            Pass::W | Pass::R => (None, Vec::new(), None),
        };
        // The last slice that sees a state makes the sum of its gradients.
        for region in function.regions.values() {
            if let Region::PrefixGradient(slice) = *region
                && stages.passes(unit.stage, slice).seen_until == unit.slice
            {
                writes.push(self.context.lifetimes.units[plan.unit_index(Unit { slice, ..unit })].state_gradient);
            }
        }
        if let Some((queue, position)) = reads.and_then(|held| self.moved[held as usize]) {
            self.queues.wait(COMPUTE, queue, position);
        }
        for held in writes.into_iter().flatten() {
            let free = self.take(held);
            self.wait_until_free(COMPUTE, free);
        }
        let work = Work::Pass(pass, unit);
        let views = function.regions.iter().map(|(param, &region)| {
            let bytes = function.function.params[param].bytes;
            self.region(region, bytes, unit, held)
        });
        let run = Instruction::Run { function: id, views: views.collect(), scalars: scalars(function), work };
        let position = self.queues.push(COMPUTE, run);
        self.passes.push(position);
        if let Some((held, (channel, queue))) = made {
            self.queues.wait(queue, COMPUTE, position);
            let position =
                self.queues.push(queue, Instruction::Send { channel, view: self.view(held), work });
            self.moved[held as usize] = Some((queue, position));
        }
    }

    /// The channel, with its queue, of what a stage makes forward (0) or backward (1).
    fn outgoing(&self, stage: StageId, slice: Slice, direction: usize) -> Option<(ChannelId, Local)> {
        self.outgoing[stage].get(slice.index())?[direction]
    }

    /// The view of a region in a pass of a unit.
    fn region(&self, region: Region, bytes: Bytes, unit: Unit, held: UnitTensors) -> View {
        let Context { plan, lifetimes, sequences, .. } = self.context;
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
            Region::Weights => stage.map(|stage| stage.weights),
            Region::Gradients => stage.map(|stage| stage.gradients),
            Region::Tokens => self.fixed.tokens.map(tokens),
            Region::Targets => self.fixed.targets.map(tokens),
            Region::Loss => self.fixed.loss.map(|view| part(view, bytes * unit_index, bytes)),
            Region::Input => tensor(held.input),
            Region::Prefix(slice) => tensor(earlier(slice).saved),
            Region::Saved => tensor(held.saved),
            Region::Held => tensor(held.held),
            Region::Output => tensor(held.output),
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

    /// Adds up the gradients of tied copies.
    fn reduce_ties(&mut self) {
        let Some(collective) = self.collective else { return };
        let complete = self.passes.last().copied();
        for tie in self.context.ties {
            let Some(&(_, view)) = tie.gradients.iter().find(|&&(member, _)| member == self.device) else {
                continue;
            };
            if let Some(position) = complete {
                self.queues.wait(collective, COMPUTE, position);
            }
            let work = Work::Step(StepWork::Tie);
            let position = self.queues.push(collective, Instruction::Reduce { group: tie.group, view, work });
            self.queues.wait(COMPUTE, collective, position);
        }
    }

    /// The global norm of the gradients and the factor that it asks for.
    fn clip(&mut self) {
        let Some(clip) = &self.context.functions.clip else { return };
        let mut squared = None;
        for &stage in &self.context.plan.devices[self.device] {
            if let Some(norm) = &self.context.functions.norm[stage] {
                let position =
                    self.run(norm.id, &norm.function, Some(stage), Work::Stage(StepWork::Norm, stage));
                squared = Some(position);
            }
        }
        if let (Some(group), Some(collective), Some(view)) =
            (self.context.norm, self.collective, self.fixed.squares)
        {
            // A device without parameters adds its zeros.
            self.queues.wait(collective, COMPUTE, squared.unwrap_or(2));
            let work = Work::Step(StepWork::Norm);
            let position = self.queues.push(collective, Instruction::Reduce { group, view, work });
            self.queues.wait(COMPUTE, collective, position);
        }
        self.run(clip.id, &clip.function, None, Work::Step(StepWork::Clip));
    }

    /// The optimizer.
    fn update(&mut self) {
        for &stage in &self.context.plan.devices[self.device] {
            if let Some(update) = &self.context.functions.update[self.context.stages.shape[stage]] {
                self.run(update.id, &update.function, Some(stage), Work::Stage(StepWork::Update, stage));
            }
        }
    }

    /// Runs a function of the optimizer step.
    fn run(
        &mut self,
        function: FunctionId,
        taken: &StageFunction,
        stage: Option<StageId>,
        work: Work,
    ) -> Position {
        let stage = stage.and_then(|stage| self.fixed.stages.get(&stage));
        let view = |region: &Region| match region {
            Region::Weights => stage.map(|stage| stage.weights),
            Region::Gradients => stage.map(|stage| stage.gradients),
            Region::Moment => stage.map(|stage| stage.moment),
            Region::Variance => stage.map(|stage| stage.variance),
            Region::Master => stage.and_then(|stage| stage.master),
            Region::Squares => self.fixed.squares,
            Region::Norm => self.fixed.norm,
            Region::Factor => self.fixed.factor,
            Region::Tokens
            | Region::Targets
            | Region::Input
            | Region::Prefix(_)
            | Region::Saved
            | Region::Held
            | Region::Output
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
        self.queues.push(COMPUTE, run)
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
