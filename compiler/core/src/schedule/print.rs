//! A schedule as a grid of text: devices down, steps across.

use super::{Schedule, Step, execute};
use crate::plan::Plan;
use pipec_program::id::Id;
use std::fmt::Write;

/// The grid of a schedule in which every pass takes one step and messages none: `F2.3` is the forward pass of stage 2
/// for micro-batch 3, `.` an idle step; with slices, `F2.3.0`. A schedule that deadlocks is printed without idle steps.
pub fn print(plan: &Plan, schedule: &Schedule) -> String {
    let execution = execute(plan, schedule, |_| 1).ok();
    let cell = |step: &Step| {
        let unit = step.unit;
        let slice = if plan.slices > 1 { format!(".{}", unit.slice.0) } else { String::new() };
        format!("{}{}.{}{slice}", step.pass.name(), unit.stage.0, unit.micro_batch.0)
    };
    let rows: Vec<Vec<String>> = schedule
        .devices
        .iter()
        .map(|(device, steps)| {
            let mut row = Vec::new();
            for (position, step) in steps.iter().enumerate() {
                let start =
                    execution.as_ref().map(|execution| execution.devices[device][position].0 as usize);
                row.resize(start.unwrap_or(position), ".".to_owned());
                row.push(cell(step));
            }
            row
        })
        .collect();
    let width = rows.iter().flatten().map(String::len).max().unwrap_or(0);
    let mut text = String::new();
    for (device, row) in rows.iter().enumerate() {
        let mut line = format!("{:<4}", pipec_program::DeviceId::new(device).to_string());
        for cell in row {
            write!(line, " {cell:<width$}").expect("text takes all writes");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
