//! The state of every segment of every arena while the queues are replayed: who wrote it, when, and who read it since.

use super::touch::{Touch, Touches, arena};
use super::{Report, Rule};
use crate::entity::Entity;
use crate::id::{BufferId, QueueId, StageId};
use crate::program::{Batch, FeedKind, Pass, Program, ReadingKind, StepWork, Unit, View, Work};
use std::fmt;

/// No buffer, and no queue.
const NONE: u32 = u32::MAX;

/// What made the bytes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Made {
    /// The engine, for state; sums of gradients; contents that mean nothing.
    Other,
    /// A fill.
    Zero,
    /// The engine, before the step.
    Feed(FeedKind),
    /// F or R of a unit.
    Forward(Unit),
    /// B, W or BW of a unit.
    Backward(Unit),
    /// Work for a stage or a step.
    Step(StepWork),
    /// A copy of weights or of gradients, through the touch of this number.
    Copied(u32),
    /// Weights of a stage, received from another device.
    Loaded(StageId),
}

impl Made {
    /// What one pass, or work for a stage or a step makes. What a pair makes its halves make, each in its own regions.
    pub(super) fn of(work: &Work) -> Self {
        match *work {
            Work::Pass(pass, unit) => Self::by(pass, unit),
            Work::Pair(_) => Self::Other,
            Work::Stage(StepWork::Load, stage) => Self::Loaded(stage),
            Work::Stage(work, _) | Work::Step(work) => Self::Step(work),
        }
    }

    /// What a pass of a unit makes.
    pub(super) fn by(pass: Pass, unit: Unit) -> Self {
        match pass {
            Pass::F | Pass::R => Self::Forward(unit),
            Pass::B | Pass::W | Pass::BW => Self::Backward(unit),
        }
    }
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Other => f.write_str("other work"),
            Self::Zero => f.write_str("a fill"),
            Self::Feed(kind) => write!(f, "the feed of {}", kind.name()),
            Self::Forward(unit) => write!(f, "forward of {unit}"),
            Self::Backward(unit) => write!(f, "backward of {unit}"),
            Self::Step(work) => f.write_str(work.name()),
            Self::Copied(_) => f.write_str("a copy of weights or of gradients"),
            Self::Loaded(stage) => write!(f, "load of {stage}"),
        }
    }
}

/// Who made the bytes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Maker {
    pub(super) made: Made,
    /// The touch through which a call of this device wrote them.
    pub(super) origin: Option<u32>,
}

impl Maker {
    pub(super) const OTHER: Self = Self { made: Made::Other, origin: None };
}

/// The bytes between two cuts of an arena.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    /// The buffer through which it was written last; none if its contents are undefined.
    owner: u32,
    /// The queue that wrote it last, counted within its device; none for the engine.
    queue: u32,
    /// How many instructions of that queue had finished then.
    position: u32,
    /// Contributions to a gradient since it was overwritten.
    pub(super) added: u32,
    pub(super) maker: Maker,
}

/// An instruction that accesses memory.
#[derive(Clone, Copy)]
pub(super) struct Actor<'c> {
    pub(super) place: Entity,
    /// Its queue, counted within its device.
    pub(super) queue: u32,
    /// How many instructions of its queue have finished when it has.
    pub(super) position: u32,
    /// How many instructions of each queue of its device have finished before it starts, as far as its queue knows.
    pub(super) clock: &'c [u32],
    /// The queues of its device.
    pub(super) queues: &'c [QueueId],
}

impl Segment {
    /// Whether it holds what was written through a buffer.
    pub(super) fn holds(&self, buffer: BufferId) -> bool {
        self.owner == buffer.0
    }
}

impl Actor<'_> {
    /// Whether the last write of a segment is not ordered before this access.
    fn conflict(&self, segment: &Segment, kind: Kind) -> Option<Kind> {
        if segment.queue == NONE {
            None
        } else if segment.queue == self.queue {
            (segment.position == self.position).then_some(Kind::Overlap)
        } else {
            (self.clock[segment.queue as usize] < segment.position).then_some(kind)
        }
    }
}

struct State {
    segments: Vec<Segment>,
    /// Per segment and queue of the device: how many instructions had finished after the last read.
    readers: Vec<u32>,
    stride: usize,
}

pub(super) struct Memory<'a> {
    program: &'a Program,
    touches: &'a Touches,
    arenas: Vec<State>,
}

