//! The text grid: devices down, time across, the form that papers made known.

use super::Named;
use super::axis::{label, percent, ticks};
use super::scene::{Kind, Mark, Row, lanes, makespan, rows, title};
use pipec_program::simulate::{bubble, device_use};
use pipec_program::{Nanos, Program, QueueKind};
use std::collections::BTreeSet;

/// How time becomes columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// The longest makespan takes this many columns; labels that do not fit their box are cut.
    Columns(usize),
    /// One cell per nanosecond, wide enough for every label: for timelines of [`pipec_program::Costs::unit`].
    Unit,
}

/// The most columns of a grid; a wider one is scaled down to it.
const MOST_COLUMNS: u64 = 4096;

/// Draws timelines of one program; several lie over each other, a line each per device.
///
/// A box reads `F3` (pass and micro-batch), `F3.1` with slices, `F3b` for the second chunk of a device; it ends with a
/// blank where there is room. Dots are idle time of the compute queue. A line ends with its share of idle time.
pub fn grid(program: &Program, timelines: &[Named<'_>], scale: Scale) -> String {
    let makespan = makespan(timelines);
    let rows = rows(program);
    let sliced = program.batch.slices > 1;
    let drawn = |device| {
        timelines.iter().map(move |named| {
            let lanes = lanes(program, named.timeline, device).into_iter();
            lanes
                .filter(|lane| lane.kind == QueueKind::Compute)
                .flat_map(|lane| lane.marks)
                .collect::<Vec<_>>()
        })
    };
    let all: Vec<(&Row, Vec<Vec<Mark<'_>>>)> =
        rows.iter().map(|row| (row, drawn(row.device).collect())).collect();
    let longest = all
        .iter()
        .flat_map(|(row, lines)| lines.iter().flatten().map(|mark| mark.label(row, sliced).len()))
        .max()
        .unwrap_or(1);
    let columns = match scale {
        Scale::Columns(columns) => (columns as u64).clamp(1, MOST_COLUMNS),
        Scale::Unit => (makespan.0.saturating_mul(longest as u64 + 1)).clamp(1, MOST_COLUMNS),
    };
    let column = |time: Nanos| {
        let scaled = (u128::from(time.0) * u128::from(columns) + u128::from(makespan.0) / 2)
            .checked_div(u128::from(makespan.0))
            .unwrap_or(0);
        scaled as usize
    };

    let uses: Vec<_> = timelines.iter().map(|named| device_use(program, named.timeline)).collect();
    let mut text = title(program);
    for (named, uses) in timelines.iter().zip(&uses) {
        let time = match scale {
            Scale::Columns(_) => named.timeline.makespan().to_string(),
            Scale::Unit => format!("{} units", named.timeline.makespan().0),
        };
        text += &format!("\n{}: makespan {time}, bubble {}", named.name, percent(bubble(uses)));
    }
    text += "\n\n";

    let several = timelines.len() > 1;
    let names: Vec<String> = all
        .iter()
        .flat_map(|(row, _)| {
            timelines
                .iter()
                .map(|named| if several { format!("{} {}", row.name(), named.name) } else { row.name() })
        })
        .collect();
    let margin = names.iter().map(String::len).max().unwrap_or(0) + 2;
    text += &format!("{:margin$}{}\n", "", ruler(makespan, columns as usize, column, scale));

    let mut kinds = BTreeSet::new();
    let mut names = names.iter();
    for (row, lines) in &all {
        for (marks, uses) in lines.iter().zip(&uses) {
            kinds.extend(marks.iter().filter(|mark| is_drawn(mark, column)).map(|mark| mark.kind));
            let line = line(marks, row, sliced, columns as usize, column);
            let idle = uses[row.device].bubble;
            let name = names.next().map_or("", String::as_str);
            text += &format!("{name:margin$}{line} {:>7}\n", percent(idle));
        }
    }
    text += &format!("\n{}\n", legend(&kinds));
    text
}

/// Whether a mark has a place: a whole column, or any time at all where it is more than a fill or a copy.
fn is_drawn(mark: &Mark<'_>, column: impl Fn(Nanos) -> usize) -> bool {
    let aside = matches!(mark.kind, Kind::Fill | Kind::Copy);
    mark.event.end > mark.event.start && (!aside || column(mark.event.end) > column(mark.event.start))
}

/// The line of one device.
fn line(
    marks: &[Mark<'_>],
    row: &Row,
    sliced: bool,
    columns: usize,
    column: impl Fn(Nanos) -> usize,
) -> String {
    let mut line = vec!['.'; columns];
    for mark in marks.iter().filter(|mark| is_drawn(mark, &column)) {
        let start = column(mark.event.start).min(columns - 1);
        let end = column(mark.event.end).min(columns);
        let label = mark.label(row, sliced);
        if end <= start {
            // Too short for a column: a letter, where nothing longer stands.
            if line[start] == '.' {
                line[start] = label.chars().next().unwrap_or('.');
            }
            continue;
        }
        let width = end - start;
        let filler = std::iter::repeat_n('-', width.saturating_sub(label.len() + 1)).chain(Some(' '));
        for (cell, letter) in line[start..end].iter_mut().zip(label.chars().chain(filler)) {
            *cell = letter;
        }
    }
    line.into_iter().collect()
}

/// The line of ticks: `|0 ns      |100 ns`.
fn ruler(makespan: Nanos, columns: usize, column: impl Fn(Nanos) -> usize, scale: Scale) -> String {
    let name = |time: Nanos| match scale {
        Scale::Columns(_) => label(time),
        Scale::Unit => time.0.to_string(),
    };
    let room = match scale {
        Scale::Columns(_) => 14,
        // A tick, the digits of the last one and a blank.
        Scale::Unit => name(makespan).len() as u64 + 2,
    };
    let mut line = String::new();
    for tick in ticks(makespan, (columns as u64 / room).max(1)) {
        let at = column(tick);
        if at >= line.len() && at + name(tick).len() < columns {
            line = format!("{line:at$}|{}", name(tick));
        }
    }
    line
}

fn legend(kinds: &BTreeSet<Kind>) -> String {
    let mut parts: Vec<String> =
        kinds.iter().map(|kind| format!("{} {}", kind.letter(), kind.meaning())).collect();
    parts.push(". idle".to_owned());
    parts.join("   ")
}
