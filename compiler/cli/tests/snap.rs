//! `pipec snap` and `pipec diff` as they are used: keep, change, check, accept.

use std::fs;
use std::path::Path;
use std::process::Command;

const SMALL: &str = "\
model small {
    tokens  = input(token, [seq])
    targets = input(token, [seq])
    x = embedding(tokens, vocab: 8, dim: 4)
    repeat 2 as layer {
        x = x + linear(x, 4, name: w)
    }
    loss = cross_entropy(linear(x, 8, name: head), targets)
}

train { seq: 4, global_batch: 4, micro_batch: 1, optimizer: adamw { lr: 1e-3 } }

pipeline a { model: small, cluster: std::clusters::local { devices: 2 }, schedule: gpipe }

pipeline b { model: small, cluster: std::clusters::local { devices: 1 } }
";

/// Exit code, standard output and standard error of a command in a folder.
fn pipec(folder: &Path, arguments: &str) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_pipec"))
        .args(arguments.split_whitespace())
        .current_dir(folder)
        .env("NO_COLOR", "1")
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// A folder with the two pipelines and their goldens.
fn kept() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("x.pipe"), SMALL).unwrap();
    let written = "x.pipe@a.snap: written\nx.pipe@b.snap: written\n";
    assert_eq!(pipec(folder.path(), "snap x.pipe"), (0, written.to_owned(), String::new()));
    folder
}

/// Another schedule for the first pipeline.
fn change(folder: &Path) {
    fs::write(folder.join("x.pipe"), SMALL.replace("gpipe", "one_f_one_b")).unwrap();
}

#[test]
fn what_is_kept_stays() {
    let folder = kept();
    let unchanged = "x.pipe@a.snap: unchanged\nx.pipe@b.snap: unchanged\n".to_owned();
    assert_eq!(pipec(folder.path(), "snap check x.pipe"), (0, unchanged.clone(), String::new()));
    assert_eq!(pipec(folder.path(), "snap x.pipe"), (0, unchanged, String::new()));
    let filtered = pipec(folder.path(), "snap check x.pipe --filter @b");
    assert_eq!(filtered, (0, "x.pipe@b.snap: unchanged\n".to_owned(), String::new()));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "nothing else is left behind");
}

#[test]
fn a_change_is_told_and_accepted() {
    let folder = kept();
    let pending = folder.path().join("x.pipe@a.snap.new");
    change(folder.path());

    let (code, out, error) = pipec(folder.path(), "snap check x.pipe");
    assert_eq!((code, out.as_str()), (1, "x.pipe@b.snap: unchanged\n"));
    insta::assert_snapshot!(error);
    assert!(!pending.exists(), "a check changes nothing");

    let golden = fs::read(folder.path().join("x.pipe@a.snap")).unwrap();
    assert_eq!(pipec(folder.path(), "snap x.pipe").0, 1);
    assert!(pending.exists());
    assert_eq!(fs::read(folder.path().join("x.pipe@a.snap")).unwrap(), golden, "and the golden stays");

    let accepted = "x.pipe@a.snap: accepted\nx.pipe@b.snap: nothing is pending\n".to_owned();
    assert_eq!(pipec(folder.path(), "snap accept x.pipe"), (0, accepted, String::new()));
    assert!(!pending.exists());
    assert_eq!(pipec(folder.path(), "snap check x.pipe").0, 0);
}

#[test]
fn a_change_that_is_taken_back_leaves_nothing_pending() {
    let folder = kept();
    change(folder.path());
    assert_eq!(pipec(folder.path(), "snap x.pipe").0, 1);
    fs::write(folder.path().join("x.pipe"), SMALL).unwrap();
    assert_eq!(pipec(folder.path(), "snap x.pipe").0, 0);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}

#[test]
fn annotations() {
    let folder = kept();
    change(folder.path());
    let (_, _, error) = pipec(folder.path(), "snap check x.pipe --error-format github");
    insta::assert_snapshot!("annotation_of_a_change", error);
    fs::write(folder.path().join("x.pipe"), SMALL.replace("gpipe", "gpip")).unwrap();
    let (code, _, error) = pipec(folder.path(), "check x.pipe --pipeline a --error-format github");
    assert_eq!(code, 1);
    let expected = "::error file=x.pipe,line=13,col=84,title=E0203::there is no schedule `gpip`%0Ahelp: did you mean `gpipe`?\n";
    assert_eq!(error, expected);
    let (code, _, error) = pipec(folder.path(), "snap check none.pipe --error-format github");
    assert_eq!((code, error.starts_with("::error::none.pipe: ")), (1, true), "{error}");
}

