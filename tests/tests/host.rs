//! State in the memory of the host changes where bytes live and when they move, and no number.

use pipec_compiler::spec::{
    Cut, Offload, Origins, Recompute, Resolution, Schedule, Spec, State, WeightGrads,
};
use pipec_program::memory::memory;
use pipec_program::simulate::simulate;
use pipec_program::{Category, Costs, Instruction, QueueKind, Space, StepWork, Verified, Work};
use pipec_tests::{Kind, compile, losses, replan, resolve, touches_what_was_planned};
use std::sync::Arc;

/// Homes on the host.
const HOMES: [State; 2] = [State::HostOptimizer, State::Host];

fn placed(spec: &Spec, devices: u32, schedule: Schedule, state: State) -> Spec {
    let mut spec = replan(spec, devices, schedule, Cut::Balanced);
    spec.pipeline.state = state;
    spec
}

fn program(spec: &Spec, origins: &Origins) -> Verified {
    compile(spec, origins).unwrap_or_else(|error| panic!("{error}")).program
}

fn schedules() -> [(u32, Schedule); 6] {
    let svpp = Schedule::Svpp {
        virtual_stages: 2,
        slices: 2,
        in_flight: pipec_compiler::spec::InFlight::Max,
        bias: 100,
        weight_grads: WeightGrads::PerGemm,
    };
    [
        (4, Schedule::OneFOneB),
        (2, Schedule::Interleaved { virtual_stages: 2, group: 2 }),
        (2, Schedule::BreadthFirst { virtual_stages: 2 }),
        (2, Schedule::ZbV),
        (2, Schedule::DualPipe),
        (2, svpp),
    ]
}

/// No bound: the operations are the same, whether gradients are clipped or not.
#[test]
fn losses_are_the_same_bits() {
    let Resolution { spec, origins, .. } = resolve("examples/reference/tiny_b.pipe");
    for (devices, schedule) in schedules() {
        for clip_norm in [None, Some(0.1)] {
            let of = |state| {
                let mut spec = placed(&spec, devices, schedule, state);
                spec.train.clip_norm = clip_norm;
                losses(&spec, &origins, Kind::Cpu, 3)
            };
            let expected = of(State::Device);
            for state in HOMES {
                assert_eq!(of(state), expected, "{schedule:?} {state:?} {clip_norm:?}");
            }
        }
    }
}

/// Parameters that several stages use, on one device and on two, with a gradient that is a sum over both.
#[test]
fn shared_parameters_stay_one() {
    let Resolution { spec, origins, .. } = resolve("examples/tied.pipe");
    for (devices, schedule) in
        [(2, Schedule::OneFOneB), (2, Schedule::ZbV), (2, Schedule::DualPipe), (1, Schedule::OneFOneB)]
    {
        let expected = losses(&placed(&spec, devices, schedule, State::Device), &origins, Kind::Cpu, 2);
        for state in HOMES {
            let spec = placed(&spec, devices, schedule, state);
            assert_eq!(losses(&spec, &origins, Kind::Cpu, 2), expected, "{devices} {schedule:?} {state:?}");
        }
    }
}

#[test]
fn runs_touch_what_was_planned() {
    let Resolution { spec, origins, .. } = resolve("examples/reference/tiny_a.pipe");
    for (devices, schedule) in schedules() {
        for state in HOMES {
            let program = Arc::new(program(&placed(&spec, devices, schedule, state), &origins));
            touches_what_was_planned(&program, &format!("{schedule:?} {state:?}"));
        }
    }
}

