//! The modes of pieces that make a step shortest within the memory of every device: `recompute: auto`.
//!
//! An order of passes tells how many units of each stage are alive at each moment. With it every device is a problem of its
//! own: of each of its pieces one mode, so that what the live units keep, and the workspace of the passes, fits what the
//! device has left, and the time is least. A step is never longer where a pass is shorter, so that on devices with one stage
//! this is the shortest step of the order. Sums over pieces are kept as exact Pareto fronts of time and bytes; where several
//! moments limit a device, the least time within each alone bounds what the choice may lose, which [`Chosen::gap`] tells.
//!
//! It deliberately makes no order and no program: `pipeline` asks it again with what a program lacked.

use crate::lower::functions::{StageFunctions, Wanted, stage_functions};
use crate::lower::{Memory, Stages, unit, workspace};
use crate::mode::{Forms, Layers, ModeId, VariantId};
use crate::plan::{PassTimes, Plan, Times};
use crate::schedule::{Problem, Schedule, Step};
use crate::spec::{LayerId, Level, Piece, Spec};
use pipec_program::id::{Id, IdVec};
use pipec_program::{DeviceId, Pass, StageId};
use std::collections::{BTreeMap, BTreeSet};

/// The most moments of a device that are told apart; the others count as one that holds the most of all.
const MOST_MOMENTS: usize = 8;

/// How often an order is made again for the modes that were chosen for it.
pub(crate) const MOST_TURNS: usize = 6;

/// How many of the shortest steps are simulated.
pub(crate) const MOST_CANDIDATES: usize = 4;

/// The most points of a front of sums; beyond it every second is left out.
const MOST_POINTS: usize = 1 << 13;

/// What every layer takes in each of its modes, alone, over a micro-batch.
pub(crate) struct Prices {
    layers: IdVec<LayerId, IdVec<ModeId, Price>>,
    times: Times,
    variants: BTreeMap<(LayerId, ModeId), VariantId>,
}

/// The bytes of a layer in a mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Price {
    kept: Kept,
    /// The most that one of its passes takes besides.
    workspace: u64,
}

/// Bytes of a micro-batch, by when they are freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Kept {
    /// From F to B or BW.
    saved: u64,
    /// From F to W.
    held: u64,
    /// From B to W.
    pending: u64,
}

impl Prices {
    /// The prices of all modes of all layers, with the functions that a schedule may ask for.
    pub(crate) fn new(spec: &Spec, layers: &Layers, lengths: &[u64], wanted: Wanted) -> Self {
        let model = &spec.model;
        let mut first: IdVec<LayerId, Option<usize>> = layers.ids().map(|_| None).collect();
        for (number, piece) in model.pieces.iter().enumerate() {
            first[piece.layer].get_or_insert(number);
        }
        let most = layers.values().map(|layer| layer.modes.len()).max().unwrap_or(0);
        let mut prices: IdVec<LayerId, IdVec<ModeId, Price>> = layers.ids().map(|_| IdVec::new()).collect();
        for mode in (0..most).map(ModeId::new) {
            let last = |piece: &Piece| mode.min(ModeId::new(layers[piece.layer].modes.len() - 1));
            let modes: Vec<ModeId> = model.pieces.iter().map(last).collect();
            let forms = Forms::new(layers, model, &spec.train, lengths, &modes);
            for (layer, prices) in
                prices.iter_mut().filter(|(layer, _)| mode.index() < layers[*layer].modes.len())
            {
                let functions =
                    first[layer].map(|piece| stage_functions(model, &forms, piece..piece + 1, "", wanted));
                prices.push(functions.map(|functions| price(&functions)).unwrap_or_default());
            }
        }
        let every = Forms::every(layers, model, &spec.train, lengths);
        let variants =
            every.variants.iter().map(|(id, variant)| ((variant.layer, variant.mode), id)).collect();
        Self { layers: prices, times: Times::new(spec, &every), variants }
    }

    /// The time of both passes of a layer in a mode over a micro-batch.
    fn time(&self, layer: LayerId, mode: ModeId, device: DeviceId, splits: bool) -> u64 {
        let Some(&variant) = self.variants.get(&(layer, mode)) else { return 0 };
        let of_slice = |times: PassTimes| match splits {
            true => times.forward + times.inputs + times.weights,
            false => times.forward + times.backward,
        };
        self.times.variant(variant, device).map(|times| of_slice(times).0).sum()
    }
}

