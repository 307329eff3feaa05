//! The functions of a program.

use super::functions::{StageFunction, clip_function, norm_function, update_function};
use super::stages::{Stages, borrowed, first_use};
use crate::plan::Plan;
use crate::spec::Train;
use pipec_program::id::{Id, IdVec};
use pipec_program::{Function, FunctionId, StageId};

/// The functions of a program and who calls them.
pub(super) struct FunctionTable {
    pub(super) table: IdVec<FunctionId, Function>,
    /// The forward pass of each shape of stage.
    pub(super) forward: Vec<FunctionId>,
    /// The whole backward pass of each shape of stage.
    pub(super) backward: Vec<FunctionId>,
    /// The squared norms of each stage, where gradients are clipped.
    pub(super) norm: IdVec<StageId, Option<Call>>,
    /// The factor of clipping.
    pub(super) clip: Option<Call>,
    /// The optimizer of each shape of stage.
    pub(super) update: Vec<Option<Call>>,
}

/// A function in the table with the meaning of its regions.
pub(super) struct Call {
    pub(super) id: FunctionId,
    pub(super) function: StageFunction,
}

impl FunctionTable {
    /// Forward and backward passes by shape, then norms by stage, clipping, and updates by shape.
    pub(super) fn new(train: &Train, plan: &Plan, stages: &Stages, parameters: usize) -> Self {
        let mut table = IdVec::new();
        let mut call = |function: StageFunction| Call { id: table.push(function.function.clone()), function };
        let (mut forward, mut backward) = (Vec::new(), Vec::new());
        for shape in &stages.shapes {
            forward.push(call(shape.forward.clone()).id);
            backward.push(call(shape.backward.clone()).id);
        }
        let first = first_use(stages, parameters);
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
        let update = stages.shapes.iter().enumerate().map(|(shape, functions)| {
            let named =
                stages.shape.iter().find(|&(_, &of)| of == shape).map_or(StageId::new(0), |(stage, _)| stage);
            let borrowed = borrowed(stages, plan, named);
            let mut functions = functions.clone();
            functions.parameters.retain(|place| !borrowed.contains(&place.parameter));
            let name = format!("update_{named}");
            update_function(&name, &functions, train.optimizer, train.clip_norm.is_some()).map(&mut call)
        });
        let update = update.collect();
        Self { table, forward, backward, norm, clip, update }
    }
}
