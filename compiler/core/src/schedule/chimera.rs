//! Chimera: two copies of the pipeline in opposite directions, each with half of the micro-batches (Li and Hoefler 2021).
//!
//! Where forward and backward passes take the same time and n = p, the two orders fit into each other with `p - 2` idle
//! passes: a bubble of `(p - 2) / (2 n + p - 2)`. Each device keeps between p/2 and p micro-batches of its stages, and
//! twice the weights. The order is that of passes of equal time; more than p micro-batches follow as whole rounds overlap.

use super::limit::Limit;
use super::list::{Backward, First, Rules, Weights, list};
use super::{Cost, Problem, Refusal, Schedule, require};

/// An even number of devices and of micro-batches. At most p units on a device.
pub(super) fn order(problem: &Problem) -> Result<Schedule, Refusal> {
    require::bidirectional(problem)?;
    require::slices(problem, 1)?;
    let (p, n) = (problem.devices().len() as u32, problem.micro_batches());
    if !p.is_multiple_of(2) {
        return Err(Refusal::OddDevices(p));
    }
    if !n.is_multiple_of(2) {
        return Err(Refusal::OddMicroBatches(n));
    }
    let mut equal = problem.clone();
    equal.set_costs(|_, _| Cost { backward: 1, ..Cost::UNIT });
    equal.delay = 0;
    let limit = Limit::units(problem, p);
    let orders = [First::Deep, First::Oldest]
        .into_iter()
        .flat_map(|first| [false, true].map(|alternate| (first, alternate)));
    let listed = orders.filter_map(|(first, alternate)| {
        let rules = Rules {
            backward: Backward::Whole,
            first,
            weights: Weights::Fill,
            alternate,
            limit: Some(&limit),
        };
        list(&equal, rules)
    });
    listed.min_by_key(|listed| listed.makespan).map(|listed| listed.schedule).ok_or(Refusal::NotBidirectional)
}
