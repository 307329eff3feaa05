//! What a device does at once.

use pipec_program::{Pass, Unit};
use std::fmt;

/// One piece of work of a device. Steps of a device never overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// A pass of a unit.
    Pass(Pass, Unit),
    /// One GEMM of the weight gradients of a unit: part of its W.
    Product(Unit, u16),
    /// A forward and a backward pass of different units as one block: the inputs of both are there before it starts and
    /// the outputs of both are there when it ends.
    Pair {
        /// The unit of F.
        forward: Unit,
        /// The unit of the backward pass.
        backward: Unit,
        /// B or BW.
        pass: Pass,
    },
}

impl Step {
    /// The passes of a step: one, or the forward and then the backward pass of a pair. A product counts as the W that it
    /// is part of.
    pub fn passes(self) -> impl Iterator<Item = (Pass, Unit)> + Clone {
        let (first, second) = match self {
            Self::Pass(pass, unit) => ((pass, unit), None),
            Self::Product(unit, _) => ((Pass::W, unit), None),
            Self::Pair { forward, backward, pass } => ((Pass::F, forward), Some((pass, backward))),
        };
        std::iter::once(first).chain(second)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pass(pass, unit) => write!(f, "{} {unit}", pass.name()),
            Self::Product(unit, part) => write!(f, "W{part} {unit}"),
            Self::Pair { forward, backward, pass } => {
                write!(f, "F {forward} + {} {backward}", pass.name())
            }
        }
    }
}
