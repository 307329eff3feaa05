//! The name of a pass in a snapshot: `BW2.5` is the whole backward pass of stage 2 for micro-batch 5, `F2.5.1` the
//! forward pass of its slice 1 in a program whose sequences are sliced.

use pipec_program::{MicroBatch, Pass, Slice, StageId, Unit};
use std::fmt;

/// A pass of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PassName {
    /// Which pass.
    pub pass: Pass,
    /// Of which unit.
    pub unit: Unit,
}

impl PassName {
    /// Reads a name.
    pub fn parse(text: &str) -> Option<Self> {
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
        let unit = Unit { stage: StageId(stage), micro_batch: MicroBatch(micro_batch), slice: Slice(slice) };
        Some(Self { pass, unit })
    }

    /// The units of time that it takes.
    pub fn width(self) -> u64 {
        match self.pass {
            Pass::BW => 2,
            Pass::F | Pass::B | Pass::W | Pass::R => 1,
        }
    }
}

impl fmt::Display for PassName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unit { stage, micro_batch, slice } = self.unit;
        write!(f, "{}{}.{}", self.pass.name(), stage.0, micro_batch.0)?;
        if slice.0 > 0 { write!(f, ".{}", slice.0) } else { Ok(()) }
    }
}
