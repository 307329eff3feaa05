//! The modes of pieces that make a step shortest within the memory of every device: `recompute: auto`, `offload: auto`.
//!
//! An order of passes tells how many units of each stage are alive at each moment. With it every device is a problem of its
//! own: of each of its pieces one mode, so that what the live units keep, and the workspace of the passes, fits what the
//! device has left, copies to the host take no longer than the passes, and the time is least. A step is never longer where a pass is shorter, so that on devices with one stage
//! this is the shortest step of the order. Sums over pieces are kept as exact Pareto fronts of time and bytes; where several
//! moments limit a device, the least time within each alone bounds what the choice may lose, which [`Chosen::gap`] tells.
//!
//! It deliberately makes no order and no program: `pipeline` asks it again with what a program lacked.

#[cfg(test)]
mod tests;

use crate::lower::functions::{StageFunctions, Wanted, stage_functions};
use crate::lower::{Host, Memory, Stages, TRAVELLING, hosts, unit, workspace};
use crate::mode::{Forms, Layers, ModeId, VariantId, levels};
use crate::plan::{PassTimes, Plan, Times};
use crate::schedule::{Problem, Schedule, Step};
use crate::spec::{LayerId, Level, Offload, Piece, Pipeline, Spec};
use pipec_program::id::{Id, IdVec};
use pipec_program::{DeviceId, Pass, StageId};
use std::collections::{BTreeMap, BTreeSet};

/// The most moments of a device that are told apart; the others count as one that holds the most of all.
const MOST_MOMENTS: usize = 8;

/// How often an order is made again for the modes that were chosen for it.
pub(crate) const MOST_TURNS: usize = 6;

/// How many of the shortest steps that fit are simulated.
pub(crate) const MOST_CANDIDATES: usize = 4;

/// The most passes of a replica whose programs are simulated to be compared.
pub(crate) const MOST_STEPS: usize = 50_000;

/// How many limits of the workspace are tried.
const MOST_LEVELS: usize = 4;

/// The most points of a front of sums; beyond it every second is left out.
const MOST_POINTS: usize = 1 << 12;

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
    /// On the host between the passes.
    stored: u64,
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
                let functions = |pieces| stage_functions(model, &forms, pieces, "", wanted);
                let price = first[layer].map(|piece| {
                    // What goes from piece to piece takes workspace too.
                    let alike = model.pieces.get(piece + 1).is_some_and(|next| next.layer == layer);
                    let price = price(&functions(piece..piece + 1));
                    let more = if alike { workspace(&functions(piece..piece + 2)) } else { 0 };
                    Price { workspace: price.workspace.max(more), ..price }
                });
                prices.push(price.unwrap_or_default());
            }
        }
        let every = Forms::every(layers, model, &spec.train, lengths);
        let variants =
            every.variants.iter().map(|(id, variant)| ((variant.layer, variant.mode), id)).collect();
        Self { layers: prices, times: Times::new(spec, &every), variants }
    }

    /// The times of the forward and the backward passes of a layer in a mode over a micro-batch.
    fn times(&self, layer: LayerId, mode: ModeId, device: DeviceId, splits: bool) -> (u64, u64) {
        let Some(&variant) = self.variants.get(&(layer, mode)) else { return (0, 0) };
        let backward = |times: PassTimes| match splits {
            true => times.inputs + times.weights,
            false => times.backward,
        };
        let times = || self.times.variant(variant, device);
        (times().map(|times| times.forward.0).sum(), times().map(|times| backward(times).0).sum())
    }
}

fn price(functions: &StageFunctions) -> Price {
    let mut kept = Kept::default();
    for functions in functions.slices.values() {
        let Memory { saved, kept: held, pending, stored, prefix: _, messages: _ } = unit(functions);
        kept.saved += saved;
        kept.held += held;
        kept.pending += pending;
        kept.stored += stored;
    }
    Price { kept, workspace: workspace(functions) }
}

