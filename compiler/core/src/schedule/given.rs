//! Schedules in files, as `.pipe` files name them.
//!
//! A file is read twice: once for its sizes and its placement, which the specification is resolved with, and once for its
//! passes, when the problem of the plan is known. What only matters to the problem in the file, times and memory, is
//! passed over: they are those of the plan.

use super::{Placement, Problem, Schedule, ScheduleFile, Step, csv, verify};
use crate::spec::{Given, GivenForm};
use pipec_program::{DeviceId, Pass, StageId};

/// The most faults of a schedule that are told.
const MOST_TOLD: usize = 3;

/// What a file at a path says about its sizes: CSV by its ending, or else JSON.
///
/// # Errors
/// What is wrong with it, in words.
pub fn read(path: &str, text: &str) -> Result<Given, String> {
    let form = if path.ends_with(".csv") { GivenForm::Csv } else { GivenForm::Json };
    let Parsed { problem, lengths, schedule: _ } = parse(form, text)?;
    let placement = placement(&problem).ok_or(
        "its stages stand neither in a loop nor forth and back nor in two directions over the devices",
    )?;
    Ok(Given {
        form,
        text: text.to_owned(),
        devices: problem.devices().len() as u32,
        virtual_stages: problem.chunks() / problem.copies(),
        slices: problem.slices(),
        lengths,
        micro_batches: problem.micro_batches(),
        placement,
    })
}

/// The order of a file for the problem of a plan, which takes over into how many parts weight gradients are cut.
///
/// # Errors
/// What is wrong with it, in words.
pub fn order(given: &Given, problem: &mut Problem) -> Result<Schedule, String> {
    let Parsed { problem: found, schedule, lengths: _ } = parse(given.form, &given.text)?;
    let steps = || schedule.devices.values().flatten();
    if let Some(step) = steps().find(|step| matches!(step, Step::Pass(Pass::R, _))) {
        return Err(format!("{step} recomputes, which pipec does not do"));
    }
    if steps().any(|step| matches!(step, Step::Product(..))) {
        problem.weight_parts = found.weight_parts;
    }
    let faults = verify(problem, &schedule);
    if faults.is_empty() {
        return Ok(schedule);
    }
    let mut told: Vec<String> = faults.iter().take(MOST_TOLD).map(ToString::to_string).collect();
    if faults.len() > MOST_TOLD {
        told.push(format!("and {} more", faults.len() - MOST_TOLD));
    }
    Err(told.join("; "))
}

/// What stands in a file.
struct Parsed {
    problem: Problem,
    schedule: Schedule,
    lengths: Option<Vec<u64>>,
}

fn parse(form: GivenForm, text: &str) -> Result<Parsed, String> {
    match form {
        GivenForm::Csv => {
            let (problem, schedule) = csv::read(text).map_err(|error| error.to_string())?;
            Ok(Parsed { problem, schedule, lengths: None })
        }
        GivenForm::Json => {
            let file: ScheduleFile = serde_json::from_str(text).map_err(|error| error.to_string())?;
            let (problem, _) = file.problem().map_err(|error| error.to_string())?;
            let schedule = file.schedule(&problem).map_err(|error| error.to_string())?;
            Ok(Parsed { problem, schedule, lengths: file.lengths })
        }
    }
}

/// Which of the usual placements a problem has.
fn placement(problem: &Problem) -> Option<Placement> {
    let sorted = |stages: &Vec<StageId>| {
        let mut stages = stages.clone();
        stages.sort();
        stages
    };
    let (devices, copies) = (problem.devices().len() as u32, problem.copies());
    let (n, s) = (problem.micro_batches(), problem.slices());
    [Placement::Loop, Placement::Zigzag, Placement::Bidirectional].into_iter().find(|&placement| {
        let usual = Problem::uniform(placement, devices, problem.chunks() / copies, n, s);
        placement.copies() == copies
            && usual.is_ok_and(|usual| {
                let same = |(device, stages): (DeviceId, &Vec<StageId>)| {
                    usual.devices().get(device).map(sorted) == Some(sorted(stages))
                };
                problem.devices().iter().all(same)
            })
    })
}
