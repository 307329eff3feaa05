//! The weights of a forward cut: where they live, and how they come to the device that computes with them.
//!
//! Weights live with the backward stage that has their gradient. Both cuts hold consecutive pieces, and a stage places its
//! parameters in the order of their first use, so that what a forward stage takes from one backward stage is mostly one run of bytes
//! in both. From the host of its own device a run is copied; from that of another it is a message, which leaves at the start of the
//! step and waits for its place.

use super::arena::{Fixed, part};
use super::stages::Stages;
use super::wires::Wires;
use crate::plan::{Part, Plan};
use crate::spec::Model;
use pipec_program::id::IdVec;
use pipec_program::{Bytes, Channel, ChannelId, DType, DeviceId, ParameterId, StageId, TensorType, View};
use std::collections::{BTreeMap, BTreeSet};

/// A run of weights of a forward stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load {
    /// The forward stage.
    pub(super) stage: StageId,
    /// The backward stage that has them.
    pub(super) home: StageId,
    /// Where they live.
    pub(super) from: View,
    /// Where they go in the weights of the forward stage.
    pub(super) target: Bytes,
    /// The channel between the devices of both; none where they are one.
    pub(super) channel: Option<ChannelId>,
}

/// The parameters of a forward stage with the backward stage that has each, in the order of their places.
pub(super) fn homes(model: &Model, plan: &Plan, stage: StageId) -> Vec<(ParameterId, StageId)> {
    let of = &plan.stages[stage];
    if of.part != Part::Forward {
        return Vec::new();
    }
    let mut seen: BTreeSet<ParameterId> = BTreeSet::new();
    let mut homes = Vec::new();
    for (id, other) in plan.stages.iter().filter(|(_, other)| other.part == Part::Backward) {
        let common = other.pieces.start.max(of.pieces.start)..other.pieces.end.min(of.pieces.end);
        let used = common.flat_map(|piece| model.pieces[piece].parameters.values());
        homes.extend(used.filter(|&&parameter| seen.insert(parameter)).map(|&parameter| (parameter, id)));
    }
    homes
}

/// The loads of all forward stages, and the channels that they take, numbered from `first` on.
pub(super) fn loads(
    (model, precision): (&Model, DType),
    plan: &Plan,
    stages: &Stages,
    fixed: &IdVec<DeviceId, Fixed>,
    wires: &mut Wires<'_>,
    channels: &mut IdVec<ChannelId, Channel>,
) -> Vec<Load> {
    let mut loads: Vec<Load> = Vec::new();
    for stage in plan.stages.ids() {
        let targets: BTreeMap<ParameterId, Bytes> =
            stages.parameters[stage].iter().map(|place| (place.parameter, place.weight)).collect();
        let first = loads.len();
        for (parameter, home) in homes(model, plan, stage) {
            let device = plan.stages[home].device;
            let place = stages.parameters[home].iter().find(|place| place.parameter == parameter);
            let views = fixed[device].stages.get(&home);
            let (Some(place), Some(views), Some(&target)) = (place, views, targets.get(&parameter)) else {
                continue;
            };
            let from = part(views.home, place.weight, precision.bytes() * place.elements);
            // What follows in both is one run, with the gap between.
            let joined = loads[first..].last_mut().filter(|last| {
                last.home == home
                    && last.from.offset <= from.offset
                    && last.target <= target
                    && from.offset - last.from.offset == target - last.target
                    && (from.offset - last.from.offset) - last.from.bytes < Bytes(super::arena::ALIGNMENT)
            });
            match joined {
                Some(last) => last.from.bytes = from.offset + from.bytes - last.from.offset,
                None => loads.push(Load { stage, home, from, target, channel: None }),
            }
        }
    }
    for load in &mut loads {
        let (from, to) = (plan.stages[load.home].device, plan.stages[load.stage].device);
        if from != to {
            let ty = TensorType::new(precision, &[load.from.bytes.0 / precision.bytes().0.max(1)]);
            let route = wires.load(from, to);
            let channel = channels.push(Channel { from, to, message: vec![ty], capacity: 0, route });
            load.channel = Some(channel);
        }
    }
    loads
}
