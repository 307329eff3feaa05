//! `recompute: auto` and `offload: auto`: orders and modes in turn, and what the program lacks kept free the next time.

use super::{EVERYTHING, Error, Fitted, Lack, Laid, Observer, Task, fit, lay, ordered, proved};
use crate::lower::functions::Wanted;
use crate::lower::{LowerError, Stages, lower};
use crate::mode::{ModeId, Phase};
use crate::plan::{Plan, Stage};
use crate::schedule::{Policy, Schedule, Step, execute, peaks};
use crate::search;
use crate::search::modes::{Allowed, Chosen, Ordered, Pace, Prices, Room};
use pipec_program::id::{Id, IdVec};
use pipec_program::simulate::simulate;
use pipec_program::{Bytes, Costs, DeviceId, Nanos, Program, StageId};
use std::collections::{BTreeMap, BTreeSet};

/// The order and the program in the modes whose step is shortest in simulation.
///
/// The memory that modes are chosen for is what is there without gaps between buffers and early messages. What a program
/// lacks is therefore kept free the next time.
pub(super) fn chosen(task: Task<'_>, observer: &mut dyn Observer) -> Result<Fitted, Error> {
    let allowed = Allowed::new(task.spec, task.layers);
    let mut reserve: Option<IdVec<DeviceId, u64>> = None;
    let mut best: Option<(Nanos, Chosen, Plan)> = None;
    let mut tried: BTreeSet<(Vec<ModeId>, Vec<usize>)> = BTreeSet::new();
    for _ in 0..search::MOST_ROUNDS {
        let mut lacks: Option<(IdVec<DeviceId, u64>, IdVec<DeviceId, Bytes>)> = None;
        let (mut candidates, shortest) = candidates(task, &allowed, reserve.as_ref())?;
        candidates
            .retain(|candidate| tried.insert((candidate.chosen.modes.clone(), candidate.plan.bounds())));
        let mut fitting = 0;
        let mut first: Option<u64> = None;
        for Candidate { chosen, plan, free, makespan } in candidates {
            // What is so much longer by the times of the plan is no shorter in simulation; and nothing is shorter than the shortest.
            let is_long = first.is_some_and(|first| makespan > first + first / 8 || first <= shortest);
            if is_long || fitting == search::modes::MOST_CANDIDATES {
                break;
            }
            match fit(task, lay(task, &chosen.modes, Some(&plan), &mut ())?, &mut ()) {
                Ok(fitted) => {
                    fitting += 1;
                    first = first.or(Some(makespan));
                    if is_large(&fitted.order) {
                        best = Some((Nanos::ZERO, chosen, plan));
                        break;
                    }
                    let fitted = apart(task, fitted)?;
                    let program = proved(fitted.lowered.program)?;
                    let time = simulate(&program, &Costs::roofline(&program)).makespan();
                    if best.as_ref().is_none_or(|(least, ..)| time < *least) {
                        best = Some((time, chosen, plan));
                    }
                }
                // The first is the one that would be fastest.
                Err(Lack::Memory(_, lacking)) => lacks = lacks.or(Some((free, lacking))),
                Err(Lack::Other(error)) => return Err(error),
            }
        }
        let Some((free, lacking)) = lacks else { break };
        let reserve = reserve.get_or_insert_with(|| free.values().map(|_| 0).collect());
        for (device, bytes) in reserve.iter_mut() {
            let alike = lacking.values().skip(device.index()).step_by(free.len().max(1));
            let lacks = alike.copied().max().unwrap_or_default().0;
            // What seemed to be free was not.
            *bytes += if lacks > 0 { free[device] + lacks } else { 0 };
        }
    }
    let (modes, cut, gap) = match &best {
        Some((_, chosen, plan)) => (chosen.modes.clone(), Some(plan), chosen.gap),
        // What keeps least tells best what is lacking.
        None => (allowed.least(), None, 0),
    };
    let laid = lay(task, &modes, cut, observer)?;
    let fitted = fit(task, laid, observer).map_err(|lack| lack.error(task))?;
    Ok(Fitted { gap: Nanos(gap), ..apart(task, fitted)? })
}

/// Whether programs are too large to be simulated for a choice: then the times of the plan decide.
fn is_large(order: &Schedule) -> bool {
    order.devices.values().map(Vec::len).sum::<usize>() > search::modes::MOST_STEPS
}

/// The same with what is computed again as passes of their own, where memory is left for what they make: such a pass runs right before
/// the backward pass, and while that would wait for its gradient.
fn apart(task: Task<'_>, mut fitted: Fitted) -> Result<Fitted, Error> {
    let Task { spec, origins, inputs, .. } = task;
    let Laid { forms, plan, wanted, .. } = &fitted.laid;
    let is_paired = |step: &Step| matches!(step, Step::Pair { .. });
    if wanted.splits() || fitted.order.devices.values().flatten().any(is_paired) {
        return Ok(fitted);
    }
    let repeats = |piece: &usize| forms.first(*piece).backward.iter().any(|(phase, _)| *phase == Phase::R);
    // From the first piece that computes anything again: the backward pass starts with the last.
    let pieces =
        |(id, stage): (StageId, &Stage)| Some((id, stage.pieces.end - stage.pieces.clone().find(repeats)?));
    let mut pieces: BTreeMap<StageId, usize> = plan.stages.iter().filter_map(pieces).collect();
    while !pieces.is_empty() {
        let functions = Stages::new(&spec.model, forms, plan, *wanted, &pieces);
        match lower(spec, origins, plan, &functions, &fitted.schedule, inputs) {
            Ok(lowered) if search::over(spec.pipeline.schedule, &lowered.arenas).is_none() => {
                let time = |program: &Program| -> Result<Nanos, Error> {
                    let program = proved(program.clone())?;
                    Ok(simulate(&program, &Costs::roofline(&program)).makespan())
                };
                if is_large(&fitted.order) || time(&lowered.program)? < time(&fitted.lowered.program)? {
                    (fitted.laid.stages, fitted.lowered) = (functions, lowered);
                }
                break;
            }
            Err(LowerError::Memory { lacking, .. }) => {
                let lacks = |stage: StageId| lacking[plan.stages[stage].device] > Bytes::ZERO;
                if !pieces.keys().any(|&stage| lacks(stage)) {
                    break;
                }
                // Less of the stages on devices that lack memory.
                pieces.iter_mut().filter(|(stage, _)| lacks(**stage)).for_each(|(_, count)| *count /= 2);
                pieces.retain(|_, count| *count > 0);
            }
            Ok(_) | Err(LowerError::Deadlock(_) | LowerError::Step(_) | LowerError::Problem(_)) => break,
        }
    }
    Ok(fitted)
}

