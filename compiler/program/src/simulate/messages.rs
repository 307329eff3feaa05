//! Which send meets which receive.

use crate::id::{ChannelId, Id, QueueId};
use crate::program::{Instruction, Position, Program};

/// A message: the n-th send of a channel and its n-th receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The channel.
    pub channel: ChannelId,
    /// How many messages of the channel come before it.
    pub number: u32,
    /// The send.
    pub send: (QueueId, Position),
    /// The receive.
    pub recv: (QueueId, Position),
}

/// All messages of a step, by channel and number.
pub fn messages(program: &Program) -> Vec<Message> {
    let mut sends = vec![Vec::new(); program.channels.len()];
    let mut recvs = vec![Vec::new(); program.channels.len()];
    for (queue, instructions) in program.queues.iter().map(|(id, queue)| (id, &queue.instructions)) {
        for (position, instruction) in (0..).zip(instructions) {
            let (side, channel) = match instruction {
                Instruction::Send { channel, .. } => (&mut sends, channel),
                Instruction::Recv { channel, .. } => (&mut recvs, channel),
                Instruction::Run { .. }
                | Instruction::Copy { .. }
                | Instruction::Fill { .. }
                | Instruction::Reduce { .. }
                | Instruction::Wait { .. } => continue,
            };
            if let Some(list) = side.get_mut(channel.index()) {
                list.push((queue, position));
            }
        }
    }
    let pairs = sends.into_iter().zip(recvs).enumerate();
    pairs
        .flat_map(|(channel, (sends, recvs))| {
            (0..).zip(sends.into_iter().zip(recvs)).map(move |(number, (send, recv))| Message {
                channel: ChannelId::new(channel),
                number,
                send,
                recv,
            })
        })
        .collect()
}
