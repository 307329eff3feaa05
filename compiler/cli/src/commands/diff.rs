//! `pipec diff`: what two files compile to differently.

use super::load::{self, Declared};
use super::{Exit, Failure};
use crate::arguments::DiffArguments;
use crate::report::Reporter;
use crate::snapshot::{self, Part, Snapshot, differences};
use std::path::{Path, PathBuf};

pub(super) fn execute(arguments: &DiffArguments, reporter: Reporter) -> Result<(), Failure> {
    let parts = if arguments.what.is_empty() { &Part::DEFAULT[..] } else { &arguments.what };
    let before = side(&arguments.before, parts, reporter)?;
    let after = side(&arguments.after, parts, reporter)?;
    let text = differences(&before, &after);
    if text.is_empty() {
        println!("no difference");
        return Ok(());
    }
    print!("{text}");
    Err(Failure { exit: Exit::Diagnostics, text: String::new() })
}

/// The snapshot of a file.
fn side(path: &Path, parts: &[Part], reporter: Reporter) -> Result<Snapshot, Failure> {
    if path.extension().is_some_and(|extension| extension == "snap") {
        return snapshot::file::read(path).map_err(|error| {
            Failure::diagnostics(reporter.plain(None, &format!("{}: {error}", path.display())))
        });
    }
    let (file, name) = split(path);
    let pipeline = Declared { only: name.is_none(), name, line: 1 };
    Ok(Snapshot::of(&load::pipeline(&file, &pipeline, reporter)?, parts))
}

/// `FILE@NAME` as a file and a name, unless there is a file of that very name.
fn split(path: &Path) -> (PathBuf, Option<String>) {
    let text = path.to_string_lossy();
    match text.rsplit_once('@') {
        Some((file, name)) if !path.exists() => (PathBuf::from(file), Some(name.to_owned())),
        Some(_) | None => (path.to_owned(), None),
    }
}
