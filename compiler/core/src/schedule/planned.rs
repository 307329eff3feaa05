//! The problem of a plan.

use super::{Cost, Problem, ProblemError};
use crate::plan::Plan;

impl Plan {
    /// What a schedule of this plan is made for: its placement, and the times that it estimates. Every pass takes at least
    /// one nanosecond, as one without time would let a message arrive before it is made. A plan does not know the halves
    /// of a backward pass or its activations: the halves are taken as equal, the activations of every unit as 1.
    ///
    /// # Errors
    /// More units than a table holds.
    pub fn problem(&self) -> Result<Problem, ProblemError> {
        let stages = self.stages.values();
        let costs = stages.flat_map(|stage| {
            let (forward, backward) = (stage.forward.0.max(1), stage.backward.0.max(1));
            let (weight, input) = (backward / 2, backward.div_ceil(2));
            let cost = Cost { forward, backward, input, weight, recompute: forward, ..Cost::UNIT };
            std::iter::repeat_n(cost, self.slices as usize)
        });
        Problem::new(1, self.devices.clone(), self.micro_batches, self.slices, costs.collect())
    }
}
