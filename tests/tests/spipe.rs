//! SPipe, executed: forward and backward passes of a piece on different devices, weights and optimizer on the host.

use pipec_compiler::plan::Part;
use pipec_compiler::spec::{Cut, Origins, Resolution, Schedule, Spec, State, Updates};
use pipec_program::memory::memory;
use pipec_program::simulate::simulate;
use pipec_program::{
    Bytes, Category, Costs, DeviceId, Instruction, Pass, Program, QueueKind, Space, StepWork, Work,
};
use pipec_runtime::state::{self, entries};
use pipec_tests::{Kind, compile, engine, losses, replan, resolve, run, touches_what_was_planned};
use std::collections::BTreeMap;
use std::sync::Arc;

fn spipe(forward: u32, backward: u32, updates: Updates) -> Schedule {
    Schedule::SPipe { forward: Some(forward), backward: Some(backward), updates }
}

/// The spec under a schedule with state on the host.
fn hosted(spec: &Spec, devices: u32, schedule: Schedule) -> Spec {
    let mut spec = replan(spec, devices, schedule, Cut::Balanced);
    spec.pipeline.state = State::Host;
    spec
}

fn program(spec: &Spec, origins: &Origins) -> Program {
    compile(spec, origins).unwrap_or_else(|error| panic!("{error}")).program.into_program()
}

/// 48 layers, with so many micro-batches as the most devices.
fn deep() -> (Spec, Origins) {
    let Resolution { mut spec, origins, .. } = resolve("examples/reference/tiny_48.pipe");
    spec.train.clip_norm = None;
    (spec, origins)
}

/// No bound: a piece does the same operations wherever and however often it is computed. Any devices, any two cuts, with the
/// optimizer at once or at the end, with clipping and without.
#[test]
fn losses_are_those_of_one_device() {
    let (spec, origins) = deep();
    for clip_norm in [None, Some(0.05)] {
        let mut spec = spec.clone();
        spec.train.clip_norm = clip_norm;
        let expected = losses(&replan(&spec, 1, Schedule::OneFOneB, Cut::Balanced), &origins, Kind::Cpu, 3);
        for (devices, forward, backward) in
            [(1, 2, 3), (2, 2, 6), (2, 3, 2), (3, 2, 6), (4, 2, 6), (4, 2, 3), (8, 1, 3), (8, 2, 6)]
        {
            if devices > spec.pipeline.micro_batches {
                continue;
            }
            for updates in [Updates::Async, Updates::Sync] {
                let spec = hosted(&spec, devices, spipe(forward, backward, updates));
                let found = losses(&spec, &origins, Kind::Cpu, 3);
                assert_eq!(found, expected, "{devices} {forward} {backward} {updates:?} {clip_norm:?}");
            }
        }
    }
}

/// The same stages in both directions: nothing but gradients and activations of the next stage leaves a device.
#[test]
fn one_cut_for_both_directions_does_the_same() {
    let (spec, origins) = deep();
    let expected = losses(&replan(&spec, 1, Schedule::OneFOneB, Cut::Balanced), &origins, Kind::Cpu, 3);
    for (devices, virtual_stages) in [(1, 3), (2, 2), (4, 3)] {
        let spec = hosted(&spec, devices, Schedule::Mobius { virtual_stages, updates: Updates::Async });
        assert_eq!(losses(&spec, &origins, Kind::Cpu, 3), expected, "{devices} {virtual_stages}");
        let program = Arc::new(compile(&spec, &origins).unwrap().program);
        touches_what_was_planned(&program, &format!("{devices} {virtual_stages}"));
        let loads = program.queues.values().flat_map(|queue| &queue.instructions).filter(|instruction| {
            matches!(instruction, Instruction::Send { work: Work::Stage(StepWork::Load, _), .. })
        });
        assert_eq!(loads.count(), 0);
    }
}

