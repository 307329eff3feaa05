//! Training gives the same losses under every schedule: sliced, split, forth and back, in two directions.

use pipec_compiler::schedule::{Step, given};
use pipec_compiler::spec::{Cut, InFlight, OptimizerState, Resolution, Schedule, Spec, WeightGrads};
use pipec_program::{Instruction, Work};
use pipec_tests::{Kind, compile, losses, replan, resolve, resolve_text};

/// The largest relative difference.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs() / b.abs()).fold(0.0, f64::max)
}

fn svpp(virtual_stages: u32, slices: u32, weight_grads: WeightGrads) -> Schedule {
    Schedule::Svpp { virtual_stages, slices, in_flight: InFlight::Max, bias: 100, weight_grads }
}

/// Schedules by the slices that they cut a sequence into.
fn schedules(slices: u32) -> Vec<Schedule> {
    if slices == 1 {
        return vec![
            Schedule::GPipe,
            Schedule::OneFOneB,
            Schedule::BreadthFirst { virtual_stages: 2 },
            Schedule::ZbH1,
            Schedule::ZbH2,
            Schedule::ZbV,
            Schedule::VHalf,
            Schedule::VMin,
            Schedule::DualPipeV,
            Schedule::Hanayo { waves: 1 },
        ];
    }
    let mut schedules = vec![
        Schedule::TeraPipe { slices },
        Schedule::Seq1F1B { virtual_stages: 1, slices },
        Schedule::Seq1F1B { virtual_stages: 2, slices },
    ];
    for weight_grads in [WeightGrads::Fused, WeightGrads::Split, WeightGrads::PerGemm] {
        schedules.extend([1, 2].map(|virtual_stages| svpp(virtual_stages, slices, weight_grads)));
    }
    schedules
}

/// All schedules with one copy of the weights give the same bits for the same slices, and the losses of whole sequences.
///
/// Two cuts of a sequence add up the same products in another order. A loss of a few units is a mean over all tokens of
/// sums over the vocabulary, the hidden and the sequence dimension, of at most 128 terms each, so that its relative error
/// stays below 3 * 128 * 2^-24 = 2.3e-5 a step, and by the square root law near 1e-6.
fn schedules_agree(file: &str, devices: u32, steps: u64, slicings: &[(u32, u16)]) {
    let Resolution { spec, origins, .. } = resolve(file);
    let alone = losses(&replan(&spec, 1, Schedule::OneFOneB, Cut::Balanced), &origins, Kind::Cpu, steps);
    for &(slices, balance) in slicings {
        let mut bits: Option<Vec<f64>> = None;
        for schedule in schedules(slices) {
            let mut spec = replan(&spec, devices, schedule, Cut::Balanced);
            spec.pipeline.balance = balance;
            if spec.pipeline.stages as usize > spec.model.pieces.len() {
                continue;
            }
            let what = format!("{file} on {devices}, {schedule:?}, balance {balance}");
            let found = losses(&spec, &origins, Kind::Cpu, steps);
            let apart = distance(&found, &alone);
            assert!(apart < 1e-6, "{what}: {apart:e}");
            assert_eq!(&found, bits.get_or_insert_with(|| found.clone()), "{what}");
        }
    }
}

#[test]
fn every_schedule_agrees() {
    schedules_agree("examples/reference/tiny_b.pipe", 2, 3, &[(1, 0), (2, 0), (4, 0), (4, 50), (3, 100)]);
    schedules_agree("examples/reference/tiny_b.pipe", 4, 3, &[(1, 0), (2, 0), (4, 100)]);
}

#[test]
fn every_schedule_agrees_on_forty_eight_layers() {
    schedules_agree("examples/reference/tiny_48.pipe", 8, 1, &[(1, 0), (4, 0), (2, 100)]);
}

/// Two copies of the weights add up the gradients of their micro-batches apart.
#[test]
fn schedules_in_two_directions_agree() {
    let Resolution { spec, origins, .. } = resolve("examples/reference/tiny_b.pipe");
    let alone = losses(&replan(&spec, 1, Schedule::OneFOneB, Cut::Balanced), &origins, Kind::Cpu, 3);
    for (devices, schedule) in
        [2, 4].into_iter().flat_map(|p| [(p, Schedule::DualPipe), (p, Schedule::Chimera)])
    {
        let spec = replan(&spec, devices, schedule, Cut::Balanced);
        let apart = distance(&losses(&spec, &origins, Kind::Cpu, 3), &alone);
        assert!(apart < 1e-6, "{schedule:?} on {devices}: {apart:e}");
    }
}

