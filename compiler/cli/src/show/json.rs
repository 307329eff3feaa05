//! The timeline as JSON, documented in `docs/timeline.md`.

use pipec_program::memory::{ByCategory, memory};
use pipec_program::simulate::{TimelineError, bubble, device_use, link_use};
use pipec_program::{Bytes, Category, Event, Nanos, Program, QueueId, Space, Timeline};
use serde::{Deserialize, Serialize};
use serde_json::ser::Formatter;
use std::collections::BTreeMap;
use std::{fmt, io};

#[derive(Serialize, Deserialize)]
struct TimelineView {
    program: String,
    inputs: String,
    makespan_ns: u64,
    bubble: f64,
    devices: Vec<DeviceView>,
    links: Vec<LinkView>,
    queues: Vec<QueueView>,
}

#[derive(Serialize, Deserialize)]
struct DeviceView {
    id: String,
    name: String,
    busy_ns: u64,
    host_busy_ns: u64,
    bubble: f64,
    memory: Vec<ArenaView>,
}

#[derive(Serialize, Deserialize)]
struct ArenaView {
    space: String,
    capacity: u64,
    size: u64,
    peak_live: u64,
    peak_at_ns: u64,
    peak_instruction: Option<PlaceView>,
    by_category: BTreeMap<String, u64>,
    /// Moments and live bytes at them.
    live: Vec<(u64, u64)>,
}

#[derive(Serialize, Deserialize)]
struct PlaceView {
    queue: u32,
    position: u32,
}

#[derive(Serialize, Deserialize)]
struct LinkView {
    id: String,
    name: String,
    busy_ns: u64,
    bytes: u64,
    transfers: u64,
}

#[derive(Serialize, Deserialize)]
struct QueueView {
    id: u32,
    device: String,
    kind: String,
    events: Vec<EventView>,
}

#[derive(Serialize, Deserialize)]
struct EventView {
    position: u32,
    name: String,
    start_ns: u64,
    end_ns: u64,
}

/// A timeline with its figures and memory as JSON, an event a line.
pub fn json(program: &Program, timeline: &Timeline) -> String {
    let uses = device_use(program, timeline);
    let mut arenas = memory(program, timeline).into_iter().peekable();
    let mut devices = Vec::new();
    for ((id, device), each) in program.devices.iter().zip(uses.values()) {
        let mut views = Vec::new();
        while let Some(arena) = arenas.next_if(|arena| arena.device == id) {
            let space = match arena.space {
                Space::Device => "device",
                Space::Host => "host",
            };
            views.push(ArenaView {
                space: space.to_owned(),
                capacity: arena.capacity.0,
                size: arena.size.0,
                peak_live: arena.peak.live.total().0,
                peak_at_ns: arena.peak.time.0,
                peak_instruction: arena
                    .peak
                    .instruction
                    .map(|(queue, position)| PlaceView { queue: queue.0, position }),
                by_category: by_category(&arena.peak.live),
                live: arena.curve.iter().map(|sample| (sample.time.0, sample.live.total().0)).collect(),
            });
        }
        devices.push(DeviceView {
            id: id.to_string(),
            name: device.name.clone(),
            busy_ns: each.busy.0,
            host_busy_ns: each.host_busy.0,
            bubble: each.bubble,
            memory: views,
        });
    }
    let view = TimelineView {
        program: program.name.clone(),
        inputs: program.inputs.clone(),
        makespan_ns: timeline.makespan().0,
        bubble: bubble(&uses),
        devices,
        links: link_use(program, timeline)
            .iter()
            .zip(program.links.values())
            .map(|((id, each), link)| LinkView {
                id: id.to_string(),
                name: link.name.clone(),
                busy_ns: each.busy.0,
                bytes: each.bytes.0,
                transfers: each.transfers,
            })
            .collect(),
        queues: program
            .queues
            .iter()
            .map(|(id, queue)| QueueView {
                id: id.0,
                device: queue.device.to_string(),
                kind: queue.kind.name().to_owned(),
                events: timeline
                    .queue(id)
                    .iter()
                    .map(|event| EventView {
                        position: event.position,
                        name: event.name(program),
                        start_ns: event.start.0,
                        end_ns: event.end.0,
                    })
                    .collect(),
            })
            .collect(),
    };
    text(&view)
}

