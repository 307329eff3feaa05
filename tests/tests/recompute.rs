//! What is computed again, or comes back from the host, is what was computed: every mode of a layer gives the same bits, in
//! less memory.

use pipec_compiler::mode::ModeId;
use pipec_compiler::pipeline::compile_in;
use pipec_compiler::spec::{
    Cut, InFlight, Level, Offload, Piece, Recompute, Resolution, Schedule, Spec, WeightGrads,
};
use pipec_program::id::Id;
use pipec_program::memory::memory;
use pipec_program::simulate::simulate;
use pipec_program::{
    Body, Bytes, Category, Costs, FlopsPerSecond, Instruction, Kernel, Op, Pass, Program, QueueKind, Space,
    Work,
};
use pipec_runtime::engine::Options;
use pipec_tests::{
    Kind, compile, engine, losses, replan, resolve, resolve_text, run, touches_what_was_planned,
};
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
    let devices = uses.iter().filter(|arena| arena.space == Space::Device);
    devices.map(|arena| arena.peak.live.get(Category::Activations).0).sum()
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

/// How many norms of a program add a residual.
fn norms_of_sums(program: &Program) -> usize {
    let kernels = program.functions.values().flat_map(|function| match &function.body {
        Body::Kernels { kernels, .. } => kernels.as_slice(),
        Body::Abstract { .. } => &[],
    });
    let adds = |kernel: &&Kernel| {
        let operands = kernel.inputs.len();
        matches!((&kernel.op, operands), (Op::RmsNorm { .. }, 3) | (Op::LayerNorm { .. }, 4))
    };
    kernels.filter(adds).count()
}

/// One kernel for a sum and its norm gives the bits of two, in the forward pass and where it is computed again.
#[test]
fn norms_of_sums_change_no_bit() {
    let gpt = "train {
            seq: 12, global_batch: 4, micro_batch: 2, precision: f32, optimizer: adamw { lr: 1e-2 }
            seed: 3, data: formula
        }
        pipeline {
            model: std::models::gpt { layers: 2, hidden: 24, heads: 2, vocab: 40, rows: 12, activation: gelu }
            cluster: std::clusters::local { devices: 2 }, stages: 2
        }";
    for Resolution { mut spec, origins, .. } in [resolve("examples/reference/tiny_b.pipe"), resolve_text(gpt)]
    {
        for level in [Level::None, Level::Full] {
            spec.pipeline.recompute = Recompute::Every(level);
            let of = |spec: &Spec| {
                let count = norms_of_sums(&compile(spec, &origins).unwrap().program);
                (count, losses(spec, &origins, Kind::Cpu, 3))
            };
            let (several, one) = of(&spec);
            let mut spec = spec.clone();
            spec.without.insert("fuse-residual-norm".to_owned());
            let (none, two) = of(&spec);
            assert!(several > 0 && none == 0, "{level:?}: {several} {none}");
            assert_eq!(one, two, "{level:?}");
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
        touches_what_was_planned(&program, level.name());
    }
}

/// A spec of two stages under a schedule.
fn staged(spec: &Spec, schedule: Schedule, recompute: Recompute, offload: Offload) -> Spec {
    let mut spec = replan(spec, 2, schedule, Cut::Balanced);
    (spec.pipeline.recompute, spec.pipeline.offload) = (recompute, offload);
    spec
}

/// Copies of a program to the host, and back.
fn copies(program: &Program) -> (usize, usize) {
    let of = |kind: QueueKind| {
        let queues = program.queues.values().filter(|queue| queue.kind == kind);
        let instructions = queues.flat_map(|queue| &queue.instructions);
        instructions.filter(|instruction| matches!(instruction, Instruction::Copy { .. })).count()
    };
    (of(QueueKind::DeviceToHost), of(QueueKind::HostToDevice))
}

