//! Training gives the same losses under every schedule: sliced, split, forth and back, in two directions.

use pipec_compiler::spec::{Cut, OptimizerState, Resolution, Schedule, Spec, WeightGrads};
use pipec_tests::{Kind, compile, losses, replan, resolve};

/// The largest relative difference.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs() / b.abs()).fold(0.0, f64::max)
}

fn svpp(virtual_stages: u32, slices: u32, weight_grads: WeightGrads) -> Schedule {
    Schedule::Svpp { virtual_stages, slices, in_flight: None, bias: 100, weight_grads }
}

#[test]
fn every_schedule_agrees() {
    let Resolution { spec, origins, .. } = resolve("examples/reference/tiny_b.pipe");
    let alone = losses(&replan(&spec, 1, Schedule::OneFOneB, Cut::Balanced), &origins, Kind::Cpu, 3);
    let mut schedules = vec![
        Schedule::BreadthFirst { virtual_stages: 2 },
        Schedule::ZbH1,
        Schedule::ZbH2,
        Schedule::ZbV,
        Schedule::VHalf,
        Schedule::VMin,
        Schedule::DualPipe,
        Schedule::DualPipeV,
        Schedule::Chimera,
        Schedule::Hanayo { waves: 1 },
    ];
    for slices in [2, 4] {
        schedules.extend([
            Schedule::TeraPipe { slices },
            Schedule::Seq1F1B { virtual_stages: 1, slices },
            Schedule::Seq1F1B { virtual_stages: 2, slices },
            Schedule::SlimPipe { virtual_stages: 1, slices },
        ]);
        for weight_grads in [WeightGrads::Fused, WeightGrads::Split, WeightGrads::PerGemm] {
            schedules.extend([1, 2].map(|virtual_stages| svpp(virtual_stages, slices, weight_grads)));
        }
    }
    let mut failures = Vec::new();
    for schedule in schedules {
        let spec = replan(&spec, 2, schedule, Cut::Balanced);
        if let Err(error) = compile(&spec, &origins) {
            failures.push(format!("{schedule:?}: {error}"));
            continue;
        }
        let found = losses(&spec, &origins, Kind::Cpu, 3);
        let apart = distance(&found, &alone);
        println!("{schedule:?}: {apart:e}");
        if apart > 1e-6 {
            failures.push(format!("{schedule:?}: {apart:e}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
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
