//! What stands beside the code agrees with it: the reference of the language and the editors' files.

use std::fs;
use std::path::{Path, PathBuf};

use pipe_grammar::diagnostic::SourceId;
use pipe_grammar::{format, parse};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The fenced blocks of a document whose fence names this language, with their line numbers.
fn blocks(document: &str, language: &str) -> Vec<(usize, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (index, line) in document.lines().enumerate() {
        match &mut open {
            Some(_) if line == "```" => blocks.extend(open.take()),
            Some((_, block)) => {
                block.push_str(line);
                block.push('\n');
            }
            None if line == format!("```{language}") => open = Some((index + 2, String::new())),
            None => {}
        }
    }
    blocks
}

#[test]
fn examples_of_the_reference_are_right_and_formatted() {
    let document = read(&folder().join("../docs/language.md"));
    let examples = blocks(&document, "pipe");
    assert!(examples.len() > 10);
    for (line, text) in examples {
        let parsed = parse(SourceId::default(), &text);
        assert_eq!(parsed.diagnostics, [], "docs/language.md:{line}");
        assert_eq!(format(&text).as_deref(), Ok(text.as_str()), "docs/language.md:{line}");
    }
}

#[test]
fn wrong_examples_of_the_reference_are_refused() {
    let document = read(&folder().join("../docs/language.md"));
    for (line, text) in blocks(&document, "pipe-error") {
        let parsed = parse(SourceId::default(), &text);
        let first = text.lines().next().unwrap_or("");
        let codes: Vec<_> = parsed.diagnostics.iter().map(|diagnostic| diagnostic.code.as_str()).collect();
        assert_eq!(Some(codes.join(" ").as_str()), first.strip_prefix("// "), "docs/language.md:{line}");
    }
}

/// The words of all `kw_` rules.
fn keywords() -> Vec<String> {
    let grammar = read(&folder().join("pipe.pest"));
    let rules = grammar.lines().filter(|line| line.starts_with("kw_"));
    rules.map(|line| line.split('"').nth(1).unwrap_or_else(|| panic!("{line}")).to_owned()).collect()
}

#[test]
fn editors_know_every_keyword() {
    let keywords = keywords();
    assert_eq!(keywords.len(), 8);
    let textmate = read(&folder().join("editors/pipe.tmLanguage.json"));
    let tree = read(&folder().join("editors/keywords.json"));
    for keyword in &keywords {
        let in_pattern = |mark: &str| textmate.contains(mark);
        let alternatives = [
            format!("({keyword}|"),
            format!("|{keyword}|"),
            format!("|{keyword})"),
            format!("b{keyword}\\\\b"),
        ];
        assert!(alternatives.iter().any(|mark| in_pattern(mark)), "{keyword} in the TextMate grammar");
        assert!(tree.contains(&format!("\"{keyword}\"")), "{keyword} in the tree of keywords");
    }
    let listed = tree.matches('"').count() / 2 - tree.matches(':').count();
    assert_eq!(listed, keywords.len(), "the tree of keywords lists a word that is none");
}

#[test]
fn the_reference_names_every_keyword() {
    let document = read(&folder().join("../docs/language.md"));
    for keyword in keywords() {
        assert!(document.contains(&format!("`{keyword}")), "{keyword}");
    }
}
