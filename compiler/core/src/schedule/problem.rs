//! What a schedule is made for: devices, stages, units, times and memory, and no model.
//!
//! A [`Problem`] holds C copies of a pipeline of G stages; stage g of copy k has the id `k G + g`, and micro-batch m runs
//! on copy `m mod C`. All numbers are integers of some unit of time and of memory, so that orders never depend on
//! rounding. Every stage stands on one device.
//!
//! A problem of two cuts ([`Problem::with_forward`]) has one copy. Its first stages run F alone; the others, which are those of the
//! backward cut, run R, which makes from the output of a forward stage what the backward passes need, and the backward passes.

use super::{Placement, Step};
use pipec_program::id::{Id, IdVec};
use pipec_program::{DeviceId, MicroBatch, Pass, Slice, StageId, Unit};
use std::fmt;

/// What a schedule is made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    copies: u32,
    micro_batches: u32,
    slices: u32,
    devices: IdVec<DeviceId, Vec<StageId>>,
    place: IdVec<StageId, DeviceId>,
    /// By stage, then slice.
    costs: Vec<Cost>,
    /// The second cut; none where stages run all passes.
    cuts: Option<Cuts>,
    /// GEMMs of the weight gradients of a unit, at least 1.
    pub weight_parts: u16,
    /// The time of a message between devices.
    pub delay: u64,
    /// The most memory of each device, in the unit of [`Cost`]; no limit without it.
    pub caps: Option<IdVec<DeviceId, u64>>,
}

/// A cut for each direction.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Cuts {
    /// Stages of the forward cut.
    forward: u32,
    /// For each backward stage the forward stage that makes its input; none for the first.
    sources: Vec<Option<StageId>>,
}

/// Times and memory of a unit, by stage and slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// The time of F.
    pub forward: u64,
    /// The time of B.
    pub input: u64,
    /// The time of W, all its GEMMs together.
    pub weight: u64,
    /// The time of BW.
    pub backward: u64,
    /// The time of R.
    pub recompute: u64,
    /// The time of F and BW of two units like this one as one block, F&B in papers; as long as both, one after the other,
    /// without it.
    pub pair: Option<u64>,
    /// Activations, from the start of F to the end of the backward passes.
    pub activations: u64,
    /// The part of the activations that the end of B frees; W frees the rest.
    pub released: u64,
    /// What B makes for W, from the start of B to the end of W.
    pub gradients: u64,
    /// The accumulator of the gradients of keys and values of this slice: from the start of the backward pass of the
    /// last slice to the end of that of this slice. The last slice needs none.
    pub prefix: u64,
    /// What F keeps of a unit that is recomputed; R makes the activations.
    pub checkpoint: u64,
}

impl Cost {
    /// The time of F and BW one after the other.
    pub fn apart(&self) -> u64 {
        self.forward.saturating_add(self.backward)
    }

    /// What a pair whose backward half is of this unit takes less than its passes one after the other; below 0 where they
    /// get in each other's way.
    pub fn overlap(&self) -> i128 {
        self.pair.map_or(0, |pair| i128::from(self.apart()) - i128::from(pair))
    }

    /// F, B, W and R take one unit of time, BW two; activations take one unit of memory, and all else is nothing.
    pub const UNIT: Self = Self {
        forward: 1,
        input: 1,
        weight: 1,
        backward: 2,
        recompute: 1,
        pair: None,
        activations: 1,
        released: 0,
        gradients: 0,
        prefix: 0,
        checkpoint: 0,
    };
}

/// Why there is no such problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProblemError {
    /// A number that must not be 0.
    Zero(&'static str),
    /// A stage on two devices, or twice on one.
    PlacedTwice(StageId),
    /// A stage on no device.
    NotPlaced(StageId),
    /// A number of stages that the copies do not share evenly.
    Copies {
        /// Stages.
        stages: usize,
        /// Copies.
        copies: u32,
    },
    /// A table of another size than one entry for each stage and slice.
    Costs {
        /// Entries that there must be.
        expected: usize,
        /// Entries that there are.
        found: usize,
    },
    /// More units than a table holds.
    TooLarge,
}

