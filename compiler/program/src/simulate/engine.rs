//! The event core.
//!
//! Queues are processes that run until they block. What blocks on a partner or on another queue is woken by it, without
//! any order in time: its times are maxima of times that are already known. Only links that several transfers share need
//! requests in the order of time; those wait in a heap until nothing else can run. Then the earliest request is next:
//! whatever becomes ready later does so because of a transfer that is still in the heap, hence not before it.

use super::timeline::{Event, Timeline};
use crate::cost::Costs;
use crate::id::{ChannelId, DeviceId, GroupId, IdVec, LinkId, QueueId};
use crate::program::{Instruction, Position, Program, Space};
use crate::units::{Bytes, Nanos};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Runs some steps. Returns the timeline of the last one and the end of each.
///
/// # Panics
/// When queues wait for each other in a cycle, which the verifier excludes.
pub(super) fn run(program: &Program, costs: &Costs, steps: u32) -> (Timeline, Vec<Nanos>) {
    let mut engine = Engine::new(program, costs, steps);
    engine.run();
    let stuck = program.queues.iter().find(|(id, queue)| engine.queues[*id].next < queue.instructions.len());
    assert!(
        steps == 0 || stuck.is_none(),
        "bug in the verifier: {:?} never finishes",
        stuck.map(|(id, _)| id)
    );
    let timeline = engine.timeline();
    (timeline, engine.step_ends)
}

/// A side of a message that has arrived and waits for the other.
#[derive(Clone, Copy)]
struct Post {
    queue: QueueId,
    time: Nanos,
}

/// What a transfer is for. The order breaks ties between requests that became ready at the same time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Carrier {
    /// The next message of a channel.
    Message(ChannelId),
    /// A reduction whose members are all there.
    Reduction(GroupId),
    /// A copy from host arena to device arena.
    Upload(DeviceId, Bytes),
    /// A copy from device arena to host arena.
    Download(DeviceId, Bytes),
}

/// A request for all links of a route.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Transfer {
    ready: Nanos,
    carrier: Carrier,
    /// The queue that asks: sender, copier, or any member.
    queue: QueueId,
}

#[derive(Default)]
struct QueueState {
    /// The first of its slots in `starts` and `ends`.
    base: usize,
    /// The number of finished instructions.
    next: usize,
    /// The end of the last of them.
    clock: Nanos,
    /// Queues that wait for positions of this one.
    waiting: Vec<(Position, QueueId)>,
}

#[derive(Default)]
struct ChannelState {
    shared: bool,
    /// Senders that no transfer has been asked for.
    sends: VecDeque<Post>,
    /// Receivers that are there.
    recvs: VecDeque<Post>,
    /// Messages that are in the channel, with the start and end of their transfer.
    arrived: VecDeque<(Nanos, Nanos)>,
    /// Places that were never used.
    unused: u32,
    /// When the used places that are free became so, ascending.
    free: VecDeque<Nanos>,
}

#[derive(Default)]
struct GroupState {
    shared: bool,
    members: Vec<Post>,
}

struct Engine<'a> {
    program: &'a Program,
    costs: &'a Costs,
    starts: Vec<Nanos>,
    ends: Vec<Nanos>,
    queues: IdVec<QueueId, QueueState>,
    channels: IdVec<ChannelId, ChannelState>,
    groups: IdVec<GroupId, GroupState>,
    /// When each link becomes free.
    links: IdVec<LinkId, Nanos>,
    /// Queues that may go on.
    runnable: Vec<QueueId>,
    /// Requests for shared links.
    requests: BinaryHeap<Reverse<Transfer>>,
    /// Queues of each device, of which how many have not finished the step, and the step.
    devices: IdVec<DeviceId, (Vec<QueueId>, usize, usize)>,
    step_ends: Vec<Nanos>,
}

