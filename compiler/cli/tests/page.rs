//! A whole spec on one page, and the same bytes whenever and wherever it is compiled.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const SPEC: &str = "model small {
    tokens = input(token, [seq])
    targets = input(token, [seq])
    x = embedding(tokens, vocab: 256, dim: 32)
    repeat 2 { x = x + linear(silu(linear(x, 128)), 32) }
    loss = cross_entropy(linear(x, 256), targets)
}

cluster scarce {
    node {
        cpu * 2 { memory: 320 KiB, bandwidth: 10 GB/s, f32: 20 GFLOPS }
        host    { memory: 1 GiB, cores: 2 }
        link cpu <-> host { bandwidth: 2 GB/s, latency: 1 us }
    }
}

train { seq: 32, global_batch: 4, micro_batch: 1, optimizer: adamw { lr: 1e-3 } }

pipeline { model: small, cluster: scarce, recompute: auto }
";

fn pipec(folder: &Path, arguments: &[&str], threads: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_pipec"))
        .args(arguments)
        .current_dir(folder)
        .env("NO_COLOR", "1")
        .env("RAYON_NUM_THREADS", threads)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The text, the e-graphs with their fronts, the modes of every stage and why, the order of passes, and the program.
#[test]
fn a_spec_on_one_page() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("page.pipe"), SPEC).unwrap();
    let of = |arguments: &[&str]| pipec(folder.path(), arguments, "1");
    let page = [
        SPEC.to_owned(),
        of(&["modes", "page.pipe"]),
        of(&["build", "--emit=schedule", "page.pipe"]),
        of(&["build", "-o", "-", "page.pipe"]),
    ];
    // The version of the tool and the hash of the text change without the program.
    let page: Vec<String> =
        page.join("\n").lines().filter(|line| !line.starts_with("compiler ")).map(str::to_owned).collect();
    insta::assert_snapshot!(page.join("\n"));
}

/// Hash tables of the standard library are seeded anew in every process.
#[test]
fn ten_runs_give_the_same_bytes() {
    let files = ["examples/scarce.pipe", "examples/llama2_13b.pipe", "examples/sliced.pipe"];
    for file in files {
        let build = |threads| pipec(&root(), &["build", "-o", "-", file], threads);
        let first = build("1");
        for run in 1..10 {
            assert!(build(if run % 2 == 0 { "1" } else { "8" }) == first, "{file}, run {run}");
        }
    }
}
