//! How many messages must fit a channel so that a schedule ends where sends wait for room.
//!
//! A receive is posted right before the step that needs its message, a send right after the step that makes it; a send
//! waits while its channel holds as many messages as fit, with a capacity of 0 until the receive is posted. Every channel
//! delivers in order.

use super::{Problem, Schedule};
use pipec_program::id::IdVec;
use pipec_program::{DeviceId, Pass, StageId, Unit};
use std::collections::VecDeque;

/// What has a channel of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channels {
    /// Every ordered pair of devices.
    PerPair,
    /// Activations and gradients of every receiving stage.
    PerStage,
}

/// The largest capacity that is tried.
const MOST: usize = 64;

/// The least capacity, equal for all channels, with which a schedule ends. None if some channel is to be received in
/// another order than it is sent, or if 64 messages are too few.
pub fn capacity(problem: &Problem, schedule: &Schedule, channels: Channels) -> Option<u32> {
    let programs = Programs::new(problem, schedule, channels);
    if !programs.in_order() || !programs.ends(MOST) {
        return None;
    }
    let (mut low, mut high) = (0, MOST);
    while low < high {
        let middle = low.midpoint(high);
        if programs.ends(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Some(high as u32)
}

/// What a device does with messages, in order. Steps between them take part in nothing here.
#[derive(Clone, Copy)]
struct Move {
    send: bool,
    channel: usize,
    /// The device at the other end.
    other: DeviceId,
    message: (Pass, Unit),
}

struct Programs {
    devices: IdVec<DeviceId, Vec<Move>>,
    channels: usize,
}

impl Programs {
    fn new(problem: &Problem, schedule: &Schedule, channels: Channels) -> Self {
        let (p, stages) = (problem.devices().len(), problem.stages().len());
        let channel = |from: DeviceId, to: DeviceId, forward: bool, taker: StageId| match channels {
            Channels::PerPair => from.0 as usize * p + to.0 as usize,
            Channels::PerStage => 2 * taker.0 as usize + usize::from(forward),
        };
        let mut devices = IdVec::new();
        for (device, steps) in schedule.devices.iter() {
            let mut moves = Vec::new();
            for step in steps {
                for (pass, unit) in step.passes() {
                    let (from, kind) = match pass {
                        Pass::F => (problem.before(unit.stage), Pass::F),
                        Pass::B | Pass::BW => (problem.after(unit.stage), Pass::B),
                        Pass::R if problem.is_backward(unit.stage) => (problem.source(unit.stage), Pass::F),
                        Pass::W | Pass::R => continue,
                    };
                    let Some(stage) = from.filter(|&stage| problem.device(stage) != device) else { continue };
                    let other = problem.device(stage);
                    let channel = channel(other, device, kind == Pass::F, unit.stage);
                    moves.push(Move { send: false, channel, other, message: (kind, Unit { stage, ..unit }) });
                }
                for (pass, unit) in step.passes() {
                    let (to, kind) = match pass {
                        Pass::F => (problem.after(unit.stage), Pass::F),
                        Pass::B | Pass::BW => (problem.before(unit.stage), Pass::B),
                        Pass::W | Pass::R => continue,
                    };
                    let fed = problem.fed(unit.stage).filter(|_| pass == Pass::F);
                    for stage in to.into_iter().chain(fed).filter(|&stage| problem.device(stage) != device) {
                        let other = problem.device(stage);
                        let channel = channel(device, other, kind == Pass::F, stage);
                        moves.push(Move { send: true, channel, other, message: (kind, unit) });
                    }
                }
            }
            devices.push(moves);
        }
        let channels = match channels {
            Channels::PerPair => p * p,
            Channels::PerStage => 2 * stages,
        };
        Self { devices, channels }
    }

    /// Whether every channel is received in the order in which it is sent.
    fn in_order(&self) -> bool {
        let mut messages = [vec![Vec::new(); self.channels], vec![Vec::new(); self.channels]];
        for step in self.devices.values().flatten() {
            messages[usize::from(step.send)][step.channel].push(step.message);
        }
        let [received, sent] = messages;
        received == sent
    }

    /// Whether all devices end where so many messages fit a channel.
    fn ends(&self, capacity: usize) -> bool {
        let mut next: IdVec<DeviceId, usize> = self.devices.values().map(|_| 0).collect();
        let mut held: Vec<VecDeque<(Pass, Unit)>> = vec![VecDeque::new(); self.channels];
        let mut awake: Vec<DeviceId> = self.devices.ids().collect();
        while let Some(device) = awake.pop() {
            while let Some(&step) = self.devices[device].get(next[device]) {
                if step.send {
                    let posted = self.devices[step.other].get(next[step.other]);
                    let meets = posted.is_some_and(|other| {
                        !other.send && other.channel == step.channel && other.message == step.message
                    });
                    if held[step.channel].len() < capacity {
                        held[step.channel].push_back(step.message);
                    } else if capacity == 0 && meets {
                        next[step.other] += 1;
                    } else {
                        break;
                    }
                } else if held[step.channel].front() == Some(&step.message) {
                    held[step.channel].pop_front();
                } else {
                    // A sender that waits for this receive goes on from here.
                    awake.extend(self.meets_sender(&next, device, step, capacity));
                    break;
                }
                next[device] += 1;
                awake.push(step.other);
            }
        }
        self.devices.iter().all(|(device, moves)| next[device] == moves.len())
    }

    /// The sender that a posted receive sets free at capacity 0.
    fn meets_sender(
        &self,
        next: &IdVec<DeviceId, usize>,
        device: DeviceId,
        step: Move,
        capacity: usize,
    ) -> Option<DeviceId> {
        let sender = self.devices[step.other].get(next[step.other]);
        let waits = sender.is_some_and(|sent| {
            sent.send && sent.other == device && sent.channel == step.channel && sent.message == step.message
        });
        (capacity == 0 && waits).then_some(step.other)
    }
}
