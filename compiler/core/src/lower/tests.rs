//! Programs of sample models: proved, packed well, and read line by line where they are small.

use super::functions::Wanted;
use super::*;
use crate::graph::samples::{
    gpt_embedding, gpt_head, gpt_layer, llama_embedding, llama_head, llama_layer, model,
};
use crate::plan::plan;
use crate::rewrite::{Rates, fastest};
use crate::schedule::order;
use crate::spec::{
    Cluster, Cut, DeviceKind, Model, Node, Offload, Optimizer, Pipeline, Recompute, Schedule as Policy,
    State, Train, Wire,
};
use pipec_program::id::Id;
use pipec_program::{
    BytesPerSecond, Costs, FlopsPerSecond, LearningRate, Mask, Nanos, Verified, simulate, verify,
};
use std::collections::BTreeMap;

/// A pipeline of a model on CPUs of 1 GiB.
fn spec(model: Model, devices: u32, chunks: u32, micro_batches: u32, schedule: Policy) -> Spec {
    let wire = Wire { bandwidth: BytesPerSecond(10_000_000_000), latency: Nanos(2_000) };
    Spec {
        model,
        cluster: Cluster {
            name: "local".to_owned(),
            nodes: vec![Node {
                devices,
                device: DeviceKind {
                    name: "cpu".to_owned(),
                    memory: Bytes(1 << 30),
                    bandwidth: BytesPerSecond(20_000_000_000),
                    rates: vec![(DType::F32, FlopsPerSecond(100_000_000_000))],
                    threads: 1,
                },
                host_memory: Bytes(8 << 30),
                host_cores: 4,
                host_bandwidth: BytesPerSecond(20_000_000_000),
                host_wire: Some(wire),
                device_wire: None,
            }],
            node_wire: None,
        },
        train: Train {
            seq: 8,
            global_batch: u64::from(2 * micro_batches),
            micro_batch: 2,
            precision: DType::F32,
            gradients: crate::spec::Sums::Wide,
            clip_norm: Some(1.0),
            optimizer: Optimizer::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 },
            optimizer_state: crate::spec::OptimizerState::Copied,
            learning_rate: LearningRate::Constant { rate: 1e-3 },
            steps: None,
            seed: 1,
            data: None,
        },
        pipeline: Pipeline {
            stages: devices * chunks,
            devices,
            micro_batches,
            cut: Cut::Balanced,
            schedule,
            given: None,
            balance: 0,
            recompute: Recompute::default(),
            offload: Offload::default(),
            state: State::default(),
            replicas: 1,
        },
        without: std::collections::BTreeSet::new(),
    }
}

fn llama(depth: usize, tied: bool) -> Model {
    let layer = llama_layer(8, 2, 1, 16, Mask::Causal);
    model(llama_embedding(32, 8), layer, depth, llama_head(32, 8), tied)
}

fn gpt(depth: usize) -> Model {
    model(gpt_embedding(32, 8, 8), gpt_layer(8, 2), depth, gpt_head(32, 8), true)
}

fn lowered(spec: &Spec) -> Lowered {
    let forms = fastest(&spec.model, &spec.train, &[spec.train.seq], Rates::of(spec)).unwrap();
    let plan = plan(spec, &forms, &Origins::default()).unwrap();
    let problem = plan.problem().unwrap();
    let schedule =
        order(crate::schedule::Policy::of(spec.pipeline.schedule).expect("a policy"), &problem).unwrap();
    let stages = Stages::new(&spec.model, &forms, &plan, Wanted::by(&schedule), &BTreeMap::new());
    assert_eq!(crate::schedule::verify(&problem, &schedule), []);
    lower(spec, &Origins::default(), &plan, &stages, &schedule, "").unwrap()
}

fn proved(program: Program, what: &str) -> Verified {
    verify(program.clone()).unwrap_or_else(|violations| {
        panic!("{what}\n{violations}\n{}", pipec_program::text::print(&program));
    })
}

