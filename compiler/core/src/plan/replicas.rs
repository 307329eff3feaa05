//! Replicas of a pipeline: each runs the same order on its share of the micro-batches.
//!
//! Local numbers are those within a replica: stage g of direction k is `k G + g`, the micro-batches of replica r of R are
//! `r, r + R, r + 2 R, ..` in the whole.

use super::Plan;
use crate::schedule::{Schedule, Step};
use pipec_program::id::{Id, IdVec};
use pipec_program::{DeviceId, MicroBatch, StageId, Unit};

impl Plan {
    /// The plan of the first replica alone.
    pub fn replica(&self) -> Self {
        let copies = self.copies / self.replicas.max(1);
        let depth = self.depth();
        let stages = (0..copies * depth).map(|local| self.stages[self.stage_of(0, StageId(local))].clone());
        let stages: IdVec<StageId, _> = stages.collect();
        let devices = self.devices.len() / self.replicas.max(1) as usize;
        let mut chunks: IdVec<DeviceId, Vec<StageId>> = (0..devices).map(|_| Vec::new()).collect();
        for (local, stage) in stages.iter() {
            chunks[stage.device].push(local);
        }
        Self {
            stages,
            devices: chunks,
            replicas: 1,
            copies,
            micro_batches: self.micro_batches / self.replicas.max(1),
            slices: self.slices,
            lengths: self.lengths.clone(),
            products: self.products,
        }
    }

    /// The order of one replica, run by all.
    pub fn replicate(&self, schedule: &Schedule) -> Schedule {
        let of_replica = |replica: u32| {
            let unit = move |unit: Unit| Unit {
                stage: self.stage_of(replica, unit.stage),
                micro_batch: MicroBatch(unit.micro_batch.0 * self.replicas + replica),
                slice: unit.slice,
            };
            let step = move |step: &Step| match *step {
                Step::Pass(pass, of) => Step::Pass(pass, unit(of)),
                Step::Product(of, part) => Step::Product(unit(of), part),
                Step::Pair { forward, backward, pass } => {
                    Step::Pair { forward: unit(forward), backward: unit(backward), pass }
                }
            };
            schedule.devices.values().map(move |steps| steps.iter().map(step).collect())
        };
        Schedule { devices: (0..self.replicas).flat_map(of_replica).collect() }
    }

    /// The stage of a replica by its local number.
    pub(crate) fn stage_of(&self, replica: u32, local: StageId) -> StageId {
        let depth = self.depth();
        let (direction, stage) = (local.0 / depth, local.0 % depth);
        StageId::new(((direction * self.replicas + replica) * depth + stage) as usize)
    }
}