fn price(functions: &StageFunctions) -> Price {
    let mut kept = Kept::default();
    for functions in functions.slices.values() {
        let Memory { saved, kept: held, pending, prefix: _, messages: _ } = unit(functions);
        kept.saved += saved;
        kept.held += held;
        kept.pending += pending;
    }
    Price { kept, workspace: workspace(functions) }
}

/// Modes of all pieces to start from: the same level of all, and others between those that keep most and least.
pub(crate) fn seeds(layers: &Layers, pieces: &[Piece], adapts: bool) -> Vec<Vec<ModeId>> {
    let all = |mode: &dyn Fn(LayerId) -> ModeId| pieces.iter().map(|piece| mode(piece.layer)).collect();
    let mut seeds: Vec<Vec<ModeId>> =
        Level::ALL.iter().map(|&level| all(&|layer| layers[layer].at(level))).collect();
    if adapts {
        for quarter in 1..4 {
            seeds.push(all(&|layer| ModeId::new((layers[layer].modes.len() - 1) * quarter / 4)));
        }
    }
    let mut known = BTreeSet::new();
    seeds.retain(|seed| known.insert(seed.clone()));
    seeds
}

/// The order that modes are chosen for.
#[derive(Clone, Copy)]
pub(crate) struct Ordered<'a> {
    /// The cut of one replica.
    pub(crate) plan: &'a Plan,
    /// The problem of one replica.
    pub(crate) problem: &'a Problem,
    /// Its order.
    pub(crate) order: &'a Schedule,
    /// What its devices have.
    pub(crate) room: &'a Room,
}

/// The bytes that the devices of a replica have left.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    /// For units, with the workspace that the passes take now.
    units: IdVec<DeviceId, u64>,
    /// For units and workspaces.
    all: IdVec<DeviceId, u64>,
}

impl Room {
    /// What a problem of one replica leaves, `reserve` kept free. The first devices of the plan are those of the replica.
    pub(crate) fn new(
        replica: &Problem,
        plan: &Plan,
        stages: &Stages,
        reserve: Option<&IdVec<DeviceId, u64>>,
    ) -> Self {
        let cap = |device: DeviceId| {
            let cap = replica.caps.as_ref().map_or(u64::MAX, |caps| caps[device]);
            cap.saturating_sub(reserve.map_or(0, |reserve| reserve[device]))
        };
        let ids = || replica.devices().ids();
        let workspace = |device: DeviceId| {
            plan.devices[device].iter().map(|&stage| workspace(stages.of(stage))).max().unwrap_or(0)
        };
        Self {
            units: ids().map(cap).collect(),
            all: ids().map(|device| cap(device).saturating_add(workspace(device))).collect(),
        }
    }

    /// What units that take so much on each device take too much.
    pub(crate) fn over(&self, peaks: &IdVec<DeviceId, u64>) -> IdVec<DeviceId, u64> {
        peaks.values().zip(self.units.values()).map(|(peak, room)| peak.saturating_sub(*room)).collect()
    }

    /// What units that take so much on each device leave.
    pub(crate) fn free(&self, peaks: &IdVec<DeviceId, u64>) -> IdVec<DeviceId, u64> {
        peaks.values().zip(self.units.values()).map(|(peak, room)| room.saturating_sub(*peak)).collect()
    }

    /// Takes some bytes of each device away.
    pub(crate) fn take(&mut self, bytes: &IdVec<DeviceId, u64>) {
        for (device, bytes) in bytes.iter() {
            self.units[device] = self.units[device].saturating_sub(*bytes);
            self.all[device] = self.all[device].saturating_sub(*bytes);
        }
    }
}

/// What was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    /// The mode of every piece.
    pub(crate) modes: Vec<ModeId>,
    /// How much longer than the least of any choice the passes of a device may take, in nanoseconds of a micro-batch; the
    /// largest of all devices. 0 where the choice is the best there is.
    pub(crate) gap: u64,
}

