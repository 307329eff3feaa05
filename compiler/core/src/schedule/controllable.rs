//! V-Half and V-Min: two stages per device, forth and back, and one block of six slots per micro-batch and device, repeated
//! every six slots (Qi et al. 2024, "Pipeline Parallelism with Controllable Memory").
//!
//! The block says when F and B of both stages start; W takes the first free slot after its B. In-order execution then
//! closes the gaps of the beginning and the end. Memory: V-Half keeps `floor((p + 2) / 2) / p`, V-Min
//! `floor((p + 4) / 3) / p` of a micro-batch.

use super::{Problem, Refusal, Schedule, Step, require};
use pipec_program::id::Id;
use pipec_program::{DeviceId, MicroBatch, Pass, Slice, StageId, Unit};
use std::collections::VecDeque;

/// Half the memory of 1F1B.
pub(super) fn v_half(problem: &Problem) -> Result<Schedule, Refusal> {
    let p = problem.devices().len();
    let gap = if p.is_multiple_of(2) { 3 } else { 0 };
    repeat(problem, |r| [2 * r, 3 * p - r - 2, 3 * p + gap + 2 * r - 1, 6 * p + gap - r - 2])
}

/// A third of the memory of 1F1B.
pub(super) fn v_min(problem: &Problem) -> Result<Schedule, Refusal> {
    let p = problem.devices().len();
    let gap = if p.is_multiple_of(3) { 2 } else { 0 };
    repeat(problem, |r| [r, 2 * p - r - 1, 2 * p + gap + r, 4 * p + gap - r - 1])
}

/// The passes of a block besides W, each with its chunk.
const BLOCK: [(Pass, usize); 4] = [(Pass::F, 0), (Pass::F, 1), (Pass::B, 1), (Pass::B, 0)];

/// Slots of a block.
const PERIOD: usize = 6;

/// `block(rank)`: the slots of the passes of [`BLOCK`] for micro-batch 0, all different modulo [`PERIOD`].
fn repeat(problem: &Problem, block: impl Fn(usize) -> [usize; 4]) -> Result<Schedule, Refusal> {
    require::zigzag(problem)?;
    require::chunks(problem, 2)?;
    require::slices(problem, 1)?;
    let n = problem.micro_batches() as usize;
    let device = |(device, stages): (DeviceId, &Vec<StageId>)| {
        let starts = block(device.index());
        let end = starts.into_iter().max().unwrap_or(0) + PERIOD * n;
        let mut slots: Vec<Option<(Pass, Unit)>> = vec![None; end];
        for (start, (pass, chunk)) in starts.into_iter().zip(BLOCK) {
            for micro_batch in 0..n {
                let unit =
                    Unit { stage: stages[chunk], micro_batch: MicroBatch::new(micro_batch), slice: Slice(0) };
                slots[start + PERIOD * micro_batch] = Some((pass, unit));
            }
        }
        let mut steps = Vec::with_capacity(PERIOD * n);
        let mut waiting = VecDeque::new();
        for slot in slots {
            match slot {
                Some((pass, unit)) => {
                    if pass == Pass::B {
                        waiting.push_back(unit);
                    }
                    steps.push(Step::Pass(pass, unit));
                }
                None => steps.extend(waiting.pop_front().map(|unit| Step::Pass(Pass::W, unit))),
            }
        }
        steps.extend(waiting.into_iter().map(|unit| Step::Pass(Pass::W, unit)));
        steps
    };
    Ok(Schedule { devices: problem.devices().iter().map(device).collect() })
}
