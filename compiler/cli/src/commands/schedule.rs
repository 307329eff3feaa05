//! `pipec schedule`: the order of a pipeline without a model, drawn, compared, or in a form for other tools.

mod compare;

use super::Failure;
use crate::arguments::{CsvDialect, ScheduleArguments, WeightGradsChoice};
use crate::files;
use crate::report::Reporter;
use crate::show;
use pipec_compiler::schedule::csv::{self, Dialect};
use pipec_compiler::schedule::{
    Cost, Effort, Execution, PlaceName, Placement, Policy, Problem, Report, Scale, Schedule, ScheduleFile,
    Svpp, Table, Violation, WeightGrads, execute, explore, order, verify,
};
use std::path::Path;

/// What is drawn at most, in steps of all devices together.
const MOST_DRAWN: usize = 20_000;

pub(super) fn execute_policy(arguments: &ScheduleArguments, reporter: Reporter) -> Result<(), Failure> {
    if let Some(path) = &arguments.plot {
        return compare::plot(arguments, path, reporter);
    }
    if arguments.policy == "all" {
        return compare::table(arguments, reporter);
    }
    if arguments.policy == "spipe" {
        return two_cuts(arguments, reporter);
    }
    let Ordered { file, problem, scale, schedule } = ordered(arguments, reporter)?;
    if let Some(dialect) = arguments.csv {
        let dialect = match dialect {
            CsvDialect::ComputeOnly => Dialect::ComputeOnly,
            CsvDialect::ComputeComms => Dialect::ComputeComms,
        };
        print!("{}", torch_csv(&problem, &schedule, dialect, arguments.lossy, reporter)?);
        return Ok(());
    }
    let execution = executed(&problem, &schedule, reporter)?;
    let report = Report::new(&problem, &schedule, &execution, scale);
    if arguments.json {
        let text = serde_json::to_string(&file.with(&problem, &schedule, report));
        println!("{}", text.map_err(|error| Failure::internal(reporter, error.to_string()))?);
        return Ok(());
    }
    let steps: usize = schedule.devices.values().map(Vec::len).sum();
    if steps <= MOST_DRAWN {
        println!("{}", show::order_grid(&problem, &schedule, &execution));
    }
    print!("{}", show::order_summary(&report));
    Ok(())
}

/// SPipe's order, which no file holds. A part of the model that is as large as a forward stage takes F, R and BW.
fn two_cuts(arguments: &ScheduleArguments, reporter: Reporter) -> Result<(), Failure> {
    /// Parts of a unit of time.
    const PARTS: f64 = 1000.0;
    if arguments.json || arguments.csv.is_some() || arguments.problem.is_some() {
        let message = "files have one number for a stage, and `spipe` has a cut for each direction";
        return Err(Failure::usage(reporter, message));
    }
    if arguments.slices != 1 {
        return Err(Failure::usage(reporter, "`spipe` does not slice sequences"));
    }
    let costs = sizes(arguments, None, reporter)?.costs;
    let forward = arguments.virtual_stages.unwrap_or(2);
    let backward = arguments.backward.unwrap_or(forward.saturating_mul(3));
    let of = |table: &Option<Table>, usual: f64, parts: u32| {
        let time = if let Some(Table::Everywhere(time)) = table { *time } else { usual };
        (time * PARTS * f64::from(parts)).round() as u64
    };
    // A backward stage is as many parts of the model as there are forward stages, and the other way round.
    let ahead = Cost { forward: of(&costs.forward, 1.0, backward), activations: 0, ..Cost::UNIT };
    let back = Cost {
        recompute: of(&costs.recompute, 1.0, forward),
        backward: of(&costs.backward, 2.0, forward),
        ..Cost::UNIT
    };
    let told = |message: String| Failure::usage(reporter, message);
    let problem =
        Problem::two_cuts(arguments.devices, [forward, backward], arguments.microbatches, [ahead, back]);
    let mut problem = problem.map_err(|error| told(error.to_string()))?;
    problem.delay = (costs.comm.unwrap_or(0.0) * PARTS * f64::from(backward)).round() as u64;
    let schedule = order(Policy::SPipe, &problem)
        .map_err(|refusal| told(format!("`spipe` has no order for this: {refusal}")))?;
    if let Some(broken) = verify(&problem, &schedule).first() {
        return Err(internal(reporter, broken));
    }
    let execution = executed(&problem, &schedule, reporter)?;
    println!("{}", show::order_grid(&problem, &schedule, &execution));
    let makespan = execution.makespan() as f64 / PARTS / f64::from(backward);
    print!("{}", show::order_times(makespan, &execution));
    Ok(())
}

