//! Live bytes of an arena as stacked steps.

use super::style::category;
use super::{escape, number};
use pipec_program::memory::{ArenaUse, ByCategory, Sample};
use pipec_program::simulate::instruction_name;
use pipec_program::{Bytes, Category, Nanos, Program, Space};
use std::fmt::Write;

/// Where a curve is drawn.
pub(super) struct Frame {
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
    /// The time at the right end.
    pub(super) makespan: Nanos,
    /// The bytes at the top.
    pub(super) scale: Bytes,
}

impl Frame {
    fn x(&self, time: Nanos) -> f64 {
        self.left + (self.right - self.left) * time.0 as f64 / self.makespan.0.max(1) as f64
    }

    fn y(&self, bytes: Bytes) -> f64 {
        self.bottom - (self.bottom - self.top) * bytes.0 as f64 / self.scale.0.max(1) as f64
    }
}

/// The name of an arena at its curve.
pub(super) fn name(space: Space) -> &'static str {
    match space {
        Space::Device => "memory",
        Space::Host => "host memory",
    }
}

/// Draws the curve; returns the categories that occur in it.
pub(super) fn draw(body: &mut String, program: &Program, arena: &ArenaUse, frame: &Frame) -> Vec<Category> {
    let samples = thinned(&arena.curve, frame);
    let categories: Vec<Category> = Category::ALL
        .into_iter()
        .filter(|&category| samples.iter().any(|sample| sample.live.get(category) > Bytes::ZERO))
        .collect();
    // From the highest stack down, so that each lower one covers what is not of the category above it.
    for count in (1..=categories.len()).rev() {
        let stack = |live: &ByCategory| categories[..count].iter().map(|&category| live.get(category)).sum();
        let mut path = format!("M{} {}", number(frame.left), number(frame.bottom));
        let mut last = None;
        for sample in &samples {
            let y = number(frame.y(stack(&sample.live)));
            if last.as_ref() != Some(&y) {
                _ = write!(path, "H{}V{y}", number(frame.x(sample.time)));
            }
            last = Some(y);
        }
        _ = write!(path, "H{}V{}Z", number(frame.right), number(frame.bottom));
        _ = writeln!(
            body,
            "<path fill=\"{}\" d=\"{path}\"><title>{}</title></path>",
            category(categories[count - 1]),
            categories[count - 1].name()
        );
    }
    let y = number(frame.y(arena.size));
    _ = writeln!(
        body,
        "<path class=\"arena\" d=\"M{} {y}H{}\"><title>arena {}</title></path>",
        number(frame.left),
        number(frame.right),
        arena.size
    );
    let instruction = arena.peak.instruction.and_then(|(queue, position)| {
        program
            .queues
            .get(queue)
            .and_then(|queue| queue.instructions.get(position as usize))
            .map(instruction_name)
    });
    let tooltip =
        format!("peak {} at {}", arena.peak.live.total(), instruction.as_deref().unwrap_or("the start"));
    _ = writeln!(
        body,
        "<circle cx=\"{}\" cy=\"{}\" r=\"2.2\" fill=\"#c8323c\"><title>{}</title></circle>",
        number(frame.x(arena.peak.time)),
        number(frame.y(arena.peak.live.total())),
        escape(&tooltip)
    );
    categories
}

/// The samples that can be told apart on paper: of every half pixel the highest and the last.
fn thinned(curve: &[Sample], frame: &Frame) -> Vec<Sample> {
    let pixel = |sample: &Sample| (2.0 * frame.x(sample.time)) as i64;
    let mut kept = Vec::new();
    for column in curve.chunk_by(|a, b| pixel(a) == pixel(b)) {
        let highest = column.iter().max_by_key(|sample| sample.live.total());
        let last = column.last().filter(|last| highest.is_none_or(|highest| highest.time < last.time));
        kept.extend(highest.into_iter().chain(last));
    }
    kept
}
