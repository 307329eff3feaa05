//! Memory of a program: how large its arenas are, what lives in them when, and what packing costs.
//!
//! The size of an arena is a fact of the program: the end of its highest buffer. What is *live* follows from a timeline:
//! - State and data hold their bytes for the whole step.
//! - All other bytes are live from the start of the event that first writes them to the end of the last one that reads
//!   what was written. Scratch of a call is live for the call.
//!
//! Bytes are told apart by *pieces*, into which the bounds of all views cut a buffer. No arena can be smaller than its
//! most live bytes, so that the two together say how well the buffers are packed.
//!
//! What this module deliberately does not do: check. Whether live bytes are never overwritten is the verifier's to prove.

use crate::function::Access;
use crate::id::{BufferId, DeviceId, Id, IdVec, QueueId};
use crate::program::{Category, Instruction, Position, Program, Space, View};
use crate::simulate::Timeline;
use crate::units::{Bytes, Nanos};
use std::ops::Range;

/// Bytes by category, in the order of [`Category::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByCategory([Bytes; Category::ALL.len()]);

impl ByCategory {
    /// The bytes of a category.
    pub fn get(&self, category: Category) -> Bytes {
        self.0[position(category)]
    }

    /// All bytes together.
    pub fn total(&self) -> Bytes {
        self.0.iter().copied().sum()
    }

    fn add(&mut self, category: Category, bytes: Bytes) {
        self.0[position(category)] += bytes;
    }

    fn subtract(&mut self, category: Category, bytes: Bytes) {
        self.0[position(category)] -= bytes;
    }
}

/// The position of a category in [`Category::ALL`].
fn position(category: Category) -> usize {
    match category {
        Category::Weights => 0,
        Category::Loaded => 1,
        Category::Gradients => 2,
        Category::Optimizer => 3,
        Category::Activations => 4,
        Category::Communication => 5,
        Category::Workspace => 6,
        Category::Data => 7,
    }
}

/// What is live from a moment on, until the next sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The moment.
    pub time: Nanos,
    /// The live bytes.
    pub live: ByCategory,
}

/// The most live bytes of an arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    /// When it is reached first.
    pub time: Nanos,
    /// What is live then.
    pub live: ByCategory,
    /// The instruction that reaches it; none where what lives for the whole step is all there is.
    pub instruction: Option<(QueueId, Position)>,
}

/// The memory of one arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArenaUse {
    /// The device.
    pub device: DeviceId,
    /// The arena.
    pub space: Space,
    /// What the device has for it.
    pub capacity: Bytes,
    /// What the program takes: the end of the highest buffer.
    pub size: Bytes,
    /// The most live bytes: no arena for this order of events can be smaller.
    pub peak: Peak,
    /// Live bytes over time; the first sample is at zero, each later one changes something.
    pub curve: Vec<Sample>,
}

impl ArenaUse {
    /// The bytes that packing lost: what the arena takes above its most live bytes.
    pub fn loss(&self) -> Bytes {
        self.size - self.peak.live.total()
    }

    /// The loss as a share of the most live bytes; zero for an empty arena.
    pub fn loss_share(&self) -> f64 {
        let live = self.peak.live.total();
        if live == Bytes::ZERO { 0.0 } else { self.loss().0 as f64 / live.0 as f64 }
    }
}

/// The memory of every arena that has a buffer, by device, the device arena before the host arena.
pub fn memory(program: &Program, timeline: &Timeline) -> Vec<ArenaUse> {
    let pieces = Pieces::new(program);
    let lives = lives(program, timeline, &pieces);
    let mut by_arena: IdVec<DeviceId, [Vec<Life>; 2]> =
        program.devices.values().map(|_| Default::default()).collect();
    for life in lives {
        let buffer = &program.buffers[life.buffer];
        by_arena[buffer.device][arena(buffer.space)].push(life);
    }
    let mut sizes: IdVec<DeviceId, [Option<Bytes>; 2]> =
        program.devices.values().map(|_| [None; 2]).collect();
    for buffer in program.buffers.values() {
        let size = &mut sizes[buffer.device][arena(buffer.space)];
        *size = Some(size.unwrap_or_default().max(buffer.offset + buffer.bytes));
    }
    let mut uses = Vec::new();
    for (id, device) in program.devices.iter() {
        for (space, capacity) in [(Space::Device, device.memory), (Space::Host, device.host_memory)] {
            let Some(size) = sizes[id][arena(space)] else { continue };
            let (curve, peak) = curve(program, &by_arena[id][arena(space)]);
            uses.push(ArenaUse { device: id, space, capacity, size, peak, curve });
        }
    }
    uses
}

