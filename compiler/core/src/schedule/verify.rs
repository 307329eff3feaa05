//! What every schedule must obey, whatever made it.

use super::{Deadlock, Schedule, Step, execute};
use crate::plan::Plan;
use pipec_program::{DeviceId, MicroBatch, Pass, Slice, Unit};
use std::fmt;

/// A law that a schedule breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// The schedule and the plan speak of different numbers of devices.
    Devices {
        /// Devices of the plan.
        plan: usize,
        /// Devices of the schedule.
        schedule: usize,
    },
    /// A unit that the plan does not have.
    NoSuchUnit(DeviceId, Step),
    /// A pass on a device that does not hold its stage.
    Misplaced(DeviceId, Step),
    /// A pass that never happens.
    Missing(Step),
    /// A pass that happens again; a whole backward pass counts as both of its halves.
    Repeated(DeviceId, Step),
    /// A slice that stands after one that must follow it.
    SliceOrder(DeviceId, Step),
    /// Every device waits.
    Deadlock(Deadlock),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Devices { plan, schedule } => {
                write!(f, "{schedule} devices are ordered, the plan has {plan}")
            }
            Self::NoSuchUnit(device, step) => write!(f, "{step} on {device} is of no unit of the plan"),
            Self::Misplaced(device, step) => {
                write!(f, "{step} stands on {device}, which does not hold its stage")
            }
            Self::Missing(step) => write!(f, "{step} is missing"),
            Self::Repeated(device, step) => write!(f, "{step} stands on {device} once more"),
            Self::SliceOrder(device, step) => {
                write!(f, "{step} stands on {device} after a slice that must follow it")
            }
            Self::Deadlock(Deadlock { waiting }) => {
                f.write_str("deadlock:")?;
                for (position, (device, step)) in waiting.iter().enumerate() {
                    write!(f, "{} {device} waits at {step}", if position == 0 { "" } else { "," })?;
                }
                Ok(())
            }
        }
    }
}

/// Everything that is wrong with a schedule: a unit without its passes or with too many, a pass on the wrong device, a
/// wrong order of slices, and, if all that is well, a deadlock of the in-order execution.
pub fn verify(plan: &Plan, schedule: &Schedule) -> Vec<Violation> {
    if plan.devices.len() != schedule.devices.len() {
        return vec![Violation::Devices { plan: plan.devices.len(), schedule: schedule.devices.len() }];
    }
    let mut violations = Vec::new();
    let mut seen = vec![Seen::default(); plan.units()];
    for (device, steps) in schedule.devices.iter() {
        for &step in steps {
            let Unit { stage, micro_batch, slice } = step.unit;
            let known = plan
                .stages
                .get(stage)
                .filter(|_| micro_batch.0 < plan.micro_batches && slice.0 < plan.slices);
            let Some(known) = known else {
                violations.push(Violation::NoSuchUnit(device, step));
                continue;
            };
            if known.device != device {
                violations.push(Violation::Misplaced(device, step));
            }
            if !seen[plan.unit_index(step.unit)].take(step.pass) {
                violations.push(Violation::Repeated(device, step));
            }
            let ordered = |slice: Option<u32>, pass: fn(&Seen) -> bool| {
                slice.is_none_or(|slice| {
                    slice >= plan.slices
                        || pass(&seen[plan.unit_index(Unit { slice: Slice(slice), ..step.unit })])
                })
            };
            let in_order = match step.pass {
                Pass::F => ordered(slice.0.checked_sub(1), |seen| seen.forward),
                Pass::B | Pass::BW => ordered(Some(slice.0 + 1), |seen| seen.input),
                // Weight gradients and recomputations need only their own unit.
                Pass::W | Pass::R => true,
            };
            if !in_order {
                violations.push(Violation::SliceOrder(device, step));
            }
        }
    }
    for stage in plan.stages.ids() {
        for micro_batch in (0..plan.micro_batches).map(MicroBatch) {
            for slice in (0..plan.slices).map(Slice) {
                missing(&seen, plan, Unit { stage, micro_batch, slice }, &mut violations);
            }
        }
    }
    if violations.is_empty()
        && let Err(deadlock) = execute(plan, schedule, |_| 1)
    {
        violations.push(Violation::Deadlock(deadlock));
    }
    violations
}

fn missing(seen: &[Seen], plan: &Plan, unit: Unit, violations: &mut Vec<Violation>) {
    let Seen { forward, input, weight } = seen[plan.unit_index(unit)];
    let mut add = |pass| violations.push(Violation::Missing(Step { pass, unit }));
    if !forward {
        add(Pass::F);
    }
    match (input, weight) {
        (true, true) => {}
        (true, false) => add(Pass::W),
        (false, true) => add(Pass::B),
        (false, false) => add(Pass::BW),
    }
}

/// Which gradients and values of a unit were made.
#[derive(Clone, Copy, Default)]
struct Seen {
    forward: bool,
    input: bool,
    weight: bool,
}

impl Seen {
    /// Notes a pass; false if it was there already.
    fn take(&mut self, pass: Pass) -> bool {
        let mut first = |of: fn(&mut Seen) -> &mut bool| !std::mem::replace(of(self), true);
        match pass {
            Pass::F => first(|seen| &mut seen.forward),
            Pass::B => first(|seen| &mut seen.input),
            Pass::W => first(|seen| &mut seen.weight),
            Pass::BW => first(|seen| &mut seen.input) & first(|seen| &mut seen.weight),
            // A unit may be recomputed as often as memory asks for.
            Pass::R => true,
        }
    }
}