/// A schedule as PyTorch's pipeline CSV; what the file cannot say is told.
pub(super) fn torch_csv(
    problem: &Problem,
    schedule: &Schedule,
    dialect: Dialect,
    lossy: bool,
    reporter: Reporter,
) -> Result<String, Failure> {
    csv::write(problem, schedule, dialect, lossy).map_err(|error| {
        let help = if error.can_be_lost() { "; `--lossy` leaves it out" } else { "" };
        Failure::diagnostics(reporter.plain(None, &format!("{error}{help}")))
    })
}

fn executed(problem: &Problem, schedule: &Schedule, reporter: Reporter) -> Result<Execution, Failure> {
    execute(problem, schedule, |step| problem.duration(step))
        .map_err(|deadlock| internal(reporter, &Violation::Deadlock(deadlock)))
}

/// A schedule and what it is made for.
struct Ordered {
    file: ScheduleFile,
    problem: Problem,
    scale: Scale,
    schedule: Schedule,
}

fn ordered(arguments: &ScheduleArguments, reporter: Reporter) -> Result<Ordered, Failure> {
    let name = arguments.policy.as_str();
    if name == "given" {
        return given(arguments, reporter);
    }
    let policy = policy(arguments, name, reporter)?;
    let mut file = file(arguments, Some(policy), reporter)?;
    let (mut problem, scale) = problem(&file, reporter)?;
    let refused = |refusal| {
        Failure::diagnostics(reporter.plain(None, &format!("`{name}` has no order for this: {refusal}")))
    };
    let schedule = if let (Policy::Auto(effort), None) = (policy, &arguments.problem) {
        // Sizes are the most that may be used; a file is taken as it is.
        let (joined, schedule) = explore(&problem, effort).map_err(refused)?;
        problem = joined;
        file = ScheduleFile::of(&problem, scale);
        schedule
    } else {
        order(policy, &problem).map_err(refused)?
    };
    match verify(&problem, &schedule).first() {
        None => Ok(Ordered { file, problem, scale, schedule }),
        Some(broken) => Err(internal(reporter, broken)),
    }
}

/// The schedule of a file.
fn given(arguments: &ScheduleArguments, reporter: Reporter) -> Result<Ordered, Failure> {
    let told = |message: String| Failure::diagnostics(reporter.plain(None, &message));
    let ordered = match &arguments.problem {
        Some(path) if path.extension().is_some_and(|extension| extension == "csv") => {
            let bytes = files::read(path).map_err(|error| Failure::file(reporter, path, &error))?;
            let read = csv::read(&String::from_utf8_lossy(&bytes));
            let (problem, schedule) = read.map_err(|error| told(format!("{}: {error}", path.display())))?;
            let scale = Scale { time: 1.0, memory: f64::from(problem.depth()) };
            Ordered { file: ScheduleFile::of(&problem, scale), problem, scale, schedule }
        }
        Some(_) | None => {
            let file = file(arguments, None, reporter)?;
            let (problem, scale) = problem(&file, reporter)?;
            let schedule = file.schedule(&problem).map_err(|error| told(error.to_string()))?;
            Ordered { file, problem, scale, schedule }
        }
    };
    match verify(&ordered.problem, &ordered.schedule).first() {
        None => Ok(ordered),
        Some(broken) => Err(told(broken.to_string())),
    }
}

fn internal(reporter: Reporter, broken: &Violation) -> Failure {
    Failure::internal(reporter, format!("the schedule breaks its laws: {broken}"))
}

fn problem(file: &ScheduleFile, reporter: Reporter) -> Result<(Problem, Scale), Failure> {
    file.problem().map_err(|error| Failure::diagnostics(reporter.plain(None, &error.to_string())))
}