/// Objects and lists of this depth and below stand on one line: an event, an arena.
const LINE_DEPTH: usize = 5;

/// A value as JSON, indented down to the lines of events.
fn text(view: &TimelineView) -> String {
    let mut bytes = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, Lines::default());
    // A view of strings and numbers always serialises, and into memory always writes.
    _ = view.serialize(&mut serializer);
    bytes.push(b'\n');
    String::from_utf8(bytes).unwrap_or_default()
}

/// Indents by two blanks above [`LINE_DEPTH`] and keeps everything deeper on one line.
#[derive(Default)]
struct Lines {
    depth: usize,
    /// Nothing has been written since the last opening bracket.
    empty: bool,
}

impl Lines {
    fn open(&mut self, out: &mut (impl io::Write + ?Sized), bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.empty = true;
        out.write_all(bracket)
    }

    fn close(&mut self, out: &mut (impl io::Write + ?Sized), bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.depth + 1 < LINE_DEPTH && !self.empty {
            self.indent(out)?;
        }
        self.empty = false;
        out.write_all(bracket)
    }

    fn indent(&self, out: &mut (impl io::Write + ?Sized)) -> io::Result<()> {
        out.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| out.write_all(b"  "))
    }

    fn item(&mut self, out: &mut (impl io::Write + ?Sized), first: bool) -> io::Result<()> {
        self.empty = false;
        if !first {
            out.write_all(b",")?;
        }
        match (self.depth < LINE_DEPTH, first) {
            (true, _) => self.indent(out),
            (false, true) => Ok(()),
            (false, false) => out.write_all(b" "),
        }
    }
}

impl Formatter for Lines {
    fn begin_array<W: io::Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"[")
    }

    fn end_array<W: io::Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"]")
    }

    fn begin_array_value<W: io::Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.item(out, first)
    }

    fn begin_object<W: io::Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"{")
    }

    fn end_object<W: io::Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"}")
    }

    fn begin_object_key<W: io::Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.item(out, first)
    }

    fn begin_object_value<W: io::Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}

fn by_category(live: &ByCategory) -> BTreeMap<String, u64> {
    let bytes = Category::ALL.iter().map(|&category| (category, live.get(category)));
    let held = bytes.filter(|(_, bytes)| *bytes > Bytes::ZERO);
    held.map(|(category, bytes)| (category.name().to_owned(), bytes.0)).collect()
}

/// Reads the events of a JSON timeline back; its figures are derived anew.
///
/// # Errors
/// Text that is no JSON timeline, a timeline of another program, or events that the program does not have.
pub fn timeline_from_json(program: &Program, text: &str) -> Result<Timeline, JsonError> {
    let view: TimelineView = serde_json::from_str(text).map_err(JsonError::Syntax)?;
    if view.inputs != program.inputs {
        return Err(JsonError::OtherProgram);
    }
    let mut events = Vec::new();
    for queue in view.queues {
        for event in queue.events {
            let read = Event {
                queue: QueueId(queue.id),
                position: event.position,
                start: Nanos(event.start_ns),
                end: Nanos(event.end_ns),
            };
            if read.name(program) != event.name {
                return Err(JsonError::OtherProgram);
            }
            events.push(read);
        }
    }
    Timeline::measured(program, events).map_err(JsonError::Events)
}

/// Why a text is no timeline of a program.
#[derive(Debug)]
pub enum JsonError {
    /// It is no JSON, or not of this form.
    Syntax(serde_json::Error),
    /// It was made from other inputs, or its events have other names.
    OtherProgram,
    /// Its events are no timeline.
    Events(TimelineError),
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax(error) => write!(f, "no timeline: {error}"),
            Self::OtherProgram => f.write_str("the timeline belongs to another program"),
            Self::Events(error) => write!(f, "no timeline: {error}"),
        }
    }
}

impl std::error::Error for JsonError {}
