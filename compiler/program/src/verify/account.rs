//! What becomes of gradients and parameters in a step: copies tied, every parameter counted and updated once.

use super::function::Interval;
use super::gradient::Gradients;
use super::memory::{Made, Memory};
use super::touch::{Role, Touch, Touches};
use super::{Report, Rule};
use crate::entity::Entity;
use crate::function::{Body, Function, Value};
use crate::id::{BufferId, DeviceId, GroupId, Id, IdVec, ParameterId, StageId, ValueId};
use crate::kernel::{Kernel, Op};
use crate::program::{Category, Instruction, Placed, Program, StepWork, Unit, View, Work};
use crate::units::Bytes;
use std::collections::BTreeSet;

/// The most pairs of a parameter and an instruction that touches it.
const MOST_STEPS: usize = 1 << 26;

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
    /// Parameters that instructions have met with so far.
    steps: usize,
    exhausted: bool,
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
            steps: 0,
            exhausted: false,
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
        let &(Work::Stage(step_work, _) | Work::Step(step_work)) = work else { return };
        if self.is_exhausted(report) {
            return;
        }
        match step_work {
            StepWork::Norm => {
                self.norms = true;
                if self.clipped[device] {
                    report.add(place, Rule::Gradient, format!("norm after clip on {device}"));
                }
            }
            StepWork::Clip => self.clipped[device] = true,
            StepWork::Tie | StepWork::Update => {}
            StepWork::Load => {
                report.add(place, Rule::Unit, "weights are loaded by messages and copies");
            }
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
        read.sort_unstable();
        self.steps += read.len();
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
                StepWork::Norm | StepWork::Update | StepWork::Clip | StepWork::Load => {
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
            self.update(row, views, used, &read, memory, report);
        }
    }

    /// Checks that the passes so far are all that add to a cell.
    fn complete(&mut self, place: Entity, cell: usize, memory: &Memory<'_>, report: &mut Report) {
        let cell = &self.gradients.cells[cell];
        let (arena, segments) = memory.segments(cell.view);
        self.steps += segments.len();
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
        self.steps += gradients.program.groups[group].members.len();
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

    /// Checks that a broadcast takes weights that were updated to the same parameters on the other members, which have no
    /// optimizer state, and notes that these are updated.
    pub(super) fn broadcast(&mut self, views: &[(Entity, View)], first: DeviceId, report: &mut Report) {
        let contents = |accounts: &Self, view: View| -> Vec<(Bytes, usize)> {
            let end = (view.offset + view.bytes).0;
            let copies = accounts.gradients.copies_in(view.buffer, view.offset.0, end);
            let inside = copies.filter(|&index| {
                let weight = accounts.gradients.copies[index].placed.weight;
                weight.offset >= view.offset && (weight.offset + weight.bytes).0 <= end
            });
            inside
                .map(|index| (accounts.gradients.copies[index].placed.weight.offset - view.offset, index))
                .collect()
        };
        let of_first = |&&(_, view): &&(Entity, View)| lies_on(self.gradients, view, first);
        let Some(&(_, from)) = views.iter().find(of_first) else { return };
        let sources = contents(self, from);
        self.steps += sources.len() * views.len();
        let parameters = |accounts: &Self, contents: &[(Bytes, usize)]| -> Vec<(Bytes, ParameterId)> {
            contents.iter().map(|&(at, index)| (at, accounts.gradients.copies[index].parameter)).collect()
        };
        let wanted = parameters(self, &sources);
        for &(place, view) in views {
            if lies_on(self.gradients, view, first) {
                if let Some(&(_, index)) = sources.iter().find(|&&(_, index)| self.updated[index] != 1) {
                    let parameter = self.gradients.copies[index].parameter;
                    report.add(place, Rule::Update, format!("broadcasts {parameter} before its update"));
                }
                continue;
            }
            let targets = contents(self, view);
            if parameters(self, &targets) != wanted || targets.is_empty() {
                let message = format!("takes other parameters in {} than in {}", view.buffer, from.buffer);
                report.add(place, Rule::Update, message);
                continue;
            }
            for (_, index) in targets {
                let row = self.gradients.copies[index];
                self.updated[index] += 1;
                if row.placed.moments.is_some() || row.placed.master.is_some() {
                    let message =
                        format!("takes the weight of {} beside its own optimizer state", row.parameter);
                    report.add_related(place, Rule::Update, message, vec![row.place()]);
                }
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
        memory: &Memory<'_>,
        report: &mut Report,
    ) {
        let Used { place, touches, numbers, device: _ } = used;
        if let Body::Kernels { values, kernels } = &function.body {
            let updates: Vec<&Kernel> =
                kernels.iter().filter(|kernel| matches!(kernel.op, Op::AdamW { .. })).collect();
            if !updates.is_empty() {
                for kernel in updates {
                    self.update_kernel(place, kernel, values, views, (touches, memory), report);
                }
                return;
            }
        }
        // Without kernels only what is touched is known.
        let touched = |view: View| {
            numbers.iter().map(|&number| &touches.list[number as usize]).any(|touch| {
                touch.view.buffer == view.buffer
                    && covers(touches.writes(touch), (view.offset.0, view.offset.0 + view.bytes.0))
            })
        };
        let written = numbers.iter().map(|&number| &touches.list[number as usize]).flat_map(|touch| {
            let is_weight = touch.category == Category::Weights;
            touches.writes(touch).iter().filter(move |_| is_weight).map(|&range| (touch.view.buffer, range))
        });
        for (buffer, (start, end)) in written {
            for index in self.gradients.copies_in(buffer, start, end) {
                let row = self.gradients.copies[index];
                if !touched(row.placed.weight) {
                    continue;
                }
                self.updated[index] += 1;
                let moments = row.placed.moments.is_some_and(|moments| moments.into_iter().all(&touched));
                let master = row.placed.master.is_none_or(&touched);
                if !moments || !master {
                    let message = format!("updates {} without all of its optimizer state", row.parameter);
                    report.add(place, Rule::Update, message);
                }
                let is_read = match row.placed.landed {
                    Some(landed) => touched_by(numbers, touches, landed),
                    None => {
                        let cell = self.gradients.cell(row.placed.gradient);
                        cell.is_some_and(|cell| gradients.binary_search(&cell).is_ok())
                    }
                };
                if !is_read || !self.has_landed(row.placed, touches, memory) {
                    report.add(
                        place,
                        Rule::Update,
                        format!("updates {} without its gradient", row.parameter),
                    );
                }
            }
        }
    }

    fn update_kernel(
        &mut self,
        place: Entity,
        kernel: &Kernel,
        values: &IdVec<ValueId, Value>,
        views: &[View],
        (touches, memory): (&Touches, &Memory<'_>),
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
        let copies = self.gradients.copies_in(weight.buffer, weight.offset.0, end.0);
        self.steps += copies.len();
        if copies.is_empty() {
            let message = format!("updates bytes of {} that hold no parameter", weight.buffer);
            report.add(place, Rule::Update, message);
        }
        for index in copies {
            let row = self.gradients.copies[index];
            let view = row.placed.weight;
            self.updated[index] += 1;
            if view.offset < weight.offset || view.offset + view.bytes > end {
                report.add(place, Rule::Update, format!("updates a part of {} only", row.parameter));
                continue;
            }
            let element = (view.offset - weight.offset).0 / weight.size.max(1);
            let Some([m, v]) = row.placed.moments else {
                let message = format!("updates {}, which takes its weight from another copy", row.place());
                report.add(place, Rule::Update, message);
                continue;
            };
            let wanted = [
                ("gradient", Some(row.placed.landed.unwrap_or(row.placed.gradient)), gradient),
                ("first moment", Some(m), outputs.get(1).copied().flatten()),
                ("second moment", Some(v), outputs.get(2).copied().flatten()),
                ("master", row.placed.master, outputs.get(3).copied().flatten()),
            ];
            if !self.has_landed(row.placed, touches, memory) {
                let message = format!("updates {} before its gradient has landed", row.parameter);
                report.add_related(place, Rule::Update, message, vec![row.place()]);
            }
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
        &mut self,
        place: Entity,
        unit: Unit,
        touches: &Touches,
        touch: &Touch,
        report: &mut Report,
    ) {
        if self.is_exhausted(report) {
            return;
        }
        for &range in touches.reads(touch) {
            self.loaded_by_stage(place, unit.stage, touch.view.buffer, range, report);
        }
    }

    /// Checks that some weights that a pass reads, or reads a copy of, belong to its stage.
    pub(super) fn loaded_by_stage(
        &mut self,
        place: Entity,
        stage: StageId,
        buffer: BufferId,
        (start, end): Interval,
        report: &mut Report,
    ) {
        let copies = &self.gradients.copies[self.gradients.copies_in(buffer, start, end)];
        self.steps += copies.len();
        if let Some(row) = copies.iter().find(|row| !row.placed.stages.contains(&stage)) {
            let message = format!("reads {}, which {stage} does not use", row.parameter);
            report.add_related(place, Rule::Unit, message, vec![row.place()]);
        }
    }

    /// Checks that gradients which leave for the host are complete, and the sum of all copies.
    pub(super) fn leave(
        &mut self,
        place: Entity,
        touch: &Touch,
        touches: &Touches,
        memory: &Memory<'_>,
        report: &mut Report,
    ) {
        if self.is_exhausted(report) {
            return;
        }
        let (full, _) = self.gradients.covered(touch.view.buffer, touches.reads(touch));
        self.steps += full.len();
        for cell in full {
            self.complete(place, cell, memory, report);
            let parameter = self.gradients.cells[cell].parameter;
            if !self.tied[cell] && self.gradients.cells_of[parameter].len() > 1 {
                let message = format!("copies the gradient of {parameter} before its copies are added up");
                report.add(place, Rule::Gradient, message);
            }
        }
    }

    /// Whether what has landed of a copy of a parameter is its gradient.
    fn has_landed(&self, placed: &Placed, touches: &Touches, memory: &Memory<'_>) -> bool {
        let Some(landed) = placed.landed else { return true };
        let (arena, mut segments) = memory.segments(landed);
        segments.all(|index| {
            let segment = memory.segment(arena, index);
            let (Made::Copied(from), Some(to)) = (segment.maker.made, segment.maker.origin) else {
                return false;
            };
            let (from, to) = (touches.list[from as usize].view, touches.list[to as usize].view);
            segment.holds(landed.buffer)
                && from.buffer == placed.gradient.buffer
                && to.buffer == landed.buffer
                && from.offset + landed.offset == to.offset + placed.gradient.offset
        })
    }

    /// Whether instructions and parameters have met so often that the rest is not gone through.
    fn is_exhausted(&mut self, report: &mut Report) -> bool {
        if self.steps > MOST_STEPS && !self.exhausted {
            self.exhausted = true;
            let message =
                format!("parameters and the instructions that touch them make more than {MOST_STEPS} pairs");
            report.add(Entity::Program, Rule::Gradient, message);
        }
        self.exhausted
    }
}

/// Whether a view lies on a device.
fn lies_on(gradients: &Gradients<'_>, view: View, device: DeviceId) -> bool {
    gradients.program.buffers[view.buffer].device == device
}

/// Whether some touches read all of a view.
fn touched_by(numbers: &[u32], touches: &Touches, view: View) -> bool {
    numbers.iter().map(|&number| &touches.list[number as usize]).any(|touch| {
        touch.view.buffer == view.buffer
            && covers(touches.reads(touch), (view.offset.0, view.offset.0 + view.bytes.0))
    })
}

/// Whether one of some ascending intervals contains a range.
fn covers(intervals: &[Interval], (start, end): Interval) -> bool {
    let before = intervals.partition_point(|&(first, _)| first <= start);
    before.checked_sub(1).is_some_and(|index| intervals[index].1 >= end)
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
        StepWork::Tie | StepWork::Load => return,
        StepWork::Norm | StepWork::Clip => StepWork::Norm,
        StepWork::Update => StepWork::Clip,
    };
    let name = work.name();
    for touch in numbers.iter().map(|&number| &touches.list[number as usize]) {
        let is_known = match touch.category {
            Category::Gradients => work != StepWork::Clip,
            Category::Weights | Category::Optimizer => work == StepWork::Update,
            Category::Loaded
            | Category::Activations
            | Category::Communication
            | Category::Workspace
            | Category::Data => false,
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
                Category::Loaded
                | Category::Activations
                | Category::Communication
                | Category::Workspace
                | Category::Data => {
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