/// Not only losses: every weight and every moment, whenever the host has updated it.
#[test]
fn updates_at_once_leave_the_state_that_updates_at_the_end_leave() {
    let (spec, origins) = deep();
    let state = |updates| {
        let program = Arc::new(compile(&hosted(&spec, 2, spipe(2, 6, updates)), &origins).unwrap().program);
        let mut engine = engine(&program, Kind::Cpu, Default::default());
        run(&mut engine, 3);
        let read = |entry: state::Entry| (entry.name, engine.read(entry.views[0]).unwrap());
        entries(&program).into_iter().map(read).collect::<BTreeMap<_, _>>()
    };
    let at_once = state(Updates::Async);
    assert!(at_once.len() > 3 * 48);
    assert!(at_once == state(Updates::Sync));
}

/// Parameters that stages at both ends share.
#[test]
fn shared_parameters_stay_one() {
    let Resolution { spec, origins, .. } = resolve("examples/tied.pipe");
    let expected = losses(&replan(&spec, 1, Schedule::OneFOneB, Cut::Balanced), &origins, Kind::Cpu, 2);
    for (devices, forward, backward) in [(1, 1, 2), (2, 1, 1), (2, 1, 2)] {
        let spec = hosted(&spec, devices, spipe(forward, backward, Updates::Async));
        let found = losses(&spec, &origins, Kind::Cpu, 2);
        // Two copies of the table add up their gradients in another order than one (docs/architecture.md).
        let close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-6 * b;
        assert!(
            found.iter().zip(&expected).all(close),
            "{devices} {forward} {backward}: {found:?} {expected:?}"
        );
    }
}

#[test]
fn runs_touch_what_was_planned() {
    let (spec, origins) = deep();
    for (devices, forward, backward) in [(1, 2, 3), (2, 2, 6), (4, 2, 3)] {
        let spec = hosted(&spec, devices, spipe(forward, backward, Updates::Async));
        let program = Arc::new(compile(&spec, &origins).unwrap().program);
        touches_what_was_planned(&program, &format!("{devices} {forward} {backward}"));
    }
}

/// Weights come twice, once for each direction, and gradients go once, whatever the number of micro-batches. The forward
/// cut ends where the last backward stage begins, so that the weights of this one come once.
#[test]
fn bytes_over_the_links_are_those_of_the_model() {
    let (spec, origins) = deep();
    for micro_batches in [4, 8] {
        let mut spec = hosted(&spec, 4, spipe(2, 6, Updates::Async));
        spec.pipeline.micro_batches = micro_batches;
        let compiled = compile(&spec, &origins).unwrap();
        let (program, plan) = (&compiled.program, &compiled.plan);
        let mut bytes: BTreeMap<&str, u64> = BTreeMap::new();
        for queue in program.queues.values() {
            for instruction in &queue.instructions {
                let (what, view) = match (instruction, queue.kind) {
                    (Instruction::Copy { from, .. }, QueueKind::HostToDevice) => ("up", from),
                    (Instruction::Recv { view, work: Work::Stage(StepWork::Load, _), .. }, _) => ("up", view),
                    (Instruction::Copy { from, .. }, QueueKind::DeviceToHost) => ("down", from),
                    _ => continue,
                };
                *bytes.entry(what).or_default() += view.bytes.0;
            }
        }
        let weights = |part: Part| -> u64 {
            let stages = plan.stages.values().filter(|stage| stage.part == part);
            let pieces = stages.flat_map(|stage| stage.pieces.clone());
            let parameters = pieces.flat_map(|piece| spec.model.pieces[piece].parameters.values());
            parameters.map(|&parameter| program.parameters[parameter].ty.bytes().0).sum()
        };
        let (forward, backward) = (weights(Part::Forward), weights(Part::Backward));
        let all: u64 = program.parameters.values().map(|parameter| parameter.ty.bytes().0).sum();
        assert_eq!(backward, all);
        assert!(forward < all && forward * 2 > all);
        // Parameters of this model start at multiples of 64 bytes without gaps.
        assert_eq!(bytes, BTreeMap::from([("down", all), ("up", forward + backward)]), "{micro_batches}");
    }
}