/// A pair is one call, and computes to the bit what its passes compute one after the other; each half has its own seed.
#[test]
fn pairs_compute_what_their_passes_compute() {
    let model = "use std::clusters::local
        model small {
            tokens = input(token, [seq])
            targets = input(token, [seq])
            x = dropout(embedding(tokens, vocab: 32, dim: 16), p: 0.1)
            repeat 6 {
                h = layer_norm(x)
                x = x + dropout(linear(gelu(linear(h, 32)), 16), p: 0.2)
            }
            loss = cross_entropy(linear(x, 32), targets)
        }
        train {
            seq: 8, global_batch: 12, micro_batch: 1, precision: f32
            optimizer: adamw { lr: 1e-2 }
            data: formula
        }
        pipeline { model: small, cluster: local { devices: 2 }, schedule: dualpipe_v }";
    let Resolution { spec, origins, .. } = resolve_text(model);
    for (devices, schedule) in [(2, Schedule::DualPipeV), (2, Schedule::DualPipe), (4, Schedule::DualPipe)] {
        let spec = replan(&spec, devices, schedule, Cut::Balanced);
        let compiled = compile(&spec, &origins).unwrap_or_else(|error| panic!("{error:?}"));
        let steps = compiled.schedule.devices.values().flatten();
        let pairs = steps.filter(|step| matches!(step, Step::Pair { .. })).count();
        let instructions = compiled.program.queues.values().flat_map(|queue| &queue.instructions);
        let is_pair = |instruction: &&Instruction| match instruction {
            Instruction::Run { work, .. } => matches!(work, Work::Pair(_)),
            _ => false,
        };
        assert_eq!(instructions.filter(is_pair).count(), pairs);
        assert!(pairs > 0, "{schedule:?} on {devices}");
        // The same order with the pairs taken apart.
        let text = pipec::show::schedule_json(&compiled.replica, &compiled.order, &compiled.plan.lengths);
        let mut file: serde_json::Value = serde_json::from_str(&text).unwrap();
        file.as_object_mut().and_then(|file| file.remove("pairs")).expect("the file has pairs");
        let given = given::read("apart.json", &file.to_string()).unwrap();
        let mut apart = spec.clone();
        apart.pipeline.schedule = given.schedule();
        apart.pipeline.given = Some(given);
        for kind in [Kind::Reference, Kind::Cpu] {
            let found = losses(&spec, &origins, kind, 3);
            assert_eq!(found, losses(&apart, &origins, kind, 3), "{schedule:?} on {devices}, {kind:?}");
        }
    }
}

/// Windows bound the prefix that a slice reads; dropout draws the same numbers slice by slice; learned positions go on.
#[test]
fn slices_of_every_op_agree() {
    let model = |mask: &str| {
        format!(
            "use std::clusters::local
            model small {{
                tokens = input(token, [seq])
                targets = input(token, [seq])
                x = dropout(positions(embedding(tokens, vocab: 32, dim: 16), 24), p: 0.1)
                repeat 3 {{
                    h = layer_norm(x)
                    q = heads(linear(h, 16, bias: true), 4)
                    k = heads(linear(h, 8), 2)
                    v = heads(linear(h, 8), 2)
                    x = x + dropout(linear(merge(attention(q, k, v, mask: {mask})), 16), p: 0.2)
                    x = x + linear(gelu(linear(layer_norm(x), 32, bias: true)), 16)
                }}
                loss = cross_entropy(linear(x, 32), targets)
            }}
            train {{
                seq: 24, global_batch: 8, micro_batch: 2, precision: f32
                optimizer: adamw {{ lr: 1e-2 }}
                data: formula
            }}
            pipeline {{ model: small, cluster: local {{ devices: 2 }}, schedule: svpp {{ slices: 4 }} }}"
        )
    };
    for mask in ["causal", "window(3)", "window(9)"] {
        let Resolution { spec, origins, .. } = resolve_text(&model(mask));
        let alone = losses(&replan(&spec, 1, Schedule::OneFOneB, Cut::Balanced), &origins, Kind::Cpu, 4);
        for (slices, balance) in [(2, 0), (4, 0), (6, 30)] {
            let mut spec = replan(&spec, 2, svpp(1, slices, WeightGrads::Split), Cut::Balanced);
            spec.pipeline.balance = balance;
            let apart = distance(&losses(&spec, &origins, Kind::Cpu, 4), &alone);
            assert!(apart < 1e-6, "{mask}, {slices} slices, balance {balance}: {apart:e}");
        }
    }
}

