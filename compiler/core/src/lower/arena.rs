//! The buffers of every device: what lives for the whole step at the bottom of its arena, what comes and goes above.

use super::functions::{Region, has_master};
use super::lifetimes::{Held, Room, Tensor, region_bytes};
use super::pack::{Effort, Packing, Span, live, pack};
use super::shards::Shard;
use super::shared::Window;
use super::stages::Stages;
use crate::plan::{Part, Plan};
use crate::spec::State;
use pipec_program::id::IdVec;
use pipec_program::{Buffer, BufferId, Bytes, Category, Device, DeviceId, Space, StageId, View};
use std::collections::BTreeMap;

/// Buffers start at multiples of this many bytes.
pub(super) const ALIGNMENT: u64 = 64;

/// The memory of a device, as planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arena {
    /// What lives for the whole step, by category; gaps of alignment are left out.
    pub fixed: BTreeMap<Category, Bytes>,
    /// The bytes of what comes and goes: activations and messages, as packed.
    pub packed: Bytes,
    /// The most bytes of it that are alive at once, by category; no packing is smaller than their sum.
    pub least: BTreeMap<Category, Bytes>,
    /// The end of the highest buffer.
    pub end: Bytes,
    /// What the device has.
    pub capacity: Bytes,
}

/// Where everything of a device lies that lives for the whole step.
#[derive(Clone, Debug, Default)]
pub(super) struct Fixed {
    pub(super) stages: BTreeMap<StageId, StageViews>,
    /// The weights of all stages where they live, and where passes read them if that is elsewhere all the time.
    pub(super) home: Option<View>,
    pub(super) loaded: Option<View>,
    /// Whether stages share parameters, so that their bytes are common.
    pub(super) shares: bool,
    /// The gradients of all stages, where they are there all the time.
    pub(super) gradients: Option<View>,
    /// Where they land on the host.
    pub(super) landed: Option<View>,
    pub(super) tokens: Option<View>,
    pub(super) targets: Option<View>,
    pub(super) loss: Option<View>,
    pub(super) squares: Option<View>,
    pub(super) norm: Option<View>,
    pub(super) factor: Option<View>,
    /// The same on the host, where that updates.
    pub(super) host_factor: Option<View>,
    pub(super) workspace: Option<View>,
    /// What is computed again for one unit.
    pub(super) recomputed: Option<View>,
}

/// The state and the gradients of a stage.
#[derive(Clone, Copy, Debug)]
pub(super) struct StageViews {
    /// Where its weights live.
    pub(super) home: View,
    /// Where passes read them; none where they are loaded for each visit.
    pub(super) weights: Option<View>,
    /// Where passes add; none where that is for a time only.
    pub(super) gradients: Option<View>,
    /// Where gradients land on the host.
    pub(super) landed: Option<View>,
    /// Of what the stage updates here; none where it updates nothing.
    pub(super) moment: Option<View>,
    pub(super) variance: Option<View>,
    pub(super) master: Option<View>,
}

/// What the step needs besides its stages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs {
    /// Bytes of the tokens, and of the targets, of the whole step.
    pub(super) tokens: Bytes,
    /// Bytes of the losses of all units.
    pub(super) losses: Bytes,
    /// Parameters of the model, where the norm of their gradients is asked for.
    pub(super) clipped: Option<usize>,
    /// Where state lives.
    pub(super) state: State,
}

/// The buffers of a program under construction.
pub(super) struct Buffers {
    pub(super) table: IdVec<BufferId, Buffer>,
    pub(super) fixed: IdVec<DeviceId, Fixed>,
    /// What is placed in the arena of each device for the whole step, and in that of its host.
    placed: IdVec<DeviceId, [Bottom; 2]>,
}

/// The bottom of an arena.
#[derive(Clone, Debug, Default)]
struct Bottom {
    end: Bytes,
    bytes: BTreeMap<Category, Bytes>,
}

/// The position of an arena among those of a device.
fn arena(space: Space) -> usize {
    match space {
        Space::Device => 0,
        Space::Host => 1,
    }
}

impl Buffers {
    /// Places what lives for the whole step.
    pub(super) fn new(plan: &Plan, stages: &Stages, shards: &IdVec<StageId, Shard>, needs: Needs) -> Self {
        let mut buffers = Self {
            table: IdVec::new(),
            fixed: plan.devices.values().map(|_| Fixed::default()).collect(),
            placed: plan.devices.values().map(|_| Default::default()).collect(),
        };
        for (device, chunks) in plan.devices.iter() {
            // What a forward cut computes with lives elsewhere.
            let has_home = |stage: &StageId| plan.stages[*stage].part != Part::Forward;
            let homes: Vec<StageId> = chunks.iter().copied().filter(has_home).collect();
            buffers.place_fixed(device, (chunks, &homes), stages, shards, needs);
        }
        buffers
    }