#[test]
fn parts() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("x.pipe"), SMALL).unwrap();
    assert_eq!(pipec(folder.path(), "snap x.pipe --filter @b --what program").0, 0);
    let text = fs::read_to_string(folder.path().join("x.pipe@b.snap")).unwrap();
    assert!(text.contains("\nprogram\npprog 1\n") && !text.contains("memory, bytes"), "{text}");
    // What is kept is what is compared.
    assert_eq!(pipec(folder.path(), "snap check x.pipe --filter @b").0, 0);
    let (code, _, error) = pipec(folder.path(), "snap check x.pipe --filter @b --what memory");
    assert_eq!(code, 1);
    assert!(error.contains("it has program, and memory is asked for"), "{error}");
}

#[test]
fn goldens_that_are_missing_or_broken() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("x.pipe"), SMALL).unwrap();
    let (code, out, error) = pipec(folder.path(), "snap check x.pipe --filter @b");
    assert_eq!((code, out.as_str()), (1, ""));
    assert_eq!(error, "error: x.pipe: there is no x.pipe@b.snap; `pipec snap x.pipe` writes it\n");
    fs::write(folder.path().join("x.pipe@b.snap"), "nothing\n").unwrap();
    let (code, _, error) = pipec(folder.path(), "snap check x.pipe --filter @b");
    assert_eq!(code, 1);
    assert_eq!(error, "error: x.pipe@b.snap: no snapshot: line 1: expected `makespan NUMBER ns, ..`\n");
    assert_eq!(pipec(folder.path(), "snap").0, 2);
    assert_eq!(pipec(folder.path(), "snap check").0, 2);
    assert_eq!(pipec(folder.path(), "snap x.pipe --what nothing").0, 2);
    assert_eq!(pipec(folder.path(), "snap accept x.pipe --what memory").0, 2, "it would do nothing");
}

#[test]
fn specs_programs_and_snapshots_are_compared_in_the_same_terms() {
    let folder = kept();
    for name in ["a", "b"] {
        let build = format!("build x.pipe --pipeline {name} -o {name}.pprog");
        assert_eq!(pipec(folder.path(), &build).0, 0);
    }
    let forms =
        |name: &str| [format!("x.pipe@{name}"), format!("{name}.pprog"), format!("x.pipe@{name}.snap")];
    let mut told = Vec::new();
    for first in forms("a") {
        for other in forms("a") {
            let same = pipec(folder.path(), &format!("diff {first} {other}"));
            assert_eq!(same, (0, "no difference\n".to_owned(), String::new()));
        }
        for second in forms("b") {
            let (code, out, error) = pipec(folder.path(), &format!("diff {first} {second}"));
            assert_eq!((code, error.as_str()), (1, ""));
            told.push(out);
        }
    }
    assert!(told.windows(2).all(|pair| pair[0] == pair[1]));
    insta::assert_snapshot!(told[0]);
}

/// What is kept does not depend on the number of threads, the folder or the language of the machine.
#[test]
fn snapshots_are_stable() {
    let folder = kept();
    let first = fs::read(folder.path().join("x.pipe@a.snap")).unwrap();
    let inner = folder.path().join("inner");
    fs::create_dir(&inner).unwrap();
    let status = Command::new(env!("CARGO_BIN_EXE_pipec"))
        .args(["snap", "../x.pipe", "--what", "schedule,memory"])
        .current_dir(&inner)
        .env("RAYON_NUM_THREADS", "1")
        .env("LC_ALL", "de_DE.UTF-8")
        .status();
    assert!(status.unwrap().success());
    fs::remove_file(folder.path().join("x.pipe@a.snap")).unwrap();
    assert_eq!(pipec(&inner, "snap ../x.pipe").0, 0);
    assert_eq!(fs::read(folder.path().join("x.pipe@a.snap")).unwrap(), first);
}
