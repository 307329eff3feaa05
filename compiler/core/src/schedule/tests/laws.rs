//! Laws of all policies: every schedule is whole, in order and ends; equalities between policies; memory limits.

use super::*;
use proptest::prelude::*;

/// A problem for a policy, which may still refuse it.
pub(super) fn problem_for(policy: Policy, p: u32, v: u32, s: u32, n: u32) -> Problem {
    let chunks = match policy {
        Policy::GPipe | Policy::BreadthFirst | Policy::Interleaved { .. } | Policy::Seq1F1B => v,
        Policy::SlimPipe | Policy::Svpp(_) => v,
        Policy::TeraPipe | Policy::OneFOneB | Policy::ZbH1 | Policy::ZbH2 => 1,
        Policy::DualPipe | Policy::Chimera => 1,
        Policy::ZbV | Policy::VHalf | Policy::VMin | Policy::DualPipeV => 2,
        Policy::Hanayo => 2 * v,
        // It has no order for a problem of one cut.
        Policy::SPipe => v,
        Policy::Auto(_) => v,
    };
    Problem::uniform(policy.placement(), p, chunks, n, s).unwrap()
}

#[test]
fn every_policy_orders_or_says_why_not() {
    let (mut ordered, mut refused) = (0, 0);
    for (name, policy) in Policy::ALL {
        assert_eq!(policy.name(), name);
        for p in 1..=5 {
            for (v, s) in [(1, 1), (2, 1), (3, 1), (1, 3), (2, 2), (2, 4), (2, 5)] {
                for n in [1, 2, 3, 5, 8, 10, 13] {
                    let problem = problem_for(policy, p, v, s, n);
                    match order(policy, &problem) {
                        Ok(schedule) => {
                            assert_eq!(verify(&problem, &schedule), [], "{name} p {p} v {v} s {s} n {n}");
                            ascend(&problem, &schedule);
                            ordered += 1;
                        }
                        Err(refusal) => {
                            assert!(!refusal.to_string().is_empty());
                            refused += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(ordered > 2000 && refused > 500, "{ordered} {refused}");
}

#[test]
fn channels_hold_what_blocking_sends_need() {
    let svpp = |bias, weight_grads| Policy::Svpp(Svpp { bias, weight_grads, ..Svpp::FUSED });
    let (tight, loose) = (svpp(100, WeightGrads::Fused), svpp(200, WeightGrads::Fused));
    // p = 8, n = 16: messages per pair of devices.
    let figures = [
        (Policy::GPipe, 1, 1, 0),
        (Policy::OneFOneB, 1, 1, 1),
        (Policy::ZbH1, 1, 1, 1),
        (Policy::Seq1F1B, 1, 4, 1),
        (Policy::Interleaved { group: None }, 2, 1, 1),
        (tight, 2, 1, 4),
        (tight, 2, 4, 5),
        (tight, 2, 8, 5),
        (tight, 2, 16, 13),
        (loose, 2, 4, 1),
    ];
    for (policy, v, s, messages) in figures {
        let problem = uniform(8, v, 16, s);
        let schedule = ordered(policy, &problem);
        assert_eq!(
            capacity(&problem, &schedule, Channels::PerPair),
            Some(messages),
            "{policy:?} v {v} s {s}"
        );
    }
    for policy in [Policy::ZbV, Policy::DualPipeV] {
        let problem = zigzag(8, 2, 16);
        let schedule = ordered(policy, &problem);
        assert_eq!(capacity(&problem, &schedule, Channels::PerPair), None, "{policy:?}");
        assert!(capacity(&problem, &schedule, Channels::PerStage) <= Some(1), "{policy:?}");
    }
}

/// Micro-batches ascend in both directions on every stage.
fn ascend(problem: &Problem, schedule: &Schedule) {
    for steps in schedule.devices.values() {
        let mut last = vec![[0; 2]; problem.stages().len()];
        for (pass, unit) in steps.iter().flat_map(|step| step.passes()) {
            let kind = match pass {
                Pass::F => 0,
                Pass::B | Pass::BW => 1,
                Pass::W | Pass::R => continue,
            };
            let last = &mut last[unit.stage.0 as usize][kind];
            assert!(*last <= unit.micro_batch.0);
            *last = unit.micro_batch.0;
        }
    }
}

#[test]
fn policies_that_are_one_another() {
    for p in 1..=6 {
        for n in [1, 2, 5, 6, 12] {
            let plain = uniform(p, 1, n, 1);
            let svpp = |problem: &Problem| ordered(Policy::Svpp(Svpp::FUSED), problem);
            assert_eq!(svpp(&plain), ordered(Policy::OneFOneB, &plain));
            assert_eq!(ordered(Policy::Seq1F1B, &plain), ordered(Policy::OneFOneB, &plain));
            assert_eq!(ordered(Policy::TeraPipe, &plain), ordered(Policy::GPipe, &plain));
            let chunks = uniform(p, 2, n, 1);
            let loose = Policy::Svpp(Svpp { bias: 200, ..Svpp::FUSED });
            assert_eq!(ordered(loose, &chunks), ordered(Policy::Interleaved { group: None }, &chunks));
            assert_eq!(ordered(Policy::Seq1F1B, &chunks), ordered(loose, &chunks));
            assert_eq!(ordered(Policy::BreadthFirst, &chunks), ordered(Policy::GPipe, &chunks));
            let slices = uniform(p, 1, n, 4);
            assert_eq!(ordered(Policy::Seq1F1B, &slices), svpp(&slices));
        }
    }
}

pub(super) fn costs() -> impl Strategy<Value = Cost> {
    let pair = prop::option::of(-60..10_i64);
    (1..20_u64, 1..20_u64, 1..20_u64, pair, 1..9_u64, 0..4_u64, 0..4_u64, 0..3_u64).prop_map(
        |(forward, input, weight, pair, activations, released, gradients, prefix)| Cost {
            forward,
            input,
            weight,
            backward: input + weight,
            recompute: forward,
            pair: pair.map(|more| (forward + input + weight).saturating_add_signed(more).max(forward)),
            activations,
            released: released.min(activations),
            gradients,
            prefix,
            checkpoint: 0,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_cap_is_never_exceeded(
        p in 1u32..7, v in 1u32..4, s in 1u32..5, n in 1u32..9, seed in prop::collection::vec(costs(), 12),
        delay in 0u64..6, parts in 1u16..4, room in 100u64..300, weights in 0usize..3
    ) {
        let mut problem = uniform(p, v, n, s);
        problem.set_costs(|stage, slice| seed[(stage.0 as usize + 5 * slice.0 as usize) % seed.len()]);
        (problem.delay, problem.weight_parts) = (delay, parts);
        let least = |device| -> u64 {
            let stages: &Vec<StageId> = &problem.devices()[device];
            let slices = || (0..s).map(Slice);
            stages.iter().flat_map(|&stage| slices().map(move |slice| (stage, slice))).map(|(stage, slice)| {
                let cost = problem.cost(stage, slice);
                cost.activations + cost.gradients + cost.prefix
            }).sum()
        };
        let caps: Vec<u64> = problem.devices().ids().map(|device| least(device) * room / 100).collect();
        problem.caps = Some(caps.clone().into());
        let weight_grads = [WeightGrads::Fused, WeightGrads::Split, WeightGrads::PerGemm][weights];
        let schedule = ordered(Policy::Svpp(Svpp { weight_grads, ..Svpp::FUSED }), &problem);
        prop_assert_eq!(verify(&problem, &schedule), []);
        prop_assert!(peaks(&problem, &schedule).values().zip(&caps).all(|(peak, cap)| peak <= cap));
    }

    #[test]
    fn orders_end_whatever_passes_take(
        p in 1u32..6, v in 1u32..3, s in 1u32..4, n in 1u32..9, seed in prop::collection::vec(costs(), 12),
        index in 0..Policy::ALL.len()
    ) {
        let (_, policy) = Policy::ALL[index];
        let mut problem = problem_for(policy, p, v, s, n);
        let Ok(schedule) = order(policy, &problem) else { return Ok(()) };
        problem.set_costs(|stage, slice| seed[(stage.0 as usize + 5 * slice.0 as usize) % seed.len()]);
        let execution = execute(&problem, &schedule, |step| problem.duration(step)).unwrap();
        // A device that starts after r others waits for r forward passes at least.
        for (device, stages) in problem.devices().iter() {
            let nearest = stages.iter().map(|stage| stage.0 % problem.depth()).min().unwrap_or(0);
            let least = seed.iter().map(|cost| cost.forward).min().unwrap();
            let bound = execution.busy(device) + u64::from(nearest) * least;
            prop_assert!(execution.makespan() >= bound);
        }
        prop_assert!(execution.makespan() >= super::super::auto::bound(&problem));
        // Memory comes back to nothing.
        for steps in schedule.devices.values() {
            let changes = steps.iter().map(|&step| super::super::memory::change(&problem, step, |_| false));
            prop_assert_eq!(changes.map(|(taken, given)| taken - given).sum::<i128>(), 0);
        }
    }
}
