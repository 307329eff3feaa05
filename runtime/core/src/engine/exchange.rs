//! Where the threads of a step meet: messages, reductions, sleep, and the end of all when one fails.
//!
//! One mutex guards everything and each worker has a condition variable of its own; nothing polls. Bytes are never
//! copied under the mutex: it orders the copies, and so the memory that they touch.
//!
//! What it deliberately does not do: move bytes. It hands out places.

use super::EngineError;
use super::step::Place;
use pipec_program::id::Id;
use pipec_program::{ChannelId, DeviceId, GroupId, Nanos, Position, Program, QueueId};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The meeting point of one step.
pub(super) struct Exchange {
    state: Mutex<State>,
    /// One for each worker: the devices, then the hosts that compute.
    bells: Vec<Condvar>,
    /// Set with [`State::failure`], so that a running thread need not lock to see it.
    stopped: AtomicBool,
}

struct State {
    channels: Vec<Messages>,
    groups: Vec<Meeting>,
    /// How many instructions of each queue have finished, where another worker may wait for them.
    finished: Vec<Position>,
    /// Whether something has changed for a worker since it last went through its queues.
    rung: Vec<bool>,
    asleep: Vec<bool>,
    /// Workers that have not finished the step.
    running: usize,
    failure: Option<EngineError>,
}

/// The messages of a channel in a step.
struct Messages {
    from: DeviceId,
    to: DeviceId,
    /// Sends that have begun: the number of the next one.
    begun: u64,
    /// Messages that a receive may take, in order.
    ready: VecDeque<Source>,
    /// Messages that a receive has copied.
    received: u64,
    /// When the last of them began to be copied.
    last: Nanos,
}

/// Where a message waits.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// In the sender's arena.
    Sender(Place),
    /// In a slot of the channel.
    Slot(u64),
}

/// A reduction of a group.
struct Meeting {
    members: Vec<DeviceId>,
    places: Vec<Option<Place>>,
    phase: Phase,
}

/// How far a reduction is.
enum Phase {
    /// Members arrive.
    Gathering,
    /// The first member adds up the tensors of the others.
    Adding,
    /// The first member holds the sum; so many of the others have copied it.
    Summed { copied: usize },
}

impl Exchange {
    /// For so many workers, those of the devices first.
    pub(super) fn new(program: &Program, workers: usize) -> Self {
        Self {
            state: Mutex::new(State {
                channels: program
                    .channels
                    .values()
                    .map(|channel| Messages {
                        from: channel.from,
                        to: channel.to,
                        begun: 0,
                        ready: VecDeque::new(),
                        received: 0,
                        last: Nanos::ZERO,
                    })
                    .collect(),
                groups: program
                    .groups
                    .values()
                    .map(|group| Meeting {
                        members: group.members.clone(),
                        places: vec![None; group.members.len()],
                        phase: Phase::Gathering,
                    })
                    .collect(),
                finished: vec![0; program.queues.len()],
                rung: vec![false; workers],
                asleep: vec![false; workers],
                running: workers,
                failure: None,
            }),
            bells: (0..workers).map(|_| Condvar::new()).collect(),
            stopped: AtomicBool::new(false),
        }
    }

    /// No thread panics while it holds the mutex, so that the state is whole even behind a poisoned lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Messages and reductions are the affair of devices.
    fn ring(&self, state: &mut State, device: DeviceId) {
        self.wake(state, device.index());
    }

    fn wake(&self, state: &mut State, worker: usize) {
        state.rung[worker] = true;
        state.asleep[worker] = false;
        self.bells[worker].notify_one();
    }

    // ---- queues of a device and of its host

    /// So many instructions of a queue have finished, which concerns another worker.
    pub(super) fn advance(&self, queue: QueueId, finished: Position, other: usize) {
        let mut state = self.lock();
        state.finished[queue.index()] = finished;
        self.wake(&mut state, other);
    }

    /// How many instructions of a queue of another worker have finished.
    pub(super) fn finished(&self, queue: QueueId) -> Position {
        self.lock().finished[queue.index()]
    }

    // ---- messages

    /// Offers a message of a rendezvous channel; returns its number.
    pub(super) fn post(&self, channel: ChannelId, place: Place) -> u64 {
        let mut state = self.lock();
        let messages = &mut state.channels[channel.index()];
        let number = messages.begun;
        messages.begun += 1;
        messages.ready.push_back(Source::Sender(place));
        let to = messages.to;
        self.ring(&mut state, to);
        number
    }

    /// When the receiver began to copy a message, once it has it.
    pub(super) fn received(&self, channel: ChannelId, number: u64) -> Option<Nanos> {
        let state = self.lock();
        let messages = &state.channels[channel.index()];
        (messages.received > number).then_some(messages.last)
    }

    /// Begins a message of a channel with slots; returns its slot, or none if all are full.
    pub(super) fn reserve(&self, channel: ChannelId, capacity: u32) -> Option<u64> {
        let mut state = self.lock();
        let messages = &mut state.channels[channel.index()];
        if messages.begun - messages.received >= u64::from(capacity) {
            return None;
        }
        let slot = messages.begun % u64::from(capacity);
        messages.begun += 1;
        Some(slot)
    }

