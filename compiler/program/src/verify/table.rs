//! The tables of a program and, with [`super::instruction`], the form of its instructions: afterwards, ids and ranges can
//! be used without asking.

use super::{Report, Rule};
use crate::entity::Entity;
use crate::function::Body;
use crate::id::{DeviceId, Id, IdVec, ParamId, ScalarId};
use crate::program::Shared;
use crate::program::{
    Category, Data, FeedKind, LearningRate, Placed, Program, ReadingKind, Space, StepInput, View,
};
use crate::signature;
use crate::tensor::DType;
use crate::units::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// Buffers start at multiples of this many bytes.
const ALIGNMENT: u64 = 64;

pub(super) fn check(program: &Program, report: &mut Report) {
    let mut tables = Tables {
        program,
        report,
        alignments: alignments(program),
        roles: roles(program),
        members: members(program),
    };
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

fn members(program: &Program) -> Vec<Vec<DeviceId>> {
    let sorted = |group: &crate::Group| {
        let mut members = group.members.clone();
        members.sort_unstable();
        members
    };
    program.groups.values().map(sorted).collect()
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

pub(super) struct Tables<'a> {
    pub(super) program: &'a Program,
    report: &'a mut Report,
    pub(super) alignments: Vec<IdVec<ParamId, u64>>,
    /// The members of every group, ascending.
    pub(super) members: Vec<Vec<DeviceId>>,
    /// The step input that a scalar of a function stands for, where a kernel says it.
    pub(super) roles: Vec<BTreeMap<ScalarId, StepInput>>,
}

impl Tables<'_> {
    pub(super) fn wrong(&mut self, place: Entity, message: impl Into<String>) {
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
            ("copies", batch.copies),
        ];
        for (name, count) in counts {
            if count == 0 {
                self.wrong(Entity::Batch, format!("{name} is 0"));
            }
        }
        // Numbers of units are only counts in a text; nothing of their size is made before this holds.
        let units = u128::from(batch.depth()) * u128::from(batch.micro_batches) * u128::from(batch.slices);
        let instructions: u128 =
            self.program.queues.values().map(|queue| queue.instructions.len() as u128).sum();
        if units > instructions {
            let message = format!("{units} units cannot run in {instructions} instructions");
            self.report.block(Entity::Batch, Rule::Unit, message);
        }
        let tokens: u64 = self.program.slices.values().map(|&tokens| u64::from(tokens)).sum();
        let empty = self.program.slices.values().any(|&tokens| tokens == 0);
        if tokens != u64::from(batch.tokens) || empty || self.program.slices.len() != batch.slices as usize {
            let message = format!("{} slices of {tokens} tokens make no {}", batch.slices, batch.tokens);
            self.wrong(Entity::Batch, message);
        }
        let shares = |what: u32| batch.copies == 0 || what.is_multiple_of(batch.copies);
        if !shares(batch.stages) || batch.copies > batch.micro_batches {
            let crate::Batch { copies, stages, micro_batches, .. } = batch;
            let message = format!("{copies} copies for {stages} stages and {micro_batches} micro-batches");
            self.wrong(Entity::Batch, message);
        }
        if batch.forward > 0 && (batch.forward >= batch.stages || batch.copies != 1 || batch.slices != 1) {
            let message = format!(
                "{} of {} stages in a forward cut, with {} copies and {} slices",
                batch.forward, batch.stages, batch.copies, batch.slices
            );
            self.wrong(Entity::Batch, message);
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
            if device.host_threads == 0 {
                self.wrong(place, "host_threads is 0");
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
    pub(super) fn view(&mut self, place: Entity, what: &str, view: View, device: Option<DeviceId>) -> bool {
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

    pub(super) fn sized(&mut self, place: Entity, what: &str, view: View, bytes: Bytes) {
        if view.bytes != bytes {
            self.wrong(place, format!("{what} has {} bytes, {} are needed", view.bytes.0, bytes.0));
        }
    }

    fn space_of(&self, view: View) -> Option<Space> {
        self.program.buffers.get(view.buffer).map(|buffer| buffer.space)
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
        let Placed { weight, gradient, landed, moments, master, stages } = copy;
        // The moments of an f64 weight are f32 or f64.
        let [first, second] = moments.map_or([None; 2], |moments| moments.map(Some));
        let wide = ty.dtype == DType::F64 && first.is_some_and(|first| first.bytes == ty.bytes());
        let moment = if wide { ty.bytes() } else { single };
        let device = self.program.buffers.get(weight.buffer).map(|buffer| buffer.device);
        let state = [
            ("weight", Some(*weight), ty.bytes(), Category::Weights),
            ("first moment", first, moment, Category::Optimizer),
            ("second moment", second, moment, Category::Optimizer),
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
            let (home, of_passes) = (self.space_of(*weight), self.space_of(*gradient));
            if of_passes == Some(Space::Host) || landed.is_some() != (home == Some(Space::Host)) {
                let message =
                    "passes add to a gradient on the device, which lands on the host if the weight is there";
                self.wrong(place, message);
            }
        }
        if let Some(landed) = *landed
            && self.view(place, "landed gradient", landed, device)
        {
            self.sized(place, "landed gradient", landed, gradient.bytes);
            let buffer = &self.program.buffers[landed.buffer];
            if buffer.category != Category::Gradients || buffer.space != Space::Host {
                let message =
                    format!("landed gradient is in {}, no buffer of gradients on the host", landed.buffer);
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
            let summed = group.result == Shared::Sum;
            if group.ty.bytes() == Bytes::ZERO || (summed && group.ty.dtype == DType::U32) {
                self.wrong(place, format!("{} cannot be shared", group.ty));
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
}

/// A range of state and whose it is.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct StateRange {
    buffer: crate::BufferId,
    start: Bytes,
    end: Bytes,
    place: Entity,
}
