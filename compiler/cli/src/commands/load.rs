//! From a file name to a spec or a verified program.

use super::Failure;
use crate::arguments::{Choice, Input};
use crate::files;
use crate::report::{Reporter, Source, position};
use pipe_grammar::ast::File;
use pipe_grammar::diagnostic::{Diagnostic, Severity, SourceId};
use pipec_compiler::pipeline::{self, Compiled, Observer};
use pipec_compiler::schedule::given;
use pipec_compiler::spec::{self, Resolution, Sources};
use pipec_program::{Verified, text, verify};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// A `.pipe` file with everything it uses, resolved.
pub(crate) struct Loaded {
    /// The texts, in the numbering of diagnostics.
    pub(crate) sources: Vec<Source>,
    /// The syntax tree of the file itself.
    pub(crate) file: File,
    /// What they mean.
    pub(crate) resolution: Resolution,
    /// The identity of what was read: SHA-256 of the texts and the choice, in hexadecimal.
    pub(crate) hash: String,
}

/// Whether a file holds a program rather than a spec, by its name.
pub(crate) fn is_program(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "pprog")
}

/// Reads and resolves a `.pipe` file; warnings go to standard error.
pub(crate) fn spec(input: &Input, reporter: Reporter) -> Result<Loaded, Failure> {
    if is_program(&input.file) {
        return Err(Failure::usage(
            reporter,
            format!("{} is a program; this needs a .pipe file", input.file.display()),
        ));
    }
    let Parsed { sources, file, parsed, schedules } = parse(&input.file, reporter)?;
    let choice = choice(&input.choice);
    let resolution = spec::resolve(&parsed, SourceId(0), &choice)
        .map_err(|diagnostics| Failure::diagnostics(reporter.diagnostics(&sources, &diagnostics)))?;
    if !resolution.warnings.is_empty() {
        eprint!("{}", reporter.diagnostics(&sources, &resolution.warnings));
    }
    let texts = sources.iter().map(|source| &source.text).chain(&schedules);
    let hash = hash(texts, &input.choice);
    Ok(Loaded { sources, file, resolution, hash })
}

/// Checks a file of models, clusters and training runs that has no pipeline; false for a file that has one, or a program.
pub(crate) fn check_library(input: &Input, reporter: Reporter) -> Result<bool, Failure> {
    // Standard input can be read once only, and is no library.
    if is_program(&input.file) || input.file == Path::new("-") {
        return Ok(false);
    }
    let Parsed { sources, file, parsed, schedules: _ } = parse(&input.file, reporter)?;
    let declares = !file.models.is_empty() || !file.clusters.is_empty() || !file.trains.is_empty();
    if !file.pipelines.is_empty() || !declares {
        return Ok(false);
    }
    let diagnostics = spec::check(&parsed, SourceId(0));
    let text = reporter.diagnostics(&sources, &diagnostics);
    if diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Error) {
        return Err(Failure::diagnostics(text));
    }
    eprint!("{text}");
    Ok(true)
}

/// A pipeline that a file declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Declared {
    /// Its name.
    pub(crate) name: Option<String>,
    /// Whether the file has no other one.
    pub(crate) only: bool,
    /// The line where it starts, from 1.
    pub(crate) line: usize,
}

impl Declared {
    /// The name by which it is told from the others of its file; none where there are no others.
    pub(crate) fn suffix(&self) -> Option<&str> {
        self.name.as_deref().filter(|_| !self.only)
    }
}

/// The pipelines of a `.pipe` file; of a `.pprog` file, and of a file that has none, a nameless one.
pub(crate) fn pipelines(path: &Path, reporter: Reporter) -> Result<Vec<Declared>, Failure> {
    let only = Declared { name: None, only: true, line: 1 };
    if is_program(path) {
        return Ok(vec![only]);
    }
    let Parsed { sources, file, .. } = parse(path, reporter)?;
    let text = sources.first().map_or("", |source| source.text.as_str());
    let declared = file.pipelines.iter().map(|pipeline| Declared {
        name: pipeline.name.as_ref().map(|name| name.text.clone()),
        only: file.pipelines.len() == 1,
        line: position(text, pipeline.span.start).0,
    });
    let declared: Vec<Declared> = declared.collect();
    Ok(if declared.is_empty() { vec![only] } else { declared })
}

/// The verified program of a pipeline of a file.
pub(crate) fn pipeline(path: &Path, declared: &Declared, reporter: Reporter) -> Result<Verified, Failure> {
    let choice = Choice { pipeline: declared.suffix().map(str::to_owned), ..Choice::default() };
    program(&Input { file: path.to_owned(), choice }, reporter)
}

/// Compiles a resolved file.
pub(crate) fn compile(
    loaded: &Loaded,
    observer: &mut dyn Observer,
    reporter: Reporter,
) -> Result<Compiled, Failure> {
    let Resolution { spec, origins, .. } = &loaded.resolution;
    pipeline::compile(spec, origins, &loaded.hash, observer).map_err(|error| match error {
        pipeline::Error::Diagnostics(diagnostics) => {
            Failure::diagnostics(reporter.diagnostics(&loaded.sources, &diagnostics))
        }
        pipeline::Error::Internal(message) => Failure::internal(reporter, message),
    })
}

