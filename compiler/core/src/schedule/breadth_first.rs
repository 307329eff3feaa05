//! Breadth-first pipelining: every micro-batch passes a stage before the first enters the next stage of the device
//! (Lamy-Poirier 2023).
//!
//! The bubble is that of interleaved 1F1B, the memory that of GPipe; gradients of a stage are complete early, which is
//! what it is for where weights are sharded. Micro-batches ascend backward too, unlike in the paper.

use super::{Problem, Refusal, Schedule, gpipe, require};

/// GPipe's order on several stages per device.
pub(super) fn order(problem: &Problem) -> Result<Schedule, Refusal> {
    require::several_chunks(problem)?;
    gpipe::order(problem)
}
