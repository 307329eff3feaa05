//! The form of every instruction: what it names is there, and suits it.

use super::table::Tables;
use crate::entity::Entity;
use crate::function::ScalarType;
use crate::id::{DeviceId, FunctionId, Id, QueueId};
use crate::program::{
    Argument, Category, Instruction, Pair, Pass, Position, QueueKind, Space, Unit, View, Work,
};
use std::collections::BTreeMap;

/// The most queues that a device may have; clocks have one entry for each.
const MOST_QUEUES: usize = 256;

impl Tables<'_> {
    /// All queues with their instructions.
    pub(super) fn queues(&mut self) {
        let mut counts: BTreeMap<DeviceId, (usize, usize)> = BTreeMap::new();
        let mut last = DeviceId(0);
        for (id, queue) in self.program.queues.iter() {
            let place = Entity::Queue(id);
            if self.program.devices.get(queue.device).is_none() {
                self.wrong(place, format!("there is no device {}", queue.device));
                continue;
            }
            if queue.device < last {
                self.wrong(place, format!("a queue of {} stands after one of {last}", queue.device));
            }
            last = last.max(queue.device);
            if Position::try_from(queue.instructions.len()).is_err() {
                self.wrong(place, "has more than 2^32 instructions");
                continue;
            }
            let (queues, compute) = counts.entry(queue.device).or_default();
            *queues += 1;
            *compute += usize::from(queue.kind == QueueKind::Compute);
            let (queues, compute) = (*queues, *compute);
            if queues == MOST_QUEUES + 1 {
                self.wrong(place, format!("{} has more than {MOST_QUEUES} queues", queue.device));
            }
            if queue.kind == QueueKind::Compute && compute > 1 {
                self.wrong(place, format!("{} has a second compute queue", queue.device));
            }
            for (position, instruction) in (0u32..).zip(&queue.instructions) {
                self.instruction(Entity::Instruction(id, position), id, instruction);
            }
        }
    }

    fn instruction(&mut self, place: Entity, id: QueueId, instruction: &Instruction) {
        let queue = &self.program.queues[id];
        let (device, kind) = (queue.device, queue.kind);
        if !accepts(kind, instruction) {
            self.wrong(place, format!("a {} queue does not take {}", kind.name(), name(instruction)));
        }
        match instruction {
            Instruction::Run { function, views, scalars, work } => {
                self.work(place, work);
                self.halves(place, *function, work);
                self.run(place, device, arena(kind), *function, views, scalars);
            }
            Instruction::Send { channel, view, work } | Instruction::Recv { channel, view, work } => {
                self.work(place, work);
                self.no_pair(place, work);
                let Some(row) = self.program.channels.get(*channel) else {
                    return self.wrong(place, format!("there is no channel {channel}"));
                };
                let (end, side) = match instruction {
                    Instruction::Send { .. } => (row.from, "comes from"),
                    _ => (row.to, "goes to"),
                };
                let bytes = row.bytes();
                if end != device {
                    self.wrong(place, format!("{channel} {side} {end}, the queue is on {device}"));
                }
                if self.view(place, "the message", *view, Some(device)) {
                    self.sized(place, "the message", *view, bytes);
                    self.aligned(place, "the message", *view, 8);
                }
            }
            Instruction::Copy { from, to } => {
                let ends = self.view(place, "the source", *from, Some(device))
                    & self.view(place, "the target", *to, Some(device));
                if !ends {
                    return;
                }
                let (source, target) =
                    (self.program.buffers[from.buffer].category, self.program.buffers[to.buffer].category);
                if !is_copied(source, target) {
                    self.wrong(place, format!("copies {} into {}", source.name(), target.name()));
                }
                if from.bytes != to.bytes {
                    self.wrong(place, format!("copies {} bytes to {}", from.bytes.0, to.bytes.0));
                }
                let spaces = match kind {
                    QueueKind::HostToDevice => Some((Space::Host, Space::Device)),
                    QueueKind::DeviceToHost => Some((Space::Device, Space::Host)),
                    QueueKind::Compute => Some((Space::Device, Space::Device)),
                    QueueKind::Send | QueueKind::Receive | QueueKind::Collective | QueueKind::HostCompute => {
                        None
                    }
                };
                if let Some((source, target)) = spaces {
                    self.space(place, "the source", *from, source);
                    self.space(place, "the target", *to, target);
                }
            }
            Instruction::Fill { view } => {
                if self.view(place, "the view", *view, Some(device))
                    && let Some(space) = arena(kind)
                {
                    self.space(place, "the view", *view, space);
                }
            }
            Instruction::Reduce { group, view, work } => {
                self.work(place, work);
                self.no_pair(place, work);
                let Some(row) = self.program.groups.get(*group) else {
                    return self.wrong(place, format!("there is no group {group}"));
                };
                let bytes = row.ty.bytes();
                if self.members[group.index()].binary_search(&device).is_err() {
                    self.wrong(place, format!("{device} is no member of {group}"));
                }
                if self.view(place, "the tensor", *view, Some(device)) {
                    self.sized(place, "the tensor", *view, bytes);
                    self.aligned(place, "the tensor", *view, 8);
                }
            }
            Instruction::Wait { queue, position } => {
                let Some(other) = self.program.queues.get(*queue) else {
                    return self.wrong(place, format!("there is no queue {queue}"));
                };
                let length = other.instructions.len();
                if *queue == id {
                    self.wrong(place, format!("{queue} waits for itself"));
                } else if other.device != device {
                    self.wrong(place, format!("{queue} is on {}, not on {device}", other.device));
                } else if *position as usize > length {
                    self.wrong(
                        place,
                        format!("waits for {position} instructions of {queue}, which has {length}"),
                    );
                }
            }
        }
    }

    fn work(&mut self, place: Entity, work: &Work) {
        match *work {
            Work::Pass(_, unit) => self.unit(place, unit),
            Work::Pair(ref pair) => {
                let Pair { forward, backward, pass } = **pair;
                self.unit(place, forward);
                self.unit(place, backward);
                match pass {
                    Pass::B | Pass::BW => {}
                    Pass::F | Pass::W | Pass::R => {
                        let message = format!("a pair is F with B or BW, here with {}", pass.name());
                        self.wrong(place, message);
                    }
                }
                if forward == backward {
                    self.wrong(place, format!("a pair is of two units, here twice of {forward}"));
                }
            }
            Work::Stage(_, stage) => {
                let stages = self.program.batch.stages;
                if stage.0 >= stages {
                    self.wrong(place, format!("there is no stage {stage}, there are {stages}"));
                }
            }
            Work::Step(_) => {}
        }
    }

    fn unit(&mut self, place: Entity, unit: Unit) {
        let batch = self.program.batch;
        if unit.stage.0 >= batch.stages {
            self.wrong(place, format!("there is no stage {}, there are {}", unit.stage, batch.stages));
        }
        if unit.micro_batch.0 >= batch.micro_batches {
            let count = batch.micro_batches;
            self.wrong(place, format!("there is no micro-batch {}, there are {count}", unit.micro_batch));
        }
        if !batch.meets(unit.stage, unit.micro_batch) {
            let copy = unit.micro_batch.0 % batch.copies.max(1);
            let message =
                format!("{} runs on copy {copy}, and {} belongs to another", unit.micro_batch, unit.stage);
            self.wrong(place, message);
        }
        if unit.slice.0 >= batch.slices {
            self.wrong(place, format!("there is no slice {}, there are {}", unit.slice, batch.slices));
        }
    }

    /// A function of a pair is called for a pair, and no other function is.
    fn halves(&mut self, place: Entity, function: FunctionId, work: &Work) {
        let Some(row) = self.program.functions.get(function) else { return };
        match (work, row.pair) {
            (Work::Pair(_), Some(_)) | (Work::Pass(..) | Work::Stage(..) | Work::Step(_), None) => {}
            (Work::Pair(_), None) => {
                self.wrong(place, format!("{function} is no function of a pair, here it runs for {work}"));
            }
            (Work::Pass(..) | Work::Stage(..) | Work::Step(_), Some(_)) => {
                self.wrong(place, format!("{function} is a function of a pair, here it runs for {work}"));
            }
        }
    }

    /// Messages and reductions are of one pass.
    fn no_pair(&mut self, place: Entity, work: &Work) {
        match work {
            Work::Pair(pair) => self.wrong(place, format!("moves what one pass made, and {pair} are two")),
            Work::Pass(..) | Work::Stage(..) | Work::Step(_) => {}
        }
    }

    fn run(
        &mut self,
        place: Entity,
        device: DeviceId,
        space: Option<Space>,
        function: FunctionId,
        views: &[View],
        scalars: &[Argument],
    ) {
        let Some(row) = self.program.functions.get(function) else {
            return self.wrong(place, format!("there is no function {function}"));
        };
        if views.len() != row.params.len() {
            let message = format!("{function} takes {} regions, here are {}", row.params.len(), views.len());
            self.wrong(place, message);
        }
        for (&view, (id, param)) in views.iter().zip(row.params.iter()) {
            // The text of the name is made only where something is wrong.
            let fits = self.program.buffers.get(view.buffer).is_some_and(|buffer| {
                view.bytes == param.bytes
                    && view.bytes.0 > 0
                    && buffer.device == device
                    && Some(buffer.space) == space
                    && view.offset.0.checked_add(view.bytes.0).is_some_and(|end| end <= buffer.bytes.0)
                    && view.offset.0.is_multiple_of(self.alignments[function.index()][id])
            });
            if fits {
                continue;
            }
            let what = format!("{id} {:?} of {function}", param.name);
            if self.view(place, &what, view, Some(device)) {
                self.sized(place, &what, view, param.bytes);
                self.aligned(place, &what, view, self.alignments[function.index()][id]);
                if let Some(space) = space {
                    self.space(place, &what, view, space);
                }
            }
        }
        if scalars.len() != row.scalars.len() {
            let message =
                format!("{function} takes {} scalars, here are {}", row.scalars.len(), scalars.len());
            self.wrong(place, message);
        }
        for (&argument, (id, scalar)) in scalars.iter().zip(row.scalars.iter()) {
            let ty = match argument {
                Argument::Integer(_) => ScalarType::Integer,
                Argument::Real(value) => {
                    if !value.is_finite() {
                        self.wrong(place, format!("{id} is {value:?}"));
                    }
                    ScalarType::Real
                }
                Argument::Step(input) => input.ty(),
            };
            if let (Argument::Step(input), Some(&role)) = (argument, self.roles[function.index()].get(&id))
                && input != role
            {
                let message = format!(
                    "{id} {:?} of {function} is step.{}, not step.{}",
                    scalar.name,
                    role.name(),
                    input.name()
                );
                self.wrong(place, message);
            } else if ty != scalar.ty {
                let message = format!(
                    "{id} {:?} of {function} is {}, here is {}",
                    scalar.name,
                    scalar.ty.name(),
                    ty.name()
                );
                self.wrong(place, message);
            }
        }
    }

    fn aligned(&mut self, place: Entity, what: &str, view: View, alignment: u64) {
        if !view.offset.0.is_multiple_of(alignment) {
            let message = format!(
                "{what} starts at byte {} of {}, no multiple of {alignment}",
                view.offset.0, view.buffer
            );
            self.wrong(place, message);
        }
    }

    fn space(&mut self, place: Entity, what: &str, view: View, space: Space) {
        let found = self.program.buffers[view.buffer].space;
        if found != space {
            let (is, must) = match space {
                Space::Device => ("host", "device"),
                Space::Host => ("device", "host"),
            };
            self.wrong(
                place,
                format!("{what}: {} is in the {is} arena, not in the {must} arena", view.buffer),
            );
        }
    }
}

