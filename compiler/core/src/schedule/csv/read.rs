//! Reading: the passes of a file, of either dialect.

use super::CsvError;
use crate::schedule::{Cost, Problem, Schedule, Step};
use pipec_program::id::{Id, IdVec};
use pipec_program::{DeviceId, MicroBatch, Pass, Slice, StageId, Unit};

/// Reads the passes of a file of either dialect, with a problem of unit costs for them. Messages, waits and reductions
/// are known words that say nothing new, as they follow from the passes. Whether the schedule is whole and ends is for
/// `schedule::verify` to say.
///
/// # Errors
/// A cell that is no action, a stage in two rows, a stage number that is left out.
pub fn read(text: &str) -> Result<(Problem, Schedule), CsvError> {
    let mut devices = IdVec::new();
    let mut place: Vec<Option<usize>> = Vec::new();
    let mut micro_batches = 0;
    for (row, line) in text.lines().enumerate() {
        let mut steps = Vec::new();
        for (column, cell) in line.split(',').enumerate() {
            let cell = cell.trim();
            if cell.is_empty() {
                continue;
            }
            let wrong = || CsvError::Cell { row: row + 1, column: column + 1, text: cell.to_owned() };
            steps.extend(action(cell).ok_or_else(wrong)?);
        }
        for (_, unit) in steps.iter().flat_map(|step: &Step| step.passes()) {
            let stage = unit.stage.index();
            if place.len() <= stage {
                place.resize(stage + 1, None);
            }
            if let Some(other) = place[stage].filter(|&other| other != row) {
                return Err(CsvError::TwoRows { stage: unit.stage.0, rows: [other + 1, row + 1] });
            }
            place[stage] = Some(row);
            micro_batches = micro_batches.max(unit.micro_batch.0 + 1);
        }
        devices.push(steps);
    }
    let of_row = |row: usize| {
        let stages = place.iter().enumerate().filter(move |(_, place)| **place == Some(row));
        stages.map(|(stage, _)| StageId::new(stage)).collect()
    };
    let placed: IdVec<DeviceId, Vec<StageId>> = (0..devices.len()).map(of_row).collect();
    let costs = vec![Cost::UNIT; placed.values().map(Vec::len).sum()];
    let problem = Problem::new(1, placed, micro_batches, 1, costs).map_err(CsvError::Problem)?;
    Ok((problem, Schedule { devices }))
}

/// The largest stage or micro-batch that is read.
const MOST: u32 = 1 << 16;

/// What a cell means: a step, or none for messages and the like. None if it is no action.
fn action(cell: &str) -> Option<Option<Step>> {
    if let Some(pair) = cell.strip_prefix('(') {
        let (forward, backward) = pair.strip_suffix(")OVERLAP_F_B")?.split_once(';')?;
        let (Step::Pass(Pass::F, forward), Step::Pass(pass @ (Pass::B | Pass::BW), backward)) =
            (action(forward.trim())??, action(backward.trim())??)
        else {
            return None;
        };
        return Some(Some(Step::Pair { forward, backward, pass }));
    }
    let (stage, rest) = number(cell)?;
    let kind = rest.trim_end_matches(|letter: char| letter.is_ascii_digit());
    let micro_batch = match &rest[kind.len()..] {
        "" => None,
        digits => Some(number(digits)?.0),
    };
    let pass = match kind {
        "F" => Pass::F,
        "I" => Pass::B,
        "W" => Pass::W,
        "B" => Pass::BW,
        "SEND_F" | "RECV_F" | "SEND_B" | "RECV_B" | "WAIT_SEND_F" | "WAIT_SEND_B" => {
            return micro_batch.map(|_| None);
        }
        "UNSHARD" | "RESHARD" | "REDUCE_GRAD" | "WAIT_REDUCE_GRAD" => {
            return micro_batch.is_none().then_some(None);
        }
        _ => return None,
    };
    let unit = Unit { stage: StageId(stage), micro_batch: MicroBatch(micro_batch?), slice: Slice(0) };
    Some(Some(Step::Pass(pass, unit)))
}

/// The number that a text starts with, and the rest.
fn number(text: &str) -> Option<(u32, &str)> {
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let number = text[..end].parse().ok().filter(|&number| number < MOST)?;
    Some((number, &text[end..]))
}