/// The weights of the stage that is computed and of the next, gradients likewise, and one input for every backward stage
/// and micro-batch.
#[test]
fn devices_hold_two_stages() {
    let (spec, origins) = deep();
    let compiled = compile(&hosted(&spec, 4, spipe(2, 6, Updates::Async)), &origins).unwrap();
    let program = &compiled.program;
    let timeline = simulate(program, &Costs::roofline(program));
    let weights = |of: &std::ops::Range<usize>| -> u64 {
        let parameters = of.clone().flat_map(|piece| spec.model.pieces[piece].parameters.values());
        parameters.map(|&parameter| program.parameters[parameter].ty.bytes().0).sum()
    };
    for arena in memory(program, &timeline).into_iter().filter(|arena| arena.space == Space::Device) {
        let stages = compiled.plan.devices[arena.device].iter().map(|&stage| &compiled.plan.stages[stage]);
        let mut sizes: Vec<u64> = stages.map(|stage| weights(&stage.pieces)).collect();
        sizes.sort_unstable();
        let two: u64 = sizes.iter().rev().take(2).sum();
        for sample in &arena.curve {
            assert!(sample.live.get(Category::Loaded).0 <= two);
            assert!(sample.live.get(Category::Gradients).0 <= two);
            assert_eq!(sample.live.get(Category::Weights), Bytes::ZERO);
        }
    }
    // The input of every backward stage but the first is passed once for every micro-batch.
    let n = spec.pipeline.micro_batches as usize;
    let received = |device: DeviceId| {
        let queues = program.queues.values().filter(|queue| queue.device == device);
        let instructions = queues.flat_map(|queue| &queue.instructions);
        let forward = instructions.filter(|instruction| {
            matches!(instruction, Instruction::Recv { work: Work::Pass(Pass::F, _), .. })
        });
        forward.count()
    };
    let all: usize = program.devices.ids().map(received).sum();
    // Seven boundaries of the forward cut, and 23 inputs; four devices, of which none passes one to itself.
    assert_eq!(all, (7 + 23) * n);
}

/// Every update waits until its weights have been read, and without clipping most run beside backward passes.
#[test]
fn updates_run_beside_backward_passes() {
    let (spec, origins) = deep();
    let program = program(&hosted(&spec, 2, spipe(2, 6, Updates::Async)), &origins);
    let program = pipec_program::verify(program).unwrap();
    let timeline = simulate(&program, &Costs::roofline(&program));
    let end = |kind: QueueKind| {
        let events = timeline.events().iter().filter(|event| program.queues[event.queue].kind == kind);
        events.map(|event| event.end).collect::<Vec<_>>()
    };
    let last_pass = end(QueueKind::Compute).into_iter().max().unwrap();
    let updates = end(QueueKind::HostCompute);
    assert_eq!(updates.len(), 12);
    let early = updates.iter().filter(|&&update| update < last_pass).count();
    assert!(early >= 10, "{early} of 12");
}

/// Left open, the numbers of stages are no worse than those of the publication, and the losses the same.
#[test]
fn stages_are_chosen_so_that_the_step_is_short() {
    let (spec, origins) = deep();
    let expected = losses(&replan(&spec, 1, Schedule::OneFOneB, Cut::Balanced), &origins, Kind::Cpu, 2);
    let open = |backward| Schedule::SPipe { forward: None, backward, updates: Updates::Async };
    let step = |spec: &Spec| {
        let program = pipec_program::verify(program(spec, &origins)).unwrap();
        simulate(&program, &Costs::roofline(&program)).makespan()
    };
    let published = step(&hosted(&spec, 4, spipe(2, 6, Updates::Async)));
    for backward in [None, Some(6)] {
        let spec = hosted(&spec, 4, open(backward));
        assert!(step(&spec) <= published, "{backward:?}: {} > {published}", step(&spec));
        assert_eq!(losses(&spec, &origins, Kind::Cpu, 2), expected);
    }
}
