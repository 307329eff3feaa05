//! The rules by which a simulated device chooses its next pass.

use super::Schedule;
use super::limit::Limit;
use pipec_program::Pass;

/// How a device chooses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules<'a> {
    /// Whether backward passes are whole or split.
    pub(super) backward: Backward,
    /// Which of several ready passes of one kind goes first.
    pub(super) first: First<'a>,
    /// When weight gradients run.
    pub(super) weights: Weights,
    /// After a forward pass a backward pass, and the other way round; without it, backward passes first.
    pub(super) alternate: bool,
    /// The memory of each device.
    pub(super) limit: Option<&'a Limit>,
}

/// The form of backward passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backward {
    /// BW.
    Whole,
    /// B and W.
    Split,
    /// B and the GEMMs of W.
    Products,
}

impl Backward {
    /// The pass that makes input gradients.
    pub(super) fn pass(self) -> Pass {
        match self {
            Self::Whole => Pass::BW,
            Self::Split | Self::Products => Pass::B,
        }
    }
}

/// Which of several ready passes goes first.
#[derive(Clone, Copy, Debug)]
pub(super) enum First<'a> {
    /// Rounds of so many micro-batches; in a round forward passes of earlier chunks, backward passes of later ones.
    Rounds(u32),
    /// Forward passes of later chunks, older micro-batches.
    Deep,
    /// Forward passes of earlier chunks, older micro-batches.
    Shallow,
    /// Older micro-batches, then earlier chunks.
    Oldest,
    /// What stands first in a repeated pattern, and not earlier than its place allows.
    Pattern(&'a Pattern),
    /// The forward and backward passes of every device in this order; only weight gradients are chosen.
    Fixed(&'a Schedule),
}

/// When weight gradients run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weights {
    /// Right after their backward pass.
    Eager,
    /// While nothing else is ready, or where memory holds the next forward pass back.
    Fill,
    /// As `Fill`, but not where something is known to become ready before they end.
    Lazy,
}

/// The place of the passes of one micro-batch in time; micro-batch m has it `m period` later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    /// Of F, by stage and slice.
    pub(super) forward: Vec<u64>,
    /// Of B or BW, by stage and slice.
    pub(super) backward: Vec<u64>,
    /// The time between micro-batches.
    pub(super) period: u64,
    /// How much earlier than its place a pass may start.
    pub(super) lead: u64,
}
