//! The functions of a program.

use super::functions::{
    SliceFunctions, StageFunction, clip_function, norm_function, pair_function, update_function,
};
use super::shards::Shard;
use super::stages::{Stages, borrowed, first_use};
use crate::plan::{Part, Plan};
use crate::schedule::{Schedule, Step};
use crate::spec::Train;
use pipec_program::id::IdVec;
use pipec_program::{Function, FunctionId, Pass, Slice, StageId, Unit};
use std::collections::BTreeMap;

/// The functions of a program and who calls them.
pub(super) struct FunctionTable {
    pub(super) table: IdVec<FunctionId, Function>,
    /// The passes of each shape of stage over each slice.
    pub(super) passes: Vec<IdVec<Slice, PassIds>>,
    /// The passes that the schedule pairs.
    pub(super) pairs: BTreeMap<PairKey, Call>,
    /// The squared norms of each stage, where gradients are clipped.
    pub(super) norm: IdVec<StageId, Option<Call>>,
    /// The factor of clipping.
    pub(super) clip: Option<Call>,
    /// The optimizer of each stage.
    pub(super) update: IdVec<StageId, Option<Call>>,
}

/// The functions of a stage over a slice, as far as there are.
#[derive(Clone, Debug)]
pub(super) struct PassIds {
    pub(super) forward: FunctionId,
    pub(super) recompute: Option<FunctionId>,
    pub(super) fused: Option<FunctionId>,
    pub(super) inputs: Option<FunctionId>,
    pub(super) weights: Option<FunctionId>,
    pub(super) parts: Vec<FunctionId>,
}

/// What pairs of one function have in common: shape and slice of the forward pass, shape and slice of the backward pass,
/// and which that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PairKey {
    forward: (usize, Slice),
    backward: (usize, Slice),
    pass: Pass,
}

impl PairKey {
    pub(super) fn new(stages: &Stages, forward: Unit, backward: Unit, pass: Pass) -> Self {
        let of = |unit: Unit| (stages.shape[unit.stage], unit.slice);
        Self { forward: of(forward), backward: of(backward), pass }
    }
}

/// A function in the table with the meaning of its regions.
#[derive(Clone)]
pub(super) struct Call {
    pub(super) id: FunctionId,
    pub(super) function: StageFunction,
}

impl FunctionTable {
    /// Passes by shape and slice, then the pairs of a schedule, norms by stage, clipping, and updates by shape.
    pub(super) fn new(
        train: &Train,
        plan: &Plan,
        stages: &Stages,
        schedule: &Schedule,
        shards: &IdVec<StageId, Shard>,
        parameters: usize,
    ) -> Self {
        let mut table = IdVec::new();
        let mut call = |function: StageFunction| Call { id: table.push(function.function.clone()), function };
        let mut id = |function: &StageFunction| call(function.clone()).id;
        let mut of_slice = |functions: &SliceFunctions| PassIds {
            forward: id(&functions.forward),
            recompute: functions.backward.recompute.as_ref().map(&mut id),
            fused: functions.backward.fused.as_ref().map(&mut id),
            inputs: functions.backward.inputs.as_ref().map(&mut id),
            weights: functions.backward.weights.as_ref().map(&mut id),
            parts: functions.backward.parts.iter().map(&mut id).collect(),
        };
        let passes =
            stages.shapes.iter().map(|shape| shape.slices.values().map(&mut of_slice).collect()).collect();
        let mut pairs: BTreeMap<PairKey, Call> = BTreeMap::new();
        for &step in schedule.devices.values().flatten() {
            let Step::Pair { forward, backward, pass } = step else { continue };
            pairs.entry(PairKey::new(stages, forward, backward, pass)).or_insert_with(|| {
                let ahead = &stages.passes(forward.stage, forward.slice).forward;
                let of = &stages.passes(backward.stage, backward.slice).backward;
                let back = if pass == Pass::B { &of.inputs } else { &of.fused };
                let back = back.as_ref().expect("there is a function for every pass of the schedule");
                call(pair_function(ahead, back))
            });
        }
        let first = first_use(stages, plan, parameters);
        let norm = stages.shape.ids().map(|stage| {
            train.clip_norm?;
            // The places of the shape with the parameters of this stage.
            let mut functions = stages.of(stage).clone();
            functions.parameters.clone_from(&stages.parameters[stage]);
            let counted = |parameter| first.get(parameter) == Some(&Some(stage));
            norm_function(&format!("norm_{stage}"), &functions, counted, parameters).map(&mut call)
        });
        let norm = norm.collect();
        let clip = train.clip_norm.map(|limit| call(clip_function("clip", parameters, limit)));
        // Stages of one shape that update the same have one function.
        let mut known: Vec<(usize, Shard, Option<Call>)> = Vec::new();
        let update = stages.shape.iter().map(|(stage, &shape)| {
            let shard = &shards[stage];
            let same = known.iter().find(|(of, other, _)| *of == shape && other == shard);
            if let Some((_, _, update)) = same {
                return update.clone();
            }
            if plan.stages[stage].part == Part::Forward {
                return None;
            }
            let borrowed = borrowed(stages, plan, stage);
            let mut functions = shard.of(stages.of(stage));
            functions.parameters.retain(|place| !borrowed.contains(&place.parameter));
            let name = format!("update_{stage}");
            let function = update_function(&name, &functions, train.optimizer, train.clip_norm.is_some());
            let update = function.map(&mut call);
            known.push((shape, shard.clone(), update.clone()));
            update
        });
        let update = update.collect();
        Self { table, passes, pairs, norm, clip, update }
    }
}
