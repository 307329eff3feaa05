//! Gradients and updates: every contribution once, copies tied, every parameter counted and updated once.
//!
//! A *cell* is the range of a buffer that holds the gradient of a parameter on a device; copies may share one. Which
//! passes add to which cell is found for every distinct touch, not for every call.

use super::function::Interval;
use super::memory::{Made, Memory};
use super::touch::{Role, Touch, Touches};
use super::unit;
use super::{Report, Rule};
use crate::entity::Entity;
use crate::function::{Body, Function, Value};
use crate::id::{BufferId, DeviceId, GroupId, Id, IdVec, ParameterId, StageId, ValueId};
use crate::kernel::{Kernel, Op};
use crate::program::{Batch, Category, Instruction, Pass, Placed, Program, StepWork, Unit, View, Work};
use crate::units::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// The most pairs of a distinct touch and a cell.
const MOST_PAIRS: usize = 1 << 26;

/// The gradient of a parameter on a device.
#[derive(Debug)]
struct Cell {
    view: View,
    device: DeviceId,
    parameter: ParameterId,
    stages: Vec<StageId>,
    /// The contributions that the passes of the program make to it.
    planned: u64,
}

/// A copy of a parameter.
#[derive(Clone, Copy, Debug)]
struct CopyRow<'a> {
    parameter: ParameterId,
    copy: u32,
    placed: &'a Placed,
}

impl CopyRow<'_> {
    fn place(&self) -> Entity {
        Entity::Copy(self.parameter, self.copy)
    }
}

/// What the program says about gradients before it runs.
#[derive(Debug)]
pub(super) struct Gradients<'a> {
    program: &'a Program,
    /// Ascending by buffer and offset, without overlap.
    cells: Vec<Cell>,
    cells_of: IdVec<ParameterId, Vec<usize>>,
    /// Ascending by the place of the weight, without overlap.
    copies: Vec<CopyRow<'a>>,
}

impl<'a> Gradients<'a> {
    /// Finds the cells and checks that every contribution is made once, in whatever order.
    pub(super) fn collect(program: &'a Program, touches: &Touches, report: &mut Report) -> Self {
        let mut copies: Vec<CopyRow<'a>> = program
            .parameters
            .iter()
            .flat_map(|(parameter, row)| {
                (0u32..).zip(&row.copies).map(move |(copy, placed)| CopyRow { parameter, copy, placed })
            })
            .collect();
        let cells = cells(program, &copies, report);
        copies.sort_by_key(|row| row.placed.weight);
        let mut cells_of: IdVec<ParameterId, Vec<usize>> =
            program.parameters.ids().map(|_| Vec::new()).collect();
        for (index, cell) in cells.iter().enumerate() {
            cells_of[cell.parameter].push(index);
        }
        let mut gradients = Self { program, cells, cells_of, copies };
        gradients.one_cell_per_device(report);
        gradients.contributions(touches, report);
        gradients
    }

    fn one_cell_per_device(&self, report: &mut Report) {
        for (parameter, cells) in self.cells_of.iter() {
            let devices: BTreeSet<DeviceId> = cells.iter().map(|&cell| self.cells[cell].device).collect();
            if devices.len() < cells.len() {
                let message = "has two gradients on one device, which no reduction adds up";
                report.add(Entity::Parameter(parameter), Rule::Gradient, message);
            }
        }
    }

    /// The cells that intervals of a buffer cover, and the first that they cover only in part.
    fn covered(&self, buffer: BufferId, intervals: &[Interval]) -> (Vec<usize>, Option<usize>) {
        let mut full = Vec::new();
        let mut part = None;
        for &(start, end) in intervals {
            let first = self.cells.partition_point(|cell| {
                (cell.view.buffer, cell.view.offset.0 + cell.view.bytes.0) <= (buffer, start)
            });
            let inside = self.cells[first..]
                .iter()
                .take_while(|cell| cell.view.buffer == buffer && cell.view.offset.0 < end)
                .enumerate();
            for (offset, cell) in inside {
                if cell.view.offset.0 >= start && cell.view.offset.0 + cell.view.bytes.0 <= end {
                    full.push(first + offset);
                } else {
                    part.get_or_insert(first + offset);
                }
            }
        }
        (full, part)
    }

