//! Orders against published ones, laws over all small pipelines, closed forms.

mod auto;
mod closed_forms;
mod csv;
mod file;
mod given;
mod grids;
mod laws;
mod monotony;
mod properties;
mod spipe;

use super::*;
use pipec_program::id::Id;
use pipec_program::{MicroBatch, Pass, Slice, StageId, Unit};
use proptest::prelude::*;

fn uniform(devices: u32, chunks: u32, micro_batches: u32, slices: u32) -> Problem {
    Problem::uniform(Placement::Loop, devices, chunks, micro_batches, slices).unwrap()
}

fn zigzag(devices: u32, chunks: u32, micro_batches: u32) -> Problem {
    Problem::uniform(Placement::Zigzag, devices, chunks, micro_batches, 1).unwrap()
}

fn ordered(policy: Policy, problem: &Problem) -> Schedule {
    order(policy, problem).unwrap_or_else(|refusal| panic!("{policy:?}: {refusal}"))
}

fn interleaved(group: u32) -> Policy {
    Policy::Interleaved { group: Some(group) }
}

/// PyTorch's schedule for 4 ranks and 8 micro-batches; its `B` is our `BW`, empty cells are idle.
fn torch(rows: &[&str]) -> Vec<Vec<Step>> {
    let step = |cell: &str| {
        let kind = cell.find(|letter: char| !letter.is_ascii_digit()).unwrap();
        let pass = if &cell[kind..=kind] == "F" { Pass::F } else { Pass::BW };
        let stage = StageId(cell[..kind].parse().unwrap());
        let micro_batch = MicroBatch(cell[kind + 1..].parse().unwrap());
        Step::Pass(pass, Unit { stage, micro_batch, slice: Slice(0) })
    };
    let row = |row: &&str| row.split(',').filter(|cell| !cell.is_empty()).map(step).collect();
    rows.iter().map(row).collect()
}

fn makespan(problem: &Problem, schedule: &Schedule) -> u64 {
    execute(problem, schedule, |_| 1).unwrap().makespan()
}

/// The largest number of units of a device that are between their forward and their backward pass.
fn alive(schedule: &Schedule, device: usize) -> i64 {
    let steps = &schedule.devices[DeviceId::new(device)];
    let alive = steps.iter().scan(0, |alive, step| {
        *alive += if matches!(step, Step::Pass(Pass::F, _)) { 1 } else { -1 };
        Some(*alive)
    });
    alive.max().unwrap_or(0)
}

#[test]
fn one_f_one_b_is_pytorchs() {
    let expected = torch(&[
        "0F0,0F1,0F2,0F3,0B0,0F4,0B1,0F5,0B2,0F6,0B3,0F7,0B4,0B5,0B6,0B7",
        "1F0,1F1,1F2,1B0,1F3,1B1,1F4,1B2,1F5,1B3,1F6,1B4,1F7,1B5,1B6,1B7",
        "2F0,2F1,2B0,2F2,2B1,2F3,2B2,2F4,2B3,2F5,2B4,2F6,2B5,2F7,2B6,2B7",
        "3F0,3B0,3F1,3B1,3F2,3B2,3F3,3B3,3F4,3B4,3F5,3B5,3F6,3B6,3F7,3B7",
    ]);
    let schedule = ordered(Policy::OneFOneB, &uniform(4, 1, 8, 1));
    assert_eq!(schedule.devices, IdVec::from(expected));
}

#[test]
fn interleaved_is_pytorchs() {
    let expected = torch(&[
        "0F0,0F1,0F2,0F3,4F0,4F1,4F2,4F3,0F4,0F5,,,,,0F6,4B0,0F7,4B1,4F4,4B2,4F5,4B3,4F6,0B0,4F7,0B1,,0B2,,0B3,,4B4,,\
         4B5,,4B6,,4B7,,0B4,,0B5,,0B6,,0B7",
        ",1F0,1F1,1F2,1F3,5F0,5F1,5F2,5F3,,,,1F4,5B0,1F5,5B1,1F6,5B2,1F7,5B3,5F4,1B0,5F5,1B1,5F6,1B2,5F7,1B3,,5B4,,\
         5B5,,5B6,,5B7,,1B4,,1B5,,1B6,,1B7",
        ",,2F0,2F1,2F2,2F3,6F0,6F1,,,6F2,6B0,6F3,6B1,2F4,6B2,2F5,6B3,2F6,2B0,2F7,2B1,6F4,2B2,6F5,2B3,6F6,6B4,6F7,6B5,\
         ,6B6,,6B7,,2B4,,2B5,,2B6,,2B7",
        ",,,3F0,3F1,3F2,3F3,,7F0,7B0,7F1,7B1,7F2,7B2,7F3,7B3,3F4,3B0,3F5,3B1,3F6,3B2,3F7,3B3,7F4,7B4,7F5,7B5,7F6,7B6,\
         7F7,7B7,,3B4,,3B5,,3B6,,3B7",
    ]);
    let schedule = ordered(interleaved(4), &uniform(4, 2, 8, 1));
    assert_eq!(schedule.devices, IdVec::from(expected));
}

