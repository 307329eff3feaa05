//! A cut for each direction (Ryu et al. 2025, decoupled pass assignment and fine-grained stages).
//!
//! Both cuts make their longest stage as short as possible, since all devices run the same staircase of stages. The forward cut ends
//! where the last backward stage begins: what that stage computes again nothing else takes, and the loss is its.

use super::{Cuts, Times, cut};
use crate::spec::{Origins, Spec};
use pipe_grammar::diagnostic::{Code, Diagnostic};
use pipec_program::DeviceId;
use std::ops::Range;

/// Forward and backward stages of so many on each device; without a number as many backward stages as make them as long as
/// forward stages, one piece each at least.
///
/// # Errors
/// More stages than pieces, of either cut.
pub(super) fn cuts(
    spec: &Spec,
    times: &Times,
    forward: u32,
    backward: Option<u32>,
    origins: &Origins,
) -> Result<Cuts, Diagnostic> {
    let devices = spec.pipeline.devices.max(1) as usize;
    let pieces = spec.model.pieces.len();
    let ahead = |range: Range<usize>, device: DeviceId| times.forward(range, device).0;
    let back = |range: Range<usize>, device: DeviceId| times.both(range, device).0;
    let first = DeviceId(0);
    let backward = match backward {
        Some(backward) => backward as usize,
        // Rounded; no more than there are pieces for.
        None => {
            let (ahead, back) = (u128::from(ahead(0..pieces, first)), u128::from(back(0..pieces, first)));
            let ratio = (2 * u128::from(forward) * back + ahead) / (2 * ahead.max(1));
            (ratio as usize).clamp(1, (pieces / devices).max(1))
        }
    };
    let stages = devices * backward;
    if stages > pieces {
        return Err(too_many("backward", stages, pieces, devices, origins));
    }
    let backward = cut::balanced(pieces, stages, stages, back);
    let end = backward.get(stages - 1).copied().unwrap_or(pieces);
    let stages = devices * forward as usize;
    if stages > end {
        return Err(too_many("forward", stages, end, devices, origins));
    }
    let forward = cut::balanced(end, stages, stages, ahead);
    Ok(Cuts::Two { forward, backward })
}

/// The same stages in both directions, so many on each device, each computed again from its input (Feng et al. 2023). The last one is
/// computed by its backward passes alone.
///
/// # Errors
/// More stages than pieces.
pub(super) fn same(
    spec: &Spec,
    times: &Times,
    virtual_stages: u32,
    origins: &Origins,
) -> Result<Cuts, Diagnostic> {
    let devices = spec.pipeline.devices.max(1) as usize;
    let pieces = spec.model.pieces.len();
    let stages = devices * virtual_stages as usize;
    if stages > pieces {
        return Err(too_many("virtual", stages, pieces, devices, origins));
    }
    let back = |range: Range<usize>, device: DeviceId| times.both(range, device).0;
    let backward = cut::balanced(pieces, stages, stages, back);
    let forward = backward[..stages].to_vec();
    Ok(Cuts::Two { forward, backward })
}

fn too_many(which: &str, stages: usize, pieces: usize, devices: usize, origins: &Origins) -> Diagnostic {
    let origin = origins.schedule;
    let error = Diagnostic::error(
        origin.source,
        Code::TooManyStages,
        format!("{stages} {which} stages for {pieces} pieces"),
    );
    error.at(origin.span, format!("{} on each of {devices} devices", stages / devices.max(1))).help(
        match pieces / devices.max(1) {
            0 => format!("use at most {pieces} devices"),
            most => format!("write `{which}: {most}` or less"),
        },
    )
}
