//! Problems and schedules as files.

use super::*;

fn file(policy: Policy, chunks: u32, slices: u32, micro_batches: u32) -> ScheduleFile {
    let (place, chunks) = match policy.placement() {
        Placement::Loop => (PlaceName::Interleave, chunks),
        Placement::Zigzag => (PlaceName::Vshape, 2),
        Placement::Bidirectional => (PlaceName::Bidir, 2),
    };
    ScheduleFile::uniform(4, chunks, slices, micro_batches, place)
}

#[test]
fn a_schedule_comes_back_as_it_was() {
    let split = Svpp { weight_grads: WeightGrads::PerGemm, ..Svpp::FUSED };
    for (policy, chunks, slices) in [
        (Policy::OneFOneB, 1, 1),
        (Policy::Svpp(split), 2, 3),
        (Policy::ZbV, 2, 1),
        (Policy::DualPipe, 2, 1),
        (Policy::DualPipeV, 2, 1),
        (Policy::Chimera, 2, 1),
    ] {
        let mut file = file(policy, chunks, slices, 8);
        file.costs.wparts = Some(3);
        let (problem, scale) = file.problem().unwrap();
        let schedule = ordered(policy, &problem);
        let execution = execute(&problem, &schedule, |step| problem.duration(step)).unwrap();
        let report = Report::new(&problem, &schedule, &execution, scale);
        let written = file.with(&problem, &schedule, report);
        assert_eq!(written.schedule(&problem), Ok(schedule), "{policy:?}");
        let derived = ScheduleFile::of(&problem, scale).problem().unwrap();
        assert_eq!(derived, (problem, scale), "{policy:?}");
    }
}

#[test]
fn numbers_become_integers_without_loss() {
    let mut file = file(Policy::OneFOneB, 1, 3, 2);
    file.costs.forward = Some(Table::Slices(vec![1.25, 0.85, 1.0]));
    file.costs.comm = Some(0.05);
    file.memory.b_release = Some(0.5);
    let (problem, scale) = file.problem().unwrap();
    let cost = problem.cost(StageId(2), Slice(1));
    assert_eq!((cost.forward, problem.delay, scale.time), (85, 5, 100.0));
    assert_eq!((cost.activations, cost.released, scale.memory), (10, 5, 120.0));
    // Thirds have no decimal unit; what is lost is far below any sum that matters.
    file.costs.input = Some(Table::Everywhere(1.0 / 3.0));
    let (problem, scale) = file.problem().unwrap();
    let third = problem.cost(StageId(0), Slice(0)).input as f64 / scale.time;
    assert!((third - 1.0 / 3.0).abs() < 1e-15);
}

#[test]
fn pairs_take_the_time_that_is_stated() {
    let mut file = file(Policy::DualPipeV, 2, 1, 8);
    let duration = |file: &ScheduleFile| {
        let (problem, scale) = file.problem().unwrap();
        let unit = |stage, micro_batch| Unit { stage: StageId(stage), micro_batch, slice: Slice(0) };
        let (forward, backward) = (unit(0, MicroBatch(1)), unit(7, MicroBatch(0)));
        let of = |pass| problem.duration(Step::Pair { forward, backward, pass }) as f64 / scale.time;
        (of(Pass::BW), of(Pass::B))
    };
    assert_eq!(duration(&file), (3.0, 2.0));
    file.costs.pair = Some(Table::Everywhere(2.5));
    assert_eq!(duration(&file), (2.5, 1.5));
    file.costs.pair = Some(Table::Everywhere(3.25));
    assert_eq!(duration(&file), (3.25, 2.25));
    // B overlaps as much as BW does, and a pair takes as long as its longer half.
    file.costs.pair = Some(Table::Everywhere(2.0));
    assert_eq!(duration(&file), (2.0, 1.0));
    let (problem, scale) = file.problem().unwrap();
    let back = ScheduleFile::of(&problem, scale);
    assert_eq!(back.costs.pair, file.costs.pair);
    assert_eq!(back.problem().unwrap().0, problem);
    // Where stages differ, what is known of a pair is how much less it takes than its halves.
    file.costs.forward =
        Some(Table::Stages((0..8).map(|stage| vec![if stage == 0 { 3.0 } else { 1.0 }]).collect()));
    file.costs.pair =
        Some(Table::Stages((0..8).map(|stage| vec![if stage == 0 { 5.0 } else { 2.5 }]).collect()));
    assert_eq!(duration(&file), (4.5, 3.5));
}

#[test]
fn wrong_files_say_what_is_wrong() {
    let told = |change: fn(&mut ScheduleFile)| {
        let mut file = file(Policy::OneFOneB, 1, 2, 2);
        change(&mut file);
        let problem = file.problem();
        problem.and_then(|(problem, _)| file.schedule(&problem)).unwrap_err().to_string()
    };
    insta::assert_snapshot!(told(|_| ()), @"there are no `ops`");
    insta::assert_snapshot!(told(|file| file.devices = 0), @"a pipeline needs at least 1 device");
    insta::assert_snapshot!(told(|file| file.microbatches = u32::MAX), @"more than 67108864 units");
    insta::assert_snapshot!(told(|file| file.costs.forward = Some(Table::Slices(vec![1.0]))), @"`F` is no table of numbers of at least 0 by stage and slice");
    insta::assert_snapshot!(told(|file| file.costs.comm = Some(-1.0)), @"`comm` is no table of numbers of at least 0 by stage and slice");
    insta::assert_snapshot!(told(|file| file.costs.pair = Some(Table::Everywhere(1.5))), @"`FB` is less than F or BW: a pair takes as long as its longer pass at least");
    for lengths in [vec![1], vec![2, 0], vec![1, 1, 1]] {
        let mut file = file(Policy::OneFOneB, 1, 2, 2);
        file.lengths = Some(lengths);
        assert_eq!(file.problem(), Err(FileError::Lengths));
    }
    insta::assert_snapshot!(told(|file| file.costs.wparts = Some(0)), @"`wparts` must be at least 1");
    insta::assert_snapshot!(told(|file| file.memory.b_release = Some(1.5)), @"`b_release` is 1.5, and must be between 0 and 1");
    insta::assert_snapshot!(told(|file| file.placement = Place::Named(PlaceName::Bidir)), @"the placement does not match the numbers of devices and chunks");
    insta::assert_snapshot!(told(|file| file.placement = Place::Stages(vec![vec![0], vec![1], vec![2], vec![2]])), @"g2 is placed twice");
    insta::assert_snapshot!(told(|file| file.ops = Some(Vec::new())), @"passes for 0 devices");
    let op = |op| move |file: &mut ScheduleFile| file.ops = Some(vec![vec![op], vec![], vec![], vec![]]);
    let told_op = |wrong| {
        let mut file = file(Policy::OneFOneB, 1, 2, 2);
        op(wrong)(&mut file);
        let (problem, _) = file.problem().unwrap();
        file.schedule(&problem).unwrap_err().to_string()
    };
    insta::assert_snapshot!(told_op(Op::Whole(Kind::F, 0, 0, 1)), @"pass 0 of d0 is of nothing that the problem has");
    insta::assert_snapshot!(told_op(Op::Part(Kind::B, 0, 0, 0, 0)), @"pass 0 of d0 is of nothing that the problem has");
    insta::assert_snapshot!(told(|file| {
        file.ops = Some(vec![vec![Op::Whole(Kind::F, 0, 0, 0)], vec![], vec![], vec![]]);
        file.pairs = Some(vec![vec![0]]);
    }), @"pass 0 of d0 is no forward pass with a backward pass after it");
}
