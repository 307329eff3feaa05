//! Why the pieces of every stage take the modes that they take: what the next better mode would need, and what is left.

use super::Compiled;
use crate::mode::{Mode, ModeId};
use crate::schedule::Step;
use crate::spec::{LayerId, Model};
use pipec_program::id::{Id, IdVec};
use pipec_program::{Bytes, DeviceId, Nanos, Pass, StageId, Unit};
use std::collections::BTreeMap;

/// What the pieces of a stage of the first replica do, and what its device lacks for more speed.
#[derive(Clone, Debug, PartialEq)]
pub struct Reason {
    /// The stage.
    pub stage: StageId,
    /// Its device.
    pub device: DeviceId,
    /// How many of its pieces take each mode of each layer.
    pub modes: BTreeMap<(LayerId, ModeId), usize>,
    /// The most micro-batches of the stage that are alive at once; a part of one where sequences are sliced.
    pub live: f64,
    /// What the device has left, and with it every stage on it; of several replicas what is left where least is.
    pub left: Bytes,
    /// The faster mode that needs least, if a piece of the stage has one.
    pub better: Option<Better>,
}

/// A faster mode of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Better {
    /// The layer of the piece.
    pub layer: LayerId,
    /// The mode that it takes.
    pub from: ModeId,
    /// The mode that it could take.
    pub to: ModeId,
    /// The time of a micro-batch that it would save.
    pub gain: Nanos,
    /// The bytes that it would need for all units alive.
    pub needs: Bytes,
}

impl Compiled {
    /// The modes of the stages of the first replica, and what stands against faster ones.
    pub fn reasons(&self, model: &Model) -> Vec<Reason> {
        let plan = self.plan.replica();
        let live = self.live(plan.stages.len());
        let whole: u64 = plan.lengths.iter().sum();
        let devices = plan.devices.len().max(1);
        let reason = |(stage, of): (StageId, &crate::plan::Stage)| {
            let mut modes: BTreeMap<(LayerId, ModeId), usize> = BTreeMap::new();
            for piece in of.pieces.clone() {
                *modes.entry((model.pieces[piece].layer, self.modes[piece])).or_default() += 1;
            }
            let alike = self.arenas.values().skip(of.device.index()).step_by(devices);
            let left = alike.map(|arena| arena.capacity - arena.end.min(arena.capacity)).min();
            let better =
                modes.keys().filter_map(|&(layer, from)| self.better(layer, from, live[stage], whole));
            let better = better.min_by_key(|better| (better.needs, std::cmp::Reverse(better.gain)));
            Reason {
                stage,
                device: of.device,
                modes,
                live: live[stage] as f64 / whole.max(1) as f64,
                left: left.unwrap_or_default(),
                better,
            }
        };
        plan.stages.iter().map(reason).collect()
    }

    /// The tokens of every stage that are alive at most, from their forward pass to their last backward pass.
    fn live(&self, stages: usize) -> IdVec<StageId, u64> {
        let mut now: IdVec<StageId, u64> = (0..stages).map(|_| 0).collect();
        let mut most = now.clone();
        let last = |pass: Pass, splits: bool| match pass {
            Pass::BW | Pass::W => true,
            Pass::B => !splits,
            Pass::F | Pass::R => false,
        };
        let steps = || self.order.devices.values().flatten();
        let splits = steps().any(|step| matches!(step, Step::Product(..) | Step::Pass(Pass::W, _)));
        let tokens = |unit: Unit| self.plan.lengths.get(unit.slice.index()).copied().unwrap_or(0);
        let free = |now: &mut IdVec<StageId, u64>, unit: Unit| {
            now[unit.stage] = now[unit.stage].saturating_sub(tokens(unit));
        };
        for step in steps() {
            if let &Step::Product(unit, part) = step {
                if part + 1 == self.replica.weight_parts {
                    free(&mut now, unit);
                }
                continue;
            }
            for (_, unit) in step.passes().filter(|(pass, _)| *pass == Pass::F) {
                now[unit.stage] += tokens(unit);
                most[unit.stage] = most[unit.stage].max(now[unit.stage]);
            }
            for (_, unit) in step.passes().filter(|&(pass, _)| last(pass, splits)) {
                free(&mut now, unit);
            }
        }
        most
    }

    /// Of the faster modes that offload no more the one that needs least.
    fn better(&self, layer: LayerId, from: ModeId, live: u64, whole: u64) -> Option<Better> {
        let modes = &self.layers[layer].modes;
        let Mode { time, kept, offloaded, .. } = modes[from];
        let faster = modes.iter().filter(|(_, mode)| mode.time < time && mode.offloaded <= offloaded);
        let better = |(to, mode): (ModeId, &Mode)| {
            let more = u128::from((mode.kept - kept.min(mode.kept)).0) * u128::from(live);
            let needs = more.div_ceil(u128::from(whole.max(1)));
            let needs = Bytes(u64::try_from(needs).unwrap_or(u64::MAX));
            Better { layer, from, to, gain: time - mode.time, needs }
        };
        faster.map(better).min_by_key(|better| (better.needs, std::cmp::Reverse(better.gain)))
    }
}
