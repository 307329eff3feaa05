//! What the makespan was spent on: the chain of events that ends last.

use super::messages::{Message, messages};
use super::timeline::{Event, Timeline};
use crate::id::{GroupId, QueueId};
use crate::program::{Instruction, Pass, Position, Program, StepWork, Work};
use crate::units::Nanos;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// What time on the critical path is spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Activity {
    /// A pass of a unit.
    Pass(Pass),
    /// A forward pass and this one of another unit in one.
    Pair(Pass),
    /// Work done once a step.
    Step(StepWork),
    /// Messages.
    Message,
    /// Reductions.
    Reduction,
    /// Copies.
    Copy,
    /// Fills.
    Fill,
    /// Nothing: a link was busy with something else, or a measured run did not say.
    Blocked,
}

impl fmt::Display for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pass(pass) => pass.name(),
            Self::Pair(pass) => return f.pad(&format!("F+{}", pass.name())),
            Self::Step(work) => work.name(),
            Self::Message => "message",
            Self::Reduction => "reduction",
            Self::Copy => "copy",
            Self::Fill => "fill",
            Self::Blocked => "blocked",
        })
    }
}

impl Activity {
    /// The activity of an instruction; none for a wait.
    fn of(instruction: &Instruction) -> Option<Self> {
        match instruction {
            Instruction::Run { work: Work::Pass(pass, _), .. } => Some(Self::Pass(*pass)),
            Instruction::Run { work: Work::Pair(pair), .. } => Some(Self::Pair(pair.pass)),
            Instruction::Run { work: Work::Stage(work, _) | Work::Step(work), .. } => Some(Self::Step(*work)),
            Instruction::Send { .. } | Instruction::Recv { .. } => Some(Self::Message),
            Instruction::Reduce { .. } => Some(Self::Reduction),
            Instruction::Copy { .. } => Some(Self::Copy),
            Instruction::Fill { .. } => Some(Self::Fill),
            Instruction::Wait { .. } => None,
        }
    }
}

/// A chain of events, each the last that the next one had to wait for, from the start of the step to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CriticalPath {
    /// The events, in order of time.
    pub events: Vec<Event>,
    /// How the makespan divides; the times add up to it.
    pub times: BTreeMap<Activity, Nanos>,
}

/// The critical path of a timeline.
pub fn critical_path(program: &Program, timeline: &Timeline) -> CriticalPath {
    let meetings = Meetings::new(program);
    let mut path = CriticalPath::default();
    let mut now = timeline.makespan();
    let mut current = timeline.events().iter().find(|event| event.end == now).copied();
    while let Some(event) = current {
        path.events.push(event);
        let instruction = &program.queues[event.queue].instructions[event.position as usize];
        if let Some(activity) = Activity::of(instruction).filter(|_| now > event.start) {
            *path.times.entry(activity).or_default() += now - event.start;
        }
        now = event.start;
        // The same queue first where several end at the same time: the shortest story.
        let last = meetings
            .before(program, (event.queue, event.position))
            .into_iter()
            .filter_map(|(queue, position)| timeline.event(queue, position))
            .filter(|earlier| earlier.end <= now)
            .max_by_key(|earlier| {
                (earlier.end, earlier.queue == event.queue, std::cmp::Reverse(earlier.queue))
            });
        let end = last.map(|earlier| earlier.end).unwrap_or_default();
        if end < now {
            *path.times.entry(Activity::Blocked).or_default() += now - end;
            now = end;
        }
        current = last;
    }
    path.events.reverse();
    path
}

type Place = (QueueId, Position);

/// Where instructions of different queues meet.
struct Meetings {
    messages: Vec<Message>,
    /// The message of every send and receive.
    message_of: BTreeMap<Place, usize>,
    /// The places of every reduction, and the reduction of every place.
    reductions: Vec<Vec<Place>>,
    reduction_of: BTreeMap<Place, usize>,
}

impl Meetings {
    fn new(program: &Program) -> Self {
        let messages = messages(program);
        let mut message_of = BTreeMap::new();
        for (index, message) in messages.iter().enumerate() {
            message_of.insert(message.send, index);
            message_of.insert(message.recv, index);
        }
        let mut reductions: Vec<Vec<Place>> = Vec::new();
        let mut reduction_of = BTreeMap::new();
        // The n-th reduction of a group on one device meets the n-th on every other.
        let mut numbers: BTreeMap<(GroupId, u32), usize> = BTreeMap::new();
        let mut seen = BTreeMap::new();
        for (queue, place) in program.queues.iter() {
            for (position, instruction) in (0..).zip(&place.instructions) {
                if let Instruction::Reduce { group, .. } = instruction {
                    let number: &mut u32 = seen.entry((*group, place.device)).or_default();
                    let reduction = *numbers.entry((*group, *number)).or_insert_with(|| {
                        reductions.push(Vec::new());
                        reductions.len() - 1
                    });
                    *number += 1;
                    reductions[reduction].push((queue, position));
                    reduction_of.insert((queue, position), reduction);
                }
            }
        }
        Self { messages, message_of, reductions, reduction_of }
    }

    /// The instructions that one had to wait for, none of them a wait.
    fn before(&self, program: &Program, place: Place) -> Vec<Place> {
        let mut found = Vec::new();
        preceding(program, place, &mut found);
        if let Some(&index) = self.message_of.get(&place) {
            let message = &self.messages[index];
            let partner = if place == message.send { message.recv } else { message.send };
            preceding(program, partner, &mut found);
            let capacity = program.channels[message.channel].capacity;
            if capacity > 0 {
                if place == message.recv {
                    found.push(message.send);
                }
                // The message whose place in the channel this one takes.
                if let Some(earlier) = index.checked_sub(capacity as usize).map(|index| &self.messages[index])
                    && earlier.channel == message.channel
                {
                    found.push(earlier.recv);
                }
            }
        }
        if let Some(&reduction) = self.reduction_of.get(&place) {
            for &member in self.reductions[reduction].iter().filter(|&&member| member != place) {
                preceding(program, member, &mut found);
            }
        }
        found
    }
}

/// The instructions that a place follows in its queue and through the waits directly before it.
fn preceding(program: &Program, place: Place, found: &mut Vec<Place>) {
    let mut ends = vec![place];
    let mut seen = BTreeSet::new();
    while let Some((queue, end)) = ends.pop() {
        if !seen.insert((queue, end)) {
            continue;
        }
        let Some(position) = end.checked_sub(1) else { continue };
        match program.queues[queue].instructions.get(position as usize) {
            Some(Instruction::Wait { queue: other, position: awaited }) => {
                ends.push((queue, position));
                ends.push((*other, *awaited));
            }
            Some(_) => found.push((queue, position)),
            None => {}
        }
    }
}
