//! The function of a pair: the forward pass of one stage and a backward pass of another in one call.
//!
//! The forward kernels stand before the backward kernels, so that both halves take turns in one workspace and compute
//! what they compute alone, to the bit. Regions and scalars are those of the forward function, then those of the backward
//! function, then the workspace. A region that both have is two: the halves are of different units, and even where they
//! are of one stage each names its weights itself.

use super::pass::scalar;
use super::{Region, StageFunction};
use pipec_program::id::{Id, IdVec};
use pipec_program::{Body, Function, Halves, Kernel, Param, ParamId, ScalarId, Value, ValueId};

/// Joins a forward and a backward function, named after both.
pub(crate) fn pair_function(forward: &StageFunction, backward: &StageFunction) -> StageFunction {
    let name = format!("{}+{}", forward.function.name, backward.function.name);
    let mut params: IdVec<ParamId, Param> = IdVec::new();
    let mut regions: IdVec<ParamId, Region> = IdVec::new();
    let mut scalars = IdVec::new();
    let mut workspace: Option<Param> = None;
    let mut middle = Halves { region: ParamId(0), scalar: ScalarId(0) };
    // The place of each region of each half; none for a workspace, which is the last of all.
    let mut places: [Vec<Option<ParamId>>; 2] = [Vec::new(), Vec::new()];
    let mut first_scalars = [0; 2];
    for (half, (of, places)) in [forward, backward].into_iter().zip(&mut places).enumerate() {
        if half == 1 {
            middle = Halves { region: ParamId::new(params.len()), scalar: ScalarId::new(scalars.len()) };
        }
        for (id, param) in of.function.params.iter() {
            places.push(match of.regions[id] {
                Region::Workspace => {
                    let bytes = workspace.as_ref().map_or(param.bytes, |other| other.bytes.max(param.bytes));
                    workspace = Some(Param { bytes, ..param.clone() });
                    None
                }
                region => {
                    regions.push(region);
                    Some(params.push(param.clone()))
                }
            });
        }
        first_scalars[half] = scalars.len();
        for scalar in of.function.scalars.values() {
            scalars.push(scalar.clone());
        }
    }
    let last = ParamId::new(params.len());
    if let Some(workspace) = workspace {
        params.push(workspace);
        regions.push(Region::Workspace);
    }
    let mut values: IdVec<ValueId, Value> = IdVec::new();
    let mut kernels: Vec<Kernel> = Vec::new();
    for ((of, places), first_scalar) in [forward, backward].into_iter().zip(&places).zip(first_scalars) {
        let Body::Kernels { values: of_half, kernels: in_half } = &of.function.body else {
            unreachable!("stage functions have kernels")
        };
        let first = values.len();
        let moved = |value: &mut ValueId| *value = ValueId::new(first + value.index());
        for value in of_half.values() {
            values.push(Value { param: places[value.param.index()].unwrap_or(last), ..value.clone() });
        }
        for kernel in in_half {
            let mut kernel = kernel.clone();
            kernel.inputs.iter_mut().for_each(moved);
            kernel.outputs.iter_mut().for_each(|output| moved(&mut output.value));
            if let Some(id) = scalar(&mut kernel.op) {
                *id = ScalarId::new(first_scalar + id.index());
            }
            kernels.push(kernel);
        }
    }
    let body = Body::Kernels { values, kernels };
    StageFunction { function: Function { name, params, scalars, pair: Some(middle), body }, regions }
}