/// The tokens of a micro-batch of odd length start where no number of eight bytes could.
#[test]
fn sequences_of_odd_length_train() {
    let Resolution { mut spec, origins, .. } = resolve("examples/reference/tiny_a.pipe");
    (spec.train.seq, spec.train.micro_batch, spec.train.global_batch) = (13, 1, 16);
    let spec = replan(&spec, 2, Schedule::OneFOneB, Cut::Balanced);
    let (cpu, reference) =
        (losses(&spec, &origins, Kind::Cpu, 1), losses(&spec, &origins, Kind::Reference, 1));
    assert!(distance(&cpu, &reference) < 1e-6, "{cpu:?} {reference:?}");
}

/// The same plan for several replicas.
fn replicated(spec: &Spec, replicas: u32, schedule: Schedule) -> Spec {
    let mut spec = replan(spec, 2, schedule, Cut::Balanced);
    spec.pipeline.replicas = replicas;
    for node in &mut spec.cluster.nodes {
        node.devices = 2 * replicas;
    }
    spec
}

#[test]
fn replicas_give_the_losses_of_one() {
    for file in ["examples/reference/tiny_b.pipe", "examples/tied.pipe"] {
        let Resolution { spec, origins, .. } = resolve(file);
        let alone = losses(&replicated(&spec, 1, Schedule::OneFOneB), &origins, Kind::Cpu, 3);
        let four = svpp(1, 4, WeightGrads::Split);
        for schedule in [Schedule::OneFOneB, Schedule::ZbV, Schedule::DualPipe, four] {
            for replicas in [2, 4] {
                let spec = replicated(&spec, replicas, schedule);
                if spec.pipeline.micro_batches < 4 * replicas {
                    continue;
                }
                let found = losses(&spec, &origins, Kind::Cpu, 3);
                let apart = distance(&found, &alone);
                assert!(apart < 1e-6, "{file}, {replicas} replicas, {schedule:?}: {apart:e}");
            }
        }
    }
}

/// Who takes the step of a parameter changes no bit of it.
#[test]
fn sharded_optimizers_give_the_same_bits() {
    for file in ["examples/reference/tiny_b.pipe", "examples/tied.pipe"] {
        let Resolution { spec, origins, .. } = resolve(file);
        for schedule in [Schedule::OneFOneB, Schedule::DualPipe] {
            for replicas in [1, 2, 3] {
                let mut spec = replicated(&spec, replicas, schedule);
                let copies = replicas * schedule.placement().copies();
                if copies < 2 || spec.pipeline.micro_batches < 4 * replicas {
                    continue;
                }
                spec.pipeline.micro_batches -= spec.pipeline.micro_batches % (replicas * 2);
                let copied = losses(&spec, &origins, Kind::Cpu, 3);
                spec.train.optimizer_state = OptimizerState::Sharded;
                let sharded = losses(&spec, &origins, Kind::Cpu, 3);
                assert_eq!(sharded, copied, "{file}, {replicas} replicas, {schedule:?}");
            }
        }
    }
}

/// A stage that holds nothing but the embedding takes its gradient for the weights alone.
#[test]
fn an_embedding_alone_may_be_a_stage() {
    let Resolution { spec, origins, .. } = resolve("examples/reference/tiny_a.pipe");
    let alone = losses(&replan(&spec, 1, Schedule::OneFOneB, Cut::Balanced), &origins, Kind::Cpu, 2);
    for schedule in [Schedule::ZbH1, svpp(1, 4, WeightGrads::Split), svpp(1, 4, WeightGrads::PerGemm)] {
        let spec = replan(&spec, 6, schedule, Cut::Balanced);
        let apart = distance(&losses(&spec, &origins, Kind::Cpu, 2), &alone);
        assert!(apart < 1e-6, "{schedule:?}: {apart:e}");
    }
}
