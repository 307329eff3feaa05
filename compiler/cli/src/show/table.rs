//! Tables: the figures of a step, of every device, arena and link, and the differences between two timelines.

use super::Named;
use super::axis::percent;
use super::scene::title;
use pipec_program::cost::Cost;
use pipec_program::memory::memory;
use pipec_program::simulate::{bubble, critical_path, device_use, instruction_name, link_use};
use pipec_program::{
    Bytes, BytesPerSecond, Category, Costs, Instruction, Nanos, Position, Program, QueueId, Space, Timeline,
};
use std::collections::BTreeMap;

/// The figures of a step as text: makespan, bubble and tokens per second; how each device and link was used; memory by
/// arena and category with the instruction at the peak; the critical path.
pub fn tables(program: &Program, timeline: &Timeline) -> String {
    let uses = device_use(program, timeline);
    let makespan = timeline.makespan();
    let batch = program.batch;
    let tokens = u64::from(batch.micro_batches) * u64::from(batch.sequences) * u64::from(batch.tokens);
    let mut text = title(program);
    text += "\n\n";
    let mut step = Table::new(&[]);
    step.row([String::from("makespan"), makespan.to_string()]);
    step.row([String::from("bubble"), percent(bubble(&uses))]);
    if let Some(rate) = (u128::from(tokens) * 1_000_000_000).checked_div(u128::from(makespan.0)) {
        step.row([String::from("tokens/s"), thousands(rate)]);
    }
    let Cost { flops, traffic } = work(program);
    step.row([String::from("operations"), flops.to_string()]);
    step.row([String::from("traffic"), traffic.to_string()]);
    text += &step.text();

    let mut devices = Table::new(&["device", "busy", "idle", "bubble", "host busy"]);
    for ((id, each), device) in uses.iter().zip(program.devices.values()) {
        devices.row([
            format!("{id} {}", device.name),
            each.busy.to_string(),
            each.idle.to_string(),
            percent(each.bubble),
            if each.host_busy == Nanos::ZERO { "-".to_owned() } else { each.host_busy.to_string() },
        ]);
    }
    text += &format!("\n{}", devices.text());
    text += &format!("\n{}", arenas(program, timeline));

    let mut links = Table::new(&["link", "busy", "share", "bytes", "transfers", "rate"]);
    for ((id, each), link) in link_use(program, timeline).iter().zip(program.links.values()) {
        let rate = (u128::from(each.bytes.0) * 1_000_000_000).checked_div(u128::from(each.busy.0));
        links.row([
            format!("{id} {}", link.name),
            each.busy.to_string(),
            percent(each.share),
            each.bytes.to_string(),
            each.transfers.to_string(),
            rate.map_or("-".to_owned(), |rate| {
                BytesPerSecond(u64::try_from(rate).unwrap_or(u64::MAX)).to_string()
            }),
        ]);
    }
    if !program.links.is_empty() {
        text += &format!("\n{}", links.text());
    }

    let mut path = Table::new(&["critical path", "time", "share"]);
    for (activity, time) in critical_path(program, timeline).times {
        path.row([activity.to_string(), time.to_string(), percent(ratio(time.0, makespan.0).unwrap_or(0.0))]);
    }
    text += &format!("\n{}", path.text());
    text
}

/// The operations of all calls of a step, and the bytes that they read and write.
fn work(program: &Program) -> Cost {
    let costs = Costs::roofline(program);
    let instructions = program.queues.values().flat_map(|queue| &queue.instructions);
    let calls = instructions.filter_map(|instruction| match instruction {
        Instruction::Run { function, .. } => Some(costs.function(*function)),
        Instruction::Send { .. }
        | Instruction::Recv { .. }
        | Instruction::Copy { .. }
        | Instruction::Fill { .. }
        | Instruction::Reduce { .. }
        | Instruction::Wait { .. } => None,
    });
    calls.fold(Cost::default(), |sum, cost| sum + cost)
}

/// Memory by arena: what it takes, what lives at the peak by those categories that live anywhere then, and the instruction at
/// the peak.
fn arenas(program: &Program, timeline: &Timeline) -> String {
    let arenas = memory(program, timeline);
    let lives = |category: &Category| arenas.iter().any(|arena| arena.peak.live.get(*category) > Bytes::ZERO);
    let categories: Vec<Category> = Category::ALL.into_iter().filter(lives).collect();
    let mut header = vec!["memory", "capacity", "arena", "peak live", "packing loss"];
    header.extend(categories.iter().map(|category| category.name()));
    header.push("peak at");
    let mut table = Table::new(&header);
    table.left.push(header.len() - 1);
    for arena in &arenas {
        let space = match arena.space {
            Space::Device => "device",
            Space::Host => "host",
        };
        let mut row = vec![
            format!("{} {space}", arena.device),
            arena.capacity.to_string(),
            arena.size.to_string(),
            arena.peak.live.total().to_string(),
            percent(arena.loss_share()),
        ];
        for &category in &categories {
            let bytes = arena.peak.live.get(category);
            row.push(if bytes == Bytes::ZERO { "-".to_owned() } else { bytes.to_string() });
        }
        row.push(arena.peak.instruction.map_or("-".to_owned(), |place| name(program, place)));
        table.row(row);
    }
    table.text()
}