/// The modes that may be chosen for every piece.
pub(crate) struct Allowed {
    /// For each piece, the fastest first.
    pieces: Vec<Vec<ModeId>>,
    /// For each piece the one that keeps least.
    least: Vec<ModeId>,
}

impl Allowed {
    /// What a pipeline leaves open: how much is computed again, what is offloaded, or both.
    pub(crate) fn new(spec: &Spec, layers: &Layers) -> Self {
        let Pipeline { recompute, offload, .. } = &spec.pipeline;
        let levels = levels(&spec.model, recompute);
        let of_piece = |(number, piece): (usize, &Piece)| -> Vec<ModeId> {
            let layer = &layers[piece.layer];
            let base: Vec<ModeId> = match &levels {
                Some(levels) => vec![layer.at(levels[number])],
                None => layer.on_device().collect(),
            };
            let modes: BTreeSet<ModeId> = match (offload, &levels) {
                (Offload::None, _) => base.into_iter().collect(),
                (Offload::Auto, None) => layer.modes.ids().collect(),
                (Offload::Auto, Some(_)) => base.into_iter().flat_map(|mode| layer.variants(mode)).collect(),
                (Offload::Part(part), _) => {
                    base.into_iter().map(|mode| layer.offloading(mode, *part)).collect()
                }
            };
            modes.into_iter().collect()
        };
        let pieces: Vec<Vec<ModeId>> = spec.model.pieces.iter().enumerate().map(of_piece).collect();
        let least = |(piece, modes): (&Piece, &Vec<ModeId>)| {
            // What is offloaded passes through the device.
            let kept = |mode: &ModeId| {
                let mode = &layers[piece.layer].modes[*mode];
                mode.kept + mode.offloaded * TRAVELLING
            };
            modes.iter().copied().min_by_key(kept).unwrap_or(ModeId(0))
        };
        let least = spec.model.pieces.iter().zip(&pieces).map(least).collect();
        Self { pieces, least }
    }

    /// Of all pieces the mode that keeps least on the device.
    pub(crate) fn least(&self) -> Vec<ModeId> {
        self.least.clone()
    }

    /// Modes of all pieces to start from: the same level of all, those that keep least, and some between.
    pub(crate) fn seeds(&self, layers: &Layers, pieces: &[Piece], adapts: bool) -> Vec<Vec<ModeId>> {
        let mut seeds: Vec<Vec<ModeId>> = Vec::new();
        for level in Level::ALL {
            let mode = |(piece, modes): (&Piece, &Vec<ModeId>)| {
                let wanted = layers[piece.layer].at(level);
                modes.iter().copied().find(|&mode| mode >= wanted).or(modes.last().copied()).unwrap_or(wanted)
            };
            seeds.push(pieces.iter().zip(&self.pieces).map(mode).collect());
        }
        seeds.push(self.least());
        if adapts {
            for quarter in 1..4 {
                let mode = |modes: &Vec<ModeId>| modes[(modes.len() - 1) * quarter / 4];
                seeds.push(self.pieces.iter().map(mode).collect());
            }
        }
        let mut known = BTreeSet::new();
        seeds.retain(|seed| known.insert(seed.clone()));
        seeds
    }
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
    /// How long the copies of a micro-batch may take.
    pub(crate) pace: Pace,
}

/// How long the copies of a micro-batch to the host may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// As long as its forward pass: then nothing piles up while only forward passes run.
    Forward,
    /// As long as its passes: then copies keep up in the long run.
    Both,
}

impl Pace {
    /// The paces that make a difference.
    pub(crate) fn all(offload: Offload) -> &'static [Self] {
        match offload {
            Offload::None => &[Self::Both],
            Offload::Auto | Offload::Part(_) => &[Self::Forward, Self::Both],
        }
    }
}

/// The bytes that the devices of a replica have left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// For units, the workspace and what is on its way to the host.
    all: IdVec<DeviceId, u64>,
    /// What the passes take now besides units: workspace, and what is on its way.
    besides: IdVec<DeviceId, u64>,
}