    fn place_fixed(
        &mut self,
        device: DeviceId,
        (chunks, homes): (&[StageId], &[StageId]),
        stages: &Stages,
        shards: &IdVec<StageId, Shard>,
        needs: Needs,
    ) {
        let mut fixed = Fixed::default();
        let windows = windows(homes, stages, shards);
        let (on_host, home) = match needs.state {
            State::Device => (false, Space::Device),
            State::HostOptimizer | State::Host => (true, Space::Host),
        };
        // One buffer of each kind for all stages, so that one fill clears the gradients.
        let mut all =
            |name: &str, (space, category), start: fn(&Window) -> Bytes, size: &dyn Fn(StageId) -> Bytes| {
                let ends = homes.iter().zip(&windows).map(|(&stage, window)| start(window) + size(stage));
                let bytes = ends.max().unwrap_or_default();
                self.add((device, space), format!("{name}_{device}"), bytes, category)
            };
        let of_weights = |window: &Window| window.weights;
        let of_gradients = |window: &Window| window.gradients;
        let weight_bytes = |stage| stages.of(stage).weights;
        let gradient_bytes = |stage| stages.of(stage).gradients;
        let weights = all("weights", (home, Category::Weights), of_weights, &weight_bytes);
        let loaded = match needs.state {
            State::Device => weights,
            State::HostOptimizer => {
                all("loaded", (Space::Device, Category::Loaded), of_weights, &weight_bytes)
            }
            State::Host => None,
        };
        // Stages that share parameters add to common gradients, which no one of them may leave.
        let shares = homes.iter().any(|&stage| stages.windows[stage].is_some());
        fixed.home = weights;
        fixed.loaded = loaded.filter(|_| on_host);
        fixed.shares = shares;
        if needs.state != State::Host || shares {
            let place = (Space::Device, Category::Gradients);
            fixed.gradients = all("gradients", place, of_gradients, &gradient_bytes);
        }
        if on_host {
            fixed.landed = all("landed", (Space::Host, Category::Gradients), of_gradients, &gradient_bytes);
        }
        let mut moments = |name| {
            let place = (home, Category::Optimizer);
            all(name, place, |window| window.moments, &|stage| shards[stage].bytes)
        };
        let (moment, variance) = (moments("moment"), moments("variance"));
        let has_master = homes.iter().any(|&stage| has_master(stages.of(stage).precision));
        let master = if has_master { moments("master") } else { None };
        for (&stage, window) in homes.iter().zip(&windows) {
            let functions = stages.of(stage);
            if let Some(weights) = weights {
                let bytes = shards[stage].bytes;
                let of_moments = |view: Option<View>| {
                    view.filter(|_| bytes > Bytes::ZERO).map(|view| part(view, window.moments, bytes))
                };
                let views = StageViews {
                    home: part(weights, window.weights, functions.weights),
                    weights: loaded.map(|view| part(view, window.weights, functions.weights)),
                    gradients: fixed.gradients.map(|view| part(view, window.gradients, functions.gradients)),
                    landed: fixed.landed.map(|view| part(view, window.gradients, functions.gradients)),
                    moment: of_moments(moment),
                    variance: of_moments(variance),
                    master: of_moments(master),
                };
                fixed.stages.insert(stage, views);
            }
        }
        let takes = |region| {
            let slices = chunks.iter().flat_map(|&stage| stages.of(stage).slices.values());
            let functions = slices.flat_map(|functions| functions.all());
            functions.filter_map(|function| region_bytes(function, region)).max()
        };
        let place = (device, Space::Device);
        let mut data =
            |name: &str, bytes: Bytes| self.add(place, format!("{name}_{device}"), bytes, Category::Data);
        fixed.tokens = takes(Region::Tokens).and_then(|_| data("tokens", needs.tokens));
        fixed.targets = takes(Region::Targets).and_then(|_| data("targets", needs.tokens));
        fixed.loss = takes(Region::Loss).and_then(|_| data("loss", needs.losses));
        if let Some(parameters) = needs.clipped {
            fixed.squares = data("squares", Bytes(8) * parameters as u64);
            fixed.norm = data("norm", Bytes(8));
            fixed.factor = data("factor", Bytes(4));
            if on_host {
                let (place, name) = ((device, Space::Host), format!("host_factor_{device}"));
                fixed.host_factor = self.add(place, name, Bytes(4), Category::Data);
            }
        }
        let workspace = takes(Region::Workspace).unwrap_or_default();
        let recomputed = takes(Region::Recomputed).unwrap_or_default();
        fixed.workspace = self.add(place, format!("workspace_{device}"), workspace, Category::Workspace);
        fixed.recomputed = self.add(place, format!("recomputed_{device}"), recomputed, Category::Activations);
        self.fixed[device] = fixed;
    }

    /// A buffer above all others of the arena that lives for the whole step; none without bytes.
    fn add(
        &mut self,
        (device, space): (DeviceId, Space),
        name: String,
        bytes: Bytes,
        category: Category,
    ) -> Option<View> {
        (bytes > Bytes::ZERO).then(|| {
            let bottom = &mut self.placed[device][arena(space)];
            let offset = bottom.end.align_up(ALIGNMENT);
            bottom.end = offset + bytes;
            *bottom.bytes.entry(category).or_default() += bytes;
            let buffer = self.table.push(Buffer { name, device, space, offset, bytes, category });
            View { buffer, offset: Bytes::ZERO, bytes }
        })
    }

