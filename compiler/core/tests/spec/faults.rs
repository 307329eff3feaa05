//! What is said about faulty files: every fault at its place, with the numbers and a legal way out.
//!
//! Each file of `faults/` holds many faults, all of which must be told at once and none of which may hide another.

use super::support::{RUN, draw_all, resolve_text, small_model};
use pipe_grammar::diagnostic::{Code, Diagnostic, SourceId};
use pipec_compiler::spec::{Choice, Sources, check, resolve};

/// What is said about a file that may have no pipeline.
fn checked(text: &str) -> Vec<Diagnostic> {
    let parsed = pipe_grammar::parse(SourceId(0), text);
    assert_eq!(parsed.diagnostics, []);
    let mut sources = Sources::new();
    sources.add("test.pipe", parsed.file);
    check(&sources, SourceId(0))
}

fn drawn(text: &str) -> String {
    draw_all(&checked(text), &[text.to_owned()])
}

#[test]
fn names() {
    insta::assert_snapshot!(drawn(include_str!("faults/names.pipe")));
}

#[test]
fn shapes() {
    insta::assert_snapshot!(drawn(include_str!("faults/shapes.pipe")));
}

#[test]
fn clusters() {
    insta::assert_snapshot!(drawn(include_str!("faults/clusters.pipe")));
}

#[test]
fn trains() {
    insta::assert_snapshot!(drawn(include_str!("faults/trains.pipe")));
}

#[test]
fn pipelines() {
    insta::assert_snapshot!(drawn(include_str!("faults/pipelines.pipe")));
}

#[test]
fn schedules() {
    insta::assert_snapshot!(drawn(include_str!("faults/schedules.pipe")));
}

/// Whether the numbers of pipeline, model, cluster and training run fit.
#[test]
fn fits() {
    let model = small_model("    repeat 4 { x = x + linear(x, 64) }");
    let train = "train { seq: 16, global_batch: 4, micro_batch: 1, optimizer: adamw { lr: 1e-3 } }";
    let bytes =
        "train { seq: 16, global_batch: 4, micro_batch: 1, precision: bf16, optimizer: adamw { lr: 1e-3 }
        data: formula(vocab: 257) }";
    let cases = [
        (train, "stages: 4, cluster: local { devices: 8 }"),
        (train, "stages: 4, devices: 3, cluster: local { devices: 8 }"),
        (train, "devices: 9, cluster: local { devices: 8 }"),
        (train, "stages: 6, schedule: interleaved { virtual: 4 }, cluster: local { devices: 2 }"),
        (train, "schedule: interleaved { virtual: 4 }, cluster: local { devices: 2 }"),
        (train, "stages: 7, cluster: local { devices: 7 }"),
        (train, "stages: 3, layers: [2, 2], cluster: local { devices: 3 }"),
        (train, "stages: 3, layers: [2, 2, 1], cluster: local { devices: 3 }"),
        (train, "stages: 3, layers: [2, 0, 2], cluster: local { devices: 3 }"),
        (train, "stages: 2"),
        (train, "stages: 2, cluster: locl"),
        (train, "stages: 2, cluster: dgx_1v"),
        (train, "train: other, cluster: local { devices: 2 }"),
        (bytes, "cluster: std::clusters::dgx_1v"),
        (&format!("{train}\n{train}"), "cluster: local"),
        ("", "cluster: local"),
    ];
    let mut all = String::new();
    for (train, entries) in cases {
        let text =
            format!("use std::clusters::local\n{model}{train}\npipeline {{ model: small, {entries} }}\n");
        let said = match resolve_text(&text) {
            Ok(_) => panic!("{entries} is legal"),
            Err(diagnostics) => draw_all(&diagnostics, &[text]),
        };
        all += &format!("{entries}\n{said}\n");
    }
    insta::assert_snapshot!(all);
}

