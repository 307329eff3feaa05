//! Traces are what Perfetto and Chrome take: checked event by event against the trace event format.

#[path = "../../program/tests/programs/mod.rs"]
mod programs;

use pipec::show::{Named, Scale, grid, json, svg, timeline_from_json, trace};
use pipec_program::cost::{self, DeviceProfile, FunctionProfile, Profile};
use pipec_program::{BytesPerSecond, Category, Cost, Costs, Nanos, Timeline, Verified, simulate};
use programs::*;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

fn simulated(program: &Verified) -> Timeline {
    simulate(program, &Costs::roofline(program))
}

/// A time, which stands in microseconds; none where it is no number or below zero.
fn nanos(value: &Value) -> Option<u64> {
    value.as_f64().filter(|time| *time >= 0.0).map(|time| (time * 1000.0).round() as u64)
}

/// Checks the form of a trace of so many processes and threads.
///
/// The format: a list of events with a phase `ph`, a process `pid` and, but for counters and names of processes, a thread
/// `tid`. `X` is a complete event from `ts` for `dur` microseconds; `s` and `f` of one `cat`, `id` and `name` are the
/// ends of an arrow and must lie inside an event of their thread to be drawn; `C` is a counter whose `args` are numbers;
/// `M` names a process or a thread, or says its place. There are no `B` and `E`, which would have to nest.
fn check(text: &str, processes: usize, threads: usize) {
    let document: Value = serde_json::from_str(text).unwrap();
    assert_eq!(document["displayTimeUnit"], "ms");
    let events = document["traceEvents"].as_array().unwrap();

    let mut names: BTreeMap<(u64, Option<u64>), &str> = BTreeMap::new();
    let mut places: BTreeSet<(u64, Option<u64>)> = BTreeSet::new();
    let mut spans: BTreeMap<(u64, u64), Vec<(u64, u64)>> = BTreeMap::new();
    let mut arrows: BTreeMap<u64, Vec<&Value>> = BTreeMap::new();
    let mut counters: BTreeMap<(u64, &str), u64> = BTreeMap::new();
    for event in events {
        let number = |key: &str| nanos(&event[key]).unwrap_or_else(|| panic!("no {key}: {event}"));
        let text = |key: &str| event[key].as_str().unwrap_or_else(|| panic!("no {key}: {event}"));
        let (process, thread) = (event["pid"].as_u64().expect("a process"), event["tid"].as_u64());
        assert!(process > 0 && !text("name").is_empty(), "{event}");
        match text("ph") {
            "X" => {
                assert!(!text("cat").is_empty(), "{event}");
                let spans = spans.entry((process, thread.expect("a thread"))).or_default();
                spans.push((number("ts"), number("ts") + number("dur")));
            }
            "s" | "f" => {
                assert_eq!(event["bp"].as_str(), (text("ph") == "f").then_some("e"), "{event}");
                arrows.entry(event["id"].as_u64().expect("an id")).or_default().push(event);
            }
            "C" => {
                let args = event["args"].as_object().unwrap();
                assert_eq!(args.len(), Category::ALL.len(), "{event}");
                assert!(args.values().all(Value::is_u64), "{event}");
                let last = counters.insert((process, text("name")), number("ts"));
                assert!(last.is_none_or(|last| last < number("ts")), "a counter goes back: {event}");
            }
            "M" => match text("name") {
                "process_name" | "thread_name" => {
                    let name = event["args"]["name"].as_str().expect("a name");
                    let before = names.insert((process, thread), name);
                    assert!(!name.is_empty() && before.is_none(), "named twice: {event}");
                    assert_eq!(thread.is_some(), text("name") == "thread_name");
                }
                "process_sort_index" | "thread_sort_index" => {
                    assert!(event["args"]["sort_index"].is_u64() && places.insert((process, thread)));
                }
                other => panic!("unknown metadata {other}"),
            },
            other => panic!("unknown phase {other}"),
        }
    }

    let (named_threads, named): (Vec<_>, Vec<_>) =
        names.keys().copied().partition(|(_, thread): &(u64, Option<u64>)| thread.is_some());
    assert_eq!((named.len(), named_threads.len()), (processes, threads));
    assert_eq!(names.keys().copied().collect::<BTreeSet<_>>(), places, "what is named has a place");
    let of_processes: BTreeSet<&str> =
        names.iter().filter(|(key, _)| key.1.is_none()).map(|(_, name)| *name).collect();
    assert_eq!(of_processes.len(), processes, "processes have distinct names");
    for (&(process, thread), spans) in &spans {
        assert!(names.contains_key(&(process, Some(thread))), "{process} {thread} has no name");
        assert!(spans.is_sorted_by(|a, b| a.1 <= b.0), "events of {process} {thread} overlap");
    }
    for (id, ends) in &arrows {
        let [start, finish] = ends.as_slice() else { panic!("arrow {id} has {} ends", ends.len()) };
        assert_eq!((&start["ph"], &finish["ph"]), (&"s".into(), &"f".into()));
        assert_eq!((&start["name"], &start["cat"]), (&finish["name"], &finish["cat"]));
        assert!(nanos(&start["ts"]) <= nanos(&finish["ts"]), "arrow {id} points back in time");
        assert_ne!(start["pid"], finish["pid"], "arrow {id} stays on its device");
        for end in ends {
            let spans = &spans[&(end["pid"].as_u64().unwrap(), end["tid"].as_u64().unwrap())];
            let time = nanos(&end["ts"]).unwrap();
            assert!(
                spans.iter().any(|(from, to)| *from <= time && time <= *to),
                "arrow {id} hangs in the air at {time}"
            );
        }
    }
    assert_eq!(counters.keys().map(|(process, _)| *process).collect::<BTreeSet<_>>().len(), processes);
}

