//! File tests: `tests/suite/STAGE/NAME.pipe` in, what the stage makes of it out, one file per case.
//!
//! A case of a stage has its golden beside it, `NAME.snap`, with the first comment of the file as its description. A case
//! of `errors` says what is said about it on the line where it is said (see `expectations`), and nothing else may be
//! said; how some of them are drawn for people is a golden, too. `small.pipe` is the model and the run of cases whose
//! point is neither.

#[path = "suite/expectations.rs"]
mod expectations;

use expectations::{Said, expected};
use pipe_grammar::diagnostic::{Code, Diagnostic, SourceId};
use pipec::arguments::{Color, ErrorFormat};
use pipec::report::Reporter;
use pipec::show::{self, Named, Scale};
use pipec_compiler::pipeline::{Observer, Stage};
use pipec_compiler::spec::{Choice, Resolution, Spec};
use pipec_compiler::{graph, mode, pipeline, plan, schedule, spec};
use pipec_program::{Costs, simulate, text};
use pipec_tests::{Read, read, root};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

/// The folders of `tests/suite`.
const STAGES: [&str; 6] = ["errors", "graph", "plan", "program", "schedule", "timeline"];

/// Cases of `errors` that are also drawn.
const DRAWN: [&str; 9] = [
    "cyclic_use",
    "device_mismatch",
    "fault_in_a_used_file",
    "host_out_of_memory",
    "missing_argument",
    "out_of_memory",
    "several_faults_of_form",
    "shape_mismatch",
    "unused_number",
];

/// Codes that no case can cause, each with the reason.
const NO_CASE: [(Code, &str); 3] = [
    (Code::TooLarge, "the file would be of 1 MiB; the parser's own tests make one"),
    (Code::NotUtf8, "the file would not be text; the parser's own tests make one"),
    (Code::DataNotFound, "data is looked for when a run starts, not when a file is compiled"),
];

/// A case.
struct Case {
    /// The name of its file without ending.
    name: String,
    /// The path of its file from the root of the repository.
    path: String,
}

/// The cases of a stage, by name.
fn cases(stage: &str) -> Vec<Case> {
    let mut names = names(stage, "pipe");
    assert!(!names.is_empty(), "tests/suite/{stage} has no cases");
    names.sort();
    names.into_iter().map(|name| Case { path: format!("tests/suite/{stage}/{name}.pipe"), name }).collect()
}

/// The names without ending of the files of a folder that have an ending.
fn names(stage: &str, ending: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder(stage)).unwrap_or_else(|error| panic!("{stage}: {error}"));
    let paths = entries.map(|entry| entry.unwrap().path());
    let named = paths.filter(|path| path.extension().is_some_and(|extension| extension == ending));
    named.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}

fn folder(stage: &str) -> PathBuf {
    root().join("tests/suite").join(stage)
}

/// Runs a test on every case of a stage; all are run, whether or not some fail.
fn each(stage: &str, test: impl Fn(&Case)) {
    let failed: Vec<String> = cases(stage)
        .into_iter()
        .filter(|case| catch_unwind(AssertUnwindSafe(|| test(case))).is_err())
        .map(|case| case.path)
        .collect();
    assert!(failed.is_empty(), "these cases fail:\n    {}", failed.join("\n    "));
}

/// Compares with the golden of a case.
fn golden(stage: &str, case: &Case, text: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(folder(stage).canonicalize().unwrap());
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.set_input_file(root().join(&case.path));
    if let Some(description) = description(&read(&case.path).texts[0].text) {
        settings.set_description(description);
    }
    settings.bind(|| insta::assert_snapshot!(case.name.as_str(), text));
}

/// The comment at the top of a file.
fn description(text: &str) -> Option<String> {
    let lines: Vec<&str> = text.lines().map_while(|line| line.strip_prefix("//")).map(str::trim).collect();
    (!lines.is_empty()).then(|| lines.join(" "))
}

/// The spec of a case that has no faults.
fn resolved(case: &Case) -> Resolution {
    pipec_tests::resolve(&case.path)
}

/// Everything that is said about a file by the stage that rejects it, or by all if none does.
fn diagnose(read: &Read) -> Vec<Diagnostic> {
    if !read.faults.is_empty() {
        return read.faults.clone();
    }
    // A file without a pipeline is a library, every declaration of which is checked.
    if read.file.pipelines.is_empty() {
        return spec::check(&read.sources, SourceId(0));
    }
    let Resolution { spec, origins, warnings } =
        match spec::resolve(&read.sources, SourceId(0), &Choice::default()) {
            Ok(resolution) => resolution,
            Err(diagnostics) => return diagnostics,
        };
    match pipec_tests::compile(&spec, &origins) {
        Ok(_) => warnings,
        Err(pipeline::Error::Diagnostics(diagnostics)) => [warnings, diagnostics].concat(),
        Err(pipeline::Error::Internal(message)) => panic!("{message}"),
    }
}