impl<'a> Engine<'a> {
    fn new(program: &'a Program, costs: &'a Costs, steps: u32) -> Self {
        let mut devices: IdVec<DeviceId, (Vec<QueueId>, usize, usize)> =
            program.devices.values().map(|_| (Vec::new(), 0, 0)).collect();
        let mut slots = 0;
        let mut queues = IdVec::new();
        for (id, queue) in program.queues.iter() {
            queues.push(QueueState { base: slots, ..QueueState::default() });
            slots += queue.instructions.len();
            devices[queue.device].0.push(id);
            devices[queue.device].1 += 1;
        }
        // A link is shared when more than one channel or group may take it; copies always ask in the order of time.
        let mut users: IdVec<LinkId, u32> = program.links.values().map(|_| 0).collect();
        let routes = program.channels.values().map(|channel| &channel.route);
        let routes = routes.chain(program.groups.values().map(|group| &group.route));
        let routes =
            routes.chain(program.devices.values().flat_map(|device| [&device.upload, &device.download]));
        for &link in routes.flatten() {
            users[link] += 1;
        }
        let shared = |route: &[LinkId]| route.iter().any(|&link| users[link] > 1);
        Self {
            program,
            costs,
            starts: vec![Nanos::ZERO; slots],
            ends: vec![Nanos::ZERO; slots],
            queues,
            channels: program
                .channels
                .values()
                .map(|channel| ChannelState {
                    shared: shared(&channel.route),
                    unused: channel.capacity,
                    ..ChannelState::default()
                })
                .collect(),
            groups: program
                .groups
                .values()
                .map(|group| GroupState { shared: shared(&group.route), members: Vec::new() })
                .collect(),
            links: program.links.values().map(|_| Nanos::ZERO).collect(),
            runnable: program.queues.ids().rev().collect(),
            requests: BinaryHeap::new(),
            devices,
            step_ends: vec![Nanos::ZERO; steps as usize],
        }
    }

    fn run(&mut self) {
        if self.step_ends.is_empty() {
            return;
        }
        loop {
            while let Some(queue) = self.runnable.pop() {
                self.advance(queue);
            }
            match self.requests.pop() {
                Some(Reverse(transfer)) => self.carry(transfer),
                None => return,
            }
        }
    }

    /// Runs a queue until it blocks or ends.
    fn advance(&mut self, id: QueueId) {
        let program = self.program;
        let queue = &program.queues[id];
        let device = queue.device;
        while let Some(instruction) = queue.instructions.get(self.queues[id].next) {
            let clock = self.queues[id].clock;
            let time = match instruction {
                Instruction::Run { function, .. } => self.costs.call(device, *function),
                Instruction::Fill { view } => self.costs.fill(device, view.bytes),
                Instruction::Copy { from, to } => {
                    let spaces = (program.buffers[from.buffer].space, program.buffers[to.buffer].space);
                    let carrier = match spaces {
                        (Space::Host, Space::Device) => Some(Carrier::Upload(device, from.bytes)),
                        (Space::Device, Space::Host) => Some(Carrier::Download(device, from.bytes)),
                        (Space::Host, Space::Host) | (Space::Device, Space::Device) => None,
                    };
                    match carrier {
                        None => self.costs.copy(device, from.bytes),
                        Some(carrier) => {
                            self.requests.push(Reverse(Transfer { ready: clock, carrier, queue: id }));
                            return;
                        }
                    }
                }
                Instruction::Wait { queue: other, position } => {
                    let other_state = &mut self.queues[*other];
                    if other_state.next < *position as usize {
                        other_state.waiting.push((*position, id));
                        return;
                    }
                    let last =
                        (*position as usize).checked_sub(1).map(|index| self.ends[other_state.base + index]);
                    let reached = clock.max(last.unwrap_or_default());
                    self.finish(id, reached, reached);
                    continue;
                }
                Instruction::Send { channel, .. } => {
                    self.channels[*channel].sends.push_back(Post { queue: id, time: clock });
                    self.meet(*channel);
                    return;
                }
                Instruction::Recv { channel, .. } => {
                    self.channels[*channel].recvs.push_back(Post { queue: id, time: clock });
                    self.receive(*channel);
                    self.meet(*channel);
                    return;
                }
                Instruction::Reduce { group, .. } => {
                    self.gather(*group, Post { queue: id, time: clock });
                    return;
                }
            };
            self.finish(id, clock, clock + time + self.costs.overhead(device));
        }
        self.end_step(id);
    }

    /// Records the instruction at which a queue stands and wakes whoever waited for it.
    fn finish(&mut self, id: QueueId, start: Nanos, end: Nanos) {
        let queue = &mut self.queues[id];
        self.starts[queue.base + queue.next] = start;
        self.ends[queue.base + queue.next] = end;
        queue.next += 1;
        queue.clock = end;
        if !queue.waiting.is_empty() {
            let done = queue.next;
            let runnable = &mut self.runnable;
            queue.waiting.retain(|&(position, waiter)| {
                let blocked = position as usize > done;
                if !blocked {
                    runnable.push(waiter);
                }
                blocked
            });
        }
    }

    /// Finishes an instruction that had blocked its queue.
    fn resume(&mut self, id: QueueId, start: Nanos, end: Nanos) {
        self.finish(id, start, end);
        self.runnable.push(id);
    }