/// Whatever part waits on the host, and under schedules of every kind.
#[test]
fn what_comes_back_is_what_went() {
    for file in ["examples/reference/tiny_a.pipe", "examples/reference/tiny_b.pipe"] {
        let Resolution { spec, origins, .. } = resolve(file);
        for schedule in schedules() {
            let kept = losses(&replan(&spec, 2, schedule, Cut::Balanced), &origins, Kind::Cpu, 3);
            for part in [1, 500, 1000] {
                for level in [Level::None, Level::Full] {
                    let spec = staged(&spec, schedule, Recompute::Every(level), Offload::Part(part));
                    let program = compile(&spec, &origins).unwrap().program;
                    let (away, back) = copies(&program);
                    assert!(away == back && away > 0, "{file} {schedule:?} {part}: {away} {back}");
                    assert_eq!(
                        losses(&spec, &origins, Kind::Cpu, 3),
                        kept,
                        "{file} {schedule:?} {part} {level:?}"
                    );
                }
            }
        }
    }
}

/// Planned memory is exact on both sides.
#[test]
fn devices_and_hosts_touch_what_was_planned() {
    let Resolution { spec, origins, .. } = resolve("examples/reference/tiny_b.pipe");
    for (schedule, part) in [(Schedule::GPipe, 1000), (Schedule::OneFOneB, 1000), (schedules()[2], 500)] {
        let spec = staged(&spec, schedule, Recompute::default(), Offload::Part(part));
        let compiled = compile(&spec, &origins).unwrap();
        assert!(compiled.hosts.values().any(|host| host.end > Bytes::ZERO));
        touches_what_was_planned(&Arc::new(compiled.program), &format!("{schedule:?}"));
    }
}

/// GPipe holds every micro-batch: on the host it is out of the way.
#[test]
fn the_device_holds_less_of_what_is_offloaded() {
    let Resolution { spec, origins, .. } = resolve("examples/reference/tiny_b.pipe");
    let mut last = u64::MAX;
    for offload in [Offload::None, Offload::Part(400), Offload::Part(1000)] {
        let mut spec = staged(&spec, Schedule::GPipe, Recompute::default(), offload);
        spec.pipeline.micro_batches = 16;
        spec.train.global_batch = 16 * spec.train.micro_batch;
        // Passes take so long that copies keep up.
        for node in &mut spec.cluster.nodes {
            node.device.rates.iter_mut().for_each(|(_, rate)| *rate = FlopsPerSecond(1_000_000_000));
        }
        let held = activations(&spec, &origins);
        assert!(held < last, "{offload:?}: {held} of {last}");
        last = held;
    }
}

/// No bound: the operations are the same in all modes, and so are the bits of losses and of the norms of gradients.
#[test]
fn every_mode_of_the_front_gives_the_same_bits() {
    for file in ["examples/reference/tiny_a.pipe", "examples/reference/tiny_b.pipe"] {
        let Resolution { spec, origins, .. } = resolve(file);
        let mut spec = replan(&spec, 1, Schedule::OneFOneB, Cut::Balanced);
        spec.pipeline.offload = Offload::Part(1);
        let layers = compile(&spec, &origins).unwrap().layers;
        let most = layers.values().map(|layer| layer.modes.len()).max().unwrap_or(0);
        assert!(most > 10, "{file} has {most} modes");
        let mut expected = None;
        let repeated = spec.model.pieces.iter().filter(|piece| piece.is_repeated()).count();
        // Every piece in a mode of its own, so that a run sees several.
        for first in (0..most).step_by(repeated) {
            let mode = |(number, piece): (usize, &Piece)| {
                let mode = first + number % repeated;
                ModeId::new(mode.min(layers[piece.layer].modes.len() - 1))
            };
            let modes: Vec<ModeId> = spec.model.pieces.iter().enumerate().map(mode).collect();
            let program = compile_in(&spec, &origins, &modes, &mut ()).unwrap().program;
            let mut engine = engine(&Arc::new(program), Kind::Cpu, Options::default());
            let seen: Vec<(u64, Option<u64>)> = run(&mut engine, 2)
                .iter()
                .map(|metrics| (metrics.loss.to_bits(), metrics.gradient_norm.map(f64::to_bits)))
                .collect();
            assert_eq!(*expected.get_or_insert_with(|| seen.clone()), seen, "{file} {modes:?}");
        }
    }
}

