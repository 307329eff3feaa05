//! The memory of units and of devices: what makes the problem of a plan more than times.
//!
//! Every unit is counted as [`mod@super::lifetimes`] holds it, each tensor rounded up to the alignment of buffers. What the
//! problem has no word for is left out of the cap of a device instead: what lives for the whole step, and room for the
//! messages of one unit. Neither the moments at which messages move nor the gaps between buffers are known before a
//! program is made, so that a cap is a good guess and [`super::lower`] has the last word.

use super::arena::{ALIGNMENT, Buffers};
use super::functions::{Region, SliceFunctions, StageFunctions};
use super::lifetimes::{any_bytes, region_bytes};
use super::shards::shards;
use super::wires::Wires;
use super::{Stages, needs, visits};
use crate::plan::Plan;
use crate::schedule::{Cost, Problem, ProblemError};
use crate::spec::{Spec, State};
use pipec_program::{DeviceId, Slice, Space, StageId};

/// What a schedule of a plan is made for: its placement, its times, the bytes of every unit, and for every device the bytes
/// that are left for units. The functions of the stages must be those that the schedule may ask for.
///
/// # Errors
/// More units than a table holds.
pub fn problem(spec: &Spec, plan: &Plan, stages: &Stages) -> Result<Problem, ProblemError> {
    let mut problem = plan.problem()?;
    let slices = || (0..plan.slices).map(Slice);
    let units = |stage: StageId| slices().map(move |slice| unit(stages.passes(stage, slice)));
    let share = released(plan.stages.ids().flat_map(units));
    let times = problem.clone();
    problem.set_costs(|stage, slice| {
        let Cost { forward, input, weight, backward, recompute, pair, .. } = *times.cost(stage, slice);
        let Memory { saved, kept, pending, prefix, stored: _, messages: _ } =
            unit(stages.passes(stage, slice));
        let activations = saved + kept;
        Cost {
            forward,
            input,
            weight,
            backward,
            recompute,
            pair,
            activations,
            released: share.of(activations),
            gradients: pending,
            prefix,
            checkpoint: 0,
        }
    });
    let (_, devices) = Wires::new(&spec.cluster, plan.devices.len());
    let shards = shards(&spec.train, &spec.model, plan, stages);
    let rooms = Buffers::new(plan, stages, &shards, needs(spec, plan)).rooms(Space::Device, &devices);
    let cap = |(device, chunks): (DeviceId, &Vec<StageId>)| {
        let most = |bytes: fn(&Memory) -> u64| {
            chunks.iter().flat_map(|&stage| units(stage)).map(|unit| bytes(&unit)).max().unwrap_or(0)
        };
        let room = rooms[device];
        let messages = most(|unit| unit.messages);
        let visits = match spec.pipeline.state {
            State::Device | State::HostOptimizer => 0,
            State::Host => visits::most(stages, chunks).0,
        };
        room.capacity.0.saturating_sub(room.fixed.0).saturating_sub(messages).saturating_sub(visits)
    };
    problem.caps = Some(plan.devices.iter().map(cap).collect());
    Ok(problem)
}

/// How many units that are offloaded are on their device at once: one that has been made, one that is computed with, and one
/// that has come back.
pub(crate) const TRAVELLING: u64 = 3;

/// The bytes of a unit.
pub(crate) struct Memory {
    /// From F to the end of B or BW.
    pub(crate) saved: u64,
    /// From F to the end of W.
    pub(crate) kept: u64,
    /// From B to the end of W.
    pub(crate) pending: u64,
    /// The gradients of its state.
    pub(crate) prefix: u64,
    /// What goes to the host after F and comes back for the backward passes.
    pub(crate) stored: u64,
    /// Messages that come and go with its passes.
    pub(crate) messages: u64,
}

/// The bytes of a unit of a stage with some functions.
pub(crate) fn unit(functions: &SliceFunctions) -> Memory {
    let aligned = |bytes: Option<pipec_program::Bytes>| bytes.unwrap_or_default().align_up(ALIGNMENT).0;
    let forward = |region| aligned(region_bytes(&functions.forward, region));
    let backward = |region| any_bytes(functions.backward(), region);
    let weights = |region| any_bytes(functions.weights(), region);
    let mut memory = Memory {
        saved: forward(Region::Saved),
        kept: forward(Region::Held),
        pending: aligned(backward(Region::Pending)),
        prefix: aligned(backward(Region::StateGradient)),
        stored: forward(Region::Stored),
        messages: forward(Region::Output) + aligned(backward(Region::InputGradient)),
    };
    // The input and the gradient of the output stay where a later pass takes them.
    match (weights(Region::Input), backward(Region::Input)) {
        (Some(_), _) => memory.kept += forward(Region::Input),
        (None, Some(_)) => memory.saved += forward(Region::Input),
        (None, None) => memory.messages += forward(Region::Input),
    }
    let gradient = aligned(backward(Region::OutputGradient));
    match weights(Region::OutputGradient) {
        Some(_) => memory.pending += gradient,
        None => memory.messages += gradient,
    }
    // Passes over weights that take it keep the gradient of the state.
    if weights(Region::StateGradient).is_some() {
        memory.pending += memory.prefix;
    }
    memory
}

/// The workspace of the passes of a stage.
pub(crate) fn workspace(functions: &StageFunctions) -> u64 {
    let all = functions.slices.values().flat_map(SliceFunctions::all);
    any_bytes(all, Region::Workspace).unwrap_or_default().0
}

/// A part of the activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Share {
    part: u64,
    whole: u64,
}

impl Share {
    fn of(self, bytes: u64) -> u64 {
        (u128::from(bytes) * u128::from(self.part) / u128::from(self.whole.max(1))) as u64
    }
}

/// The share of its activations that B frees of every unit at least. It is one for all, as in the form in which problems are
/// exchanged.
fn released(units: impl Iterator<Item = Memory>) -> Share {
    let shares = units
        .map(|unit| Share { part: unit.saved, whole: unit.saved + unit.kept })
        .filter(|share| share.whole > 0);
    let product = |part: u64, whole: u64| u128::from(part) * u128::from(whole);
    let least = shares.min_by(|a, b| product(a.part, b.whole).cmp(&product(b.part, a.whole)));
    least.unwrap_or(Share { part: 0, whole: 1 })
}
