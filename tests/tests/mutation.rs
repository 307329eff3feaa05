//! Single instructions of good programs are changed: every mutant is rejected, or computes the same bits.

use pipec_compiler::spec::{Cut, Resolution, Schedule, State, Updates};
use pipec_program::id::IdVec;
use pipec_program::{Bytes, Instruction, Program, QueueId, Verified, verify};
use pipec_runtime::engine::Options;
use pipec_tests::{Kind, compile, engine, replan, resolve_text, run};
use std::sync::Arc;

const MODEL: &str = "
use std::clusters::local
model small {
    tokens = input(token, [seq])
    targets = input(token, [seq])
    x = embedding(tokens, vocab: 16, dim: 8)
    repeat 2 as layer {
        x = x + linear(silu(linear(rms_norm(x), 8)), 8)
    }
    loss = cross_entropy(linear(rms_norm(x), 16), targets)
}
train {
    seq: 4, global_batch: 3, micro_batch: 1, clip_norm: 1.0
    optimizer: adamw { lr: 1e-2, betas: (0.9, 0.95), eps: 1e-8, weight_decay: 0.1 }
    data: formula
}
pipeline { model: small, cluster: local { devices: 2 }, stages: 2, schedule: one_f_one_b }
";

/// The bits of three steps: losses and norms.
fn bits(program: Verified) -> Vec<(u64, Option<u64>)> {
    let mut engine = engine(&Arc::new(program), Kind::Reference, Options::default());
    run(&mut engine, 3)
        .iter()
        .map(|metrics| (metrics.loss.to_bits(), metrics.gradient_norm.map(f64::to_bits)))
        .collect()
}

/// All single changes of a queue at a position.
fn mutants(program: &Program, queue: QueueId, position: usize) -> Vec<(String, Program)> {
    let original = &program.queues[queue].instructions;
    let mut mutants: Vec<(String, Vec<Instruction>)> = Vec::new();
    let mut add = |what: &str, change: &dyn Fn(&mut Vec<Instruction>)| {
        let mut instructions = original.clone();
        change(&mut instructions);
        if instructions != *original {
            mutants.push((format!("{what} {queue}:{position}"), instructions));
        }
    };
    add("drop", &|list| {
        list.remove(position);
    });
    add("repeat", &|list| list.insert(position, list[position].clone()));
    add("swap", &|list| {
        if position + 1 < list.len() {
            list.swap(position, position + 1);
        }
    });
    add("move the view of", &|list| match &mut list[position] {
        Instruction::Run { views, .. } => {
            if let Some(view) = views.last_mut() {
                view.offset += Bytes(64);
            }
        }
        Instruction::Send { view, .. }
        | Instruction::Recv { view, .. }
        | Instruction::Fill { view }
        | Instruction::Reduce { view, .. } => view.offset += Bytes(64),
        Instruction::Copy { to, .. } => to.offset += Bytes(64),
        Instruction::Wait { position, .. } => *position = position.saturating_sub(1),
    });
    add("exchange the first two views of", &|list| {
        if let Instruction::Run { views, .. } = &mut list[position]
            && views.len() > 1
        {
            views.swap(0, 1);
        }
    });
    add("shorten the view of", &|list| match &mut list[position] {
        Instruction::Fill { view } => view.bytes -= Bytes(64),
        Instruction::Wait { position, .. } => *position += 1,
        Instruction::Run { .. }
        | Instruction::Send { .. }
        | Instruction::Recv { .. }
        | Instruction::Copy { .. }
        | Instruction::Reduce { .. } => {}
    });
    let rebuilt = |instructions: Vec<Instruction>| {
        let mut mutant = program.clone();
        mutant.queues[queue].instructions = instructions;
        mutant
    };
    mutants.into_iter().map(|(what, instructions)| (what, rebuilt(instructions))).collect()
}

#[test]
fn every_mutant_is_rejected_or_equal() {
    let Resolution { spec, origins, .. } = resolve_text(MODEL);
    let mut rejected = 0;
    let mut equal = 0;
    let spipe = Schedule::SPipe { forward: Some(1), backward: Some(2), updates: Updates::Async };
    for (devices, micro_batches, schedule, state) in [
        (2, 3, Schedule::OneFOneB, State::Device),
        (2, 3, Schedule::GPipe, State::Device),
        (2, 3, Schedule::Interleaved { virtual_stages: 2, group: 2 }, State::Device),
        (2, 6, Schedule::DualPipeV, State::Device),
        (2, 3, Schedule::OneFOneB, State::HostOptimizer),
        (2, 3, Schedule::Interleaved { virtual_stages: 2, group: 2 }, State::Host),
        (2, 3, spipe, State::Host),
    ] {
        let mut spec = replan(&spec, devices, schedule, Cut::Balanced);
        (spec.pipeline.micro_batches, spec.pipeline.state) = (micro_batches, state);
        let program = compile(&spec, &origins).unwrap().program;
        let expected = bits(program.clone());
        let queues: IdVec<QueueId, usize> =
            program.queues.values().map(|queue| queue.instructions.len()).collect();
        for (queue, length) in queues.iter() {
            for position in 0..*length {
                for (what, mutant) in mutants(&program, queue, position) {
                    match verify(mutant) {
                        Err(_) => rejected += 1,
                        Ok(verified) => {
                            equal += 1;
                            assert_eq!(bits(verified), expected, "{schedule:?} {state:?}: {what}");
                        }
                    }
                }
            }
        }
    }
    // Most changes are faults, and some (a wait that another one covers) change nothing.
    assert!(rejected > 6 * equal && rejected > 3000, "{rejected} rejected, {equal} equal");
}
