//! `pipec run`: trains a model, with a progress line, metrics, checkpoints and a measured timeline.

use super::{Failure, load};
use crate::arguments::{DeviceChoice, RunArguments};
use crate::files;
use crate::report::Reporter;
use crate::show;
use pipec_cpu::CpuDevice;
use pipec_program::{Bytes, Event, Space, Timeline, Verified};
use pipec_runtime::checkpoint::{self, Progress};
use pipec_runtime::data::Batches;
use pipec_runtime::engine::{Engine, Options};
use pipec_runtime::train::{Checkpoints, Ending, Metrics, NotFinite, Observer, Run, train};
use pipec_runtime::{ReferenceDevice, state};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Checkpoints that are kept.
const KEPT: usize = 3;

pub(super) fn execute(arguments: &RunArguments, reporter: Reporter) -> Result<(), Failure> {
    let program = Arc::new(load::program(&arguments.input, reporter)?);
    let steps = arguments.steps.or(program.training.steps).ok_or_else(|| {
        Failure::usage(
            reporter,
            "the file does not say for how many steps; write `steps: 100` in `train` or pass --steps",
        )
    })?;
    let failed = |error: &dyn std::fmt::Display| Failure::run(reporter, error.to_string());
    let mut batches = Batches::open(&program, Path::new(".")).map_err(|error| failed(&error))?;
    let mut engine = match arguments.device {
        DeviceChoice::Cpu => cpu_engine(&program, arguments.measure_memory, reporter)?,
        DeviceChoice::Reference => reference_engine(&program, arguments.measure_memory, reporter)?,
    };
    let from = start(&mut engine, arguments.resume.as_deref(), reporter)?;
    if from.step >= steps {
        return Err(Failure::usage(
            reporter,
            format!(
                "the checkpoint is at step {} and the run ends at step {steps}; pass a larger --steps",
                from.step
            ),
        ));
    }
    engine.record(arguments.trace.is_some());

    let stop = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&stop);
    ctrlc::set_handler(move || {
        // The second time, someone means it.
        if asked.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
        eprintln!("\nfinishing the step; press Ctrl-C again to stop at once");
    })
    .map_err(|error| failed(&error))?;

    let metrics = match &arguments.metrics {
        None => None,
        Some(path) => {
            let file = OpenOptions::new().create(true).append(true).open(path);
            Some(file.map_err(|error| Failure::file(reporter, path, &error))?)
        }
    };
    let planned = arena_bytes(&engine);
    let mut progress = ProgressLine {
        quiet: arguments.quiet,
        terminal: std::io::stderr().is_terminal(),
        steps,
        first: from.step,
        planned,
        started: Instant::now(),
        drawn: None,
        metrics,
        metrics_error: None,
        events: Vec::new(),
        losses: None,
    };
    let run = Run {
        steps,
        checkpoints: arguments.save.clone().map(|folder| Checkpoints {
            folder,
            every: arguments.save_every.unwrap_or(0),
            keep: KEPT,
        }),
        not_finite: NotFinite::Stop,
    };
    let ending = train(&mut engine, &mut batches, from, &run, &stop, &mut progress);
    progress.finish();
    if let Some(error) = &progress.metrics_error {
        let path = arguments.metrics.clone().unwrap_or_default();
        eprint!("{}", reporter.plain(None, &format!("metrics are incomplete: {}: {error}", path.display())));
    }
    let ending = ending.map_err(|error| failed(&error))?;
    report(&progress, ending, &engine, arguments.measure_memory);
    if let Some(path) = &arguments.trace {
        write_trace(&program, std::mem::take(&mut progress.events), path, reporter)?;
    }
    Ok(())
}

/// An engine of CPU devices.
pub(super) fn cpu_engine(
    program: &Arc<Verified>,
    paint: bool,
    reporter: Reporter,
) -> Result<Engine, Failure> {
    Engine::new(Arc::clone(program), Options { paint }, |_, description, space| {
        let threads = match space {
            Space::Device => description.threads,
            Space::Host => description.host_threads,
        };
        Ok(Box::new(CpuDevice::new(threads as usize)?))
    })
    .map_err(|error| Failure::run(reporter, error.to_string()))
}

fn reference_engine(program: &Arc<Verified>, paint: bool, reporter: Reporter) -> Result<Engine, Failure> {
    Engine::new(Arc::clone(program), Options { paint }, |_, _, _| Ok(Box::new(ReferenceDevice::new())))
        .map_err(|error| Failure::run(reporter, error.to_string()))
}

/// Runs steps from freshly initialised weights and hands the events of each to `seen`.
pub(super) fn steps_of(
    engine: &mut Engine,
    steps: u64,
    reporter: Reporter,
    mut seen: impl FnMut(u64, Vec<Event>),
) -> Result<(), Failure> {
    struct Each<'a>(&'a mut dyn FnMut(u64, Vec<Event>));
    impl Observer for Each<'_> {
        fn step(&mut self, metrics: &Metrics) {
            (self.0)(metrics.step, metrics.events.clone());
        }
    }
    let failed = |error: &dyn std::fmt::Display| Failure::run(reporter, error.to_string());
    let mut batches = Batches::open(engine.program(), Path::new(".")).map_err(|error| failed(&error))?;
    state::initialise(engine).map_err(|error| failed(&error))?;
    let run = Run { steps, checkpoints: None, not_finite: NotFinite::Stop };
    let from = Progress { step: 0, sequences: 0 };
    train(engine, &mut batches, from, &run, &AtomicBool::new(false), &mut Each(&mut seen))
        .map_err(|error| failed(&error))?;
    Ok(())
}

