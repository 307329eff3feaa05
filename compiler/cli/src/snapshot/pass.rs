//! The name of a pass in a snapshot: `BW2.5` is the whole backward pass of stage 2 for micro-batch 5, `F2.5.1` the
//! forward pass of its slice 1 in a program whose sequences are sliced, `F0.7+BW2.5` a pair of two passes in one call.

use pipec_program::{MicroBatch, Pass, Slice, StageId, Unit};
use std::fmt;

/// A pass of a unit, or two in one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PassName {
    /// Which pass.
    pub pass: Pass,
    /// Of which unit.
    pub unit: Unit,
    /// The second pass of a pair.
    pub with: Option<(Pass, Unit)>,
}

impl PassName {
    /// Reads a name.
    pub fn parse(text: &str) -> Option<Self> {
        let (first, with) = match text.split_once('+') {
            Some((first, with)) => (first, Some(pass(with)?)),
            None => (text, None),
        };
        let (pass, unit) = pass(first)?;
        Some(Self { pass, unit, with })
    }

    /// The passes, one or two.
    pub fn passes(self) -> impl Iterator<Item = (Pass, Unit)> {
        std::iter::once((self.pass, self.unit)).chain(self.with)
    }

    /// The units of time that it takes.
    pub fn width(self) -> u64 {
        let width = |(pass, _)| match pass {
            Pass::BW => 2,
            Pass::F | Pass::B | Pass::W | Pass::R => 1,
        };
        self.passes().map(width).sum()
    }
}

fn pass(text: &str) -> Option<(Pass, Unit)> {
    let digits = text.find(|letter: char| letter.is_ascii_digit())?;
    let (name, numbers) = text.split_at(digits);
    let pass = Pass::ALL.into_iter().find(|pass| pass.name() == name)?;
    let numbers = numbers.split('.').map(str::parse).collect::<Result<Vec<u32>, _>>().ok()?;
    let (stage, micro_batch, slice) = match *numbers.as_slice() {
        [stage, micro_batch] => (stage, micro_batch, 0),
        // A slice of 0 is written only beside others, which the reader of one name does not see.
        [stage, micro_batch, slice] => (stage, micro_batch, slice),
        _ => return None,
    };
    Some((pass, Unit { stage: StageId(stage), micro_batch: MicroBatch(micro_batch), slice: Slice(slice) }))
}

impl fmt::Display for PassName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, (pass, Unit { stage, micro_batch, slice })) in self.passes().enumerate() {
            let plus = if position > 0 { "+" } else { "" };
            write!(f, "{plus}{}{}.{}", pass.name(), stage.0, micro_batch.0)?;
            if slice.0 > 0 {
                write!(f, ".{}", slice.0)?;
            }
        }
        Ok(())
    }
}
