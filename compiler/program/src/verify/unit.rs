//! The passes of every unit: each runs as often as it must, and in order.

use super::{Report, Rule};
use crate::entity::Entity;
use crate::id::{Id, MicroBatch, Slice, StageId};
use crate::program::{Batch, Instruction, Pair, Pass, Program, Unit, Work};
use std::ops::Range;

/// What has run of a unit.
#[derive(Clone, Copy, Default)]
struct Progress {
    forward: bool,
    backward: bool,
    /// Whether the backward pass was BW, which leaves no W.
    fused: bool,
    weights: bool,
}

/// The units of a program during its replay.
pub(super) struct Units {
    batch: Batch,
    progress: Vec<Progress>,
}

/// The number of a unit among those of its program: stage, then micro-batch, then slice.
pub(super) fn number(batch: Batch, unit: Unit) -> usize {
    let row = u64::from(unit.stage.0) * u64::from(batch.micro_batches) + u64::from(unit.micro_batch.0);
    (row * u64::from(batch.slices) + u64::from(unit.slice.0)) as usize
}

/// The unit of a number.
pub(super) fn unit(batch: Batch, number: usize) -> Unit {
    let (slices, micro_batches) = (batch.slices as usize, batch.micro_batches as usize);
    Unit {
        stage: StageId((number / slices / micro_batches) as u32),
        micro_batch: MicroBatch((number / slices % micro_batches) as u32),
        slice: Slice((number % slices) as u32),
    }
}

impl Units {
    pub(super) fn new(batch: Batch) -> Self {
        let units = batch.stages as usize * batch.micro_batches as usize * batch.slices as usize;
        Self { batch, progress: vec![Progress::default(); units] }
    }

    /// Notes a pass that runs now.
    pub(super) fn run(&mut self, place: Entity, pass: Pass, unit: Unit, report: &mut Report) {
        let index = number(self.batch, unit);
        let own = self.progress[index];
        let before = unit.slice.0 > 0 && !self.progress[index - 1].forward;
        let after = unit.slice.0 + 1 < self.batch.slices && !self.progress[index + 1].backward;
        let name = pass.name();
        let mut wrong = |message: String| report.add(place, Rule::Unit, message);
        if !self.batch.runs(pass, unit.stage) {
            return wrong(format!("{name} {unit} is no pass of {}, a stage of one cut of two", unit.stage));
        }
        match pass {
            // There it makes what F makes elsewhere.
            Pass::R if self.batch.is_backward(unit.stage) => {
                if own.forward {
                    wrong(format!("R {unit} runs a second time"));
                }
                self.progress[index].forward = true;
            }
            Pass::F => {
                if own.forward {
                    wrong(format!("F {unit} runs a second time"));
                }
                if before {
                    wrong(format!(
                        "F {unit} runs before that of i{}: slices ascend forward",
                        unit.slice.0 - 1
                    ));
                }
                self.progress[index].forward = true;
            }
            Pass::B | Pass::BW => {
                if !own.forward {
                    let before = if self.batch.is_backward(unit.stage) { "R" } else { "F" };
                    wrong(format!("{name} {unit} runs before {before} {unit}"));
                }
                if own.backward {
                    wrong(format!("the backward pass of {unit} runs a second time"));
                }
                if after {
                    wrong(format!(
                        "{name} {unit} runs before that of i{}: slices descend backward",
                        unit.slice.0 + 1
                    ));
                }
                self.progress[index].backward = true;
                self.progress[index].fused = pass == Pass::BW;
            }
            Pass::W => {
                if !own.backward {
                    wrong(format!("W {unit} runs before B {unit}"));
                } else if own.fused {
                    wrong(format!("W {unit} runs beside BW {unit}"));
                }
                self.progress[index].weights = true;
            }
            Pass::R => {
                if !own.forward {
                    wrong(format!("R {unit} runs before F {unit}"));
                } else if own.backward {
                    wrong(format!("R {unit} runs after the backward pass of {unit}"));
                }
            }
        }
    }

    /// Reports what never ran.
    pub(super) fn finish(&self, program: &Program, report: &mut Report) {
        let mut trained = vec![false; self.batch.stages as usize];
        for copy in program.parameters.values().flat_map(|parameter| &parameter.copies) {
            for stage in &copy.stages {
                trained[stage.0 as usize] = true;
            }
        }
        let per_stage = self.batch.micro_batches as usize * self.batch.slices as usize;
        for (stage, units) in self.progress.chunks(per_stage).enumerate() {
            let mut missing = |name: &str, is_missing: &dyn Fn(&Progress) -> bool| {
                let numbers = (stage * per_stage..).zip(units).filter(|&(number, progress)| {
                    let unit = unit(self.batch, number);
                    self.batch.meets(unit.stage, unit.micro_batch) && is_missing(progress)
                });
                let numbers: Vec<usize> = numbers.map(|(number, _)| number).collect();
                let &[first, ..] = &numbers[..] else { return };
                let count = numbers.len();
                let first = unit(self.batch, first);
                let message = if count == 1 {
                    format!("{name} {first} never runs")
                } else {
                    format!("{name} {first} and {} more of its stage never run", count - 1)
                };
                report.add(Entity::Batch, Rule::Unit, message);
            };
            let of_stage = StageId(stage as u32);
            missing(if self.batch.is_backward(of_stage) { "R" } else { "F" }, &|progress| !progress.forward);
            if !self.batch.runs(Pass::BW, of_stage) {
                continue;
            }
            missing("BW", &|progress| !progress.backward);
            if trained[stage] {
                missing("W", &|progress| progress.backward && !progress.fused && !progress.weights);
            }
        }
    }
}

/// A pass that a call is, with those of the views that are its own.
#[derive(Clone, Copy)]
pub(super) struct Half {
    pub(super) pass: Pass,
    pub(super) unit: Unit,
    start: usize,
    end: usize,
}

impl Half {
    /// The positions of its views.
    pub(super) fn views(self) -> Range<usize> {
        self.start..self.end
    }
}

/// The passes of a call: none for other instructions, the forward and then the backward pass of a pair.
pub(super) fn passes(program: &Program, instruction: &Instruction) -> [Option<Half>; 2] {
    match instruction {
        Instruction::Run { views, work: Work::Pass(pass, unit), .. } => {
            [Some(Half { pass: *pass, unit: *unit, start: 0, end: views.len() }), None]
        }
        Instruction::Run { function, views, work: Work::Pair(pair), .. } => {
            let Pair { forward, backward, pass } = **pair;
            let halves = program.functions.get(*function).and_then(|function| function.pair);
            // A pair of a function without halves is refused with the tables.
            let middle = halves.map_or(0, |halves| halves.region.index()).min(views.len());
            [
                Some(Half { pass: Pass::F, unit: forward, start: 0, end: middle }),
                Some(Half { pass, unit: backward, start: middle, end: views.len() }),
            ]
        }
        Instruction::Run { work: Work::Stage(..) | Work::Step(_), .. }
        | Instruction::Send { .. }
        | Instruction::Recv { .. }
        | Instruction::Copy { .. }
        | Instruction::Fill { .. }
        | Instruction::Reduce { .. }
        | Instruction::Wait { .. } => [None, None],
    }
}