impl<'a> Memory<'a> {
    /// The state at the start of a step: state buffers and feeds are written, all else is undefined. None, after a
    /// report, if they share bytes.
    pub(super) fn new(
        program: &'a Program,
        touches: &'a Touches,
        strides: &[usize],
        report: &mut Report,
    ) -> Option<Self> {
        let mut disjoint = true;
        let empty = Segment { owner: NONE, queue: NONE, position: 0, added: 0, maker: Maker::OTHER };
        let mut arenas: Vec<State> = touches
            .arenas
            .iter()
            .enumerate()
            .map(|(index, arena)| {
                let stride = strides[index / 2];
                let count = arena.segments();
                State { segments: vec![empty; count], readers: vec![0; count * stride], stride }
            })
            .collect();
        for (id, buffer) in program.buffers.iter() {
            if !buffer.category.is_state() {
                continue;
            }
            let number = arena(buffer.device, buffer.space);
            let range = touches.arenas[number].range(buffer.offset.0, buffer.offset.0 + buffer.bytes.0);
            let mut shared = None;
            for segment in &mut arenas[number].segments[range] {
                if segment.owner != NONE {
                    shared = Some(segment.owner);
                }
                segment.owner = id.0;
            }
            if let Some(other) = shared {
                disjoint = false;
                let message = format!("state shares bytes with the state in {}", BufferId(other));
                report.add(Entity::Buffer(id), Rule::Memory, message);
            }
        }
        let mut memory = Self { program, touches, arenas };
        for (feed, row) in (0u32..).zip(&program.feeds) {
            let (number, range) = memory.segments(row.view);
            let mut shared = None;
            for segment in &mut memory.arenas[number].segments[range] {
                if segment.owner != NONE {
                    shared = Some(segment.owner);
                }
                segment.owner = row.view.buffer.0;
                segment.maker = Maker { made: Made::Feed(row.kind), origin: None };
            }
            if let Some(other) = shared {
                disjoint = false;
                let message = format!("overwrites bytes of {}", BufferId(other));
                report.add(Entity::Feed(feed), Rule::Memory, message);
            }
        }
        disjoint.then_some(memory)
    }

    /// The arena and the segments of a view whose ends are cuts.
    pub(super) fn segments(&self, view: View) -> (usize, std::ops::Range<usize>) {
        let buffer = &self.program.buffers[view.buffer];
        let number = arena(buffer.device, buffer.space);
        let start = buffer.offset.0 + view.offset.0;
        (number, self.touches.arenas[number].range(start, start + view.bytes.0))
    }

    /// The present state of a segment.
    pub(super) fn segment(&self, arena: usize, segment: usize) -> Segment {
        self.arenas[arena].segments[segment]
    }

    /// The bytes of a view, relative to its start, with what made them.
    pub(super) fn makers(&self, view: View) -> Vec<(u64, u64, Made)> {
        let (arena, segments) = self.segments(view);
        let start = self.program.buffers[view.buffer].offset.0 + view.offset.0;
        let cuts = &self.touches.arenas[arena].cuts;
        segments
            .map(|index| {
                let segment = &self.arenas[arena].segments[index];
                let made = if segment.holds(view.buffer) { segment.maker.made } else { Made::Other };
                (cuts[index] - start, cuts[index + 1] - start, made)
            })
            .collect()
    }

    /// The segments that a touch overwrites or changes.
    pub(super) fn written(&self, touch: &Touch) -> impl Iterator<Item = Segment> {
        let segments = &self.arenas[touch.arena].segments;
        let ranges = self.touches.written_segments(touch);
        ranges.iter().flat_map(|range| &segments[range.start as usize..range.end as usize]).copied()
    }

    /// The segments that a touch reads and finds as written through its buffer.
    pub(super) fn read(&self, touch: &Touch) -> impl Iterator<Item = Segment> {
        let segments = &self.arenas[touch.arena].segments;
        let ranges = self.touches.read_segments(touch);
        let all = ranges.iter().flat_map(|range| &segments[range.start as usize..range.end as usize]);
        all.copied().filter(|segment| segment.holds(touch.view.buffer))
    }