#[test]
fn every_small_pipeline_is_ordered_and_never_deadlocks() {
    for devices in 1..=6 {
        for micro_batches in 1..=13 {
            let mut policies = vec![(1, Policy::OneFOneB)];
            policies.extend((1..=3).map(|chunks| (chunks, Policy::GPipe)));
            for chunks in 1..=3 {
                policies.extend((1..=devices + 2).map(|group| (chunks, interleaved(group))));
            }
            for (chunks, policy) in policies {
                let problem = uniform(devices, chunks, micro_batches, 1);
                let schedule = ordered(policy, &problem);
                let violations = verify(&problem, &schedule);
                assert_eq!(violations, [], "{policy:?} devices {devices} micro_batches {micro_batches}");
                assert_eq!(ordered(policy, &problem), schedule);
                // Gradients accumulate in one order under every policy.
                for stage in problem.stages() {
                    let passes =
                        schedule.devices[problem.device(stage)].iter().flat_map(|step| step.passes());
                    let backward: Vec<u32> = passes
                        .filter(|&(pass, unit)| pass == Pass::BW && unit.stage == stage)
                        .map(|(_, unit)| unit.micro_batch.0)
                        .collect();
                    assert!(backward.is_sorted());
                }
            }
        }
    }
}

#[test]
fn closed_forms_hold() {
    for p in 1..=8u32 {
        for n in 1..=24u32 {
            let problem = uniform(p, 1, n, 1);
            // Fill and drain of p - 1 passes each way, whatever the order in between.
            let ideal = u64::from(2 * (n + p - 1));
            assert_eq!(makespan(&problem, &ordered(Policy::GPipe, &problem)), ideal);
            let schedule = ordered(Policy::OneFOneB, &problem);
            assert_eq!(makespan(&problem, &schedule), ideal);
            assert_eq!(alive(&ordered(Policy::GPipe, &problem), 0), i64::from(n));
            for rank in 0..p {
                assert_eq!(alive(&schedule, rank as usize), i64::from(n.min(p - rank)));
            }
            for v in 1..=3u32 {
                if n.is_multiple_of(p) {
                    // A bubble of p - 1 passes each way, of 1 / v of a device's work.
                    let problem = uniform(p, v, n, 1);
                    let schedule = ordered(interleaved(p), &problem);
                    assert_eq!(
                        makespan(&problem, &schedule),
                        u64::from(2 * (n * v + p - 1)),
                        "p {p} v {v} n {n}"
                    );
                    assert_eq!(alive(&schedule, 0), i64::from((n * v).min((v - 1) * p + 2 * p - 1)));
                }
            }
        }
    }
}

