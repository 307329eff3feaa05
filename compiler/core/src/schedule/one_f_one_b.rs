//! 1F1B: after a warm-up every forward pass is followed by the backward pass of the oldest micro-batch (Narayanan et al.
//! 2019, PipeDream-Flush; Fan et al. 2021, DAPPLE).
//!
//! Device r of p keeps at most `p - r` micro-batches, and the makespan is GPipe's.

use super::{Schedule, rounds};
use crate::plan::Plan;

/// Device r starts with `p - 1 - r` forward passes.
pub(super) fn order(plan: &Plan) -> Schedule {
    let p = plan.devices.len();
    rounds::warm_up_then_alternate(plan, 1, |rank, _| p - 1 - rank)
}
