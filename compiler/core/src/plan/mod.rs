//! The cut of a model into stages and their place on devices.
//!
//! A [`Plan`] places every piece on exactly one stage of each copy and every stage on exactly one device, in a loop, forth
//! and back, or in two opposite directions, as the schedule asks. It deliberately holds no order of passes and no buffers.

mod cost;
mod cut;
mod replicas;
mod slices;
mod two;

pub(crate) use cost::Times;
pub use slices::slice_lengths;

use crate::mode::Forms;
use crate::spec::{Cut, Model, Origins, Pipeline, Placement, Schedule, Spec};
use pipe_grammar::diagnostic::{Code, Diagnostic};
use pipec_program::id::{Id, IdVec};
use pipec_program::{DeviceId, Nanos, Slice, StageId, Unit};
use std::fmt::Write;
use std::ops::Range;

/// A cut and its placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The stages, from the input to the loss; where backward has a cut of its own, those of the forward cut and then those of the
    /// backward cut.
    pub stages: IdVec<StageId, Stage>,
    /// The stages of each device, ascending: the chunks of the device.
    pub devices: IdVec<DeviceId, Vec<StageId>>,
    /// Replicas R of the pipeline, each on devices of its own: those of replica r are `r p .. (r + 1) p`.
    pub replicas: u32,
    /// Copies of the pipeline, which share the micro-batches: stage g of copy k has the id `k G + g` for G stages a copy,
    /// and micro-batch m runs on copy `m mod copies`. Copy k belongs to replica `k mod R`.
    pub copies: u32,
    /// Micro-batches n of a step, over all copies.
    pub micro_batches: u32,
    /// Slices s of a sequence.
    pub slices: u32,
    /// The tokens of each slice.
    pub lengths: Vec<u64>,
    /// The most products of weight gradients that a stage has.
    pub products: u16,
}

/// A stage: consecutive pieces of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// The pieces, at least one.
    pub pieces: Range<usize>,
    /// Where it runs.
    pub device: DeviceId,
    /// What it runs.
    pub part: Part,
    /// The estimated times of its passes over each slice.
    pub times: IdVec<Slice, PassTimes>,
}

/// Which passes a stage has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// All of its pieces.
    Both,
    /// The forward passes of a forward cut, which keep nothing.
    Forward,
    /// What the backward passes of a backward cut need, computed again from the input of the stage, and these passes.
    Backward,
}

/// Estimated times of the passes of a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassTimes {
    /// The forward pass.
    pub forward: Nanos,
    /// The backward pass with respect to inputs.
    pub inputs: Nanos,
    /// The backward pass with respect to weights.
    pub weights: Nanos,
    /// Both backward passes in one.
    pub backward: Nanos,
}

impl std::ops::Add for PassTimes {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            forward: self.forward + other.forward,
            inputs: self.inputs + other.inputs,
            weights: self.weights + other.weights,
            backward: self.backward + other.backward,
        }
    }
}

impl Stage {
    /// One forward pass over a whole micro-batch.
    pub fn forward(&self) -> Nanos {
        self.times.values().map(|times| times.forward).sum()
    }

    /// One whole backward pass over a whole micro-batch.
    pub fn backward(&self) -> Nanos {
        self.times.values().map(|times| times.backward).sum()
    }
}

impl Plan {
    /// The stage before in the same cut: what makes the input of a stage and takes its gradient; none for the first.
    pub fn before(&self, stage: StageId) -> Option<StageId> {
        let before = StageId(stage.0.checked_sub(1)?);
        let is_first =
            stage.0.is_multiple_of(self.depth()) || self.stages[before].part != self.stages[stage].part;
        (!is_first).then_some(before)
    }

    /// The stage after in the same cut: what takes the output of a stage and makes its gradient; none for the last.
    pub fn after(&self, stage: StageId) -> Option<StageId> {
        let after = StageId(stage.0 + 1);
        let other = self.stages.get(after)?;
        let is_last = after.0.is_multiple_of(self.depth()) || other.part != self.stages[stage].part;
        (!is_last).then_some(after)
    }

