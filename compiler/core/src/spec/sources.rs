//! The files of a specification, the library that is shipped with pipec, and how a name finds its declaration.
//!
//! Reading files is the caller's business: it asks a parsed file for the files it [`uses`], reads and parses those,
//! adds each under the path that [`used_path`] gives, and goes on until nothing is missing.

use super::report::Report;
use super::{Given, Origin};
use pipe_grammar::ast::{Cluster, File, Model, Path, Text, Train, Use, UseTarget};
use pipe_grammar::diagnostic::{Code, Diagnostic, SourceId, suggest};
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// A file of the shipped library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LibraryFile {
    /// Its place in paths: `std::models`.
    pub path: &'static str,
    /// Its text, in the language itself.
    pub text: &'static str,
    /// What its diagnostics call it; counted down from the largest number, so that the caller's own files, which count
    /// up from 0, never meet it.
    pub source: SourceId,
}

/// The shipped library.
pub const LIBRARY: &[LibraryFile] = &[
    LibraryFile {
        path: "std::models",
        text: include_str!("../../std/models.pipe"),
        source: SourceId(u32::MAX),
    },
    LibraryFile {
        path: "std::clusters",
        text: include_str!("../../std/clusters.pipe"),
        source: SourceId(u32::MAX - 1),
    },
];

/// The parsed files of a specification, by path, and the library.
#[derive(Debug)]
pub struct Sources {
    files: BTreeMap<SourceId, (String, Indexed)>,
    paths: BTreeMap<String, SourceId>,
    /// Schedules in files, by path, or what is wrong with them.
    schedules: BTreeMap<String, Result<Given, String>>,
    /// Parsed when they are first asked for.
    library: Vec<(&'static LibraryFile, OnceLock<Indexed>)>,
}

/// A file and where its declarations stand in it, by kind and name; the first of a name counts.
#[derive(Debug)]
pub(super) struct Indexed {
    pub(super) file: File,
    index: BTreeMap<(&'static str, String), usize>,
}

impl Indexed {
    fn new(file: File) -> Self {
        fn names<D: Named>(file: &File, index: &mut BTreeMap<(&'static str, String), usize>) {
            for (position, declaration) in D::all(file).iter().enumerate() {
                index.entry((D::KIND, declaration.name().to_owned())).or_insert(position);
            }
        }
        let mut index = BTreeMap::new();
        names::<Model>(&file, &mut index);
        names::<Cluster>(&file, &mut index);
        names::<Train>(&file, &mut index);
        Indexed { file, index }
    }

    fn declared<D: Named>(&self, name: &str) -> Option<&D> {
        self.index.get(&(D::KIND, name.to_owned())).and_then(|position| D::all(&self.file).get(*position))
    }
}

impl Sources {
    /// The library and no file yet.
    pub fn new() -> Self {
        let library = LIBRARY.iter().map(|file| (file, OnceLock::new())).collect();
        Sources { files: BTreeMap::new(), paths: BTreeMap::new(), schedules: BTreeMap::new(), library }
    }

    /// Adds a file under its path, `/` between the parts. The path matters only for `use "..."`.
    pub fn add(&mut self, path: &str, file: File) {
        let path = used_path("", path);
        self.paths.insert(path.clone(), file.source);
        self.files.insert(file.source, (path, Indexed::new(file)));
    }

    /// Adds a schedule in a file under its path, or what is wrong with it.
    pub fn add_schedule(&mut self, path: &str, schedule: Result<Given, String>) {
        self.schedules.insert(used_path("", path), schedule);
    }

    /// The schedule that `from("...")` in a file means.
    pub(super) fn schedule(&self, from: SourceId, name: &str) -> Option<&Result<Given, String>> {
        let path = self.files.get(&from).map_or("", |(path, _)| path.as_str());
        self.schedules.get(&used_path(path, name))
    }

    /// The file that was added under a path.
    pub fn at(&self, path: &str) -> Option<SourceId> {
        self.paths.get(path).copied()
    }

    pub(super) fn file(&self, source: SourceId) -> Option<&File> {
        self.indexed(source).map(|indexed| &indexed.file)
    }

    fn indexed(&self, source: SourceId) -> Option<&Indexed> {
        let own = self.files.get(&source).map(|(_, file)| file);
        own.or_else(|| self.shipped(|file| file.source == source))
    }

    fn library(&self, path: &str) -> Option<&Indexed> {
        self.shipped(|file| file.path == path)
    }

    fn shipped(&self, wanted: impl Fn(&LibraryFile) -> bool) -> Option<&Indexed> {
        let (file, parsed) = self.library.iter().find(|(file, _)| wanted(file))?;
        Some(parsed.get_or_init(|| Indexed::new(pipe_grammar::parse(file.source, file.text).file)))
    }

    /// Every file of the library with its path.
    fn whole_library(&self) -> impl Iterator<Item = (&'static str, &Indexed)> {
        self.library.iter().filter_map(|(file, _)| Some((file.path, self.library(file.path)?)))
    }