    /// Does to memory what an instruction does through one of its views.
    pub(super) fn access(
        &mut self,
        actor: Actor<'_>,
        touch: &Touch,
        maker: Maker,
        contributes: bool,
        report: &mut Report,
    ) {
        let (touches, program) = (self.touches, self.program);
        let state = &mut self.arenas[touch.arena];
        let (buffer, stride, own) = (touch.view.buffer.0, state.stride, actor.queue as usize);
        let (reads, writes) = (touches.read_segments(touch), touches.written_segments(touch));
        let mut problem = None;
        for index in reads.iter().flat_map(|range| range.start as usize..range.end as usize) {
            let segment = &mut state.segments[index];
            if segment.owner != buffer {
                problem.get_or_insert((Kind::Owner, index, *segment));
                // Reported once, not by every later reader.
                segment.owner = buffer;
            }
            if let Some(kind) = actor.conflict(segment, Kind::ReadAfterWrite) {
                problem.get_or_insert((kind, index, *segment));
            }
        }
        for index in writes.iter().flat_map(|range| range.start as usize..range.end as usize) {
            let segment = &state.segments[index];
            if let Some(kind) = actor.conflict(segment, Kind::WriteAfterWrite) {
                problem.get_or_insert((kind, index, *segment));
            }
            let readers = &state.readers[index * stride..(index + 1) * stride];
            for (queue, (&reader, &known)) in readers.iter().zip(actor.clock).enumerate() {
                if queue != own && reader > known {
                    let by = Segment { queue: queue as u32, position: reader, ..*segment };
                    problem.get_or_insert((Kind::WriteAfterRead, index, by));
                }
            }
            if readers[own] == actor.position {
                problem.get_or_insert((Kind::Overlap, index, *segment));
            }
        }
        // A read that is wrong is not held against the writes that come later.
        if problem.is_none() {
            for index in reads.iter().flat_map(|range| range.start as usize..range.end as usize) {
                state.readers[index * stride + own] = actor.position;
            }
        }
        for index in writes.iter().flat_map(|range| range.start as usize..range.end as usize) {
            let segment = &mut state.segments[index];
            // What is overwritten counts for nothing.
            let before = if reads.is_empty() { 0 } else { segment.added };
            *segment = Segment {
                owner: if touch.scratch { NONE } else { buffer },
                queue: actor.queue,
                position: actor.position,
                added: before.saturating_add(u32::from(contributes)),
                maker,
            };
        }
        if let Some((kind, index, segment)) = problem {
            let cuts = &touches.arenas[touch.arena].cuts;
            let base = program.buffers[touch.view.buffer].offset.0;
            explain(report, actor, touch, kind, (cuts[index] - base, cuts[index + 1] - base), segment);
        }
    }