/// What two timelines of one program differ in: makespan, busy time of each device, and the mean time of a call of each
/// function on each kind of device.
pub fn differences(program: &Program, first: Named<'_>, second: Named<'_>) -> String {
    let header = |what| [what, "calls", first.name, second.name, "ratio"];
    let mut step = Table::new(&["step", first.name, second.name, "ratio"]);
    let mut compare = |what: String, a: Nanos, b: Nanos| {
        step.row([what, a.to_string(), b.to_string(), quotient(b.0, a.0)]);
    };
    compare("makespan".to_owned(), first.timeline.makespan(), second.timeline.makespan());
    let (a, b) = (device_use(program, first.timeline), device_use(program, second.timeline));
    for ((id, a), b) in a.iter().zip(b.values()) {
        compare(format!("{id} busy"), a.busy, b.busy);
    }
    let mut functions = Table::new(&header("function"));
    let (a, b) = (means(program, first.timeline), means(program, second.timeline));
    for (name, (calls, mean)) in &a {
        let other = b.get(name).map(|(_, mean)| *mean);
        functions.row([
            name.clone(),
            calls.to_string(),
            mean.to_string(),
            other.map_or("-".to_owned(), |mean| mean.to_string()),
            other.map_or("-".to_owned(), |other| quotient(other.0, mean.0)),
        ]);
    }
    for (name, (calls, mean)) in b.iter().filter(|(name, _)| !a.contains_key(*name)) {
        functions.row([name.clone(), calls.to_string(), "-".to_owned(), mean.to_string(), "-".to_owned()]);
    }
    format!("{}\n\n{}\n{}", title(program), step.text(), functions.text())
}

/// Calls and mean time of everything that is called, sent, copied or reduced, by name; functions of devices of different
/// names apart.
fn means(program: &Program, timeline: &Timeline) -> BTreeMap<String, (u64, Nanos)> {
    let mut sums: BTreeMap<String, (u64, Nanos)> = BTreeMap::new();
    for event in timeline.events() {
        let queue = &program.queues[event.queue];
        let name = match &queue.instructions[event.position as usize] {
            Instruction::Run { function, .. } => program.functions[*function].name.clone(),
            Instruction::Send { .. } => "(send)".to_owned(),
            Instruction::Recv { .. } => "(recv)".to_owned(),
            Instruction::Copy { .. } => "(copy)".to_owned(),
            Instruction::Fill { .. } => "(fill)".to_owned(),
            Instruction::Reduce { .. } => "(reduce)".to_owned(),
            Instruction::Wait { .. } => continue,
        };
        let device = &program.devices[queue.device].name;
        let sum = sums.entry(format!("{device} {name}")).or_default();
        sum.0 += 1;
        sum.1 += event.duration();
    }
    sums.into_iter().map(|(name, (calls, time))| (name, (calls, Nanos(time.0 / calls)))).collect()
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

fn quotient(part: u64, whole: u64) -> String {
    ratio(part, whole).map_or("-".to_owned(), |ratio| format!("{ratio:.3}"))
}

fn name(program: &Program, (queue, position): (QueueId, Position)) -> String {
    let instruction = program.queues.get(queue).and_then(|queue| queue.instructions.get(position as usize));
    instruction.map(instruction_name).unwrap_or_default()
}

/// Digits in groups of three: `12 345`.
fn thousands(number: u128) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// Columns of text: the first to the left, the others to the right unless they are in `left`.
pub(crate) struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
    pub(crate) left: Vec<usize>,
}

impl Table {
    pub(crate) fn new(header: &[&str]) -> Self {
        Self { header: header.iter().map(|&name| name.to_owned()).collect(), rows: Vec::new(), left: vec![0] }
    }

    pub(crate) fn row(&mut self, cells: impl Into<Vec<String>>) {
        self.rows.push(cells.into());
    }

    /// The text, empty where there is no row.
    pub(crate) fn text_of_rows(&self) -> String {
        if self.rows.is_empty() { String::new() } else { self.text() }
    }

    pub(crate) fn text(&self) -> String {
        let lines: Vec<&Vec<String>> =
            Some(&self.header).filter(|header| !header.is_empty()).into_iter().chain(&self.rows).collect();
        let columns = lines.iter().map(|line| line.len()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                lines
                    .iter()
                    .filter_map(|line| line.get(column))
                    .map(|cell| cell.chars().count())
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        let mut text = String::new();
        for line in lines {
            let cells = line.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
                if self.left.contains(&column) {
                    format!("{cell:<width$}")
                } else {
                    format!("{cell:>width$}")
                }
            });
            text += cells.collect::<Vec<_>>().join("  ").trim_end();
            text.push('\n');
        }
        text
    }
}
