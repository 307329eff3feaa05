//! What orders are made for: the memory of units, and limits of it; and orders that come from files.

use pipe_grammar::diagnostic::Code;
use pipec::show;
use pipec_compiler::pipeline::{Compiled, Error};
use pipec_compiler::schedule::csv::{self, Dialect};
use pipec_compiler::schedule::{ScheduleFile, given, peaks};
use pipec_compiler::spec::{Cut, InFlight, MemoryLimit, Resolution, Schedule, Spec, WeightGrads};
use pipec_program::text::print;
use pipec_program::{Bytes, Category};
use pipec_tests::{Kind, compile, losses, replan, resolve};

/// The largest relative difference.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs() / b.abs()).fold(0.0, f64::max)
}

fn svpp(virtual_stages: u32, slices: u32, weight_grads: WeightGrads) -> Schedule {
    Schedule::Svpp { virtual_stages, slices, in_flight: InFlight::Max, bias: 100, weight_grads }
}

/// Schedules of every kind: whole and split backward passes, GEMM by GEMM, in pairs, sliced, forth and back, in two
/// directions.
fn kinds() -> Vec<Schedule> {
    vec![
        Schedule::OneFOneB,
        Schedule::Interleaved { virtual_stages: 2, group: 2 },
        Schedule::ZbH1,
        Schedule::ZbV,
        Schedule::DualPipe,
        Schedule::DualPipeV,
        Schedule::Chimera,
        Schedule::Seq1F1B { virtual_stages: 2, slices: 4 },
        svpp(1, 4, WeightGrads::Split),
        svpp(2, 2, WeightGrads::PerGemm),
    ]
}

#[test]
fn a_schedule_comes_back_from_its_file() {
    let Resolution { spec, origins, .. } = resolve("examples/reference/tiny_b.pipe");
    for schedule in kinds() {
        let spec = replan(&spec, 2, schedule, Cut::Balanced);
        let written = compile(&spec, &origins).unwrap();
        let json = show::schedule_json(&written.replica, &written.order, &written.plan.lengths);
        let csv = csv::write(&written.replica, &written.order, Dialect::ComputeOnly, false);
        let comms = csv::write(&written.replica, &written.order, Dialect::ComputeComms, false);
        let sayable = schedule.slices() == 1 && schedule.placement().copies() == 1;
        assert!(csv.is_ok() == sayable && comms.is_ok() == sayable, "{schedule:?}");
        let csv = csv.into_iter().chain(comms).map(|text| ("order.csv", text));
        for (name, text) in csv.chain([("order.json", json)]) {
            let given = given::read(name, &text).unwrap();
            let mut spec = replan(&spec, 2, given.schedule(), Cut::Balanced);
            spec.pipeline.given = Some(given);
            let read = compile(&spec, &origins).unwrap_or_else(|error| panic!("{schedule:?}: {error}"));
            assert_eq!(print(&read.program), print(&written.program), "{schedule:?} {name}");
        }
    }
}

