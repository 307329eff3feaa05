//! The buffers of every device: what lives for the whole step at the bottom of its arena, what comes and goes above.

use super::functions::{Region, has_master};
use super::lifetimes::{Held, Room, Tensor, region_bytes};
use super::pack::{Effort, Packing, Span, live, pack};
use super::shards::Shard;
use super::shared::Window;
use super::stages::Stages;
use crate::plan::Plan;
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
    /// The gradients of all stages.
    pub(super) gradients: Option<View>,
    pub(super) tokens: Option<View>,
    pub(super) targets: Option<View>,
    pub(super) loss: Option<View>,
    pub(super) squares: Option<View>,
    pub(super) norm: Option<View>,
    pub(super) factor: Option<View>,
    pub(super) workspace: Option<View>,
    /// What is computed again for one unit.
    pub(super) recomputed: Option<View>,
}

/// The state and the gradients of a stage.
#[derive(Clone, Copy, Debug)]
pub(super) struct StageViews {
    pub(super) weights: View,
    pub(super) gradients: View,
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
}

/// The buffers of a program under construction.
pub(super) struct Buffers {
    pub(super) table: IdVec<BufferId, Buffer>,
    pub(super) fixed: IdVec<DeviceId, Fixed>,
    /// The end of what is placed in each device arena.
    ends: IdVec<DeviceId, Bytes>,
    fixed_bytes: IdVec<DeviceId, BTreeMap<Category, Bytes>>,
}

impl Buffers {
    /// Places what lives for the whole step.
    pub(super) fn new(plan: &Plan, stages: &Stages, shards: &IdVec<StageId, Shard>, needs: Needs) -> Self {
        let mut buffers = Self {
            table: IdVec::new(),
            fixed: plan.devices.values().map(|_| Fixed::default()).collect(),
            ends: plan.devices.values().map(|_| Bytes::ZERO).collect(),
            fixed_bytes: plan.devices.values().map(|_| BTreeMap::new()).collect(),
        };
        for (device, chunks) in plan.devices.iter() {
            buffers.place_fixed(device, chunks, stages, shards, needs);
        }
        buffers
    }

    fn place_fixed(
        &mut self,
        device: DeviceId,
        chunks: &[StageId],
        stages: &Stages,
        shards: &IdVec<StageId, Shard>,
        needs: Needs,
    ) {
        let mut fixed = Fixed::default();
        let windows = windows(chunks, stages, shards);
        // One buffer of each kind for all stages, so that one fill clears the gradients.
        let mut all = |name: &str, category, start: fn(&Window) -> Bytes, size: &dyn Fn(StageId) -> Bytes| {
            let ends = chunks.iter().zip(&windows).map(|(&stage, window)| start(window) + size(stage));
            self.add(device, format!("{name}_{device}"), ends.max().unwrap_or_default(), category)
        };
        let weights =
            all("weights", Category::Weights, |window| window.weights, &|stage| stages.of(stage).weights);
        fixed.gradients = all("gradients", Category::Gradients, |window| window.gradients, &|stage| {
            stages.of(stage).gradients
        });
        let mut moments =
            |name| all(name, Category::Optimizer, |window| window.moments, &|stage| shards[stage].bytes);
        let (moment, variance) = (moments("moment"), moments("variance"));
        let has_master = chunks.iter().any(|&stage| has_master(stages.of(stage).precision));
        let master = if has_master { moments("master") } else { None };
        for (&stage, window) in chunks.iter().zip(&windows) {
            let functions = stages.of(stage);
            if let (Some(weights), Some(gradients)) = (weights, fixed.gradients) {
                let bytes = shards[stage].bytes;
                let of_moments = |view: Option<View>| {
                    view.filter(|_| bytes > Bytes::ZERO).map(|view| part(view, window.moments, bytes))
                };
                let views = StageViews {
                    weights: part(weights, window.weights, functions.weights),
                    gradients: part(gradients, window.gradients, functions.gradients),
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
        let mut data =
            |name: &str, bytes: Bytes| self.add(device, format!("{name}_{device}"), bytes, Category::Data);
        fixed.tokens = takes(Region::Tokens).and_then(|_| data("tokens", needs.tokens));
        fixed.targets = takes(Region::Targets).and_then(|_| data("targets", needs.tokens));
        fixed.loss = takes(Region::Loss).and_then(|_| data("loss", needs.losses));
        if let Some(parameters) = needs.clipped {
            fixed.squares = data("squares", Bytes(8) * parameters as u64);
            fixed.norm = data("norm", Bytes(8));
            fixed.factor = data("factor", Bytes(4));
        }
        let workspace = takes(Region::Workspace).unwrap_or_default();
        let recomputed = takes(Region::Recomputed).unwrap_or_default();
        fixed.workspace = self.add(device, format!("workspace_{device}"), workspace, Category::Workspace);
        fixed.recomputed =
            self.add(device, format!("recomputed_{device}"), recomputed, Category::Activations);
        self.fixed[device] = fixed;
    }

    /// A buffer above all others of the device that lives for the whole step; none without bytes.
    fn add(&mut self, device: DeviceId, name: String, bytes: Bytes, category: Category) -> Option<View> {
        (bytes > Bytes::ZERO).then(|| {
            let offset = self.ends[device].align_up(ALIGNMENT);
            self.ends[device] = offset + bytes;
            *self.fixed_bytes[device].entry(category).or_default() += bytes;
            let buffer =
                self.table.push(Buffer { name, device, space: Space::Device, offset, bytes, category });
            View { buffer, offset: Bytes::ZERO, bytes }
        })
    }

    /// What every device has, and what of it is taken for the whole step.
    pub(super) fn rooms(&self, devices: &IdVec<DeviceId, Device>) -> IdVec<DeviceId, Room> {
        let room = |(id, device): (DeviceId, &Device)| Room {
            capacity: device.memory,
            fixed: self.ends[id].align_up(ALIGNMENT),
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
            let (fixed, bottom) = match space {
                Space::Device => (self.fixed_bytes[device].clone(), self.ends[device]),
                // Nothing lives there for the whole step.
                Space::Host => (BTreeMap::new(), Bytes::ZERO),
            };
            let end = if height > 0 { base + Bytes(height) } else { bottom };
            arenas.push(Arena {
                fixed,
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
