//! The schedule as JSON: the form in which pipeline schedules are checked independently, documented in
//! `docs/timeline.md`.

use pipec_compiler::plan::{PassTimes, Plan};
use pipec_compiler::schedule::Schedule;
use pipec_program::{Pass, StageId, Unit};
use serde::Serialize;

#[derive(Serialize)]
struct ScheduleView {
    devices: usize,
    chunks: usize,
    slices: u32,
    microbatches: u32,
    /// For each device the stage of each of its chunks.
    placement: Vec<Vec<u32>>,
    costs: CostsView,
    /// For each device its passes: kind, micro-batch, slice, chunk.
    ops: Vec<Vec<(&'static str, u32, u32, usize)>>,
}

/// Estimated nanoseconds by stage and slice.
#[derive(Serialize)]
struct CostsView {
    #[serde(rename = "F")]
    forward: Vec<Vec<u64>>,
    #[serde(rename = "BW")]
    backward: Vec<Vec<u64>>,
}

/// A plan and its schedule as JSON.
pub fn schedule_json(plan: &Plan, schedule: &Schedule) -> String {
    let chunk =
        |stages: &[StageId], stage: StageId| stages.iter().position(|each| *each == stage).unwrap_or(0);
    let ops = schedule.devices.iter().map(|(device, steps)| {
        let stages = plan.devices.get(device).map_or(&[][..], Vec::as_slice);
        let op = |(pass, unit): (Pass, Unit)| {
            (pass.name(), unit.micro_batch.0, unit.slice.0, chunk(stages, unit.stage))
        };
        steps.iter().flat_map(|step| step.passes()).map(op).collect()
    });
    let times = |of: fn(&PassTimes) -> u64| {
        plan.stages.values().map(|stage| stage.times.values().map(of).collect()).collect()
    };
    let view = ScheduleView {
        devices: plan.devices.len(),
        chunks: plan.devices.values().map(Vec::len).max().unwrap_or(0),
        slices: plan.slices,
        microbatches: plan.micro_batches,
        placement: plan.devices.values().map(|stages| stages.iter().map(|stage| stage.0).collect()).collect(),
        costs: CostsView {
            forward: times(|times| times.forward.0),
            backward: times(|times| times.backward.0),
        },
        ops: ops.collect(),
    };
    // A struct of numbers and strings always serialises.
    serde_json::to_string(&view).unwrap_or_default()
}