fn arena(space: Space) -> usize {
    match space {
        Space::Device => 0,
        Space::Host => 1,
    }
}

/// Some bytes that are live for a while.
struct Life {
    buffer: BufferId,
    bytes: Bytes,
    start: Nanos,
    /// Exclusive; none for the whole step.
    end: Option<Nanos>,
    /// What made them live.
    instruction: Option<(QueueId, Position)>,
}

/// The parts into which views cut their buffers.
struct Pieces {
    /// The first piece of each buffer, and at the end the number of pieces.
    first: Vec<usize>,
    /// Each piece: its buffer, and where it starts and ends there; ascending.
    pieces: Vec<(BufferId, u64, u64)>,
}

/// The most pieces that the views of a buffer may have on average; views of a buffer with more are only joined where
/// they overlap, so that the time stays linear in the number of instructions.
const PIECES_PER_VIEW: usize = 64;

impl Pieces {
    fn new(program: &Program) -> Self {
        let mut views: Vec<(BufferId, u64, u64)> = Vec::new();
        each_view(program, |_, _, view, _| {
            let range = (view.buffer, view.offset.0, (view.offset + view.bytes).0);
            // Neighbours often name the same bytes, and the sort is the costly part.
            if view.bytes > Bytes::ZERO && views.last() != Some(&range) {
                views.push(range);
            }
        });
        views.sort_unstable();
        views.dedup();
        let mut pieces = Vec::new();
        let mut first = Vec::with_capacity(program.buffers.len() + 1);
        let mut by_buffer = views.chunk_by(|a, b| a.0 == b.0).peekable();
        for buffer in program.buffers.ids() {
            first.push(pieces.len());
            if let Some(views) = by_buffer.next_if(|views| views[0].0 == buffer) {
                cut(views, &mut pieces);
            }
        }
        first.push(pieces.len());
        Self { first, pieces }
    }

    /// The pieces of a view.
    fn of(&self, view: View) -> Range<usize> {
        let (first, last) = (self.first[view.buffer.index()], self.first[view.buffer.index() + 1]);
        let pieces = &self.pieces[first..last];
        let start = pieces.partition_point(|piece| piece.2 <= view.offset.0);
        let end = pieces.partition_point(|piece| piece.1 < (view.offset + view.bytes).0);
        first + start..first + end.max(start)
    }
}

/// The pieces of one buffer from its views, which are sorted and distinct.
fn cut(views: &[(BufferId, u64, u64)], pieces: &mut Vec<(BufferId, u64, u64)>) {
    let mut bounds: Vec<u64> = views.iter().flat_map(|view| [view.1, view.2]).collect();
    bounds.sort_unstable();
    bounds.dedup();
    let index = |bound| bounds.partition_point(|&each| each < bound);
    let count: usize = views.iter().map(|view| index(view.2) - index(view.1)).sum();
    let fine = count <= PIECES_PER_VIEW * views.len();
    for overlapping in joined(views) {
        if fine {
            let inside = &bounds[index(overlapping.1)..=index(overlapping.2)];
            pieces.extend(inside.windows(2).map(|pair| (overlapping.0, pair[0], pair[1])));
        } else {
            pieces.push(overlapping);
        }
    }
}

/// Views joined where they overlap.
fn joined(views: &[(BufferId, u64, u64)]) -> Vec<(BufferId, u64, u64)> {
    let mut joined: Vec<(BufferId, u64, u64)> = Vec::new();
    for &view in views {
        match joined.last_mut() {
            Some(last) if view.1 < last.2 => last.2 = last.2.max(view.2),
            _ => joined.push(view),
        }
    }
    joined
}

/// An access to a piece.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Touch {
    piece: usize,
    start: Nanos,
    end: Nanos,
    place: (QueueId, Position),
    access: Access,
}

