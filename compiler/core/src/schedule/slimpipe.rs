//! SlimPipe's order: slices in number a multiple of the devices, so that a device keeps little more than 1/p of a
//! micro-batch (Li et al. 2025).
//!
//! The first device keeps `(1 + 2 (p - 1) / (v s)) / p` of a micro-batch. What the paper does besides, the exchange of
//! attention work between devices, is no question of order.

use super::svpp::{self, Svpp};
use super::{Problem, Refusal, Schedule};

/// Seq1F1B with a warm-up that leaves every message one pass of time.
pub(super) fn order(problem: &Problem) -> Result<Schedule, Refusal> {
    let (slices, devices) = (problem.slices(), problem.devices().len() as u32);
    if !slices.is_multiple_of(devices) {
        return Err(Refusal::UnevenSlices { slices, devices });
    }
    svpp::closed_form(problem, Svpp { bias: 200, ..Svpp::FUSED })
}
