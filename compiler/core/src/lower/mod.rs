//! From a plan and a schedule to a program: functions, buffers with their places, messages, waits and the optimizer.
//!
//! Communication is inserted here and nowhere else. In order: the distinct stages get their functions ([`stages`]), the
//! cluster its links ([`wires`]), the arenas what lives for the whole step ([`arena`]); then it is found what is alive
//! from which pass to which and when messages move ([`mod@lifetimes`]), that gets its places ([`pack`]), and the queues of
//! each device are written ([`step`], [`queues`]). Everything but packing is linear in the number of passes.
//!
//! What it deliberately does not do: choose an order, or predict times.

mod arena;
pub mod functions;
mod lifetimes;
mod loads;
mod memory;
mod pack;
mod queues;
mod shards;
mod shared;
mod stages;
mod step;
mod table;
mod trips;
mod units;
mod visits;
mod wires;

pub use arena::Arena;
pub use shared::Window;
pub use stages::Stages;
pub(crate) use trips::{Host, hosts};
pub use units::problem;
pub(crate) use units::{Memory, TRAVELLING, unit, workspace};

use crate::graph::{Precision, accumulator_type};
use crate::plan::{Part, Plan};
use crate::schedule::{Deadlock, Execution, ProblemError, Schedule, Step, execute};
use crate::spec::{Origins, Schedule as Policy, Spec, Updates};
use arena::{Buffers, Needs, part, tensor_view};

use lifetimes::{Lifetimes, lifetimes};
use pipe_grammar::diagnostic::Diagnostic;
use pipec_program::id::IdVec;
use pipec_program::{
    Batch, Bytes, Channel, DType, DeviceId, Feed, FeedKind, Group, GroupId, Parameter, ParameterId, Pass,
    Placed, Program, Reading, ReadingKind, Shared, Space, StageId, TensorType, Training, View,
};
use shards::{Shard, shards};
use stages::borrowed;
use std::collections::BTreeMap;
use std::fmt;
use step::{Broadcast, Context, Member, Tie};
use table::FunctionTable;
use visits::late;
use wires::Wires;

/// A program and what its arenas hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Lowered {
    /// The program.
    pub program: Program,
    /// The memory of each device.
    pub arenas: IdVec<DeviceId, Arena>,
    /// The memory of the host that each device has for itself.
    pub hosts: IdVec<DeviceId, Arena>,
}

/// Why there is no program.
#[derive(Clone, Debug, PartialEq)]
pub enum LowerError {
    /// Devices whose memory does not suffice.
    Memory {
        /// What to say about the one that lacks most.
        diagnostic: Box<Diagnostic>,
        /// What each lacks.
        lacking: IdVec<DeviceId, Bytes>,
    },
    /// The schedule cannot be executed: a bug of its policy.
    Deadlock(Deadlock),
    /// A step that has no instructions yet.
    Step(Step),
    /// The plan is of no pipeline.
    Problem(ProblemError),
}