    /// The stage whose forward pass makes the input of a stage; none where that is tokens.
    pub fn source(&self, stage: StageId) -> Option<StageId> {
        match self.stages[stage].part {
            Part::Both | Part::Forward => self.before(stage),
            Part::Backward => {
                let start = self.stages[stage].pieces.start;
                let makes = |other: &Stage| other.pieces.start < start && start <= other.pieces.end;
                let mut forward = self.stages.iter().filter(|(_, other)| other.part == Part::Forward);
                forward.find(|(_, other)| makes(other)).map(|(id, _)| id)
            }
        }
    }

    /// The backward stages that begin in a forward stage or at its end, ascending.
    pub fn fed(&self, stage: StageId) -> Vec<StageId> {
        if self.stages[stage].part != Part::Forward {
            return Vec::new();
        }
        let backward = self.stages.iter().filter(|(_, other)| other.part == Part::Backward);
        backward.map(|(id, _)| id).filter(|&other| self.source(other) == Some(stage)).collect()
    }

    /// The same cut for pieces in other modes.
    pub fn with(&self, spec: &Spec, forms: &Forms) -> Self {
        placed(spec, forms, &Times::new(spec, forms), &self.cuts())
    }

    /// Where the stages of a copy start, and where the last ends.
    pub fn bounds(&self) -> Vec<usize> {
        let ends = self.stages.values().take(self.depth() as usize).map(|stage| stage.pieces.end);
        std::iter::once(0).chain(ends).collect()
    }

    fn cuts(&self) -> Cuts {
        let ends = |part: Part| {
            let stages =
                self.stages.values().take(self.depth() as usize).filter(move |stage| stage.part == part);
            std::iter::once(0).chain(stages.map(|stage| stage.pieces.end)).collect::<Vec<usize>>()
        };
        match self.stages.values().any(|stage| stage.part == Part::Backward) {
            true => Cuts::Two { forward: ends(Part::Forward), backward: ends(Part::Backward) },
            false => Cuts::One(ends(Part::Both)),
        }
    }

    /// Stages of one copy.
    pub fn depth(&self) -> u32 {
        (self.stages.len() as u32 / self.copies.max(1)).max(1)
    }

    /// The position of a unit in a dense table of all units.
    pub(crate) fn unit_index(&self, unit: Unit) -> usize {
        let (n, s) = (self.micro_batches as usize, self.slices as usize);
        (unit.stage.index() * n + unit.micro_batch.index()) * s + unit.slice.index()
    }

    /// The number of units: stages times micro-batches times slices.
    pub(crate) fn units(&self) -> usize {
        self.stages.len() * self.micro_batches as usize * self.slices as usize
    }
}

/// Cuts the model into stages and places them.
///
/// A balanced cut makes the slowest device as fast as possible by the roofline of its devices; ties go to the cut
/// whose times differ least, then to the one with the shorter first stages.
///
/// # Errors
/// More stages than pieces, a number of stages that the schedule does not place on the devices, an explicit cut that
/// does not cover the layers, a stage without pieces.
pub fn plan(spec: &Spec, forms: &Forms, origins: &Origins) -> Result<Plan, Vec<Diagnostic>> {
    let Pipeline { stages, devices, .. } = spec.pipeline;
    let (stages, devices) = (stages as usize, devices as usize);
    let pieces = spec.model.pieces.len();
    let errors = [chunks(&spec.pipeline, origins), enough_pieces(&spec.model, stages, origins)];
    let errors: Vec<Diagnostic> = errors.into_iter().flatten().collect();
    if !errors.is_empty() {
        return Err(errors);
    }
    let times = Times::new(spec, forms);
    let cuts = match (spec.pipeline.schedule, &spec.pipeline.cut) {
        (Schedule::SPipe { forward, backward, .. }, _) => {
            two::cuts(spec, &times, forward.unwrap_or(1), backward, origins).map_err(|error| vec![error])?
        }
        (Schedule::Mobius { virtual_stages, .. }, _) => {
            two::same(spec, &times, virtual_stages, origins).map_err(|error| vec![error])?
        }
        (_, Cut::Balanced) => {
            Cuts::One(cut::balanced(pieces, stages, devices, |range, device| times.both(range, device).0))
        }
        (_, Cut::Layers(layers)) => Cuts::One(explicit(layers, pieces, stages, origins)?),
    };
    Ok(placed(spec, forms, &times, &cuts))
}

