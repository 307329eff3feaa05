//! Where gradients are, and that every pass that uses a parameter adds to its gradient exactly once.
//!
//! A *cell* is the range of a buffer that holds the gradient of a parameter on a device; copies may share one. Which
//! passes add to which cell is found for every distinct touch, not for every call.

use super::function::Interval;
use super::touch::{Touch, Touches};
use super::unit;
use super::{Report, Rule};
use crate::entity::Entity;
use crate::id::{BufferId, DeviceId, IdVec, ParameterId, StageId};
use crate::program::{Batch, Category, Pass, Placed, Program, View};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The most pairs of a distinct touch and a cell.
const MOST_PAIRS: usize = 1 << 26;

/// The gradient of a parameter on a device.
#[derive(Debug)]
pub(super) struct Cell {
    pub(super) view: View,
    pub(super) device: DeviceId,
    pub(super) parameter: ParameterId,
    stages: Vec<StageId>,
    /// The contributions that the passes of the program make to it.
    pub(super) planned: u64,
}

/// A copy of a parameter.
#[derive(Clone, Copy, Debug)]
pub(super) struct CopyRow<'a> {
    pub(super) parameter: ParameterId,
    copy: u32,
    pub(super) placed: &'a Placed,
}

impl CopyRow<'_> {
    pub(super) fn place(&self) -> Entity {
        Entity::Copy(self.parameter, self.copy)
    }
}

/// What the program says about gradients before it runs.
#[derive(Debug)]
pub(super) struct Gradients<'a> {
    pub(super) program: &'a Program,
    /// Ascending by buffer and offset, without overlap.
    pub(super) cells: Vec<Cell>,
    pub(super) cells_of: IdVec<ParameterId, Vec<usize>>,
    /// Ascending by the place of the weight, without overlap.
    pub(super) copies: Vec<CopyRow<'a>>,
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
    pub(super) fn covered(&self, buffer: BufferId, intervals: &[Interval]) -> (Vec<usize>, Option<usize>) {
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

    /// The copies whose weight has bytes in a range of a buffer, as positions in [`Gradients::copies`].
    pub(super) fn copies_in(&self, buffer: BufferId, start: u64, end: u64) -> Range<usize> {
        let first = self.copies.partition_point(|row| {
            let view = row.placed.weight;
            (view.buffer, (view.offset + view.bytes).0) <= (buffer, start)
        });
        let count = self.copies[first..]
            .partition_point(|row| row.placed.weight.buffer == buffer && row.placed.weight.offset.0 < end);
        first..first + count
    }

    /// The cell of a view, if it is one.
    pub(super) fn cell(&self, view: View) -> Option<usize> {
        self.cells.binary_search_by_key(&view, |cell| cell.view).ok()
    }

    fn contributions(&mut self, touches: &Touches, report: &mut Report) {
        let program = self.program;
        let batch = program.batch;
        let mut units_of: Vec<Vec<u32>> = touches.list.iter().map(|_| Vec::new()).collect();
        for (queue, row) in program.queues.iter() {
            for (position, instruction) in (0u32..).zip(&row.instructions) {
                let halves = unit::passes(program, instruction).into_iter().flatten();
                for half in halves.filter(|half| adds(half.pass)) {
                    for &number in &touches.of(queue, position)[half.views()] {
                        if contributes(touches, &touches.list[number as usize]) {
                            // A program of more units than instructions is reported elsewhere.
                            units_of[number as usize].push(unit::number(batch, half.unit) as u32);
                        }
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

/// Whether a pass adds to gradients.
pub(super) fn adds(pass: Pass) -> bool {
    match pass {
        Pass::B | Pass::W | Pass::BW => true,
        Pass::F | Pass::R => false,
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
    // Stages of a forward cut read the weights and add nothing.
    stages.retain(|&stage| batch.runs(Pass::BW, stage));
    let of_stage = |stage: &StageId| u64::from(batch.micro_batches_of(*stage)) * u64::from(batch.slices);
    let expected: u64 = stages.iter().map(of_stage).sum();
    if units.len() as u64 == expected {
        return None;
    }
    // Without doubles and strangers, the first number that is not there is missing.
    let first = stages.iter().find_map(|stage| {
        let start = u64::from(stage.0) * per_stage;
        let meets = |&number: &u64| batch.meets(*stage, unit::unit(batch, number as usize).micro_batch);
        let mut numbers = (start..start + per_stage).filter(meets);
        numbers.find(|&number| units.binary_search(&(number as u32)).is_err())
    });
    let first = first.map(|number| unit::unit(batch, number as usize))?;
    Some(format!(
        "its gradient gets {} of {expected} contributions in a step; the first that is missing is that of {first}",
        units.len()
    ))
}