    fn contributions(&mut self, touches: &Touches, report: &mut Report) {
        let program = self.program;
        let batch = program.batch;
        let mut units_of: Vec<Vec<u32>> = touches.list.iter().map(|_| Vec::new()).collect();
        for (queue, row) in program.queues.iter() {
            for (position, instruction) in (0u32..).zip(&row.instructions) {
                let Some((Pass::W | Pass::BW, unit)) = unit::pass(instruction) else { continue };
                for &number in touches.of(queue, position) {
                    if contributes(touches, &touches.list[number as usize]) {
                        // A program of more units than instructions is reported elsewhere.
                        units_of[number as usize].push(unit::number(batch, unit) as u32);
                    }
                }
            }
        }
        let mut touches_of: Vec<Vec<u32>> = self.cells.iter().map(|_| Vec::new()).collect();
        let mut pairs = 0;
        for (number, units) in units_of.iter().enumerate().filter(|(_, units)| !units.is_empty()) {
            let touch = &touches.list[number];
            let (full, part) = self.covered(touch.view.buffer, touches.writes(touch));
            if let Some(cell) = part {
                let parameter = self.cells[cell].parameter;
                let message = format!("adds to a part of the gradient of {parameter} only");
                report.add_related(touch.first, Rule::Gradient, message, vec![Entity::Parameter(parameter)]);
            }
            pairs += full.len();
            if pairs > MOST_PAIRS {
                let message = format!("the passes add to gradients in more than {MOST_PAIRS} distinct ways");
                return report.add(Entity::Program, Rule::Gradient, message);
            }
            for cell in full {
                touches_of[cell].push(number as u32);
                self.cells[cell].planned += units.len() as u64;
            }
        }
        // Parameters to which the same touches add stand or fall together.
        let mut verdicts: BTreeMap<Vec<u32>, Option<String>> = BTreeMap::new();
        for (parameter, cells) in self.cells_of.iter() {
            let mut key = Vec::new();
            for &cell in cells {
                key.extend(&touches_of[cell]);
                key.push(u32::MAX);
                key.extend(self.cells[cell].stages.iter().map(|stage| stage.0));
                key.push(u32::MAX);
            }
            let verdict = verdicts.entry(key).or_insert_with(|| {
                let added = cells.iter().map(|&cell| (&self.cells[cell].stages[..], &touches_of[cell][..]));
                contributions_problem(batch, added, &units_of)
            });
            if let Some(message) = verdict {
                report.add(Entity::Parameter(parameter), Rule::Gradient, message.clone());
            }
        }
    }
}

/// Whether a pass W or BW adds to gradients through a touch.
pub(super) fn contributes(touches: &Touches, touch: &Touch) -> bool {
    touch.category == Category::Gradients && !touch.scratch && !touches.writes(touch).is_empty()
}

/// The distinct gradients of the copies, ascending by place.
fn cells(program: &Program, copies: &[CopyRow<'_>], report: &mut Report) -> Vec<Cell> {
    let mut sorted: Vec<&CopyRow<'_>> = copies.iter().collect();
    sorted.sort_by_key(|row| (row.placed.gradient, row.parameter, row.copy));
    let mut cells: Vec<Cell> = Vec::new();
    for row in sorted {
        let view = row.placed.gradient;
        match cells.last_mut() {
            Some(last) if last.view == view && last.parameter == row.parameter => {
                last.stages.extend(&row.placed.stages);
                last.stages.sort_unstable();
                last.stages.dedup();
            }
            Some(last)
                if last.view.buffer == view.buffer && last.view.offset + last.view.bytes > view.offset =>
            {
                let message =
                    format!("its gradient shares bytes of {} with that of {}", view.buffer, last.parameter);
                report.add_related(
                    row.place(),
                    Rule::Gradient,
                    message,
                    vec![Entity::Parameter(last.parameter)],
                );
            }
            Some(_) | None => cells.push(Cell {
                view,
                device: program.buffers[view.buffer].device,
                parameter: row.parameter,
                stages: row.placed.stages.clone(),
                planned: 0,
            }),
        }
    }
    cells
}

/// What is wrong with the contributions to the cells of one parameter: its stages and the touches that add to each.
fn contributions_problem<'k>(
    batch: Batch,
    cells: impl Iterator<Item = (&'k [StageId], &'k [u32])>,
    units_of: &[Vec<u32>],
) -> Option<String> {
    let mut stages: BTreeSet<StageId> = BTreeSet::new();
    let mut units: Vec<u32> = Vec::new();
    for (cell_stages, touches) in cells {
        stages.extend(cell_stages);
        let from = units.len();
        for &touch in touches {
            units.extend(&units_of[touch as usize]);
        }
        let foreign = units[from..]
            .iter()
            .map(|&number| unit::unit(batch, number as usize))
            .find(|unit| !cell_stages.contains(&unit.stage));
        if let Some(unit) = foreign {
            return Some(format!("{unit} adds to its gradient, but {} does not use it there", unit.stage));
        }
    }
    units.sort_unstable();
    if let Some(pair) = units.windows(2).find(|pair| pair[0] == pair[1]) {
        return Some(format!("{} adds to its gradient twice", unit::unit(batch, pair[0] as usize)));
    }
    let per_stage = u64::from(batch.micro_batches) * u64::from(batch.slices);
    let expected = per_stage * stages.len() as u64;
    if units.len() as u64 == expected {
        return None;
    }
    // Without doubles and strangers, the first number that is not there is missing.
    let first = stages.iter().find_map(|stage| {
        let start = u64::from(stage.0) * per_stage;
        (start..start + per_stage).find(|&number| units.binary_search(&(number as u32)).is_err())
    });
    let first = first.map(|number| unit::unit(batch, number as usize))?;
    Some(format!(
        "its gradient gets {} of {expected} contributions in a step; the first that is missing is that of {first}",
        units.len()
    ))
}

