//! Which parameters of a stage each of its copies updates.
//!
//! With a sharded optimizer the copies of a stage share its parameters: each updates a run of neighbours and broadcasts
//! their weights. Runs are cut between parameters, so that the shares differ by at most the largest parameter. A stage
//! that shares a parameter with another stage is updated by every copy in full.

use super::functions::{StageFunctions, StageParameter};
use super::stages::Stages;
use crate::graph::accumulator_type;
use crate::plan::Plan;
use crate::spec::{Model, OptimizerState, Train};
use pipec_program::id::{Id, IdVec};
use pipec_program::{Bytes, StageId};
use std::ops::Range;

/// What a copy of a stage updates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shard {
    /// Positions among the parameters of the stage.
    pub(super) parameters: Range<usize>,
    /// Where the first of them starts in the moments of the whole stage.
    pub(super) start: Bytes,
    /// The bytes of their moments.
    pub(super) bytes: Bytes,
    /// Whether other copies of the stage update the rest.
    pub(super) shared: bool,
}

/// The shard of every stage of every copy.
pub(super) fn shards(train: &Train, model: &Model, plan: &Plan, stages: &Stages) -> IdVec<StageId, Shard> {
    let mut uses = vec![0u32; model.parameters.len()];
    let first_copy = stages.parameters.iter().take(plan.depth() as usize);
    for place in first_copy.flat_map(|(_, places)| places) {
        uses[place.parameter.index()] += 1;
    }
    let of_stage = |(stage, places): (StageId, &Vec<StageParameter>)| {
        let functions = stages.of(stage);
        let tied = places.iter().any(|place| uses[place.parameter.index()] > 1);
        let shared = train.optimizer_state == OptimizerState::Sharded && plan.copies > 1 && !tied;
        if shared {
            shard(functions, stage.0 / plan.depth(), plan.copies)
        } else {
            let parameters = 0..functions.parameters.len();
            Shard { parameters, start: Bytes::ZERO, bytes: functions.moments, shared: false }
        }
    };
    stages.parameters.iter().map(of_stage).collect()
}

/// The share of a copy: the parameters whose middle lies in its part of the stage.
fn shard(functions: &StageFunctions, copy: u32, copies: u32) -> Shard {
    let of_moments = accumulator_type(functions.precision).bytes();
    let total: u64 = functions.parameters.iter().map(|place| place.elements).sum();
    let owner = |before: u64, elements: u64| {
        let middle = u128::from(before) * 2 + u128::from(elements);
        (middle * u128::from(copies) / (2 * u128::from(total.max(1)))) as u32
    };
    let mut before = 0;
    let mut owned: Option<Range<usize>> = None;
    for (position, place) in functions.parameters.iter().enumerate() {
        if owner(before, place.elements).min(copies - 1) == copy {
            owned = Some(owned.map_or(position, |range| range.start)..position + 1);
        }
        before += place.elements;
    }
    let parameters = owned.unwrap_or(0..0);
    let places = &functions.parameters[parameters.clone()];
    let start = places.first().map_or(Bytes::ZERO, |place| place.moment);
    let end = places.last().map_or(Bytes::ZERO, |place| place.moment + of_moments * place.elements);
    Shard { parameters, start, bytes: end - start, shared: true }
}

impl Shard {
    /// The stage as its optimizer step sees it: only what is updated, with moments that start at zero.
    pub(super) fn of(&self, functions: &StageFunctions) -> StageFunctions {
        let places = functions.parameters[self.parameters.clone()].iter();
        let places = places.map(|place| StageParameter { moment: place.moment - self.start, ..*place });
        StageFunctions { parameters: places.collect(), moments: self.bytes, ..functions.clone() }
    }
}
