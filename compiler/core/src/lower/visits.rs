//! State on the host: when a device holds the weights of a stage, and when its gradients.
//!
//! A *visit* is a run of steps of a device in which a stage is computed. Its weights are loaded for it, from the start of the
//! visit before on, so that a device holds those of two stages at most where it computes one at a time. Gradients of a stage are on the device from the first pass
//! that adds to them until they have landed on the host; those of parameters that several stages use stay until the end of
//! the step, because their copies are added up first.

use super::functions::Region;
use super::lifetimes::{Held, Lifetimes, Tensor};
use super::pack::Span;
use super::stages::Stages;
use super::trips::Host;
use crate::plan::{Part, Plan};
use crate::schedule::{Execution, Schedule};
use pipec_program::id::IdVec;
use pipec_program::{
    Bytes, Category, Device, DeviceId, Link, LinkId, MicroBatch, ParameterId, Pass, Slice, StageId, Unit,
};
use std::collections::{BTreeMap, BTreeSet};

/// A run of steps in which a stage is computed. Positions count the steps of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Visit {
    pub(super) stage: StageId,
    /// Its weights on the device; none where they are there all the time, or where the stage has none.
    pub(super) weights: Option<Held>,
    /// How many steps are over when they may be loaded.
    pub(super) load: u32,
    /// Its first step, and its last.
    pub(super) first: u32,
    pub(super) last: u32,
}

/// The steps in which the gradients of a stage grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Growth {
    /// Their place; none where they have one all the time.
    pub(super) held: Option<Held>,
    pub(super) first: u32,
    pub(super) last: u32,
}

/// The stages with a parameter that another stage uses too: their gradients are complete only at the end of a step.
pub(super) fn late(plan: &Plan, stages: &Stages) -> BTreeSet<StageId> {
    let mut users: BTreeMap<ParameterId, Vec<StageId>> = BTreeMap::new();
    let of_gradient = |(stage, _): &(StageId, _)| plan.stages[*stage].part != Part::Forward;
    for (stage, places) in stages.parameters.iter().filter(of_gradient) {
        for place in places {
            users.entry(place.parameter).or_default().push(stage);
        }
    }
    let shared = users.into_values().filter(|stages| stages.len() > 1).flatten();
    let windows = stages.windows.iter().filter(|(_, window)| window.is_some()).map(|(stage, _)| stage);
    shared.chain(windows).collect()
}

/// The visits of a device, in the order in which they begin.
fn visits(schedule: &Schedule, device: DeviceId) -> Vec<Visit> {
    let mut visits: Vec<Visit> = Vec::new();
    let mut latest: BTreeMap<StageId, usize> = BTreeMap::new();
    for (position, step) in (0..).zip(&schedule.devices[device]) {
        for (_, Unit { stage, .. }) in step.passes() {
            let open = latest.get(&stage).filter(|&&visit| visits[visit].last + 1 >= position);
            match open {
                Some(&visit) => visits[visit].last = position,
                None => {
                    let load = visits.last().map_or(0, |before| before.first);
                    latest.insert(stage, visits.len());
                    visits.push(Visit { stage, weights: None, load, first: position, last: position });
                }
            }
        }
    }
    visits
}

/// The steps in which the gradients of the stages of a device grow.
fn growths(schedule: &Schedule, device: DeviceId) -> BTreeMap<StageId, Growth> {
    let mut growths: BTreeMap<StageId, Growth> = BTreeMap::new();
    for (position, step) in (0..).zip(&schedule.devices[device]) {
        let adds = |pass: &Pass| match pass {
            Pass::B | Pass::W | Pass::BW => true,
            Pass::F | Pass::R => false,
        };
        for (_, unit) in step.passes().filter(|(pass, _)| adds(pass)) {
            let growth = Growth { held: None, first: position, last: position };
            growths.entry(unit.stage).or_insert(growth).last = position;
        }
    }
    growths
}

impl Lifetimes {
    /// Gives the weights of every visit and the gradients of every stage a place on their device for as long as they are
    /// needed there.
    pub(super) fn visit(
        &mut self,
        plan: &Plan,
        schedule: &Schedule,
        execution: &Execution,
        stages: &Stages,
        late: &BTreeSet<StageId>,
        (devices, links): (&IdVec<DeviceId, Device>, &IdVec<LinkId, Link>),
    ) {
        for device in plan.devices.ids() {
            let steps = &execution.devices[device];
            let down = Host::new(&devices[device], links).down;
            let tensors = &mut self.tensors[device];
            let mut add = |stage: StageId, region, category, Span { bytes, start, end }, sent| {
                let unit = Unit { stage, micro_batch: MicroBatch(0), slice: Slice(0) };
                let span = Span { bytes, start, end };
                tensors.push(Tensor { region, unit, category, span, last: end, sent });
                (tensors.len() - 1) as Held
            };
            let mut visits = visits(schedule, device);
            for visit in &mut visits {
                let bytes = stages.of(visit.stage).weights;
                if bytes > Bytes::ZERO {
                    let span = Span { bytes: bytes.0, start: visit.load, end: visit.last };
                    visit.weights = Some(add(visit.stage, Region::Weights, Category::Loaded, span, false));
                }
            }
            let mut growths = growths(schedule, device);
            let windows = plan.devices[device].iter().any(|&stage| stages.windows[stage].is_some());
            let mut free = 0;
            let mut ascending: Vec<StageId> = growths.keys().copied().collect();
            ascending.sort_by_key(|stage| growths[stage].last);
            for stage in ascending {
                let Some(growth) = growths.get_mut(&stage) else { continue };
                let bytes = stages.of(stage).gradients;
                if bytes == Bytes::ZERO || windows {
                    continue;
                }
                let end = if late.contains(&stage) {
                    steps.len() as u32 - 1
                } else {
                    free = steps[growth.last as usize].1.max(free).saturating_add(down.time(bytes.0));
                    let left = steps.partition_point(|step| step.0 < free) as u32;
                    left.clamp(growth.last, steps.len() as u32 - 1)
                };
                let span = Span { bytes: bytes.0, start: growth.first, end };
                growth.held = Some(add(stage, Region::Gradients, Category::Gradients, span, true));
            }
            self.visits[device] = visits;
            self.growths.extend(growths);
        }
    }

    /// What is known of gradients where weights and gradients are on their device all the time.
    pub(super) fn stay(&mut self, plan: &Plan, schedule: &Schedule) {
        for device in plan.devices.ids() {
            self.growths.extend(growths(schedule, device));
        }
    }
}

/// The most bytes that the weights and gradients of stages of a device take which come and go: two of each.
pub(super) fn most(stages: &Stages, chunks: &[StageId]) -> Bytes {
    let two = |bytes: &dyn Fn(StageId) -> Bytes| -> Bytes {
        let mut all: Vec<Bytes> = chunks.iter().map(|&stage| bytes(stage)).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        all.into_iter().take(2).sum()
    };
    let windows = chunks.iter().any(|&stage| stages.windows[stage].is_some());
    let gradients = if windows { Bytes::ZERO } else { two(&|stage| stages.of(stage).gradients) };
    two(&|stage| stages.of(stage).weights) + gradients
}