impl fmt::Display for ProblemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero(what) => write!(f, "a pipeline needs at least 1 {what}"),
            Self::PlacedTwice(stage) => write!(f, "{stage} is placed twice"),
            Self::NotPlaced(stage) => write!(f, "{stage} is placed on no device"),
            Self::Copies { stages, copies } => {
                write!(f, "{copies} copies cannot share {stages} stages evenly")
            }
            Self::Costs { expected, found } => {
                write!(f, "{found} costs for {expected} units of a micro-batch")
            }
            Self::TooLarge => write!(f, "more than {MOST_UNITS} units"),
        }
    }
}

impl std::error::Error for ProblemError {}

/// The most units of a problem: tables of them must fit the memory of a compiler host.
const MOST_UNITS: u64 = 1 << 26;

impl Problem {
    /// A problem with stages placed as `devices` say, the chunks of each device in their order.
    ///
    /// # Errors
    /// Sizes of 0, a stage that is not placed exactly once, copies of unequal size, costs for another number of units
    /// than stages times slices.
    pub fn new(
        copies: u32,
        devices: IdVec<DeviceId, Vec<StageId>>,
        micro_batches: u32,
        slices: u32,
        costs: Vec<Cost>,
    ) -> Result<Self, ProblemError> {
        let stages: usize = devices.values().map(Vec::len).sum();
        let sizes = [
            (copies as usize, "copy"),
            (devices.len(), "device"),
            (stages, "stage"),
            (micro_batches as usize, "micro-batch"),
            (slices as usize, "slice"),
        ];
        if let Some(&(_, what)) = sizes.iter().find(|&&(size, _)| size == 0) {
            return Err(ProblemError::Zero(what));
        }
        if !stages.is_multiple_of(copies as usize) {
            return Err(ProblemError::Copies { stages, copies });
        }
        let units =
            (stages as u64).saturating_mul(u64::from(micro_batches)).saturating_mul(u64::from(slices));
        if units > MOST_UNITS {
            return Err(ProblemError::TooLarge);
        }
        let expected = stages * slices as usize;
        if costs.len() != expected {
            return Err(ProblemError::Costs { expected, found: costs.len() });
        }
        let mut place = vec![None; stages];
        for (device, chunks) in devices.iter() {
            for &stage in chunks {
                match place.get_mut(stage.index()) {
                    Some(place @ None) => *place = Some(device),
                    Some(Some(_)) => return Err(ProblemError::PlacedTwice(stage)),
                    // A stage beyond the last leaves another one without a place.
                    None => {}
                }
            }
        }
        let place: Option<Vec<DeviceId>> = place.iter().copied().collect();
        let Some(place) = place else {
            let missing = (0..stages)
                .map(StageId::new)
                .find(|stage| devices.values().all(|chunks| !chunks.contains(stage)));
            return Err(ProblemError::NotPlaced(missing.unwrap_or(StageId(0))));
        };
        let place = IdVec::from(place);
        Ok(Self {
            copies,
            micro_batches,
            slices,
            devices,
            place,
            costs,
            cuts: None,
            weight_parts: 1,
            delay: 0,
            caps: None,
        })
    }

    /// A problem of equal stages with unit costs: `chunks` stages of each copy on each device.
    ///
    /// # Errors
    /// Sizes of 0 or beyond what tables hold.
    pub fn uniform(
        placement: Placement,
        devices: u32,
        chunks: u32,
        micro_batches: u32,
        slices: u32,
    ) -> Result<Self, ProblemError> {
        let most = u64::from(devices).saturating_mul(u64::from(chunks)).saturating_mul(2 * u64::from(slices));
        if most > MOST_UNITS {
            return Err(ProblemError::TooLarge);
        }
        let copies = placement.copies();
        let stage = |device: u32, chunk: u32| {
            let backwards = match placement {
                Placement::Loop => false,
                Placement::Zigzag => chunk % 2 == 1,
                Placement::Bidirectional => chunk >= chunks,
            };
            StageId(chunk * devices + if backwards { devices - 1 - device } else { device })
        };
        let placed =
            (0..devices).map(|device| (0..copies * chunks).map(|chunk| stage(device, chunk)).collect());
        let costs = vec![Cost::UNIT; (copies * devices * chunks * slices) as usize];
        Self::new(copies, placed.collect(), micro_batches, slices, costs)
    }