/// Initial weights, or the state of a checkpoint.
fn start(engine: &mut Engine, resume: Option<&Path>, reporter: Reporter) -> Result<Progress, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::run(reporter, error.to_string());
    let Some(path) = resume else {
        state::initialise(engine).map_err(|error| failed(&error))?;
        return Ok(Progress { step: 0, sequences: 0 });
    };
    let latest = checkpoint::latest(path).map_err(|error| failed(&error))?;
    let found: PathBuf = latest.unwrap_or_else(|| path.to_path_buf());
    let progress = checkpoint::load(engine, &found).map_err(|error| failed(&error))?;
    eprintln!("resumed {} at step {}", found.display(), progress.step);
    Ok(progress)
}

fn arena_bytes(engine: &Engine) -> Bytes {
    engine.arena_bytes().values().copied().sum()
}

/// A line of the metrics file.
#[derive(Serialize)]
struct MetricsView {
    step: u64,
    loss: f64,
    gradient_norm: Option<f64>,
    learning_rate: f64,
    tokens: u64,
    tokens_per_second: f64,
    seconds: f64,
    epochs: Option<f64>,
    memory_bytes: u64,
}

/// Draws progress on standard error: one line that changes on a terminal, a line now and then elsewhere.
struct ProgressLine {
    quiet: bool,
    terminal: bool,
    steps: u64,
    first: u64,
    planned: Bytes,
    started: Instant,
    drawn: Option<Instant>,
    metrics: Option<File>,
    metrics_error: Option<std::io::Error>,
    events: Vec<Event>,
    /// First and last.
    losses: Option<(f64, f64)>,
}

impl Observer for ProgressLine {
    fn step(&mut self, metrics: &Metrics) {
        let seconds = (metrics.elapsed.0 as f64 / 1e9).max(1e-9);
        let rate = metrics.tokens as f64 / seconds;
        self.losses = Some((self.losses.map_or(metrics.loss, |(first, _)| first), metrics.loss));
        self.events.clone_from(&metrics.events);
        if let Some(file) = &mut self.metrics {
            let view = MetricsView {
                step: metrics.step,
                loss: metrics.loss,
                gradient_norm: metrics.gradient_norm,
                learning_rate: metrics.learning_rate,
                tokens: metrics.tokens,
                tokens_per_second: rate,
                seconds,
                epochs: metrics.epochs,
                memory_bytes: self.planned.0,
            };
            // A struct of numbers always serialises.
            let line = serde_json::to_string(&view).unwrap_or_default() + "\n";
            if let Err(error) = file.write_all(line.as_bytes()) {
                self.metrics_error.get_or_insert(error);
            }
        }
        let last = metrics.step == self.steps;
        let pause = Duration::from_millis(if self.terminal { 100 } else { 2000 });
        if self.quiet || self.drawn.is_some_and(|drawn| !last && drawn.elapsed() < pause) {
            return;
        }
        self.drawn = Some(Instant::now());
        let done = metrics.step - self.first;
        let left =
            self.started.elapsed().as_secs_f64() / done.max(1) as f64 * (self.steps - metrics.step) as f64;
        let width = self.steps.to_string().len();
        let line = format!(
            "step {:>width$}/{}  loss {:.4}  {:.0} tokens/s  {} left  memory {}",
            metrics.step,
            self.steps,
            metrics.loss,
            rate,
            duration(left),
            self.planned,
        );
        if self.terminal {
            eprint!("\r\x1b[2K{line}");
        } else {
            eprintln!("{line}");
        }
    }

    fn saved(&mut self, path: &Path) {
        if !self.quiet {
            let clear = if self.terminal { "\r\x1b[2K" } else { "" };
            eprintln!("{clear}saved {}", path.display());
        }
    }
}

impl ProgressLine {
    fn finish(&self) {
        if self.terminal && !self.quiet && self.drawn.is_some() {
            eprintln!();
        }
    }
}

fn duration(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds:02}s"),
        (hours, minutes, _) => format!("{hours}h{minutes:02}m"),
    }
}

/// What the run came to, on standard output.
fn report(progress: &ProgressLine, ending: Ending, engine: &Engine, measured: bool) {
    let (word, at) = match ending {
        Ending::Complete(at) => ("done", at),
        Ending::Stopped(at) => ("stopped", at),
    };
    if let Some((first, last)) = progress.losses {
        println!("{word} after step {}: loss {first:.4} -> {last:.4}", at.step);
    }
    let touched = if measured { engine.touched() } else { BTreeMap::new() };
    for ((device, space), bytes) in engine.arena_bytes() {
        let name = match space {
            Space::Device => "device",
            Space::Host => "host",
        };
        match touched.get(&(device, space)) {
            Some(touched) => {
                println!(
                    "{device} {name} memory: {} bytes planned, {} touched",
                    bytes.0, touched.high_water.0
                );
            }
            None => println!("{device} {name} memory: {bytes} planned"),
        }
    }
    println!("library scratch: {}", engine.scratch());
}

fn write_trace(
    program: &Verified,
    events: Vec<Event>,
    path: &Path,
    reporter: Reporter,
) -> Result<(), Failure> {
    let timeline = Timeline::measured(program, events).map_err(|error| {
        Failure::internal(reporter, format!("the measured events are no timeline: {error}"))
    })?;
    let text = show::json(program, &timeline);
    files::write(Some(path), text.as_bytes()).map_err(|error| Failure::file(reporter, path, &error))
}
