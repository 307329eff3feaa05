//! Messages and reductions in pairs, and progress: which queue waits for which.

use super::{Report, Rule};
use crate::entity::Entity;
use crate::id::{ChannelId, DeviceId, GroupId, Id, IdVec, QueueId};
use crate::program::{Instruction, Position, Program, Work};
use std::collections::BTreeMap;

/// One end of a channel, or one member of a group.
#[derive(Clone, Debug, Default)]
struct End<'a> {
    queue: Option<QueueId>,
    items: Vec<(Position, &'a Work)>,
}

/// The queue in which each end of each channel and each member of each group stands.
#[derive(Debug, Default)]
pub(super) struct Ends {
    pub(super) sender: IdVec<ChannelId, Option<QueueId>>,
    pub(super) receiver: IdVec<ChannelId, Option<QueueId>>,
    pub(super) members: IdVec<GroupId, Vec<Option<QueueId>>>,
}

/// Checks that messages and reductions pair up; the ends of each.
pub(super) fn check_pairs(program: &Program, report: &mut Report) -> Ends {
    let mut pairs = Pairs {
        sends: program.channels.ids().map(|_| End::default()).collect(),
        recvs: program.channels.ids().map(|_| End::default()).collect(),
        reduces: program.groups.ids().map(|_| BTreeMap::new()).collect(),
        report,
    };
    for (queue, row) in program.queues.iter() {
        for (position, instruction) in (0u32..).zip(&row.instructions) {
            match instruction {
                Instruction::Send { channel, work, .. } => {
                    let end = &mut pairs.sends[*channel];
                    let split = end.add(queue, position, work);
                    pairs.split(split, queue, position, &format!("sends of {channel}"));
                }
                Instruction::Recv { channel, work, .. } => {
                    let end = &mut pairs.recvs[*channel];
                    let split = end.add(queue, position, work);
                    pairs.split(split, queue, position, &format!("receives of {channel}"));
                }
                Instruction::Reduce { group, work, .. } => {
                    let end = pairs.reduces[*group].entry(row.device).or_default();
                    let split = end.add(queue, position, work);
                    pairs.split(split, queue, position, &format!("reductions of {group} on {}", row.device));
                }
                Instruction::Run { .. }
                | Instruction::Copy { .. }
                | Instruction::Fill { .. }
                | Instruction::Wait { .. } => {}
            }
        }
    }
    for channel in program.channels.ids() {
        pairs.channel(channel);
    }
    for (group, row) in program.groups.iter() {
        pairs.group(group, &row.members);
    }
    let members = |group: GroupId, members: &[DeviceId]| {
        members.iter().map(|member| pairs.reduces[group].get(member).and_then(|end| end.queue)).collect()
    };
    Ends {
        sender: pairs.sends.values().map(|end| end.queue).collect(),
        receiver: pairs.recvs.values().map(|end| end.queue).collect(),
        members: program.groups.iter().map(|(group, row)| members(group, &row.members)).collect(),
    }
}

impl<'a> End<'a> {
    /// Notes an instruction; the other queue if the end stands in two.
    fn add(&mut self, queue: QueueId, position: Position, work: &'a Work) -> Option<QueueId> {
        let first = *self.queue.get_or_insert(queue);
        self.items.push((position, work));
        (first != queue).then_some(first)
    }

    fn place(&self, index: usize) -> Option<Entity> {
        let (position, _) = self.items.get(index)?;
        Some(Entity::Instruction(self.queue?, *position))
    }
}

struct Pairs<'a> {
    sends: IdVec<ChannelId, End<'a>>,
    recvs: IdVec<ChannelId, End<'a>>,
    reduces: IdVec<GroupId, BTreeMap<DeviceId, End<'a>>>,
    report: &'a mut Report,
}

impl Pairs<'_> {
    fn wrong(&mut self, place: Entity, message: String, related: Option<Entity>) {
        self.report.add_related(place, Rule::Message, message, related.into_iter().collect());
    }

    fn split(&mut self, other: Option<QueueId>, queue: QueueId, position: Position, what: &str) {
        if let Some(other) = other {
            let message = format!("{what} stand in {other} and {queue}, so that their order is open");
            self.wrong(Entity::Instruction(queue, position), message, Some(Entity::Queue(other)));
        }
    }

    fn channel(&mut self, channel: ChannelId) {
        let (sends, recvs) =
            (std::mem::take(&mut self.sends[channel]), std::mem::take(&mut self.recvs[channel]));
        // A message of the wrong size is a wrong table; here only order and work are left.
        let differs = sends.items.iter().zip(&recvs.items).position(|(send, recv)| send.1 != recv.1);
        let (sent, received) = (sends.items.len(), recvs.items.len());
        if let Some(index) = differs {
            let (send, recv) = (sends.items[index].1, recvs.items[index].1);
            let message =
                format!("receives message {index} of {channel} as {recv}, but it is sent as {send}");
            self.wrong(recvs.place(index).unwrap_or(Entity::Channel(channel)), message, sends.place(index));
        } else if sent > received {
            let message = format!("{channel} is sent {sent} messages, but {received} are received");
            self.wrong(sends.place(received).unwrap_or(Entity::Channel(channel)), message, None);
        } else if received > sent {
            let message = format!("{channel} is to deliver {received} messages, but {sent} are sent");
            self.wrong(recvs.place(sent).unwrap_or(Entity::Channel(channel)), message, None);
        }
        self.sends[channel] = sends;
        self.recvs[channel] = recvs;
    }

    fn group(&mut self, group: GroupId, members: &[DeviceId]) {
        let ends = std::mem::take(&mut self.reduces[group]);
        let absent = End::default();
        let Some((&first, rest)) = members.split_first() else { return };
        let reference = ends.get(&first).unwrap_or(&absent);
        for &member in rest {
            let end = ends.get(&member).unwrap_or(&absent);
            let differs = reference.items.iter().zip(&end.items).position(|(a, b)| a.1 != b.1);
            let (a, b) = (reference.items.len(), end.items.len());
            if let Some(index) = differs {
                let message = format!(
                    "reduction {index} of {group} is for {} on {member}, but for {} on {first}",
                    end.items[index].1, reference.items[index].1
                );
                self.wrong(end.place(index).unwrap_or(Entity::Group(group)), message, reference.place(index));
            } else if a != b {
                let (more, place) = if a > b { (reference, b) } else { (end, a) };
                let message = format!("{first} reduces over {group} {a} times, {member} {b} times");
                self.wrong(more.place(place).unwrap_or(Entity::Group(group)), message, None);
            }
        }
        self.reduces[group] = ends;
    }
}

