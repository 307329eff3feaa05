//! The in-order execution of a schedule with given durations and free messages.
//!
//! It is what the verifier checks for deadlocks, what the printed grid shows, and the order of events by which `lower`
//! places messages and waits.

use super::{Schedule, Step};
use crate::plan::Plan;
use pipec_program::id::IdVec;
use pipec_program::{DeviceId, Pass, Unit};

/// When every pass starts and ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Execution {
    /// For each device `start .. end` of its passes, in order.
    pub devices: IdVec<DeviceId, Vec<(u64, u64)>>,
}

impl Execution {
    /// When the last pass ends.
    pub fn makespan(&self) -> u64 {
        self.devices.values().filter_map(|passes| passes.last()).map(|pass| pass.1).max().unwrap_or(0)
    }
}

/// No device can go on: for each that is not at its end, the pass that never starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock {
    /// The first pass of each waiting device.
    pub waiting: Vec<(DeviceId, Step)>,
}

/// Runs every device in order; a pass starts when its device is free and what it needs is done.
///
/// # Errors
/// The schedule deadlocks, or a pass that another needs is missing.
pub fn execute(
    plan: &Plan,
    schedule: &Schedule,
    duration: impl Fn(Step) -> u64,
) -> Result<Execution, Deadlock> {
    let mut done = Done { forward: vec![NEVER; plan.units()], backward: vec![NEVER; plan.units()] };
    let mut devices: IdVec<DeviceId, Vec<(u64, u64)>> =
        schedule.devices.values().map(|steps| Vec::with_capacity(steps.len())).collect();
    let mut awake: Vec<DeviceId> = devices.ids().rev().collect();
    while let Some(device) = awake.pop() {
        while let Some(&step) = schedule.devices[device].get(devices[device].len()) {
            let ready = done.ready(plan, step);
            if ready == NEVER {
                break;
            }
            let free = devices[device].last().map_or(0, |pass| pass.1);
            let start = ready.max(free);
            let end = start.saturating_add(duration(step)).min(NEVER - 1);
            devices[device].push((start, end));
            let woken = done.set(plan, step, end);
            awake.extend(woken.map(|stage| plan.stages[stage].device).filter(|&other| other != device));
        }
    }
    let waiting: Vec<(DeviceId, Step)> = schedule
        .devices
        .iter()
        .filter_map(|(id, steps)| steps.get(devices[id].len()).map(|&step| (id, step)))
        .collect();
    if waiting.is_empty() { Ok(Execution { devices }) } else { Err(Deadlock { waiting }) }
}

const NEVER: u64 = u64::MAX;

/// When passes of units are done.
struct Done {
    forward: Vec<u64>,
    /// The pass that makes the input gradient.
    backward: Vec<u64>,
}

impl Done {
    /// When what a step needs from other steps is done.
    fn ready(&self, plan: &Plan, step: Step) -> u64 {
        let at = |stage| plan.unit_index(Unit { stage, ..step.unit });
        let own = at(step.unit.stage);
        match step.pass {
            Pass::F => plan.before(step.unit.stage).map_or(0, |before| self.forward[at(before)]),
            Pass::B | Pass::BW => {
                let after = plan.after(step.unit.stage).map_or(0, |after| self.backward[at(after)]);
                after.max(self.forward[own])
            }
            Pass::W => self.backward[own],
            Pass::R => self.forward[own],
        }
    }

    /// Notes that a step is done and returns the stage that may wait for it.
    fn set(&mut self, plan: &Plan, step: Step, end: u64) -> Option<pipec_program::StageId> {
        let own = plan.unit_index(step.unit);
        match step.pass {
            Pass::F => {
                self.forward[own] = end;
                plan.after(step.unit.stage)
            }
            Pass::B | Pass::BW => {
                self.backward[own] = end;
                plan.before(step.unit.stage)
            }
            Pass::W | Pass::R => None,
        }
    }
}
