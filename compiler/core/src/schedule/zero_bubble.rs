//! Zero bubble: split backward passes whose weight gradients fill the end (Qi et al. 2024).
//!
//! Device r delays its weight gradients by so many backward passes that all devices hold the same; in the drain one runs
//! between any two backward passes.

use super::{Problem, Refusal, Schedule, Step, require};
use pipec_program::id::Id;
use pipec_program::{DeviceId, MicroBatch, Pass, Slice, Unit};

/// ZB-H1: the memory of 1F1B. Idle time `(p - 1) (F + B - W)` where W takes no longer than B.
pub(super) fn h1(problem: &Problem) -> Result<Schedule, Refusal> {
    let p = problem.devices().len();
    order(problem, |rank| (p - rank, rank))
}

/// ZB-H2: `2 p - 1` micro-batches on the first device, and no idle time between the first and the last pass of a device
/// where all passes take the same time.
pub(super) fn h2(problem: &Problem) -> Result<Schedule, Refusal> {
    let p = problem.devices().len();
    order(problem, |rank| (2 * (p - rank) - 1, 2 * rank))
}

/// `shape(rank)`: forward passes before the first backward pass, and backward passes whose weight gradients wait.
fn order(problem: &Problem, shape: impl Fn(usize) -> (usize, usize)) -> Result<Schedule, Refusal> {
    require::loop_of_one_copy(problem)?;
    require::chunks(problem, 1)?;
    require::slices(problem, 1)?;
    let n = problem.micro_batches() as usize;
    let device = |(device, stages): (DeviceId, &Vec<pipec_program::StageId>)| {
        let (warm_up, delay) = shape(device.index());
        let step = |pass, micro_batch: usize| {
            let micro_batch = MicroBatch::new(micro_batch);
            Step::Pass(pass, Unit { stage: stages[0], micro_batch, slice: Slice(0) })
        };
        let mut steps: Vec<Step> = (0..n.min(warm_up)).map(|each| step(Pass::F, each)).collect();
        let (mut forwards, mut weights) = (steps.len(), 0);
        for backward in 0..n {
            steps.push(step(Pass::B, backward));
            let waiting = backward + 1 - weights;
            let draining = forwards == n;
            let last = backward + 1 + device.index() >= n;
            if waiting > delay || draining && last {
                steps.push(step(Pass::W, weights));
                weights += 1;
            }
            if !draining {
                steps.push(step(Pass::F, forwards));
                forwards += 1;
            }
        }
        steps.extend((weights..n).map(|each| step(Pass::W, each)));
        steps
    };
    Ok(Schedule { devices: problem.devices().iter().map(device).collect() })
}