    /// The message of a slot is complete.
    pub(super) fn fill(&self, channel: ChannelId, slot: u64) {
        let mut state = self.lock();
        let messages = &mut state.channels[channel.index()];
        messages.ready.push_back(Source::Slot(slot));
        let to = messages.to;
        self.ring(&mut state, to);
    }

    /// Takes the next message of a channel, if it is there.
    pub(super) fn take(&self, channel: ChannelId) -> Option<Source> {
        self.lock().channels[channel.index()].ready.pop_front()
    }

    /// The message that was taken has been copied since `start`.
    pub(super) fn acknowledge(&self, channel: ChannelId, start: Nanos) {
        let mut state = self.lock();
        let messages = &mut state.channels[channel.index()];
        messages.received += 1;
        messages.last = start;
        let from = messages.from;
        self.ring(&mut state, from);
    }

    // ---- reductions

    /// A member brings its tensor. False while the reduction before is not over.
    pub(super) fn arrive(&self, group: GroupId, member: usize, place: Place) -> bool {
        let mut state = self.lock();
        let meeting = &mut state.groups[group.index()];
        match meeting.phase {
            Phase::Gathering => {}
            Phase::Adding | Phase::Summed { .. } => return false,
        }
        meeting.places[member] = Some(place);
        let first = meeting.members[0];
        self.ring(&mut state, first);
        true
    }

    /// For the first member: the tensors of all in the order of the members, once all have arrived.
    pub(super) fn gathered(&self, group: GroupId) -> Option<Vec<Place>> {
        let mut state = self.lock();
        let meeting = &mut state.groups[group.index()];
        let places = meeting.places.iter().copied().collect::<Option<Vec<_>>>()?;
        meeting.phase = Phase::Adding;
        Some(places)
    }

    /// The first member holds the sum.
    pub(super) fn summed(&self, group: GroupId) {
        let mut state = self.lock();
        let meeting = &mut state.groups[group.index()];
        meeting.phase = Phase::Summed { copied: 0 };
        for member in meeting.members.clone() {
            self.ring(&mut state, member);
        }
    }

    /// For the other members: where the sum stands, once it does.
    pub(super) fn sum(&self, group: GroupId) -> Option<Place> {
        let state = self.lock();
        let meeting = &state.groups[group.index()];
        match meeting.phase {
            Phase::Gathering | Phase::Adding => None,
            Phase::Summed { .. } => meeting.places[0],
        }
    }

    /// One of the other members has copied the sum.
    pub(super) fn copied(&self, group: GroupId) {
        let mut state = self.lock();
        let meeting = &mut state.groups[group.index()];
        if let Phase::Summed { copied } = &mut meeting.phase {
            *copied += 1;
        }
        let first = meeting.members[0];
        self.ring(&mut state, first);
    }

    /// For the first member: ends the reduction if all have copied the sum.
    pub(super) fn end(&self, group: GroupId) -> bool {
        let mut state = self.lock();
        let meeting = &mut state.groups[group.index()];
        match meeting.phase {
            Phase::Summed { copied } if copied + 1 == meeting.members.len() => {}
            Phase::Gathering | Phase::Adding | Phase::Summed { .. } => return false,
        }
        meeting.phase = Phase::Gathering;
        meeting.places.fill(None);
        for member in meeting.members.clone() {
            self.ring(&mut state, member);
        }
        true
    }

    // ---- sleep and the end

    /// Whether the step has failed.
    pub(super) fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Sleeps until something has changed for a worker since it last slept.
    pub(super) fn sleep(&self, index: usize) {
        let mut state = self.lock();
        while !state.rung[index] && state.failure.is_none() {
            state.asleep[index] = true;
            self.check_stall(&mut state);
            if state.failure.is_some() {
                break;
            }
            state = self.bells[index].wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.asleep[index] = false;
        state.rung[index] = false;
    }

    /// A worker has finished the step.
    pub(super) fn finish(&self) {
        let mut state = self.lock();
        state.running -= 1;
        self.check_stall(&mut state);
    }

    /// Stops all workers; the first failure is the one that counts.
    pub(super) fn fail(&self, failure: EngineError) {
        let mut state = self.lock();
        self.stop(&mut state, failure);
    }

    /// What stopped the step.
    pub(super) fn into_failure(self) -> Option<EngineError> {
        self.state.into_inner().unwrap_or_else(PoisonError::into_inner).failure
    }

    fn stop(&self, state: &mut State, failure: EngineError) {
        state.failure.get_or_insert(failure);
        self.stopped.store(true, Ordering::Release);
        for bell in &self.bells {
            bell.notify_all();
        }
    }

    /// If every worker that still runs is asleep, nothing will ever wake one: an error of ours, since verified programs
    /// do not deadlock. Better reported than waited for.
    fn check_stall(&self, state: &mut State) {
        if state.running > 0 && state.asleep.iter().filter(|&&asleep| asleep).count() == state.running {
            self.stop(state, EngineError::Stalled);
        }
    }
}
