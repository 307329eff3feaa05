//! SPipe: its index formulas, its order, and the length of its staircase.

use super::*;
use pipec_program::MicroBatch;

/// The times of a forward stage, of computing a backward stage again, and of its backward pass.
#[derive(Clone, Copy)]
struct Pace {
    forward: u64,
    again: u64,
    backward: u64,
}

impl Pace {
    /// As long forward as backward.
    const EQUAL: Self = Self { forward: 3, again: 1, backward: 2 };

    fn block(self) -> u64 {
        self.again + self.backward
    }
}

/// Equal stages, `f` forward and `b` backward on each of `p` devices.
fn two_cuts(p: u32, f: u32, b: u32, n: u32, pace: Pace) -> Problem {
    let Pace { forward, again, backward } = pace;
    let ahead = Cost { forward, activations: 0, ..Cost::UNIT };
    let back = Cost { recompute: again, backward, ..Cost::UNIT };
    Problem::two_cuts(p, [f, b], n, [ahead, back]).unwrap()
}

/// The end of the last pass of a policy's order.
fn end(policy: Policy, problem: &Problem) -> u64 {
    let schedule = ordered(policy, problem);
    execute(problem, &schedule, |step| problem.duration(step)).unwrap().makespan()
}

const SHAPES: [(u32, u32); 8] = [(1, 1), (1, 3), (2, 2), (2, 3), (2, 4), (2, 6), (3, 2), (3, 9)];

fn all() -> impl Iterator<Item = (u32, u32, u32, u32)> {
    [1, 2, 3, 4, 8].into_iter().flat_map(|p| {
        let micro_batches = [p, p + 1, 2 * p, 3 * p];
        SHAPES.into_iter().flat_map(move |(f, b)| micro_batches.map(move |n| (p, f, b, n)))
    })
}

