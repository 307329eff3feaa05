//! `pipec fmt`: lays out `.pipe` files in the canonical way.

use super::Failure;
use crate::arguments::FmtArguments;
use crate::files;
use crate::report::{Reporter, Source};
use pipe_grammar::diagnostic::SourceId;
use std::path::Path;

pub(super) fn execute(arguments: &FmtArguments, reporter: Reporter) -> Result<(), Failure> {
    let mut problems = String::new();
    let mut unformatted = 0;
    for path in &arguments.files {
        match format_file(path, arguments.check, reporter) {
            Ok(true) => {}
            Ok(false) => {
                unformatted += 1;
                problems.push_str(&reporter.plain(None, &format!("{} is not formatted", path.display())));
            }
            Err(failure) => problems.push_str(&failure.text),
        }
    }
    if unformatted > 0 {
        problems.push_str("run `pipec fmt` on these files\n");
    }
    if problems.is_empty() { Ok(()) } else { Err(Failure::diagnostics(problems)) }
}

/// Whether the file was in canonical layout already, or has been brought into it.
fn format_file(path: &Path, check: bool, reporter: Reporter) -> Result<bool, Failure> {
    let bytes = files::read(path).map_err(|error| Failure::file(reporter, path, &error))?;
    let name = path.display().to_string();
    let text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let parsed = pipe_grammar::parse_bytes(SourceId(0), error.as_bytes());
            let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
            return Err(Failure::diagnostics(
                reporter.diagnostics(&[Source { name, text }], &parsed.diagnostics),
            ));
        }
    };
    let formatted = pipe_grammar::format(&text).map_err(|diagnostics| {
        Failure::diagnostics(reporter.diagnostics(&[Source { name, text: text.clone() }], &diagnostics))
    })?;
    let same = formatted == text;
    let write = |target| {
        files::write(target, formatted.as_bytes()).map_err(|error| Failure::file(reporter, path, &error))
    };
    if check {
        return Ok(same);
    }
    if path == Path::new("-") {
        write(None)?;
    } else if !same {
        write(Some(path))?;
    }
    Ok(true)
}
