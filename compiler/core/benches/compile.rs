//! Instructions per second of ordering, lowering, verifying and simulating pipelines of up to 64 devices.
//!
//!     cargo bench -p pipec-compiler
//!
//! Every row is the median of a few runs on one core. Time per instruction that stays the same down a table is linear
//! growth. The instructions of a row are those of its program, also where a stage does not write them itself.

use pipe_grammar::diagnostic::SourceId;
use pipec_compiler::lower::{Stages, functions::Wanted, lower};
use pipec_compiler::plan::{plan, slice_lengths};
use pipec_compiler::rewrite::{Rates, fastest};
use pipec_compiler::schedule::{Policy, order};
use pipec_compiler::spec::{Choice, Resolution, Sources, resolve};
use pipec_program::{Costs, simulate, verify};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// The goal of each stage, in instructions per second.
const GOAL: f64 = 1e6;

fn main() {
    let full = !std::env::args().any(|argument| argument == "--test");
    println!("million instructions per second (goal: {} each)", GOAL / 1e6);
    println!(
        "{:<30}{:>9}{:>14}{:>9}{:>9}{:>9}{:>10}{:>9}",
        "schedule", "devices", "instructions", "order", "lower", "verify", "simulate", "seconds"
    );
    let sizes: &[(u32, u32)] =
        if full { &[(8, 64), (16, 128), (32, 256), (64, 512), (64, 1024)] } else { &[(4, 8)] };
    for (schedule, chunks) in [("one_f_one_b", 1), ("interleaved { virtual: 2 }", 2)] {
        for &(devices, micro_batches) in sizes {
            row(schedule, chunks, devices, micro_batches, if full { 5 } else { 1 });
        }
    }
    // Slices of attention: more than three million passes.
    let (schedule, devices, micro_batches) = if full {
        ("svpp { virtual: 2, slices: 16, weight_grads: split }", 64, 512)
    } else {
        ("svpp { virtual: 2, slices: 4 }", 4, 8)
    };
    row(schedule, 2, devices, micro_batches, 1);
}

/// One layer per stage: the functions are small, so that instructions are what costs.
fn source(schedule: &str, chunks: u32, devices: u32, micro_batches: u32) -> String {
    let stages = devices * chunks;
    let layers = stages - 2;
    let attention = match schedule.contains("slices") {
        true => {
            "q = heads(linear(h, 32), 2)  k = heads(linear(h, 32), 2)\n x = x + merge(attention(q, k, k, mask: causal))\n"
        }
        false => "",
    };
    format!(
        "model chain {{
            tokens = input(token, [seq])
            targets = input(token, [seq])
            x = embedding(tokens, vocab: 256, dim: 32)
            repeat {layers} as layer {{
                h = rms_norm(x)
                {attention}x = x + linear(silu(linear(h, 64)), 32)
            }}
            loss = cross_entropy(linear(x, 256), targets)
        }}
        cluster many {{
            node * 1 {{
                gpu * {devices} {{ memory: 24 GiB, f32: 10 TFLOPS, bandwidth: 1000 GB/s }}
                host {{ memory: 512 GiB, cores: 64 }}
                link gpu <-> host {{ bandwidth: 24 GB/s, latency: 5 us }}
            }}
        }}
        train {{
            seq: 16, global_batch: {micro_batches}, micro_batch: 1, precision: f32, clip_norm: 1.0
            optimizer: adamw {{ lr: 1e-3, betas: (0.9, 0.95), eps: 1e-8, weight_decay: 0.1 }}
        }}
        pipeline {{ model: chain, cluster: many, stages: {stages}, schedule: {schedule} }}\n"
    )
}

fn row(schedule: &str, chunks: u32, devices: u32, micro_batches: u32, runs: usize) {
    let text = source(schedule, chunks, devices, micro_batches);
    let parsed = pipe_grammar::parse(SourceId(0), &text);
    assert!(parsed.diagnostics.is_empty(), "{:?}", parsed.diagnostics);
    let mut sources = Sources::new();
    sources.add("bench.pipe", parsed.file);
    let Resolution { spec, origins, .. } =
        resolve(&sources, SourceId(0), &Choice::default()).unwrap_or_else(|errors| panic!("{errors:?}"));
    let forms = fastest(&spec.model, &spec.train, &slice_lengths(&spec), Rates::of(&spec))
        .unwrap_or_else(|error| panic!("{error:?}"));
    let plan = plan(&spec, &forms, &origins).unwrap_or_else(|errors| panic!("{errors:?}"));

    let (ordering, ordered) = timed(runs, || {
        let problem = plan.problem().unwrap_or_else(|error| panic!("{error}"));
        order(Policy::of(spec.pipeline.schedule).expect("a policy"), &problem)
            .unwrap_or_else(|error| panic!("{error}"))
    });
    let stages = Stages::new(&spec.model, &forms, &plan, Wanted::by(&ordered), &BTreeMap::new());
    let (lowering, lowered) = timed(runs, || lower(&spec, &origins, &plan, &stages, &ordered, ""));
    let program = lowered.unwrap_or_else(|error| panic!("{error}")).program;
    let instructions: usize = program.queues.values().map(|queue| queue.instructions.len()).sum();
    let mut copies: Vec<_> = (0..runs).map(|_| program.clone()).collect();
    let (verifying, verified) = timed(runs, || verify(copies.pop().unwrap_or_else(|| program.clone())));
    let verified = verified.unwrap_or_else(|violations| panic!("{violations}"));
    let (simulating, timeline) = timed(runs, || simulate(&verified, &Costs::roofline(&verified)));
    black_box(timeline);
    let rate = |time: Duration| format!("{:.2}", instructions as f64 / time.as_secs_f64() / 1e6);
    let seconds = [ordering, lowering, verifying, simulating].iter().sum::<Duration>().as_secs_f64();
    println!(
        "{schedule:<32}{devices:>7}{instructions:>14}{:>9}{:>9}{:>9}{:>10}{seconds:>9.2}",
        rate(ordering),
        rate(lowering),
        rate(verifying),
        rate(simulating)
    );
}

/// The median time of some runs, and what the last of them made.
fn timed<T>(runs: usize, mut run: impl FnMut() -> T) -> (Duration, T) {
    let mut times = Vec::new();
    let mut last = None;
    for _ in 0..runs.max(1) {
        drop(last.take());
        let start = Instant::now();
        let made = black_box(run());
        times.push(start.elapsed());
        last = Some(made);
    }
    times.sort();
    (times[times.len() / 2], last.expect("there is at least one run"))
}
