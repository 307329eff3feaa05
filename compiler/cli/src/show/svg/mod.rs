//! The timeline as one SVG file without script: devices down, time to the right.
//!
//! A device has a lane for its compute queue, one for host compute if it has any, a thin one for every kind of transfer
//! that takes time, and live bytes by category below. Forward passes are blue, backward passes green, weight gradients
//! orange, recomputation hatched in purple, work of the step grey; later chunks of a device are darker. The number in a
//! box is the micro-batch, with slices also the slice; the full name and times are a tooltip.

mod memory;
mod style;

use super::Named;
use super::axis::{label, percent, ticks};
use super::scene::{Kind, Lane, Mark, Row, lanes, makespan, rows, title};
use pipec_program::memory::{ArenaUse, memory as arenas};
use pipec_program::simulate::{DeviceUse, bubble, device_use};
use pipec_program::{Bytes, Category, DeviceId, IdVec, Nanos, Pass, Program, QueueKind, Unit};
use std::collections::BTreeSet;
use std::fmt::Write;
use style::{fill, ink};

/// Width of the time axis, in pixels.
const PLOT: f64 = 1160.0;
/// Space for the share of idle time and the peak, right of the lanes.
const RIGHT: f64 = 104.0;
const COMPUTE: f64 = 26.0;
const HOST: f64 = 16.0;
const WIRE: f64 = 7.0;
const MEMORY: f64 = 34.0;
/// Space between lanes of a device, and between devices.
const GAP: f64 = 2.0;
const ROW_GAP: f64 = 14.0;
/// Width of a character of the numbers in boxes.
const DIGIT: f64 = 6.0;

/// Draws timelines of one program; several lie over each other, their lanes one below the other for each device.
pub fn svg(program: &Program, timelines: &[Named<'_>]) -> String {
    Drawing::new(program, timelines).draw()
}

/// The kinds of transfer lanes, in the order in which they are drawn.
const WIRES: [(QueueKind, &str); 5] = [
    (QueueKind::Send, "send"),
    (QueueKind::Receive, "receive"),
    (QueueKind::Collective, "reduce"),
    (QueueKind::HostToDevice, "upload"),
    (QueueKind::DeviceToHost, "download"),
];

struct Drawing<'a> {
    program: &'a Program,
    timelines: &'a [Named<'a>],
    rows: Vec<Row>,
    uses: Vec<IdVec<DeviceId, DeviceUse>>,
    arenas: Vec<ArenaUse>,
    makespan: Nanos,
    /// Where the time axis starts.
    left: f64,
    kinds: BTreeSet<Kind>,
    categories: BTreeSet<Category>,
    body: String,
    y: f64,
}

impl<'a> Drawing<'a> {
    fn new(program: &'a Program, timelines: &'a [Named<'a>]) -> Self {
        let rows = rows(program);
        let names = rows.iter().map(|row| row.name().len()).max().unwrap_or(0);
        Self {
            program,
            timelines,
            left: 24.0 + 7.2 * names as f64 + 52.0,
            makespan: makespan(timelines),
            uses: timelines.iter().map(|named| device_use(program, named.timeline)).collect(),
            arenas: timelines.first().map(|named| arenas(program, named.timeline)).unwrap_or_default(),
            rows,
            kinds: BTreeSet::new(),
            categories: BTreeSet::new(),
            body: String::new(),
            y: 0.0,
        }
    }

    fn x(&self, time: Nanos) -> f64 {
        self.left + PLOT * time.0 as f64 / self.makespan.0.max(1) as f64
    }

    fn draw(mut self) -> String {
        self.y = 34.0;
        let heading = title(self.program);
        self.text(16.0, "title", &heading);
        for (index, named) in self.timelines.iter().enumerate() {
            self.y += 18.0;
            let caption = format!(
                "{}: makespan {}, bubble {}",
                named.name,
                named.timeline.makespan(),
                percent(bubble(&self.uses[index]))
            );
            self.text(16.0, "caption", &caption);
        }
        self.y += 34.0;
        let top = self.y;
        let rows = std::mem::take(&mut self.rows);
        let scale = self.arenas.iter().map(|arena| arena.size).max().unwrap_or_default();
        for row in &rows {
            self.device(row, scale);
        }
        let bottom = self.y - ROW_GAP + 4.0;
        let axis = self.axis(top, bottom);
        self.y = bottom + 26.0;
        let chunks = rows.iter().map(|row| row.stages.len()).max().unwrap_or(1);
        self.legend(chunks);
        let (width, height) = (self.left + PLOT + RIGHT, self.y + 16.0);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
             font-family=\"Inter, 'Helvetica Neue', Helvetica, Arial, sans-serif\">\n<title>{}</title>\n{}{}{}</svg>\n",
            escape(&heading),
            style::sheet(width, height),
            axis,
            self.body,
            width = number(width),
            height = number(height),
        )
    }

