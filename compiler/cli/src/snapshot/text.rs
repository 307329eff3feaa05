//! A snapshot as text, and back: tables for people whose numbers are whole, so that reading gives what was printed.
//!
//! Shares of time are printed and not read: they follow from the times.

use super::{Arena, Order, PassName, Snapshot, Stage, arena_name, device};
use crate::show::{Table, percent};
use pipec_program::{Bytes, Category, DeviceId, Nanos, Space, StageId};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The heading of the grid of passes.
const GRID: &str = "schedule, a column for each unit of time";

/// The heading of the program.
const PROGRAM: &str = "program";

/// The text of a snapshot. It ends with a line end.
pub fn print(snapshot: &Snapshot) -> String {
    let mut text = format!(
        "{}\nmakespan {} ns, bubble {}\n\n",
        snapshot.title,
        grouped(snapshot.makespan.0),
        percent(snapshot.bubble(None))
    );
    let mut devices = Table::new(&["device", "busy ns", "bubble"]);
    for (&device, busy) in &snapshot.busy {
        devices.row([device.to_string(), grouped(busy.0), percent(snapshot.bubble(Some(device)))]);
    }
    text += &devices.text();
    if let Some(order) = &snapshot.schedule {
        let mut stages = Table::new(&["stage", "on", "parameters", "weights"]);
        stages.left.extend([1, 2]);
        for (stage, Stage { devices, parameters, weights }) in &order.stages {
            let devices: Vec<String> = devices.iter().map(DeviceId::to_string).collect();
            stages.row([stage.to_string(), devices.join(" "), parameters.clone(), grouped(*weights)]);
        }
        text += &format!("\n{}\n{GRID}\n{}", stages.text(), grid(order));
    }
    if let Some(memory) = &snapshot.memory {
        let mut header = vec!["memory, bytes", "arena", "peak live"];
        header.extend(Category::ALL.map(Category::name));
        header.push("peak at");
        let mut arenas = Table::new(&header);
        arenas.left.push(header.len() - 1);
        for (&key, Arena { size, live, peak }) in memory {
            let total: Bytes = live.iter().copied().sum();
            let mut row = vec![arena_name(key), grouped(size.0), grouped(total.0)];
            row.extend(live.iter().map(|bytes| grouped(bytes.0)));
            row.push(peak.clone());
            arenas.row(row);
        }
        text += &format!("\n{}", arenas.text());
    }
    if let Some(program) = &snapshot.program {
        text += &format!("\n{PROGRAM}\n{program}");
    }
    text
}

/// The passes of every device where they start; `-` goes on with a pass, `.` is idle.
fn grid(order: &Order) -> String {
    let rows: Vec<(String, Vec<String>)> = order
        .passes
        .iter()
        .map(|(device, passes)| {
            let mut row = Vec::new();
            for (start, pass) in passes {
                let start = usize::try_from(*start).unwrap_or(row.len());
                row.resize(start.max(row.len()), ".".to_owned());
                row.push(pass.to_string());
                row.extend((1..pass.width()).map(|_| "-".to_owned()));
            }
            (device.to_string(), row)
        })
        .collect();
    let width = rows.iter().flat_map(|(_, row)| row).map(String::len).max().unwrap_or(0);
    let margin = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, row) in rows {
        let cells: Vec<String> = row.iter().map(|cell| format!("{cell:<width$}")).collect();
        text += format!("{name:<margin$}  {}", cells.join(" ")).trim_end();
        text.push('\n');
    }
    text
}

/// A number with its digits in groups of three, as the language writes them: `12_345`.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('_');
        }
        text.push(digit);
    }
    text
}

/// Why a text is no snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextError {
    /// The line, from 1.
    pub line: usize,
    /// What would be right there.
    pub expected: &'static str,
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: expected {}", self.line, self.expected)
    }
}

impl std::error::Error for TextError {}