    /// A problem of two cuts into equal stages, `forward` and `backward` of them on each device, placed so that both directions travel the
    /// devices the same way (Ryu et al. 2025, section 3): forward stage g on device `g mod p`, backward stage h on `p - 1 - h mod p`.
    ///
    /// # Errors
    /// Sizes of 0 or beyond what tables hold.
    pub fn two_cuts(
        devices: u32,
        [forward, backward]: [u32; 2],
        micro_batches: u32,
        [of_forward, of_backward]: [Cost; 2],
    ) -> Result<Self, ProblemError> {
        let stages = u64::from(devices) * (u64::from(forward) + u64::from(backward));
        if stages > MOST_UNITS {
            return Err(ProblemError::TooLarge);
        }
        if forward == 0 || backward == 0 {
            return Err(ProblemError::Zero("stage"));
        }
        let (ahead, back) = (devices * forward, devices * backward);
        let on = |device: u32| {
            let ahead_of = (0..forward).map(move |chunk| StageId(chunk * devices + device));
            let back_of =
                (0..backward).map(move |chunk| StageId(ahead + chunk * devices + (devices - 1 - device)));
            ahead_of.chain(back_of).collect::<Vec<_>>()
        };
        // Backward stage h begins at h / (p b) of the model, forward stage g ends at (g + 1) / (p f).
        let source = |stage: u32| {
            let ends = (u64::from(stage) * u64::from(forward)).div_ceil(u64::from(backward));
            ends.checked_sub(1).map(|stage| StageId(stage as u32))
        };
        let costs = (0..ahead).map(|_| of_forward).chain((0..back).map(|_| of_backward));
        let problem = Self::new(1, (0..devices).map(on).collect(), micro_batches, 1, costs.collect())?;
        Ok(problem.with_forward(ahead, (0..back).map(source).collect()))
    }

    /// The same problem where the first `forward` stages are those of the forward cut, and each of the others computes again what the
    /// forward stage in `sources` has passed.
    pub fn with_forward(self, forward: u32, sources: Vec<Option<StageId>>) -> Self {
        Self { cuts: Some(Cuts { forward, sources }), ..self }
    }

    /// Stages of the forward cut, where backward has a cut of its own.
    pub fn forward_stages(&self) -> Option<u32> {
        self.cuts.as_ref().map(|cuts| cuts.forward)
    }

    /// Whether a stage is one of a backward cut.
    pub fn is_backward(&self, stage: StageId) -> bool {
        self.cuts.as_ref().is_some_and(|cuts| stage.0 >= cuts.forward)
    }

    /// Whether a stage has a pass.
    pub fn runs(&self, pass: Pass, stage: StageId) -> bool {
        match pass {
            Pass::F => !self.is_backward(stage),
            Pass::R | Pass::B | Pass::W | Pass::BW => self.cuts.is_none() || self.is_backward(stage),
        }
    }

    /// The stage whose forward pass makes the input of a stage; none where that is tokens.
    pub fn source(&self, stage: StageId) -> Option<StageId> {
        match &self.cuts {
            Some(cuts) if stage.0 >= cuts.forward => {
                cuts.sources.get((stage.0 - cuts.forward) as usize).copied().flatten()
            }
            Some(_) | None => self.before(stage),
        }
    }

