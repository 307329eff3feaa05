//! Interleaved 1F1B: v stages per device, passed depth-first in rounds of `group` micro-batches (Narayanan et al. 2021,
//! Megatron-LM).
//!
//! The bubble shrinks v times against 1F1B. The warm-up of `(v - 1) group + 2 (p - 1 - r)` forward passes gives every
//! message one pass of time to arrive, at the price of `p - 1` more units kept on the first device than the least.

use super::{Schedule, rounds};
use crate::plan::Plan;

/// Device r starts with `(v - 1) group + 2 (p - 1 - r)` forward passes. The last round is as short as the remainder;
/// where n is below `group`, there is one round of n.
pub(super) fn order(plan: &Plan, group: u32) -> Schedule {
    let p = plan.devices.len();
    let group = group.clamp(1, plan.micro_batches.max(1));
    let chunks = plan.devices.values().map(Vec::len).max().unwrap_or(0);
    let fill = chunks.saturating_sub(1) * group as usize * plan.slices as usize;
    rounds::warm_up_then_alternate(plan, group, |rank, _| fill + 2 * (p - 1 - rank))
}
