//! Seq1F1B: 1F1B in which a slice of a sequence is what a whole micro-batch was (Sun et al. 2024).
//!
//! Backward passes take the newest slice of the oldest micro-batch. On one stage per device it is SVPP; with v stages
//! per device the warm-up is Megatron's, one unit more for every hop to the last device. The bubble is
//! `(p - 1) / (p - 1 + n s v)`; the first device keeps `(v - 1) g s + s + b (p - 1)` units with `g = max(1, ceil(p / s))`
//! and b = 1 for v = 1, else 2.

use super::svpp::{self, Svpp};
use super::{Problem, Refusal, Schedule};

/// The warm-up of v = 1 is tight, that of v > 1 leaves every message one pass of time.
pub(super) fn order(problem: &Problem) -> Result<Schedule, Refusal> {
    let bias = if problem.chunks() == 1 { 100 } else { 200 };
    svpp::closed_form(problem, Svpp { bias, ..Svpp::FUSED })
}