    fn text(&mut self, x: f64, class: &str, text: &str) {
        let (x, y) = (number(x), number(self.y));
        _ = writeln!(self.body, "<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{}</text>", escape(text));
    }

    /// Tick lines over all rows and their labels above.
    fn axis(&self, top: f64, bottom: f64) -> String {
        let mut axis = String::new();
        for tick in ticks(self.makespan, 12) {
            let x = number(self.x(tick));
            _ = writeln!(
                axis,
                "<path class=\"tick\" d=\"M{x} {}V{}\"/><text class=\"time\" x=\"{x}\" y=\"{}\">{}</text>",
                number(top - 6.0),
                number(bottom),
                number(top - 11.0),
                if tick == Nanos(0) { "0".to_owned() } else { label(tick) }
            );
        }
        axis
    }

    fn device(&mut self, row: &Row, scale: Bytes) {
        let start = self.y;
        let several = self.timelines.len() > 1;
        for (index, named) in self.timelines.iter().enumerate() {
            let lanes = lanes(self.program, named.timeline, row.device);
            let idle = self.uses[index][row.device].bubble;
            let compute = merged(&lanes, QueueKind::Compute);
            if several {
                self.lane_name(named.name, COMPUTE);
            }
            self.lane(&compute, row, COMPUTE, true);
            self.note(&percent(idle), COMPUTE, "share");
            self.y += COMPUTE + GAP;
            let host = merged(&lanes, QueueKind::HostCompute);
            if !host.is_empty() {
                self.lane_name("host", HOST);
                self.lane(&host, row, HOST, true);
                self.y += HOST + GAP;
            }
            for (kind, name) in WIRES {
                let marks = merged(&lanes, kind);
                if marks.iter().any(|mark| mark.event.end > mark.event.start) {
                    self.lane_name(name, WIRE);
                    self.lane(&marks, row, WIRE, false);
                    self.y += WIRE + GAP;
                }
            }
            if several {
                self.y += GAP;
            }
        }
        let here: Vec<ArenaUse> =
            self.arenas.iter().filter(|arena| arena.device == row.device).cloned().collect();
        for arena in here {
            self.memory(&arena, scale);
        }
        let after = std::mem::replace(&mut self.y, start + 17.0);
        let mut name = row.name();
        let stages = name.split_off(row.device.to_string().len());
        let (x, y) = (number(16.0), number(self.y));
        _ = writeln!(
            self.body,
            "<text class=\"device\" x=\"{x}\" y=\"{y}\">{name}<tspan class=\"stages\" dx=\"5\">{}</tspan></text>",
            stages.trim_start()
        );
        self.y = after + ROW_GAP - GAP;
    }

    fn lane_name(&mut self, name: &str, height: f64) {
        let (x, y) = (number(self.left - 6.0), number(self.y + height / 2.0 + 2.8));
        _ = writeln!(self.body, "<text class=\"lane\" x=\"{x}\" y=\"{y}\">{}</text>", escape(name));
    }

    fn note(&mut self, text: &str, height: f64, class: &str) {
        let (x, y) = (number(self.left + PLOT + 8.0), number(self.y + height / 2.0 + 3.5));
        _ = writeln!(self.body, "<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{text}</text>");
    }

