//! The problem of a plan.

use super::{Cost, Problem, ProblemError};
use crate::plan::{Part, Plan};

impl Plan {
    /// What a schedule of this plan is made for: its placement, and the times that it estimates. Every pass takes at least
    /// one nanosecond, as one without time would let a message arrive before it is made. A plan does not know the bytes of
    /// activations: those of every unit are taken as 1.
    ///
    /// # Errors
    /// More units than a table holds.
    pub fn problem(&self) -> Result<Problem, ProblemError> {
        let stages = self.stages.values();
        let costs = stages.flat_map(|stage| stage.times.values()).map(|times| {
            let (forward, backward) = (times.forward.0.max(1), times.backward.0.max(1));
            let (input, weight) = (times.inputs.0.max(1), times.weights.0.max(1));
            Cost { forward, backward, input, weight, recompute: forward, ..Cost::UNIT }
        });
        let (devices, costs) = (self.devices.clone(), costs.collect());
        let mut problem = Problem::new(self.copies, devices, self.micro_batches, self.slices, costs)?;
        problem.weight_parts = self.products.max(1);
        let backward = self.stages.iter().filter(|(_, stage)| stage.part == Part::Backward);
        let sources: Vec<_> = backward.map(|(id, _)| self.source(id)).collect();
        if sources.is_empty() {
            return Ok(problem);
        }
        let forward = self.stages.len() - sources.len();
        Ok(problem.with_forward(forward as u32, sources))
    }

    /// The part of a problem of this plan that one replica has; every device has what its like has least of in any replica.
    ///
    /// # Errors
    /// More units than a table holds.
    pub fn problem_of_replica(&self, whole: &Problem) -> Result<Problem, ProblemError> {
        let replica = self.replica();
        let mut problem = replica.problem()?;
        problem.set_costs(|stage, slice| *whole.cost(self.stage_of(0, stage), slice));
        problem.weight_parts = whole.weight_parts;
        problem.caps = whole.caps.as_ref().map(|caps| {
            let of_device = |device: usize| {
                let alike = caps.values().skip(device).step_by(replica.devices.len().max(1));
                alike.copied().min().unwrap_or(0)
            };
            (0..replica.devices.len()).map(of_device).collect()
        });
        Ok(problem)
    }
}