#[test]
fn errors() {
    each("errors", |case| {
        let read = read(&case.path);
        let found = diagnose(&read);
        for (number, source) in (0..).zip(&read.texts) {
            let said = found.iter().filter(|diagnostic| diagnostic.source == SourceId(number));
            let said: BTreeSet<Said> = said.map(|diagnostic| Said::new(diagnostic, &source.text)).collect();
            let expected = expected(&source.text);
            let list =
                |lines: Vec<&Said>| lines.iter().map(|said| format!("\n    {said}")).collect::<String>();
            assert!(
                said == expected,
                "{}:\nexpected, and not said:{}\nsaid, and not expected:{}",
                source.name,
                list(expected.difference(&said).collect()),
                list(said.difference(&expected).collect()),
            );
        }
        let own = |diagnostic: &Diagnostic| (diagnostic.source.0 as usize) < read.texts.len();
        assert!(found.iter().all(own), "{}: a fault is told in the library", case.path);
        assert!(!found.is_empty(), "{}: nothing is said about it", case.path);
        if DRAWN.contains(&case.name.as_str()) {
            let reporter = Reporter::new(ErrorFormat::Human, Color::Never);
            golden("errors", case, &reporter.diagnostics(&read.texts, &found));
        }
    });
}

#[test]
fn every_code_has_a_case() {
    let said: BTreeSet<Code> =
        cases("errors").iter().flat_map(|case| diagnose(&read(&case.path))).map(|said| said.code).collect();
    for &code in Code::ALL {
        let excused = NO_CASE.iter().find(|(excused, _)| *excused == code);
        match excused {
            None => assert!(said.contains(&code), "no case of tests/suite/errors causes {code}"),
            Some((_, reason)) => assert!(!said.contains(&code), "{code} has a case, although {reason}"),
        }
    }
}

#[test]
fn graphs() {
    struct Printed(String);
    impl Observer for Printed {
        fn stage(&mut self, stage: Stage<'_>) {
            let printed: Vec<String> = match stage {
                Stage::Graphs(graphs) => graphs.values().map(graph::print).collect(),
                Stage::Forms(forms) => forms.all().map(mode::print).collect(),
                Stage::Layers(_)
                | Stage::Plan(_)
                | Stage::Functions(_)
                | Stage::Schedule(_)
                | Stage::Lowered(_)
                | Stage::Program(_) => return,
            };
            self.0 += &printed.join("\n");
            self.0 += "\n";
        }
    }
    each("graph", |case| {
        let Resolution { spec, origins, .. } = resolved(case);
        let mut printed = Printed(String::new());
        pipeline::compile(&spec, &origins, "", &mut printed).unwrap();
        golden("graph", case, &printed.0);
    });
}

/// The spec of a case and what it compiles to.
fn compiled(case: &Case) -> (Spec, pipeline::Compiled) {
    let Resolution { spec, origins, .. } = resolved(case);
    let compiled = pipec_tests::compile(&spec, &origins).unwrap_or_else(|error| panic!("{error}"));
    (spec, compiled)
}

#[test]
fn plans() {
    each("plan", |case| {
        let (spec, compiled) = compiled(case);
        golden("plan", case, &plan::print(&compiled.plan, &spec.model));
    });
}

#[test]
fn schedules() {
    each("schedule", |case| {
        let (_, compiled) = compiled(case);
        golden("schedule", case, &schedule::print(&compiled.problem, &compiled.schedule));
    });
}

/// Without the version of the compiler, which says nothing about the case.
#[test]
fn programs() {
    each("program", |case| {
        let (_, compiled) = compiled(case);
        let printed = text::print(&compiled.program);
        let lines = printed.lines().filter(|line| !line.starts_with("compiler "));
        golden("program", case, &lines.collect::<Vec<_>>().join("\n"));
    });
}

/// In units, where the order is seen, and then in time.
#[test]
fn timelines() {
    each("timeline", |case| {
        let (_, compiled) = compiled(case);
        let program = &compiled.program;
        let timeline = simulate(program, &Costs::unit(program));
        let grid = show::grid(program, &[Named { name: "unit costs", timeline: &timeline }], Scale::Unit);
        let timeline = simulate(program, &Costs::roofline(program));
        golden("timeline", case, &format!("{grid}\n{}", show::tables(program, &timeline)));
    });
}

#[test]
fn no_file_is_left_over() {
    let entries = std::fs::read_dir(folder("")).unwrap().map(|entry| entry.unwrap());
    let folders = entries.filter(|entry| entry.path().is_dir());
    let mut folders: Vec<String> = folders.map(|entry| entry.file_name().into_string().unwrap()).collect();
    folders.sort();
    assert_eq!(folders, STAGES);
    for stage in STAGES {
        let cases: BTreeSet<String> = names(stage, "pipe").into_iter().collect();
        for golden in names(stage, "snap") {
            assert!(cases.contains(&golden), "tests/suite/{stage}/{golden}.snap has no case");
            assert!(stage != "errors" || DRAWN.contains(&golden.as_str()), "{golden} is not drawn");
        }
    }
}
