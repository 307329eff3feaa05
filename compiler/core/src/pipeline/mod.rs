//! The one place where the stages of the compiler stand in order.

mod choose;
mod complain;
mod cuts;
mod reasons;

use crate::graph::{self, Graphs, Precision, graphs};
use crate::lower::functions::Wanted;
use crate::lower::{self, Arena, LowerError, Lowered, Stages, lower};
use crate::mode::{self, Forms, Layers, ModeId, modes};
use crate::plan::{Plan, plan, slice_lengths};
use crate::rewrite::{Rates, rewrite, rules};
use crate::schedule::{self, Policy, Problem, Refusal, Schedule, Uses, given, order};
use crate::search;
use crate::spec::{Offload, Origins, Recompute, Spec};
use choose::chosen;
use complain::{advised, not_sliceable, over_limit, refused, too_little};
use pipe_grammar::diagnostic::{Code, Diagnostic};
use pipec_program::id::IdVec;
use pipec_program::text::print_with_lines;
use pipec_program::{Bytes, DeviceId, Nanos, Program, Verified, Violations, verify};
use std::collections::BTreeMap;
use std::fmt;

pub use reasons::{Better, Reason};

/// What came out of a spec.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The modes of all distinct layers.
    pub layers: Layers,
    /// The mode of every piece.
    pub modes: Vec<ModeId>,
    /// How much less than in these modes the passes of a device over a micro-batch might take in others that fit, at most, as far as
    /// is known; zero where nothing was chosen, or where no choice is better.
    pub gap: Nanos,
    /// The cut and its placement.
    pub plan: Plan,
    /// What the order of passes is made for.
    pub problem: Problem,
    /// The order of passes.
    pub schedule: Schedule,
    /// What the order of one replica is made for.
    pub replica: Problem,
    /// The order of one replica.
    pub order: Schedule,
    /// The program.
    pub program: Verified,
    /// The memory of each device, as planned.
    pub arenas: IdVec<DeviceId, Arena>,
    /// The memory of the host that each device has for itself, as planned.
    pub hosts: IdVec<DeviceId, Arena>,
}

