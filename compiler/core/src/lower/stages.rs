//! The distinct shapes of stages: stages that compute the same have one pair of functions.

use super::functions::{StageFunctions, StageParameter, stage_functions};
use crate::graph::Graphs;
use crate::plan::Plan;
use crate::spec::{LayerId, Model};
use pipec_program::id::{Id, IdVec};
use pipec_program::{ParameterId, StageId};
use std::collections::BTreeMap;

/// The functions of every stage.
#[derive(Clone, Debug, PartialEq)]
pub struct Stages {
    /// The functions of each shape; the parameters in it are those of the first stage of the shape.
    pub shapes: Vec<StageFunctions>,
    /// The shape of each stage, in `shapes`.
    pub shape: IdVec<StageId, usize>,
    /// The parameters of each stage, at the places of its shape.
    pub parameters: IdVec<StageId, Vec<StageParameter>>,
}

impl Stages {
    /// Makes the functions of every distinct shape once, under the name of its first stage.
    pub fn new(model: &Model, graphs: &Graphs, plan: &Plan) -> Self {
        let mut known: BTreeMap<Shape, usize> = BTreeMap::new();
        let mut stages = Self { shapes: Vec::new(), shape: IdVec::new(), parameters: IdVec::new() };
        for (id, stage) in plan.stages.iter() {
            let (shape, used) = Shape::new(model, graphs, stage.pieces.start, stage.pieces.end);
            let shape = *known.entry(shape).or_insert_with(|| {
                let names = (format!("forward_{id}"), format!("backward_{id}"));
                let pieces = stage.pieces.clone();
                stages.shapes.push(stage_functions(model, graphs, pieces, &names.0, &names.1));
                stages.shapes.len() - 1
            });
            stages.shape.push(shape);
            // Places stand in the order of first use, and so do the parameters of this stage.
            let places = stages.shapes[shape].parameters.iter().zip(&used);
            stages
                .parameters
                .push(places.map(|(place, &parameter)| StageParameter { parameter, ..*place }).collect());
        }
        stages
    }

    /// The functions of a stage.
    pub fn of(&self, stage: StageId) -> &StageFunctions {
        &self.shapes[self.shape[stage]]
    }
}

/// What two stages that share functions have in common.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Shape {
    layers: Vec<LayerId>,
    /// Which parameter of the stage, counted in the order of first use, stands in each slot of each piece.
    slots: Vec<usize>,
    /// Where random numbers start, if the stage draws any: they must not depend on the cut, so stages that draw are alike
    /// only at the same place.
    random: Option<u64>,
}

impl Shape {
    /// The shape of some pieces, and their parameters in the order of first use.
    fn new(model: &Model, graphs: &Graphs, start: usize, end: usize) -> (Self, Vec<ParameterId>) {
        let sites =
            |pieces: &[crate::spec::Piece]| pieces.iter().map(|piece| graphs[piece.layer].random_sites).sum();
        let pieces = &model.pieces[start..end];
        let (before, inside): (u64, u64) = (sites(&model.pieces[..start]), sites(pieces));
        let mut used: Vec<ParameterId> = Vec::new();
        let mut numbers: BTreeMap<ParameterId, usize> = BTreeMap::new();
        let mut slots = Vec::new();
        for &parameter in pieces.iter().flat_map(|piece| piece.parameters.values()) {
            slots.push(*numbers.entry(parameter).or_insert_with(|| {
                used.push(parameter);
                used.len() - 1
            }));
        }
        let layers = pieces.iter().map(|piece| piece.layer).collect();
        (Self { layers, slots, random: (inside > 0).then_some(before) }, used)
    }
}

/// The first stage that uses each parameter, of those that the predicate admits.
pub(super) fn first_use(stages: &Stages, parameters: usize) -> IdVec<ParameterId, Option<StageId>> {
    let mut first: IdVec<ParameterId, Option<StageId>> = (0..parameters).map(|_| None).collect();
    for (stage, used) in stages.parameters.iter() {
        for place in used {
            if place.parameter.index() < parameters {
                first[place.parameter].get_or_insert(stage);
            }
        }
    }
    first
}
