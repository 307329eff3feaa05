//! Figures derived from a timeline: how busy devices and links were.

use super::timeline::Timeline;
use crate::id::{DeviceId, IdVec, LinkId};
use crate::program::{Instruction, Program, QueueKind, Space};
use crate::units::{Bytes, Nanos};

/// How a device spent the makespan.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DeviceUse {
    /// The time its compute queue worked.
    pub busy: Nanos,
    /// The rest of the makespan.
    pub idle: Nanos,
    /// The time its host compute queues worked, added up.
    pub host_busy: Nanos,
    /// Idle share of the makespan, in 0..=1.
    pub bubble: f64,
}

/// How a link spent the makespan.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkUse {
    /// The time it was occupied.
    pub busy: Nanos,
    /// Occupied share of the makespan, in 0..=1.
    pub share: f64,
    /// What it carried.
    pub bytes: Bytes,
    /// The number of messages, copies and reductions.
    pub transfers: u64,
}

/// How each device spent the makespan.
pub fn device_use(program: &Program, timeline: &Timeline) -> IdVec<DeviceId, DeviceUse> {
    let mut uses: IdVec<DeviceId, DeviceUse> =
        program.devices.values().map(|_| DeviceUse::default()).collect();
    for (id, queue) in program.queues.iter() {
        let worked: Nanos = timeline.queue(id).iter().map(|event| event.duration()).sum();
        match queue.kind {
            QueueKind::Compute => uses[queue.device].busy += worked,
            QueueKind::HostCompute => uses[queue.device].host_busy += worked,
            QueueKind::Send
            | QueueKind::Receive
            | QueueKind::Collective
            | QueueKind::HostToDevice
            | QueueKind::DeviceToHost => {}
        }
    }
    for (_, each) in uses.iter_mut() {
        each.idle = timeline.makespan() - each.busy;
        each.bubble = share(each.idle, timeline.makespan());
    }
    uses
}

/// The idle share of all devices together, in 0..=1: one minus all busy time over devices times makespan.
pub fn bubble(uses: &IdVec<DeviceId, DeviceUse>) -> f64 {
    uses.values().map(|each| each.bubble).sum::<f64>() / uses.len().max(1) as f64
}

/// How each link spent the makespan. A link is occupied while a send, a copy between arenas or a reduction that takes it
/// works; a reduction over k members moves `2 (k - 1) / k` of its tensor over every link.
pub fn link_use(program: &Program, timeline: &Timeline) -> IdVec<LinkId, LinkUse> {
    let mut uses: IdVec<LinkId, LinkUse> = program.links.values().map(|_| LinkUse::default()).collect();
    for event in timeline.events() {
        let queue = &program.queues[event.queue];
        let (route, bytes) = match &queue.instructions[event.position as usize] {
            Instruction::Send { channel, .. } => {
                let channel = &program.channels[*channel];
                (&channel.route, channel.bytes())
            }
            Instruction::Copy { from, to } => {
                let device = &program.devices[queue.device];
                match (program.buffers[from.buffer].space, program.buffers[to.buffer].space) {
                    (Space::Host, Space::Device) => (&device.upload, from.bytes),
                    (Space::Device, Space::Host) => (&device.download, from.bytes),
                    (Space::Host, Space::Host) | (Space::Device, Space::Device) => continue,
                }
            }
            Instruction::Reduce { group, view, .. } => {
                let group = &program.groups[*group];
                // All members have an event of the same transfer; the first one stands for it.
                if group.members.first() != Some(&queue.device) {
                    continue;
                }
                let members = group.members.len() as u64;
                (&group.route, Bytes(view.bytes.0.div_ceil(members)) * (2 * (members - 1)))
            }
            Instruction::Run { .. }
            | Instruction::Recv { .. }
            | Instruction::Fill { .. }
            | Instruction::Wait { .. } => continue,
        };
        for &link in route {
            let each = &mut uses[link];
            each.busy += event.duration();
            each.bytes += bytes;
            each.transfers += 1;
        }
    }
    for (_, each) in uses.iter_mut() {
        each.share = share(each.busy, timeline.makespan());
    }
    uses
}

fn share(part: Nanos, whole: Nanos) -> f64 {
    if whole == Nanos::ZERO { 0.0 } else { part.0 as f64 / whole.0 as f64 }
}
