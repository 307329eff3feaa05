//! The names of all policies, and the one place that calls them.

use super::{
    Effort, Placement, Problem, Refusal, Schedule, Svpp, WeightGrads, auto, breadth_first, chimera,
    controllable, eight_phases, gpipe, hanayo, interleaved, one_f_one_b, peaks, seq1f1b, slimpipe, spipe,
    svpp, terapipe, zb_v, zero_bubble,
};
use crate::spec;

/// A rule that orders the passes of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// All forward passes, then all backward passes.
    GPipe,
    /// GPipe on several stages per device.
    BreadthFirst,
    /// GPipe on slices.
    TeraPipe,
    /// One forward, one backward.
    OneFOneB,
    /// Several stages per device in rounds.
    Interleaved {
        /// Micro-batches of a round; the number of devices without it.
        group: Option<u32>,
    },
    /// One forward, one backward, on slices.
    Seq1F1B,
    /// As many slices as devices or a multiple.
    SlimPipe,
    /// Slices, several stages per device and a limit of memory.
    Svpp(Svpp),
    /// Split backward passes in the memory of 1F1B.
    ZbH1,
    /// Split backward passes in twice the memory.
    ZbH2,
    /// Split backward passes, stages forth and back.
    ZbV,
    /// The same in half the memory.
    VHalf,
    /// The same in a third of the memory.
    VMin,
    /// Two copies in opposite directions, forward and backward passes in pairs.
    DualPipe,
    /// One copy forth and back, forward and backward passes in pairs.
    DualPipeV,
    /// Two copies in opposite directions.
    Chimera,
    /// Waves over the devices.
    Hanayo,
    /// A cut for each direction.
    SPipe,
    /// The fastest order that is found.
    Auto(Effort),
}

/// Which backward passes an order has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uses {
    /// BW.
    pub whole: bool,
    /// B and W.
    pub split: bool,
    /// B and the GEMMs of W.
    pub products: bool,
}

impl Policy {
    /// Every policy but `auto` and `spipe`, which takes a problem of two cuts, with its usual options, each with its name.
    pub const ALL: [(&'static str, Self); 17] = [
        ("gpipe", Self::GPipe),
        ("breadth_first", Self::BreadthFirst),
        ("terapipe", Self::TeraPipe),
        ("one_f_one_b", Self::OneFOneB),
        ("interleaved", Self::Interleaved { group: None }),
        ("seq1f1b", Self::Seq1F1B),
        ("slimpipe", Self::SlimPipe),
        ("svpp", Self::Svpp(Svpp::FUSED)),
        ("zb_h1", Self::ZbH1),
        ("zb_h2", Self::ZbH2),
        ("zb_v", Self::ZbV),
        ("v_half", Self::VHalf),
        ("v_min", Self::VMin),
        ("dualpipe", Self::DualPipe),
        ("dualpipe_v", Self::DualPipeV),
        ("chimera", Self::Chimera),
        ("hanayo", Self::Hanayo),
    ];

    /// The name of the policy, without its options.
    pub fn name(self) -> &'static str {
        let unlisted = [("auto", matches!(self, Self::Auto(_))), ("spipe", self == Self::SPipe)];
        if let Some((name, _)) = unlisted.into_iter().find(|(_, is)| *is) {
            return name;
        }
        let same = |other: &Self| std::mem::discriminant(other) == std::mem::discriminant(&self);
        Self::ALL.iter().find(|(_, policy)| same(policy)).map_or("", |(name, _)| name)
    }

    /// The most stages per device and copy, and slices, that the policy has a use for where there may be so many.
    pub fn most(self, chunks: u32, slices: u32) -> (u32, u32) {
        match self {
            Self::OneFOneB | Self::ZbH1 | Self::ZbH2 | Self::DualPipe | Self::Chimera => (1, 1),
            Self::TeraPipe => (1, slices),
            Self::Interleaved { group: _ }
            | Self::GPipe
            | Self::BreadthFirst
            | Self::Hanayo
            | Self::SPipe => (chunks, 1),
            Self::Seq1F1B | Self::SlimPipe | Self::Svpp(_) | Self::Auto(_) => (chunks, slices),
            Self::ZbV | Self::VHalf | Self::VMin | Self::DualPipeV => (2, 1),
        }
    }

