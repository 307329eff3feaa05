//! From syntax trees to a [`Spec`]: choose a pipeline, then resolve what it names.

use super::cluster::cluster;
use super::constant::{Constant, Environment, Kind, Settings, settings, wrong_kind};
use super::given;
use super::model::model;
use super::pipeline::{pipeline, wished};
use super::report::Report;
use super::settings::{Declared, specialise};
use super::sources::Sources;
use super::train::{Resolved, train};
use super::{Cluster, Model, Origin, Origins, Spec};
use pipe_grammar::ast::{self, File};
use pipe_grammar::diagnostic::{Code, Diagnostic, SourceId, suggest};

/// Which declarations to take where a file leaves a choice, or others than the pipeline says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// The name of the pipeline; needed where a file has several.
    pub pipeline: Option<String>,
    /// The name or path of the model, in place of that of the pipeline.
    pub model: Option<String>,
    /// The name or path of the cluster, in place of that of the pipeline.
    pub cluster: Option<String>,
    /// The name of the training run, in place of that of the pipeline.
    pub train: Option<String>,
    /// Rules of fusion that are left out, by name.
    pub without: std::collections::BTreeSet<String>,
}

/// What a file means.
#[derive(Clone, Debug)]
pub struct Resolution {
    /// The meaning itself.
    pub spec: Spec,
    /// Where it stands in the text.
    pub origins: Origins,
    /// What is legal but probably not meant.
    pub warnings: Vec<Diagnostic>,
}

/// Resolves the chosen pipeline of a file, with everything that it names.
///
/// All declarations of the file are checked, chosen or not, and everything that is wrong with them is reported at once,
/// by place. The file must have been parsed without a fault: what a fault swallowed would be missed here.
pub fn resolve(sources: &Sources, entry: SourceId, choice: &Choice) -> Result<Resolution, Vec<Diagnostic>> {
    let mut report = Report::default();
    let mut origins = Origins::default();
    let spec = sources.file(entry).and_then(|file| {
        sources.check(entry, &mut report);
        let spec = chosen(sources, file, choice, &mut origins, &mut report);
        check_all(sources, file, spec.as_ref().map(|spec| spec.train.seq), &mut report);
        spec
    });
    let clean = report.errors() == 0;
    let diagnostics = report.into_sorted();
    match spec {
        Some(spec) if clean => Ok(Resolution { spec, origins, warnings: diagnostics }),
        Some(_) | None => Err(diagnostics),
    }
}

/// Checks every declaration of a file that may have no pipeline, such as a library of models.
pub fn check(sources: &Sources, entry: SourceId) -> Vec<Diagnostic> {
    let mut report = Report::default();
    if let Some(file) = sources.file(entry) {
        sources.check(entry, &mut report);
        check_all(sources, file, None, &mut report);
    }
    report.into_sorted()
}

/// Checks the declarations of a file that need no arguments, and every training run and pipeline.
fn check_all(sources: &Sources, file: &File, seq: Option<u64>, report: &mut Report) {
    let source = file.source;
    for declaration in &file.trains {
        train(source, declaration, report);
    }
    for declaration in &file.pipelines {
        let values = settings(&declaration.settings, source, &Environment::new(), report);
        wished(&values, report);
    }
    let closed =
        |parameters: &[ast::Parameter]| parameters.iter().all(|parameter| parameter.default.is_some());
    for declaration in file.models.iter().filter(|model| closed(&model.parameters)) {
        if report.is_full() {
            return;
        }
        let origin = Origin { source, span: declaration.name.span };
        let used = Used { path: declaration.name.text.clone(), origin, settings: nothing(origin) };
        resolve_model(sources, &used, seq, &mut Origins::default(), report);
    }
    for declaration in file.clusters.iter().filter(|cluster| closed(&cluster.parameters)) {
        if report.is_full() {
            return;
        }
        let origin = Origin { source, span: declaration.name.span };
        let used = Used { path: declaration.name.text.clone(), origin, settings: nothing(origin) };
        resolve_cluster(sources, &used, report);
    }
}

/// A model or cluster as it is asked for: `llama` or `llama { layers: 2 }`.
struct Used {
    path: String,
    origin: Origin,
    settings: Settings,
}

fn nothing(origin: Origin) -> Settings {
    Settings { origin, entries: Vec::new() }
}