/// An instruction with what it touches.
#[derive(Clone, Copy)]
pub(super) struct Used<'c> {
    pub(super) place: Entity,
    pub(super) device: DeviceId,
    pub(super) touches: &'c Touches,
    pub(super) numbers: &'c [u32],
}

/// What has become of gradients and parameters during a replay.
pub(super) struct Accounts<'g, 'a> {
    gradients: &'g Gradients<'a>,
    tied: Vec<bool>,
    counted: IdVec<ParameterId, u32>,
    /// By position in [`Gradients::copies`].
    updated: Vec<u32>,
    clipped: IdVec<DeviceId, bool>,
    norms: bool,
}

impl<'g, 'a> Accounts<'g, 'a> {
    pub(super) fn new(gradients: &'g Gradients<'a>) -> Self {
        Self {
            gradients,
            tied: vec![false; gradients.cells.len()],
            counted: gradients.program.parameters.ids().map(|_| 0).collect(),
            updated: vec![0; gradients.copies.len()],
            clipped: gradients.program.devices.ids().map(|_| false).collect(),
            norms: false,
        }
    }

    /// Checks work for a stage or a step, before it changes memory.
    pub(super) fn step_work(
        &mut self,
        instruction: &Instruction,
        used: Used<'_>,
        memory: &Memory<'_>,
        report: &mut Report,
    ) {
        let Used { place, device, touches, numbers } = used;
        let (Instruction::Run { work, .. } | Instruction::Reduce { work, .. }) = instruction else { return };
        let (Work::Stage(step_work, _) | Work::Step(step_work)) = *work else { return };
        match step_work {
            StepWork::Norm => {
                self.norms = true;
                if self.clipped[device] {
                    report.add(place, Rule::Gradient, format!("norm after clip on {device}"));
                }
            }
            StepWork::Clip => self.clipped[device] = true,
            StepWork::Tie | StepWork::Update => {}
        }
        let is_run = matches!(instruction, Instruction::Run { .. });
        if is_run {
            step_sources(self.gradients.program, place, step_work, touches, numbers, memory, report);
        }
        let mut read = Vec::new();
        for &number in numbers {
            let touch = &touches.list[number as usize];
            if touch.category != Category::Gradients {
                continue;
            }
            let (full, part) = self.gradients.covered(touch.view.buffer, touches.reads(touch));
            if let Some(cell) = part {
                let parameter = self.gradients.cells[cell].parameter;
                report.add(
                    place,
                    Rule::Gradient,
                    format!("reads a part of the gradient of {parameter} only"),
                );
            }
            read.extend(full);
        }
        for &cell in &read {
            self.complete(place, cell, memory, report);
            let parameter = self.gradients.cells[cell].parameter;
            let is_tied = self.tied[cell] || self.gradients.cells_of[parameter].len() < 2;
            let name = step_work.name();
            match step_work {
                StepWork::Tie => {
                    if self.tied[cell] && !is_run {
                        report.add(
                            place,
                            Rule::Gradient,
                            format!("the gradient of {parameter} is tied a second time"),
                        );
                    }
                    if let Instruction::Reduce { group, .. } = instruction {
                        self.tie(place, cell, *group, report);
                    }
                }
                StepWork::Norm | StepWork::Update | StepWork::Clip => {
                    if !is_tied {
                        let message = format!(
                            "{name} reads the gradient of {parameter} before its copies are added up"
                        );
                        report.add(place, Rule::Gradient, message);
                    }
                    if step_work == StepWork::Norm && is_run {
                        self.counted[parameter] += 1;
                    }
                }
            }
        }
        if let (StepWork::Update, Instruction::Run { function, views, .. }) = (step_work, instruction) {
            let row = &self.gradients.program.functions[*function];
            self.update(row, views, used, &read, report);
        }
    }

