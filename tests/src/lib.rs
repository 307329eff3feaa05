//! Helpers of the suite: from the text of a `.pipe` file to losses, in one call each.
//!
//! The suites themselves stand in `tests/`, one file per promise. No product code lives here.
#![forbid(unsafe_code)]

use pipe_grammar::ast::File;
use pipe_grammar::diagnostic::{Diagnostic, SourceId};
use pipec::report::Source;
use pipec_compiler::pipeline::{self, Compiled};
use pipec_compiler::schedule::given;
use pipec_compiler::spec::{self, Choice, Cut, Origins, Resolution, Schedule, Sources, Spec};
use pipec_cpu::CpuDevice;
use pipec_program::Verified;
use pipec_runtime::checkpoint::Progress;
use pipec_runtime::data::Batches;
use pipec_runtime::engine::{Engine, Options};
use pipec_runtime::train::{Metrics, NotFinite, Observer, Run, train};
use pipec_runtime::{Device, ReferenceDevice, state};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A file of the repository with the files that it uses, read and parsed.
#[derive(Debug)]
pub struct Read {
    /// The texts, in the numbering of diagnostics, each by its path from the root.
    pub texts: Vec<Source>,
    /// The syntax tree of the file itself.
    pub file: File,
    /// What resolves it.
    pub sources: Sources,
    /// What the parser says.
    pub faults: Vec<Diagnostic>,
}

/// Reads a file of the repository, by its path from the root, and all that it uses. A used file that is not there is
/// left out, as the compiler says so itself.
///
/// # Panics
/// When it cannot be read itself.
pub fn read(path: &str) -> Read {
    let mut read =
        Read { texts: Vec::new(), file: File::default(), sources: Sources::new(), faults: Vec::new() };
    let mut waiting = vec![path.to_owned()];
    while let Some(path) = waiting.pop() {
        let text = match std::fs::read_to_string(root().join(&path)) {
            Ok(text) => text,
            Err(error) if read.texts.is_empty() => panic!("{path}: {error}"),
            Err(_) => continue,
        };
        let id = SourceId(u32::try_from(read.texts.len()).expect("few files"));
        let parsed = pipe_grammar::parse(id, &text);
        for used in spec::uses(&parsed.file).map(|used| spec::used_path(&path, &used.value)) {
            if read.sources.at(&used).is_none() && !waiting.contains(&used) {
                waiting.push(used);
            }
        }
        read.faults.extend(parsed.diagnostics);
        if read.texts.is_empty() {
            read.file = parsed.file.clone();
        }
        for named in spec::schedules(&parsed.file).map(|named| spec::used_path(&path, &named.value)) {
            if let Ok(text) = std::fs::read_to_string(root().join(&named)) {
                read.sources.add_schedule(&named, given::read(&named, &text));
            }
        }
        read.sources.add(&path, parsed.file);
        read.texts.push(Source { name: path, text });
    }
    read
}

/// Resolves a file of the repository, with the files beside it that it uses.
///
/// # Panics
/// When it cannot be read or has errors: the file is part of the suite.
pub fn resolve(path: &str) -> Resolution {
    let read = read(path);
    assert!(read.faults.is_empty(), "{path}: {:#?}", read.faults);
    spec::resolve(&read.sources, SourceId(0), &Choice::default())
        .unwrap_or_else(|errors| panic!("{path}: {errors:#?}"))
}

/// Resolves a text that uses no files.
///
/// # Panics
/// When it has errors.
pub fn resolve_text(text: &str) -> Resolution {
    let parsed = pipe_grammar::parse(SourceId(0), text);
    assert!(parsed.diagnostics.is_empty(), "{:#?}", parsed.diagnostics);
    let mut sources = Sources::new();
    sources.add("test.pipe", parsed.file);
    spec::resolve(&sources, SourceId(0), &Choice::default()).unwrap_or_else(|errors| panic!("{errors:#?}"))
}

/// The same spec on so many devices under another schedule and cut.
pub fn replan(spec: &Spec, devices: u32, schedule: Schedule, cut: Cut) -> Spec {
    let mut spec = spec.clone();
    let chunks = schedule.virtual_stages();
    spec.pipeline.devices = devices;
    spec.pipeline.stages = devices * chunks;
    spec.pipeline.schedule = schedule;
    spec.pipeline.cut = cut;
    for node in &mut spec.cluster.nodes {
        node.devices = devices;
    }
    spec
}

/// Compiles a spec.
///
/// # Errors
/// What the compiler says.
pub fn compile(spec: &Spec, origins: &Origins) -> Result<Compiled, pipeline::Error> {
    pipeline::compile(spec, origins, "", &mut ())
}

/// What computes in a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The obvious interpreter.
    Reference,
    /// Machine code.
    Cpu,
}

/// An engine for a program.
///
/// # Panics
/// When it cannot be made.
pub fn engine(program: &Arc<Verified>, kind: Kind, options: Options) -> Engine {
    Engine::new(Arc::clone(program), options, |_, description, _| -> Result<Box<dyn Device>, _> {
        Ok(match kind {
            Kind::Reference => Box::new(ReferenceDevice::new()),
            Kind::Cpu => Box::new(CpuDevice::new(description.threads as usize)?),
        })
    })
    .unwrap_or_else(|error| panic!("{error}"))
}

/// Trains from fresh weights and returns what each step has shown.
///
/// # Panics
/// When the run fails.
pub fn run(engine: &mut Engine, steps: u64) -> Vec<Metrics> {
    state::initialise(engine).unwrap_or_else(|error| panic!("{error}"));
    go_on(engine, Progress { step: 0, sequences: 0 }, steps)
}

/// Trains two steps and checks that the bytes touched in every arena are those that were planned; returns the losses. Touching is
/// seen by lines of 64 bytes, and the last tensor may end inside one.
///
/// # Panics
/// When the run fails, or touches more or less.
pub fn touches_what_was_planned(program: &Arc<Verified>, what: &str) -> Vec<f64> {
    let mut engine = engine(program, Kind::Cpu, Options { paint: true });
    let losses = run(&mut engine, 2).iter().map(|metrics| metrics.loss).collect();
    let touched = engine.touched();
    for ((device, space), planned) in engine.arena_bytes() {
        let high_water = touched[&(device, space)].high_water;
        assert_eq!(high_water.align_up(64), planned.align_up(64), "{what} {device} {space:?}");
    }
    losses
}

/// Trains on from where the state of the engine is.
///
/// # Panics
/// When the run fails.
pub fn go_on(engine: &mut Engine, from: Progress, steps: u64) -> Vec<Metrics> {
    struct Seen(Vec<Metrics>);
    impl Observer for Seen {
        fn step(&mut self, metrics: &Metrics) {
            self.0.push(metrics.clone());
        }
    }
    let mut seen = Seen(Vec::new());
    let mut batches = Batches::open(engine.program(), &root()).unwrap_or_else(|error| panic!("{error}"));
    let run = Run { steps, checkpoints: None, not_finite: NotFinite::Warn };
    train(engine, &mut batches, from, &run, &AtomicBool::new(false), &mut seen)
        .unwrap_or_else(|error| panic!("{error}"));
    seen.0
}

/// The losses of so many steps of a spec from fresh weights.
///
/// # Panics
/// When it does not compile or run.
pub fn losses(spec: &Spec, origins: &Origins, kind: Kind, steps: u64) -> Vec<f64> {
    let compiled = compile(spec, origins).unwrap_or_else(|error| panic!("{error:?}"));
    let mut engine = engine(&Arc::new(compiled.program), kind, Options::default());
    run(&mut engine, steps).iter().map(|metrics| metrics.loss).collect()
}