    /// The backward stages that compute again what a forward stage has passed.
    pub fn fed(&self, stage: StageId) -> impl Iterator<Item = StageId> + '_ {
        let cuts = self.cuts.iter();
        cuts.flat_map(move |cuts| {
            let fed = (cuts.forward..).zip(&cuts.sources).filter(move |(_, source)| **source == Some(stage));
            fed.map(|(backward, _)| StageId(backward))
        })
    }

    /// The units of a stage, micro-batches and then slices ascending.
    pub fn units_of(&self, stage: StageId) -> impl Iterator<Item = Unit> + Clone + use<> {
        let slices = self.slices;
        self.micro_batches_of(stage).flat_map(move |micro_batch| {
            (0..slices).map(move |slice| Unit { stage, micro_batch, slice: Slice(slice) })
        })
    }

    /// Copies C of the pipeline.
    pub fn copies(&self) -> u32 {
        self.copies
    }

    /// Micro-batches n of a step, over all copies.
    pub fn micro_batches(&self) -> u32 {
        self.micro_batches
    }

    /// Slices s of a sequence.
    pub fn slices(&self) -> u32 {
        self.slices
    }

    /// The chunks of each device.
    pub fn devices(&self) -> &IdVec<DeviceId, Vec<StageId>> {
        &self.devices
    }

    /// The most chunks of a device, over all copies.
    pub fn chunks(&self) -> u32 {
        self.devices.values().map(Vec::len).max().unwrap_or(0) as u32
    }

    /// All stages of all copies.
    pub fn stages(&self) -> impl DoubleEndedIterator<Item = StageId> + ExactSizeIterator + use<> {
        self.place.ids()
    }

    /// Stages G of one copy.
    pub fn depth(&self) -> u32 {
        self.place.len() as u32 / self.copies
    }

    /// The device of a stage.
    pub fn device(&self, stage: StageId) -> DeviceId {
        self.place[stage]
    }

    /// The copy of a stage.
    pub fn copy(&self, stage: StageId) -> u32 {
        stage.0 / self.depth()
    }

    /// The micro-batches that pass a stage, ascending.
    pub fn micro_batches_of(&self, stage: StageId) -> impl Iterator<Item = MicroBatch> + Clone + use<> {
        (self.copy(stage)..self.micro_batches).step_by(self.copies as usize).map(MicroBatch)
    }

    /// The stage before in the same cut: what makes the input of a stage and takes its gradient; none for the first.
    pub fn before(&self, stage: StageId) -> Option<StageId> {
        let is_first = stage.0.is_multiple_of(self.depth()) || self.forward_stages() == Some(stage.0);
        (!is_first).then(|| StageId(stage.0 - 1))
    }

    /// The stage after in the same cut: what takes the output of a stage and makes its gradient; none for the last.
    pub fn after(&self, stage: StageId) -> Option<StageId> {
        let is_last =
            (stage.0 + 1).is_multiple_of(self.depth()) || self.forward_stages() == Some(stage.0 + 1);
        (!is_last).then(|| StageId(stage.0 + 1))
    }

    /// Whether the problem has a unit.
    pub fn has(&self, unit: Unit) -> bool {
        unit.stage.index() < self.place.len()
            && unit.micro_batch.0 < self.micro_batches
            && unit.slice.0 < self.slices
            && unit.micro_batch.0 % self.copies == self.copy(unit.stage)
    }

    /// Times and memory of a unit of the problem.
    pub fn cost(&self, stage: StageId, slice: Slice) -> &Cost {
        &self.costs[stage.index() * self.slices as usize + slice.index()]
    }

    /// Changes the times and memory of every stage and slice.
    pub fn set_costs(&mut self, cost: impl Fn(StageId, Slice) -> Cost) {
        let slices = self.slices as usize;
        for (position, entry) in self.costs.iter_mut().enumerate() {
            *entry = cost(StageId::new(position / slices), Slice::new(position % slices));
        }
    }

    /// The time of a step. A pair takes as long as its longer half at least.
    pub fn duration(&self, step: Step) -> u64 {
        match step {
            Step::Pass(pass, unit) => self.pass(pass, unit),
            Step::Product(unit, part) => share(self.pass(Pass::W, unit), self.weight_parts, part),
            // The halves may be of stages that take different times: then it is the overlap that is known.
            Step::Pair { forward, backward, pass } => {
                let halves = [self.pass(Pass::F, forward), self.pass(pass, backward)];
                let overlap = self.cost(backward.stage, backward.slice).overlap();
                let both = i128::from(halves[0]) + i128::from(halves[1]) - overlap;
                u64::try_from(both)
                    .unwrap_or(if both < 0 { 0 } else { u64::MAX })
                    .max(halves[0])
                    .max(halves[1])
            }
        }
    }

    fn pass(&self, pass: Pass, unit: Unit) -> u64 {
        let cost = self.cost(unit.stage, unit.slice);
        match pass {
            Pass::F => cost.forward,
            Pass::B => cost.input,
            Pass::W => cost.weight,
            Pass::BW => cost.backward,
            Pass::R => cost.recompute,
        }
    }

    /// The position of a unit in a dense table of all units.
    pub(crate) fn unit_index(&self, unit: Unit) -> usize {
        let (n, s) = (self.micro_batches as usize, self.slices as usize);
        (unit.stage.index() * n + unit.micro_batch.index()) * s + unit.slice.index()
    }

    /// The size of a dense table of all units: stages times micro-batches times slices.
    pub(crate) fn units(&self) -> usize {
        self.place.len() * self.micro_batches as usize * self.slices as usize
    }
}

/// Part `part` of `parts` almost equal integers that add up to `total`; the whole where there is one part.
pub(crate) fn share(total: u64, parts: u16, part: u16) -> u64 {
    let parts = u128::from(parts.max(1));
    let until = |part: u128| (u128::from(total) * part.min(parts) / parts) as u64;
    until(u128::from(part) + 1) - until(u128::from(part))
}