impl fmt::Display for LowerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory { diagnostic, lacking: _ } => {
                write!(f, "{}: {}", diagnostic.code, diagnostic.message)
            }
            Self::Deadlock(Deadlock { waiting }) => {
                write!(f, "the schedule deadlocks: {} devices wait", waiting.len())
            }
            Self::Step(step) => write!(f, "{step} cannot be lowered"),
            Self::Problem(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LowerError {}

/// Whether a step is one that this module writes instructions for.
fn is_lowered(plan: &Plan, step: Step) -> bool {
    match step {
        Step::Pass(pass, unit) => match pass {
            Pass::F | Pass::B | Pass::W | Pass::BW => true,
            Pass::R => plan.stages[unit.stage].part == Part::Backward,
        },
        Step::Product(..) | Step::Pair { .. } => true,
    }
}

/// Writes the program of a schedule. `inputs` is the hash of what it is made from, which the program carries.
///
/// # Errors
/// Devices whose memory does not suffice; a schedule that deadlocks.
pub fn lower(
    spec: &Spec,
    origins: &Origins,
    plan: &Plan,
    stages: &Stages,
    schedule: &Schedule,
    inputs: &str,
) -> Result<Lowered, LowerError> {
    if let Some(&step) = schedule.devices.values().flatten().find(|step| !is_lowered(plan, **step)) {
        return Err(LowerError::Step(step));
    }
    let problem = plan.problem().map_err(LowerError::Problem)?;
    let execution =
        execute(&problem, schedule, |step| problem.duration(step)).map_err(LowerError::Deadlock)?;
    let parameters = spec.model.parameters.len();
    let shards = shards(&spec.train, &spec.model, plan, stages);
    let functions = FunctionTable::new(&spec.train, plan, stages, schedule, &shards, parameters);
    let (mut wires, devices) = Wires::new(&spec.cluster, plan.devices.len());
    let batch = Batch {
        micro_batches: plan.micro_batches,
        sequences: u32::try_from(spec.train.micro_batch).unwrap_or(u32::MAX),
        tokens: u32::try_from(spec.train.seq).unwrap_or(u32::MAX),
        slices: plan.slices,
        stages: plan.stages.len() as u32,
        forward: plan.stages.values().filter(|stage| stage.part == Part::Forward).count() as u32,
        copies: plan.copies,
    };
    let mut buffers = Buffers::new(plan, stages, &shards, needs(spec, plan));
    let updates =
        if let Policy::SPipe { updates, .. } | Policy::Mobius { updates, .. } = spec.pipeline.schedule {
            updates
        } else {
            Updates::Async
        };
    let (state, late) = (spec.pipeline.state, late(plan, stages));
    let rooms = buffers.rooms(Space::Device, &devices);
    let ways = (&devices, &wires.links);
    let lifetimes = lifetimes(plan, schedule, &execution, stages, &rooms, ways, (state, &late));
    let (places, arenas) = buffers.place_tensors(Space::Device, &lifetimes.tensors, &rooms);
    let host_rooms = buffers.rooms(Space::Host, &devices);
    let (host_places, hosts) = buffers.place_tensors(Space::Host, &lifetimes.hosts, &host_rooms);
    if let Some(diagnostic) = memory::check(spec, origins, &arenas, &hosts) {
        let lacking = arenas.values().map(|arena| arena.end - arena.end.min(arena.capacity));
        return Err(LowerError::Memory { diagnostic: Box::new(diagnostic), lacking: lacking.collect() });
    }

    let channels = lifetimes.streams.values().map(|stream| {
        let (from, to) = (plan.stages[stream.from].device, plan.stages[stream.to].device);
        Channel { from, to, message: stream.message.clone(), capacity: 0, route: wires.route(from, to) }
    });
    let mut channels = channels.collect();
    let of_weights = (&spec.model, spec.train.precision);
    let loads = loads::loads(of_weights, plan, stages, &buffers.fixed, &mut wires, &mut channels);
    let gradients = gradients(plan, &buffers, &lifetimes, &places);
    let parameters = place_parameters(spec, plan, stages, &shards, &buffers, &gradients);
    let mut groups = IdVec::new();
    let dtype = Precision::of(&spec.train).gradients;
    let reference = Reference { schedule, execution: &execution };
    let ties = ties(plan, dtype, &parameters, &buffers, reference, &mut wires, &mut groups);
    let norm = (functions.clip.is_some() && plan.devices.len() > 1).then(|| {
        let members: Vec<DeviceId> = plan.devices.ids().collect();
        let route = wires.ring(&members);
        let ty = TensorType::new(DType::F64, &[parameters.len() as u64]);
        groups.push(Group { result: Shared::Sum, members, ty, route })
    });
    let broadcasts =
        broadcasts(spec.train.precision, plan, stages, &shards, &buffers, &mut wires, &mut groups);
    let context = Context {
        plan,
        schedule,
        stages,
        functions: &functions,
        lifetimes: &lifetimes,
        places: &places,
        host_places: &host_places,
        fixed: &buffers.fixed,
        gradients: &gradients,
        late: &late,
        loads: &loads,
        updates,
        state,
        ties: &ties,
        broadcasts: &broadcasts,
        norm,
        sequences: spec.train.micro_batch,
    };
    let mut queues = IdVec::new();
    for device in plan.devices.ids() {
        step::emit(context, device, queues.len()).finish(&mut queues);
    }
    let program = Program {
        name: spec.model.name.clone(),
        compiler: env!("CARGO_PKG_VERSION").to_owned(),
        inputs: inputs.to_owned(),
        batch,
        slices: plan.lengths.iter().map(|&tokens| u32::try_from(tokens).unwrap_or(u32::MAX)).collect(),
        training: Training {
            steps: spec.train.steps,
            seed: spec.train.seed,
            learning_rate: spec.train.learning_rate,
            data: spec.train.data.clone(),
        },
        devices,
        links: wires.links,
        parameters,
        feeds: feeds(&buffers),
        readings: readings(&buffers),
        functions: functions.table,
        buffers: buffers.table,
        channels,
        groups,
        queues,
    };
    Ok(Lowered { program, arenas, hosts })
}

/// What a step of a plan needs besides its stages.
fn needs(spec: &Spec, plan: &Plan) -> Needs {
    Needs {
        tokens: DType::U32.bytes() * spec.train.seq * spec.train.micro_batch * u64::from(plan.micro_batches),
        losses: DType::F64.bytes() * (u64::from(plan.micro_batches) * u64::from(plan.slices)),
        clipped: spec.train.clip_norm.map(|_| spec.model.parameters.len()),
        state: spec.pipeline.state,
    }
}

/// Where the passes of each stage add to its gradients.
fn gradients(
    plan: &Plan,
    buffers: &Buffers,
    lifetimes: &Lifetimes,
    places: &IdVec<DeviceId, Vec<arena::Placed>>,
) -> IdVec<StageId, Option<View>> {
    let of_stage = |stage: StageId| {
        let device = plan.stages[stage].device;
        let fixed = buffers.fixed[device].stages.get(&stage).and_then(|views| views.gradients);
        let held = || lifetimes.growths.get(&stage).and_then(|growth| growth.held);
        fixed.or_else(|| held().map(|held| tensor_view(&places[device], &lifetimes.tensors[device], held)))
    };
    plan.stages.ids().map(of_stage).collect()
}

/// Every parameter with a copy on each device whose stages use it.
fn place_parameters(
    spec: &Spec,
    plan: &Plan,
    stages: &Stages,
    shards: &IdVec<StageId, Shard>,
    buffers: &Buffers,
    gradients: &IdVec<StageId, Option<View>>,
) -> IdVec<ParameterId, Parameter> {
    let precision = spec.train.precision;
    let mut parameters: IdVec<ParameterId, Parameter> = spec
        .model
        .parameters
        .values()
        .map(|parameter| Parameter {
            name: parameter.name.clone(),
            ty: TensorType::new(precision, &parameter.shape),
            init: parameter.init,
            copies: Vec::new(),
        })
        .collect();
    let has_home = |(stage, _): &(StageId, _)| plan.stages[*stage].part != Part::Forward;
    for (stage, places) in stages.parameters.iter().filter(has_home) {
        let device = plan.stages[stage].device;
        let views = buffers.fixed[device].stages.get(&stage).zip(gradients[stage]);
        let Some((views, gradients)) = views else { continue };
        let borrowed = borrowed(stages, plan, stage);
        let shard = &shards[stage];
        for (position, place) in places.iter().enumerate() {
            let copies = &mut parameters[place.parameter].copies;
            if borrowed.contains(&place.parameter) {
                let own = copies.iter_mut().find(|copy| buffers.table[copy.weight.buffer].device == device);
                own.into_iter().for_each(|copy| copy.stages.push(stage));
                continue;
            }
            let bytes = |dtype: DType| dtype.bytes() * place.elements;
            let of_moments = |view: Option<View>| {
                let view = view.filter(|_| shard.parameters.contains(&position))?;
                Some(part(view, place.moment - shard.start, bytes(accumulator_type(precision))))
            };
            let of_gradients = bytes(Precision::of(&spec.train).gradients);
            copies.push(Placed {
                weight: part(views.home, place.weight, bytes(precision)),
                gradient: part(gradients, place.gradient, of_gradients),
                landed: views.landed.map(|view| part(view, place.gradient, of_gradients)),
                moments: of_moments(views.moment).zip(of_moments(views.variance)).map(<[View; 2]>::from),
                master: of_moments(views.master),
                stages: vec![stage],
            });
        }
    }
    // Stages of a forward cut use what they load.
    for stage in plan.stages.ids() {
        for (parameter, home) in loads::homes(&spec.model, plan, stage) {
            let copies = &mut parameters[parameter].copies;
            if let Some(copy) = copies.iter_mut().find(|copy| copy.stages.contains(&home)) {
                copy.stages.push(stage);
            }
        }
    }
    for copy in parameters.values_mut().flat_map(|parameter| &mut parameter.copies) {
        copy.stages.sort_unstable();
    }
    parameters
}

/// The reference execution.
#[derive(Clone, Copy)]
struct Reference<'a> {
    schedule: &'a Schedule,
    execution: &'a Execution,
}

