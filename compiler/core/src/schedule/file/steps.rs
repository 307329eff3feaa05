//! The passes of a file as steps, and back.

use super::{FileError, Kind, Op, Report, ScheduleFile};
use crate::schedule::{Problem, Schedule, Step};
use pipec_program::id::{Id, IdVec};
use pipec_program::{DeviceId, MicroBatch, Pass, Slice, StageId, Unit};

impl ScheduleFile {
    /// The same problem with a schedule and what it takes.
    pub fn with(mut self, problem: &Problem, schedule: &Schedule, report: Report) -> Self {
        let chunk = |device: DeviceId, stage: StageId| {
            let chunks = problem.devices().get(device).map_or(&[][..], Vec::as_slice);
            chunks.iter().position(|&each| each == stage).unwrap_or(0) as u32
        };
        let (mut ops, mut pairs) = (Vec::new(), Vec::new());
        for (device, steps) in schedule.devices.iter() {
            let (mut of_device, mut paired) = (Vec::new(), Vec::new());
            for &step in steps {
                if matches!(step, Step::Pair { .. }) {
                    paired.push(of_device.len());
                }
                of_device.extend(step.passes().map(|(pass, unit)| {
                    let (m, i, c) = (unit.micro_batch.0, unit.slice.0, chunk(device, unit.stage));
                    match step {
                        Step::Product(_, part) => Op::Part(pass.into(), m, i, c, part),
                        Step::Pass(..) | Step::Pair { .. } => Op::Whole(pass.into(), m, i, c),
                    }
                }));
            }
            ops.push(of_device);
            pairs.push(paired);
        }
        self.ops = Some(ops);
        self.report = Some(report);
        self.pairs = pairs.iter().any(|paired| !paired.is_empty()).then_some(pairs);
        self
    }

    /// The schedule for a problem of this file.
    ///
    /// # Errors
    /// No `ops`, or passes of what the problem does not have.
    pub fn schedule(&self, problem: &Problem) -> Result<Schedule, FileError> {
        let ops = self.ops.as_ref().ok_or(FileError::NoOps)?;
        if ops.len() != problem.devices().len() {
            return Err(FileError::Devices(ops.len()));
        }
        let none = Vec::new();
        let mut devices = IdVec::new();
        for ((device, stages), ops) in problem.devices().iter().zip(ops) {
            let mut steps = Vec::new();
            for (position, &op) in ops.iter().enumerate() {
                let wrong = FileError::Op(device, position);
                let (kind, m, i, c, part) = match op {
                    Op::Whole(kind, m, i, c) => (kind, m, i, c, None),
                    Op::Part(kind, m, i, c, part) => (kind, m, i, c, Some(part)),
                };
                let stage = *stages.get(c as usize).ok_or(wrong.clone())?;
                let unit = Unit { stage, micro_batch: MicroBatch(m), slice: Slice(i) };
                steps.push(match (kind, part) {
                    (Kind::W, Some(part)) => Step::Product(unit, part),
                    (Kind::F | Kind::B | Kind::BW | Kind::R, Some(_)) => return Err(wrong),
                    (kind, None) => Step::Pass(kind.into(), unit),
                });
            }
            let paired = self.pairs.as_ref().and_then(|pairs| pairs.get(device.index())).unwrap_or(&none);
            devices.push(joined(device, steps, paired)?);
        }
        Ok(Schedule { devices })
    }
}

/// Steps with those at some positions joined with the next.
fn joined(device: DeviceId, steps: Vec<Step>, paired: &[usize]) -> Result<Vec<Step>, FileError> {
    if paired.is_empty() {
        return Ok(steps);
    }
    let mut joined = Vec::with_capacity(steps.len());
    let mut paired = paired.iter().peekable();
    let mut position = 0;
    while let Some(&step) = steps.get(position) {
        if paired.peek().is_some_and(|&&next| next == position) {
            paired.next();
            match (step, steps.get(position + 1)) {
                (Step::Pass(Pass::F, forward), Some(&Step::Pass(pass @ (Pass::B | Pass::BW), backward))) => {
                    joined.push(Step::Pair { forward, backward, pass });
                    position += 2;
                }
                _ => return Err(FileError::Pair(device, position)),
            }
        } else {
            joined.push(step);
            position += 1;
        }
    }
    match paired.next() {
        Some(&position) => Err(FileError::Pair(device, position)),
        None => Ok(joined),
    }
}