    /// The policy of a schedule; none where a file gives the order.
    pub fn of(schedule: spec::Schedule) -> Option<Self> {
        Some(match schedule {
            spec::Schedule::GPipe => Self::GPipe,
            spec::Schedule::OneFOneB => Self::OneFOneB,
            spec::Schedule::Interleaved { virtual_stages: _, group } => {
                Self::Interleaved { group: Some(group) }
            }
            spec::Schedule::BreadthFirst { .. } => Self::BreadthFirst,
            spec::Schedule::TeraPipe { .. } => Self::TeraPipe,
            spec::Schedule::Seq1F1B { .. } => Self::Seq1F1B,
            spec::Schedule::SlimPipe { .. } => Self::SlimPipe,
            spec::Schedule::Svpp { virtual_stages: _, slices: _, in_flight, bias, weight_grads } => {
                let in_flight = match in_flight {
                    spec::InFlight::Units(units) => Some(units),
                    spec::InFlight::Max | spec::InFlight::Auto => None,
                };
                Self::Svpp(Svpp { in_flight, bias, weight_grads, group: None })
            }
            spec::Schedule::ZbH1 => Self::ZbH1,
            spec::Schedule::ZbH2 => Self::ZbH2,
            spec::Schedule::ZbV => Self::ZbV,
            spec::Schedule::VHalf => Self::VHalf,
            spec::Schedule::VMin => Self::VMin,
            spec::Schedule::DualPipe => Self::DualPipe,
            spec::Schedule::DualPipeV => Self::DualPipeV,
            spec::Schedule::Chimera => Self::Chimera,
            spec::Schedule::Hanayo { .. } => Self::Hanayo,
            spec::Schedule::Mobius { .. } | spec::Schedule::SPipe { .. } => Self::SPipe,
            spec::Schedule::Auto { virtual_stages: _, slices: _, memory: _, effort } => {
                Self::Auto(match effort {
                    0 => Effort::Least,
                    1 => Effort::Usual,
                    2 => Effort::More,
                    3.. => Effort::Most,
                })
            }
            spec::Schedule::From { .. } => return None,
        })
    }

    /// The backward passes that the policy may order.
    pub fn uses(self) -> Uses {
        match self {
            Self::GPipe
            | Self::BreadthFirst
            | Self::TeraPipe
            | Self::OneFOneB
            | Self::Interleaved { group: _ }
            | Self::Seq1F1B
            | Self::SlimPipe
            | Self::Chimera
            | Self::Hanayo
            | Self::SPipe => Uses { whole: true, split: false, products: false },
            Self::Svpp(Svpp { weight_grads, .. }) => Uses {
                whole: weight_grads == WeightGrads::Fused,
                split: weight_grads == WeightGrads::Split,
                products: weight_grads == WeightGrads::PerGemm,
            },
            Self::ZbH1 | Self::ZbH2 | Self::ZbV | Self::VHalf | Self::VMin => {
                Uses { whole: false, split: true, products: false }
            }
            Self::DualPipe | Self::DualPipeV => Uses { whole: true, split: true, products: false },
            Self::Auto(_) => Uses { whole: true, split: true, products: true },
        }
    }

    /// Where the policy has its stages.
    pub fn placement(self) -> Placement {
        match self {
            Self::GPipe
            | Self::BreadthFirst
            | Self::TeraPipe
            | Self::OneFOneB
            | Self::Interleaved { group: _ }
            | Self::Seq1F1B
            | Self::SlimPipe
            | Self::Svpp(_)
            | Self::ZbH1
            | Self::ZbH2
            | Self::SPipe
            | Self::Auto(_) => Placement::Loop,
            Self::ZbV | Self::VHalf | Self::VMin | Self::DualPipeV | Self::Hanayo => Placement::Zigzag,
            Self::DualPipe | Self::Chimera => Placement::Bidirectional,
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
        Policy::BreadthFirst => breadth_first::order(problem),
        Policy::TeraPipe => terapipe::order(problem),
        Policy::OneFOneB => one_f_one_b::order(problem),
        Policy::Interleaved { group } => interleaved::order(problem, group),
        Policy::Seq1F1B => seq1f1b::order(problem),
        Policy::SlimPipe => slimpipe::order(problem),
        Policy::Svpp(options) => svpp::order(problem, options),
        Policy::ZbH1 => zero_bubble::h1(problem),
        Policy::ZbH2 => zero_bubble::h2(problem),
        Policy::ZbV => zb_v::order(problem),
        Policy::VHalf => controllable::v_half(problem),
        Policy::VMin => controllable::v_min(problem),
        Policy::DualPipe => eight_phases::dualpipe(problem),
        Policy::DualPipeV => eight_phases::dualpipe_v(problem),
        Policy::Chimera => chimera::order(problem),
        Policy::Hanayo => hanayo::order(problem),
        Policy::SPipe => spipe::order(problem),
        Policy::Auto(effort) => auto::order(problem, effort),
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
