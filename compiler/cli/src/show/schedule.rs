//! The schedule of a program as JSON: the form in which pipeline schedules are checked independently, documented in
//! `docs/schedules.md`.

use pipec_compiler::schedule::{Problem, Report, Scale, Schedule, ScheduleFile, execute};

/// A schedule and what it is made for as JSON, times in nanoseconds and memory in the units of the problem. `lengths` are the
/// tokens of each slice.
pub fn schedule_json(problem: &Problem, schedule: &Schedule, lengths: &[u64]) -> String {
    let scale = Scale { time: 1.0, memory: 1.0 };
    let mut file = ScheduleFile::of(problem, scale);
    if lengths.windows(2).any(|pair| pair[0] != pair[1]) {
        file.lengths = Some(lengths.to_vec());
    }
    // A compiled schedule has been executed, so that it ends.
    let execution = execute(problem, schedule, |step| problem.duration(step));
    let file = match execution {
        Ok(execution) => {
            let report = Report::new(problem, schedule, &execution, scale);
            file.with(problem, schedule, report)
        }
        Err(_) => file,
    };
    // A struct of numbers and strings always serialises.
    serde_json::to_string(&file).unwrap_or_default()
}
