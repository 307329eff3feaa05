//! Training gives the losses of a trusted framework, whatever the stages, the schedule and the cut, and the same bits.

use pipec_compiler::pipeline;
use pipec_compiler::spec::{Cut, Resolution, Schedule};
use pipec_program::DType;
use pipec_tests::{Kind, compile, losses, replan, resolve};
use serde_json::Value;

fn reference(name: &str, precision: &str) -> Vec<f64> {
    let path = pipec_tests::root().join(format!("tests/reference/{name}.json"));
    let value: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    value[precision]["losses"].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect()
}

/// The largest relative difference.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs() / b.abs()).fold(0.0, f64::max)
}

/// Every schedule on so many stages, each by cost and by an explicit cut.
fn plans(layers: u32, stages: u32) -> Vec<(u32, Schedule, Cut)> {
    let mut plans = Vec::new();
    let even = Cut::Layers((0..stages).map(|s| (s + 1) * layers / stages - s * layers / stages).collect());
    for cut in [Cut::Balanced, even] {
        for schedule in [Schedule::GPipe, Schedule::OneFOneB] {
            plans.push((stages, schedule, cut.clone()));
        }
        for virtual_stages in [2, 4] {
            if stages.is_multiple_of(virtual_stages) && stages > virtual_stages {
                let devices = stages / virtual_stages;
                for group in [devices, devices + 1] {
                    plans.push((devices, Schedule::Interleaved { virtual_stages, group }, cut.clone()));
                }
            }
        }
    }
    plans
}

/// All plans give the reference losses on the CPU device, and one another's bits.
fn every_plan_agrees(name: &str, layers: u32, stages: &[u32]) {
    let Resolution { spec, origins, .. } = resolve(&format!("examples/reference/{name}.pipe"));
    let expected = reference(name, "float32");
    let mut bits: Option<Vec<f64>> = None;
    for &stages in stages {
        for (devices, schedule, cut) in plans(layers, stages) {
            let spec = replan(&spec, devices, schedule, cut.clone());
            let found = losses(&spec, &origins, Kind::Cpu, expected.len() as u64);
            let what = format!("{name}: {stages} stages, {schedule:?}, {cut:?}");
            assert!(distance(&found, &expected) < 1e-5, "{what}: {found:?} against {expected:?}");
            assert_eq!(&found, bits.get_or_insert_with(|| found.clone()), "{what}");
        }
    }
}

#[test]
fn tiny_a_matches_under_every_plan() {
    every_plan_agrees("tiny_a", 4, &[1, 2, 4]);
}

#[test]
fn tiny_b_matches_under_every_plan() {
    every_plan_agrees("tiny_b", 8, &[1, 2, 4, 8]);
}

#[test]
fn eight_stages_of_four_layers_are_refused() {
    // Four layers, embedding and head are six pieces.
    let Resolution { spec, origins, .. } = resolve("examples/reference/tiny_a.pipe");
    let spec = replan(&spec, 8, Schedule::OneFOneB, Cut::Balanced);
    match compile(&spec, &origins) {
        Err(pipeline::Error::Diagnostics(diagnostics)) => {
            assert_eq!(diagnostics.len(), 1);
            assert_eq!(diagnostics[0].code.as_str(), "E0601");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn reference_device_in_f64_matches_to_the_tenth_digit() {
    for name in ["tiny_a", "tiny_b"] {
        let Resolution { mut spec, origins, .. } = resolve(&format!("examples/reference/{name}.pipe"));
        spec.train.precision = DType::F64;
        let expected = reference(name, "float64");
        let spec = replan(&spec, 2, Schedule::OneFOneB, Cut::Balanced);
        let found = losses(&spec, &origins, Kind::Reference, expected.len() as u64);
        assert!(distance(&found, &expected) < 1e-10, "{name}: {found:?} against {expected:?}");
    }
}

#[test]
fn cpu_agrees_with_the_reference_device() {
    // Both compute in f32; they differ in the order of sums, which costs a few units of 6e-8 a step.
    let Resolution { spec, origins, .. } = resolve("examples/reference/tiny_a.pipe");
    let cpu = losses(&spec, &origins, Kind::Cpu, 5);
    let reference = losses(&spec, &origins, Kind::Reference, 5);
    assert!(distance(&cpu, &reference) < 1e-6, "{cpu:?} {reference:?}");
}

#[test]
fn forty_eight_layers_interleave_over_eight_devices() {
    let Resolution { spec, origins, .. } = resolve("examples/reference/tiny_48.pipe");
    let alone = losses(&replan(&spec, 1, Schedule::OneFOneB, Cut::Balanced), &origins, Kind::Cpu, 3);
    for schedule in [
        Schedule::OneFOneB,
        Schedule::Interleaved { virtual_stages: 2, group: 8 },
        Schedule::Interleaved { virtual_stages: 3, group: 8 },
        Schedule::Interleaved { virtual_stages: 6, group: 5 },
    ] {
        let spec = replan(&spec, 8, schedule, Cut::Balanced);
        assert_eq!(losses(&spec, &origins, Kind::Cpu, 3), alone, "{schedule:?}");
    }
}

#[test]
fn tied_embeddings_train_alike_on_any_number_of_stages() {
    let Resolution { spec, origins, .. } = resolve("examples/tied.pipe");
    let alone = losses(&replan(&spec, 1, Schedule::OneFOneB, Cut::Balanced), &origins, Kind::Cpu, 5);
    let mut apart: Option<Vec<f64>> = None;
    for devices in [2, 3, 4] {
        let spec = replan(&spec, devices, Schedule::OneFOneB, Cut::Balanced);
        let found = losses(&spec, &origins, Kind::Cpu, 5);
        // Two copies add up embedding and head contributions apart and then once: another order of the same sum.
        assert!(distance(&found, &alone) < 1e-5, "{devices}: {found:?} {alone:?}");
        assert_eq!(&found, apart.get_or_insert_with(|| found.clone()), "{devices}");
    }
}
