//! Pictures of a timeline: text grid, SVG, Chrome trace, tables and JSON.
//!
//! Every picture is a pure function of a program and one or more timelines to text; the same input gives the same bytes.
//! Simulated and measured timelines have one type, so that each picture of several lays them over each other.
//!
//! What this module deliberately does not do: read and write files, choose colours for terminals, or predict time.

mod axis;
mod grid;
mod json;
mod order;
mod plot;
mod profile;
mod scene;
mod schedule;
mod svg;
mod table;
mod trace;

#[cfg(test)]
mod tests;

pub use grid::{Scale, grid};
pub use json::{JsonError, json, timeline_from_json};
pub use order::{order_grid, order_summary, order_times};
pub use plot::{Curve, Point, memory_plot};
pub use profile::{profile_from_json, profile_json};
pub use schedule::schedule_json;
pub use svg::svg;
pub use table::{differences, tables};
pub use trace::trace;

pub(crate) use axis::percent;
pub(crate) use scene::title;
pub(crate) use table::Table;

use pipec_program::Timeline;

/// A timeline with a name for people: `simulated`, `measured`.
#[derive(Clone, Copy, Debug)]
pub struct Named<'a> {
    /// The name.
    pub name: &'a str,
    /// The timeline.
    pub timeline: &'a Timeline,
}