fn chosen(
    sources: &Sources,
    file: &File,
    choice: &Choice,
    origins: &mut Origins,
    report: &mut Report,
) -> Option<Spec> {
    let source = file.source;
    let declaration = choose_pipeline(file, choice, report)?;
    let mut values = settings(&declaration.settings, source, &Environment::new(), report);
    // A complaint about the whole block points at its first word.
    let start = declaration.span.start;
    values.origin.span = ast::Span::new(start, start + "pipeline".len());
    let wished = wished(&values, report).and_then(|wished| given::find(wished, sources, report));
    let (model_used, cluster_used) = (
        used("model", &values, choice.model.as_deref(), report),
        used("cluster", &values, choice.cluster.as_deref(), report),
    );
    let train = choose_train(sources, file, &values, choice, report)
        .and_then(|(source, declaration)| train(source, declaration, report));
    let cluster = cluster_used.and_then(|used| resolve_cluster(sources, &used, report));
    let seq = train.as_ref().map(|train: &Resolved| train.train.seq);
    let model = model_used.and_then(|used| resolve_model(sources, &used, seq, origins, report));
    let (wished, mut train) = (wished?, train?);
    let (model, cluster) = (model?, cluster?);
    let pipeline = pipeline(&wished, &model, &cluster, &mut train, report)?;
    let places = |key: &str| {
        let entry = values.entries.iter().find(|(name, _, _)| name == key);
        entry.map_or(values.origin, |(_, origin, value)| Origin {
            source: origin.source,
            span: origin.span.to(value.origin.span),
        })
    };
    origins.stages = places("stages");
    origins.schedule = places("schedule");
    origins.cut = places("layers");
    origins.cluster = places("cluster");
    origins.micro_batch = train.micro_batch;
    origins.precision = train.precision;
    Some(Spec { model, cluster, train: train.train, pipeline, without: choice.without.clone() })
}

fn choose_pipeline<'a>(file: &'a File, choice: &Choice, report: &mut Report) -> Option<&'a ast::Pipeline> {
    let names = || file.pipelines.iter().filter_map(|pipeline| pipeline.name.as_ref());
    let error = |code: Code, message: String| Diagnostic::error(file.source, code, message);
    if let Some(wanted) = &choice.pipeline {
        let found = file
            .pipelines
            .iter()
            .find(|pipeline| pipeline.name.as_ref().is_some_and(|name| name.text == *wanted));
        if found.is_none() {
            let error = error(Code::UnknownName, format!("there is no pipeline `{wanted}`"));
            report.push(match suggest(wanted, names().map(|name| name.text.as_str())) {
                Some(near) => error.help(format!("did you mean `{near}`?")),
                None => error,
            });
        }
        return found;
    }
    match file.pipelines.as_slice() {
        [] => {
            report.push(
                error(Code::NothingToChoose, "there is no pipeline in this file".to_owned())
                    .at(ast::Span::default(), "")
                    .help("add `pipeline { model: .., cluster: .., stages: .. }`"),
            );
            None
        }
        [one] => Some(one),
        [first, second, ..] => {
            let listed: Vec<_> = names().map(|name| format!("`{name}`")).collect();
            let at = |pipeline: &ast::Pipeline| {
                let start = pipeline.span.start;
                pipeline
                    .name
                    .as_ref()
                    .map_or(ast::Span::new(start, start + "pipeline".len()), |name| name.span)
            };
            let message = format!("this file has {} pipelines", file.pipelines.len());
            report.push(
                error(Code::AmbiguousChoice, message)
                    .at(at(second), "another one")
                    .with(at(first), "the first one")
                    .help(if listed.len() == file.pipelines.len() {
                        format!("choose one with `--pipeline`: {}", listed.join(", "))
                    } else {
                        "give each a name and choose one with `--pipeline`".to_owned()
                    }),
            );
            None
        }
    }
}

