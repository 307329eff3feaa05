//! The in-order execution of a schedule.
//!
//! A step starts when its device is free and what it needs has arrived: F the output of the stage before and the slice
//! before, backward passes the gradient of the stage after and of the slice after, W the gradient of its own B, R of a backward
//! cut the output of the forward stage that ends where it begins.
//! Messages between devices take the delay of the problem and never block their sender. It is what the verifier checks
//! for deadlocks, what the printed grid shows, and the order of events by which `lower` places messages and waits.
//! Linear in the number of steps.

use super::{Problem, Schedule, Step};
use pipec_program::id::IdVec;
use pipec_program::{DeviceId, Pass, Slice, StageId, Unit};

/// When every step starts and ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Execution {
    /// For each device `start .. end` of its steps, in order.
    pub devices: IdVec<DeviceId, Vec<(u64, u64)>>,
}

impl Execution {
    /// When the last step ends.
    pub fn makespan(&self) -> u64 {
        self.devices.values().filter_map(|steps| steps.last()).map(|step| step.1).max().unwrap_or(0)
    }

    /// The time that a device works.
    pub fn busy(&self, device: DeviceId) -> u64 {
        self.devices.get(device).map_or(0, |steps| steps.iter().map(|step| step.1 - step.0).sum())
    }

    /// The time from the start of the first step of a device to the end of its last.
    pub fn window(&self, device: DeviceId) -> u64 {
        let steps = self.devices.get(device).map_or(&[][..], Vec::as_slice);
        steps.first().zip(steps.last()).map_or(0, |(first, last)| last.1 - first.0)
    }

    /// The share of the makespan that all devices together idle, 0 to 1.
    pub fn bubble(&self) -> f64 {
        let busy: f64 = self.devices.ids().map(|device| self.busy(device) as f64).sum();
        let all = self.makespan() as f64 * self.devices.len() as f64;
        if all > 0.0 { 1.0 - busy / all } else { 0.0 }
    }

    /// The idle share of the longest window where every device takes its optimizer step on its own: one minus the work
    /// of the busiest device over the longest window.
    pub fn window_bubble(&self) -> f64 {
        let most = |of: fn(&Self, DeviceId) -> u64| self.devices.ids().map(|device| of(self, device)).max();
        let (busy, window) = (most(Self::busy).unwrap_or(0), most(Self::window).unwrap_or(0));
        if window > 0 { 1.0 - busy as f64 / window as f64 } else { 0.0 }
    }
}

/// No device can go on: for each that is not at its end, the step that never starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock {
    /// The first step of each waiting device.
    pub waiting: Vec<(DeviceId, Step)>,
}

/// Runs every device in order, with the times of `duration`; [`Problem::duration`] for those of the problem.
///
/// # Errors
/// The schedule deadlocks, or a pass that another needs is missing.
pub fn execute(
    problem: &Problem,
    schedule: &Schedule,
    duration: impl Fn(Step) -> u64,
) -> Result<Execution, Deadlock> {
    let mut done = Done::new(problem, schedule);
    let mut devices: IdVec<DeviceId, Vec<(u64, u64)>> =
        schedule.devices.values().map(|steps| Vec::with_capacity(steps.len())).collect();
    let mut awake: Vec<DeviceId> = devices.ids().rev().collect();
    while let Some(device) = awake.pop() {
        while let Some(&step) = schedule.devices[device].get(devices[device].len()) {
            let ready = done.ready(step);
            if ready == NEVER {
                break;
            }
            let free = devices[device].last().map_or(0, |step| step.1);
            let start = ready.max(free);
            let end = start.saturating_add(duration(step)).min(NEVER - 1);
            devices[device].push((start, end));
            for (pass, unit) in step.passes() {
                let woken = done.set(pass, unit, end);
                awake.extend(woken.map(|stage| problem.device(stage)).filter(|&other| other != device));
                if pass == Pass::F {
                    let fed = problem.fed(unit.stage).map(|stage| problem.device(stage));
                    awake.extend(fed.filter(|&other| other != device));
                }
            }
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
struct Done<'a> {
    problem: &'a Problem,
    forward: Vec<u64>,
    /// The pass that makes the input gradient.
    backward: Vec<u64>,
    /// Recomputations: 0 for units without one.
    recompute: Vec<u64>,
}

impl<'a> Done<'a> {
    fn new(problem: &'a Problem, schedule: &Schedule) -> Self {
        let mut recompute = Vec::new();
        for step in schedule.devices.values().flatten() {
            if let &Step::Pass(Pass::R, unit) = step {
                recompute.resize(problem.units(), 0);
                recompute[problem.unit_index(unit)] = NEVER;
            }
        }
        let never = vec![NEVER; problem.units()];
        Self { problem, forward: never.clone(), backward: never, recompute }
    }

    /// When what a step needs from other steps is there.
    fn ready(&self, step: Step) -> u64 {
        step.passes().map(|(pass, unit)| self.pass(pass, unit)).max().unwrap_or(NEVER)
    }

    fn pass(&self, pass: Pass, unit: Unit) -> u64 {
        let own = self.problem.unit_index(unit);
        let arrived = |table: &[u64], stage: Option<StageId>| {
            let Some(stage) = stage else { return 0 };
            let made = table[self.problem.unit_index(Unit { stage, ..unit })];
            let elsewhere = self.problem.device(stage) != self.problem.device(unit.stage);
            if elsewhere && made != NEVER {
                made.saturating_add(self.problem.delay).min(NEVER - 1)
            } else {
                made
            }
        };
        let beside = |table: &[u64], slice: Option<u32>| {
            let slice = slice.filter(|&slice| slice < self.problem.slices()).map(Slice);
            slice.map_or(0, |slice| table[self.problem.unit_index(Unit { slice, ..unit })])
        };
        match pass {
            Pass::F => arrived(&self.forward, self.problem.before(unit.stage))
                .max(beside(&self.forward, unit.slice.0.checked_sub(1))),
            Pass::B | Pass::BW => arrived(&self.backward, self.problem.after(unit.stage))
                .max(beside(&self.backward, unit.slice.0.checked_add(1)))
                .max(self.forward[own])
                .max(self.recompute.get(own).copied().unwrap_or(0)),
            Pass::W => self.backward[own],
            Pass::R if self.problem.is_backward(unit.stage) => {
                arrived(&self.forward, self.problem.source(unit.stage))
            }
            Pass::R => self.forward[own],
        }
    }

    /// Notes that a pass is done and returns the stage that may wait for it.
    fn set(&mut self, pass: Pass, unit: Unit, end: u64) -> Option<StageId> {
        let own = self.problem.unit_index(unit);
        match pass {
            Pass::F => {
                self.forward[own] = end;
                self.problem.after(unit.stage)
            }
            Pass::B | Pass::BW => {
                self.backward[own] = end;
                self.problem.before(unit.stage)
            }
            Pass::R => {
                self.recompute[own] = end;
                if self.problem.is_backward(unit.stage) {
                    self.forward[own] = end;
                }
                None
            }
            Pass::W => None,
        }
    }
}