    /// Checks that the passes so far are all that add to a cell.
    fn complete(&self, place: Entity, cell: usize, memory: &Memory<'_>, report: &mut Report) {
        let cell = &self.gradients.cells[cell];
        let (arena, segments) = memory.segments(cell.view);
        let wrong = segments
            .map(|segment| u64::from(memory.segment(arena, segment).added))
            .find(|&added| added != cell.planned);
        if let Some(added) = wrong {
            let message = format!(
                "reads the gradient of {} after {added} of {} contributions",
                cell.parameter, cell.planned
            );
            report.add_related(place, Rule::Gradient, message, vec![Entity::Parameter(cell.parameter)]);
        }
    }

    fn tie(&mut self, place: Entity, cell: usize, group: GroupId, report: &mut Report) {
        self.tied[cell] = true;
        let gradients = self.gradients;
        let parameter = gradients.cells[cell].parameter;
        let devices: BTreeSet<DeviceId> =
            gradients.cells_of[parameter].iter().map(|&cell| gradients.cells[cell].device).collect();
        let members: BTreeSet<DeviceId> = gradients.program.groups[group].members.iter().copied().collect();
        if devices != members {
            let list = |devices: &BTreeSet<DeviceId>| {
                devices.iter().map(DeviceId::to_string).collect::<Vec<_>>().join(", ")
            };
            let message =
                format!("{group} adds up {}, but {parameter} lives on {}", list(&members), list(&devices));
            report.add_related(place, Rule::Gradient, message, vec![Entity::Parameter(parameter)]);
        }
    }

    /// Checks that all members of a tie meet with the same parameters at the same places.
    pub(super) fn meeting(&self, views: &[(Entity, View)], report: &mut Report) {
        let contents = |view: View| -> Vec<(Bytes, ParameterId)> {
            let all = [(view.offset.0, view.offset.0 + view.bytes.0)];
            let (full, _) = self.gradients.covered(view.buffer, &all);
            let cells = full.into_iter().map(|cell| &self.gradients.cells[cell]);
            cells.map(|cell| (cell.view.offset - view.offset, cell.parameter)).collect()
        };
        let Some((&(_, first), rest)) = views.split_first() else { return };
        let reference = contents(first);
        for &(place, view) in rest {
            if contents(view) != reference {
                let message = format!("adds up other parameters in {} than in {}", view.buffer, first.buffer);
                report.add(place, Rule::Gradient, message);
            }
        }
    }

    /// Notes which copies a call updates, and checks that it takes gradient and moments of the same copies.
    fn update(
        &mut self,
        function: &Function,
        views: &[View],
        used: Used<'_>,
        gradients: &[usize],
        report: &mut Report,
    ) {
        let Used { place, touches, numbers, device: _ } = used;
        if let Body::Kernels { values, kernels } = &function.body {
            let updates: Vec<&Kernel> =
                kernels.iter().filter(|kernel| matches!(kernel.op, Op::AdamW { .. })).collect();
            if !updates.is_empty() {
                for kernel in updates {
                    self.update_kernel(place, kernel, values, views, report);
                }
                return;
            }
        }
        // Without kernels only what is touched is known.
        let touched = |view: View| {
            numbers.iter().map(|&number| &touches.list[number as usize]).any(|touch| {
                touch.view.buffer == view.buffer
                    && touches
                        .writes(touch)
                        .iter()
                        .any(|&(start, end)| start <= view.offset.0 && view.offset.0 + view.bytes.0 <= end)
            })
        };
        for index in 0..self.gradients.copies.len() {
            let row = self.gradients.copies[index];
            if !touched(row.placed.weight) {
                continue;
            }
            self.updated[index] += 1;
            let [first, second] = row.placed.moments;
            if !touched(first) || !touched(second) || row.placed.master.is_some_and(|master| !touched(master))
            {
                let message = format!("updates {} without all of its optimizer state", row.parameter);
                report.add(place, Rule::Update, message);
            }
            let read = gradients.iter().any(|&cell| self.gradients.cells[cell].view == row.placed.gradient);
            if !read {
                report.add(place, Rule::Update, format!("updates {} without its gradient", row.parameter));
            }
        }
    }