/// The gradients with copies on several devices, neighbours in memory together, in the order in which they are complete in
/// the reference execution: so all members meet in one order, and while later stages still compute.
fn ties(
    plan: &Plan,
    dtype: DType,
    parameters: &IdVec<ParameterId, Parameter>,
    buffers: &Buffers,
    reference: Reference<'_>,
    wires: &mut Wires<'_>,
    groups: &mut IdVec<GroupId, Group>,
) -> Vec<Tie> {
    let Reference { schedule, execution } = reference;
    let last = last_steps(plan, schedule);
    let mut ties: Vec<(u64, Tie)> = Vec::new();
    let copied = parameters.values().filter(|parameter| parameter.copies.len() > 1);
    for parameter in copied {
        let mut members: Vec<Member> = parameter
            .copies
            .iter()
            .map(|copy| {
                let after = copy.stages.iter().filter_map(|&stage| last[stage]).max();
                let device = buffers.table[copy.gradient.buffer].device;
                Member { device, gradient: copy.gradient, after }
            })
            .collect();
        members.sort_by_key(|member| member.device);
        let ready = |member: &Member| {
            member.after.map_or(0, |after| execution.devices[member.device][after as usize].1)
        };
        let ready = members.iter().map(ready).max().unwrap_or(0);
        // One that joins is complete at the same time.
        if !ties.last_mut().is_some_and(|(_, tie)| tie.joins(&members)) {
            ties.push((ready, Tie { group: GroupId(0), members }));
        }
    }
    ties.sort_by_key(|&(ready, _)| ready);
    let mut known: BTreeMap<(Vec<DeviceId>, DType, Bytes), GroupId> = BTreeMap::new();
    for (_, tie) in &mut ties {
        let devices: Vec<DeviceId> = tie.members.iter().map(|member| member.device).collect();
        let bytes = tie.members.first().map_or(Bytes::ZERO, |member| member.gradient.bytes);
        tie.group = *known.entry((devices, dtype, bytes)).or_insert_with_key(|(members, dtype, bytes)| {
            let route = wires.ring(members);
            let ty = TensorType::new(*dtype, &[bytes.0 / dtype.bytes().0.max(1)]);
            groups.push(Group { result: Shared::Sum, members: members.clone(), ty, route })
        });
    }
    ties.into_iter().map(|(_, tie)| tie).collect()
}

