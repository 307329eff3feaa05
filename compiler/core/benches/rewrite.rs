//! The time of rewriting a layer of every family of models, with and without offloading, and of compiling a large model on
//! many stages.
//!
//!     cargo bench -p pipec-compiler --bench rewrite
//!
//! One core; a layer is the median of a few runs, a compilation is one.

use pipe_grammar::diagnostic::SourceId;
use pipec_compiler::graph::graphs;
use pipec_compiler::mode::Extent;
use pipec_compiler::pipeline::{Observer, Stage, compile};
use pipec_compiler::rewrite::{Rates, layer};
use pipec_compiler::spec::{Choice, Resolution, Sources, resolve};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

const MODELS: &[&str] = &[
    "llama2_7b",
    "llama3_8b",
    "gpt3_175b",
    "opt_6_7b",
    "mistral_7b",
    "qwen2_5_7b",
    "qwen3_8b",
    "gemma_7b",
    "phi2",
    "llama3_1_405b",
];

fn main() {
    let full = !std::env::args().any(|argument| argument == "--test");
    println!(
        "milliseconds for a layer, whole or in two slices, and modes on the front; the last two with offloading"
    );
    println!(
        "{:<16}{:>9}{:>7}{:>9}{:>7}{:>9}{:>7}{:>9}{:>7}",
        "model", "whole", "modes", "slices", "modes", "whole", "modes", "slices", "modes"
    );
    for model in if full { MODELS } else { &MODELS[..1] } {
        row(model, if full { 11 } else { 1 });
    }
    println!("\nseconds of compiling Llama 3.1 405B on 128 stages, one_f_one_b");
    print!("{:<32}{:>6}{:>14}", "options", "n", "instructions");
    STAGES.iter().for_each(|stage| print!("{stage:>11}"));
    println!("{:>9}", "in all");
    for micro_batches in if full { &[256, 1024][..] } else { &[16] } {
        for options in ["recompute: full", "recompute: auto", "recompute: auto, offload: auto"] {
            compilation(*micro_batches, options);
        }
    }
}

fn resolved(text: &str) -> Resolution {
    let parsed = pipe_grammar::parse(SourceId(0), text);
    assert!(parsed.diagnostics.is_empty(), "{:?}", parsed.diagnostics);
    let mut sources = Sources::new();
    sources.add("bench.pipe", parsed.file);
    resolve(&sources, SourceId(0), &Choice::default()).unwrap_or_else(|errors| panic!("{errors:?}"))
}

fn row(model: &str, runs: usize) {
    let Resolution { spec, .. } = resolved(&format!(
        "train {{ seq: 2048, global_batch: 1, micro_batch: 1, precision: bf16, optimizer: adamw {{ lr: 1e-4 }} }}
        pipeline {{ model: std::models::{model}, cluster: std::clusters::dgx_h100 }}"
    ));
    let graphs = graphs(&spec.model, spec.train.precision);
    let graph = graphs.values().find(|graph| graph.name == "layer").expect("every model has layers");
    print!("{model:<16}");
    for host in [false, true] {
        for lengths in [&[2048][..], &[1024, 1024]] {
            let extents: Vec<Extent<'_>> = (0..lengths.len())
                .map(|slice| Extent { sequences: 1, lengths, slice, reach: None })
                .collect();
            let rates = Rates { host, ..Rates::of(&spec) };
            let mut times = Vec::new();
            let mut modes = 0;
            for _ in 0..runs {
                let start = Instant::now();
                let made = black_box(layer(graph, &extents, rates));
                times.push(start.elapsed());
                modes = made.map_or(0, |(layer, _)| layer.modes.len());
            }
            times.sort();
            print!("{:>9.2}{modes:>7}", times[runs / 2].as_secs_f64() * 1e3);
        }
    }
    println!();
}

/// The stages of the compiler that take any time; `forms` chooses modes.
const STAGES: &[&str] = &["rewrite", "forms", "schedule", "lower", "verify"];

/// The time of every stage of the compiler, added up where one runs again.
struct Times {
    last: Instant,
    stages: BTreeMap<&'static str, Duration>,
}

impl Observer for Times {
    fn stage(&mut self, stage: Stage<'_>) {
        let now = Instant::now();
        *self.stages.entry(stage.name()).or_default() += now - self.last;
        self.last = now;
    }
}

/// Every layer has a stage and a device of its own.
fn compilation(micro_batches: u32, options: &str) {
    let Resolution { spec, origins, .. } = resolved(&format!(
        "train {{
            seq: 4096, global_batch: {micro_batches}, micro_batch: 1, precision: bf16, clip_norm: 1.0
            optimizer: adamw {{ lr: 8e-5, betas: (0.9, 0.95), eps: 1e-8, weight_decay: 0.1 }}
        }}
        pipeline {{
            model: std::models::llama3_1_405b, cluster: std::clusters::dgx_h200 {{ nodes: 16 }}
            stages: 128, schedule: one_f_one_b, {options}
        }}"
    ));
    let start = Instant::now();
    let mut times = Times { last: start, stages: BTreeMap::new() };
    let compiled =
        compile(&spec, &origins, "", &mut times).unwrap_or_else(|error| panic!("{options}: {error}"));
    let total = start.elapsed().as_secs_f64();
    let instructions: usize = compiled.program.queues.values().map(|queue| queue.instructions.len()).sum();
    print!("{options:<32}{micro_batches:>6}{instructions:>14}");
    for stage in STAGES {
        print!("{:>11.3}", times.stages.get(stage).copied().unwrap_or_default().as_secs_f64());
    }
    println!("{total:>9.2}");
}
