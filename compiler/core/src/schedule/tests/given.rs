//! Schedules in files: their sizes, and what is wrong with them.

use super::*;
use crate::schedule::given;
use crate::spec::{Given, GivenForm};

#[test]
fn sizes_and_placements_are_those_of_the_file() {
    let sizes = |text: &str| {
        let Given { form: _, text: _, devices, virtual_stages, slices, lengths: _, micro_batches, placement } =
            given::read("order.json", text).unwrap();
        (devices, virtual_stages, slices, micro_batches, placement)
    };
    let file = |placement: &str, chunks: u32| {
        format!(
            r#"{{"devices": 2, "chunks": {chunks}, "slices": 3, "microbatches": 4, "placement": {placement},
                "ops": [[], []]}}"#
        )
    };
    assert_eq!(sizes(&file(r#""interleave""#, 1)), (2, 1, 3, 4, Placement::Loop));
    assert_eq!(sizes(&file("[[0, 2], [1, 3]]", 2)), (2, 2, 3, 4, Placement::Loop));
    assert_eq!(sizes(&file(r#""vshape""#, 2)), (2, 2, 3, 4, Placement::Zigzag));
    assert_eq!(sizes(&file(r#""bidir""#, 2)), (2, 1, 3, 4, Placement::Bidirectional));
    let uneven = r#"{"devices": 1, "slices": 3, "lengths": [6, 5, 5], "ops": [[]]}"#;
    assert_eq!(given::read("order.json", uneven).unwrap().lengths, Some(vec![6, 5, 5]));
    let csv = given::read("order.csv", "0F0,0B0\n1F0,1B0\n").unwrap();
    assert_eq!((csv.form, csv.devices, csv.slices, csv.micro_batches), (GivenForm::Csv, 2, 1, 1));
}

#[test]
fn faults_are_told() {
    let json = |text: &str| given::read("order.json", text).unwrap_err();
    assert_eq!(json(r#"{"devices": 1}"#), "there are no `ops`");
    assert_eq!(
        json(r#"{"devices": 1, "ops": [[["F", 0, 0, 1]]]}"#),
        "pass 0 of d0 is of nothing that the problem has"
    );
    let elsewhere = r#"{"devices": 2, "chunks": 2, "placement": [[0, 1], [2, 3]], "ops": [[], []]}"#;
    assert!(json(elsewhere).starts_with("its stages stand neither in a loop"), "{}", json(elsewhere));

    let mut problem = Problem::uniform(Placement::Loop, 1, 1, 1, 1).unwrap();
    let mut order = |text: &str| given::order(&given::read("order.json", text).unwrap(), &mut problem);
    let recomputed = r#"{"devices": 1, "ops": [[["F", 0, 0, 0], ["R", 0, 0, 0], ["BW", 0, 0, 0]]]}"#;
    assert_eq!(order(recomputed), Err("R g0.m0.i0 recomputes, which pipec does not do".to_owned()));
    let twice = r#"{"devices": 1, "ops": [[["F", 0, 0, 0], ["F", 0, 0, 0]]]}"#;
    assert_eq!(order(twice), Err("F g0.m0.i0 stands on d0 once more; BW g0.m0.i0 is missing".to_owned()));
    let parts = r#"{"devices": 1, "costs": {"wparts": 2}, "ops": [[["F", 0, 0, 0], ["B", 0, 0, 0], ["W", 0, 0, 0, 0],
        ["W", 0, 0, 0, 1]]]}"#;
    assert!(order(parts).is_ok());
    assert_eq!(problem.weight_parts, 2);
}