    /// The boxes of a lane over the grey of idle time.
    fn lane(&mut self, marks: &[Mark<'_>], row: &Row, height: f64, numbered: bool) {
        _ = writeln!(
            self.body,
            "<rect class=\"idle\" x=\"{}\" y=\"{}\" width=\"{PLOT}\" height=\"{height}\" rx=\"2\"/>",
            number(self.left),
            number(self.y),
        );
        let sliced = self.program.batch.slices > 1;
        for mark in marks.iter().filter(|mark| mark.event.end > mark.event.start) {
            let (x, end) = (self.x(mark.event.start), self.x(mark.event.end));
            if end - x >= 1.0 {
                self.kinds.insert(mark.kind);
            }
            // A hair between boxes, as long as that leaves something of them.
            let width = if end - x > 2.0 { end - x - 0.7 } else { (end - x).max(0.4) };
            let chunk = mark.passes().next().map_or(0, |(_, unit)| row.chunk(unit.stage));
            let tooltip = format!(
                "{}\n{} to {} ({})",
                mark.event.name(self.program),
                mark.event.start,
                mark.event.end,
                mark.event.duration()
            );
            _ = write!(
                self.body,
                "<rect fill=\"{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{height}\"{}><title>{}</title></rect>",
                fill(mark, chunk),
                number(x),
                number(self.y),
                number(width),
                if width > 4.0 && numbered { " rx=\"2\"" } else { "" },
                escape(&tooltip)
            );
            let number_of = |(_, unit): (Pass, Unit)| match sliced {
                true => format!("{}.{}", unit.micro_batch.0, unit.slice.0),
                false => unit.micro_batch.0.to_string(),
            };
            let numbers: Vec<String> = mark.passes().map(number_of).collect();
            let text = if numbers.is_empty() { mark.kind.letter().to_owned() } else { numbers.join("+") };
            if numbered && width >= DIGIT * text.len() as f64 + 3.0 {
                _ = write!(
                    self.body,
                    "<text class=\"{}\" x=\"{}\" y=\"{}\">{text}</text>",
                    ink(mark, chunk),
                    number(x + width / 2.0),
                    number(self.y + height / 2.0 + 3.6)
                );
            }
            self.body.push('\n');
        }
    }

    /// Live bytes of an arena, stacked by category; the dashed line is what the arena takes.
    fn memory(&mut self, arena: &ArenaUse, scale: Bytes) {
        let space = memory::Frame {
            left: self.left,
            right: self.left + PLOT,
            top: self.y,
            bottom: self.y + MEMORY,
            makespan: self.makespan,
            scale,
        };
        self.lane_name(memory::name(arena.space), MEMORY);
        self.categories.extend(memory::draw(&mut self.body, self.program, arena, &space));
        self.note(&format!("peak {}", arena.peak.live.total()), MEMORY, "share");
        self.y += MEMORY + GAP;
    }

    /// What the colours mean, of all that occurs.
    fn legend(&mut self, chunks: usize) {
        // What has one name or one colour has one entry.
        let mut entries: Vec<(Vec<&str>, Vec<String>)> = Vec::new();
        for &kind in &self.kinds {
            let mark = Mark { event: style::NOWHERE, kind, work: None };
            let shades = match kind {
                Kind::Pass(_) | Kind::Pair(_) => {
                    (0..chunks.min(style::SHADES)).map(|chunk| fill(&mark, chunk)).collect()
                }
                Kind::Step(_) | Kind::Fill | Kind::Copy | Kind::Reduce => vec![fill(&mark, 0)],
                // Messages have the colours of the passes that made them.
                Kind::Send | Kind::Recv => continue,
            };
            let name = kind.meaning();
            match entries.iter_mut().find(|(names, known)| names.contains(&name) || *known == shades) {
                Some((names, _)) if names.contains(&name) => {}
                Some((names, _)) => names.push(name),
                None => entries.push((vec![name], shades)),
            }
        }
        let mut entries: Vec<(String, Vec<String>)> =
            entries.into_iter().map(|(names, shades)| (names.join(", "), shades)).collect();
        entries.push(("idle".to_owned(), vec![style::IDLE.to_owned()]));
        self.swatches(&entries);
        let categories = Category::ALL.iter().filter(|category| self.categories.contains(category));
        let entries: Vec<_> = categories
            .map(|category| (category.name().to_owned(), vec![style::category(*category).to_owned()]))
            .collect();
        if !entries.is_empty() {
            self.y += 20.0;
            self.swatches(&entries);
        }
    }

    fn swatches(&mut self, entries: &[(String, Vec<String>)]) {
        let mut x = self.left;
        for (name, shades) in entries {
            for shade in shades {
                _ = write!(
                    self.body,
                    "<rect fill=\"{shade}\" x=\"{}\" y=\"{}\" width=\"12\" height=\"12\" rx=\"2\"/>",
                    number(x),
                    number(self.y - 10.0)
                );
                x += 14.0;
            }
            x += 3.0;
            _ = writeln!(
                self.body,
                "<text class=\"legend\" x=\"{}\" y=\"{}\">{name}</text>",
                number(x),
                number(self.y)
            );
            x += 6.2 * name.len() as f64 + 18.0;
        }
    }
}

/// The marks of all queues of a kind, by time.
fn merged<'a>(lanes: &[Lane<'a>], kind: QueueKind) -> Vec<Mark<'a>> {
    let mut marks: Vec<Mark<'a>> =
        lanes.iter().filter(|lane| lane.kind == kind).flat_map(|lane| lane.marks.iter().copied()).collect();
    marks.sort_by_key(|mark| mark.event.start);
    marks
}

/// A coordinate with at most two decimals.
fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