/// Four devices, four micro-batches, two forward and six backward stages each: forward stages 0 and 1 of a device, then
/// backward stages 5 to 0, each device one slot after the one before.
#[test]
fn the_published_example() {
    let problem = two_cuts(4, 2, 6, 4, Pace::EQUAL);
    let schedule = ordered(Policy::SPipe, &problem);
    assert_eq!(verify(&problem, &schedule), []);
    let execution = execute(&problem, &schedule, |step| problem.duration(step)).unwrap();
    assert_eq!(execution.makespan(), 3 * 35);
    let mut text = String::new();
    for (device, steps) in schedule.devices.iter() {
        let mut row = vec!["..".to_owned(); 35];
        for (step, &(start, _)) in steps.iter().zip(&execution.devices[device]) {
            let Step::Pass(pass, unit) = *step else { panic!("{step}") };
            let name = match pass {
                Pass::F => format!("F{}", unit.stage.0 / 4),
                Pass::R => continue,
                _ => format!("B{}", (unit.stage.0 - 8) / 4),
            };
            row[start as usize / 3] = name;
        }
        text += &format!("{}\n", row.join(" "));
    }
    insta::assert_snapshot!(text, @r"
    F0 F0 F0 F0 F1 F1 F1 F1 B5 B5 B5 B5 B4 B4 B4 B4 B3 B3 B3 B3 B2 B2 B2 B2 B1 B1 B1 B1 B0 B0 B0 B0 .. .. ..
    .. F0 F0 F0 F0 F1 F1 F1 F1 B5 B5 B5 B5 B4 B4 B4 B4 B3 B3 B3 B3 B2 B2 B2 B2 B1 B1 B1 B1 B0 B0 B0 B0 .. ..
    .. .. F0 F0 F0 F0 F1 F1 F1 F1 B5 B5 B5 B5 B4 B4 B4 B4 B3 B3 B3 B3 B2 B2 B2 B2 B1 B1 B1 B1 B0 B0 B0 B0 ..
    .. .. .. F0 F0 F0 F0 F1 F1 F1 F1 B5 B5 B5 B5 B4 B4 B4 B4 B3 B3 B3 B3 B2 B2 B2 B2 B1 B1 B1 B1 B0 B0 B0 B0
    ");
}

/// Stage g forward on device `g mod p`, stage h backward on `p - 1 - h mod p`, and the phases between both cuts of the
/// published table for four devices with two forward and three backward stages.
#[test]
fn index_formulas() {
    let problem = two_cuts(4, 2, 3, 4, Pace::EQUAL);
    // A forward stage is three phases, a backward stage two.
    let forward_of = |phase: u32| problem.device(StageId(phase / 3));
    let backward_of = |phase: u32| problem.device(StageId(8 + phase / 2));
    let phases = |of: &dyn Fn(u32) -> DeviceId| -> Vec<u32> {
        (0..24).filter(|&phase| of(phase) == DeviceId(0)).map(|phase| phase + 1).collect()
    };
    assert_eq!(phases(&forward_of), [1, 2, 3, 13, 14, 15]);
    assert_eq!(phases(&backward_of), [7, 8, 15, 16, 23, 24]);
    for phase in 0..24 {
        assert_eq!(forward_of(phase).0, (phase % 12) / 3);
        assert_eq!(backward_of(phase).0, 3 - (phase % 8) / 2);
    }
}

/// With k backward stages for each forward stage no part of the model is computed in both directions by one device if and
/// only if `k + 1` divides the number of devices.
#[test]
fn devices_are_separate_only_where_they_can_be() {
    for (p, f, k) in (1..=12).flat_map(|p| (1..=2).flat_map(move |f| (1..=5).map(move |k| (p, f, k)))) {
        let problem = two_cuts(p, f, k * f, p, Pace::EQUAL);
        let ahead = p * f;
        let shared = (0..p * f * k).any(|backward| {
            problem.device(StageId(ahead + backward)) == problem.device(StageId(backward / k))
        });
        assert_eq!(!shared, p.is_multiple_of(k + 1), "{p} {f} {k}");
    }
}

/// Every stage and micro-batch once, in the same sequence on every device; the first device goes on without waiting.
#[test]
fn devices_run_the_same_sequence() {
    for (p, f, b, n) in all() {
        let problem = two_cuts(p, f, b, n, Pace::EQUAL);
        let schedule = ordered(Policy::SPipe, &problem);
        assert_eq!(verify(&problem, &schedule), [], "{p} {f} {b} {n}");
        let sequence = |device: DeviceId| -> Vec<(Pass, u32, MicroBatch)> {
            let chunk =
                |stage: StageId| if problem.is_backward(stage) { (stage.0 - p * f) / p } else { stage.0 / p };
            let passes = schedule.devices[device].iter().flat_map(|step| step.passes());
            passes.map(|(pass, unit)| (pass, chunk(unit.stage), unit.micro_batch)).collect()
        };
        let first = sequence(DeviceId(0));
        assert!(problem.devices().ids().all(|device| sequence(device) == first));
        let units = |chunk: u32| (0..n).map(move |m| (chunk, MicroBatch(m)));
        let forward = (0..f).flat_map(units).map(|(chunk, m)| (Pass::F, chunk, m));
        let backward = (0..b).rev().flat_map(units);
        let backward = backward.flat_map(|(chunk, m)| [Pass::R, Pass::BW].map(|pass| (pass, chunk, m)));
        assert!(first.into_iter().eq(forward.chain(backward)));
    }
}

/// Messages of both directions go to the next device, and the forward cut passes one input to every backward stage but the
/// first.
#[test]
fn messages_go_round_one_way() {
    for (p, f, b, n) in all().filter(|&(p, ..)| p > 1) {
        let problem = two_cuts(p, f, b, n, Pace::EQUAL);
        let next = |device: DeviceId| DeviceId((device.0 + 1) % p);
        for stage in problem.stages() {
            let device = problem.device(stage);
            if problem.is_backward(stage) {
                assert!(problem.before(stage).is_none_or(|before| problem.device(before) == next(device)));
                let is_first = stage.0 == p * f;
                assert_eq!(problem.source(stage).is_none(), is_first);
            } else {
                assert!(problem.after(stage).is_none_or(|after| problem.device(after) == next(device)));
            }
        }
        let fed = |stage| problem.fed(stage).count() as u32;
        assert_eq!((0..p * f).map(|stage| fed(StageId(stage))).sum::<u32>(), p * b - 1);
    }
}

/// As long forward as backward: `(f + b) n + p - 1` slots without a pause inside, and every device idle for `p - 1`.
#[test]
fn the_staircase_has_no_gaps() {
    for (p, f, b, n) in all() {
        let problem = two_cuts(p, f, b, n, Pace::EQUAL);
        let schedule = ordered(Policy::SPipe, &problem);
        let execution = execute(&problem, &schedule, |step| problem.duration(step)).unwrap();
        assert_eq!(execution.makespan(), 3 * u64::from((f + b) * n + p - 1), "{p} {f} {b} {n}");
        for device in problem.devices().ids() {
            assert_eq!(execution.window(device), execution.busy(device), "{p} {f} {b} {n} {device}");
        }
    }
}

/// Unequal stages: a device waits for the one before by the longer of a forward pass and of a backward pass whose stage has been
/// computed again meanwhile. That is the published law `n (f T_f + b T_b) + (p - 1) max(T_f, T_b)` without the part of `T_b` that
/// needs no gradient.
#[test]
fn unequal_stages_wait_for_gradients_alone() {
    for pace in [
        Pace { forward: 3, again: 3, backward: 6 },
        Pace { forward: 2, again: 1, backward: 4 },
        Pace { forward: 4, again: 1, backward: 3 },
    ] {
        for (p, f, b, n) in all() {
            let problem = two_cuts(p, f, b, n, pace);
            let makespan = end(Policy::SPipe, &problem);
            let work = u64::from(n) * (u64::from(f) * pace.forward + u64::from(b) * pace.block());
            let wait = u64::from(p - 1) * pace.forward.max(pace.backward);
            assert_eq!(makespan, work + wait, "{p} {f} {b} {n}");
            assert!(wait <= u64::from(p - 1) * pace.forward.max(pace.block()));
        }
    }
}

/// Finer backward stages have a smaller bubble than one cut for both, and that a smaller one than all micro-batches of a
/// stage on one device: as 1 to 3 to 4.
#[test]
fn bubbles_are_in_order() {
    let (p, f, n) = (4, 2, 8);
    let fine = two_cuts(p, f, 3 * f, n, Pace { forward: 3, again: 1, backward: 2 });
    let same = two_cuts(p, f, f, n, Pace { forward: 3, again: 0, backward: 9 });
    let mut mobius = uniform(p, f, n, 1);
    mobius.set_costs(|_, _| Cost { forward: 3, backward: 9, ..Cost::UNIT });
    let work = u64::from(n * f) * 12;
    let idle = |policy, problem: &Problem| end(policy, problem) - work;
    let bubbles = [idle(Policy::SPipe, &fine), idle(Policy::SPipe, &same), idle(Policy::GPipe, &mobius)];
    assert_eq!(bubbles, [3 * 3, 3 * 9, 3 * 12]);
}

#[test]
fn fewer_micro_batches_than_devices_are_refused() {
    let problem = two_cuts(4, 2, 6, 3, Pace::EQUAL);
    assert_eq!(order(Policy::SPipe, &problem), Err(Refusal::MicroBatches { least: 4, found: 3 }));
    assert_eq!(order(Policy::SPipe, &uniform(4, 2, 8, 1)), Err(Refusal::OneCut));
}

/// Passes of the wrong cut, and units that are computed again not at all or twice.
#[test]
fn violations_of_cuts_are_found() {
    let problem = two_cuts(2, 1, 3, 2, Pace::EQUAL);
    let schedule = ordered(Policy::SPipe, &problem);
    let position = |wanted: Pass| {
        let steps = schedule.devices[DeviceId(0)].iter();
        steps.clone().position(|step| matches!(step, Step::Pass(pass, _) if *pass == wanted)).unwrap()
    };
    let broken = |change: &dyn Fn(&mut Vec<Step>)| {
        let mut schedule = schedule.clone();
        change(&mut schedule.devices[DeviceId(0)]);
        verify(&problem, &schedule)
    };
    let again = position(Pass::R);
    assert!(matches!(
        broken(&|steps| _ = steps.remove(again))[..],
        [Violation::Missing(Step::Pass(Pass::R, _))]
    ));
    let twice = broken(&|steps| steps.insert(again, steps[again]));
    assert!(matches!(twice[..], [Violation::Repeated(_, Step::Pass(Pass::R, _))]));
    let forward = broken(&|steps| {
        let Step::Pass(_, unit) = steps[again] else { return };
        steps.insert(again, Step::Pass(Pass::F, unit));
    });
    assert!(matches!(forward[..], [Violation::NoSuchUnit(_, Step::Pass(Pass::F, _))]));
}
