//! Parameters that several stages of one device use: one state, seen by each of these stages.
//!
//! A function takes the weights of its stage as one region. So the stages of such a device lie in common buffers, each
//! parameter once, and each stage sees a *window* of them, from its first parameter to its last. What lies between is
//! in the window but not touched.

use super::functions::{Region, SliceFunctions, StageFunctions, StageParameter, place_parameters};
use crate::graph::accumulator_type;
use pipec_program::id::IdVec;
use pipec_program::{Body, Bytes, DType, ParamId, ParameterId, Value, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// Where the regions of a stage start in the common buffers of its device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// In the weights.
    pub weights: Bytes,
    /// In the gradients.
    pub gradients: Bytes,
    /// In the first moments, the second moments and the master weights.
    pub moments: Bytes,
}

/// Whether two of some stages, given by their parameters, use the same parameter.
pub(super) fn overlap(stages: &[&[ParameterId]]) -> bool {
    let mut seen = BTreeSet::new();
    stages.iter().any(|used| used.iter().any(|&parameter| !seen.insert(parameter)))
}

/// Moves the stages of a device into common buffers: their functions see windows. Returns the windows.
pub(super) fn share(stages: &mut [StageFunctions]) -> Vec<Window> {
    let types = stages.first().map(|stage| (stage.precision, stage.gradient));
    let Some((precision, gradient)) = types else { return Vec::new() };
    let mut seen = BTreeSet::new();
    let all = stages.iter().flat_map(|stage| &stage.parameters).filter(|place| seen.insert(place.parameter));
    let (places, _) =
        place_parameters(all.map(|place| (place.parameter, place.elements)), precision, gradient);
    let common: BTreeMap<ParameterId, StageParameter> =
        places.into_iter().map(|place| (place.parameter, place)).collect();
    stages.iter_mut().map(|stage| into_window(stage, &common)).collect()
}

/// Gives the parameters of a stage their common places, counted from the first of them.
fn into_window(stage: &mut StageFunctions, common: &BTreeMap<ParameterId, StageParameter>) -> Window {
    let precision = stage.precision;
    let common: Vec<StageParameter> =
        stage.parameters.iter().filter_map(|place| common.get(&place.parameter)).copied().collect();
    let start = |of: fn(&StageParameter) -> Bytes| common.iter().map(of).min().unwrap_or_default();
    let window = Window {
        weights: start(|p| p.weight),
        gradients: start(|p| p.gradient),
        moments: start(|p| p.moment),
    };
    let places: Vec<StageParameter> = common
        .iter()
        .map(|place| StageParameter {
            weight: place.weight - window.weights,
            gradient: place.gradient - window.gradients,
            moment: place.moment - window.moments,
            ..*place
        })
        .collect();
    let end = |of: fn(&StageParameter) -> Bytes, dtype: DType| {
        places.iter().map(|place| of(place) + dtype.bytes() * place.elements).max().unwrap_or_default()
    };
    stage.weights = end(|place| place.weight, precision);
    stage.gradients = end(|place| place.gradient, stage.gradient);
    stage.moments = end(|place| place.moment, accumulator_type(precision));
    for function in stage.slices.values_mut().flat_map(SliceFunctions::all_mut) {
        for (region, bytes, of) in [
            (Region::Weights, stage.weights, (|place| place.weight) as fn(&StageParameter) -> Bytes),
            (Region::Gradients, stage.gradients, |place| place.gradient),
        ] {
            let taken = function.regions.iter().find(|&(_, &taken)| taken == region).map(|(param, _)| param);
            let Some(param) = taken else { continue };
            function.function.params[param].bytes = bytes;
            if let Body::Kernels { values, .. } = &mut function.function.body {
                let moves: Vec<_> = stage.parameters.iter().map(of).zip(places.iter().map(of)).collect();
                move_values(values, param, &moves);
            }
        }
    }
    stage.parameters = places;
    window
}

/// Moves the values of a region along with the parameters that they lie in, given by old and new start, ascending.
fn move_values(values: &mut IdVec<ValueId, Value>, param: ParamId, moves: &[(Bytes, Bytes)]) {
    for (_, value) in values.iter_mut().filter(|(_, value)| value.param == param) {
        let after = moves.partition_point(|(old, _)| *old <= value.offset);
        if let Some((old, new)) = after.checked_sub(1).and_then(|last| moves.get(last)) {
            value.offset = *new + (value.offset - *old);
        }
    }
}
