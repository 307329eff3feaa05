//! A schedule without a program: the text grid of its in-order execution, and its figures.

use super::axis::percent;
use pipec_compiler::schedule::{Execution, Problem, Report, Schedule, Step};
use pipec_program::{DeviceId, Pass, Unit};

/// The most columns of a grid in which every label has its room, and those of a grid that would need more.
const MOST_COLUMNS: u64 = 4096;
const SCALED_COLUMNS: u64 = 200;

/// The grid: devices down, time across, in the times of the problem. A box reads `F3` (pass and micro-batch), `F3.1` with
/// slices, `F3b` for the second chunk of a device, and `F3+B1b` for a pair; `B` is B or BW. Dots are idle time.
pub fn order_grid(problem: &Problem, schedule: &Schedule, execution: &Execution) -> String {
    let spans = || execution.devices.values().flatten();
    let tick = spans().flat_map(|&(start, end)| [start, end]).fold(0, divisor).max(1);
    let widest = schedule
        .devices
        .iter()
        .flat_map(|(device, steps)| steps.iter().zip(&execution.devices[device]).map(move |at| (device, at)))
        .map(|(device, (step, (start, end)))| {
            let ticks = ((end - start) / tick).max(1);
            (label(problem, device, *step).len() as u64 + 1).div_ceil(ticks)
        })
        .max()
        .unwrap_or(1);
    let makespan = execution.makespan().max(1);
    let columns = Some((makespan / tick).saturating_mul(widest).max(1));
    let columns = columns.filter(|&columns| columns <= MOST_COLUMNS).unwrap_or(SCALED_COLUMNS);
    let column = |time: u64| (u128::from(time) * u128::from(columns) / u128::from(makespan)) as usize;
    let mut text = String::new();
    for (device, steps) in schedule.devices.iter() {
        let mut line = vec!['.'; columns as usize];
        for (step, &(start, end)) in steps.iter().zip(&execution.devices[device]) {
            let cells = &mut line[column(start)..column(end)];
            let label = label(problem, device, *step);
            let filler = std::iter::repeat_n('-', cells.len().saturating_sub(label.len() + 1)).chain([' ']);
            for (cell, letter) in cells.iter_mut().zip(label.chars().chain(filler)) {
                *cell = letter;
            }
        }
        let line: String = line.into_iter().collect();
        text += &format!("{:<4} {}\n", device.to_string(), line.trim_end());
    }
    text
}

/// `makespan 33, bubble 27.3 %, ...`: time and memory in the units of the problem file.
pub fn order_summary(report: &Report) -> String {
    let buffers = |found: Option<u32>| found.map_or("out of order".to_owned(), |found| found.to_string());
    format!(
        "makespan {}, bubble {}, window bubble {}, peak memory {:.4} A\nmessages that channels must hold: {} per pair of devices, {} per stage\n",
        short(report.makespan),
        percent(report.bubble),
        percent(report.bubble_window),
        report.peak_memory,
        buffers(report.min_send_buffers_per_pair),
        buffers(report.min_send_buffers_per_kind),
    )
}

/// `makespan 35, bubble 8.6 %`: a makespan in units of the user, and the idle time of an execution.
pub fn order_times(makespan: f64, execution: &Execution) -> String {
    format!(
        "makespan {}, bubble {}, window bubble {}\n",
        short(makespan),
        percent(execution.bubble()),
        percent(execution.window_bubble())
    )
}

/// A number with at most four digits after the point.
pub(super) fn short(number: f64) -> String {
    let text = format!("{number:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { divisor(b, a % b) }
}

fn label(problem: &Problem, device: DeviceId, step: Step) -> String {
    let chunks = problem.devices().get(device).map_or(&[][..], Vec::as_slice);
    let of = |letter: &str, unit: Unit| {
        let slice = if problem.slices() > 1 { format!(".{}", unit.slice.0) } else { String::new() };
        let chunk = chunks.iter().position(|&stage| stage == unit.stage).unwrap_or(0);
        let chunk = match u8::try_from(chunk) {
            Ok(0) => String::new(),
            Ok(chunk @ 1..=25) => char::from(b'a' + chunk).to_string(),
            Ok(_) | Err(_) => format!("c{chunk}"),
        };
        format!("{letter}{}{slice}{chunk}", unit.micro_batch.0)
    };
    let letter = |pass: Pass| match pass {
        Pass::F => "F",
        Pass::B | Pass::BW => "B",
        Pass::W => "W",
        Pass::R => "R",
    };
    match step {
        Step::Pass(pass, unit) => of(letter(pass), unit),
        Step::Product(unit, part) => format!("{}/{part}", of("W", unit)),
        Step::Pair { forward, backward, pass } => {
            format!("{}+{}", of("F", forward), of(letter(pass), backward))
        }
    }
}