/// The fastest modes within the room of every device; none where no modes fit.
pub(crate) fn choose(prices: &Prices, spec: &Spec, ordered: Ordered<'_>) -> Option<Chosen> {
    let splits = Wanted::by(ordered.order).splits();
    let pieces = &spec.model.pieces;
    let mut chosen = Chosen { modes: vec![ModeId(0); pieces.len()], gap: 0 };
    let mut known: BTreeMap<Device, Pick> = BTreeMap::new();
    for (device, chunks) in ordered.plan.devices.iter() {
        let moments = moments(ordered, device, splits);
        let mut items: Vec<(usize, Vec<Choice>)> = Vec::new();
        for (chunk, &stage) in chunks.iter().enumerate() {
            for piece in ordered.plan.stages[stage].pieces.clone() {
                let layer = pieces[piece].layer;
                let choice = |(mode, price): (ModeId, &Price)| Choice {
                    mode,
                    time: prices.time(layer, mode, device, splits),
                    workspace: price.workspace,
                    loads: moments.iter().map(|moment| moment.load(chunk, &price.kept)).collect(),
                };
                items.push((piece, prices.layers[layer].iter().map(choice).collect()));
            }
        }
        let limits = moments
            .iter()
            .map(|moment| ordered.room.all[device].checked_sub(moment.rest))
            .collect::<Option<Vec<u64>>>()?;
        let (numbers, items): (Vec<usize>, Vec<Vec<Choice>>) = items.into_iter().unzip();
        let problem = Device { items, limits };
        let pick = match known.get(&problem) {
            Some(pick) => pick.clone(),
            None => {
                let pick = problem.pick()?;
                known.insert(problem, pick.clone());
                pick
            }
        };
        chosen.gap = chosen.gap.max(pick.time - pick.bound);
        for (piece, mode) in numbers.into_iter().zip(pick.modes) {
            // A piece with a copy on another device keeps as little as either can.
            chosen.modes[piece] = chosen.modes[piece].max(mode);
        }
    }
    Some(chosen)
}

/// What a device holds at a moment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Moment {
    /// The tokens of each chunk whose bytes of each kind are alive.
    chunks: Vec<[u64; 3]>,
    /// The tokens of a micro-batch.
    whole: u64,
    /// What does not depend on modes.
    rest: u64,
}

impl Moment {
    fn load(&self, chunk: usize, kept: &Kept) -> u64 {
        let tokens = self.chunks[chunk];
        let bytes = |bytes: u64, tokens: u64| u128::from(bytes) * u128::from(tokens);
        let sum = bytes(kept.saved, tokens[0]) + bytes(kept.held, tokens[1]) + bytes(kept.pending, tokens[2]);
        u64::try_from(sum.div_ceil(u128::from(self.whole.max(1)))).unwrap_or(u64::MAX)
    }

    /// Whether this holds at least as much of everything.
    fn covers(&self, other: &Self) -> bool {
        let at_least = |(mine, theirs): (&[u64; 3], &[u64; 3])| mine.iter().zip(theirs).all(|(a, b)| a >= b);
        self.rest >= other.rest && self.chunks.iter().zip(&other.chunks).all(at_least)
    }

    /// The most of both.
    fn join(&mut self, other: &Self) {
        self.rest = self.rest.max(other.rest);
        for (mine, theirs) in self.chunks.iter_mut().zip(&other.chunks) {
            for (mine, theirs) in mine.iter_mut().zip(theirs) {
                *mine = (*mine).max(*theirs);
            }
        }
    }
}

