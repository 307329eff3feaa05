//! `pipec build`: compiles a file and writes a form of it.

use super::{Failure, load};
use crate::arguments::{BuildArguments, Emit};
use crate::files;
use crate::report::Reporter;
use crate::show;
use pipec_compiler::pipeline::{Observer, Stage};
use pipec_compiler::schedule::csv::Dialect;
use pipec_compiler::{graph, mode, plan, schedule, spec};
use pipec_program::simulate::simulate;
use pipec_program::{Costs, text};
use std::path::{Path, PathBuf};
use std::time::Instant;

pub(super) fn execute(arguments: &BuildArguments, reporter: Reporter) -> Result<(), Failure> {
    let text = emit(arguments, reporter)?;
    let beside = beside(arguments);
    let target = arguments.output.as_deref().or(beside.as_deref());
    files::write(target, text.as_bytes())
        .map_err(|error| Failure::file(reporter, target.unwrap_or("standard output".as_ref()), &error))?;
    if let (Some(path), None) = (&beside, &arguments.output) {
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}

/// Where a program goes that no option places: beside its source.
fn beside(arguments: &BuildArguments) -> Option<PathBuf> {
    let file = &arguments.input.file;
    (arguments.emit == Emit::Program && file != Path::new("-")).then(|| file.with_extension("pprog"))
}

fn emit(arguments: &BuildArguments, reporter: Reporter) -> Result<String, Failure> {
    let loaded = load::spec(&arguments.input, reporter)?;
    let resolved = &loaded.resolution.spec;
    let mut stages = Stages {
        timings: arguments.timings,
        started: Instant::now(),
        graphs: String::new(),
        forms: String::new(),
        modes: String::new(),
    };
    match arguments.emit {
        Emit::Ast => return Ok(format!("{:#?}\n", loaded.file)),
        Emit::Spec => return Ok(spec::print(resolved)),
        Emit::Graph
        | Emit::Kernels
        | Emit::Modes
        | Emit::Plan
        | Emit::Schedule
        | Emit::ScheduleJson
        | Emit::TorchCsv
        | Emit::Program
        | Emit::Timeline => {}
    }
    let compiled = load::compile(&loaded, &mut stages, reporter)?;
    let mut text = match arguments.emit {
        Emit::Ast | Emit::Spec | Emit::Graph => stages.graphs,
        Emit::Kernels => stages.forms,
        Emit::Modes => stages.modes,
        Emit::Plan => plan::print(&compiled.plan, &resolved.model),
        Emit::Schedule => schedule::print(&compiled.problem, &compiled.schedule),
        Emit::ScheduleJson if compiled.replica.forward_stages().is_some() => {
            let message = "the file has one number for a stage, and there is a cut for each direction";
            return Err(Failure::diagnostics(reporter.plain(None, message)));
        }
        Emit::ScheduleJson => show::schedule_json(&compiled.replica, &compiled.order, &compiled.plan.lengths),
        Emit::TorchCsv => super::schedule::torch_csv(
            &compiled.replica,
            &compiled.order,
            Dialect::ComputeOnly,
            arguments.lossy,
            reporter,
        )?,
        Emit::Program => text::print(&compiled.program),
        Emit::Timeline => {
            let timeline = simulate(&compiled.program, &Costs::roofline(&compiled.program));
            show::json(&compiled.program, &timeline)
        }
    };
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

/// Keeps the graphs, the modes and the kernels, and tells the time of each stage.
struct Stages {
    timings: bool,
    started: Instant,
    graphs: String,
    forms: String,
    modes: String,
}

impl Observer for Stages {
    fn stage(&mut self, stage: Stage<'_>) {
        if self.timings {
            eprintln!("{:>10.3} ms  {}", self.started.elapsed().as_secs_f64() * 1e3, stage.name());
        }
        if let Stage::Graphs(graphs) = stage {
            let printed: Vec<String> = graphs.values().map(graph::print).collect();
            self.graphs = printed.join("\n");
        }
        if let Stage::Layers(layers) = stage {
            self.modes = layers.values().map(mode::print_modes).collect::<Vec<String>>().join("\n");
        }
        if let Stage::Forms(forms) = stage {
            let printed: Vec<String> = forms.all().map(mode::print).collect();
            self.forms = printed.join("\n");
        }
        self.started = Instant::now();
    }
}