/// Reports why queues stand still: every circle of waits once. `at` is how far each queue came.
pub(super) fn explain_stop(
    program: &Program,
    ends: &Ends,
    at: &IdVec<QueueId, Position>,
    report: &mut Report,
) {
    // Every queue waits for at most one other, so each walk ends in a circle, in a finished queue, or where an earlier
    // walk has been.
    let mut walk_of: IdVec<QueueId, usize> = program.queues.ids().map(|_| 0).collect();
    let mut circles = 0;
    let mut unfinished = None;
    // The member that a reduction still lacks is the same for all who wait there.
    let mut absent: BTreeMap<GroupId, Option<QueueId>> = BTreeMap::new();
    for start in program.queues.ids() {
        let walk = start.index() + 1;
        let mut path = Vec::new();
        let mut next = Some(start);
        while let Some(queue) = next {
            if walk_of[queue] != 0 {
                if walk_of[queue] == walk {
                    let first = path.iter().position(|&other| other == queue).unwrap_or(0);
                    circle(program, at, &path[first..], report);
                    circles += 1;
                }
                break;
            }
            walk_of[queue] = walk;
            path.push(queue);
            next = head(program, queue, at).and_then(|instruction| {
                unfinished.get_or_insert(queue);
                waits_for(program, ends, instruction, at, &mut absent)
            });
        }
    }
    if circles == 0
        && report.list.is_empty()
        && let Some(queue) = unfinished
    {
        report.add(Entity::Instruction(queue, at[queue]), Rule::Order, "never finishes");
    }
}

fn head<'p>(program: &'p Program, queue: QueueId, at: &IdVec<QueueId, Position>) -> Option<&'p Instruction> {
    program.queues[queue].instructions.get(at[queue] as usize)
}

/// The queue that must go on before a blocked instruction can finish.
fn waits_for(
    program: &Program,
    ends: &Ends,
    instruction: &Instruction,
    at: &IdVec<QueueId, Position>,
    absent: &mut BTreeMap<GroupId, Option<QueueId>>,
) -> Option<QueueId> {
    match instruction {
        Instruction::Wait { queue, .. } => Some(*queue),
        Instruction::Send { channel, .. } => ends.receiver[*channel],
        Instruction::Recv { channel, .. } => ends.sender[*channel],
        Instruction::Reduce { group, .. } => *absent.entry(*group).or_insert_with(|| {
            ends.members[*group].iter().copied().flatten().find(|&member| {
                let here = head(program, member, at);
                !matches!(here, Some(Instruction::Reduce { group: other, .. }) if other == group)
            })
        }),
        Instruction::Run { .. } | Instruction::Copy { .. } | Instruction::Fill { .. } => None,
    }
}

fn circle(program: &Program, at: &IdVec<QueueId, Position>, queues: &[QueueId], report: &mut Report) {
    // Begins with the least queue, so that the same circle reads the same wherever the walk entered it.
    let least = queues.iter().enumerate().min_by_key(|(_, queue)| **queue).map_or(0, |(index, _)| index);
    let ordered: Vec<QueueId> = queues.iter().cycle().skip(least).take(queues.len()).copied().collect();
    let describe = |queue: QueueId| {
        let row = &program.queues[queue];
        let what = match row.instructions.get(at[queue] as usize) {
            Some(Instruction::Send { channel, .. }) => format!("send {channel}"),
            Some(Instruction::Recv { channel, .. }) => format!("recv {channel}"),
            Some(Instruction::Reduce { group, .. }) => format!("reduce {group}"),
            Some(Instruction::Wait { queue, position }) => format!("wait {queue}>={position}"),
            Some(Instruction::Run { .. } | Instruction::Copy { .. } | Instruction::Fill { .. }) | None => {
                String::new()
            }
        };
        format!("{queue} of {} at {} ({what})", row.device, at[queue])
    };
    let chain: Vec<String> = ordered.iter().chain(ordered.first()).map(|&queue| describe(queue)).collect();
    let places: Vec<Entity> = ordered.iter().map(|&queue| Entity::Instruction(queue, at[queue])).collect();
    if let Some((&place, related)) = places.split_first() {
        let message = format!("queues wait in a circle: {}", chain.join(" waits for "));
        report.add_related(place, Rule::Order, message, related.to_vec());
    }
}
