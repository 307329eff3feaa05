//! Resolving texts and drawing what is said about them.

use pipe_grammar::diagnostic::{Diagnostic, SourceId};
use pipec_compiler::spec::{Choice, LIBRARY, Resolution, Sources, resolve, used_path, uses};
use std::path::{Path, PathBuf};

/// The folder of the repository.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Resolves one text.
pub(crate) fn resolve_text(text: &str) -> Result<Resolution, Vec<Diagnostic>> {
    resolve_with(text, &Choice::default())
}

/// Resolves one text under a choice.
pub(crate) fn resolve_with(text: &str, choice: &Choice) -> Result<Resolution, Vec<Diagnostic>> {
    let parsed = pipe_grammar::parse(SourceId(0), text);
    if !parsed.diagnostics.is_empty() {
        return Err(parsed.diagnostics);
    }
    let mut sources = Sources::new();
    sources.add("test.pipe", parsed.file);
    resolve(&sources, SourceId(0), choice)
}

/// Resolves a file of the repository and the files that it uses.
pub(crate) fn resolve_file(path: &str) -> Result<Resolution, String> {
    let mut sources = Sources::new();
    let mut texts = Vec::new();
    let mut waiting = vec![path.to_owned()];
    while let Some(path) = waiting.pop() {
        if sources.at(&path).is_some() {
            continue;
        }
        let text =
            std::fs::read_to_string(repository().join(&path)).map_err(|error| format!("{path}: {error}"))?;
        let source = SourceId(u32::try_from(texts.len()).unwrap());
        let parsed = pipe_grammar::parse(source, &text);
        texts.push(text);
        if !parsed.diagnostics.is_empty() {
            return Err(draw_all(&parsed.diagnostics, &texts));
        }
        waiting.extend(uses(&parsed.file).map(|used| used_path(&path, &used.value)));
        sources.add(&path, parsed.file);
    }
    resolve(&sources, SourceId(0), &Choice::default()).map_err(|diagnostics| draw_all(&diagnostics, &texts))
}

/// Diagnostics as text: message, the marked lines with carets, and help.
pub(crate) fn draw_all(diagnostics: &[Diagnostic], texts: &[String]) -> String {
    let text = |source: SourceId| {
        let own = texts.get(source.0 as usize).map(String::as_str);
        own.or_else(|| LIBRARY.iter().find(|file| file.source == source).map(|file| file.text)).unwrap_or("")
    };
    diagnostics
        .iter()
        .map(|diagnostic| draw(diagnostic, text(diagnostic.source)))
        .collect::<Vec<_>>()
        .join("\n")
}

/// One diagnostic as text.
pub(crate) fn draw(diagnostic: &Diagnostic, text: &str) -> String {
    let mut lines =
        vec![format!("{}[{}]: {}", diagnostic.severity.as_str(), diagnostic.code, diagnostic.message)];
    for label in &diagnostic.labels {
        let (number, line, column) = place(text, label.span.start);
        let rest = line.len() - column;
        let width =
            text.get(label.span.range()).map_or(1, |marked| marked.lines().next().unwrap_or("").len());
        let mark = if label.primary { "^" } else { "-" }.repeat(width.clamp(1, rest.max(1)));
        lines.push(format!("{number:>4} | {line}"));
        lines.push(format!("     | {:column$}{mark} {}", "", label.text).trim_end().to_owned());
    }
    lines.extend(diagnostic.help.iter().map(|help| format!("     = help: {help}")));
    lines.join("\n") + "\n"
}

/// The number of a line from 1, the line, and the column in it.
fn place(text: &str, offset: usize) -> (usize, &str, usize) {
    let offset = offset.min(text.len());
    let start = text[..offset].rfind('\n').map_or(0, |newline| newline + 1);
    let line = text[start..].lines().next().unwrap_or("");
    (text[..offset].matches('\n').count() + 1, line, (offset - start).min(line.len()))
}

/// Checks what a page of the documentation says between two markers, `<!-- NAME -->` and `<!-- end NAME -->`. With
/// `INSTA_UPDATE=always`, as for snapshots, it is written instead.
pub(crate) fn document(path: &str, name: &str, expected: &str) {
    let page = std::fs::read_to_string(repository().join(path)).unwrap();
    let (opening, closing) = (format!("<!-- {name} -->\n"), format!("<!-- end {name} -->"));
    let start = page.find(&opening).unwrap_or_else(|| panic!("{path} has no {opening}")) + opening.len();
    let end = page.find(&closing).unwrap_or_else(|| panic!("{path} has no {closing}"));
    settle(path, &page, &format!("{}{expected}{}", &page[..start], &page[end..]));
}

/// Compares a page with what it should be, or writes it under `INSTA_UPDATE=always`.
pub(crate) fn settle(path: &str, page: &str, expected: &str) {
    if std::env::var("INSTA_UPDATE").is_ok_and(|value| value == "always") {
        std::fs::write(repository().join(path), expected).unwrap();
    } else {
        assert_eq!(page, expected, "{path} is out of date: run the test with INSTA_UPDATE=always");
    }
}

/// A page with another text between two marks.
pub(crate) fn filled(page: &str, mark: &str, text: &str) -> String {
    let (open, close) = (format!("<!-- {mark} -->\n"), format!("<!-- /{mark} -->"));
    let start = page.find(&open).unwrap_or_else(|| panic!("the page has no `{mark}`")) + open.len();
    let end = start + page[start..].find(&close).unwrap_or_else(|| panic!("`{mark}` has no end"));
    format!("{}{text}{}", &page[..start], &page[end..])
}

/// Resolves one text without a fault.
pub(crate) fn spec(text: &str) -> Resolution {
    match resolve_text(text) {
        Ok(resolution) => resolution,
        Err(diagnostics) => panic!("{}", draw_all(&diagnostics, &[text.to_owned()])),
    }
}

/// A model of the smallest kind with these statements in place of its body between embedding and loss.
pub(crate) fn small_model(body: &str) -> String {
    format!(
        "model small {{
    tokens = input(token, [seq])
    targets = input(token, [seq])
    x = embedding(tokens, vocab: 256, dim: 64, name: embed)
{body}
    loss = cross_entropy(linear(x, 256, name: head), targets)
}}
"
    )
}

/// The declarations that a model named `small` needs to run.
pub(crate) const RUN: &str = "use std::clusters::local
train { seq: 16, global_batch: 4, micro_batch: 1, optimizer: adamw { lr: 1e-3 } }
pipeline { model: small, cluster: local { devices: 1 } }
";
