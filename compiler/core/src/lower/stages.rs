//! The distinct shapes of stages: stages that compute the same have one pair of functions.

use super::functions::{
    SliceFunctions, StageFunctions, StageParameter, Wanted, forward_functions, stage_functions,
};
use super::shared::{Window, overlap, share};
use crate::mode::{Forms, VariantId};
use crate::plan::{Part, Plan};
use crate::spec::Model;
use pipec_program::id::{Id, IdVec};
use pipec_program::{ParameterId, Slice, StageId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The functions of every stage.
#[derive(Clone, Debug, PartialEq)]
pub struct Stages {
    /// The functions of each shape; the parameters in it are those of the first stage of the shape.
    pub shapes: Vec<StageFunctions>,
    /// The shape of each stage, in `shapes`.
    pub shape: IdVec<StageId, usize>,
    /// The parameters of each stage, at the places of its shape.
    pub parameters: IdVec<StageId, Vec<StageParameter>>,
    /// Where each stage stands in the common buffers of its device, if it shares a parameter with a stage there.
    pub windows: IdVec<StageId, Option<Window>>,
}

impl Stages {
    /// Makes the functions of every distinct shape once, under the name of its first stage. Of the last so many pieces of the stages in
    /// `apart`, what is computed again is a pass of its own, if the backward passes are in one.
    pub fn new(
        model: &Model,
        forms: &Forms,
        plan: &Plan,
        wanted: Wanted,
        apart: &BTreeMap<StageId, usize>,
    ) -> Self {
        let mut shapes: IdVec<StageId, (Shape, Vec<ParameterId>)> =
            plan.stages.values().map(|stage| Shape::new(model, forms, stage.pieces.clone())).collect();
        for (&stage, &pieces) in apart {
            shapes[stage].0.apart = pieces;
        }
        for (stage, (shape, _)) in shapes.iter_mut() {
            shape.part = plan.stages[stage].part;
            if shape.part == Part::Forward {
                let start = plan.stages[stage].pieces.start;
                shape.boundaries =
                    plan.fed(stage).iter().map(|&fed| plan.stages[fed].pieces.start - start).collect();
                shape.is_followed = plan.after(stage).is_some();
            }
        }
        // Stages that share a parameter on their device see windows, each its own.
        let homes = plan.devices.values().map(|chunks| {
            let has_home = |stage: &StageId| plan.stages[*stage].part != Part::Forward;
            chunks.iter().copied().filter(has_home).collect::<Vec<StageId>>()
        });
        let sharing: Vec<Vec<StageId>> = homes
            .filter(|chunks| overlap(&chunks.iter().map(|&stage| &*shapes[stage].1).collect::<Vec<_>>()))
            .collect();
        for &stage in sharing.iter().flatten() {
            shapes[stage].0.alone = Some(stage);
        }
        let mut known: BTreeMap<&Shape, usize> = BTreeMap::new();
        let mut stages = Self {
            shapes: Vec::new(),
            shape: IdVec::new(),
            parameters: IdVec::new(),
            windows: plan.stages.values().map(|_| None).collect(),
        };
        for (id, (shape, _)) in shapes.iter() {
            let shape = *known.entry(shape).or_insert_with(|| {
                let pieces = plan.stages[id].pieces.clone();
                let (wanted, name) =
                    (Wanted { recompute: apart.get(&id).copied().unwrap_or(0), ..wanted }, id.to_string());
                stages.shapes.push(match shape.part {
                    Part::Both => stage_functions(model, forms, pieces, &name, wanted),
                    Part::Forward => {
                        let Shape { boundaries, is_followed, .. } = shape;
                        forward_functions(model, forms, pieces, &name, boundaries, *is_followed)
                    }
                    Part::Backward => {
                        let mut functions = stage_functions(model, forms, pieces, &name, wanted);
                        for (_, passes) in functions.slices.iter_mut() {
                            passes.forward.function.name = format!("recompute_{name}");
                        }
                        functions
                    }
                });
                stages.shapes.len() - 1
            });
            stages.shape.push(shape);
        }
        for chunks in sharing {
            let mut own: Vec<StageFunctions> = chunks.iter().map(|&stage| stages.of(stage).clone()).collect();
            let windows = share(&mut own);
            for ((&stage, functions), window) in chunks.iter().zip(own).zip(windows) {
                stages.shapes[stages.shape[stage]] = functions;
                stages.windows[stage] = Some(window);
            }
        }
        for (id, (_, used)) in shapes.iter() {
            // Places stand in the order of first use, and so do the parameters of this stage.
            let places = stages.of(id).parameters.iter().zip(used);
            let places = places.map(|(place, &parameter)| StageParameter { parameter, ..*place }).collect();
            stages.parameters.push(places);
        }
        stages
    }

    /// The passes of a stage over a slice.
    pub fn passes(&self, stage: StageId, slice: Slice) -> &SliceFunctions {
        &self.of(stage).slices[slice]
    }

    /// The functions of a stage.
    pub fn of(&self, stage: StageId) -> &StageFunctions {
        &self.shapes[self.shape[stage]]
    }
}

/// What two stages that share functions have in common.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Shape {
    variants: Vec<VariantId>,
    /// Which parameter of the stage, counted in the order of first use, stands in each slot of each piece.
    slots: Vec<usize>,
    /// Where random numbers start, if the stage draws any: they must not depend on the cut, so stages that draw are alike
    /// only at the same place.
    random: Option<u64>,
    /// The stage, if it has a window of its own.
    alone: Option<StageId>,
    /// Of how many pieces what is computed again is a pass of its own.
    apart: usize,
    part: Part,
    /// Where backward stages begin in a forward stage, counted from its start.
    boundaries: Vec<usize>,
    /// Whether a forward stage has a stage after it.
    is_followed: bool,
}

