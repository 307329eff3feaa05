//! Planned memory is a fact: a run touches every planned byte and no other, and packing wastes little.

use pipec_compiler::spec::{Cut, Resolution, Schedule};
use pipec_program::memory::memory;
use pipec_program::simulate::simulate;
use pipec_program::{Costs, Space};
use pipec_tests::{compile, replan, resolve, touches_what_was_planned};
use std::sync::Arc;

#[test]
fn runs_touch_what_was_planned() {
    let Resolution { spec, origins, .. } = resolve("examples/reference/tiny_a.pipe");
    for (devices, schedule) in [
        (1, Schedule::OneFOneB),
        (4, Schedule::OneFOneB),
        (2, Schedule::GPipe),
        (2, Schedule::Interleaved { virtual_stages: 2, group: 2 }),
    ] {
        let spec = replan(&spec, devices, schedule, Cut::Balanced);
        let program = Arc::new(compile(&spec, &origins).unwrap().program);
        touches_what_was_planned(&program, &format!("{schedule:?}"));
    }
}

#[test]
fn packing_wastes_at_most_a_twentieth() {
    for path in [
        "examples/tiny.pipe",
        "examples/tied.pipe",
        "examples/reference/s.pipe",
        "examples/reference/m.pipe",
        "examples/reference/tiny_48.pipe",
    ] {
        let Resolution { spec, origins, .. } = resolve(path);
        let layers = u32::try_from(spec.model.pieces.len()).unwrap();
        for (devices, schedule) in [
            (1, Schedule::OneFOneB),
            (2, Schedule::OneFOneB),
            (4, Schedule::OneFOneB),
            (4, Schedule::GPipe),
            (2, Schedule::Interleaved { virtual_stages: 2, group: 2 }),
            (4, Schedule::Interleaved { virtual_stages: 3, group: 4 }),
        ] {
            let spec = replan(&spec, devices, schedule, Cut::Balanced);
            if spec.pipeline.stages > layers {
                continue;
            }
            let program = compile(&spec, &origins).unwrap().program;
            let timeline = simulate(&program, &Costs::roofline(&program));
            for arena in memory(&program, &timeline) {
                assert!(
                    arena.space == Space::Host || arena.loss_share() <= 0.05,
                    "{path} {schedule:?} {}: {} of {} lost",
                    arena.device,
                    arena.loss(),
                    arena.size
                );
            }
        }
    }
}
