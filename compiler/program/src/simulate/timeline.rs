//! When each instruction ran: simulated or measured, in one type.

use crate::id::{Id, QueueId};
use crate::program::{Instruction, Position, Program};
use crate::units::Nanos;
use std::fmt;

/// The time an instruction worked. Time blocked before (for a partner, a link, a place in a channel) is not part of it
/// in a simulated timeline; a measured one may contain what the device cannot tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Event {
    /// The queue.
    pub queue: QueueId,
    /// How many instructions of the queue stand before it.
    pub position: Position,
    /// When it started, from the start of the step.
    pub start: Nanos,
    /// When it finished.
    pub end: Nanos,
}

impl Event {
    /// How long it took.
    pub fn duration(&self) -> Nanos {
        self.end - self.start
    }

    /// The name of its instruction; empty when the program has no such instruction.
    pub fn name(&self, program: &Program) -> String {
        program
            .queues
            .get(self.queue)
            .and_then(|queue| queue.instructions.get(self.position as usize))
            .map(instruction_name)
            .unwrap_or_default()
    }
}

/// The name of an instruction in timelines: `F g2.m3.i0`, `F g2.m3.i0 + BW g5.m1.i0`, `send F g0.m1.i0`, `recv B g1.m1.i0`, `reduce update g1`,
/// `copy b3 -> b7`, `fill b2`, `wait q1>=17`.
pub fn instruction_name(instruction: &Instruction) -> String {
    match instruction {
        Instruction::Run { work, .. } => work.to_string(),
        Instruction::Send { work, .. } => format!("send {work}"),
        Instruction::Recv { work, .. } => format!("recv {work}"),
        Instruction::Reduce { work, .. } => format!("reduce {work}"),
        Instruction::Copy { from, to } => format!("copy {} -> {}", from.buffer, to.buffer),
        Instruction::Fill { view } => format!("fill {}", view.buffer),
        Instruction::Wait { queue, position } => format!("wait {queue}>={position}"),
    }
}

/// The events of one step, waits excepted, by queue and in the order of the queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    events: Vec<Event>,
    makespan: Nanos,
}

impl Timeline {
    /// A timeline of events that are known to be in order.
    pub(super) fn ordered(events: Vec<Event>) -> Self {
        let makespan = events.iter().map(|event| event.end).max().unwrap_or_default();
        Self { events, makespan }
    }

    /// The timeline of a measured step, from its events in any order. Events of waits are dropped, instructions without
    /// an event are allowed (a step that was cut off).
    ///
    /// # Errors
    /// The first event, by queue and position, that names no instruction of the program, that ends before it starts,
    /// that occurs twice or that starts before its predecessor in the queue has ended.
    pub fn measured(program: &Program, mut events: Vec<Event>) -> Result<Self, TimelineError> {
        events.sort_unstable();
        let mut kept: Vec<Event> = Vec::with_capacity(events.len());
        for event in events {
            let queue = program.queues.get(event.queue);
            let instruction = queue.and_then(|queue| queue.instructions.get(event.position as usize));
            match instruction {
                None => return Err(TimelineError::Unknown(event)),
                Some(Instruction::Wait { .. }) => continue,
                Some(_) if event.end < event.start => return Err(TimelineError::Backwards(event)),
                Some(_) => {}
            }
            if let Some(last) = kept.last().filter(|last| last.queue == event.queue) {
                if last.position == event.position {
                    return Err(TimelineError::Twice(event));
                }
                if event.start < last.end {
                    return Err(TimelineError::Overlap(event));
                }
            }
            kept.push(event);
        }
        Ok(Self::ordered(kept))
    }

    /// All events, by queue and position.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The events of one queue, by position.
    pub fn queue(&self, queue: QueueId) -> &[Event] {
        let start = self.events.partition_point(|event| event.queue.index() < queue.index());
        let end = self.events.partition_point(|event| event.queue.index() <= queue.index());
        &self.events[start..end]
    }

    /// The event of an instruction, unless it is a wait or was not recorded.
    pub fn event(&self, queue: QueueId, position: Position) -> Option<Event> {
        let found =
            self.events.binary_search_by(|event| (event.queue, event.position).cmp(&(queue, position)));
        found.ok().map(|index| self.events[index])
    }

    /// The end of the last event.
    pub fn makespan(&self) -> Nanos {
        self.makespan
    }
}

/// Why events are no timeline of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimelineError {
    /// The program has no such instruction.
    Unknown(Event),
    /// It ends before it starts.
    Backwards(Event),
    /// Its instruction has an earlier event.
    Twice(Event),
    /// It starts before its predecessor in the queue has ended.
    Overlap(Event),
}

impl fmt::Display for TimelineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (event, what) = match self {
            Self::Unknown(event) => (event, "the program has no such instruction"),
            Self::Backwards(event) => (event, "it ends before it starts"),
            Self::Twice(event) => (event, "it was recorded twice"),
            Self::Overlap(event) => (event, "it starts before its predecessor has ended"),
        };
        write!(f, "event of instruction {} of {}: {what}", event.position, event.queue)
    }
}

impl std::error::Error for TimelineError {}
