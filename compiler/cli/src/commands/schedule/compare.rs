//! All policies beside each other: a table, and a plot of idle time over memory.

use super::{Failure, ScheduleArguments, executed, file, policy, problem};
use crate::files;
use crate::report::Reporter;
use crate::show::{self, Curve, Point};
use pipec_compiler::schedule::{Effort, Placement, Policy, Problem, Scale, coarser, explore, order, peaks};
use std::path::Path;

/// What a policy does with the sizes of the arguments, all of which it need not use.
struct Compared {
    chunks: u32,
    slices: u32,
    makespan: f64,
    bubble: f64,
    window: f64,
    memory: f64,
}

/// One line per policy. Times and memory are those of the same work, whatever pieces a policy cuts it into.
pub(super) fn table(arguments: &ScheduleArguments, reporter: Reporter) -> Result<(), Failure> {
    let (finest, scale) = finest(arguments, reporter)?;
    println!(
        "{:<14}{:>3}{:>3}{:>10}{:>10}{:>10}{:>10}",
        "policy", "v", "s", "makespan", "bubble", "window", "memory"
    );
    for (name, _) in Policy::ALL {
        let policy = policy(arguments, name, reporter)?;
        let most = policy.most(finest.chunks(), finest.slices());
        match compared(&finest, scale, policy, most, reporter)? {
            Ok(Compared { chunks, slices, makespan, bubble, window, memory }) => println!(
                "{name:<14}{chunks:>3}{slices:>3}{makespan:>10.2}{:>9.2} %{:>9.2} %{memory:>8.4} A",
                100.0 * bubble,
                100.0 * window,
            ),
            Err(refusal) => println!("{name:<14}{refusal}"),
        }
    }
    Ok(())
}

/// The problem of the arguments in its smallest pieces.
fn finest(arguments: &ScheduleArguments, reporter: Reporter) -> Result<(Problem, Scale), Failure> {
    let mut file = file(arguments, None, reporter)?;
    if arguments.problem.is_none() && arguments.virtual_stages.is_none() {
        file.chunks = 2;
    }
    problem(&file, reporter)
}

/// The figures of a policy with so many stages per device and slices, or why there are none.
fn compared(
    finest: &Problem,
    scale: Scale,
    policy: Policy,
    (chunks, slices): (u32, u32),
    reporter: Reporter,
) -> Result<Result<Compared, String>, Failure> {
    let Some(problem) = coarser(finest, policy.placement(), chunks, slices) else {
        return Ok(Err(format!(
            "{} stages per device and {} slices do not join to {chunks} and {slices}",
            finest.chunks(),
            finest.slices()
        )));
    };
    let schedule = match order(policy, &problem) {
        Ok(schedule) => schedule,
        Err(refusal) => return Ok(Err(refusal.to_string())),
    };
    let execution = executed(&problem, &schedule, reporter)?;
    let peak = peaks(&problem, &schedule).values().copied().max().unwrap_or(0);
    Ok(Ok(Compared {
        chunks,
        slices,
        makespan: execution.makespan() as f64 / scale.time,
        bubble: execution.bubble(),
        window: execution.window_bubble(),
        memory: peak as f64 / scale.memory,
    }))
}

/// Writes the plot of all policies with every number of slices that is a power of two, and of `auto` under caps from one
/// micro-batch to one and a half.
pub(super) fn plot(arguments: &ScheduleArguments, path: &Path, reporter: Reporter) -> Result<(), Failure> {
    let (finest, scale) = finest(arguments, reporter)?;
    let powers = || (0..32).map(|power| 1_u32 << power).take_while(|&slices| slices <= finest.slices());
    let mut points = Vec::new();
    for (name, _) in Policy::ALL {
        let policy = policy(arguments, name, reporter)?;
        for slices in powers() {
            let most = policy.most(finest.chunks(), slices);
            if most.1 != slices {
                continue;
            }
            if let Ok(found) = compared(&finest, scale, policy, most, reporter)? {
                let name = if slices > 1 { format!("{name} s={slices}") } else { name.to_owned() };
                points.push(Point { name, memory: found.memory, bubble: found.bubble });
            }
        }
    }
    let mut curves = Vec::new();
    for slices in powers() {
        let placement = Placement::Loop;
        let Some(mut joined) = coarser(&finest, placement, finest.chunks(), slices) else { continue };
        let least = 1.0 / f64::from(arguments.devices);
        let mut line = Vec::new();
        for step in 0..=STEPS {
            let memory = least * (MOST_MEMORY / least).powf(f64::from(step) / f64::from(STEPS));
            let cap = (memory * scale.memory * (1.0 + 1e-12)).floor() as u64;
            joined.caps = Some(joined.devices().values().map(|_| cap).collect());
            let Ok((problem, schedule)) = explore(&joined, Effort::Least) else { continue };
            let peak = peaks(&problem, &schedule).values().copied().max().unwrap_or(0);
            line.push((peak as f64 / scale.memory, executed(&problem, &schedule, reporter)?.bubble()));
        }
        let line = improving(line);
        let name =
            if slices > 1 { format!("auto, up to {slices} slices") } else { "auto, no slices".to_owned() };
        curves.push(Curve { name, line });
    }
    let costs: String = arguments.costs.iter().map(|cost| format!(", {cost}")).collect();
    let title = format!(
        "{} devices, up to {} stages each, {} micro-batches{costs}",
        arguments.devices,
        finest.chunks(),
        arguments.microbatches
    );
    let svg = show::memory_plot(&title, &points, &curves);
    files::write(Some(path), svg.as_bytes()).map_err(|error| Failure::file(reporter, path, &error))
}

/// The right end of the line of `auto`, in micro-batches.
const MOST_MEMORY: f64 = 1.5;

/// Caps on the line of `auto`, besides the first.
const STEPS: u32 = 20;

/// Of memory and idle shares those that no other with at most the memory is below, memory ascending.
fn improving(mut line: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    line.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let mut least = f64::INFINITY;
    line.retain(|&(_, bubble)| {
        let improves = bubble < least;
        least = least.min(bubble);
        improves
    });
    line
}
