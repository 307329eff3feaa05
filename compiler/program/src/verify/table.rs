//! The tables and the form of every instruction: afterwards, ids and ranges can be used without asking.

use super::{Report, Rule};
use crate::entity::Entity;
use crate::function::{Body, ScalarType};
use crate::id::{DeviceId, Id, IdVec, ParamId, QueueId, ScalarId};
use crate::program::{
    Argument, Category, Data, FeedKind, Instruction, LearningRate, Placed, Position, Program, QueueKind,
    ReadingKind, Space, StepInput, View, Work,
};
use crate::signature;
use crate::tensor::DType;
use crate::units::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// The most queues that a device may have; clocks have one entry for each.
const MOST_QUEUES: usize = 64;

/// Buffers start at multiples of this many bytes.
const ALIGNMENT: u64 = 64;

pub(super) fn check(program: &Program, report: &mut Report) {
    let mut tables = Tables { program, report, alignments: alignments(program), roles: roles(program) };
    tables.batch();
    tables.training();
    tables.devices();
    tables.buffers();
    tables.parameters();
    tables.channels();
    tables.exchange();
    tables.queues();
}

/// The alignment that the values of each region need.
fn alignments(program: &Program) -> Vec<IdVec<ParamId, u64>> {
    let region = |function: &crate::Function| {
        let mut alignments: IdVec<ParamId, u64> = function.params.ids().map(|_| 1).collect();
        if let Body::Kernels { values, kernels: _ } = &function.body {
            for value in values.values() {
                if function.params.get(value.param).is_some() {
                    let slot = &mut alignments[value.param];
                    *slot = (*slot).max(value.ty.dtype.bytes().0);
                }
            }
        }
        alignments
    };
    program.functions.values().map(region).collect()
}

fn roles(program: &Program) -> Vec<BTreeMap<ScalarId, StepInput>> {
    let roles = |function: &crate::Function| match &function.body {
        Body::Kernels { values: _, kernels } => kernels
            .iter()
            .flat_map(|kernel| signature::scalars(&kernel.op))
            .map(|(scalar, _, input)| (scalar, input))
            .collect(),
        Body::Abstract { .. } => BTreeMap::new(),
    };
    program.functions.values().map(roles).collect()
}

struct Tables<'a> {
    program: &'a Program,
    report: &'a mut Report,
    alignments: Vec<IdVec<ParamId, u64>>,
    /// The step input that a scalar of a function stands for, where a kernel says it.
    roles: Vec<BTreeMap<ScalarId, StepInput>>,
}

