//! What users are told about wrong files: one file per case under `errors/`, one snapshot each.

#[path = "support/render.rs"]
mod render;

use std::fs;
use std::path::Path;

use pipe_grammar::diagnostic::SourceId;
use pipe_grammar::{parse, parse_bytes};

use render::render;

#[test]
fn every_wrong_file_is_explained() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/errors");
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        let parsed = parse(SourceId::default(), &text);
        assert!(!parsed.diagnostics.is_empty(), "{} is accepted", path.display());
        let name = path.file_stem().unwrap().to_str().unwrap();
        insta::assert_snapshot!(name, render(&text, &parsed.diagnostics));
    }
}

#[test]
fn bytes_that_are_no_text_are_refused() {
    let parsed = parse_bytes(SourceId::default(), b"model tiny {\n    x = \xff\n}\n");
    let told: Vec<_> = parsed.diagnostics.iter().map(|d| (d.code.as_str(), d.message.as_str())).collect();
    assert_eq!(told, [("E0110", "this file is not UTF-8: byte 0xFF at offset 21")]);
}

#[test]
fn a_file_beyond_the_limit_is_refused() {
    let text = " ".repeat(pipe_grammar::MAX_SIZE + 1);
    let parsed = parse(SourceId::default(), &text);
    let told: Vec<_> = parsed.diagnostics.iter().map(|d| d.code.as_str()).collect();
    assert_eq!(told, ["E0109"]);
}