/// A policy by its name, with its options.
fn policy(arguments: &ScheduleArguments, name: &str, reporter: Reporter) -> Result<Policy, Failure> {
    if name == "auto" {
        return Ok(Policy::Auto(match arguments.effort {
            0 => Effort::Least,
            1 => Effort::Usual,
            2 => Effort::More,
            3.. => Effort::Most,
        }));
    }
    let Some(&(_, policy)) = Policy::ALL.iter().find(|(known, _)| *known == name) else {
        let names: Vec<&str> = Policy::ALL.iter().map(|(name, _)| *name).collect();
        let message = format!("there is no policy `{name}`; the policies are {}, auto", names.join(", "));
        return Err(Failure::usage(reporter, message));
    };
    match policy {
        Policy::Interleaved { group: _ } => Ok(Policy::Interleaved { group: arguments.group }),
        Policy::Svpp(_) if !(1.0..=2.0).contains(&arguments.bias) => {
            Err(Failure::usage(reporter, "a bias must be between 1 and 2"))
        }
        Policy::Svpp(_) => Ok(Policy::Svpp(Svpp {
            in_flight: arguments.in_flight,
            bias: (arguments.bias * 100.0).round() as u16,
            weight_grads: match arguments.weight_grads {
                WeightGradsChoice::Fused => WeightGrads::Fused,
                WeightGradsChoice::Split => WeightGrads::Split,
                WeightGradsChoice::PerGemm => WeightGrads::PerGemm,
            },
            group: arguments.group,
        })),
        Policy::GPipe
        | Policy::BreadthFirst
        | Policy::TeraPipe
        | Policy::OneFOneB
        | Policy::Seq1F1B
        | Policy::SlimPipe
        | Policy::ZbH1
        | Policy::ZbH2
        | Policy::ZbV
        | Policy::VHalf
        | Policy::VMin
        | Policy::DualPipe
        | Policy::DualPipeV
        | Policy::Chimera
        | Policy::Hanayo
        | Policy::SPipe
        | Policy::Auto(_) => Ok(policy),
    }
}

/// The problem as a file, or from sizes, with the placement of a policy.
fn file(
    arguments: &ScheduleArguments,
    policy: Option<Policy>,
    reporter: Reporter,
) -> Result<ScheduleFile, Failure> {
    let mut file = match &arguments.problem {
        Some(path) => read(path, reporter)?,
        None => sizes(arguments, policy, reporter)?,
    };
    if arguments.memory.is_some() {
        file.memory.limit = arguments.memory;
    }
    Ok(file)
}

fn read(path: &Path, reporter: Reporter) -> Result<ScheduleFile, Failure> {
    let bytes = files::read(path).map_err(|error| Failure::file(reporter, path, &error))?;
    serde_json::from_slice(&bytes)
        .map_err(|error| Failure::diagnostics(reporter.plain(None, &format!("{}: {error}", path.display()))))
}

fn sizes(
    arguments: &ScheduleArguments,
    policy: Option<Policy>,
    reporter: Reporter,
) -> Result<ScheduleFile, Failure> {
    let placement = policy.map_or(Placement::Loop, Policy::placement);
    let usual = match policy {
        Some(Policy::Interleaved { group: _ } | Policy::BreadthFirst) => 2,
        Some(_) | None => 1,
    };
    let (place, chunks) = match placement {
        Placement::Loop => (PlaceName::Interleave, arguments.virtual_stages.unwrap_or(usual)),
        Placement::Zigzag => (PlaceName::Vshape, arguments.virtual_stages.unwrap_or(2)),
        Placement::Bidirectional => (PlaceName::Bidir, 2 * arguments.virtual_stages.unwrap_or(1)),
    };
    let mut file =
        ScheduleFile::uniform(arguments.devices, chunks, arguments.slices, arguments.microbatches, place);
    for cost in &arguments.costs {
        let read =
            cost.split_once('=').and_then(|(name, value)| Some((name.trim(), value.trim().parse().ok()?)));
        let Some((name, value)) = read else {
            return Err(Failure::usage(reporter, format!("`{cost}` is no cost such as `F=1`")));
        };
        let table = Some(Table::Everywhere(value));
        match name {
            "F" => file.costs.forward = table,
            "B" => file.costs.input = table,
            "W" => file.costs.weight = table,
            "BW" => file.costs.backward = table,
            "R" => file.costs.recompute = table,
            "FB" => file.costs.pair = table,
            "comm" => file.costs.comm = Some(value),
            "wparts" if (1.0..=1000.0).contains(&value) && value.fract() == 0.0 => {
                file.costs.wparts = Some(value as u16);
            }
            "wparts" => {
                return Err(Failure::usage(reporter, "`wparts` must be a whole number from 1 to 1000"));
            }
            _ => {
                let message =
                    format!("there is no cost `{name}`: they are F, B, W, BW, R, FB, comm and wparts");
                return Err(Failure::usage(reporter, message));
            }
        }
    }
    Ok(file)
}