    /// The file that `use "..."` in `from` means.
    fn used(&self, from: SourceId, text: &Text) -> Option<&Indexed> {
        let path = self.files.get(&from).map_or("", |(path, _)| path.as_str());
        self.at(&used_path(path, &text.value)).and_then(|source| self.indexed(source))
    }

    /// The files that a file uses whole, in order.
    pub(super) fn used_files(&self, from: SourceId) -> Vec<&File> {
        let uses = self.file(from).map_or(&[][..], |file| &file.uses);
        uses.iter()
            .filter_map(|declaration| match &declaration.target {
                UseTarget::File(text) => self.used(from, text).map(|used| &used.file),
                UseTarget::Name(_) | UseTarget::All(_) => None,
            })
            .collect()
    }
}

impl Default for Sources {
    fn default() -> Self {
        Sources::new()
    }
}

/// The texts of `use "..."` in a file, in order; each names a file relative to this one.
pub fn uses(file: &File) -> impl Iterator<Item = &Text> {
    file.uses.iter().filter_map(|declaration| match &declaration.target {
        UseTarget::File(text) => Some(text),
        UseTarget::Name(_) | UseTarget::All(_) => None,
    })
}

/// The path of a file that the file at `from` uses as `used`: relative to the folder of `from`, without `.` and `..`
/// where they cancel out.
pub fn used_path(from: &str, used: &str) -> String {
    let folder = from.rsplit_once('/').map(|(folder, _)| folder);
    let joined = match folder {
        Some(folder) if !used.starts_with('/') => format!("{folder}/{used}"),
        Some(_) | None => used.to_owned(),
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in joined.split('/') {
        match part {
            "." => {}
            ".." if parts.last().is_some_and(|last| !matches!(*last, ".." | "")) => {
                parts.pop();
            }
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

/// Models and clusters: declarations that a path can name.
pub(super) trait Named: Sized + 'static {
    /// The kind in words.
    const KIND: &'static str;
    /// Those of a file.
    fn all(file: &File) -> &[Self];
    /// The name of one.
    fn name(&self) -> &str;
}

impl Named for Model {
    const KIND: &'static str = "model";
    fn all(file: &File) -> &[Self] {
        &file.models
    }
    fn name(&self) -> &str {
        &self.name.text
    }
}

impl Named for Cluster {
    const KIND: &'static str = "cluster";
    fn all(file: &File) -> &[Self] {
        &file.clusters
    }
    fn name(&self) -> &str {
        &self.name.text
    }
}

impl Named for Train {
    const KIND: &'static str = "train";
    fn all(file: &File) -> &[Self] {
        &file.trains
    }
    fn name(&self) -> &str {
        self.name.as_ref().map_or("", |name| &name.text)
    }
}

impl Sources {
    /// The declaration that a path means in a file, with the file it stands in. Declarations of the file itself come
    /// before used ones.
    pub(super) fn find<D: Named>(&self, from: SourceId, path: &str) -> Option<(SourceId, &D)> {
        fn within<'a, D: Named>(file: &'a Indexed, name: &str) -> Option<(SourceId, &'a D)> {
            file.declared(name).map(|declaration| (file.file.source, declaration))
        }
        if let Some((folder, name)) = path.rsplit_once("::") {
            return self.library(folder).and_then(|file| within(file, name));
        }
        let file = self.indexed(from)?;
        if let Some(own) = within(file, path) {
            return Some(own);
        }
        file.file.uses.iter().find_map(|declaration| match &declaration.target {
            UseTarget::Name(used)
                // A path of one name leads nowhere, and following it would go round in a circle.
                if used.segments.len() > 1
                    && used.segments.last().is_some_and(|last| last.text == path) =>
            {
                self.find(from, &used.to_string())
            }
            UseTarget::Name(_) => None,
            UseTarget::All(used) => self.library(&used.to_string()).and_then(|file| within(file, path)),
            UseTarget::File(text) => self.used(from, text).and_then(|file| within(file, path)),
        })
    }

    /// Every path that [`Sources::find`] knows in a file, for suggestions.
    pub(super) fn known<D: Named>(&self, from: SourceId) -> Vec<String> {
        let mut known = Vec::new();
        let names =
            |file: &Indexed| D::all(&file.file).iter().map(|d| d.name().to_owned()).collect::<Vec<_>>();
        if let Some(file) = self.indexed(from) {
            known.extend(names(file));
            for declaration in &file.file.uses {
                match &declaration.target {
                    UseTarget::Name(path) => {
                        known.extend(path.segments.last().map(|name| name.text.clone()));
                    }
                    UseTarget::All(path) => {
                        known.extend(self.library(&path.to_string()).into_iter().flat_map(names));
                    }
                    UseTarget::File(text) => {
                        known.extend(self.used(from, text).into_iter().flat_map(names));
                    }
                }
            }
        }
        for (folder, file) in self.whole_library() {
            known.extend(names(file).into_iter().map(|name| format!("{folder}::{name}")));
        }
        known
    }

    /// Finds a declaration or reports that there is none.
    pub(super) fn look_up<D: Named>(
        &self,
        path: &str,
        origin: Origin,
        report: &mut Report,
    ) -> Option<(SourceId, &D)> {
        if let Some(found) = self.find(origin.source, path) {
            return Some(found);
        }
        let error =
            Diagnostic::error(origin.source, Code::UnknownName, format!("there is no {} `{path}`", D::KIND))
                .at(origin.span, "");
        report.push(match self.nearest::<D>(origin.source, path) {
            Some(help) => error.help(help),
            None => error,
        });
        None
    }

    /// What a path that leads nowhere may have meant.
    pub(super) fn nearest<D: Named>(&self, from: SourceId, path: &str) -> Option<String> {
        let known = self.known::<D>(from);
        let shipped = known.iter().find(|candidate| candidate.rsplit("::").next() == Some(path));
        match shipped {
            Some(shipped) => Some(format!("the library has it: write `use {shipped}`")),
            None => {
                suggest(path, known.iter().map(String::as_str)).map(|near| format!("did you mean `{near}`?"))
            }
        }
    }

    /// Checks the `use` declarations of a file and that its names are declared once.
    pub(super) fn check(&self, source: SourceId, report: &mut Report) {
        let Some(file) = self.file(source) else { return };
        for declaration in &file.uses {
            self.check_use(file, declaration, report);
        }
        let models = file.models.iter().map(|model| &model.name);
        let clusters = file.clusters.iter().map(|cluster| &cluster.name);
        let trains = file.trains.iter().filter_map(|train| train.name.as_ref());
        let pipelines = file.pipelines.iter().filter_map(|pipeline| pipeline.name.as_ref());
        distinct("model", source, models, report);
        distinct("cluster", source, clusters, report);
        distinct("train", source, trains, report);
        distinct("pipeline", source, pipelines, report);
    }

    fn check_use(&self, file: &File, declaration: &Use, report: &mut Report) {
        let error = |message: String| Diagnostic::error(file.source, Code::UseNotFound, message);
        let folders = || LIBRARY.iter().map(|file| file.path);
        match &declaration.target {
            UseTarget::File(text) => {
                if self.used(file.source, text).is_none() {
                    report.push(
                        error(format!("there is no file `{}`", text.value))
                            .at(text.span, "")
                            .help("the path is relative to the folder of this file"),
                    );
                }
            }
            UseTarget::All(path) => {
                let spelling = path.to_string();
                if self.library(&spelling).is_none() {
                    let near = suggest(&spelling, folders()).map(|near| format!("did you mean `{near}`?"));
                    let help = near.unwrap_or_else(|| {
                        format!("the library has `{}`", folders().collect::<Vec<_>>().join("` and `"))
                    });
                    report.push(error(format!("there is no `{spelling}`")).at(path.span, "").help(help));
                }
            }
            UseTarget::Name(path) => self.check_used_name(file, path, report),
        }
    }

    fn check_used_name(&self, file: &File, path: &Path, report: &mut Report) {
        let spelling = path.to_string();
        let found = self.find::<Model>(file.source, &spelling).is_some()
            || self.find::<Cluster>(file.source, &spelling).is_some();
        if found && path.segments.len() > 1 {
            return;
        }
        let known: Vec<String> = self
            .whole_library()
            .flat_map(|(folder, file)| {
                let names = file.file.models.iter().map(|model| &model.name.text);
                let names = names.chain(file.file.clusters.iter().map(|cluster| &cluster.name.text));
                names.map(move |name| format!("{folder}::{name}"))
            })
            .collect();
        let help = match suggest(&spelling, known.iter().map(String::as_str)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "a path starts with `std::models::` or `std::clusters::`; a file is used as `use \"file.pipe\"`"
                .to_owned(),
        };
        report.push(
            Diagnostic::error(file.source, Code::UseNotFound, format!("there is no `{spelling}`"))
                .at(path.span, "")
                .help(help),
        );
    }
}

fn distinct<'a>(
    kind: &str,
    source: SourceId,
    names: impl Iterator<Item = &'a pipe_grammar::ast::Name>,
    report: &mut Report,
) {
    let mut seen = BTreeMap::new();
    for name in names {
        if let Some(first) = seen.insert(name.text.as_str(), name.span) {
            seen.insert(name.text.as_str(), first);
            report.push(
                Diagnostic::error(
                    source,
                    Code::DuplicateName,
                    format!("{kind} `{}` is declared twice", name.text),
                )
                .at(name.span, "declared again")
                .with(first, "declared here first"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_paths_are_relative_to_the_file() {
        assert_eq!(used_path("a/b.pipe", "c.pipe"), "a/c.pipe");
        assert_eq!(used_path("a/b.pipe", "../c.pipe"), "c.pipe");
        assert_eq!(used_path("b.pipe", "../c.pipe"), "../c.pipe");
        assert_eq!(used_path("/x/b.pipe", "./y/../c.pipe"), "/x/c.pipe");
        assert_eq!(used_path("x/b.pipe", "/c.pipe"), "/c.pipe");
        assert_eq!(used_path("../b.pipe", "../c.pipe"), "../../c.pipe");
    }

    #[test]
    fn library_parses() {
        for file in LIBRARY {
            let parsed = pipe_grammar::parse(file.source, file.text);
            assert_eq!(parsed.diagnostics, [], "{}", file.path);
        }
    }
}