impl Room {
    /// What a problem of one replica and its order leave, `reserve` kept free. The first devices of the plan are those of the
    /// replica.
    pub(crate) fn new(
        replica: &Problem,
        order: &Schedule,
        plan: &Plan,
        stages: &Stages,
        reserve: Option<&IdVec<DeviceId, u64>>,
    ) -> Self {
        let workspace = |device: DeviceId| {
            plan.devices[device].iter().map(|&stage| workspace(stages.of(stage))).max().unwrap_or(0)
        };
        let all = |device: DeviceId| {
            let cap = replica.caps.as_ref().map_or(u64::MAX, |caps| caps[device]);
            cap.saturating_add(workspace(device)).saturating_sub(reserve.map_or(0, |reserve| reserve[device]))
        };
        let besides = |device: DeviceId| {
            let slices = plan.devices[device].iter().flat_map(|&stage| stages.of(stage).slices.values());
            let stored = slices.map(|functions| unit(functions).stored).max().unwrap_or(0);
            let passing = TRAVELLING.min(alive(&order.devices[device]));
            workspace(device).saturating_add(stored.saturating_mul(passing))
        };
        let ids = || replica.devices().ids();
        Self { all: ids().map(all).collect(), besides: ids().map(besides).collect() }
    }

    /// What units that take so much on each device take too much, and what they leave.
    pub(crate) fn compared(
        &self,
        peaks: &IdVec<DeviceId, u64>,
    ) -> (IdVec<DeviceId, u64>, IdVec<DeviceId, u64>) {
        let taken = |device: DeviceId| peaks[device].saturating_add(self.besides[device]);
        let over = |device| taken(device).saturating_sub(self.all[device]);
        let free = |device| self.all[device].saturating_sub(taken(device));
        (peaks.ids().map(over).collect(), peaks.ids().map(free).collect())
    }

    /// Takes some bytes of each device away.
    pub(crate) fn take(&mut self, bytes: &IdVec<DeviceId, u64>) {
        for (device, bytes) in bytes.iter() {
            self.all[device] = self.all[device].saturating_sub(*bytes);
        }
    }
}

/// The most units of a device that are alive at once, from F to B or BW.
fn alive(steps: &[Step]) -> u64 {
    let (mut now, mut most) = (0_u64, 0);
    for (pass, _) in steps.iter().flat_map(|step| step.passes()) {
        match pass {
            Pass::F => {
                now += 1;
                most = now.max(most);
            }
            Pass::B | Pass::BW => now = now.saturating_sub(1),
            Pass::W | Pass::R => {}
        }
    }
    most
}

/// What was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    /// The mode of every piece.
    pub(crate) modes: Vec<ModeId>,
    /// How much longer than the least of any choice the passes of a device may take, in nanoseconds of a micro-batch; the
    /// largest of all devices. 0 where the choice is the best there is.
    pub(crate) gap: u64,
    /// What it seems to leave of every device.
    pub(crate) slack: IdVec<DeviceId, u64>,
}