impl Tables<'_> {
    fn wrong(&mut self, place: Entity, message: impl Into<String>) {
        self.report.block(place, Rule::Table, message);
    }

    fn batch(&mut self) {
        let batch = self.program.batch;
        let counts = [
            ("micro_batches", batch.micro_batches),
            ("sequences", batch.sequences),
            ("tokens", batch.tokens),
            ("slices", batch.slices),
            ("stages", batch.stages),
        ];
        for (name, count) in counts {
            if count == 0 {
                self.wrong(Entity::Batch, format!("{name} is 0"));
            }
        }
        // Numbers of units are only counts in a text; nothing of their size is made before this holds.
        let units = u128::from(batch.stages) * u128::from(batch.micro_batches) * u128::from(batch.slices);
        let instructions: u128 =
            self.program.queues.values().map(|queue| queue.instructions.len() as u128).sum();
        if units > instructions {
            let message = format!("{units} units cannot run in {instructions} instructions");
            self.report.block(Entity::Batch, Rule::Unit, message);
        }
        if batch.slices > batch.tokens {
            self.wrong(Entity::Batch, format!("{} slices of {} tokens", batch.slices, batch.tokens));
        }
    }

    fn training(&mut self) {
        let training = &self.program.training;
        let rates = match training.learning_rate {
            LearningRate::Constant { rate } => vec![("rate", rate)],
            LearningRate::Cosine { peak, warmup, steps, floor } => {
                if warmup > steps {
                    self.wrong(Entity::LearningRate, format!("warmup {warmup} is longer than steps {steps}"));
                }
                vec![("peak", peak), ("floor", floor)]
            }
        };
        for (name, rate) in rates {
            if !rate.is_finite() || rate < 0.0 {
                self.wrong(Entity::LearningRate, format!("{name} {rate:?} is no rate"));
            }
        }
        match &training.data {
            Some(Data::Formula { vocab: 0 }) => self.wrong(Entity::Data, "vocab is 0"),
            Some(Data::Text { paths, .. }) if paths.is_empty() => {
                self.wrong(Entity::Data, "there are no paths")
            }
            Some(Data::Formula { .. } | Data::Text { .. } | Data::Tokens { .. }) | None => {}
        }
    }

    fn route(&mut self, place: Entity, route: &[crate::LinkId]) {
        for &link in route {
            if self.program.links.get(link).is_none() {
                self.wrong(place, format!("there is no link {link}"));
            }
        }
    }

    fn devices(&mut self) {
        for (id, device) in self.program.devices.iter() {
            let place = Entity::Device(id);
            if device.threads == 0 {
                self.wrong(place, "threads is 0");
            }
            if !device.rates.is_sorted_by(|a, b| a.0 < b.0) {
                self.wrong(place, "rates do not ascend by element type");
            }
            self.route(place, &device.upload);
            self.route(place, &device.download);
        }
    }

    fn buffers(&mut self) {
        for (id, buffer) in self.program.buffers.iter() {
            let place = Entity::Buffer(id);
            let Some(device) = self.program.devices.get(buffer.device) else {
                self.wrong(place, format!("there is no device {}", buffer.device));
                continue;
            };
            if !buffer.offset.0.is_multiple_of(ALIGNMENT) {
                let message = format!("starts at {}, no multiple of {ALIGNMENT}", buffer.offset.0);
                self.report.add(place, Rule::Memory, message);
            }
            let capacity = match buffer.space {
                Space::Device => device.memory,
                Space::Host => device.host_memory,
            };
            let end = u128::from(buffer.offset.0) + u128::from(buffer.bytes.0);
            if end > u128::from(capacity.0) {
                let arena = match buffer.space {
                    Space::Device => "memory",
                    Space::Host => "host memory",
                };
                let message =
                    format!("ends at byte {end}, {} has {} bytes of {arena}", buffer.device, capacity.0);
                self.report.block(place, Rule::Memory, message);
            }
        }
    }

    /// Whether a view lies in its buffer and on a device.
    fn view(&mut self, place: Entity, what: &str, view: View, device: Option<DeviceId>) -> bool {
        let Some(buffer) = self.program.buffers.get(view.buffer) else {
            self.wrong(place, format!("{what}: there is no buffer {}", view.buffer));
            return false;
        };
        let end = u128::from(view.offset.0) + u128::from(view.bytes.0);
        if end > u128::from(buffer.bytes.0) {
            let message =
                format!("{what} ends at byte {end} of {}, which has {}", view.buffer, buffer.bytes.0);
            self.wrong(place, message);
            return false;
        }
        if view.bytes == Bytes::ZERO {
            self.wrong(place, format!("{what} has no bytes"));
            return false;
        }
        match device {
            Some(device) if device != buffer.device => {
                self.wrong(
                    place,
                    format!("{what}: {} is on {}, not on {device}", view.buffer, buffer.device),
                );
                false
            }
            Some(_) | None => true,
        }
    }

    fn sized(&mut self, place: Entity, what: &str, view: View, bytes: Bytes) {
        if view.bytes != bytes {
            self.wrong(place, format!("{what} has {} bytes, {} are needed", view.bytes.0, bytes.0));
        }
    }

    fn parameters(&mut self) {
        let mut names = BTreeSet::new();
        let mut ranges = Vec::new();
        for (id, parameter) in self.program.parameters.iter() {
            let place = Entity::Parameter(id);
            if !names.insert(parameter.name.as_str()) {
                self.wrong(place, format!("the name {:?} stands twice", parameter.name));
            }
            if parameter.copies.is_empty() {
                self.wrong(place, "lives nowhere: it has no copy");
            }
            if parameter.ty.dtype == DType::U32 || parameter.ty.shape.elements() == 0 {
                self.wrong(place, format!("has the type {}, which cannot be trained", parameter.ty));
            }
            for (copy, placed) in (0u32..).zip(&parameter.copies) {
                self.copy(Entity::Copy(id, copy), placed, &parameter.ty, &mut ranges);
            }
        }
        // State of two parameters shares no byte.
        ranges.sort_unstable();
        for (a, b) in ranges.iter().zip(ranges.iter().skip(1)) {
            if a.buffer == b.buffer && a.end > b.start {
                self.wrong(b.place, format!("shares bytes of {} with {}", b.buffer, a.place));
            }
        }
    }

    fn copy(&mut self, place: Entity, copy: &Placed, ty: &crate::TensorType, ranges: &mut Vec<StateRange>) {
        let elements = ty.shape.elements();
        let single = DType::F32.bytes() * elements;
        let Placed { weight, gradient, moments: [first, second], master, stages } = copy;
        let device = self.program.buffers.get(weight.buffer).map(|buffer| buffer.device);
        let state = [
            ("weight", Some(*weight), ty.bytes(), Category::Weights),
            ("first moment", Some(*first), single, Category::Optimizer),
            ("second moment", Some(*second), single, Category::Optimizer),
            ("master", *master, single, Category::Optimizer),
        ];
        for (what, view, bytes, category) in state {
            let Some(view) = view else { continue };
            if self.view(place, what, view, device) {
                self.sized(place, what, view, bytes);
                let found = self.program.buffers[view.buffer].category;
                if found != category {
                    let message = format!("{what} is in {}, a buffer of {}", view.buffer, found.name());
                    self.wrong(place, message);
                }
                let (start, end) = (view.offset, view.offset + view.bytes);
                ranges.push(StateRange { buffer: view.buffer, start, end, place });
            }
        }
        if self.view(place, "gradient", *gradient, device) {
            if gradient.bytes != single && gradient.bytes != ty.bytes() {
                let message = format!("gradient has {} bytes for {elements} elements", gradient.bytes.0);
                self.wrong(place, message);
            }
            let found = self.program.buffers[gradient.buffer].category;
            if found != Category::Gradients {
                let message = format!("gradient is in {}, a buffer of {}", gradient.buffer, found.name());
                self.wrong(place, message);
            }
        }
        if stages.is_empty() {
            self.wrong(place, "is used by no stage");
        }
        if !stages.is_sorted_by(|a, b| a < b) {
            self.wrong(place, "stages do not ascend");
        }
        if let Some(stage) = stages.iter().find(|stage| stage.0 >= self.program.batch.stages) {
            self.wrong(place, format!("there is no stage {stage}"));
        }
    }

    fn channels(&mut self) {
        let devices = self.program.devices.len();
        for (id, channel) in self.program.channels.iter() {
            let place = Entity::Channel(id);
            for device in [channel.from, channel.to] {
                if device.index() >= devices {
                    self.wrong(place, format!("there is no device {device}"));
                }
            }
            if channel.from == channel.to {
                self.wrong(place, format!("goes from {} to itself", channel.from));
            }
            if channel.bytes() == Bytes::ZERO {
                self.wrong(place, "messages have no bytes");
            }
            self.route(place, &channel.route);
        }
        for (id, group) in self.program.groups.iter() {
            let place = Entity::Group(id);
            if group.members.len() < 2 {
                self.wrong(place, "has fewer than two members");
            }
            let mut seen = BTreeSet::new();
            for &member in &group.members {
                if member.index() >= devices {
                    self.wrong(place, format!("there is no device {member}"));
                }
                if !seen.insert(member) {
                    self.wrong(place, format!("{member} is a member twice"));
                }
            }
            if group.ty.bytes() == Bytes::ZERO || group.ty.dtype == DType::U32 {
                self.wrong(place, format!("{} cannot be summed", group.ty));
            }
            self.route(place, &group.route);
        }
    }

    /// Feeds and readings.
    fn exchange(&mut self) {
        let batch = self.program.batch;
        let micro_batches = u64::from(batch.micro_batches);
        let tokens =
            DType::U32.bytes() * micro_batches * u64::from(batch.sequences) * u64::from(batch.tokens);
        for (feed, row) in (0u32..).zip(&self.program.feeds) {
            let place = Entity::Feed(feed);
            let what = match row.kind {
                FeedKind::Tokens => "tokens",
                FeedKind::Targets => "targets",
            };
            if self.view(place, what, row.view, None) {
                self.sized(place, what, row.view, tokens);
                self.data(place, what, row.view);
            }
        }
        for (reading, row) in (0u32..).zip(&self.program.readings) {
            let place = Entity::Reading(reading);
            let (what, bytes) = match row.kind {
                ReadingKind::Loss => ("loss", DType::F64.bytes() * micro_batches * u64::from(batch.slices)),
                ReadingKind::GradientNorm => ("gradient_norm", DType::F64.bytes()),
            };
            if self.view(place, what, row.view, None) {
                self.sized(place, what, row.view, bytes);
                self.data(place, what, row.view);
            }
        }
    }

    fn data(&mut self, place: Entity, what: &str, view: View) {
        let found = self.program.buffers[view.buffer].category;
        if found != Category::Data {
            self.wrong(place, format!("{what} is in {}, a buffer of {}", view.buffer, found.name()));
        }
        if !view.offset.0.is_multiple_of(DType::F64.bytes().0) {
            self.wrong(place, format!("{what} starts at byte {}, no multiple of 8", view.offset.0));
        }
    }

    fn queues(&mut self) {
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
                self.work(place, *work);
                self.run(place, device, arena(kind), *function, views, scalars);
            }
            Instruction::Send { channel, view, work } | Instruction::Recv { channel, view, work } => {
                self.work(place, *work);
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
                if target == Category::Activations
                    && !matches!(source, Category::Activations | Category::Communication)
                {
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
                self.work(place, *work);
                let Some(row) = self.program.groups.get(*group) else {
                    return self.wrong(place, format!("there is no group {group}"));
                };
                let bytes = row.ty.bytes();
                if !row.members.contains(&device) {
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

    fn work(&mut self, place: Entity, work: Work) {
        let batch = self.program.batch;
        match work {
            Work::Pass(_, unit) => {
                if unit.stage.0 >= batch.stages {
                    self.wrong(
                        place,
                        format!("there is no stage {}, there are {}", unit.stage, batch.stages),
                    );
                }
                if unit.micro_batch.0 >= batch.micro_batches {
                    let count = batch.micro_batches;
                    self.wrong(
                        place,
                        format!("there is no micro-batch {}, there are {count}", unit.micro_batch),
                    );
                }
                if unit.slice.0 >= batch.slices {
                    self.wrong(
                        place,
                        format!("there is no slice {}, there are {}", unit.slice, batch.slices),
                    );
                }
            }
            Work::Stage(_, stage) => {
                if stage.0 >= batch.stages {
                    self.wrong(place, format!("there is no stage {stage}, there are {}", batch.stages));
                }
            }
            Work::Step(_) => {}
        }
    }

    fn run(
        &mut self,
        place: Entity,
        device: DeviceId,
        space: Option<Space>,
        function: crate::FunctionId,
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

/// A range of state and whose it is.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct StateRange {
    buffer: crate::BufferId,
    start: Bytes,
    end: Bytes,
    place: Entity,
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
