//! The simulator: the instruction lists of a program against a table of costs.
//!
//! It is the one event core of the house: nothing else predicts time. It follows the semantics of [`crate::program`]
//! to the letter, and in addition:
//! - A message starts when both sides are there (rendezvous), or when the sender is there and the channel has a place
//!   left (capacity above 0); it then occupies every link of its route until it has arrived. A link carries one message
//!   at a time and serves requests in the order in which they became ready, ties by kind and id; requests never overtake.
//! - With capacity, a place is taken when a message starts and is free again when its receive has finished.
//! - A reduction starts when all members are there and occupies every link of its ring.
//! - Copies between the arenas of a device occupy the links of their route in the same way.
//! - An instruction takes the overhead of its device on top of its work, a message that of its sender; waits take nothing.
//!
//! Invariants: pure and deterministic; the time is linear in the number of instructions; an event starts when its work
//! starts, so that time spent blocked is a gap between events, never a part of one.
//!
//! What it deliberately does not do: numbers, slow-down by contention inside a device, failures.

mod critical;
mod engine;
mod figures;
mod messages;
mod timeline;

pub use critical::{Activity, CriticalPath, critical_path};
pub use figures::{DeviceUse, LinkUse, bubble, device_use, link_use};
pub use messages::{Message, messages};
pub use timeline::{Event, Timeline, TimelineError, instruction_name};

use crate::cost::Costs;
use crate::units::Nanos;
use crate::verify::Verified;

/// The timeline of one step that starts on all devices at zero.
pub fn simulate(program: &Verified, costs: &Costs) -> Timeline {
    engine::run(program, costs, 1).0
}

/// When each of some successive steps ends on the last device, from a start at zero. A device starts its next step as
/// soon as it has finished the present one, so that from the second step on a step may take less than the first.
pub fn step_ends(program: &Verified, costs: &Costs, steps: u32) -> Vec<Nanos> {
    engine::run(program, costs, steps).1
}
