//! GPipe: all forward passes, then all backward passes (Huang et al. 2019).
//!
//! A device keeps all n micro-batches. With several stages per device it is the breadth-first schedule: every
//! micro-batch passes a stage before the first enters the next (Lamy-Poirier 2023), here with micro-batches ascending
//! backward too.

use super::{Schedule, rounds};
use crate::plan::Plan;

/// All forward passes, then all backward passes.
pub(super) fn order(plan: &Plan) -> Schedule {
    let all = plan.micro_batches;
    rounds::warm_up_then_alternate(plan, all, |_, forwards| forwards)
}
