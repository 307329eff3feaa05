//! What the documents print is what the tool prints.
//!
//! In `README.md` and `docs/*.md` a comment `<!-- pipec ARGUMENTS -->` stands before a fenced block; the block must hold
//! the output of that command, run in the root of the repository. A comment `<!-- file NAME: pipec ARGUMENTS -->` says that
//! the file NAME beside the document is what that command prints. `INSTA_UPDATE=always cargo test -p pipec` writes it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const MARK: &str = "<!-- pipec ";
const FILE_MARK: &str = "<!-- file ";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn documents() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(root().join("docs"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect();
    found.push(root().join("README.md"));
    found.sort();
    found
}

fn output(arguments: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_pipec"))
        .args(arguments.split_whitespace())
        .current_dir(root())
        .env("NO_COLOR", "1")
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8(text).unwrap().lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// The document with every marked block replaced by what its command prints, and the number of such blocks.
fn regenerate(text: &str) -> (String, usize) {
    let mut rest = text;
    let mut written = String::new();
    let mut blocks = 0;
    while let Some(start) = rest.find(MARK) {
        let (arguments, after) = rest[start + MARK.len()..].split_once(" -->\n").expect("a closed mark");
        let (open, body) = after.trim_start_matches('\n').split_once('\n').expect("a fence after the mark");
        assert!(open.starts_with("```"), "{arguments}: {open}");
        let end = body.find("```").expect("a closed fence");
        let head = rest.len() - body.len();
        written.push_str(&rest[..head]);
        written.push_str(output(arguments).trim_end());
        written.push('\n');
        rest = &body[end..];
        blocks += 1;
    }
    written.push_str(rest);
    (written, blocks)
}

#[test]
fn documents_print_what_the_tool_prints() {
    let update = std::env::var("INSTA_UPDATE").is_ok_and(|value| value == "always");
    let mut blocks = 0;
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        let (regenerated, found) = regenerate(&text);
        blocks += found;
        if update {
            fs::write(&path, &regenerated).unwrap();
        }
        assert!(
            update || text == regenerated,
            "{} is not what the tool prints:\n{regenerated}",
            path.display()
        );
    }
    assert!(blocks > 0);
}

#[test]
fn files_beside_documents_are_what_the_tool_prints() {
    let update = std::env::var("INSTA_UPDATE").is_ok_and(|value| value == "always");
    let mut files = 0;
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        for mark in text.split(FILE_MARK).skip(1) {
            let (mark, _) = mark.split_once(" -->").expect("a closed mark");
            let (name, arguments) = mark.split_once(": pipec ").expect("a name and a command");
            let file = path.with_file_name(name);
            let printed = output(arguments);
            if update {
                fs::write(&file, &printed).unwrap();
            }
            assert!(
                update || fs::read_to_string(&file).unwrap() == printed,
                "{name} is not what the tool prints"
            );
            files += 1;
        }
    }
    assert!(files > 0);
}