/// What a stage has made.
#[derive(Clone, Copy, Debug)]
pub enum Stage<'a> {
    /// The graphs of all distinct layers, verified.
    Graphs(&'a Graphs),
    /// The modes of all distinct layers.
    Layers(&'a Layers),
    /// The forms of all pieces in the modes that the spec asks for, verified.
    Forms(&'a Forms),
    /// The cut and its placement.
    Plan(&'a Plan),
    /// The functions of all distinct stages, for all that the schedule may ask.
    Functions(&'a Stages),
    /// The order of passes, verified; again where its program did not fit the memory.
    Schedule(&'a Schedule),
    /// The program and its memory, not yet verified.
    Lowered(&'a Lowered),
    /// The program, verified.
    Program(&'a Verified),
}

impl Stage<'_> {
    /// The name of the stage that has just ended, for timings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Graphs(_) => "graph",
            Self::Layers(_) => "rewrite",
            Self::Forms(_) => "forms",
            Self::Plan(_) => "plan",
            Self::Schedule(_) => "schedule",
            Self::Functions(_) => "functions",
            Self::Lowered(_) => "lower",
            Self::Program(_) => "verify",
        }
    }
}

/// Sees what every stage makes, as soon as it is made.
pub trait Observer {
    /// A stage has ended.
    fn stage(&mut self, stage: Stage<'_>);
}

/// Sees nothing.
impl Observer for () {
    fn stage(&mut self, _: Stage<'_>) {}
}

/// Why there is no program.
#[derive(Clone, Debug, PartialEq)]
pub enum Error {
    /// The spec asks for what cannot be.
    Diagnostics(Vec<Diagnostic>),
    /// The compiler made something wrong: a bug of pipec, whatever the spec says. The text tells which stage and what.
    Internal(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Diagnostics(diagnostics) => {
                for (position, diagnostic) in diagnostics.iter().enumerate() {
                    let separator = if position == 0 { "" } else { "\n" };
                    write!(f, "{separator}{}: {}", diagnostic.code, diagnostic.message)?;
                }
                Ok(())
            }
            Self::Internal(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for Error {}

/// Compiles a spec. `inputs` is the hash of the texts that it was made from, which the program carries.
///
/// # Errors
/// [`Error::Diagnostics`] where the cut, the placement or the memory of the spec does not work out;
/// [`Error::Internal`] where a stage breaks its own laws.
pub fn compile(
    spec: &Spec,
    origins: &Origins,
    inputs: &str,
    observer: &mut dyn Observer,
) -> Result<Compiled, Error> {
    compiled(spec, origins, inputs, Means { advise: true, modes: None }, observer)
}

/// Compiles a spec with its pieces in modes that are given, one for each, whatever `recompute` and `offload` say. Those on the
/// front of a layer that offload are there only if the spec offloads anything.
///
/// # Errors
/// As [`compile`].
pub fn compile_in(
    spec: &Spec,
    origins: &Origins,
    modes: &[ModeId],
    observer: &mut dyn Observer,
) -> Result<Compiled, Error> {
    compiled(spec, origins, "", Means { advise: false, modes: Some(modes) }, observer)
}

/// How a spec is compiled.
#[derive(Clone, Copy)]
struct Means<'a> {
    /// Whether something is looked for that fits where memory does not suffice.
    advise: bool,
    /// The modes of all pieces, if they are given.
    modes: Option<&'a [ModeId]>,
}

/// Compiles a spec in some way.
fn compiled(
    spec: &Spec,
    origins: &Origins,
    inputs: &str,
    Means { advise, modes: given }: Means<'_>,
    observer: &mut dyn Observer,
) -> Result<Compiled, Error> {
    let graphs = graphs(&spec.model, Precision::of(&spec.train));
    for graph in graphs.values() {
        lawful("graph", graph::verify(graph))?;
    }
    observer.stage(Stage::Graphs(&graphs));
    let lengths = slice_lengths(spec);
    let mut rules = rules();
    rules.retain(|rule| !spec.without.contains(rule.name));
    let layers = rewrite(&graphs, &spec.model, &spec.train, &lengths, Rates::of(spec), &rules)
        .map_err(|error| not_sliceable(&error, spec, origins))?;
    observer.stage(Stage::Layers(&layers));
    let task = Task { spec, origins, layers: &layers, lengths: &lengths, inputs, advise };
    let (recompute, offload) = (&spec.pipeline.recompute, spec.pipeline.offload);
    let is_open = *recompute == Recompute::Auto || offload == Offload::Auto;
    let modes = match given {
        Some(given) => Some(given.to_vec()),
        None => (!is_open).then(|| modes(&layers, &spec.model, recompute, offload)),
    };
    let settled;
    let Fitted { laid, order, schedule, lowered, gap } = match modes {
        None => chosen(task, observer)?,
        Some(modes) => {
            settled = cuts::settled(task, &modes)?;
            let task = Task { spec: settled.as_ref().unwrap_or(spec), ..task };
            let laid = lay(task, &modes, None, observer)?;
            fit(task, laid, observer).map_err(|lack| lack.error(task))?
        }
    };
    let Laid { modes, plan, problem, replica, .. } = laid;
    observer.stage(Stage::Lowered(&lowered));
    let Lowered { program, arenas, hosts } = lowered;
    let program = proved(program)?;
    observer.stage(Stage::Program(&program));
    Ok(Compiled { layers, modes, gap, plan, problem, schedule, replica, order, program, arenas, hosts })
}

/// What is cut, ordered and lowered.
#[derive(Clone, Copy)]
struct Task<'a> {
    spec: &'a Spec,
    origins: &'a Origins,
    layers: &'a Layers,
    /// The tokens of every slice.
    lengths: &'a [u64],
    /// The hash of the texts that all is made from.
    inputs: &'a str,
    /// Whether to look for a schedule that fits where this one does not.
    advise: bool,
}

/// A cut with its functions and what an order is made for.
struct Laid {
    modes: Vec<ModeId>,
    forms: Forms,
    plan: Plan,
    stages: Stages,
    /// The passes that the functions are for.
    wanted: Wanted,
    problem: Problem,
    /// The problem of one replica.
    replica: Problem,
}

/// Lays pieces in some modes onto the devices: by the cut of the spec, or by that of another plan.
fn lay(
    task: Task<'_>,
    modes: &[ModeId],
    cut: Option<&Plan>,
    observer: &mut dyn Observer,
) -> Result<Laid, Error> {
    let Task { spec, origins, layers, lengths, .. } = task;
    let forms = Forms::new(layers, &spec.model, &spec.train, lengths, modes);
    for form in forms.all() {
        lawful("rewrite", mode::verify(form))?;
    }
    observer.stage(Stage::Forms(&forms));
    let plan = match cut {
        Some(cut) => cut.with(spec, &forms),
        None => plan(spec, &forms, origins).map_err(Error::Diagnostics)?,
    };
    observer.stage(Stage::Plan(&plan));
    let uses = Policy::of(spec.pipeline.schedule).map_or(EVERYTHING, Policy::uses);
    let wanted = Wanted::of(uses, plan.products);
    let stages = Stages::new(&spec.model, &forms, &plan, wanted, &BTreeMap::new());
    observer.stage(Stage::Functions(&stages));
    let mut problem = lower::problem(spec, &plan, &stages).map_err(|error| refused(&error, origins))?;
    search::limit(spec, &plan, &mut problem);
    let replica = plan.problem_of_replica(&problem).map_err(|error| refused(&error, origins))?;
    Ok(Laid { modes: modes.to_vec(), forms, plan, stages, wanted, problem, replica })
}

/// An order and its program.
struct Fitted {
    laid: Laid,
    order: Schedule,
    schedule: Schedule,
    lowered: Lowered,
    /// How much better a choice of modes may be.
    gap: Nanos,
}

/// Why there is no order that fits.
enum Lack {
    /// Memory: what to say, and what each device lacks.
    Memory(Box<Diagnostic>, IdVec<DeviceId, Bytes>),
    /// Anything else.
    Other(Error),
}

impl Lack {
    fn error(self, task: Task<'_>) -> Error {
        match self {
            Self::Memory(diagnostic, _) => Error::Diagnostics(vec![advised(task, *diagnostic)]),
            Self::Other(error) => error,
        }
    }
}

impl From<Error> for Lack {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

/// The order and the program of a plan, with the functions that the order calls.
fn fit(task: Task<'_>, mut laid: Laid, observer: &mut dyn Observer) -> Result<Fitted, Lack> {
    let Task { spec, origins, inputs, .. } = task;
    let adapts = search::adapts(spec.pipeline.schedule);
    let mut within = laid.replica.clone();
    if !adapts {
        within.caps = None;
    }
    let mut rounds = 0;
    loop {
        let order = ordered(task, &mut within)?;
        laid.problem.weight_parts = within.weight_parts;
        laid.replica.weight_parts = within.weight_parts;
        let schedule = laid.plan.replicate(&order);
        lawful("schedule", schedule::verify(&laid.problem, &schedule))?;
        observer.stage(Stage::Schedule(&schedule));
        let used = Wanted::by(&schedule);
        if laid.wanted != used {
            laid.wanted = used;
            laid.stages = Stages::new(&spec.model, &laid.forms, &laid.plan, used, &BTreeMap::new());
        }
        let (diagnostic, lacking) = match lower(spec, origins, &laid.plan, &laid.stages, &schedule, inputs) {
            Ok(lowered) => match search::over(spec.pipeline.schedule, &lowered.arenas) {
                None => return Ok(Fitted { laid, order, schedule, lowered, gap: Nanos::ZERO }),
                Some(lacking) => (Box::new(over_limit(origins, &lacking)), lacking),
            },
            Err(LowerError::Memory { diagnostic, lacking }) => (diagnostic, lacking),
            Err(error @ (LowerError::Deadlock(_) | LowerError::Step(_) | LowerError::Problem(_))) => {
                return Err(Error::Internal(error.to_string()).into());
            }
        };
        rounds += 1;
        if !adapts || rounds > search::MOST_ROUNDS || !search::tighten(&mut within, &order, &lacking) {
            return Err(Lack::Memory(diagnostic, lacking));
        }
    }
}

/// The order of a policy or of a file.
fn ordered(task: Task<'_>, problem: &mut Problem) -> Result<Schedule, Error> {
    let (spec, origins) = (task.spec, task.origins);
    if let Some(given) = &spec.pipeline.given {
        let origin = origins.schedule;
        return given::order(given, problem).map_err(|message| {
            let error = Diagnostic::error(
                origin.source,
                Code::GivenSchedule,
                "the file is no schedule of the pipeline",
            );
            Error::Diagnostics(vec![error.at(origin.span, message)])
        });
    }
    let Some(policy) = Policy::of(spec.pipeline.schedule) else {
        return Err(Error::Internal("a schedule from a file without the file".to_owned()));
    };
    let schedule = order(policy, problem).map_err(|refusal| match refusal {
        Refusal::Memory { device, needed, cap } => too_little(task, device, needed, cap),
        other => refused(&other, origins),
    })?;
    Ok(schedule)
}

/// A file may ask for every pass.
const EVERYTHING: Uses = Uses { whole: true, split: true, products: true };

/// The most violations that an internal error lists.
const MOST_LISTED: usize = 20;

/// An internal error if a stage broke a law.
fn lawful<V: fmt::Display>(stage: &str, violations: Vec<V>) -> Result<(), Error> {
    if violations.is_empty() {
        return Ok(());
    }
    let mut text = format!("the {stage} stage of pipec broke its laws, which is a bug of pipec:");
    for violation in violations.iter().take(MOST_LISTED) {
        text += &format!("\n  {violation}");
    }
    if violations.len() > MOST_LISTED {
        text += &format!("\n  and {} more", violations.len() - MOST_LISTED);
    }
    Err(Error::Internal(text))
}

/// Verifies a program of our own.
fn proved(program: Program) -> Result<Verified, Error> {
    // The proof takes the program; a copy is kept to show where it fails.
    let copy = program.clone();
    verify(program).map_err(|violations| Error::Internal(annotated(&copy, &violations)))
}

/// Violations below the lines of the program that they are about.
fn annotated(program: &Program, violations: &Violations) -> String {
    let (text, lines) = print_with_lines(program);
    let rows: Vec<&str> = text.lines().collect();
    let mut message = "pipec made a program that breaks its laws, which is a bug of pipec:".to_owned();
    for (line, violation) in violations.at_lines(&lines).into_iter().take(MOST_LISTED) {
        if let Some(line) = line {
            let row = rows.get((line as usize).saturating_sub(1)).copied().unwrap_or_default();
            message += &format!("\n{line:>6} | {}", row.trim_start());
        }
        message += &format!("\n       = {violation}");
    }
    let more = violations.list.len().saturating_sub(MOST_LISTED) + violations.more;
    if more > 0 {
        message += &format!("\n       = and {more} more");
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_program_is_shown_with_its_lines() {
        let text = "pprog 1\nprogram \"broken\"\nbatch { micro_batches 1, sequences 1, tokens 1, slices [1], stages 1, copies 1 }\n\
                    training { seed 1 }\nlearning_rate constant { rate 0.001 }\n\
                    device d0 \"cpu\" { memory 1 KiB, host_memory 1 KiB, bandwidth 1 GB/s, host_bandwidth 1 GB/s, upload [], download [], threads 1, host_threads 1 }\n\
                    buffer b0 \"large\" workspace d0.device[0..2048]\n";
        let (program, _) = pipec_program::text::parse(text).unwrap();
        let Err(Error::Internal(message)) = proved(program) else { panic!("it does not fit") };
        insta::assert_snapshot!(message, @r#"
    pipec made a program that breaks its laws, which is a bug of pipec:
         3 | batch { micro_batches 1, sequences 1, tokens 1, slices [1], stages 1, copies 1 }
           = batch: 1 units cannot run in 0 instructions
         9 | buffer b0 "large" workspace d0.device[0..2048]
           = b0: ends at byte 2048, d0 has 1024 bytes of memory
    "#);
    }

    #[test]
    fn laws_are_listed() {
        let broken: Vec<u32> = (0..22).collect();
        assert!(lawful("plan", Vec::<u32>::new()).is_ok());
        let Err(Error::Internal(message)) = lawful("plan", broken) else { panic!("laws were broken") };
        assert!(message.starts_with("the plan stage of pipec broke its laws"));
        assert!(message.ends_with("\n  19\n  and 2 more"));
    }
}
