//! What every instruction touches, as segments of arenas.
//!
//! An arena is cut at every place where something that an instruction touches begins or ends; the *segments* between the
//! cuts are the units of the proof. Calls repeat, so each distinct *touch* (what is done to which view) is resolved to
//! its segments once, and an instruction is a few touch numbers.

use super::function::{Interval, Summaries, Summary};
use crate::entity::Entity;
use crate::id::{ChannelId, DeviceId, FunctionId, Id, IdVec, ParamId, QueueId};
use crate::program::Shared;
use crate::program::{Category, Instruction, Position, Program, Space, View};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

/// The most segments that all instructions together may touch.
const MOST_STEPS: u64 = 1 << 30;

/// The most byte ranges of all distinct touches.
const MOST_INTERVALS: usize = 1 << 25;

/// What is done to a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Role {
    /// The region of a call.
    Param(FunctionId, ParamId),
    /// All of it is read.
    Read,
    /// All of it is overwritten.
    Write,
    /// All of it is read and written.
    Update,
    /// The tensors of a message are read.
    Message(ChannelId),
}

/// A distinct use of a view.
#[derive(Debug)]
pub(super) struct Touch {
    pub(super) role: Role,
    pub(super) view: View,
    pub(super) category: Category,
    pub(super) arena: usize,
    /// The instruction that uses it first.
    pub(super) first: Entity,
    /// Whether what is written means nothing afterwards.
    pub(super) scratch: bool,
    reads: Range<usize>,
    writes: Range<usize>,
}

/// An arena with its cuts; segment i lies between cut i and cut i + 1.
#[derive(Debug, Default)]
pub(super) struct Arena {
    pub(super) cuts: Vec<u64>,
}

impl Arena {
    pub(super) fn segments(&self) -> usize {
        self.cuts.len().saturating_sub(1)
    }

    /// The segments of a range whose ends are cuts.
    pub(super) fn range(&self, start: u64, end: u64) -> Range<usize> {
        let at = |cut: u64| self.cuts.partition_point(|&other| other < cut);
        at(start)..at(end)
    }
}

/// All touches of a program.
#[derive(Debug, Default)]
pub(super) struct Touches {
    pub(super) list: Vec<Touch>,
    pub(super) arenas: Vec<Arena>,
    /// Ranges relative to their buffer, and the same as segments.
    intervals: Vec<Interval>,
    segments: Vec<Range<u32>>,
    uses: Vec<u32>,
    /// Where the uses of each instruction start; one more at the end.
    starts: IdVec<QueueId, Vec<u32>>,
}

/// The arena of a device and space.
pub(super) fn arena(device: DeviceId, space: Space) -> usize {
    device.index() * 2
        + match space {
            Space::Device => 0,
            Space::Host => 1,
        }
}

impl Touches {
    /// # Errors
    /// A message if the program cuts its arenas too finely.
    pub(super) fn collect(program: &Program, summaries: &Summaries) -> Result<Self, String> {
        let mut touches = Self::default();
        let mut known: Known = HashMap::default();
        for (queue, row) in program.queues.iter() {
            let mut starts = Vec::with_capacity(row.instructions.len() + 1);
            for (position, instruction) in (0u32..).zip(&row.instructions) {
                starts.push(touches.uses.len() as u32);
                let mut add = |role: Role, view: View| {
                    let number = *known.entry((role, view)).or_insert_with(|| {
                        touches.list.push(new_touch(
                            program,
                            role,
                            view,
                            Entity::Instruction(queue, position),
                        ));
                        touches.list.len() as u32 - 1
                    });
                    touches.uses.push(number);
                };
                match instruction {
                    Instruction::Run { function, views, .. } => {
                        for (param, &view) in views.iter().enumerate() {
                            add(Role::Param(*function, ParamId::new(param)), view);
                        }
                    }
                    Instruction::Send { channel, view, .. } => add(Role::Message(*channel), *view),
                    Instruction::Recv { view, .. } | Instruction::Fill { view } => add(Role::Write, *view),
                    Instruction::Copy { from, to } => {
                        add(Role::Read, *from);
                        add(Role::Write, *to);
                    }
                    Instruction::Reduce { group, view, .. } => {
                        let group = program.groups.get(*group);
                        let first = group.and_then(|group| group.members.first())
                            == Some(&program.queues[queue].device);
                        let role = match group.map(|group| group.result) {
                            Some(Shared::Broadcast) if first => Role::Read,
                            Some(Shared::Broadcast) => Role::Write,
                            Some(Shared::Sum) | None => Role::Update,
                        };
                        add(role, *view);
                    }
                    Instruction::Wait { .. } => {}
                }
                if u32::try_from(touches.uses.len()).is_err() {
                    return Err("the instructions have more than 2^32 views".to_owned());
                }
            }
            starts.push(touches.uses.len() as u32);
            touches.starts.push(starts);
        }
        touches.cut(program, summaries)?;
        Ok(touches)
    }

