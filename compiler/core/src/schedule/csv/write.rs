//! Writing: passes, and for `compute_comms` the messages that they need.

use super::{CsvError, Dialect};
use crate::schedule::{Problem, Schedule, Step};
use pipec_program::id::{Id, IdVec};
use pipec_program::{DeviceId, Pass, StageId, Unit};

/// The file of a schedule. `lossy` leaves recomputations out and joins the parts of weight gradients.
///
/// Idle time is not written. Messages stand in one order at both ends, as all of them are placed in the order of one
/// execution: a send after the pass that makes it, its receive in the other row at that moment.
///
/// # Errors
/// What the file cannot say; with messages, a schedule that deadlocks.
pub fn write(
    problem: &Problem,
    schedule: &Schedule,
    dialect: Dialect,
    lossy: bool,
) -> Result<String, CsvError> {
    if problem.slices() != 1 {
        return Err(CsvError::Slices(problem.slices()));
    }
    if problem.copies() != 1 {
        return Err(CsvError::Copies(problem.copies()));
    }
    if problem.forward_stages().is_some() {
        return Err(CsvError::Cuts);
    }
    let said = schedule.devices.values().map(|steps| said(problem, steps, lossy));
    let devices: IdVec<DeviceId, Vec<Step>> = said.collect::<Result<Vec<_>, _>>()?.into();
    if let Some((device, _)) = devices.iter().find(|(_, steps)| steps.is_empty()) {
        return Err(CsvError::Idle(device));
    }
    let rows = match dialect {
        Dialect::ComputeOnly => {
            devices.values().map(|steps| steps.iter().map(|step| cell(*step)).collect()).collect()
        }
        Dialect::ComputeComms => with_messages(problem, &devices)?,
    };
    Ok(rows.iter().map(|row: &Vec<String>| row.join(",") + "\n").collect())
}

/// The steps of a device that the file has words for.
fn said(problem: &Problem, steps: &[Step], lossy: bool) -> Result<Vec<Step>, CsvError> {
    let mut said = Vec::with_capacity(steps.len());
    for &step in steps {
        let lost = match step {
            Step::Pass(Pass::R, unit) => Some(CsvError::Recomputation(unit)),
            Step::Product(unit, part) => {
                // The whole stands where the last part stood.
                if lossy && part + 1 == problem.weight_parts {
                    said.push(Step::Pass(Pass::W, unit));
                }
                Some(CsvError::Part(unit))
            }
            Step::Pass(Pass::F | Pass::B | Pass::W | Pass::BW, _) | Step::Pair { .. } => None,
        };
        match lost {
            Some(lost) if !lossy => return Err(lost),
            Some(_) => {}
            None => said.push(step),
        }
    }
    Ok(said)
}

fn cell(step: Step) -> String {
    let action = |pass: Pass, unit: Unit| {
        let kind = match pass {
            Pass::F => "F",
            Pass::B => "I",
            Pass::W => "W",
            Pass::BW => "B",
            Pass::R => "R",
        };
        format!("{}{kind}{}", unit.stage.0, unit.micro_batch.0)
    };
    match step {
        Step::Pass(pass, unit) => action(pass, unit),
        Step::Product(unit, _) => action(Pass::W, unit),
        Step::Pair { forward, backward, pass } => {
            format!("({};{})OVERLAP_F_B", action(Pass::F, forward), action(pass, backward))
        }
    }
}

/// Which passes are done, and whose results the other device has.
struct Done {
    forward: Vec<bool>,
    backward: Vec<bool>,
}

impl Done {
    fn ready(&self, problem: &Problem, step: Step) -> bool {
        let made = |table: &[bool], stage: Option<StageId>, unit: Unit| {
            stage.is_none_or(|stage| table[problem.unit_index(Unit { stage, ..unit })])
        };
        step.passes().all(|(pass, unit)| match pass {
            Pass::F => made(&self.forward, problem.before(unit.stage), unit),
            Pass::B | Pass::BW => {
                made(&self.backward, problem.after(unit.stage), unit)
                    && made(&self.forward, Some(unit.stage), unit)
            }
            Pass::W | Pass::R => true,
        })
    }
}

