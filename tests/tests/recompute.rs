//! What is computed again is what was computed: every mode of a layer gives the same bits, in less memory.

use pipec_compiler::spec::{Cut, InFlight, Level, Recompute, Resolution, Schedule, WeightGrads};
use pipec_program::memory::memory;
use pipec_program::simulate::simulate;
use pipec_program::{Category, Costs};
use pipec_runtime::engine::Options;
use pipec_tests::{Kind, compile, engine, losses, replan, resolve, run};
use std::sync::Arc;

fn schedules() -> [Schedule; 4] {
    let svpp = |weight_grads| Schedule::Svpp {
        virtual_stages: 1,
        slices: 2,
        in_flight: InFlight::Max,
        bias: 100,
        weight_grads,
    };
    [Schedule::OneFOneB, Schedule::ZbH1, svpp(WeightGrads::Fused), svpp(WeightGrads::PerGemm)]
}

/// Bytes of activations where they are most, over all devices.
fn activations(spec: &pipec_compiler::spec::Spec, origins: &pipec_compiler::spec::Origins) -> u64 {
    let program = compile(spec, origins).unwrap_or_else(|error| panic!("{error}")).program;
    let timeline = simulate(&program, &Costs::roofline(&program));
    let uses = memory(&program, &timeline);
    uses.iter().map(|arena| arena.peak.live.get(Category::Activations).0).sum()
}

/// No bound: the operations are the same.
#[test]
fn losses_are_the_same_bits() {
    for file in ["examples/reference/tiny_a.pipe", "examples/reference/tiny_b.pipe"] {
        let Resolution { spec, origins, .. } = resolve(file);
        for schedule in schedules() {
            let of = |level: Level| {
                let mut spec = replan(&spec, 2, schedule, Cut::Balanced);
                spec.pipeline.recompute = Recompute::Every(level);
                (losses(&spec, &origins, Kind::Cpu, 3), activations(&spec, &origins))
            };
            let (kept, most) = of(Level::None);
            let (selective, less) = of(Level::Selective);
            let (full, least) = of(Level::Full);
            assert_eq!(kept, selective, "{file} {schedule:?}");
            assert_eq!(kept, full, "{file} {schedule:?}");
            assert!(most > less && less > least, "{file} {schedule:?}: {most} {less} {least}");
        }
    }
}

/// Planned memory stays exact.
#[test]
fn runs_touch_what_was_planned() {
    let Resolution { spec, origins, .. } = resolve("examples/reference/tiny_b.pipe");
    for level in [Level::Selective, Level::Full] {
        let mut spec = replan(&spec, 2, Schedule::OneFOneB, Cut::Balanced);
        spec.pipeline.recompute = Recompute::Every(level);
        let program = Arc::new(compile(&spec, &origins).unwrap().program);
        let mut engine = engine(&program, Kind::Cpu, Options { paint: true });
        run(&mut engine, 2);
        let touched = engine.touched();
        for ((device, space), planned) in engine.arena_bytes() {
            let high_water = touched[&(device, space)].high_water;
            assert_eq!(high_water.align_up(64), planned.align_up(64), "{level:?} {device} {space:?}");
        }
    }
}