#[test]
fn every_small_pipeline_is_proved_and_ends() {
    for devices in 1..=4 {
        for micro_batches in 1..=9 {
            let mut policies = vec![(1, Policy::OneFOneB), (1, Policy::GPipe), (2, Policy::GPipe)];
            policies.extend(
                (1..=3)
                    .map(|chunks| (chunks, Policy::Interleaved { virtual_stages: chunks, group: devices })),
            );
            for (chunks, policy) in policies {
                let spec = spec(llama(12, devices > 1), devices, chunks, micro_batches, policy);
                let what =
                    format!("{policy:?} devices {devices} chunks {chunks} micro_batches {micro_batches}");
                let Lowered { program, arenas, hosts: _ } = lowered(&spec);
                let program = proved(program, &what);
                let timeline = simulate(&program, &Costs::roofline(&program));
                assert!(timeline.makespan() > Nanos::ZERO);
                for arena in arenas.values() {
                    let (fixed, least) = (sum(arena.fixed.values()).0, sum(arena.least.values()).0);
                    let packing = arena.end.0 as f64 / (fixed + least) as f64;
                    // A thousandth for the gaps of alignment, which neither sum has.
                    assert!(packing <= 1.051, "{what}: {} over {least}: {packing}", arena.packed);
                }
            }
        }
    }
}

#[test]
fn tied_dropout_and_short_weights_are_proved() {
    for (devices, chunks, policy) in [
        (1, 1, Policy::GPipe),
        (2, 1, Policy::OneFOneB),
        (3, 2, Policy::Interleaved { virtual_stages: 2, group: 3 }),
    ] {
        for precision in [DType::F32, DType::BF16] {
            for clip_norm in [None, Some(1.0)] {
                let mut spec = spec(gpt(4), devices, chunks, 4, policy);
                (spec.train.precision, spec.train.clip_norm) = (precision, clip_norm);
                let program = lowered(&spec).program;
                let embed = &program.parameters[ParameterId(0)];
                assert_eq!(embed.copies.len(), if devices == 1 { 1 } else { 2 });
                assert_eq!(embed.copies[0].master.is_some(), precision == DType::BF16);
                proved(program, &format!("{policy:?} {precision} {clip_norm:?}"));
            }
        }
    }
}

/// Stages of one device that name one parameter have it once, and update it once.
#[test]
fn shared_parameters_of_a_device_are_one() {
    for (devices, chunks, policy) in [
        (1, 2, Policy::GPipe),
        (1, 3, Policy::Interleaved { virtual_stages: 3, group: 2 }),
        (2, 2, Policy::Interleaved { virtual_stages: 2, group: 2 }),
    ] {
        for precision in [DType::F32, DType::BF16] {
            let mut model = llama(8, true);
            // All layers but the first share the second feed-forward matrix of the second, as ALBERT would.
            let shared = model.pieces[2].parameters.values().last().copied().unwrap();
            for piece in &mut model.pieces[3..9] {
                let last = piece.parameters.ids().last().unwrap();
                piece.parameters[last] = shared;
            }
            let mut used: Vec<ParameterId> =
                model.pieces.iter().flat_map(|piece| piece.parameters.values()).copied().collect();
            used.sort();
            used.dedup();
            for piece in &mut model.pieces {
                for (_, parameter) in piece.parameters.iter_mut() {
                    *parameter = ParameterId::new(used.binary_search(parameter).unwrap());
                }
            }
            model.parameters = used.iter().map(|&parameter| model.parameters[parameter].clone()).collect();
            let mut spec = spec(model, devices, chunks, 4, policy);
            spec.train.precision = precision;
            let program = lowered(&spec).program;
            for parameter in program.parameters.values() {
                let mut homes: Vec<DeviceId> =
                    parameter.copies.iter().map(|copy| program.buffers[copy.weight.buffer].device).collect();
                homes.dedup();
                assert_eq!(homes.len(), parameter.copies.len(), "{}", parameter.name);
            }
            assert!(program.parameters.values().any(|parameter| parameter.copies[0].stages.len() > 1));
            proved(program, &format!("{policy:?} {precision}"));
        }
    }
}

/// Stages that draw random numbers must draw those of their place in the model, so only stages that draw none are alike.
#[test]
fn alike_stages_share_functions() {
    let functions = |model: Model| {
        let spec = spec(model, 4, 1, 4, Policy::OneFOneB);
        let forms = fastest(&spec.model, &spec.train, &[spec.train.seq], Rates::of(&spec)).unwrap();
        let plan = plan(&spec, &forms, &Origins::default()).unwrap();
        Stages::new(&spec.model, &forms, &plan, Wanted::default(), &BTreeMap::new())
            .shape
            .values()
            .copied()
            .collect::<Vec<_>>()
    };
    assert_eq!(functions(llama(8, false)), [0, 1, 1, 2]);
    assert_eq!(functions(gpt(8)), [0, 1, 2, 3]);
}