/// The weights that each copy of a stage hands to the others: stage by stage, copy by copy.
fn broadcasts(
    dtype: DType,
    plan: &Plan,
    stages: &Stages,
    shards: &IdVec<StageId, Shard>,
    buffers: &Buffers,
    wires: &mut Wires<'_>,
    groups: &mut IdVec<GroupId, Group>,
) -> Vec<Broadcast> {
    let depth = plan.depth();
    let mut broadcasts = Vec::new();
    for (stage, copy) in (0..depth).flat_map(|stage| (0..plan.copies).map(move |copy| (stage, copy))) {
        let of_copy = |copy: u32| StageId(copy * depth + stage);
        let shard = &shards[of_copy(copy)];
        let places = &stages.of(of_copy(copy)).parameters[shard.parameters.clone()];
        let (Some(first), Some(last)) = (places.first(), places.last()) else { continue };
        if !shard.shared {
            continue;
        }
        let (start, end) = (first.weight, last.weight + dtype.bytes() * last.elements);
        let order = std::iter::once(copy).chain((0..plan.copies).filter(|&other| other != copy));
        let members = order.map(of_copy).filter_map(|stage| {
            let device = plan.stages[stage].device;
            let views = buffers.fixed[device].stages.get(&stage)?;
            Some((device, stage, part(views.home, start, end - start)))
        });
        let members: Vec<(DeviceId, StageId, View)> = members.collect();
        let devices: Vec<DeviceId> = members.iter().map(|&(device, ..)| device).collect();
        let route = wires.ring(&devices);
        let ty = TensorType::new(dtype, &[(end - start).0 / dtype.bytes().0.max(1)]);
        let group = groups.push(Group { result: Shared::Broadcast, members: devices, ty, route });
        broadcasts.push(Broadcast { group, members });
    }
    broadcasts
}

/// The last step of every stage that adds to its gradients.
fn last_steps(plan: &Plan, schedule: &Schedule) -> IdVec<StageId, Option<u32>> {
    let mut last: IdVec<StageId, Option<u32>> = plan.stages.ids().map(|_| None).collect();
    for steps in schedule.devices.values() {
        for (position, step) in (0..).zip(steps) {
            for (_, unit) in step.passes().filter(|(pass, _)| *pass != Pass::F) {
                last[unit.stage] = Some(position);
            }
        }
    }
    last
}

fn feeds(buffers: &Buffers) -> Vec<Feed> {
    let mut feeds = Vec::new();
    for fixed in buffers.fixed.values() {
        feeds.extend(fixed.tokens.map(|view| Feed { kind: FeedKind::Tokens, view }));
        feeds.extend(fixed.targets.map(|view| Feed { kind: FeedKind::Targets, view }));
    }
    feeds
}

/// The losses, and the norm as the first device knows it; all know the same.
fn readings(buffers: &Buffers) -> Vec<Reading> {
    let losses = buffers.fixed.values().filter_map(|fixed| fixed.loss);
    let norm = buffers.fixed.values().find_map(|fixed| fixed.norm);
    let loss = losses.map(|view| Reading { kind: ReadingKind::Loss, view });
    loss.chain(norm.map(|view| Reading { kind: ReadingKind::GradientNorm, view })).collect()
}

/// Bytes of the whole of some categories.
pub(crate) fn sum<'a>(bytes: impl IntoIterator<Item = &'a Bytes>) -> Bytes {
    bytes.into_iter().copied().sum()
}

#[cfg(test)]
mod tests;
