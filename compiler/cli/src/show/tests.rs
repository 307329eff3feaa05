//! Every picture of small programs whose timelines are known.

use super::*;
use crate::programs::*;
use pipec_program::{Costs, Event, Nanos, Verified, simulate};

fn simulated(program: &Verified) -> Timeline {
    simulate(program, &Costs::roofline(program))
}

fn named(timeline: &Timeline) -> [Named<'_>; 1] {
    [Named { name: "simulated", timeline }]
}

/// Two devices, free messages.
fn two() -> Verified {
    verified(&one_f_one_b(2, 3))
}

/// Four devices, messages that take a fifth of a pass, an update.
fn four() -> Verified {
    verified(&Pipeline {
        times: [1000, 1000, 1000, 2000, 1000],
        update: 500,
        link: Some((1_280_000_000, 50)),
        weights: 4096,
        activations: 8192,
        ..one_f_one_b(4, 8)
    })
}

/// A run that took a tenth longer, and the first device a fifth.
fn measured(program: &Verified, timeline: &Timeline) -> Timeline {
    let slower = |time: Nanos| Nanos(time.0 + time.0 / 10);
    let events = timeline.events().iter().map(|&event| Event {
        start: slower(event.start),
        end: slower(event.end),
        ..event
    });
    Timeline::measured(program, events.collect()).unwrap()
}

fn unit(pipeline: &Pipeline) -> String {
    let program = verified(pipeline);
    let timeline = simulate(&program, &Costs::unit(&program));
    grid(&program, &[Named { name: "unit costs", timeline: &timeline }], Scale::Unit)
}

#[test]
fn grids_in_units() {
    insta::assert_snapshot!("unit_one_f_one_b", unit(&one_f_one_b(4, 8)));
    insta::assert_snapshot!("unit_gpipe", unit(&gpipe(3, 4)));
    insta::assert_snapshot!("unit_zero_bubble", unit(&zero_bubble(4, 6)));
    insta::assert_snapshot!("unit_interleaved", unit(&interleaved()));
    insta::assert_snapshot!("unit_recompute", unit(&recompute()));
}

#[test]
fn grids_to_scale() {
    let program = four();
    let timeline = simulated(&program);
    insta::assert_snapshot!("scaled_wide", grid(&program, &named(&timeline), Scale::Columns(120)));
    insta::assert_snapshot!("scaled_narrow", grid(&program, &named(&timeline), Scale::Columns(40)));
    let program = two();
    let timeline = simulated(&program);
    insta::assert_snapshot!("scaled_two", grid(&program, &named(&timeline), Scale::Columns(72)));
}

#[test]
fn two_timelines_lie_over_each_other() {
    let program = two();
    let (first, second) = (simulated(&program), measured(&program, &simulated(&program)));
    let both = [Named { name: "simulated", timeline: &first }, Named { name: "measured", timeline: &second }];
    insta::assert_snapshot!("overlay_grid", grid(&program, &both, Scale::Columns(72)));
    insta::assert_snapshot!("overlay_svg", svg(&program, &both));
    insta::assert_snapshot!("overlay_differences", differences(&program, both[0], both[1]));
}

#[test]
fn drawings() {
    insta::assert_snapshot!("svg_two", svg(&two(), &named(&simulated(&two()))));
    insta::assert_snapshot!("svg_four", svg(&four(), &named(&simulated(&four()))));
    for (name, pipeline) in [
        ("svg_interleaved", interleaved()),
        ("svg_recompute", recompute()),
        ("svg_zero_bubble", zero_bubble(3, 4)),
    ] {
        let program = verified(&pipeline);
        insta::assert_snapshot!(name, svg(&program, &named(&simulated(&program))));
    }
}

#[test]
fn figures() {
    insta::assert_snapshot!("tables_two", tables(&two(), &simulated(&two())));
    insta::assert_snapshot!("tables_four", tables(&four(), &simulated(&four())));
}

#[test]
fn traces() {
    insta::assert_snapshot!("trace_two", trace(&two(), &named(&simulated(&two()))));
    let text = trace(&four(), &named(&simulated(&four())));
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    let events = value["traceEvents"].as_array().unwrap();
    let of = |phase: &str| events.iter().filter(|event| event["ph"] == phase).collect::<Vec<_>>();
    assert_eq!(of("s").len(), 3 * 2 * 8);
    assert_eq!(of("f").len(), 3 * 2 * 8);
    assert_eq!(of("X").len(), simulated(&four()).events().len());
    assert!(!of("C").is_empty());
}

#[test]
fn a_timeline_survives_json() {
    let program = two();
    let timeline = simulated(&program);
    let text = json(&program, &timeline);
    insta::assert_snapshot!("json_two", text);
    assert_eq!(timeline_from_json(&program, &text).unwrap(), timeline);
    let other = verified(&gpipe(2, 3));
    assert_eq!(
        timeline_from_json(&other, &text).unwrap_err().to_string(),
        "the timeline belongs to another program"
    );
    let mut changed = build(&one_f_one_b(2, 3));
    changed.inputs = "f00d".to_owned();
    assert!(matches!(timeline_from_json(&changed, &text), Err(JsonError::OtherProgram)));
    assert!(matches!(timeline_from_json(&program, "{"), Err(JsonError::Syntax(_))));
}

#[test]
fn a_profile_survives_json() {
    use pipec_program::cost::{DeviceProfile, FunctionProfile};
    use pipec_program::{Bytes, BytesPerSecond, Flops, Profile};
    let function = FunctionProfile { time: Nanos(7), flops: Flops(8), traffic: Bytes(9) };
    let device = DeviceProfile {
        functions: [("forward_g0".to_owned(), function)].into(),
        overhead: Nanos(1),
        message_latency: Nanos(2),
        message_bandwidth: BytesPerSecond(3),
        memory_bandwidth: BytesPerSecond(4),
    };
    let profile = Profile { devices: [("cpu".to_owned(), device)].into() };
    assert_eq!(profile_from_json(&profile_json(&profile)).unwrap(), profile);
    assert!(profile_from_json("{}").is_err());
}

#[test]
fn pictures_of_nothing() {
    let program = verified(&one_f_one_b(1, 1));
    let empty = Timeline::default();
    for text in [
        grid(&program, &named(&empty), Scale::Columns(10)),
        grid(&program, &named(&empty), Scale::Unit),
        grid(&program, &[], Scale::Columns(0)),
        grid(&program, &named(&empty), Scale::Columns(usize::MAX)),
        svg(&program, &named(&empty)),
        svg(&program, &[]),
        trace(&program, &[]),
        tables(&program, &empty),
        json(&program, &empty),
    ] {
        assert!(!text.is_empty());
    }
}
