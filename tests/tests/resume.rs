//! A run that stops and goes on is the run that never stopped, bit for bit, also under another plan.

use pipec_compiler::spec::{Cut, Resolution, Schedule, State, Updates};
use pipec_runtime::checkpoint::{self, Progress};
use pipec_runtime::engine::{Engine, Options};
use pipec_tests::{Kind, compile, engine, go_on, replan, resolve, run};
use std::sync::Arc;

fn planned(name: &str, devices: u32, schedule: Schedule) -> Engine {
    let Resolution { spec, origins, .. } = resolve(&format!("examples/{name}.pipe"));
    let mut spec = replan(&spec, devices, schedule, Cut::Balanced);
    if schedule.is_of_host() {
        spec.pipeline.state = State::Host;
    }
    engine(&Arc::new(compile(&spec, &origins).unwrap().program), Kind::Cpu, Options::default())
}

#[test]
fn resumes_bit_for_bit_under_any_plan() {
    let spipe = Schedule::SPipe { forward: Some(1), backward: Some(2), updates: Updates::Async };
    let interleaved = Schedule::Interleaved { virtual_stages: 2, group: 2 };
    for name in ["reference/tiny_a", "tiny"] {
        let whole = run(&mut planned(name, 4, Schedule::OneFOneB), 6);
        let folder = tempfile::tempdir().unwrap();
        let mut first = planned(name, 4, Schedule::OneFOneB);
        let before = run(&mut first, 3);
        assert_eq!(before.last().unwrap().loss, whole[2].loss);
        let sequences =
            3 * first.program().batch.micro_batches as u64 * first.program().batch.sequences as u64;
        let saved = checkpoint::save(&mut first, Progress { step: 3, sequences }, folder.path(), 3).unwrap();
        for (devices, schedule) in [
            (4, Schedule::OneFOneB),
            (1, Schedule::OneFOneB),
            (2, interleaved),
            (3, Schedule::GPipe),
            (2, spipe),
        ] {
            let mut second = planned(name, devices, schedule);
            let from = checkpoint::load(&mut second, &saved).unwrap();
            let after = go_on(&mut second, from, 6);
            let losses = |metrics: &[pipec_runtime::train::Metrics]| {
                metrics
                    .iter()
                    .map(|metrics| (metrics.step, metrics.loss, metrics.gradient_norm))
                    .collect::<Vec<_>>()
            };
            assert_eq!(losses(&after), losses(&whole[3..]), "{name} on {devices}, {schedule:?}");
        }
    }
}