    /// Cuts the arenas and resolves every touch to segments.
    fn cut(&mut self, program: &Program, summaries: &Summaries) -> Result<(), String> {
        self.arenas.resize_with(program.devices.len() * 2, Arena::default);
        for buffer in program.buffers.values() {
            let cuts = &mut self.arenas[arena(buffer.device, buffer.space)].cuts;
            cuts.extend([buffer.offset.0, buffer.offset.0 + buffer.bytes.0]);
        }
        let copies = program.parameters.values().flat_map(|parameter| &parameter.copies);
        let copies = copies.flat_map(|copy| [Some(copy.gradient), copy.landed]).flatten();
        let feeds = program.feeds.iter().map(|feed| feed.view);
        let readings = program.readings.iter().map(|reading| reading.view);
        for view in copies.chain(feeds).chain(readings) {
            let buffer = &program.buffers[view.buffer];
            let start = buffer.offset.0 + view.offset.0;
            self.arenas[arena(buffer.device, buffer.space)].cuts.extend([start, start + view.bytes.0]);
        }
        for touch in &mut self.list {
            let whole = Summary { reads: vec![(0, touch.view.bytes.0)], writes: Vec::new(), scratch: false };
            let (reads, writes, scratch): (&[Interval], &[Interval], bool) = match touch.role {
                Role::Param(function, param) => {
                    let summary = &summaries[function][param];
                    (&summary.reads, &summary.writes, summary.scratch)
                }
                Role::Read => (&whole.reads, &[], false),
                Role::Write => (&[], &whole.reads, false),
                Role::Update => (&whole.reads, &whole.reads, false),
                Role::Message(channel) => (&message(program, channel), &[], false),
            };
            touch.scratch = scratch;
            let base = program.buffers[touch.view.buffer].offset.0;
            let cuts = &mut self.arenas[touch.arena].cuts;
            for (intervals, range) in [(reads, &mut touch.reads), (writes, &mut touch.writes)] {
                let first = self.intervals.len();
                for &(start, end) in intervals {
                    let (start, end) = (touch.view.offset.0 + start, touch.view.offset.0 + end);
                    self.intervals.push((start, end));
                    cuts.extend([base + start, base + end]);
                }
                *range = first..self.intervals.len();
            }
            if self.intervals.len() > MOST_INTERVALS {
                return Err(format!("the functions touch more than {MOST_INTERVALS} separate byte ranges"));
            }
        }
        for arena in &mut self.arenas {
            arena.cuts.sort_unstable();
            arena.cuts.dedup();
            if u32::try_from(arena.cuts.len()).is_err() {
                return Err("an arena is cut into more than 2^32 pieces".to_owned());
            }
        }
        let mut sizes = Vec::with_capacity(self.list.len());
        for touch in &self.list {
            let base = program.buffers[touch.view.buffer].offset.0;
            let mut size = 0u64;
            for &(start, end) in &self.intervals[touch.reads.start..touch.writes.end] {
                let range = self.arenas[touch.arena].range(base + start, base + end);
                size += range.len() as u64;
                self.segments.push(range.start as u32..range.end as u32);
            }
            sizes.push(size);
        }
        let steps: u64 = self.uses.iter().map(|&touch| sizes[touch as usize]).sum();
        if steps > MOST_STEPS {
            return Err(format!(
                "the views cut the arenas so finely that the proof would take {steps} steps, {MOST_STEPS} is the limit"
            ));
        }
        Ok(())
    }

    /// The touches of an instruction.
    pub(super) fn of(&self, queue: QueueId, position: Position) -> &[u32] {
        let starts = &self.starts[queue];
        let position = position as usize;
        &self.uses[starts[position] as usize..starts[position + 1] as usize]
    }

    /// The ranges of its buffer that a touch reads.
    pub(super) fn reads(&self, touch: &Touch) -> &[Interval] {
        &self.intervals[touch.reads.clone()]
    }

    /// The ranges of its buffer that a touch writes.
    pub(super) fn writes(&self, touch: &Touch) -> &[Interval] {
        &self.intervals[touch.writes.clone()]
    }

    /// The segments of its arena that a touch reads, as ranges.
    pub(super) fn read_segments(&self, touch: &Touch) -> &[Range<u32>] {
        &self.segments[touch.reads.clone()]
    }

    /// The segments of its arena that a touch writes, as ranges.
    pub(super) fn written_segments(&self, touch: &Touch) -> &[Range<u32>] {
        &self.segments[touch.writes.clone()]
    }
}

fn new_touch(program: &Program, role: Role, view: View, first: Entity) -> Touch {
    let buffer = &program.buffers[view.buffer];
    let arena = arena(buffer.device, buffer.space);
    Touch { role, view, category: buffer.category, arena, first, scratch: false, reads: 0..0, writes: 0..0 }
}

/// The byte ranges of the tensors of a message.
fn message(program: &Program, channel: ChannelId) -> Vec<Interval> {
    let mut end = crate::Bytes::ZERO;
    let mut intervals = Vec::new();
    for ty in &program.channels[channel].message {
        let start = end.align_up(64);
        end = start + ty.bytes();
        if start < end {
            intervals.push((start.0, end.0));
        }
    }
    super::function::coalesce(intervals)
}

/// Touches by what they are. Looked up only, never gone through, so the order of hashes shows nowhere.
type Known = HashMap<(Role, View), u32, BuildHasherDefault<Mixer>>;

/// A fast hash of small numbers: multiply and rotate.
#[derive(Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(23) ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn write_isize(&mut self, number: isize) {
        self.write_u64(number as u64);
    }
}