/// The verified program of a `.pipe` or `.pprog` file.
pub(crate) fn program(input: &Input, reporter: Reporter) -> Result<Verified, Failure> {
    if is_program(&input.file) {
        return program_text(&input.file, reporter);
    }
    let loaded = spec(input, reporter)?;
    Ok(compile(&loaded, &mut (), reporter)?.program)
}

/// The verified program of a `.pprog` file.
pub(crate) fn program_text(path: &Path, reporter: Reporter) -> Result<Verified, Failure> {
    let bytes = files::read(path).map_err(|error| Failure::file(reporter, path, &error))?;
    let name = path.display();
    let source = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Failure::diagnostics(reporter.plain(None, &format!("{name}: not UTF-8 from byte {at} on")))
    })?;
    let (program, lines) = text::parse(&source).map_err(|errors| {
        let told =
            errors.iter().map(|error| reporter.plain(None, &format!("{name}:{error}"))).collect::<String>();
        Failure::diagnostics(told)
    })?;
    verify(program).map_err(|violations| {
        let mut told = String::new();
        for (line, violation) in violations.at_lines(&lines) {
            let place = line.map_or(name.to_string(), |line| format!("{name}:{line}"));
            told.push_str(&reporter.plain(None, &format!("{place}: {violation}")));
        }
        if violations.more > 0 {
            told.push_str(&reporter.plain(None, &format!("{name}: and {} more", violations.more)));
        }
        Failure::diagnostics(told)
    })
}

fn choice(choice: &Choice) -> spec::Choice {
    spec::Choice {
        pipeline: choice.pipeline.clone(),
        model: choice.model.clone(),
        cluster: choice.cluster.clone(),
        train: choice.train.clone(),
        without: choice.without.iter().cloned().collect(),
    }
}

/// A file and all files that it uses.
struct Parsed {
    /// The texts, in the numbering of diagnostics.
    sources: Vec<Source>,
    /// The syntax tree of the file itself.
    file: File,
    /// All of them, to be resolved.
    parsed: Sources,
    /// The texts of the schedules that the file takes from files.
    schedules: Vec<String>,
}

/// Reads and parses a file and all files that it uses, directly or not.
fn parse(entry: &Path, reporter: Reporter) -> Result<Parsed, Failure> {
    let mut sources = Vec::new();
    let mut parsed = Sources::new();
    let mut first = None;
    let mut faults: Vec<Diagnostic> = Vec::new();
    let mut waiting: Vec<PathBuf> = vec![entry.to_path_buf()];
    while let Some(path) = waiting.pop() {
        let bytes = match files::read(&path) {
            Ok(bytes) => bytes,
            // A used file that is missing is told at the place of its `use`.
            Err(_) if !sources.is_empty() => continue,
            Err(error) => return Err(Failure::file(reporter, &path, &error)),
        };
        let id = SourceId(u32::try_from(sources.len()).unwrap_or(u32::MAX));
        let file = match std::str::from_utf8(&bytes) {
            Ok(text) => pipe_grammar::parse(id, text),
            Err(_) => pipe_grammar::parse_bytes(id, &bytes),
        };
        let name = path.display().to_string();
        for used in spec::uses(&file.file) {
            let used = spec::used_path(&name, &used.value);
            let known = parsed.at(&used).is_some() || spec::used_path("", &name) == used;
            if !known && !waiting.iter().any(|path| path.display().to_string() == used) {
                waiting.push(PathBuf::from(used));
            }
        }
        faults.extend(file.diagnostics);
        first.get_or_insert_with(|| file.file.clone());
        parsed.add(&name, file.file);
        sources.push(Source { name, text: String::from_utf8_lossy(&bytes).into_owned() });
    }
    if !faults.is_empty() {
        return Err(Failure::diagnostics(reporter.diagnostics(&sources, &faults)));
    }
    let file = first.unwrap_or_default();
    let schedules = read_schedules(&entry.display().to_string(), &file, &mut parsed);
    Ok(Parsed { sources, file, parsed, schedules })
}

/// Reads the schedules that a file takes from files, and returns their texts. One that is missing is told at the place
/// that names it.
fn read_schedules(name: &str, file: &File, parsed: &mut Sources) -> Vec<String> {
    let mut texts = Vec::new();
    for named in spec::schedules(file) {
        let path = spec::used_path(name, &named.value);
        let Ok(bytes) = files::read(Path::new(&path)) else { continue };
        let schedule = match String::from_utf8(bytes) {
            Ok(text) => {
                let given = given::read(&path, &text);
                texts.push(text);
                given
            }
            Err(error) => Err(format!("not UTF-8 from byte {} on", error.utf8_error().valid_up_to())),
        };
        parsed.add_schedule(&path, schedule);
    }
    texts
}

fn hash<'a>(texts: impl Iterator<Item = &'a String>, choice: &Choice) -> String {
    let mut hash = Sha256::new();
    for text in texts {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    }
    let names = [&choice.pipeline, &choice.model, &choice.cluster, &choice.train].into_iter().flatten();
    for name in names.chain(&choice.without) {
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name.as_bytes());
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