/// A file keeps the lengths of slices that are not equal, also where they do not divide a sequence.
#[test]
fn slices_of_unequal_lengths_come_back_from_a_file() {
    let Resolution { spec, origins, .. } = resolve("examples/reference/tiny_b.pipe");
    let json =
        |compiled: &Compiled| show::schedule_json(&compiled.replica, &compiled.order, &compiled.plan.lengths);
    let from = |text: &str| {
        let given = given::read("order.json", text).unwrap();
        let mut spec = replan(&spec, 2, given.schedule(), Cut::Balanced);
        spec.pipeline.given = Some(given);
        compile(&spec, &origins).unwrap()
    };
    for (slices, balance) in [(4, 0), (5, 100)] {
        let mut spec = replan(&spec, 2, svpp(1, slices, WeightGrads::Split), Cut::Balanced);
        spec.pipeline.balance = balance;
        let written = compile(&spec, &origins).unwrap();
        let text = json(&written);
        assert_eq!(text.contains(r#""lengths":[5,5,5,4,5]"#), balance > 0);
        let read = from(&text);
        assert_eq!(print(&read.program), print(&written.program));
        // Other lengths by hand, and back again.
        let lengths = if slices == 4 { "[9,8,6,1]" } else { "[8,7,5,2,2]" };
        let entry = format!(r#""lengths":{lengths}"#);
        let mut file: ScheduleFile = serde_json::from_str(&text).unwrap();
        file.lengths = serde_json::from_str(lengths).unwrap();
        let changed = from(&serde_json::to_string(&file).unwrap());
        assert_eq!(Some(&changed.plan.lengths), file.lengths.as_ref());
        assert!(json(&changed).contains(&entry));
        assert_eq!(print(&from(&json(&changed)).program), print(&changed.program));
    }
}

/// A file holds the order of one replica, and all replicas run it, within the memory of each.
#[test]
fn replicas_share_an_order() {
    let Resolution { spec, origins, .. } = resolve("examples/reference/tiny_b.pipe");
    let replicated = |schedule| {
        let mut spec = replan(&spec, 2, schedule, Cut::Balanced);
        spec.pipeline.replicas = 2;
        spec.cluster.nodes.iter_mut().for_each(|node| node.devices = 4);
        spec
    };
    let adapted = |in_flight, slices| Schedule::Svpp {
        virtual_stages: 1,
        slices,
        in_flight,
        bias: 100,
        weight_grads: WeightGrads::Split,
    };
    let most = |spec: &Spec| {
        let arenas = compile(spec, &origins).unwrap_or_else(|error| panic!("{error}")).arenas;
        arenas.values().map(|arena| arena.end).max().unwrap()
    };
    let fastest = most(&replicated(adapted(InFlight::Max, 4)));
    let mut scarce = replicated(adapted(InFlight::Auto, 4));
    let memory = Bytes(fastest.0 * 97 / 100);
    scarce.cluster.nodes.iter_mut().for_each(|node| node.device.memory = memory);
    assert!(most(&scarce) <= memory);

    let written = compile(&scarce, &origins).unwrap();
    let json = show::schedule_json(&written.replica, &written.order, &written.plan.lengths);
    let given = given::read("order.json", &json).unwrap();
    let mut spec = replicated(given.schedule());
    spec.cluster = scarce.cluster;
    spec.pipeline.given = Some(given);
    assert_eq!(print(&compile(&spec, &origins).unwrap().program), print(&written.program));
}

/// What a schedule is made for knows the activations of its program. An input that is received ahead of its pass is not
/// counted, and what B frees is counted as if all units freed as small a part.
#[test]
fn problems_know_the_activations_of_programs() {
    let Resolution { spec, origins, .. } = resolve("examples/reference/tiny_b.pipe");
    for schedule in kinds() {
        let spec = replan(&spec, 2, schedule, Cut::Balanced);
        let compiled = compile(&spec, &origins).unwrap();
        let peaks = peaks(&compiled.problem, &compiled.schedule);
        for ((device, &peak), arena) in peaks.iter().zip(compiled.arenas.values()) {
            let alive = arena.least.get(&Category::Activations).copied().unwrap_or_default().0;
            println!("{schedule:?} {device}: {peak} for {alive}, {:.3}", peak as f64 / alive as f64);
            let ratio = peak as f64 / alive as f64;
            assert!((0.95..=1.25).contains(&ratio), "{schedule:?} {device}: {peak} for {alive}");
        }
    }
}

/// On devices with little memory 1F1B is refused with a way out, and the way out trains to the same losses.
#[test]
fn slices_fit_where_whole_sequences_do_not() {
    let Resolution { spec, origins, .. } = resolve("examples/reference/tiny_b.pipe");
    let whole = replan(&spec, 4, Schedule::OneFOneB, Cut::Balanced);
    let needed = |spec: &Spec| {
        let arenas = compile(spec, &origins).unwrap().arenas;
        arenas.values().map(|arena| arena.end).max().unwrap()
    };
    let fastest = svpp(1, 4, WeightGrads::Fused);
    let (most, sliced) = (needed(&whole), needed(&replan(&spec, 4, fastest, Cut::Balanced)));
    assert!(sliced < most, "{sliced} {most}");
    let alone = losses(&whole, &origins, Kind::Cpu, 3);
    let with = |memory: Bytes, schedule| {
        let mut spec = replan(&spec, 4, schedule, Cut::Balanced);
        spec.cluster.nodes.iter_mut().for_each(|node| node.device.memory = memory);
        spec
    };
    let refused = |memory| {
        let error = compile(&with(memory, Schedule::OneFOneB), &origins).unwrap_err();
        let Error::Diagnostics(diagnostics) = error else { panic!("{error}") };
        assert_eq!(diagnostics[0].code, Code::OutOfMemory);
        diagnostics[0].help.clone().unwrap_or_default()
    };
    let auto = |slices, weight_grads| Schedule::Svpp {
        virtual_stages: 1,
        slices,
        in_flight: InFlight::Auto,
        bias: 100,
        weight_grads,
    };
    assert_eq!(refused(sliced), "`recompute: auto` or `schedule: svpp { slices: 4 }` would fit");
    let scarce = Bytes(sliced.0 * 97 / 100);
    assert_eq!(refused(scarce), "`recompute: auto` or `schedule: svpp { slices: 8 }` would fit");
    assert_eq!(refused(Bytes(sliced.0 / 2)).find("svpp"), None);
    let searched = |memory| Schedule::Auto { virtual_stages: 1, slices: 4, memory, effort: 0 };
    for (memory, limit, schedule) in [
        (sliced, sliced, fastest),
        (sliced, sliced, auto(4, WeightGrads::Fused)),
        (scarce, scarce, auto(4, WeightGrads::Fused)),
        (scarce, scarce, auto(4, WeightGrads::Split)),
        (scarce, scarce, searched(None)),
        (most, scarce, searched(Some(MemoryLimit::Device(scarce)))),
    ] {
        let spec = with(memory, schedule);
        let compiled = compile(&spec, &origins).unwrap_or_else(|error| panic!("{schedule:?}: {error}"));
        assert!(compiled.arenas.values().all(|arena| arena.end <= limit), "{schedule:?}");
        let apart = distance(&losses(&spec, &origins, Kind::Cpu, 3), &alone);
        assert!(apart <= 1e-6, "{schedule:?}: {apart:e}");
    }
}