/// Zero layers on the outer stages are legal: they hold the embedding and the head. So are idle devices, if asked for.
#[test]
fn uneven_cuts_are_legal() {
    let model = small_model("    repeat 4 { x = x + linear(x, 64) }");
    let legal = [
        "stages: 6, layers: [0, 1, 1, 1, 1, 0], cluster: local { devices: 6 }",
        "stages: 6, cluster: local { devices: 6 }",
        "stages: 2, layers: [4, 0], cluster: local { devices: 2 }",
        "devices: 1, cluster: local { devices: 2 }",
        "schedule: interleaved { virtual: 3, group: 3 }, cluster: local { devices: 2 }",
    ];
    for entries in legal {
        let run = RUN.lines().take(2).collect::<Vec<_>>().join("\n");
        let text = format!("{run}\n{model}pipeline {{ model: small, {entries} }}\n");
        let result = resolve_text(&text);
        assert!(result.is_ok(), "{}", draw_all(&result.unwrap_err(), &[text]));
    }
}

/// Hostile files end in an error, and in few of them.
#[test]
fn limits() {
    let many = |count: u64, line: fn(u64) -> String| (0..count).map(line).collect::<String>();
    let bodies = [
        "repeat 20000 { x = relu(x) }".to_owned(),
        many(3, |_| "repeat 10000 { x = relu(x) }\n".to_owned()),
        many(300, |_| "repeat 2 { x = relu(x) }\n".to_owned()),
        format!("repeat 16000 {{ {} }}", many(300, |_| "x = relu(x)\n".to_owned())),
        format!(
            "{}repeat 2 {{ x = relu(x) }}\n{}",
            many(300, |name| format!("a{name} = relu(x)\n")),
            many(300, |name| format!("x = x + a{name}\n"))
        ),
    ];
    for body in bodies {
        let said = resolve_text(&format!("{}{RUN}", small_model(&body))).expect_err("too much");
        assert!(said.len() <= pipe_grammar::MAX_DIAGNOSTICS);
        assert!(said.iter().all(|diagnostic| diagnostic.code == Code::OutOfRange), "{said:?}");
    }
    let keys = many(1000, |key| format!("k{key}: 1\n"));
    assert_eq!(checked(&format!("train {{ {keys} }}")).len(), pipe_grammar::MAX_DIAGNOSTICS);
}

#[test]
fn choices_pick_declarations() {
    let text = format!(
        "{}model other = small\nuse std::clusters::*
        train a {{ seq: 16, global_batch: 4, micro_batch: 1, optimizer: adamw {{ lr: 1e-3 }} }}
        train b {{ seq: 8, global_batch: 4, micro_batch: 1, optimizer: adamw {{ lr: 1e-3 }} }}
        pipeline one {{ model: small, cluster: local, train: a, stages: 4 }}
        pipeline two {{ model: small, cluster: rtx4090, train: b, devices: 1 }}",
        small_model("    repeat 4 { x = x + linear(x, 64) }")
    );
    let parsed = pipe_grammar::parse(SourceId(0), &text);
    assert_eq!(parsed.diagnostics, []);
    let mut sources = Sources::new();
    sources.add("test.pipe", parsed.file);
    let codes = |choice: &Choice| -> Vec<Code> {
        let said = resolve(&sources, SourceId(0), choice).expect_err("no choice");
        said.iter().map(|diagnostic| diagnostic.code).collect()
    };
    assert_eq!(codes(&Choice::default()), [Code::AmbiguousChoice]);
    let pipeline = |name: &str| Choice { pipeline: Some(name.to_owned()), ..Choice::default() };
    assert_eq!(codes(&pipeline("three")), [Code::UnknownName]);
    let spec = |choice: &Choice| resolve(&sources, SourceId(0), choice).expect("a choice").spec;
    assert_eq!(spec(&pipeline("two")).train.seq, 8);
    let choice = Choice {
        model: Some("other".to_owned()),
        cluster: Some("std::clusters::dgx_a100_80g { }".replace(" { }", "")),
        train: Some("a".to_owned()),
        ..pipeline("two")
    };
    let chosen = spec(&choice);
    assert_eq!((chosen.model.name.as_str(), chosen.train.seq), ("other", 16));
    assert_eq!(chosen.cluster.name, "dgx_a100_80g");
}
