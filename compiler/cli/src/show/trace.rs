//! Traces in the JSON form of Chrome, which Perfetto and `chrome://tracing` open.
//!
//! A process per device and a thread per queue, both named and in order; a complete event per instruction; an arrow from
//! every send to its receive; counters of live bytes by category. Times are microseconds.

use super::Named;
use super::scene::{Kind, lanes, rows};
use pipec_program::id::Id;
use pipec_program::memory::memory;
use pipec_program::simulate::messages;
use pipec_program::{Category, Event, Instruction, Nanos, Program, Space, View, Work};
use serde::Serialize;
use std::collections::BTreeMap;

/// An event of the trace format, in the order in which its fields are written.
#[derive(Default, Serialize)]
struct TraceEvent {
    ph: &'static str,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    /// Binds the end of an arrow to the event that encloses it.
    #[serde(skip_serializing_if = "Option::is_none")]
    bp: Option<&'static str>,
    pid: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    tid: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    args: BTreeMap<&'static str, Detail>,
}

/// What a viewer shows of an event.
#[derive(Serialize)]
#[serde(untagged)]
enum Detail {
    Number(u64),
    Text(String),
}

/// The trace of timelines of one program; every further one has processes of its own, below the first.
pub fn trace(program: &Program, timelines: &[Named<'_>]) -> String {
    let mut events = Vec::new();
    let mut arrows = 0;
    for (index, named) in timelines.iter().enumerate() {
        // Devices count from 1: viewers give process 0 a meaning of its own.
        let process = |device: pipec_program::DeviceId| 1 + index * program.devices.len() + device.index();
        for ((id, device), row) in program.devices.iter().zip(rows(program)) {
            let several = if timelines.len() > 1 { format!(" ({})", named.name) } else { String::new() };
            let stages = row.stages.iter().map(|stage| format!(" {stage}")).collect::<String>();
            let name = format!("{id} {}{stages}{several}", device.name);
            events.push(metadata("process_name", process(id), None, "name", Detail::Text(name)));
            let order = Detail::Number(process(id) as u64);
            events.push(metadata("process_sort_index", process(id), None, "sort_index", order));
        }
        for (id, queue) in program.queues.iter() {
            let (process, thread) = (process(queue.device), Some(id.index()));
            let name = Detail::Text(format!("{} {id}", queue.kind.name()));
            events.push(metadata("thread_name", process, thread, "name", name));
            let order = Detail::Number(id.index() as u64);
            events.push(metadata("thread_sort_index", process, thread, "sort_index", order));
        }
        for id in program.devices.ids() {
            for mark in lanes(program, named.timeline, id).into_iter().flat_map(|lane| lane.marks) {
                events.push(complete(program, process(id), mark.event, mark.kind));
            }
        }
        for message in messages(program) {
            let side = |(queue, position)| named.timeline.event(queue, position);
            let (Some(send), Some(recv)) = (side(message.send), side(message.recv)) else { continue };
            let end = |ph, event: Event, time: Nanos| TraceEvent {
                ph,
                name: message.channel.to_string(),
                cat: Some("message"),
                id: Some(arrows),
                bp: (ph == "f").then_some("e"),
                pid: process(program.queues[event.queue].device),
                tid: Some(event.queue.index()),
                ts: Some(micros(time)),
                ..TraceEvent::default()
            };
            events.push(end("s", send, send.start));
            events.push(end("f", recv, recv.start.max(send.start)));
            arrows += 1;
        }
        for arena in memory(program, named.timeline) {
            let name = match arena.space {
                Space::Device => "device memory",
                Space::Host => "host memory",
            };
            for sample in &arena.curve {
                let live =
                    |category: Category| (category.name(), Detail::Number(sample.live.get(category).0));
                events.push(TraceEvent {
                    ph: "C",
                    name: name.to_owned(),
                    pid: process(arena.device),
                    ts: Some(micros(sample.time)),
                    args: Category::ALL.into_iter().map(live).collect(),
                    ..TraceEvent::default()
                });
            }
        }
    }
    // Strings and numbers always serialise.
    let lines: Vec<String> =
        events.iter().map(|event| serde_json::to_string(event).unwrap_or_default()).collect();
    format!("{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{}\n]}}\n", lines.join(",\n"))
}

fn metadata(name: &str, pid: usize, tid: Option<usize>, key: &'static str, value: Detail) -> TraceEvent {
    let args = BTreeMap::from([(key, value)]);
    TraceEvent { ph: "M", name: name.to_owned(), pid, tid, args, ..TraceEvent::default() }
}

fn complete(program: &Program, process: usize, event: Event, kind: Kind) -> TraceEvent {
    let queue = program.queues.get(event.queue);
    let instruction = queue.and_then(|queue| queue.instructions.get(event.position as usize));
    let mut args = instruction.map(|instruction| details(program, instruction)).unwrap_or_default();
    args.insert("position", Detail::Number(event.position.into()));
    TraceEvent {
        ph: "X",
        name: event.name(program),
        cat: Some(kind.meaning()),
        pid: process,
        tid: Some(event.queue.index()),
        ts: Some(micros(event.start)),
        dur: Some(micros(event.duration())),
        args,
        ..TraceEvent::default()
    }
}

fn details(program: &Program, instruction: &Instruction) -> BTreeMap<&'static str, Detail> {
    let size = |view: &View| ("bytes", Detail::Number(view.bytes.0));
    let (work, mut args) = match instruction {
        Instruction::Run { function, work, .. } => {
            let name = program.functions[*function].name.clone();
            (Some(work), BTreeMap::from([("function", Detail::Text(name))]))
        }
        Instruction::Send { channel, view, work } | Instruction::Recv { channel, view, work } => {
            (Some(work), BTreeMap::from([("channel", Detail::Text(channel.to_string())), size(view)]))
        }
        Instruction::Reduce { group, view, work } => {
            (Some(work), BTreeMap::from([("group", Detail::Text(group.to_string())), size(view)]))
        }
        Instruction::Copy { from: view, .. } | Instruction::Fill { view } => {
            (None, BTreeMap::from([size(view)]))
        }
        Instruction::Wait { .. } => (None, BTreeMap::new()),
    };
    match work {
        Some(Work::Pass(_, unit)) => {
            args.insert("stage", Detail::Number(unit.stage.0.into()));
            args.insert("micro_batch", Detail::Number(unit.micro_batch.0.into()));
            args.insert("slice", Detail::Number(unit.slice.0.into()));
        }
        Some(Work::Pair(pair)) => {
            args.insert("forward", Detail::Text(pair.forward.to_string()));
            args.insert("backward", Detail::Text(pair.backward.to_string()));
        }
        Some(Work::Stage(_, stage)) => {
            args.insert("stage", Detail::Number(stage.0.into()));
        }
        Some(Work::Step(_)) | None => {}
    }
    args
}

fn micros(time: Nanos) -> f64 {
    time.0 as f64 / 1000.0
}
