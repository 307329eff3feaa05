//! The laws of the formatter, and what its output looks like.

#[path = "support/generate.rs"]
mod generate;
#[path = "support/render.rs"]
mod render;

use pipe_grammar::ast::File;
use pipe_grammar::diagnostic::SourceId;
use pipe_grammar::{format, parse};
use proptest::prelude::*;

use generate::generate;
use render::render;

/// The tree of a right file without its spans.
fn tree(text: &str) -> String {
    let parsed = parse(SourceId::default(), text);
    assert!(parsed.diagnostics.is_empty(), "{}\n{text}", render(text, &parsed.diagnostics));
    without_spans(&parsed.file)
}

fn without_spans(file: &File) -> String {
    let shown = format!("{file:#?}");
    let lines = shown.lines().filter(|line| !line.trim_start().starts_with("span: "));
    lines.collect::<Vec<_>>().join("\n")
}

fn formatted(text: &str) -> String {
    format(text).unwrap_or_else(|diagnostics| panic!("{}", render(text, &diagnostics)))
}

fn comments(text: &str) -> Vec<String> {
    let mut comments: Vec<String> = text
        .lines()
        .filter_map(|line| line.find("// comment ").map(|at| line[at..].trim_end().to_owned()))
        .collect();
    comments.sort();
    comments
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn formatting_keeps_tree_and_comments_and_is_idempotent(seed in any::<u64>(), size in 0u64..6) {
        let generated = generate(seed, size);
        let once = formatted(&generated.text);
        prop_assert_eq!(tree(&generated.text), tree(&once), "from\n{}\nto\n{}", generated.text, once);
        let mut expected = generated.comments.clone();
        expected.sort();
        prop_assert_eq!(comments(&once), expected, "from\n{}\nto\n{}", generated.text, once);
        let twice = formatted(&once);
        prop_assert_eq!(&once, &twice, "from\n{}", generated.text);
    }
}

#[test]
fn design_examples_are_already_formatted() {
    for text in [include_str!("files/tiny.pipe"), include_str!("files/rtx4090.pipe")] {
        assert_eq!(formatted(text), text);
    }
}

#[test]
fn untidy_files_become_tidy() {
    insta::assert_snapshot!(formatted(include_str!("files/untidy.pipe")));
}

#[test]
fn wrong_files_have_no_layout() {
    let diagnostics = format("train { seq 3 }").unwrap_err();
    assert_eq!(diagnostics.len(), 1);
}

#[test]
fn nothing_becomes_nothing() {
    assert_eq!(formatted(""), "");
    assert_eq!(formatted("\n\n"), "");
    assert_eq!(formatted("\n\n// alone\n\n\n\n// pair"), "// alone\n\n// pair\n");
}
