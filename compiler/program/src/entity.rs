//! Places in a program: what a diagnostic or a line of text is about.

use crate::id::{
    BufferId, ChannelId, DeviceId, FunctionId, GroupId, LinkId, ParamId, ParameterId, QueueId, ScalarId,
    ValueId,
};
use crate::program::Position;
use std::fmt;

/// A place in a program. Every one has a line in the textual form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Entity {
    /// The program as a whole.
    Program,
    /// The sizes of a step.
    Batch,
    /// The seed and the number of steps.
    Training,
    /// The learning rate.
    LearningRate,
    /// The source of tokens.
    Data,
    /// A device.
    Device(DeviceId),
    /// A link.
    Link(LinkId),
    /// A parameter.
    Parameter(ParameterId),
    /// A copy of a parameter, by its position among the copies.
    Copy(ParameterId, u32),
    /// A buffer.
    Buffer(BufferId),
    /// A channel.
    Channel(ChannelId),
    /// A group.
    Group(GroupId),
    /// A feed, by its position.
    Feed(u32),
    /// A reading, by its position.
    Reading(u32),
    /// A function.
    Function(FunctionId),
    /// A region parameter of a function.
    Param(FunctionId, ParamId),
    /// A scalar parameter of a function.
    Scalar(FunctionId, ScalarId),
    /// A value of a function.
    Value(FunctionId, ValueId),
    /// A kernel of a function, by its position.
    Kernel(FunctionId, u32),
    /// A queue.
    Queue(QueueId),
    /// An instruction: how many instructions of its queue stand before it.
    Instruction(QueueId, Position),
}

impl fmt::Display for Entity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program => f.write_str("program"),
            Self::Batch => f.write_str("batch"),
            Self::Training => f.write_str("training"),
            Self::LearningRate => f.write_str("learning rate"),
            Self::Data => f.write_str("data"),
            Self::Device(id) => id.fmt(f),
            Self::Link(id) => id.fmt(f),
            Self::Parameter(id) => id.fmt(f),
            Self::Copy(id, copy) => write!(f, "copy {copy} of {id}"),
            Self::Buffer(id) => id.fmt(f),
            Self::Channel(id) => id.fmt(f),
            Self::Group(id) => id.fmt(f),
            Self::Feed(feed) => write!(f, "feed {feed}"),
            Self::Reading(reading) => write!(f, "reading {reading}"),
            Self::Function(id) => id.fmt(f),
            Self::Param(function, id) => write!(f, "{function} {id}"),
            Self::Scalar(function, id) => write!(f, "{function} {id}"),
            Self::Value(function, id) => write!(f, "{function} {id}"),
            Self::Kernel(function, kernel) => write!(f, "{function} kernel {kernel}"),
            Self::Queue(id) => id.fmt(f),
            Self::Instruction(queue, position) => write!(f, "{queue} instruction {position}"),
        }
    }
}