/// The training run: the chosen one, that of the pipeline, or the only one.
fn choose_train<'a>(
    sources: &'a Sources,
    file: &'a File,
    values: &Settings,
    choice: &Choice,
    report: &mut Report,
) -> Option<(SourceId, &'a ast::Train)> {
    let source = file.source;
    let entry = values.entries.iter().find(|(key, _, _)| key == "train").map(|(_, _, value)| value);
    if let Some(wanted) = &choice.train {
        let found = sources.find::<ast::Train>(source, wanted);
        if found.is_none() {
            let message = format!("there is no train `{wanted}`");
            report.push(Diagnostic::error(source, Code::UnknownName, message));
        }
        return found;
    }
    if let Some(value) = entry {
        let Kind::Word(path) = &value.kind else {
            wrong_kind(value, "the name of a training run", report);
            return None;
        };
        return sources.look_up::<ast::Train>(path, value.origin, report);
    }
    let used = sources.used_files(source);
    let others = used.into_iter().flat_map(|file| file.trains.iter().map(move |train| (file.source, train)));
    let own: Vec<_> = file.trains.iter().map(|train| (source, train)).collect();
    let candidates = if own.is_empty() { others.collect() } else { own };
    match candidates.as_slice() {
        [one] => Some(*one),
        [] => {
            report.push(
                Diagnostic::error(source, Code::NothingToChoose, "there is no training run in this file")
                    .at(values.origin.span, "this pipeline has nothing to train by")
                    .help("add `train { seq: 256, global_batch: 16, micro_batch: 2, optimizer: adamw { lr: 3e-4 } }`"),
            );
            None
        }
        several => {
            let names: Vec<_> = several
                .iter()
                .filter_map(|(_, train)| train.name.as_ref())
                .map(|name| format!("`{name}`"))
                .collect();
            report.push(
                Diagnostic::error(
                    source,
                    Code::AmbiguousChoice,
                    format!("there are {} training runs", several.len()),
                )
                .at(values.origin.span, "this pipeline does not say which one")
                .help(if names.len() == several.len() {
                    format!("name it in the pipeline as `train: ..`: {}", names.join(", "))
                } else {
                    "give each a name and write `train: NAME` in the pipeline".to_owned()
                }),
            );
            None
        }
    }
}

/// What the pipeline, or the caller in its place, names as `model` or `cluster`.
fn used(key: &str, values: &Settings, chosen: Option<&str>, report: &mut Report) -> Option<Used> {
    let entry = values.entries.iter().find(|(name, _, _)| name == key).map(|(_, _, value)| value);
    if let Some(path) = chosen {
        return Some(Used { path: path.to_owned(), origin: values.origin, settings: nothing(values.origin) });
    }
    let Some(Constant { origin, kind }) = entry else {
        let example = if key == "model" { "tiny" } else { "local { devices: 4 }" };
        report.push(
            Diagnostic::error(values.origin.source, Code::MissingKey, format!("a pipeline needs `{key}`"))
                .at(values.origin.span, "")
                .help(format!("add `{key}: {example}`")),
        );
        return None;
    };
    match kind {
        Kind::Word(path) => Some(Used { path: path.clone(), origin: *origin, settings: nothing(*origin) }),
        Kind::Record(path, place, settings) => {
            Some(Used { path: path.clone(), origin: *place, settings: settings.clone() })
        }
        Kind::Poison
        | Kind::Number(_)
        | Kind::Quantity(..)
        | Kind::Text(_)
        | Kind::List(_)
        | Kind::Call(..) => {
            wrong_kind(
                &Constant { origin: *origin, kind: kind.clone() },
                &format!("the name of a {key}"),
                report,
            );
            None
        }
    }
}

fn resolve_model(
    sources: &Sources,
    used: &Used,
    seq: Option<u64>,
    origins: &mut Origins,
    report: &mut Report,
) -> Option<Model> {
    // Where nothing says how long a sequence is, any length finds what is wrong elsewhere.
    let length = Constant::number(used.origin, seq.unwrap_or(1));
    let base = Environment::from([("seq".to_owned(), length)]);
    let (name, specialised) = written_out::<ast::Model>(sources, used, &base, report)?;
    model(&name, &specialised, seq, origins, report)
}

fn resolve_cluster(sources: &Sources, used: &Used, report: &mut Report) -> Option<Cluster> {
    let (name, specialised) = written_out::<ast::Cluster>(sources, used, &Environment::new(), report)?;
    cluster(&name, &specialised, used.origin, report)
}

/// The declaration behind a name, written out, with the name it is known by.
fn written_out<'a, D: Declared>(
    sources: &'a Sources,
    used: &Used,
    base: &Environment,
    report: &mut Report,
) -> Option<(String, super::settings::Specialised<'a, D::Item>)> {
    let found = sources.look_up::<D>(&used.path, used.origin, report)?;
    let name = found.1.name().to_owned();
    let specialised = specialise(sources, found, used.origin, used.settings.clone(), base, report)?;
    Some((name, specialised))
}
