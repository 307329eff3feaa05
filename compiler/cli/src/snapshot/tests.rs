//! Snapshots read as printed, and differences of pipelines that are known.

use super::*;
use crate::programs::*;

const ALL: [Part; 3] = [Part::Schedule, Part::Memory, Part::Program];

fn snapshot(pipeline: &Pipeline) -> Snapshot {
    Snapshot::of(&verified(pipeline), &ALL)
}

fn without_program(pipeline: &Pipeline) -> Snapshot {
    Snapshot::of(&verified(pipeline), &Part::DEFAULT)
}

#[test]
fn reading_gives_what_was_printed() {
    for pipeline in
        [one_f_one_b(1, 1), one_f_one_b(4, 8), gpipe(3, 4), zero_bubble(4, 6), interleaved(), recompute()]
    {
        let whole = snapshot(&pipeline);
        for parts in [&ALL[..], &ALL[..2], &ALL[..1], &ALL[1..2], &ALL[2..], &[]] {
            let some = Snapshot::of(&verified(&pipeline), parts);
            assert_eq!(some.parts(), parts);
            assert_eq!(parse(&print(&some)), Ok(some.clone()));
            assert_eq!(differences(&some, &whole), "");
        }
    }
}

#[test]
fn texts() {
    insta::assert_snapshot!("text_one_f_one_b", print(&without_program(&one_f_one_b(2, 3))));
    insta::assert_snapshot!("text_zero_bubble", print(&without_program(&zero_bubble(3, 4))));
}

#[test]
fn what_is_no_snapshot_is_told_by_line() {
    let text = print(&without_program(&one_f_one_b(2, 3)));
    let told = |text: &str| parse(text).unwrap_err().to_string();
    assert_eq!(told(""), "line 1: expected a title");
    assert_eq!(told("a title\n"), "line 1: expected `makespan NUMBER ns, ..`");
    let wrong = |from: &str, to: &str| {
        assert!(text.contains(from));
        told(&text.replacen(from, to, 1))
    };
    assert_eq!(wrong("F0.1", "X0.1"), "line 13: expected a device and its passes");
    assert_eq!(wrong("d1 device", "d1 nowhere"), "line 18: expected an arena and its bytes");
    assert_eq!(wrong("stage ", "stages "), "line 8: expected the heading of a table");
    assert_eq!(wrong("g0 ", "0 "), "line 9: expected a stage, its devices, parameters and weights");
}

#[test]
fn names_of_passes() {
    for name in ["F0.0", "BW12.3", "B1.2.3", "W0.0.1", "R7.0", "F0.7+BW2.5"] {
        assert_eq!(PassName::parse(name).map(|pass| pass.to_string()).as_deref(), Some(name));
    }
    for name in
        ["", "F", "0.0", "F0", "F0.0.0.0", "F0.x", "Q0.0", "F-1.0", "F99999999999.0", "F0.0+", "+F0.0"]
    {
        assert_eq!(PassName::parse(name), None, "{name}");
    }
}

/// The forward pass of micro-batch 3 waits for one more backward pass on the first device.
#[test]
fn a_pass_that_moves() {
    let before = one_f_one_b(3, 5);
    let mut after = before.clone();
    let order = &mut after.orders[0];
    let place = order.iter().position(|pass| *pass == (pipec_program::Pass::F, 0, 3)).unwrap();
    order.swap(place, place + 1);
    insta::assert_snapshot!(differences(&without_program(&before), &without_program(&after)));
}

#[test]
fn another_schedule() {
    insta::assert_snapshot!(differences(
        &without_program(&one_f_one_b(3, 4)),
        &without_program(&gpipe(3, 4))
    ));
}

#[test]
fn more_micro_batches_and_split_passes() {
    let before = without_program(&one_f_one_b(2, 3));
    insta::assert_snapshot!(differences(&before, &without_program(&zero_bubble(2, 4))));
}

/// Two stages change their devices.
#[test]
fn another_placement() {
    let before = interleaved();
    let mut after = before.clone();
    after.placement.swap(0, 1);
    after.placement.swap(2, 3);
    after.orders.swap(0, 1);
    insta::assert_snapshot!(differences(&without_program(&before), &without_program(&after)));
}

#[test]
fn fewer_devices() {
    insta::assert_snapshot!(differences(
        &without_program(&one_f_one_b(3, 2)),
        &without_program(&one_f_one_b(2, 2))
    ));
}

/// A few bytes more do not show in rounded figures, and must be seen all the same.
#[test]
fn programs_and_small_changes() {
    let before = Pipeline { activations: 10 << 20, ..one_f_one_b(2, 3) };
    let after = Pipeline { activations: (10 << 20) + 64, ..before.clone() };
    insta::assert_snapshot!(differences(&snapshot(&before), &snapshot(&after)));
}

#[test]
fn files() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("a b.pipe");
    let golden = Golden::new(&source, Some("fast"));
    assert_eq!(golden.path(), folder.path().join("a b.pipe@fast.snap"));
    assert_eq!(golden.pending(), folder.path().join("a b.pipe@fast.snap.new"));
    assert!(golden.read().unwrap().is_none());
    assert!(!golden.accept().unwrap());

    let (first, second) = (snapshot(&gpipe(2, 2)), without_program(&gpipe(2, 3)));
    golden.write(&first).unwrap();
    assert_eq!(golden.read().unwrap(), Some(first.clone()));
    let text = std::fs::read_to_string(golden.path()).unwrap();
    let header =
        "---\nsource: \"a b.pipe\"\nexpression: \"pipec snap --what schedule,memory,program\"\n---\n";
    assert!(text.starts_with(header), "{text}");

    golden.propose(&second).unwrap();
    assert_eq!(golden.read().unwrap(), Some(first));
    assert!(golden.accept().unwrap() && !golden.pending().exists());
    assert_eq!(golden.read().unwrap(), Some(second.clone()));
    golden.propose(&second).unwrap();
    golden.reject().unwrap();
    assert!(!golden.pending().exists());

    std::fs::write(golden.path(), "---\nsource: x\n---\nnothing\n").unwrap();
    let error = golden.read().unwrap_err().to_string();
    assert_eq!(error, "no snapshot: line 4: expected `makespan NUMBER ns, ..`");
}

/// What is kept is a golden of insta: it finds the same text in it.
#[test]
fn insta_reads_what_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let kept = snapshot(&gpipe(2, 2));
    Golden::new(&folder.path().join("x.pipe"), None).write(&kept).unwrap();
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(folder.path());
    settings.set_prepend_module_to_snapshot(false);
    settings.bind(|| insta::assert_snapshot!("x.pipe", print(&kept)));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is pending");
}