    fn update_kernel(
        &mut self,
        place: Entity,
        kernel: &Kernel,
        values: &IdVec<ValueId, Value>,
        views: &[View],
        report: &mut Report,
    ) {
        let locate = |value: ValueId| -> Option<Located> {
            let row = values.get(value)?;
            let view = views.get(row.param.index())?;
            let offset = view.offset + row.offset;
            Some(Located { buffer: view.buffer, offset, bytes: row.ty.bytes(), size: row.ty.dtype.bytes().0 })
        };
        let outputs: Vec<Option<Located>> =
            kernel.outputs.iter().map(|output| locate(output.value)).collect();
        let gradient = kernel.inputs.first().and_then(|&input| locate(input));
        let Some(Some(weight)) = outputs.first().copied() else { return };
        let end = weight.offset + weight.bytes;
        let first = self.gradients.copies.partition_point(|row| {
            let view = row.placed.weight;
            (view.buffer, view.offset + view.bytes) <= (weight.buffer, weight.offset)
        });
        let mut index = first;
        while let Some(&row) = self.gradients.copies.get(index) {
            let view = row.placed.weight;
            if view.buffer != weight.buffer || view.offset >= end {
                break;
            }
            self.updated[index] += 1;
            index += 1;
            if view.offset < weight.offset || view.offset + view.bytes > end {
                report.add(place, Rule::Update, format!("updates a part of {} only", row.parameter));
                continue;
            }
            let element = (view.offset - weight.offset).0 / weight.size.max(1);
            let [m, v] = row.placed.moments;
            let wanted = [
                ("gradient", Some(row.placed.gradient), gradient),
                ("first moment", Some(m), outputs.get(1).copied().flatten()),
                ("second moment", Some(v), outputs.get(2).copied().flatten()),
                ("master", row.placed.master, outputs.get(3).copied().flatten()),
            ];
            for (what, wanted, found) in wanted {
                let agrees = match (wanted, found) {
                    (Some(wanted), Some(found)) => {
                        found.buffer == wanted.buffer
                            && found.offset + Bytes(element) * found.size == wanted.offset
                    }
                    (None, None) => true,
                    (Some(_), None) | (None, Some(_)) => false,
                };
                if !agrees {
                    let message = format!("updates {} with another {what} than its own", row.parameter);
                    report.add_related(place, Rule::Update, message, vec![row.place()]);
                }
            }
        }
        if index == first {
            report.add(
                place,
                Rule::Update,
                format!("updates bytes of {} that hold no parameter", weight.buffer),
            );
        }
    }

    /// Checks that everything happened.
    pub(super) fn finish(&self, report: &mut Report) {
        for (row, &updated) in self.gradients.copies.iter().zip(&self.updated) {
            if updated != 1 {
                let message = format!("is updated {updated} times in a step, not once");
                report.add(row.place(), Rule::Update, message);
            }
        }
        for (cell, &tied) in self.gradients.cells.iter().zip(&self.tied) {
            if !tied && self.gradients.cells_of[cell.parameter].len() > 1 {
                let message =
                    format!("its gradient on {} is not added to those of its other copies", cell.device);
                report.add(Entity::Parameter(cell.parameter), Rule::Gradient, message);
            }
        }
        for (parameter, &counted) in self.counted.iter() {
            if self.norms && counted != 1 {
                let message = format!("its gradient counts {counted} times in the norm, not once");
                report.add(Entity::Parameter(parameter), Rule::Gradient, message);
            }
        }
    }

    /// Checks that the weights that a pass reads belong to its stage.
    pub(super) fn weights_of_stage(
        &self,
        place: Entity,
        unit: Unit,
        touches: &Touches,
        touch: &Touch,
        report: &mut Report,
    ) {
        let buffer = touch.view.buffer;
        for &(start, end) in touches.reads(touch) {
            let first = self.gradients.copies.partition_point(|row| {
                let view = row.placed.weight;
                (view.buffer, (view.offset + view.bytes).0) <= (buffer, start)
            });
            let strange = self.gradients.copies[first..]
                .iter()
                .take_while(|row| row.placed.weight.buffer == buffer && row.placed.weight.offset.0 < end)
                .find(|row| !row.placed.stages.contains(&unit.stage));
            if let Some(row) = strange {
                let message = format!("reads {}, which {} does not use", row.parameter, unit.stage);
                return report.add_related(place, Rule::Unit, message, vec![row.place()]);
            }
        }
    }
}