    /// Asks for the transfer of the next message of a channel, if it may start.
    fn meet(&mut self, id: ChannelId) {
        let rendezvous = self.program.channels[id].capacity == 0;
        loop {
            let channel = &mut self.channels[id];
            let Some(&send) = channel.sends.front() else { return };
            let place = if rendezvous {
                // The receiver stays at the front until its message has arrived. No second message can be meant for it:
                // the sends of a channel stand in one queue, which is blocked meanwhile.
                match channel.recvs.front() {
                    Some(recv) => recv.time,
                    None => return,
                }
            } else if channel.unused > 0 {
                channel.unused -= 1;
                Nanos::ZERO
            } else {
                match channel.free.pop_front() {
                    Some(time) => time,
                    None => return,
                }
            };
            channel.sends.pop_front();
            let shared = channel.shared;
            let transfer =
                Transfer { ready: send.time.max(place), carrier: Carrier::Message(id), queue: send.queue };
            if shared {
                self.requests.push(Reverse(transfer));
                if rendezvous {
                    return;
                }
            } else {
                self.carry(transfer);
            }
        }
    }

    /// Hands messages that stand in a channel to receivers that are there.
    fn receive(&mut self, id: ChannelId) {
        while let (Some(&(start, end)), Some(&recv)) =
            (self.channels[id].arrived.front(), self.channels[id].recvs.front())
        {
            let channel = &mut self.channels[id];
            channel.arrived.pop_front();
            channel.recvs.pop_front();
            let received = end.max(recv.time);
            if self.program.channels[id].capacity > 0 {
                channel.free.push_back(received);
            }
            self.resume(recv.queue, start.max(recv.time), received);
        }
    }

    /// Adds a member to a reduction, which starts with the last one.
    fn gather(&mut self, id: GroupId, member: Post) {
        let group = &mut self.groups[id];
        group.members.push(member);
        if group.members.len() < self.program.groups[id].members.len() {
            return;
        }
        let ready = group.members.iter().map(|post| post.time).max().unwrap_or_default();
        let transfer = Transfer { ready, carrier: Carrier::Reduction(id), queue: member.queue };
        if group.shared {
            self.requests.push(Reverse(transfer));
        } else {
            self.carry(transfer);
        }
    }

    /// Occupies the links of a route and finishes the instructions that the transfer belongs to.
    fn carry(&mut self, transfer: Transfer) {
        let program = self.program;
        let (route, time, device) = match transfer.carrier {
            Carrier::Message(id) => {
                let channel = &program.channels[id];
                (&channel.route, self.costs.message(id), channel.from)
            }
            Carrier::Reduction(id) => {
                let group = &program.groups[id];
                (&group.route, self.costs.reduction(id), group.members[0])
            }
            Carrier::Upload(id, bytes) => (&program.devices[id].upload, self.costs.upload(id, bytes), id),
            Carrier::Download(id, bytes) => {
                (&program.devices[id].download, self.costs.download(id, bytes), id)
            }
        };
        let start = route.iter().fold(transfer.ready, |start, &link| start.max(self.links[link]));
        let end = start + time + self.costs.overhead(device);
        for &link in route {
            self.links[link] = end;
        }
        match transfer.carrier {
            Carrier::Message(id) => {
                self.channels[id].arrived.push_back((start, end));
                self.resume(transfer.queue, start, end);
                self.receive(id);
                if self.channels[id].shared {
                    self.meet(id);
                }
            }
            Carrier::Reduction(id) => {
                for post in std::mem::take(&mut self.groups[id].members) {
                    self.resume(post.queue, start, end);
                }
            }
            Carrier::Upload(..) | Carrier::Download(..) => self.resume(transfer.queue, start, end),
        }
    }

    /// A queue is through; the last one of its device starts the next step there.
    fn end_step(&mut self, id: QueueId) {
        let (queues, left, step) = &mut self.devices[self.program.queues[id].device];
        *left -= 1;
        if *left > 0 {
            return;
        }
        let end = queues.iter().map(|&queue| self.queues[queue].clock).max().unwrap_or_default();
        if let Some(latest) = self.step_ends.get_mut(*step) {
            *latest = end.max(*latest);
        }
        *step += 1;
        if *step == self.step_ends.len() {
            return;
        }
        *left = queues.len();
        for &queue in queues.iter() {
            self.queues[queue].next = 0;
            self.queues[queue].clock = end;
            self.runnable.push(queue);
        }
    }

    fn timeline(&self) -> Timeline {
        let mut events = Vec::with_capacity(self.starts.len());
        for ((id, queue), state) in self.program.queues.iter().zip(self.queues.values()) {
            for (position, instruction) in (0..).zip(&queue.instructions) {
                if let Instruction::Wait { .. } = instruction {
                    continue;
                }
                let slot = state.base + position as usize;
                events.push(Event { queue: id, position, start: self.starts[slot], end: self.ends[slot] });
            }
        }
        Timeline::ordered(events)
    }
}