/// The moments at which a device may hold most: those that no other covers.
fn moments(ordered: Ordered<'_>, device: DeviceId, splits: bool) -> Vec<Moment> {
    let Ordered { plan, problem, order, .. } = ordered;
    let chunks = &plan.devices[device];
    let place: BTreeMap<StageId, usize> =
        chunks.iter().enumerate().map(|(chunk, &stage)| (stage, chunk)).collect();
    let whole = plan.lengths.iter().sum();
    let mut now = Moment { chunks: vec![[0; 3]; chunks.len()], whole, rest: 0 };
    let mut seen: BTreeSet<Moment> = BTreeSet::new();
    for &step in &order.devices[device] {
        let mut after = now.clone();
        let passes: Vec<(Pass, pipec_program::Unit)> = match step {
            Step::Product(unit, part) if part + 1 == problem.weight_parts => vec![(Pass::W, unit)],
            Step::Product(..) => Vec::new(),
            Step::Pass(..) | Step::Pair { .. } => step.passes().collect(),
        };
        for (pass, unit) in passes {
            let Some(&chunk) = place.get(&unit.stage) else { continue };
            let tokens = plan.lengths[unit.slice.index()];
            let [saved, held, pending] = [0, 1, 2];
            match pass {
                Pass::F => {
                    for kind in [saved, held] {
                        now.chunks[chunk][kind] += tokens;
                        after.chunks[chunk][kind] += tokens;
                    }
                }
                Pass::BW => {
                    for kind in [saved, held] {
                        after.chunks[chunk][kind] -= tokens;
                    }
                }
                Pass::B => {
                    now.chunks[chunk][pending] += tokens;
                    after.chunks[chunk][pending] += tokens;
                    after.chunks[chunk][saved] -= tokens;
                }
                Pass::W => {
                    for kind in [held, pending] {
                        after.chunks[chunk][kind] -= tokens;
                    }
                }
                Pass::R => {}
            }
            if matches!(pass, Pass::B | Pass::BW) {
                let prefix = |slice| problem.cost(unit.stage, slice).prefix;
                if unit.slice.0 + 1 == problem.slices() {
                    let all: u64 = (0..unit.slice.0).map(pipec_program::Slice).map(prefix).sum();
                    now.rest += all;
                    after.rest += all;
                } else {
                    after.rest = after.rest.saturating_sub(prefix(unit.slice));
                }
            }
        }
        if !splits {
            now.chunks.iter_mut().for_each(|kinds| kinds[1..].fill(0));
        }
        seen.insert(now);
        now = after;
    }
    let mut moments: Vec<Moment> = Vec::new();
    for moment in seen.into_iter().rev() {
        if !moments.iter().any(|other| other.covers(&moment)) {
            moments.retain(|other| !moment.covers(other));
            moments.push(moment);
        }
    }
    while moments.len() > MOST_MOMENTS {
        let last = moments.pop();
        if let Some((first, last)) = moments.first_mut().zip(last) {
            first.join(&last);
        }
    }
    moments
}

/// A mode of a piece on a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Choice {
    mode: ModeId,
    time: u64,
    workspace: u64,
    /// What its live units hold at each moment.
    loads: Vec<u64>,
}

/// The pieces of a device and what it has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Device {
    items: Vec<Vec<Choice>>,
    /// For live units and workspace at each moment.
    limits: Vec<u64>,
}

/// The modes of the pieces of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pick {
    modes: Vec<ModeId>,
    time: u64,
    /// No choice takes less.
    bound: u64,
}

impl Device {
    /// The fastest modes that fit. Every workspace is tried: passes of a device use one after the other, so that the largest
    /// counts, and only once.
    fn pick(&self) -> Option<Pick> {
        let levels: BTreeSet<u64> = self.items.iter().flatten().map(|choice| choice.workspace).collect();
        let mut best: Option<Pick> = None;
        let mut bound: Option<u64> = None;
        for level in levels {
            let within = |choices: &Vec<Choice>| -> Vec<Choice> {
                choices.iter().filter(|choice| choice.workspace <= level).cloned().collect()
            };
            let items: Vec<Vec<Choice>> = self.items.iter().map(within).collect();
            let limits: Option<Vec<u64>> = self.limits.iter().map(|limit| limit.checked_sub(level)).collect();
            let Some(limits) = limits else { break };
            let Some(pick) = (Self { items, limits }).pick_within() else { continue };
            bound = Some(bound.map_or(pick.bound, |bound: u64| bound.min(pick.bound)));
            if best.as_ref().is_none_or(|best| pick.time < best.time) {
                best = Some(pick);
            }
        }
        best.zip(bound).map(|(pick, bound)| Pick { bound, ..pick })
    }