/// Rows of all actions that torch 2.15 asks for.
fn with_messages(
    problem: &Problem,
    devices: &IdVec<DeviceId, Vec<Step>>,
) -> Result<Vec<Vec<String>>, CsvError> {
    let mut done = Done { forward: vec![false; problem.units()], backward: vec![false; problem.units()] };
    let mut rows: IdVec<DeviceId, Vec<String>> = problem
        .devices()
        .values()
        .map(|stages| stages.iter().map(|stage| format!("{}UNSHARD", stage.0)).collect())
        .collect();
    let mut waits: IdVec<DeviceId, Vec<String>> = devices.values().map(|_| Vec::new()).collect();
    let mut left: IdVec<StageId, usize> = problem.stages().map(|_| 0).collect();
    for (pass, unit) in devices.values().flatten().flat_map(|step| step.passes()) {
        left[unit.stage] += usize::from(matches!(pass, Pass::W | Pass::BW));
    }
    let mut next: IdVec<DeviceId, usize> = devices.values().map(|_| 0).collect();
    loop {
        let mut moved = false;
        for device in devices.ids() {
            let Some(&step) = devices[device].get(next[device]).filter(|step| done.ready(problem, **step))
            else {
                continue;
            };
            (next[device], moved) = (next[device] + 1, true);
            rows[device].push(cell(step));
            for (pass, unit) in step.passes() {
                let (table, to, kind) = match pass {
                    Pass::F => (&mut done.forward, problem.after(unit.stage), "F"),
                    Pass::B | Pass::BW => (&mut done.backward, problem.before(unit.stage), "B"),
                    Pass::W | Pass::R => {
                        finish(&mut left, &mut rows[device], pass, unit);
                        continue;
                    }
                };
                table[problem.unit_index(unit)] = true;
                let (stage, micro_batch) = (unit.stage.0, unit.micro_batch.0);
                if kind == "B"
                    && problem.after(unit.stage).is_some_and(|after| problem.device(after) != device)
                {
                    // The gradient is here, so the output has arrived long ago.
                    rows[device].push(format!("{stage}WAIT_SEND_F{micro_batch}"));
                }
                if let Some(to) = to.filter(|&to| problem.device(to) != device) {
                    rows[device].push(format!("{stage}SEND_{kind}{micro_batch}"));
                    rows[problem.device(to)].push(format!("{}RECV_{kind}{micro_batch}", to.0));
                    if kind == "B" {
                        waits[device].push(format!("{stage}WAIT_SEND_B{micro_batch}"));
                    }
                }
                finish(&mut left, &mut rows[device], pass, unit);
            }
        }
        if !moved {
            break;
        }
    }
    if let Some((device, _)) = devices.iter().find(|(device, steps)| next[*device] < steps.len()) {
        return Err(CsvError::Deadlock(device));
    }
    for (device, row) in rows.iter_mut() {
        row.extend(std::mem::take(&mut waits[device]));
        row.extend(problem.devices()[device].iter().map(|stage| format!("{}RESHARD", stage.0)));
    }
    Ok(rows.values().cloned().collect())
}

/// Reduces the gradients of a stage after its last weight gradient.
fn finish(left: &mut IdVec<StageId, usize>, row: &mut Vec<String>, pass: Pass, unit: Unit) {
    if !matches!(pass, Pass::W | Pass::BW) {
        return;
    }
    left[unit.stage] -= 1;
    if left[unit.stage] == 0 {
        let stage = unit.stage.index();
        row.extend([format!("{stage}REDUCE_GRAD"), format!("{stage}WAIT_REDUCE_GRAD")]);
    }
}
