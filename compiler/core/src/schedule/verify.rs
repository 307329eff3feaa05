//! What every schedule must obey, whatever made it.

use super::{Deadlock, Problem, Schedule, Step, execute};
use pipec_program::{DeviceId, Pass, Slice, Unit};
use std::fmt;

/// A law that a schedule breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// The schedule and the problem speak of different numbers of devices.
    Devices {
        /// Devices of the problem.
        problem: usize,
        /// Devices of the schedule.
        schedule: usize,
    },
    /// A unit or a part that the problem does not have, or a pair of no forward and backward pass.
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
            Self::Devices { problem, schedule } => {
                write!(f, "{schedule} devices are ordered, the problem has {problem}")
            }
            Self::NoSuchUnit(device, step) => write!(f, "{step} on {device} is of no unit of the problem"),
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
pub fn verify(problem: &Problem, schedule: &Schedule) -> Vec<Violation> {
    if problem.devices().len() != schedule.devices.len() {
        return vec![Violation::Devices {
            problem: problem.devices().len(),
            schedule: schedule.devices.len(),
        }];
    }
    let mut violations = Vec::new();
    let mut seen = Seen::new(problem);
    for (device, steps) in schedule.devices.iter() {
        for &step in steps {
            if !known(problem, step) {
                violations.push(Violation::NoSuchUnit(device, step));
                continue;
            }
            if step.passes().any(|(_, unit)| problem.device(unit.stage) != device) {
                violations.push(Violation::Misplaced(device, step));
            }
            if !seen.take(step) {
                violations.push(Violation::Repeated(device, step));
            }
            if !step.passes().all(|(pass, unit)| seen.in_order(pass, unit)) {
                violations.push(Violation::SliceOrder(device, step));
            }
        }
    }
    for stage in problem.stages() {
        for micro_batch in problem.micro_batches_of(stage) {
            for slice in (0..problem.slices()).map(Slice) {
                seen.missing(Unit { stage, micro_batch, slice }, &mut violations);
            }
        }
    }
    if violations.is_empty()
        && let Err(deadlock) = execute(problem, schedule, |_| 1)
    {
        violations.push(Violation::Deadlock(deadlock));
    }
    violations
}

/// Whether a step is of units of the problem and, if it is a pair, of a forward and a backward pass.
fn known(problem: &Problem, step: Step) -> bool {
    let shaped = match step {
        Step::Pass(..) => true,
        Step::Product(_, part) => part < problem.weight_parts,
        Step::Pair { forward: _, backward: _, pass } => matches!(pass, Pass::B | Pass::BW),
    };
    shaped && step.passes().all(|(pass, unit)| problem.has(unit) && problem.runs(pass, unit.stage))
}

/// What was made of every unit so far.
struct Seen<'a> {
    problem: &'a Problem,
    units: Vec<Made>,
    /// Products by unit and part, once there is one.
    products: Vec<bool>,
}

#[derive(Clone, Copy, Default)]
struct Made {
    forward: bool,
    recompute: bool,
    input: bool,
    /// The whole weight gradient at once.
    weight: bool,
    /// How many products of it.
    products: u16,
}

impl<'a> Seen<'a> {
    fn new(problem: &'a Problem) -> Self {
        Self { problem, units: vec![Made::default(); problem.units()], products: Vec::new() }
    }

    /// Notes a step; false if something of it was there already.
    fn take(&mut self, step: Step) -> bool {
        match step {
            Step::Product(unit, part) => self.product(unit, part),
            Step::Pass(..) | Step::Pair { .. } => {
                step.passes().fold(true, |new, (pass, unit)| new & self.pass(pass, unit))
            }
        }
    }

    fn pass(&mut self, pass: Pass, unit: Unit) -> bool {
        let made = &mut self.units[self.problem.unit_index(unit)];
        let mut first = |of: fn(&mut Made) -> &mut bool| !std::mem::replace(of(made), true);
        match pass {
            Pass::F => first(|made| &mut made.forward),
            Pass::B => first(|made| &mut made.input),
            Pass::R => first(|made| &mut made.recompute),
            Pass::W => first(|made| &mut made.weight) && made.products == 0,
            Pass::BW => first(|made| &mut made.input) & first(|made| &mut made.weight) && made.products == 0,
        }
    }

    fn product(&mut self, unit: Unit, part: u16) -> bool {
        let parts = usize::from(self.problem.weight_parts);
        self.products.resize(self.problem.units() * parts, false);
        let index = self.problem.unit_index(unit);
        let first = !std::mem::replace(&mut self.products[index * parts + usize::from(part)], true);
        let made = &mut self.units[index];
        made.products += u16::from(first);
        first && !made.weight
    }

    /// Whether the slice that must stand before a pass was there.
    fn in_order(&self, pass: Pass, unit: Unit) -> bool {
        let made = |slice: Option<u32>, of: fn(&Made) -> bool| {
            let slice = slice.filter(|&slice| slice < self.problem.slices()).map(Slice);
            slice.is_none_or(|slice| of(&self.units[self.problem.unit_index(Unit { slice, ..unit })]))
        };
        match pass {
            Pass::F => made(unit.slice.0.checked_sub(1), |made| made.forward),
            Pass::B | Pass::BW => made(unit.slice.0.checked_add(1), |made| made.input),
            // Weight gradients and recomputations need only their own unit.
            Pass::W | Pass::R => true,
        }
    }

    fn missing(&self, unit: Unit, violations: &mut Vec<Violation>) {
        let index = self.problem.unit_index(unit);
        let Made { forward, recompute, input, weight, products } = self.units[index];
        let mut add = |step| violations.push(Violation::Missing(step));
        let is_backward = self.problem.is_backward(unit.stage);
        if is_backward && !recompute {
            add(Step::Pass(Pass::R, unit));
        }
        if !is_backward && !forward {
            add(Step::Pass(Pass::F, unit));
        }
        if !self.problem.runs(Pass::BW, unit.stage) {
            return;
        }
        let parts = self.problem.weight_parts;
        let whole = weight || products == parts;
        match (input, whole) {
            (true, true) => {}
            (true, false) if products > 0 => {
                let start = index * usize::from(parts);
                let of_unit = (0..parts).zip(&self.products[start..start + usize::from(parts)]);
                of_unit.filter(|(_, made)| !**made).for_each(|(part, _)| add(Step::Product(unit, part)));
            }
            (true, false) => add(Step::Pass(Pass::W, unit)),
            (false, true) => add(Step::Pass(Pass::B, unit)),
            (false, false) => add(Step::Pass(Pass::BW, unit)),
        }
    }
}
