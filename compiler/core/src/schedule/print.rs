//! A schedule as a grid of text: devices down, steps across.

use super::{Problem, Schedule, Step, execute};
use pipec_program::id::Id;
use pipec_program::{DeviceId, Pass, Unit};
use std::fmt::Write;

/// The grid of a schedule in which every step takes one cell and messages none: `F2.3` is the forward pass of stage 2
/// for micro-batch 3, `W2.3/1` its GEMM 1, `F2.4+B2.3` a pair, `.` an idle cell; with slices, `F2.3.0`. A schedule that
/// deadlocks is printed without idle cells.
pub fn print(problem: &Problem, schedule: &Schedule) -> String {
    let mut instant = problem.clone();
    instant.delay = 0;
    let execution = execute(&instant, schedule, |_| 1).ok();
    let rows: Vec<Vec<String>> = schedule
        .devices
        .iter()
        .map(|(device, steps)| {
            let mut row = Vec::new();
            for (position, step) in steps.iter().enumerate() {
                let start =
                    execution.as_ref().map(|execution| execution.devices[device][position].0 as usize);
                row.resize(start.unwrap_or(position), ".".to_owned());
                row.push(cell(*step, problem.slices() > 1));
            }
            row
        })
        .collect();
    let width = rows.iter().flatten().map(String::len).max().unwrap_or(0);
    let mut text = String::new();
    for (device, row) in rows.iter().enumerate() {
        let mut line = format!("{:<4}", DeviceId::new(device).to_string());
        for cell in row {
            write!(line, " {cell:<width$}").expect("text takes all writes");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn cell(step: Step, sliced: bool) -> String {
    let unit = |pass: Pass, unit: Unit| {
        let slice = if sliced { format!(".{}", unit.slice.0) } else { String::new() };
        format!("{}{}.{}{slice}", pass.name(), unit.stage.0, unit.micro_batch.0)
    };
    match step {
        Step::Pass(pass, of) => unit(pass, of),
        Step::Product(of, part) => format!("{}/{part}", unit(Pass::W, of)),
        Step::Pair { forward, backward, pass } => {
            format!("{}+{}", unit(Pass::F, forward), unit(pass, backward))
        }
    }
}