/// Calls a function for every view of every instruction, with what happens to it.
fn each_view(program: &Program, mut see: impl FnMut(QueueId, Position, View, Access)) {
    for (id, queue) in program.queues.iter() {
        for (position, instruction) in (0..).zip(&queue.instructions) {
            match instruction {
                Instruction::Run { function, views, .. } => {
                    for (param, view) in program.functions[*function].params.values().zip(views) {
                        see(id, position, *view, param.access);
                    }
                }
                Instruction::Send { view, .. } => see(id, position, *view, Access::Read),
                Instruction::Recv { view, .. } | Instruction::Fill { view } => {
                    see(id, position, *view, Access::Write);
                }
                Instruction::Copy { from, to } => {
                    see(id, position, *from, Access::Read);
                    see(id, position, *to, Access::Write);
                }
                Instruction::Reduce { view, .. } => see(id, position, *view, Access::Update),
                Instruction::Wait { .. } => {}
            }
        }
    }
}

fn lives(program: &Program, timeline: &Timeline, pieces: &Pieces) -> Vec<Life> {
    let always = |category: Category| category.is_state() || category == Category::Data;
    let mut lives: Vec<Life> = program
        .buffers
        .iter()
        .filter(|(_, buffer)| always(buffer.category))
        .map(|(id, buffer)| Life {
            buffer: id,
            bytes: buffer.bytes,
            start: Nanos::ZERO,
            end: None,
            instruction: None,
        })
        .collect();

    let mut touches = Vec::new();
    let mut events = timeline.events().iter().peekable();
    each_view(program, |queue, position, view, access| {
        // Both run by queue and position; instructions that were not recorded touch nothing.
        while events.next_if(|event| (event.queue, event.position) < (queue, position)).is_some() {}
        let Some(event) = events.peek().filter(|event| (event.queue, event.position) == (queue, position))
        else {
            return;
        };
        if always(program.buffers[view.buffer].category) {
            return;
        }
        for piece in pieces.of(view) {
            touches.push(Touch {
                piece,
                start: event.start,
                end: event.end,
                place: (queue, position),
                access,
            });
        }
    });
    touches.sort_unstable();

    for group in touches.chunk_by(|a, b| a.piece == b.piece) {
        let (buffer, from, to) = pieces.pieces[group[0].piece];
        let mut open: Option<Life> = None;
        let mut was_read = false;
        for touch in group {
            // What is written without being read first, after the last reader of what was there, lives anew.
            if was_read && touch.access.writes() && !touch.access.reads() {
                lives.extend(open.take());
                was_read = false;
            }
            was_read |= touch.access.reads() || touch.access == Access::Workspace;
            let life = open.get_or_insert(Life {
                buffer,
                bytes: Bytes(to - from),
                start: touch.start,
                end: None,
                instruction: Some(touch.place),
            });
            life.end = life.end.max(Some(touch.end));
        }
        lives.extend(open);
    }
    lives
}

/// Live bytes over time and their first highest point.
fn curve(program: &Program, lives: &[Life]) -> (Vec<Sample>, Peak) {
    // At one moment, ends come before starts: what one event leaves the next may take.
    let mut changes: Vec<(Nanos, bool, usize)> = Vec::with_capacity(2 * lives.len());
    for (index, life) in lives.iter().enumerate() {
        // Bytes of an event that took no time were live for no time.
        if life.end.is_none_or(|end| end > life.start) {
            changes.push((life.start, true, index));
            changes.extend(life.end.map(|end| (end, false, index)));
        }
    }
    changes.sort_unstable();
    let mut live = ByCategory::default();
    let mut curve = vec![Sample { time: Nanos::ZERO, live }];
    let mut peak = Peak::default();
    for (time, starts, index) in changes {
        let life = &lives[index];
        let category = program.buffers[life.buffer].category;
        if starts {
            live.add(category, life.bytes);
            if live.total() > peak.live.total() {
                peak = Peak { time, live, instruction: life.instruction };
            }
        } else {
            live.subtract(category, life.bytes);
        }
        match curve.last_mut() {
            Some(last) if last.time == time => last.live = live,
            _ => curve.push(Sample { time, live }),
        }
    }
    curve.dedup_by(|next, last| next.live == last.live);
    (curve, peak)
}