#[test]
fn traces_have_the_form_that_viewers_take() {
    for pipeline in [one_f_one_b(4, 8), gpipe(2, 3), zero_bubble(4, 6), interleaved(), recompute()] {
        let program = verified(&pipeline);
        let timeline = simulated(&program);
        let named = [Named { name: "simulated", timeline: &timeline }];
        check(&trace(&program, &named), program.devices.len(), program.queues.len());
    }
}

#[test]
fn several_timelines_have_processes_of_their_own() {
    let program = verified(&one_f_one_b(2, 3));
    let (first, second) = (simulated(&program), simulate(&program, &Costs::unit(&program)));
    let both = [Named { name: "simulated", timeline: &first }, Named { name: "measured", timeline: &second }];
    check(&trace(&program, &both), 2 * program.devices.len(), 2 * program.queues.len());
}

/// A pair is one event of one name in every picture, and one function of a profile.
#[test]
fn a_pair_is_one_event() {
    let (program, _) =
        pipec_program::text::parse(include_str!("../../../tests/programs/pair.pprog")).unwrap();
    let program = pipec_program::verify(program).unwrap();
    let mut costs = Profile::default();
    let mut functions = BTreeMap::new();
    for function in program.functions.values() {
        let Cost { flops, traffic } = cost::function(function);
        let time = Nanos(if function.pair.is_some() { 25 } else { 10 });
        functions.insert(function.name.clone(), FunctionProfile { time, flops, traffic });
    }
    costs.devices.insert(
        "cpu".to_owned(),
        DeviceProfile {
            functions,
            overhead: Nanos::ZERO,
            message_latency: Nanos::ZERO,
            message_bandwidth: BytesPerSecond(u64::MAX),
            memory_bandwidth: BytesPerSecond(u64::MAX),
        },
    );
    let timeline = simulate(&program, &Costs::measured(&program, &costs).unwrap());
    let named = [Named { name: "simulated", timeline: &timeline }];
    let text = trace(&program, &named);
    check(&text, 2, 8);
    let document: Value = serde_json::from_str(&text).unwrap();
    let name = "F g1.m2.i0 + BW g1.m0.i0";
    let events = document["traceEvents"].as_array().unwrap();
    let events: Vec<&Value> = events.iter().filter(|event| event["name"] == name).collect();
    assert_eq!(events.len(), 1);
    assert_eq!(nanos(&events[0]["dur"]), Some(25));
    assert_eq!(events[0]["cat"], "forward + backward");
    assert_eq!(events[0]["args"]["forward"], "g1.m2.i0");
    assert_eq!(events[0]["args"]["backward"], "g1.m0.i0");
    let unit = simulate(&program, &Costs::unit(&program));
    let named = [Named { name: "simulated", timeline: &unit }];
    let picture = grid(&program, &named, Scale::Unit);
    assert!(picture.contains("F2+B0-") && picture.contains("F+B forward + backward"), "{picture}");
    let picture = svg(&program, &named);
    assert!(picture.contains(name) && picture.contains(">2+0<"), "{picture}");
    let read = timeline_from_json(&program, &json(&program, &timeline)).unwrap();
    assert_eq!(read, timeline);
}

#[test]
fn the_command_writes_one() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    for file in ["examples/tiny.pipe", "examples/sliced.pipe"] {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_pipec"))
            .args(["show", file, "--format", "trace"])
            .current_dir(root)
            .output()
            .unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        // Of each device compute and, for the norm of gradients, collectives; to each neighbour a send and a receive.
        check(&text, 4, 4 * 2 + 6 * 2);
    }
}