    /// The same with the workspace taken off the limits.
    fn pick_within(&self) -> Option<Pick> {
        let mut bound = 0;
        for (moment, &limit) in self.limits.iter().enumerate() {
            let path = self.least(limit, |choice| choice.loads[moment])?;
            let time = self.time(&path);
            bound = bound.max(time);
            if self.fits(&path) {
                return Some(Pick { modes: self.modes(&path), time, bound: time });
            }
        }
        // What no moment alone is enough for: as if all held their most at once, then faster where there is room.
        let least = self.limits.iter().copied().min().unwrap_or(0);
        let envelope = self.least(least, |choice| choice.loads.iter().copied().max().unwrap_or(0));
        let mut path = match envelope {
            Some(path) => path,
            // The last of every piece keeps least.
            None => self.items.iter().map(|choices| choices.len().saturating_sub(1)).collect(),
        };
        if !self.fits(&path) {
            return None;
        }
        self.improve(&mut path);
        Some(Pick { modes: self.modes(&path), time: self.time(&path), bound })
    }

    /// The positions of the fastest choices whose loads add up to at most a limit.
    fn least(&self, limit: u64, load: impl Fn(&Choice) -> u64) -> Option<Vec<usize>> {
        let mut fronts: Vec<Vec<Point>> = vec![vec![Point { load: 0, time: 0, before: 0, choice: 0 }]];
        for choices in &self.items {
            let front = &fronts[fronts.len() - 1];
            let mut next: Vec<Point> = Vec::with_capacity(front.len() * choices.len());
            for (before, point) in front.iter().enumerate() {
                for (position, choice) in choices.iter().enumerate() {
                    let load = point.load.saturating_add(load(choice));
                    if load <= limit {
                        next.push(Point { load, time: point.time + choice.time, before, choice: position });
                    }
                }
            }
            next.sort_unstable_by_key(|point| (point.load, point.time, point.choice, point.before));
            let mut fastest = u64::MAX;
            next.retain(|point| {
                let stays = point.time < fastest;
                fastest = fastest.min(point.time);
                stays
            });
            while next.len() > MOST_POINTS {
                let mut number = 0;
                next.retain(|_| {
                    number += 1;
                    number % 2 == 1
                });
            }
            fronts.push(next);
        }
        let mut at = fronts[fronts.len() - 1].len().checked_sub(1)?;
        let mut path = Vec::with_capacity(self.items.len());
        for front in fronts[1..].iter().rev() {
            path.push(front[at].choice);
            at = front[at].before;
        }
        path.reverse();
        Some(path)
    }

    /// Takes faster choices, the one that gains most first, while all fits.
    fn improve(&self, path: &mut [usize]) {
        loop {
            let mut best: Option<(u64, usize, usize)> = None;
            for item in 0..path.len() {
                let now = path[item];
                for other in 0..self.items[item].len() {
                    let gain = self.items[item][now].time.saturating_sub(self.items[item][other].time);
                    if gain == 0 || best.is_some_and(|(most, ..)| gain <= most) {
                        continue;
                    }
                    path[item] = other;
                    if self.fits(path) {
                        best = Some((gain, item, other));
                    }
                    path[item] = now;
                }
            }
            match best {
                Some((_, item, other)) => path[item] = other,
                None => return,
            }
        }
    }

    fn fits(&self, path: &[usize]) -> bool {
        let load = |moment: usize| {
            let of_item = |(choices, &position): (&Vec<Choice>, &usize)| {
                choices.get(position).map(|choice| choice.loads[moment])
            };
            self.items.iter().zip(path).map(of_item).try_fold(0u64, |sum, load| sum.checked_add(load?))
        };
        (0..self.limits.len()).all(|moment| load(moment).is_some_and(|load| load <= self.limits[moment]))
    }

    fn time(&self, path: &[usize]) -> u64 {
        self.items.iter().zip(path).map(|(choices, &position)| choices[position].time).sum()
    }

    fn modes(&self, path: &[usize]) -> Vec<ModeId> {
        self.items.iter().zip(path).map(|(choices, &position)| choices[position].mode).collect()
    }
}

/// A sum over some pieces: the last choice and the sum before it.
#[derive(Clone, Copy, Debug)]
struct Point {
    load: u64,
    time: u64,
    before: usize,
    choice: usize,
}
