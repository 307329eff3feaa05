//! Files that PyTorch wrote, and files that we write.

use super::*;
use crate::schedule::csv::{CsvError, Dialect, read, write};

/// Schedules that torch 2.15 wrote for 4 ranks and 8 micro-batches.
const WRITTEN: [(&str, &str); 6] = [
    ("1f1b", include_str!("csv/1f1b_p4_m8.compute_only.csv")),
    ("dualpipev", include_str!("csv/dualpipev_p4_m8.compute_only.csv")),
    ("interleaved", include_str!("csv/interleaved_v2_p4_m8.compute_only.csv")),
    ("interleaved zero bubble", include_str!("csv/izb_v2_p4_m8.compute_only.csv")),
    ("looped breadth first", include_str!("csv/loopedbfs_v2_p4_m8.compute_only.csv")),
    ("zbv", include_str!("csv/zbv_p4_m8.compute_only.csv")),
];

#[test]
fn what_torch_wrote_is_read_and_written_again() {
    for (name, text) in WRITTEN {
        let (problem, schedule) = read(text).unwrap();
        assert_eq!(verify(&problem, &schedule), [], "{name}");
        let written = write(&problem, &schedule, Dialect::ComputeOnly, false).unwrap();
        let without_idle: Vec<String> = text
            .lines()
            .map(|line| line.split(',').filter(|cell| !cell.is_empty()).collect::<Vec<_>>().join(","))
            .collect();
        assert_eq!(written.lines().collect::<Vec<_>>(), without_idle, "{name}");
        let messages = write(&problem, &schedule, Dialect::ComputeComms, false).unwrap();
        assert_eq!(read(&messages).unwrap(), (problem, schedule), "{name}");
    }
}

#[test]
fn messages_say_nothing_new() {
    for (only, comms) in [
        (WRITTEN[0].1, include_str!("csv/1f1b_p4_m8.compute_comms.csv")),
        (WRITTEN[5].1, include_str!("csv/zbv_p4_m8.compute_comms.csv")),
    ] {
        assert_eq!(read(only), read(comms));
    }
}

#[test]
fn torch_has_our_policies() {
    let torch = |index: usize| read(WRITTEN[index].1).unwrap().1;
    assert_eq!(torch(0), ordered(Policy::OneFOneB, &uniform(4, 1, 8, 1)));
    assert_eq!(torch(2), ordered(Policy::Interleaved { group: None }, &uniform(4, 2, 8, 1)));
    assert_eq!(torch(1), ordered(Policy::DualPipeV, &zigzag(4, 2, 8)));
}

#[test]
fn messages_are_placed() {
    let problem = uniform(2, 1, 2, 1);
    let schedule = ordered(Policy::OneFOneB, &problem);
    insta::assert_snapshot!(write(&problem, &schedule, Dialect::ComputeComms, false).unwrap(), @r"
    0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0WAIT_SEND_F0,0RECV_B1,0B1,0WAIT_SEND_F1,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0RESHARD
    1UNSHARD,1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD,1WAIT_REDUCE_GRAD,1WAIT_SEND_B0,1WAIT_SEND_B1,1RESHARD
    ");
}

#[test]
fn what_the_file_cannot_say_is_refused() {
    let refused = |problem: &Problem, schedule: &Schedule, lossy| {
        write(problem, schedule, Dialect::ComputeOnly, lossy).unwrap_err()
    };
    let slices = uniform(2, 1, 2, 3);
    assert_eq!(refused(&slices, &ordered(Policy::Seq1F1B, &slices), true), CsvError::Slices(3));
    let copies = Problem::uniform(Placement::Bidirectional, 2, 1, 4, 1).unwrap();
    assert_eq!(refused(&copies, &ordered(Policy::Chimera, &copies), true), CsvError::Copies(2));

    let mut parts = uniform(2, 1, 2, 1);
    parts.weight_parts = 2;
    let schedule = ordered(Policy::Svpp(Svpp { weight_grads: WeightGrads::PerGemm, ..Svpp::FUSED }), &parts);
    let error = refused(&parts, &schedule, false);
    assert!(error.can_be_lost(), "{error}");
    let lossy = write(&parts, &schedule, Dialect::ComputeOnly, true).unwrap();
    let (problem, read) = read(&lossy).unwrap();
    assert_eq!(verify(&problem, &read), []);
}

#[test]
fn wrong_files_say_where() {
    let told = |text| read(text).unwrap_err().to_string();
    insta::assert_snapshot!(told("0F0,0B0\n1F0,1X0"), @"row 2, column 2: `1X0` is no action");
    insta::assert_snapshot!(told("0F0zzz"), @"row 1, column 1: `0F0zzz` is no action");
    insta::assert_snapshot!(told("0SEND_F"), @"row 1, column 1: `0SEND_F` is no action");
    insta::assert_snapshot!(told("(0F0;0F1)OVERLAP_F_B"), @"row 1, column 1: `(0F0;0F1)OVERLAP_F_B` is no action");
    insta::assert_snapshot!(told("0F0,0B0\n0F1"), @"stage 0 stands in rows 1 and 2");
    insta::assert_snapshot!(told("1F0,1B0"), @"g0 is placed on no device");
    insta::assert_snapshot!(told(""), @"a pipeline needs at least 1 device");
    insta::assert_snapshot!(told("0F99999999999"), @"row 1, column 1: `0F99999999999` is no action");
}