impl Shape {
    /// The shape of some pieces, and their parameters in the order of first use.
    fn new(model: &Model, forms: &Forms, pieces: Range<usize>) -> (Self, Vec<ParameterId>) {
        let sites = |pieces: Range<usize>| pieces.map(|piece| forms.first(piece).random_sites).sum();
        let (before, inside): (u64, u64) = (sites(0..pieces.start), sites(pieces.clone()));
        let variants = forms.pieces[pieces.clone()].to_vec();
        let pieces = &model.pieces[pieces];
        let mut used: Vec<ParameterId> = Vec::new();
        let mut numbers: BTreeMap<ParameterId, usize> = BTreeMap::new();
        let mut slots = Vec::new();
        for &parameter in pieces.iter().flat_map(|piece| piece.parameters.values()) {
            slots.push(*numbers.entry(parameter).or_insert_with(|| {
                used.push(parameter);
                used.len() - 1
            }));
        }
        let random = (inside > 0).then_some(before);
        let (part, boundaries, is_followed) = (Part::Both, Vec::new(), false);
        (Self { variants, slots, random, alone: None, apart: 0, part, boundaries, is_followed }, used)
    }
}

/// The first stage that uses each parameter and has its gradient.
pub(super) fn first_use(
    stages: &Stages,
    plan: &Plan,
    parameters: usize,
) -> IdVec<ParameterId, Option<StageId>> {
    let mut first: IdVec<ParameterId, Option<StageId>> = (0..parameters).map(|_| None).collect();
    let of_gradient = |(stage, _): &(StageId, _)| plan.stages[*stage].part != Part::Forward;
    for (stage, used) in stages.parameters.iter().filter(of_gradient) {
        for place in used {
            if place.parameter.index() < parameters {
                first[place.parameter].get_or_insert(stage);
            }
        }
    }
    first
}

/// The parameters of a stage whose state an earlier stage of the same device has.
pub(super) fn borrowed(stages: &Stages, plan: &Plan, stage: StageId) -> BTreeSet<ParameterId> {
    let earlier = plan.devices[plan.stages[stage].device].iter().take_while(|&&other| other != stage);
    let theirs = earlier
        .filter(|&&other| stages.windows[other].is_some())
        .flat_map(|&other| &stages.parameters[other]);
    theirs.map(|place| place.parameter).collect()
}
