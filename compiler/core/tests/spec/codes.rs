//! `docs/errors.md`: every code has a section, and its example is answered with that code and the text shown.

use super::support::{draw_all, repository, settle};
use pipe_grammar::diagnostic::{Code, Diagnostic, SourceId};
use pipec_compiler::pipeline::{Error, compile};
use pipec_compiler::schedule::given;
use pipec_compiler::spec::{Choice, Resolution, Sources, check, resolve};

const PAGE: &str = "docs/errors.md";

/// Codes without a text that could show them: files that cannot be quoted, and what later stages say.
const NOT_SHOWN: &[Code] = &[Code::TooLarge, Code::NotUtf8, Code::OutOfMemory, Code::DataNotFound];

/// A section: the text from the heading of a code to the next heading.
fn section(page: &str, code: Code) -> &str {
    let heading = format!("## {code}: {}\n", code.title());
    let start = page.find(&heading).unwrap_or_else(|| panic!("{PAGE} has no section `{}`", heading.trim()));
    let rest = &page[start + heading.len()..];
    let end = rest.find("\n## ").map_or(rest.len(), |end| end + 1);
    &page[start..start + heading.len() + end]
}

/// What stands between the line `opening` and the next line of three backticks.
fn fenced<'p>(section: &'p str, opening: &str) -> Option<&'p str> {
    let start = section.find(opening)? + opening.len();
    let end = section[start..].find("```")?;
    Some(&section[start..start + end])
}

/// What is said about an example: by the parser, else about its pipeline, else about its declarations. `order` is the text
/// of the file `order.csv`.
fn said(text: &str, order: Option<&str>) -> Vec<Diagnostic> {
    let parsed = pipe_grammar::parse(SourceId(0), text);
    if !parsed.diagnostics.is_empty() {
        return parsed.diagnostics;
    }
    let chosen = text.contains("pipeline");
    let mut sources = Sources::new();
    sources.add("example.pipe", parsed.file);
    if let Some(order) = order {
        sources.add_schedule("order.csv", given::read("order.csv", order));
    }
    if chosen {
        let Resolution { spec, origins, .. } = match resolve(&sources, SourceId(0), &Choice::default()) {
            Ok(resolution) => resolution,
            Err(diagnostics) => return diagnostics,
        };
        match compile(&spec, &origins, "", &mut ()) {
            Ok(_) => Vec::new(),
            Err(Error::Diagnostics(diagnostics)) => diagnostics,
            Err(Error::Internal(message)) => panic!("{message}"),
        }
    } else {
        check(&sources, SourceId(0))
    }
}

#[test]
fn every_code_is_explained_by_an_example_of_it() {
    let page = std::fs::read_to_string(repository().join(PAGE)).unwrap();
    let mut expected = page.clone();
    let mut wrong = Vec::new();
    for code in Code::ALL {
        let section = section(&page, *code);
        assert!(section.contains("\nFix: "), "{code} has no fix");
        if NOT_SHOWN.contains(code) {
            continue;
        }
        let example = fenced(section, "```pipe\n").unwrap_or_else(|| panic!("{code} has no example"));
        let said = said(example, fenced(section, "```csv\n"));
        let drawn = draw_all(&said, &[example.to_owned()]);
        if said.is_empty() || said.iter().any(|diagnostic| diagnostic.code != *code) {
            wrong.push(format!("{code} is not what the example shows:\n{drawn}"));
        }
        let shown = fenced(section, "```text\n").unwrap_or_else(|| panic!("{code} shows no message"));
        let new = section.replacen(&format!("```text\n{shown}```"), &format!("```text\n{drawn}```"), 1);
        expected = expected.replacen(section, &new, 1);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    settle(PAGE, &page, &expected);
    let order: Vec<_> = Code::ALL.iter().map(|code| page.find(&format!("## {code}: "))).collect();
    assert!(order.is_sorted(), "the sections do not ascend");
}