    /// What every device has in an arena, and what of it is taken for the whole step.
    pub(super) fn rooms(&self, space: Space, devices: &IdVec<DeviceId, Device>) -> IdVec<DeviceId, Room> {
        let room = |(id, device): (DeviceId, &Device)| Room {
            capacity: match space {
                Space::Device => device.memory,
                Space::Host => device.host_memory,
            },
            fixed: self.placed[id][arena(space)].end.align_up(ALIGNMENT),
        };
        devices.iter().map(room).collect()
    }

    /// Places what comes and goes in an arena of every device: a buffer for every place that tensors of one kind, stage and size take in turn.
    /// Returns the buffer of each tensor.
    pub(super) fn place_tensors(
        &mut self,
        space: Space,
        tensors: &IdVec<DeviceId, Vec<Tensor>>,
        rooms: &IdVec<DeviceId, Room>,
    ) -> (IdVec<DeviceId, Vec<Placed>>, IdVec<DeviceId, Arena>) {
        let mut placed = IdVec::new();
        let mut arenas = IdVec::new();
        let count: usize = tensors.values().map(Vec::len).sum();
        let mut effort = Effort::new(count);
        let mut left = tensors.len() as u64;
        for (device, tensors) in tensors.iter() {
            let base = rooms[device].fixed;
            let spans: Vec<Span> = tensors.iter().map(|tensor| tensor.span).collect();
            // What one device leaves, others may use.
            let mut share = effort.take(left);
            left -= 1;
            let Packing { offsets, height, .. } = pack(&spans, base.0, &mut share);
            effort.give_back(share);
            let mut known: BTreeMap<(StageId, Region, u64, u64), BufferId> = BTreeMap::new();
            let mut numbers: BTreeMap<(StageId, Region), u32> = BTreeMap::new();
            let mut places = Vec::with_capacity(tensors.len());
            for (tensor, &offset) in tensors.iter().zip(&offsets) {
                let (stage, region) = (tensor.unit.stage, tensor.region);
                let buffer = *known.entry((stage, region, offset, tensor.span.bytes)).or_insert_with(|| {
                    let number = numbers.entry((stage, region)).or_default();
                    let name = match space {
                        Space::Device => format!("{}_{stage}.{number}", region.name()),
                        Space::Host => format!("host_{}_{stage}.{number}", region.name()),
                    };
                    *number += 1;
                    self.table.push(Buffer {
                        name,
                        device,
                        space,
                        offset: base + Bytes(offset),
                        bytes: Bytes(tensor.span.bytes),
                        category: tensor.category,
                    })
                });
                places.push(Placed { buffer, offset });
            }
            placed.push(places);
            let bottom = &self.placed[device][arena(space)];
            let end = if height > 0 { base + Bytes(height) } else { bottom.end };
            arenas.push(Arena {
                fixed: bottom.bytes.clone(),
                packed: Bytes(height),
                least: most_alive(tensors),
                end,
                capacity: rooms[device].capacity,
            });
        }
        (placed, arenas)
    }
}

/// Where the regions of each stage start in the buffers of its device: one after the other, or as they share parameters.
fn windows(chunks: &[StageId], stages: &Stages, shards: &IdVec<StageId, Shard>) -> Vec<Window> {
    let mut next = Window::default();
    let place = |&stage: &StageId| {
        let functions = stages.of(stage);
        let window = stages.windows[stage].unwrap_or(next);
        next = Window {
            weights: (window.weights + functions.weights).align_up(ALIGNMENT),
            gradients: (window.gradients + functions.gradients).align_up(ALIGNMENT),
            moments: (window.moments + shards[stage].bytes).align_up(ALIGNMENT),
        };
        window
    };
    chunks.iter().map(place).collect()
}

/// The place of a tensor: its buffer, and where it starts above the fixed part of the arena.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    pub(super) buffer: BufferId,
    pub(super) offset: u64,
}

/// The bytes by category at the first pass at which most are alive.
fn most_alive(tensors: &[Tensor]) -> BTreeMap<Category, Bytes> {
    let spans: Vec<Span> = tensors.iter().map(|tensor| tensor.span).collect();
    let alive = live(&spans);
    let most = alive.iter().copied().max().unwrap_or(0);
    let peak = alive.iter().position(|&bytes| bytes == most).unwrap_or(0) as u32;
    let mut sums = BTreeMap::new();
    for tensor in tensors.iter().filter(|tensor| tensor.span.start <= peak && peak <= tensor.span.end) {
        *sums.entry(tensor.category).or_default() += Bytes(tensor.span.bytes);
    }
    sums
}

/// The view of a region of a unit's tensor.
pub(super) fn tensor_view(places: &[Placed], tensors: &[Tensor], held: Held) -> View {
    let held = held as usize;
    View { buffer: places[held].buffer, offset: Bytes::ZERO, bytes: Bytes(tensors[held].span.bytes) }
}

/// The place of a parameter in the buffers of its stage.
pub(super) fn part(view: View, offset: Bytes, bytes: Bytes) -> View {
    View { buffer: view.buffer, offset: view.offset + offset, bytes }
}