#[test]
fn interleaving_one_stage_per_device_is_1f1b_with_a_longer_warm_up() {
    let problem = uniform(3, 1, 5, 1);
    insta::assert_snapshot!(print(&problem, &ordered(interleaved(3), &problem)), @r"
    d0   F0.0  F0.1  F0.2  F0.3  F0.4  BW0.0 .     BW0.1 .     BW0.2 .     BW0.3 .     BW0.4
    d1   .     F1.0  F1.1  F1.2  BW1.0 F1.3  BW1.1 F1.4  BW1.2 .     BW1.3 .     BW1.4
    d2   .     .     F2.0  BW2.0 F2.1  BW2.1 F2.2  BW2.2 F2.3  BW2.3 F2.4  BW2.4
    ");
    insta::assert_snapshot!(print(&problem, &ordered(Policy::OneFOneB, &problem)), @r"
    d0   F0.0  F0.1  F0.2  .     .     BW0.0 F0.3  BW0.1 F0.4  BW0.2 .     BW0.3 .     BW0.4
    d1   .     F1.0  F1.1  .     BW1.0 F1.2  BW1.1 F1.3  BW1.2 F1.4  BW1.3 .     BW1.4
    d2   .     .     F2.0  BW2.0 F2.1  BW2.1 F2.2  BW2.2 F2.3  BW2.3 F2.4  BW2.4
    ");
}

#[test]
fn grids() {
    let problem = uniform(2, 1, 3, 1);
    insta::assert_snapshot!(print(&problem, &ordered(Policy::GPipe, &problem)), @r"
    d0   F0.0  F0.1  F0.2  .     .     BW0.0 BW0.1 BW0.2
    d1   .     F1.0  F1.1  F1.2  BW1.0 BW1.1 BW1.2
    ");
    let problem = uniform(2, 2, 4, 1);
    insta::assert_snapshot!(print(&problem, &ordered(Policy::GPipe, &problem)), @r"
    d0   F0.0  F0.1  F0.2  F0.3  F2.0  F2.1  F2.2  F2.3  .     .     BW2.0 BW2.1 BW2.2 BW2.3 BW0.0 BW0.1 BW0.2 BW0.3
    d1   .     F1.0  F1.1  F1.2  F1.3  F3.0  F3.1  F3.2  F3.3  BW3.0 BW3.1 BW3.2 BW3.3 BW1.0 BW1.1 BW1.2 BW1.3
    ");
    insta::assert_snapshot!(print(&problem, &ordered(interleaved(2), &problem)), @r"
    d0   F0.0  F0.1  F2.0  F2.1  F0.2  BW2.0 F0.3  BW2.1 F2.2  BW0.0 F2.3  BW0.1 .     BW2.2 .     BW2.3 BW0.2 BW0.3
    d1   .     F1.0  F1.1  F3.0  BW3.0 F3.1  BW3.1 F1.2  BW1.0 F1.3  BW1.1 F3.2  BW3.2 F3.3  BW3.3 BW1.2 BW1.3
    ");
    // Fewer micro-batches than devices, and a last round too short to fill the pipeline.
    let problem = uniform(3, 2, 4, 1);
    insta::assert_snapshot!(print(&problem, &ordered(interleaved(3), &problem)), @r"
    d0   F0.0  F0.1  F0.2  F3.0  F3.1  F3.2  F0.3  .     .     .     .     .     F3.3  BW3.0 BW3.1 BW3.2 BW0.0 .     BW0.1 BW0.2 BW3.3 .     .     BW0.3
    d1   .     F1.0  F1.1  F1.2  F4.0  F4.1  F4.2  BW4.0 F1.3  BW4.1 .     .     .     F4.3  BW4.2 BW1.0 .     BW1.1 BW1.2 BW4.3 .     .     BW1.3
    d2   .     .     F2.0  F2.1  F2.2  F5.0  BW5.0 F5.1  BW5.1 F5.2  BW5.2 F2.3  .     .     BW2.0 F5.3  BW2.1 BW2.2 BW5.3 .     .     BW2.3
    ");
    let problem = uniform(2, 1, 1, 1);
    insta::assert_snapshot!(print(&problem, &ordered(Policy::OneFOneB, &problem)), @r"
    d0   F0.0  .     .     BW0.0
    d1   .     F1.0  BW1.0
    ");
}

fn unit(step: &mut Step) -> &mut Unit {
    match step {
        Step::Pass(_, unit) | Step::Product(unit, _) | Step::Pair { forward: unit, .. } => unit,
    }
}

#[test]
fn every_violation_is_found() {
    let problem = uniform(2, 1, 2, 1);
    let good = ordered(Policy::OneFOneB, &problem);
    let changed = |change: fn(&mut Vec<Step>)| {
        let mut schedule = good.clone();
        change(&mut schedule.devices[DeviceId(0)]);
        let texts: Vec<String> = verify(&problem, &schedule).iter().map(ToString::to_string).collect();
        texts.join("\n")
    };
    assert_eq!(changed(|_| ()), "");
    insta::assert_snapshot!(changed(|steps| _ = steps.remove(0)), @"F g0.m0.i0 is missing");
    insta::assert_snapshot!(changed(|steps| steps.push(steps[0])), @"F g0.m0.i0 stands on d0 once more");
    insta::assert_snapshot!(changed(|steps| unit(&mut steps[0]).stage = StageId(1)), @r"
    F g1.m0.i0 stands on d0, which does not hold its stage
    F g1.m0.i0 stands on d1 once more
    F g0.m0.i0 is missing
    ");
    insta::assert_snapshot!(changed(|steps| unit(&mut steps[0]).micro_batch = MicroBatch(7)), @r"
    F g0.m7.i0 on d0 is of no unit of the problem
    F g0.m0.i0 is missing
    ");
    insta::assert_snapshot!(changed(|steps| steps.swap(0, 2)), @"deadlock: d0 waits at BW g0.m0.i0, d1 waits at F g1.m0.i0");
    insta::assert_snapshot!(changed(|steps| steps.clear()), @r"
    F g0.m0.i0 is missing
    BW g0.m0.i0 is missing
    F g0.m1.i0 is missing
    BW g0.m1.i0 is missing
    ");
}

proptest! {
    #[test]
    fn the_makespan_is_at_most_that_of_one_pass_at_a_time_and_at_least_the_work(
        devices in 1u32..9, chunks in 1u32..4, micro_batches in 1u32..20, group in 1u32..12
    ) {
        let problem = uniform(devices, chunks, micro_batches, 1);
        let schedule = ordered(interleaved(group), &problem);
        let time = makespan(&problem, &schedule);
        prop_assert!(time >= u64::from(2 * (chunks * micro_batches + devices - 1)));
        prop_assert!(time <= u64::from(2 * chunks * devices * micro_batches));
    }
}