/// The arena in which a kind of queue computes.
fn arena(kind: QueueKind) -> Option<Space> {
    match kind {
        QueueKind::Compute => Some(Space::Device),
        QueueKind::HostCompute => Some(Space::Host),
        QueueKind::Send
        | QueueKind::Receive
        | QueueKind::Collective
        | QueueKind::HostToDevice
        | QueueKind::DeviceToHost => None,
    }
}

/// Whether bytes of a category may become bytes of another: weights are loaded, gradients land, what passes make stays what it is.
fn is_copied(source: Category, target: Category) -> bool {
    match source {
        Category::Weights => matches!(target, Category::Weights | Category::Loaded),
        Category::Optimizer => target.is_state(),
        Category::Gradients => matches!(target, Category::Gradients | Category::Workspace),
        Category::Loaded => target == Category::Loaded,
        Category::Activations | Category::Communication | Category::Workspace | Category::Data => {
            target != Category::Loaded
        }
    }
}

fn accepts(kind: QueueKind, instruction: &Instruction) -> bool {
    match instruction {
        Instruction::Run { .. } | Instruction::Fill { .. } => arena(kind).is_some(),
        Instruction::Send { .. } => kind == QueueKind::Send,
        Instruction::Recv { .. } => kind == QueueKind::Receive,
        Instruction::Copy { .. } => {
            matches!(kind, QueueKind::Compute | QueueKind::HostToDevice | QueueKind::DeviceToHost)
        }
        Instruction::Reduce { .. } => kind == QueueKind::Collective,
        Instruction::Wait { .. } => true,
    }
}

fn name(instruction: &Instruction) -> &'static str {
    match instruction {
        Instruction::Run { .. } => "run",
        Instruction::Send { .. } => "send",
        Instruction::Recv { .. } => "recv",
        Instruction::Copy { .. } => "copy",
        Instruction::Fill { .. } => "fill",
        Instruction::Reduce { .. } => "reduce",
        Instruction::Wait { .. } => "wait",
    }
}
