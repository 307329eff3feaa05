//! The names of all policies, and the one place that calls them.

use super::{Problem, Refusal, Schedule, gpipe, interleaved, one_f_one_b, peaks};
use crate::spec;

/// A rule that orders the passes of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// All forward passes, then all backward passes.
    GPipe,
    /// One forward, one backward.
    OneFOneB,
    /// Several stages per device in rounds.
    Interleaved {
        /// Micro-batches of a round; the number of devices without it.
        group: Option<u32>,
    },
}

impl From<spec::Schedule> for Policy {
    fn from(schedule: spec::Schedule) -> Self {
        match schedule {
            spec::Schedule::GPipe => Self::GPipe,
            spec::Schedule::OneFOneB => Self::OneFOneB,
            spec::Schedule::Interleaved { virtual_stages: _, group } => {
                Self::Interleaved { group: Some(group) }
            }
        }
    }
}

/// Orders the passes of a problem by a policy.
///
/// # Errors
/// The condition of the policy that the problem does not meet, or the device whose memory does not suffice.
pub fn order(policy: Policy, problem: &Problem) -> Result<Schedule, Refusal> {
    let schedule = match policy {
        Policy::GPipe => gpipe::order(problem),
        Policy::OneFOneB => one_f_one_b::order(problem),
        Policy::Interleaved { group } => interleaved::order(problem, group),
    }?;
    fits(problem, &schedule)?;
    Ok(schedule)
}

/// Whether every device has the memory that a schedule takes.
fn fits(problem: &Problem, schedule: &Schedule) -> Result<(), Refusal> {
    let Some(caps) = &problem.caps else { return Ok(()) };
    let peaks = peaks(problem, schedule);
    let over = peaks.iter().zip(caps.values()).find(|&((_, &peak), &cap)| peak > cap);
    match over {
        Some(((device, &needed), &cap)) => Err(Refusal::Memory { device, needed, cap }),
        None => Ok(()),
    }
}