/// Reads the text of a snapshot.
///
/// # Errors
/// The first line that is not of the form of [`print()`].
pub fn parse(text: &str) -> Result<Snapshot, TextError> {
    let mut lines = Lines { rest: text, number: 0 };
    let title = lines.next().ok_or(lines.expected("a title"))?.to_owned();
    let makespan = lines
        .next()
        .and_then(|line| line.strip_prefix("makespan ")?.split_once(" ns"))
        .and_then(|(number, _)| ungrouped(number))
        .ok_or(lines.expected("`makespan NUMBER ns, ..`"))?;
    let mut snapshot = Snapshot {
        title,
        makespan: Nanos(makespan),
        busy: BTreeMap::new(),
        schedule: None,
        memory: None,
        program: None,
    };
    while let Some(line) = lines.next() {
        if line.is_empty() {
            continue;
        }
        if line.starts_with("device ") {
            snapshot.busy = lines.rows("a device, its busy time and its bubble", |cells| {
                let &[name, busy, _] = cells else { return None };
                Some((device(name)?, Nanos(ungrouped(busy)?)))
            })?;
        } else if line.starts_with("stage ") {
            let order = snapshot.schedule.get_or_insert_default();
            order.stages = lines.rows("a stage, its devices, parameters and weights", stage)?;
        } else if line == GRID {
            let order = snapshot.schedule.get_or_insert_default();
            order.passes = lines.rows("a device and its passes", |cells| {
                let (&name, row) = cells.split_first()?;
                Some((device(name)?, passes(row.iter().flat_map(|cells| cells.split(' ')))?))
            })?;
        } else if line.starts_with("memory, bytes ") {
            snapshot.memory = Some(lines.rows("an arena and its bytes", arena)?);
        } else if line == PROGRAM {
            snapshot.program = Some(std::mem::take(&mut lines.rest).to_owned());
        } else {
            return Err(lines.expected("the heading of a table"));
        }
    }
    Ok(snapshot)
}

/// The lines of a text that are left.
struct Lines<'t> {
    rest: &'t str,
    /// Of the last line that was taken, from 1.
    number: usize,
}

impl<'t> Lines<'t> {
    fn next(&mut self) -> Option<&'t str> {
        let line = self.rest.lines().next()?;
        self.rest = self.rest.get(line.len()..).unwrap_or_default();
        self.rest = self.rest.strip_prefix("\r\n").or(self.rest.strip_prefix('\n')).unwrap_or(self.rest);
        self.number += 1;
        Some(line)
    }

    /// The rows of a table up to the next empty line; cells are separated by two blanks and more.
    fn rows<K: Ord, V>(
        &mut self,
        expected: &'static str,
        read: impl Fn(&[&str]) -> Option<(K, V)>,
    ) -> Result<BTreeMap<K, V>, TextError> {
        let mut rows = BTreeMap::new();
        while let Some(line) = self.next().filter(|line| !line.is_empty()) {
            let cells: Vec<&str> = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
            let (key, value) = read(&cells).ok_or(self.expected(expected))?;
            rows.insert(key, value);
        }
        Ok(rows)
    }

    fn expected(&self, expected: &'static str) -> TextError {
        TextError { line: self.number.max(1), expected }
    }
}

fn stage(cells: &[&str]) -> Option<(StageId, Stage)> {
    let (name, devices, parameters, weights) = match *cells {
        [name, devices, parameters, weights] => (name, devices, parameters, weights),
        // A stage that no device runs.
        [name, parameters, weights] => (name, "", parameters, weights),
        _ => return None,
    };
    let id = StageId(name.strip_prefix('g')?.parse().ok()?);
    let devices = devices.split_whitespace().map(device).collect::<Option<BTreeSet<_>>>()?;
    Some((id, Stage { devices, parameters: parameters.to_owned(), weights: ungrouped(weights)? }))
}

fn arena(cells: &[&str]) -> Option<((DeviceId, Space), Arena)> {
    let (name, numbers, peak) = match cells {
        [name, numbers @ .., peak] => (name, numbers, peak),
        _ => return None,
    };
    let (id, space) = name.split_once(' ')?;
    let space = match space {
        "device" => Space::Device,
        "host" => Space::Host,
        _ => return None,
    };
    let numbers = numbers.iter().map(|number| ungrouped(number)).collect::<Option<Vec<u64>>>()?;
    // The sum of the live bytes follows from its parts.
    let (size, live) = match numbers.as_slice() {
        [size, _, live @ ..] => (*size, live),
        _ => return None,
    };
    let live: [u64; Category::ALL.len()] = live.try_into().ok()?;
    Some(((device(id)?, space), Arena { size: Bytes(size), live: live.map(Bytes), peak: (*peak).to_owned() }))
}

fn passes<'t>(cells: impl Iterator<Item = &'t str>) -> Option<Vec<(u64, PassName)>> {
    let mut passes = Vec::new();
    for (column, cell) in (0..).zip(cells.map(str::trim).filter(|cell| !cell.is_empty())) {
        match cell {
            "." | "-" => {}
            name => passes.push((column, PassName::parse(name)?)),
        }
    }
    Some(passes)
}

fn ungrouped(text: &str) -> Option<u64> {
    text.replace('_', "").parse().ok()
}