/// Modes with their cut and the time of a step.
struct Candidate {
    chosen: Chosen,
    plan: Plan,
    makespan: u64,
    /// What it leaves of every device of a replica.
    free: IdVec<DeviceId, u64>,
}

/// The modes that fit by the problem of the plan, those whose step is shortest first, and the shortest step of any, whether it fits
/// or not. `reserve` is kept free.
///
/// Modes are chosen for an order, and the order may depend on them. So from several modes to start with, orders and modes
/// follow each other until they stay.
fn candidates(
    task: Task<'_>,
    allowed: &Allowed,
    reserve: Option<&IdVec<DeviceId, u64>>,
) -> Result<(Vec<Candidate>, u64), Error> {
    let Task { spec, layers, lengths, .. } = task;
    let adapts = search::adapts(spec.pipeline.schedule);
    let uses = Policy::of(spec.pipeline.schedule).map_or(EVERYTHING, Policy::uses);
    let mut candidates: Vec<Candidate> = Vec::new();
    let mut shortest = u64::MAX;
    let mut prices: Option<Prices> = None;
    // Different orders, and what has been chosen for each.
    let mut orders: Vec<Schedule> = Vec::new();
    let mut known: Vec<(usize, Pace, Room, Vec<usize>)> = Vec::new();
    let seeds = allowed.seeds(layers, &spec.model.pieces, adapts);
    let paces = Pace::all(spec.pipeline.offload);
    for (seed, &pace) in seeds.into_iter().flat_map(|seed| paces.iter().map(move |pace| (seed.clone(), pace)))
    {
        let mut chosen = Chosen { modes: seed, gap: 0, slack: IdVec::new() };
        // Every start has its own cut, balanced by its times, so that several are tried.
        let mut cut: Option<Plan> = None;
        // What chosen modes took beyond their prices: passes of several pieces may need more workspace than one.
        let mut reserve = reserve.cloned();
        for turn in 0..search::modes::MOST_TURNS {
            let laid = lay(task, &chosen.modes, cut.as_ref(), &mut ())?;
            cut.get_or_insert_with(|| laid.plan.clone());
            let mut within = laid.replica.clone();
            within.caps = within.caps.filter(|_| adapts);
            // Where nothing fits in these modes it may in others.
            let Ok(order) = ordered(Task { advise: false, ..task }, &mut within) else { break };
            let execution = execute(&laid.replica, &order, |step| laid.replica.duration(step));
            let Ok(makespan) = execution.map(|execution| execution.makespan()) else { break };
            let peaks = peaks(&laid.replica, &order);
            let mut room = Room::new(&laid.replica, &order, &laid.plan, &laid.stages, reserve.as_ref());
            let (over, free) = room.compared(&peaks);
            shortest = shortest.min(makespan);
            let has = candidates.iter().any(|candidate| {
                candidate.chosen.modes == chosen.modes && candidate.plan.bounds() == laid.plan.bounds()
            });
            if over.values().all(|&over| over == 0) && !has {
                candidates.push(Candidate {
                    chosen: chosen.clone(),
                    plan: laid.plan.clone(),
                    makespan,
                    free,
                });
            }
            if turn > 0 {
                // What seemed to be left was not.
                let slack = |device| chosen.slack.get(device).copied().unwrap_or(0);
                let more =
                    |(device, &over): (DeviceId, &u64)| if over > 0 { over + slack(device) } else { 0 };
                let more: IdVec<DeviceId, u64> = over.iter().map(more).collect();
                room.take(&more);
                let reserve = reserve.get_or_insert_with(|| over.ids().map(|_| 0).collect());
                reserve.iter_mut().for_each(|(device, bytes)| *bytes += more[device]);
            }
            let prices = prices.get_or_insert_with(|| {
                Prices::new(spec, layers, lengths, Wanted::of(uses, laid.plan.products))
            });
            let plan = laid.plan.replica();
            // The same order in the same room leads to the same modes.
            let number = orders.iter().position(|other| *other == order).unwrap_or_else(|| {
                orders.push(order);
                orders.len() - 1
            });
            let met = (number, pace, room.clone(), laid.plan.bounds());
            if known.contains(&met) {
                break;
            }
            known.push(met);
            let order = &orders[number];
            let ordered = Ordered { plan: &plan, problem: &laid.replica, order, room: &room, pace };
            match search::modes::choose(prices, spec, allowed, ordered) {
                Some(next) if next.modes != chosen.modes => chosen = next,
                Some(_) | None => break,
            }
        }
    }
    candidates.sort_by_key(|candidate| candidate.makespan);
    Ok((candidates, shortest))
}