/// The fastest modes within the room of every device and its host; none where no modes fit.
pub(crate) fn choose(
    prices: &Prices,
    spec: &Spec,
    allowed: &Allowed,
    ordered: Ordered<'_>,
) -> Option<Chosen> {
    let splits = Wanted::by(ordered.order).splits();
    let pieces = &spec.model.pieces;
    let hosts = hosts(&spec.cluster, ordered.plan.devices.len());
    let slack = IdVec::new();
    let mut chosen = Chosen { modes: vec![ModeId(0); pieces.len()], gap: 0, slack };
    let mut picked: Vec<Option<ModeId>> = vec![None; pieces.len()];
    let mut known: BTreeMap<Device, Pick> = BTreeMap::new();
    for (device, chunks) in ordered.plan.devices.iter() {
        let moments = moments(ordered, device);
        let (mut numbers, mut items): (Vec<usize>, Vec<Vec<Choice>>) = (Vec::new(), Vec::new());
        for (chunk, &stage) in chunks.iter().enumerate() {
            for piece in ordered.plan.stages[stage].pieces.clone() {
                let layer = pieces[piece].layer;
                let choice = |&mode: &ModeId| {
                    let price = &prices.layers[layer][mode];
                    let (forward, backward) = prices.times(layer, mode, device, splits);
                    Choice {
                        mode,
                        time: forward + backward,
                        forward,
                        workspace: price.workspace,
                        offloaded: price.kept.stored,
                        waiting: moments
                            .iter()
                            .map(|moment| moment.on_host(chunk, &price.kept))
                            .max()
                            .unwrap_or(0),
                        loads: moments
                            .iter()
                            .map(|moment| moment.load(chunk, &price.kept, ordered.pace))
                            .collect(),
                    }
                };
                numbers.push(piece);
                items.push(allowed.pieces[piece].iter().map(choice).collect());
            }
        }
        let left = |moment: &Moment| ordered.room.all[device].checked_sub(moment.rest);
        let limits = moments.iter().map(left).collect::<Option<Vec<u64>>>()?;
        let fastest = |choices: &Vec<Choice>| match ordered.pace {
            Pace::Forward => choices.iter().map(|choice| choice.forward).min().unwrap_or(0),
            Pace::Both => choices.iter().map(|choice| choice.time).min().unwrap_or(0),
        };
        let time: u64 = items.iter().map(fastest).sum();
        let Host { down, up, memory, bandwidth: _ } = hosts[device];
        let problem = Device {
            items,
            limits,
            // Messages may take the same links.
            carried: down.carries(time).min(up.carries(time)) / 10 * 8,
            host: memory.0,
        };
        let pick = match known.get(&problem) {
            Some(pick) => pick.clone(),
            None => {
                let pick = problem.pick()?;
                known.insert(problem, pick.clone());
                pick
            }
        };
        chosen.gap = chosen.gap.max(pick.time - pick.bound);
        chosen.slack.push(pick.slack);
        for (piece, mode) in numbers.into_iter().zip(pick.modes) {
            // A piece with a copy on another device takes what keeps less there.
            let kept = |mode: ModeId| {
                let Kept { saved, held, .. } = prices.layers[pieces[piece].layer][mode].kept;
                saved + held
            };
            let keeps_less = picked[piece].is_none_or(|other| kept(mode) < kept(other));
            if keeps_less {
                picked[piece] = Some(mode);
                chosen.modes[piece] = mode;
            }
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
    /// The tokens of its longest slice.
    longest: u64,
    /// What does not depend on modes.
    rest: u64,
}

impl Moment {
    fn load(&self, chunk: usize, kept: &Kept, pace: Pace) -> u64 {
        let [saved, held, pending] = self.chunks[chunk];
        // Copies that take as long as both passes leave two of three units behind while only forward passes run, since backward
        // passes take twice as long.
        let live = saved.max(held);
        let behind = match pace {
            Pace::Forward => 0,
            Pace::Both => live - live / 3,
        };
        let passing = self.longest.saturating_mul(TRAVELLING).saturating_add(behind).min(live);
        let pairs = [(kept.saved, saved), (kept.held, held), (kept.pending, pending), (kept.stored, passing)];
        self.bytes(&pairs)
    }

    /// What waits on the host.
    fn on_host(&self, chunk: usize, kept: &Kept) -> u64 {
        let [saved, held, _] = self.chunks[chunk];
        self.bytes(&[(kept.stored, saved.max(held))])
    }

    /// The sum of bytes of a micro-batch for the tokens of each.
    fn bytes(&self, pairs: &[(u64, u64)]) -> u64 {
        let sum: u128 = pairs.iter().map(|&(bytes, tokens)| u128::from(bytes) * u128::from(tokens)).sum();
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
fn moments(ordered: Ordered<'_>, device: DeviceId) -> Vec<Moment> {
    let Ordered { plan, problem, order, .. } = ordered;
    let chunks = &plan.devices[device];
    let place: BTreeMap<StageId, usize> =
        chunks.iter().enumerate().map(|(chunk, &stage)| (stage, chunk)).collect();
    let whole = plan.lengths.iter().sum();
    let longest = plan.lengths.iter().copied().max().unwrap_or(0);
    let mut now = Moment { chunks: vec![[0; 3]; chunks.len()], whole, longest, rest: 0 };
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
    /// Of both passes over a micro-batch.
    time: u64,
    forward: u64,
    workspace: u64,
    /// The bytes of a micro-batch that go to the host.
    offloaded: u64,
    /// The most that its live units have there.
    waiting: u64,
    /// What its live units hold at each moment.
    loads: Vec<u64>,
}

impl Choice {
    /// The time and what offloading costs, in picoseconds.
    fn cost(&self, toll: Toll) -> u64 {
        let offloaded = u128::from(self.offloaded) * u128::from(toll);
        let cost = u128::from(self.time) * 1000 + offloaded;
        u64::try_from(cost).unwrap_or(u64::MAX)
    }
}

/// What a byte through the host is to cost, in picoseconds.
type Toll = u64;

/// Where no byte is worth it.
const DEAREST: Toll = 1 << 16;

/// The pieces of a device and what it has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Device {
    items: Vec<Vec<Choice>>,
    /// For live units and workspace at each moment.
    limits: Vec<u64>,
    /// The bytes of a micro-batch that go to the host while it is computed with.
    carried: u64,
    /// The memory that it has on the host.
    host: u64,
}

/// The modes of the pieces of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pick {
    modes: Vec<ModeId>,
    time: u64,
    /// No choice takes less.
    bound: u64,
    /// The bytes that are left when least are.
    slack: u64,
    /// The bytes that go to the host and are not carried in time.
    late: u64,
}

impl Device {
    /// The fastest modes that fit, before all those whose copies keep up. Several limits of the workspace are tried: passes of a
    /// device use it one after the other, so that the largest counts, and only once.
    fn pick(&self) -> Option<Pick> {
        let workspace =
            |choices: &Vec<Choice>| choices.iter().map(|choice| choice.workspace).min().unwrap_or(0);
        let least = self.items.iter().map(workspace).max().unwrap_or(0);
        let larger = self.items.iter().flatten().map(|choice| choice.workspace).filter(|&each| each >= least);
        let levels: Vec<u64> = larger.collect::<BTreeSet<u64>>().into_iter().collect();
        let most = levels.len().saturating_sub(1);
        let tried: BTreeSet<usize> = (0..MOST_LEVELS).map(|level| most * level / (MOST_LEVELS - 1)).collect();
        // As if every choice had the least workspace.
        let bound = self.within(least, u64::MAX)?.carry()?.bound;
        let mut best: Option<Pick> = None;
        let others = (0..levels.len()).filter(|level| !tried.contains(level));
        for place in tried.iter().copied().chain(others) {
            // The others only where none of these fits.
            if best.is_some() && !tried.contains(&place) {
                break;
            }
            let Some(&level) = levels.get(place) else { continue };
            let Some(pick) = self.within(level, level).and_then(|device| device.carry()) else { continue };
            let rank = |pick: &Pick| (pick.late, pick.time);
            if best.as_ref().is_none_or(|best| rank(&pick) < rank(best)) {
                best = Some(pick);
            }
        }
        best.map(|pick| Pick { bound: bound.min(pick.time), ..pick })
    }

    /// The same with some workspace taken off the limits and without choices that need more than `most`; none if too little is
    /// left.
    fn within(&self, workspace: u64, most: u64) -> Option<Self> {
        let limits = self.limits.iter().map(|limit| limit.checked_sub(workspace)).collect::<Option<_>>()?;
        let within = |choices: &Vec<Choice>| -> Vec<Choice> {
            choices.iter().filter(|choice| choice.workspace <= most).cloned().collect()
        };
        Some(Self { items: self.items.iter().map(within).collect(), limits, ..*self })
    }

    /// The fastest modes of those whose copies do not take longer than the passes, if there are any: the price of a byte
    /// through the host is raised until they do not (a Lagrangian relaxation, whose value is a bound).
    fn carry(&self) -> Option<Pick> {
        let free = self.priced(0)?;
        if self.is_carried(&free.0) {
            return Some(self.picked(&free.0, free.1 / 1000));
        }
        let mut bound = free.1 / 1000;
        let mut best = self.priced(DEAREST).unwrap_or(free);
        let (mut low, mut high) = (0, DEAREST);
        while high - low > 1 + high / 16 {
            let toll = low + (high - low) / 2;
            let Some(priced) = self.priced(toll) else { break };
            let paid = u128::from(self.carried) * u128::from(toll);
            let least = u128::from(priced.1).saturating_sub(paid) / 1000;
            bound = bound.max(u64::try_from(least).unwrap_or(0));
            if self.is_carried(&priced.0) {
                (best, high) = (priced, toll);
            } else {
                low = toll;
            }
        }
        let time = self.time(&best.0);
        self.is_held(&best.0).then(|| self.picked(&best.0, bound.min(time)))
    }

    fn picked(&self, path: &[usize], bound: u64) -> Pick {
        let modes = self.items.iter().zip(path).map(|(choices, &position)| choices[position].mode);
        let left = |(moment, &limit): (usize, &u64)| {
            limit.saturating_sub(self.sum(path, |choice| choice.loads[moment]))
        };
        let slack = self.limits.iter().enumerate().map(left).min().unwrap_or(0);
        let late = self.sum(path, |choice| choice.offloaded).saturating_sub(self.carried);
        Pick { modes: modes.collect(), time: self.time(path), bound, slack, late }
    }

    /// The cheapest choices within the memory of the device, and a bound of what any cost.
    fn priced(&self, toll: Toll) -> Option<(Vec<usize>, u64)> {
        let mut bound = 0;
        for (moment, &limit) in self.limits.iter().enumerate() {
            let Least { path, is_exact } = self.least(limit, toll, |choice| choice.loads[moment])?;
            // Where points were left out nothing is known but that no piece is cheaper than its cheapest.
            let cheapest =
                |choices: &Vec<Choice>| choices.iter().map(|choice| choice.cost(toll)).min().unwrap_or(0);
            let cost = match is_exact {
                true => self.cost(&path, toll),
                false => self.items.iter().map(cheapest).fold(0, u64::saturating_add),
            };
            bound = bound.max(cost);
            if self.fits(&path) {
                return Some((path, cost));
            }
        }
        // What no moment alone is enough for: as if all held their most at once, then better where there is room.
        let least = self.limits.iter().copied().min().unwrap_or(0);
        let envelope = self.least(least, toll, |choice| choice.loads.iter().copied().max().unwrap_or(0));
        let mut path = match envelope {
            Some(least) => least.path,
            None => self.smallest(),
        };
        if !self.fits(&path) {
            return None;
        }
        self.improve(&mut path, toll);
        Some((path, bound))
    }

    /// Of every piece the choice that holds least where it holds most.
    fn smallest(&self) -> Vec<usize> {
        let most = |choice: &Choice| choice.loads.iter().copied().max().unwrap_or(0);
        let smallest = |choices: &Vec<Choice>| {
            let positions = 0..choices.len();
            positions.min_by_key(|&position| most(&choices[position])).unwrap_or(0)
        };
        self.items.iter().map(smallest).collect()
    }

    /// The positions of the cheapest choices whose loads add up to at most a limit.
    fn least(&self, limit: u64, toll: Toll, load: impl Fn(&Choice) -> u64) -> Option<Least> {
        let mut is_exact = true;
        let mut fronts: Vec<Vec<Point>> = vec![vec![Point { load: 0, cost: 0, before: 0, choice: 0 }]];
        let mut worth: Vec<Point> = Vec::new();
        for (number, choices) in self.items.iter().enumerate() {
            // Pieces that are alike often follow each other.
            if number == 0 || self.items[number - 1] != *choices {
                let point = |(position, choice): (usize, &Choice)| Point {
                    load: load(choice),
                    cost: choice.cost(toll),
                    before: 0,
                    choice: position,
                };
                worth = cheapest(choices.iter().enumerate().map(point).collect());
            }
            let front = &fronts[fronts.len() - 1];
            let mut next: Vec<Point> = Vec::new();
            for choice in &worth {
                let sum = |(before, point): (usize, &Point)| Point {
                    load: point.load.saturating_add(choice.load),
                    cost: point.cost.saturating_add(choice.cost),
                    before,
                    choice: choice.choice,
                };
                let sums = front.iter().enumerate().map(sum).take_while(|sum| sum.load <= limit);
                next = merged(&next, sums);
            }
            while next.len() > MOST_POINTS {
                is_exact = false;
                // The last is the cheapest.
                let (mut number, last) = (0, next.len());
                next.retain(|_| {
                    number += 1;
                    number % 2 == 1 || number == last
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
        Some(Least { path, is_exact })
    }

    /// Takes cheaper choices, the one that gains most first, while all fits.
    fn improve(&self, path: &mut [usize], toll: Toll) {
        loop {
            let mut best: Option<(u64, usize, usize)> = None;
            for item in 0..path.len() {
                let now = path[item];
                for other in 0..self.items[item].len() {
                    let cost = |position: usize| self.items[item][position].cost(toll);
                    let gain = cost(now).saturating_sub(cost(other));
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

    fn sum(&self, path: &[usize], of: impl Fn(&Choice) -> u64) -> u64 {
        let each = self
            .items
            .iter()
            .zip(path)
            .map(|(choices, &position)| choices.get(position).map_or(u64::MAX, &of));
        each.fold(0, u64::saturating_add)
    }

    /// Whether the device holds it.
    fn fits(&self, path: &[usize]) -> bool {
        let fits = |(moment, &limit): (usize, &u64)| self.sum(path, |choice| choice.loads[moment]) <= limit;
        self.limits.iter().enumerate().all(fits)
    }

    /// Whether the host holds it.
    fn is_held(&self, path: &[usize]) -> bool {
        self.sum(path, |choice| choice.waiting) <= self.host
    }

    /// Whether copies keep up with the passes, and the host holds what is copied.
    fn is_carried(&self, path: &[usize]) -> bool {
        self.sum(path, |choice| choice.offloaded) <= self.carried && self.is_held(path)
    }

    fn time(&self, path: &[usize]) -> u64 {
        self.sum(path, |choice| choice.time)
    }

    fn cost(&self, path: &[usize], toll: Toll) -> u64 {
        self.sum(path, |choice| choice.cost(toll))
    }
}

/// The cheapest choices found, and whether there are none cheaper.
struct Least {
    path: Vec<usize>,
    is_exact: bool,
}

/// A sum over some pieces: the last choice and the sum before it.
#[derive(Clone, Copy, Debug)]
struct Point {
    load: u64,
    cost: u64,
    before: usize,
    choice: usize,
}

/// The sums that no other is at most in load and cost, by load.
fn cheapest(mut points: Vec<Point>) -> Vec<Point> {
    points.sort_unstable_by_key(|point| (point.load, point.cost, point.choice, point.before));
    let mut cheapest = u64::MAX;
    points.retain(|point| {
        let stays = point.cost < cheapest;
        cheapest = cheapest.min(point.cost);
        stays
    });
    points
}

/// Two fronts by load in one: the points that no other is at most in load and cost; of equal ones that of the first.
fn merged(first: &[Point], second: impl Iterator<Item = Point>) -> Vec<Point> {
    let mut merged: Vec<Point> = Vec::with_capacity(first.len());
    let mut push = |point: Point| {
        if merged.last().is_none_or(|last| point.cost < last.cost) {
            merged.push(point);
        }
    };
    let mut first = first.iter().copied().peekable();
    for point in second {
        while let Some(before) = first.next_if(|other| (other.load, other.cost) <= (point.load, point.cost)) {
            push(before);
        }
        push(point);
    }
    first.for_each(&mut push);
    merged
}
