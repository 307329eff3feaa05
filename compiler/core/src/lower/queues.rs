//! The instruction lists of one device: passes, messages, the waits between them.
//!
//! Instructions are emitted in the order of the reference execution, a pass after all receives that are posted before
//! it and before the sends of what it makes. So every wait names a position that was emitted already. A wait is left out
//! where its queue has waited for the same or a later position of the other queue before.

use super::arena::Placed;
use super::lifetimes::{Held, Tensor};
use pipec_program::id::{Id, IdVec};
use pipec_program::{DeviceId, Instruction, Position, Queue, QueueId, QueueKind};

/// The number of a queue among those of its device; the compute queue is the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Local(pub(super) usize);

/// The compute queue of a device.
pub(super) const COMPUTE: Local = Local(0);

/// The queues of a device under construction.
pub(super) struct Queues {
    device: DeviceId,
    /// The number of the compute queue in the program.
    first: usize,
    lists: Vec<List>,
}

struct List {
    kind: QueueKind,
    instructions: Vec<Instruction>,
    /// The highest position of each other queue that this one has waited for.
    waited: Vec<Position>,
}

impl Queues {
    /// Queues of some kinds, the first a compute queue, numbered in the program from `first` on.
    pub(super) fn new(device: DeviceId, first: usize, kinds: &[QueueKind]) -> Self {
        let list = |&kind| List { kind, instructions: Vec::new(), waited: vec![0; kinds.len()] };
        Self { device, first, lists: kinds.iter().map(list).collect() }
    }

    /// Appends an instruction and returns the position after it, for others to wait for.
    pub(super) fn push(&mut self, queue: Local, instruction: Instruction) -> Position {
        self.lists[queue.0].instructions.push(instruction);
        self.position(queue)
    }

    /// The position after the last instruction of a queue.
    pub(super) fn position(&self, queue: Local) -> Position {
        let instructions = &self.lists[queue.0].instructions;
        Position::try_from(instructions.len()).expect("a queue has fewer than 2^32 instructions")
    }

    /// Makes a queue wait until another has come to a position.
    pub(super) fn wait(&mut self, queue: Local, other: Local, position: Position) {
        let list = &mut self.lists[queue.0];
        if queue == other || position <= list.waited[other.0] {
            return;
        }
        list.waited[other.0] = position;
        let queue = QueueId::new(self.first + other.0);
        list.instructions.push(Instruction::Wait { queue, position });
    }

    /// Adds the queues to the program.
    pub(super) fn finish(self, queues: &mut IdVec<QueueId, Queue>) {
        for List { kind, instructions, .. } in self.lists {
            queues.push(Queue { device: self.device, kind, instructions });
        }
    }
}

/// Which tensor held the bytes of an arena last.
pub(super) struct Occupants {
    /// Ranges `start .. end` ascending and disjoint, each with its last tensor.
    ranges: Vec<(u64, u64, Held)>,
}

/// What must be over before bytes may be overwritten.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Free {
    /// The last pass that touches them, by its position; none if no pass did, or only to make what is sent.
    pub(super) pass: Option<u32>,
    /// The tensors there that are sent; the pass that makes one is over when it is sent.
    pub(super) sent: Vec<Held>,
}

impl Occupants {
    /// An arena that nothing has touched.
    pub(super) fn new() -> Self {
        Self { ranges: Vec::new() }
    }

    /// Gives the place of a tensor to it and tells what must be over before. Linear in the number of tensors that it
    /// displaces and, where their ranges do not coincide with its own, in the number of all ranges.
    pub(super) fn take(&mut self, held: Held, tensors: &[Tensor], places: &[Placed]) -> Free {
        let start = places[held as usize].offset;
        let end = start + tensors[held as usize].span.bytes;
        let first = self.ranges.partition_point(|range| range.1 <= start);
        let count = self.ranges[first..].iter().take_while(|range| range.0 < end).count();
        let mut free = Free::default();
        let displaced = first..first + count;
        for &(_, _, old) in &self.ranges[displaced.clone()] {
            let tensor = &tensors[old as usize];
            if !tensor.sent {
                free.pass = free.pass.max(Some(tensor.last));
            } else if !free.sent.contains(&old) {
                free.sent.push(old);
            }
        }
        let before =
            self.ranges.get(first).filter(|range| range.0 < start).map(|range| (range.0, start, range.2));
        let after = self.ranges[displaced.clone()]
            .last()
            .filter(|range| range.1 > end)
            .map(|range| (end, range.1, range.2));
        let taken = (start, end, held);
        if count == 1 && before.is_none() && after.is_none() {
            self.ranges[first] = taken;
        } else {
            self.ranges.splice(displaced, before.into_iter().chain([taken]).chain(after));
        }
        free
    }
}
