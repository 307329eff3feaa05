//! Orders that fit the memory of their devices: the one place where the compiler goes round.
//!
//! The problem of a plan only guesses what is left for units on a device: when messages move and what gaps a packing
//! leaves is known once a program is made. So an order that is free to be another one is made again within less, by what
//! its program lacked, until it fits or nothing is left. Schedules that are written out in full are ordered once; where one
//! does not fit, another is looked for that does, to be told to the user.
//!
//! What is asked and decided in each round stands here; the rounds themselves are part of `pipeline`.

pub(crate) mod modes;

use crate::lower::Arena;
use crate::plan::Plan;
use crate::schedule::{Problem, Schedule as Order, peaks};
use crate::spec::{InFlight, MemoryLimit, Op, Placement, Schedule, Spec, WeightGrads};
use pipec_program::id::{Id, IdVec};
use pipec_program::{Bytes, DeviceId, Mask, Slice};

/// How often an order is made again.
pub(crate) const MOST_ROUNDS: usize = 8;

/// The most slices that are tried to find what would fit.
const MOST_SLICES: u32 = 16;

/// Whether a schedule takes less memory where less is there.
pub(crate) fn adapts(schedule: Schedule) -> bool {
    matches!(schedule, Schedule::Auto { .. } | Schedule::Svpp { in_flight: InFlight::Auto, .. })
}

/// Whether a schedule sets a limit of its own, so that more memory in the devices changes nothing.
pub(crate) fn is_limited(schedule: Schedule) -> bool {
    matches!(schedule, Schedule::Auto { memory: Some(_), .. })
}

/// Lowers the caps of a problem to what the schedule is to keep to.
pub(crate) fn limit(spec: &Spec, plan: &Plan, problem: &mut Problem) {
    let Schedule::Auto { memory: Some(memory), .. } = spec.pipeline.schedule else { return };
    let stages = problem.stages().take(plan.depth() as usize);
    let units = stages.flat_map(|stage| (0..plan.slices).map(move |slice| (stage, Slice(slice))));
    let whole: u64 = units.map(|(stage, slice)| problem.cost(stage, slice).activations).sum();
    let capacities: Vec<Bytes> =
        spec.cluster.nodes.iter().flat_map(|node| (0..node.devices).map(|_| node.device.memory)).collect();
    for (device, cap) in problem.caps.iter_mut().flat_map(IdVec::iter_mut) {
        let limit = match memory {
            MemoryLimit::Activations(part) => (u128::from(whole) * u128::from(part) / 1000) as u64,
            MemoryLimit::Device(bytes) => {
                let capacity = capacities.get(device.index()).copied().unwrap_or_default();
                cap.saturating_sub((capacity - bytes).0)
            }
        };
        *cap = limit.min(*cap);
    }
}

/// What each device takes beyond the limit that a schedule sets to all its memory; none where all keep to it.
pub(crate) fn over(schedule: Schedule, arenas: &IdVec<DeviceId, Arena>) -> Option<IdVec<DeviceId, Bytes>> {
    let Schedule::Auto { memory: Some(MemoryLimit::Device(limit)), .. } = schedule else { return None };
    let over: IdVec<DeviceId, Bytes> = arenas.values().map(|arena| arena.end - limit).collect();
    over.values().any(|&over| over > Bytes::ZERO).then_some(over)
}

/// Asks for less than an order took on every device where its program lacked something: the order of one replica, and what
/// the devices of all lacked. False where nothing is left to be taken away.
pub(crate) fn tighten(problem: &mut Problem, schedule: &Order, lacking: &IdVec<DeviceId, Bytes>) -> bool {
    let peaks = peaks(problem, schedule);
    let mut changed = false;
    for (device, cap) in problem.caps.iter_mut().flat_map(IdVec::iter_mut) {
        let alike = lacking.values().skip(device.index()).step_by(peaks.len().max(1));
        let lacks = alike.copied().max().unwrap_or_default();
        if lacks > Bytes::ZERO {
            changed |= *cap > 0;
            *cap = peaks[device].min(*cap).saturating_sub(lacks.0);
        }
    }
    changed
}

/// SVPP with the fewest slices at which it fits the memory at full speed, or else with the fewest at which it fits at all, as
/// it would be written. More slices cost less time than fewer units alive. `compiles` tells whether a spec does.
pub(crate) fn fitting(spec: &Spec, compiles: impl Fn(&Spec) -> bool) -> Option<String> {
    let written = spec.pipeline.schedule;
    if written.placement() != Placement::Loop {
        return None;
    }
    let full = |op: &Op| matches!(op, Op::Attention { mask: Mask::Full, .. });
    let sliceable =
        !spec.model.layers.values().flat_map(|layer| &layer.operations).any(|each| full(&each.op));
    let (chunks, first) = (spec.pipeline.stages / spec.pipeline.devices.max(1), written.slices().max(1));
    let slices = std::iter::successors(Some(first), |slices| slices.checked_mul(2));
    let slices = slices.take_while(|&slices| slices <= MOST_SLICES && (slices == 1 || sliceable));
    let mut exact = slices.filter(|&slices| spec.train.seq.is_multiple_of(u64::from(slices)));
    let fits = |slices: u32, in_flight| {
        let mut spec = spec.clone();
        let weight_grads = WeightGrads::Fused;
        (spec.pipeline.given, spec.pipeline.balance) = (None, 0);
        spec.pipeline.schedule =
            Schedule::Svpp { virtual_stages: chunks, slices, in_flight, bias: 100, weight_grads };
        compiles(&spec)
    };
    let mut slow = None;
    let fast = exact.find(|&slices| {
        // What does not fit with as few units as can be does not fit at full speed.
        let adapted = fits(slices, InFlight::Auto);
        slow = slow.or(adapted.then_some(slices));
        adapted && fits(slices, InFlight::Max)
    });
    let slices = fast.or(slow)?;
    let in_flight = if fast.is_some() { "" } else { ", in_flight: auto" };
    let chunks = if chunks == 1 { String::new() } else { format!(", virtual: {chunks}") };
    Some(format!("svpp {{ slices: {slices}{chunks}{in_flight} }}"))
}