#[test]
fn a_two_stage_program_reads_like_this() {
    let mut spec = spec(llama(2, false), 2, 1, 3, Policy::OneFOneB);
    spec.train.clip_norm = None;
    let program = lowered(&spec).program;
    insta::assert_snapshot!(skeleton(&program));
}

#[test]
fn clipping_and_ties_end_the_step() {
    let program = lowered(&spec(gpt(2), 2, 1, 1, Policy::OneFOneB)).program;
    insta::assert_snapshot!(skeleton(&program));
}

/// The text of a program without the values and kernels of its functions, which have tests of their own.
fn skeleton(program: &Program) -> String {
    let text = pipec_program::text::print(program);
    let inner = |line: &&str| {
        line.starts_with("    v")
            || line.starts_with("    kernel")
            || line.contains(" = ")
            || line.contains(" += ")
    };
    text.lines().filter(|line| !inner(line)).fold(String::new(), |text, line| text + line + "\n")
}

fn refusal(change: fn(&mut Spec)) -> String {
    let mut spec = spec(llama(4, false), 2, 1, 4, Policy::GPipe);
    change(&mut spec);
    let forms = fastest(&spec.model, &spec.train, &[spec.train.seq], Rates::of(&spec)).unwrap();
    let plan = plan(&spec, &forms, &Origins::default()).unwrap();
    let problem = plan.problem().unwrap();
    let schedule =
        order(crate::schedule::Policy::of(spec.pipeline.schedule).expect("a policy"), &problem).unwrap();
    let stages = Stages::new(&spec.model, &forms, &plan, Wanted::by(&schedule), &BTreeMap::new());
    match lower(&spec, &Origins::default(), &plan, &stages, &schedule, "").unwrap_err() {
        LowerError::Memory { diagnostic, lacking: _ } => {
            let help = diagnostic.help.as_deref().unwrap_or_default();
            format!(
                "{} {}\n  {}\n  help: {help}",
                diagnostic.code, diagnostic.message, diagnostic.labels[0].text
            )
        }
        error @ (LowerError::Deadlock(_) | LowerError::Step(_) | LowerError::Problem(_)) => error.to_string(),
    }
}

#[test]
fn memory_that_does_not_suffice_is_told_with_its_parts() {
    insta::assert_snapshot!(refusal(|spec| spec.cluster.nodes[0].device.memory = Bytes(90_000)), @r"
    E0701 device d1 needs 93.0 KiB and has 87.9 KiB: 5.11 KiB too little
      weights 5.81 KiB, gradients 5.81 KiB, optimizer 11.6 KiB, workspace 2.00 KiB, data 612 B, activations 66.5 KiB, communication 512 B
      help: a micro-batch of 1 instead of 2 would fit
    ");
    insta::assert_snapshot!(refusal(|spec| spec.cluster.nodes[0].device.memory = Bytes(40_000)), @r"
    E0701 device d1 needs 93.0 KiB and has 39.1 KiB: 53.9 KiB too little, and another device does not suffice either
      weights 5.81 KiB, gradients 5.81 KiB, optimizer 11.6 KiB, workspace 2.00 KiB, data 612 B, activations 66.5 KiB, communication 512 B
      help: use more stages (up to 6), shorter sequences, or devices with more memory
    ");
    insta::assert_snapshot!(refusal(|spec| spec.cluster.nodes[0].device.memory = Bytes(10_000)), @r"
    E0701 device d1 needs 93.0 KiB and has 9.77 KiB: 83.2 KiB too little, and another device does not suffice either
      weights 5.81 KiB, gradients 5.81 KiB, optimizer 11.6 KiB, workspace 2.00 KiB, data 612 B, activations 66.5 KiB, communication 512 B
      help: weights, gradients and optimizer alone take 23.8 KiB: use more stages, or devices with more memory, or `state: host`
    ");
    let mut large = spec(llama(4, false), 2, 1, 4, Policy::GPipe);
    large.cluster.nodes[0].device.memory = Bytes(96_000);
    proved(lowered(&large).program, "what was asked for suffices");
}