/// Checks that work for a stage or a step takes what the work before it made: norm takes gradients, clip squares, and
/// update gradients, state and what clip made.
fn step_sources(
    program: &Program,
    place: Entity,
    work: StepWork,
    touches: &Touches,
    numbers: &[u32],
    memory: &Memory<'_>,
    report: &mut Report,
) {
    let wanted = match work {
        StepWork::Tie => return,
        StepWork::Norm | StepWork::Clip => StepWork::Norm,
        StepWork::Update => StepWork::Clip,
    };
    let name = work.name();
    for touch in numbers.iter().map(|&number| &touches.list[number as usize]) {
        let is_known = match touch.category {
            Category::Gradients => work != StepWork::Clip,
            Category::Weights | Category::Optimizer => work == StepWork::Update,
            Category::Activations | Category::Communication | Category::Workspace | Category::Data => false,
        };
        if is_known {
            continue;
        }
        let strange =
            memory.read(touch).map(|segment| segment.maker.made).find(|&made| made != Made::Step(wanted));
        let factor = wanted != StepWork::Clip
            || memory.read(touch).all(|segment| is_factor(program, touches, segment.maker.origin));
        if !factor {
            let message = format!("takes another result of clip than its factor from {}", touch.view.buffer);
            report.add(place, Rule::Gradient, message);
        }
        if let Some(made) = strange {
            let message = match touch.category {
                Category::Weights | Category::Optimizer | Category::Gradients => {
                    format!("{name} reads {}, a buffer of {}", touch.view.buffer, touch.category.name())
                }
                Category::Activations | Category::Communication | Category::Workspace | Category::Data => {
                    format!("{name} reads what {made} made, not what {} made", wanted.name())
                }
            };
            report.add(place, Rule::Gradient, message);
        }
        let doubled = work == StepWork::Norm
            && touches.reads(touch).is_empty()
            && memory.written(touch).any(|segment| {
                segment.holds(touch.view.buffer) && segment.maker.made == Made::Step(StepWork::Norm)
            });
        if doubled {
            report.add(place, Rule::Gradient, format!("overwrites squares in {}", touch.view.buffer));
        }
    }
}

/// Whether bytes that clip made are its factor and not its norm, as far as its function says.
fn is_factor(program: &Program, touches: &Touches, origin: Option<u32>) -> bool {
    let Some(Role::Param(function, param)) =
        origin.and_then(|origin| touches.list.get(origin as usize)).map(|touch| touch.role)
    else {
        return true;
    };
    match &program.functions[function].body {
        Body::Abstract { .. } => true,
        Body::Kernels { values, kernels } => kernels
            .iter()
            .filter(|kernel| matches!(kernel.op, Op::ClipFactor { .. }))
            .filter_map(|kernel| values.get(kernel.outputs.get(1)?.value))
            .all(|factor| factor.param == param),
    }
}

/// Checks that every square in a sum over devices comes from one of them, and zeros from the others.
pub(super) fn squares_meet(views: &[(Entity, View)], memory: &Memory<'_>, report: &mut Report) {
    let members: Vec<_> = views.iter().map(|&(place, view)| (place, memory.makers(view))).collect();
    let cuts: BTreeSet<u64> = members
        .iter()
        .flat_map(|(_, makers)| makers.iter().flat_map(|&(start, end, _)| [start, end]))
        .collect();
    let mut at = vec![0; members.len()];
    for (&start, &end) in cuts.iter().zip(cuts.iter().skip(1)) {
        let mut squares = 0;
        for ((place, makers), at) in members.iter().zip(&mut at) {
            while makers.get(*at).is_some_and(|&(_, last, _)| last <= start) {
                *at += 1;
            }
            match makers.get(*at).map(|&(.., made)| made) {
                Some(Made::Step(StepWork::Norm)) => squares += 1,
                Some(Made::Zero) => {}
                Some(made) => {
                    let message = format!("adds up what {made} made as squares");
                    return report.add(*place, Rule::Gradient, message);
                }
                None => {}
            }
        }
        if squares != 1
            && let Some((place, _)) = members.first()
        {
            let message = format!("bytes {start}..{end} hold squares on {squares} devices, not on one");
            return report.add(*place, Rule::Gradient, message);
        }
    }
}

/// A value of a call in its buffer.
#[derive(Clone, Copy)]
struct Located {
    buffer: BufferId,
    offset: Bytes,
    bytes: Bytes,
    size: u64,
}