/// With half of the memory that keeping all takes, `auto` fits, gives the same bits, and is no slower in simulation than what is the
/// same for all layers.
#[test]
fn auto_fits_and_is_never_slower_than_a_uniform_choice() {
    for file in ["examples/reference/tiny_a.pipe", "examples/reference/tiny_b.pipe"] {
        let Resolution { spec, origins, .. } = resolve(file);
        for schedule in schedules() {
            let most = |spec: &Spec| {
                let compiled = compile(spec, &origins).unwrap();
                compiled.arenas.values().map(|arena| arena.end.0).max().unwrap_or(0)
            };
            let of = |level| staged(&spec, schedule, Recompute::Every(level), Offload::None);
            let (large, small) = (most(&of(Level::None)), most(&of(Level::Full)));
            let kept = losses(&of(Level::None), &origins, Kind::Cpu, 2);
            for quarter in 1..=3 {
                let memory = small + (large - small) * quarter / 4;
                let time = |mut spec: Spec| {
                    spec.cluster.nodes.iter_mut().for_each(|node| node.device.memory = Bytes(memory));
                    let program = compile(&spec, &origins).ok()?.program;
                    let time = simulate(&program, &Costs::roofline(&program)).makespan();
                    Some((spec, time))
                };
                let (auto, fast) = time(staged(&spec, schedule, Recompute::Auto, Offload::None))
                    .unwrap_or_else(|| panic!("{file} {schedule:?}: nothing fits {memory}"));
                for level in Level::ALL {
                    if let Some((_, uniform)) = time(of(level)) {
                        assert!(
                            fast <= uniform,
                            "{file} {schedule:?} {level:?} in {memory}: {fast} {uniform}"
                        );
                    }
                }
                assert_eq!(losses(&auto, &origins, Kind::Cpu, 2), kept, "{file} {schedule:?} in {memory}");
            }
        }
    }
}

/// Where memory is left, what is computed again is computed while the backward pass waits for its gradient: the same bits, and no
/// byte more than was planned.
#[test]
fn recomputation_moves_into_idle_time_where_memory_is_left() {
    let Resolution { spec, origins, .. } = resolve("examples/reference/tiny_b.pipe");
    let mut found = 0;
    for schedule in [Schedule::OneFOneB, Schedule::GPipe, schedules()[2]] {
        let most = |level| {
            let compiled =
                compile(&staged(&spec, schedule, Recompute::Every(level), Offload::None), &origins).unwrap();
            compiled.arenas.values().map(|arena| arena.end.0).max().unwrap_or(0)
        };
        let (large, small) = (most(Level::None), most(Level::Full));
        let kept = losses(&replan(&spec, 2, schedule, Cut::Balanced), &origins, Kind::Cpu, 2);
        for part in 1..8 {
            let mut spec = staged(&spec, schedule, Recompute::Auto, Offload::None);
            let memory = Bytes(small + (large - small) * part / 8);
            spec.cluster.nodes.iter_mut().for_each(|node| node.device.memory = memory);
            let program = Arc::new(compile(&spec, &origins).unwrap().program);
            let is_again = |instruction: &Instruction| {
                matches!(instruction, Instruction::Run { work: Work::Pass(Pass::R, _), .. })
            };
            if !program.queues.values().flat_map(|queue| &queue.instructions).any(is_again) {
                continue;
            }
            found += 1;
            let seen = touches_what_was_planned(&program, &format!("{schedule:?}"));
            assert_eq!(seen, kept, "{schedule:?} in {memory}");
        }
    }
    assert!(found > 0, "nothing was moved");
}