/// Where stages start, and where the last ends.
enum Cuts {
    One(Vec<usize>),
    Two { forward: Vec<usize>, backward: Vec<usize> },
}

/// The stages of cuts on their devices.
fn placed(spec: &Spec, forms: &Forms, times: &Times, cuts: &Cuts) -> Plan {
    let Pipeline { devices, replicas, micro_batches, schedule, .. } = spec.pipeline;
    let of_piece = |piece: usize| forms.first(piece).products().last().map_or(0, |last| last + 1);
    let of_stage = |bound: &[usize]| (bound[0]..bound[1]).map(of_piece).sum::<usize>();
    let parts: Vec<(Part, &[usize])> = match cuts {
        Cuts::One(bounds) => vec![(Part::Both, bounds)],
        Cuts::Two { forward, backward } => vec![(Part::Forward, forward), (Part::Backward, backward)],
    };
    let products = parts.iter().flat_map(|(_, bounds)| bounds.windows(2)).map(of_stage).max().unwrap_or(0);
    let mut plan = Plan {
        stages: IdVec::new(),
        devices: (0..devices as usize * replicas as usize).map(|_| Vec::new()).collect(),
        replicas,
        copies: schedule.placement().copies() * replicas,
        micro_batches,
        slices: forms.slices.len() as u32,
        lengths: slice_lengths(spec),
        products: u16::try_from(products).unwrap_or(u16::MAX),
    };
    for copy in 0..plan.copies {
        for (part, bounds) in &parts {
            for (index, bound) in bounds.windows(2).enumerate() {
                let (pieces, part) = (bound[0]..bound[1], *part);
                let device = match part {
                    Part::Both => place(&spec.pipeline, copy, index),
                    Part::Forward => DeviceId::new(index % devices as usize),
                    Part::Backward => {
                        let ahead = index % devices as usize;
                        // As the forward passes, or so that both directions go round the same way.
                        let is_same = matches!(schedule, Schedule::Mobius { .. });
                        DeviceId::new(if is_same { ahead } else { devices as usize - 1 - ahead })
                    }
                };
                let times = times.slices(pieces.clone(), device);
                let stage = plan.stages.push(Stage { pieces, device, part, times });
                plan.devices[device].push(stage);
            }
        }
    }
    plan
}

/// The device of a stage of a copy.
fn place(pipeline: &Pipeline, copy: u32, stage: usize) -> DeviceId {
    let devices = pipeline.devices.max(1) as usize;
    let (turn, ahead) = (stage / devices, stage % devices);
    let (direction, replica) = (copy / pipeline.replicas.max(1), copy % pipeline.replicas.max(1));
    let backwards = match pipeline.schedule.placement() {
        Placement::Loop => false,
        Placement::Zigzag => turn % 2 == 1,
        Placement::Bidirectional => direction == 1,
    };
    DeviceId::new(replica as usize * devices + if backwards { devices - 1 - ahead } else { ahead })
}

/// Every device gets the number of stages that the schedule is made for.
fn chunks(pipeline: &Pipeline, origins: &Origins) -> Option<Diagnostic> {
    let &Pipeline { stages, devices, schedule, .. } = pipeline;
    let name = schedule.name();
    let each = match schedule {
        // GPipe's order is that of breadth-first pipelines too.
        Schedule::GPipe if devices > 0 && stages.is_multiple_of(devices) => (stages / devices).max(1),
        schedule => schedule.virtual_stages(),
    };
    let expected = u64::from(each) * u64::from(devices);
    (stages == 0 || u64::from(stages) != expected).then(|| {
        let origin = origins.stages;
        let message = format!("{stages} stages do not fit {devices} devices");
        Diagnostic::error(origin.source, Code::DeviceMismatch, message)
            .at(origin.span, format!("{stages} stages here"))
            .help(format!("`{name}` runs {each} per device: use {} stages", expected.max(1)))
    })
}