/// Weights of a device are there for two stages at most, gradients for those that grow, and the host has what the device had.
#[test]
fn devices_hold_the_stage_that_they_compute_and_the_next() {
    let Resolution { spec, origins, .. } = resolve("examples/reference/tiny_48.pipe");
    let of = |state| {
        let mut spec = placed(&spec, 2, Schedule::BreadthFirst { virtual_stages: 8 }, state);
        spec.train.clip_norm = None;
        let program = program(&spec, &origins);
        let timeline = simulate(&program, &Costs::roofline(&program));
        let bytes = |space, category| -> u64 {
            let arenas = memory(&program, &timeline).into_iter().filter(|arena| arena.space == space);
            arenas.map(|arena| arena.peak.live.get(category).0).sum()
        };
        let stages = 16;
        let weights: u64 =
            program.parameters.values().map(|parameter| parameter.ty.bytes().0).sum::<u64>() / stages;
        (weights, [Space::Device, Space::Host].map(|space| Category::ALL.map(|each| bytes(space, each))))
    };
    let (_, [device, _]) = of(State::Device);
    let (stage, [loaded, home]) = of(State::Host);
    let [weights, visiting, gradients, optimizer, ..] = device;
    assert_eq!((visiting, loaded[0], loaded[3]), (0, 0, 0));
    // Stages differ: the first has the table of the embedding, the last the head.
    assert!(loaded[1] <= 2 * 2 * 2 * stage, "{} for stages of {stage}", loaded[1]);
    assert!(loaded[2] <= 2 * 2 * 2 * stage, "{} for stages of {stage}", loaded[2]);
    assert!(loaded[1] * 2 <= weights && loaded[2] * 2 <= gradients, "{loaded:?} {device:?}");
    assert_eq!([home[0], home[3]], [weights, optimizer]);
}

/// Weights come once for a whole step, or once for every visit; gradients go once; both whatever the number of micro-batches.
#[test]
fn bytes_over_the_link_are_those_of_the_stages() {
    let Resolution { spec, origins, .. } = resolve("examples/reference/tiny_48.pipe");
    for micro_batches in [2, 4] {
        for (state, loads) in [(State::HostOptimizer, 1), (State::Host, 2)] {
            let mut spec = placed(&spec, 2, Schedule::BreadthFirst { virtual_stages: 3 }, state);
            spec.pipeline.micro_batches = micro_batches;
            spec.train.clip_norm = None;
            let program = program(&spec, &origins);
            let copied = |kind| -> u64 {
                let queues = program.queues.values().filter(|queue| queue.kind == kind);
                let instructions = queues.flat_map(|queue| &queue.instructions);
                let bytes = instructions.map(|instruction| match instruction {
                    Instruction::Copy { from, .. } => from.bytes.0,
                    _ => 0,
                });
                bytes.sum()
            };
            let all: u64 = program.parameters.values().map(|parameter| parameter.ty.bytes().0).sum();
            // What is between parameters travels too. The last stage of a device is visited once.
            let up = copied(QueueKind::HostToDevice);
            assert!(up >= all && up <= loads * all * 101 / 100, "{up} of {all}, {state:?}");
            let down = copied(QueueKind::DeviceToHost);
            assert!(down >= all && down <= all * 101 / 100, "{down} of {all}, {state:?}");
        }
    }
}

/// Without clipping the host updates a stage while the device computes another.
#[test]
fn updates_run_beside_backward_passes() {
    let Resolution { spec, origins, .. } = resolve("examples/reference/tiny_48.pipe");
    let mut spec = placed(&spec, 2, Schedule::BreadthFirst { virtual_stages: 4 }, State::Host);
    spec.train.clip_norm = None;
    let program = program(&spec, &origins);
    let timeline = simulate(&program, &Costs::roofline(&program));
    let updates = timeline.events().iter().filter(|event| {
        let queue = &program.queues[event.queue];
        matches!(
            &queue.instructions[event.position as usize],
            Instruction::Run { work: Work::Stage(StepWork::Update, _), .. }
        )
    });
    let last_pass = |device| {
        let of_device = timeline.events().iter().filter(|event| {
            let queue = &program.queues[event.queue];
            queue.device == device && queue.kind == QueueKind::Compute
        });
        of_device.map(|event| event.end).max().unwrap_or_default()
    };
    let early = updates.filter(|event| event.end < last_pass(program.queues[event.queue].device)).count();
    assert!(early >= 4, "{early} of 8 updates end before the last backward pass of their device");
}

/// What is offloaded shares the link, and nothing else.
#[test]
fn offloading_goes_on_beside_it() {
    let Resolution { spec, origins, .. } = resolve("examples/reference/tiny_b.pipe");
    let of = |state, offload, recompute| {
        let mut spec = placed(&spec, 2, Schedule::Interleaved { virtual_stages: 2, group: 2 }, state);
        (spec.pipeline.offload, spec.pipeline.recompute) = (offload, recompute);
        losses(&spec, &origins, Kind::Cpu, 2)
    };
    let expected = of(State::Device, Offload::None, Recompute::default());
    assert_eq!(of(State::Host, Offload::Part(500), Recompute::default()), expected);
    assert_eq!(of(State::Host, Offload::None, Recompute::Auto), expected);
}