    /// At the end of a step state holds its own bytes, and what the engine reads is there.
    pub(super) fn finish(&self, report: &mut Report) {
        for (id, buffer) in self.program.buffers.iter() {
            if !buffer.category.is_state() {
                continue;
            }
            let number = arena(buffer.device, buffer.space);
            let range = self.touches.arenas[number].range(buffer.offset.0, buffer.offset.0 + buffer.bytes.0);
            let lost = self.arenas[number].segments[range].iter().find(|segment| segment.owner != id.0);
            if let Some(segment) = lost {
                let message = if segment.owner == NONE {
                    "state is undefined at the end of the step".to_owned()
                } else {
                    format!("state is overwritten by {} at the end of the step", BufferId(segment.owner))
                };
                report.add(Entity::Buffer(id), Rule::Unwritten, message);
            }
        }
        for (reading, row) in (0u32..).zip(&self.program.readings) {
            let (number, range) = self.segments(row.view);
            let first = range.start;
            let lost = self.arenas[number].segments[range]
                .iter()
                .position(|segment| segment.owner != row.view.buffer.0);
            if let Some(offset) = lost {
                let cuts = &self.touches.arenas[number].cuts;
                let base = self.program.buffers[row.view.buffer].offset.0;
                let (start, end) = (cuts[first + offset] - base, cuts[first + offset + 1] - base);
                let message =
                    format!("bytes {start}..{end} of {} are not written in a step", row.view.buffer);
                report.add(Entity::Reading(reading), Rule::Unwritten, message);
                continue;
            }
            let range = self.segments(row.view).1;
            let strange = self.arenas[number].segments[range].iter().find(|segment| match row.kind {
                ReadingKind::Loss => match segment.maker.made {
                    Made::Forward(_) => false,
                    // The losses of micro-batches that run on another copy are zero here.
                    Made::Zero => self.program.batch.copies < 2,
                    Made::Backward(_)
                    | Made::Step(_)
                    | Made::Copied(_)
                    | Made::Loaded(_)
                    | Made::Feed(_)
                    | Made::Other => true,
                },
                ReadingKind::GradientNorm => segment.maker.made != Made::Step(StepWork::Clip),
            });
            if let Some(segment) = strange {
                let message = format!("{} was made by {}", row.view.buffer, segment.maker.made);
                report.add(Entity::Reading(reading), Rule::Unit, message);
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Owner,
    ReadAfterWrite,
    WriteAfterWrite,
    WriteAfterRead,
    Overlap,
}

fn explain(
    report: &mut Report,
    actor: Actor<'_>,
    touch: &Touch,
    kind: Kind,
    (start, end): (u64, u64),
    segment: Segment,
) {
    let buffer = touch.view.buffer;
    let bytes = format!("bytes {start}..{end} of {buffer}");
    let other = actor.queues.get(segment.queue as usize).map(|&queue| {
        // Positions count finished instructions.
        Entity::Instruction(queue, segment.position.saturating_sub(1))
    });
    let by = other.map_or_else(|| "the engine".to_owned(), |other| other.to_string());
    let (rule, message) = match kind {
        Kind::Owner if segment.owner == NONE => match other {
            Some(_) => (Rule::Unwritten, format!("reads {bytes}, which {by} left undefined")),
            None => (Rule::Unwritten, format!("reads {bytes}, which nothing has written")),
        },
        Kind::Owner => {
            let other_buffer = BufferId(segment.owner);
            match other {
                Some(_) => {
                    (Rule::Unwritten, format!("reads {bytes}, which {by} overwrote through {other_buffer}"))
                }
                None => (Rule::Unwritten, format!("reads {bytes}, which hold {other_buffer}")),
            }
        }
        Kind::ReadAfterWrite => {
            (Rule::Race, format!("reads {bytes} without waiting for {by}, which writes them"))
        }
        Kind::WriteAfterWrite => {
            (Rule::Race, format!("writes {bytes} without waiting for {by}, which writes them"))
        }
        Kind::WriteAfterRead => {
            (Rule::Race, format!("writes {bytes} without waiting for {by}, which reads them"))
        }
        Kind::Overlap => (Rule::Race, format!("{bytes} stand in two of its views, one of which is written")),
    };
    report.add_related(actor.place, rule, message, other.into_iter().collect());
}

/// What is wrong with a pass of a unit reading what a maker made; none if nothing is.
pub(super) fn misread(batch: Batch, pass: Pass, unit: Unit, made: Made) -> Option<String> {
    let forward = match pass {
        Pass::F | Pass::R => true,
        Pass::B | Pass::W | Pass::BW => false,
    };
    let (by, neighbour) = match made {
        Made::Other | Made::Zero | Made::Feed(_) => return None,
        Made::Step(_) | Made::Copied(_) | Made::Loaded(_) => {
            return Some(format!("{} {unit} reads what {made} made", pass.name()));
        }
        Made::Forward(by) => (by, by.stage.0.checked_add(1)),
        Made::Backward(by) => (by, by.stage.0.checked_sub(1)),
    };
    let own = by.stage == unit.stage;
    // A stage of a backward cut begins anywhere in the forward cut.
    let across =
        matches!(made, Made::Forward(_)) && batch.is_backward(unit.stage) && !batch.is_backward(by.stage);
    let near = (neighbour == Some(unit.stage.0) || across) && by.slice == unit.slice;
    let backward_to_forward = forward && matches!(made, Made::Backward(_));
    if by.micro_batch == unit.micro_batch && (own || near) && !backward_to_forward {
        return None;
    }
    Some(format!("{} {unit} reads what {made} made", pass.name()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{MicroBatch, Slice};

    const BATCH: Batch =
        Batch { micro_batches: 2, sequences: 1, tokens: 2, slices: 2, stages: 4, forward: 0, copies: 1 };

    fn unit(stage: u32, micro_batch: u32, slice: u32) -> Unit {
        Unit { stage: StageId(stage), micro_batch: MicroBatch(micro_batch), slice: Slice(slice) }
    }

    #[test]
    fn passes_read_their_own_and_their_neighbours() {
        let forward = |stage, micro_batch, slice| Made::Forward(unit(stage, micro_batch, slice));
        let backward = |stage, micro_batch, slice| Made::Backward(unit(stage, micro_batch, slice));
        assert_eq!(misread(BATCH, Pass::F, unit(2, 1, 1), forward(1, 1, 1)), None);
        assert_eq!(misread(BATCH, Pass::F, unit(2, 1, 1), forward(2, 1, 0)), None);
        assert_eq!(misread(BATCH, Pass::BW, unit(2, 1, 1), forward(1, 1, 1)), None);
        assert_eq!(misread(BATCH, Pass::BW, unit(2, 1, 1), backward(3, 1, 1)), None);
        assert_eq!(misread(BATCH, Pass::F, unit(2, 1, 1), Made::Feed(FeedKind::Tokens)), None);
        let wrong = [
            (Pass::F, forward(1, 0, 1)),
            (Pass::F, forward(1, 1, 0)),
            (Pass::F, forward(0, 1, 1)),
            (Pass::F, forward(3, 1, 1)),
            (Pass::F, backward(2, 1, 1)),
            (Pass::BW, backward(1, 1, 1)),
        ];
        for (pass, maker) in wrong {
            assert!(misread(BATCH, pass, unit(2, 1, 1), maker).is_some(), "{pass:?} {maker:?}");
        }
    }
}