/// No stage stays empty.
fn enough_pieces(model: &Model, stages: usize, origins: &Origins) -> Option<Diagnostic> {
    let pieces = model.pieces.len();
    (stages > pieces).then(|| {
        let origin = origins.stages;
        let message = format!("{stages} stages for {pieces} pieces of model `{}`", model.name);
        Diagnostic::error(origin.source, Code::TooManyStages, message)
            .at(origin.span, format!("a stage needs a piece, and the model has {}", inventory(model)))
            .help(format!("use at most {pieces} stages"))
    })
}

/// `6 pieces: embedding, 4 layers, head`.
fn inventory(model: &Model) -> String {
    match model.pieces.as_slice() {
        [] => "none".to_owned(),
        [only] => format!("1 piece: {}", only.name),
        [first, middle @ .., last] => {
            let layers = match middle.len() {
                1 => "1 layer".to_owned(),
                count => format!("{count} layers"),
            };
            format!("{} pieces: {}, {layers}, {}", model.pieces.len(), first.name, last.name)
        }
    }
}

/// The bounds of a cut by numbers of layers. The first and the last piece stand outside of the layers.
fn explicit(
    layers: &[u32],
    pieces: usize,
    stages: usize,
    origins: &Origins,
) -> Result<Vec<usize>, Vec<Diagnostic>> {
    let origin = origins.cut;
    let error = |code, message: String, label: String, help: String| {
        Diagnostic::error(origin.source, code, message).at(origin.span, label).help(help)
    };
    let counted = |count: usize, what: &str| match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    };
    let mut errors = Vec::new();
    let total = pieces.saturating_sub(2);
    let sum: u64 = layers.iter().map(|&count| u64::from(count)).sum();
    if layers.len() != stages {
        errors.push(error(
            Code::CutMismatch,
            format!(
                "a cut for {} in a pipeline of {}",
                counted(layers.len(), "stage"),
                counted(stages, "stage")
            ),
            counted(layers.len(), "number"),
            format!("write {}, one for each stage", counted(stages, "number")),
        ));
    }
    if sum != total as u64 {
        errors.push(error(
            Code::CutMismatch,
            format!("a cut of {sum} layers for a model of {total}"),
            format!("these add up to {sum}"),
            format!(
                "the numbers must add up to {total}; the pieces before and after the layers are not counted"
            ),
        ));
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let mut bounds = vec![0];
    let mut end = pieces.min(1);
    for (stage, &count) in layers.iter().enumerate() {
        end += count as usize;
        let bound = if stage + 1 == stages { pieces } else { end };
        if bound == bounds[stage] {
            errors.push(error(
                Code::EmptyStage,
                format!("stage {stage} has no layers"),
                format!("the number of stage {stage} is 0"),
                "give it at least 1 layer; only the first and the last stage hold pieces besides".to_owned(),
            ));
        }
        bounds.push(bound);
    }
    if errors.is_empty() { Ok(bounds) } else { Err(errors) }
}

/// The plan as text, one line per stage.
pub fn print(plan: &Plan, model: &Model) -> String {
    let mut text = format!("micro_batches {}, slices {}\n", plan.micro_batches, plan.slices);
    for (id, stage) in plan.stages.iter() {
        let names: Vec<&str> = model
            .pieces
            .get(stage.pieces.clone())
            .unwrap_or_default()
            .iter()
            .map(|piece| &*piece.name)
            .collect();
        let pieces = match names.as_slice() {
            [] => String::new(),
            [only] => (*only).to_owned(),
            [first, .., last] => format!("{first} .. {last}"),
        };
        let (device, forward, backward) = (stage.device, stage.forward(), stage.backward());
        writeln!(
            text,
            "{id} {device} {pieces} ({}): {}",
            stage.pieces.len(),
            match stage.part {
                Part::Both => format!("forward {forward}, backward {backward}"),
                Part::Forward => format!("forward {forward}"),
                Part::Backward => format!("again {forward}, backward {backward}"),
            }
        )
        .expect("text takes all writes");
    }
    text
}

#[cfg(test)]
mod tests;
