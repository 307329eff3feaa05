//! Where everything stands in a text.

use crate::entity::Entity;
use crate::id::{BufferId, ChannelId, GroupId, LinkId, ParamId, ScalarId, ValueId};
use crate::id::{DeviceId, FunctionId, Id, IdVec, ParameterId, QueueId};

/// The line of every entity of a program in one text of it, counted from 1.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    pub(super) program: u32,
    pub(super) batch: u32,
    pub(super) training: u32,
    pub(super) learning_rate: u32,
    pub(super) data: u32,
    pub(super) devices: IdVec<DeviceId, u32>,
    pub(super) links: IdVec<LinkId, u32>,
    pub(super) parameters: IdVec<ParameterId, ParameterLines>,
    pub(super) buffers: IdVec<BufferId, u32>,
    pub(super) channels: IdVec<ChannelId, u32>,
    pub(super) groups: IdVec<GroupId, u32>,
    pub(super) feeds: Vec<u32>,
    pub(super) readings: Vec<u32>,
    pub(super) functions: IdVec<FunctionId, FunctionLines>,
    pub(super) queues: IdVec<QueueId, QueueLines>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ParameterLines {
    pub(super) header: u32,
    pub(super) copies: Vec<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FunctionLines {
    pub(super) header: u32,
    pub(super) params: IdVec<ParamId, u32>,
    pub(super) scalars: IdVec<ScalarId, u32>,
    pub(super) values: IdVec<ValueId, u32>,
    pub(super) kernels: Vec<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct QueueLines {
    pub(super) header: u32,
    pub(super) instructions: Vec<u32>,
}

fn row<I: Id>(table: &IdVec<I, u32>, id: I) -> Option<u32> {
    table.get(id).copied()
}

fn item(table: &[u32], position: u32) -> Option<u32> {
    table.get(position as usize).copied()
}

impl Lines {
    /// The line of an entity; none if the text does not have it.
    pub fn line(&self, entity: Entity) -> Option<u32> {
        let line = match entity {
            Entity::Program => self.program,
            Entity::Batch => self.batch,
            Entity::Training => self.training,
            Entity::LearningRate => self.learning_rate,
            Entity::Data => self.data,
            Entity::Device(id) => row(&self.devices, id)?,
            Entity::Link(id) => row(&self.links, id)?,
            Entity::Parameter(id) => self.parameters.get(id)?.header,
            Entity::Copy(id, copy) => item(&self.parameters.get(id)?.copies, copy)?,
            Entity::Buffer(id) => row(&self.buffers, id)?,
            Entity::Channel(id) => row(&self.channels, id)?,
            Entity::Group(id) => row(&self.groups, id)?,
            Entity::Feed(feed) => item(&self.feeds, feed)?,
            Entity::Reading(reading) => item(&self.readings, reading)?,
            Entity::Function(id) => self.functions.get(id)?.header,
            Entity::Param(function, id) => row(&self.functions.get(function)?.params, id)?,
            Entity::Scalar(function, id) => row(&self.functions.get(function)?.scalars, id)?,
            Entity::Value(function, id) => row(&self.functions.get(function)?.values, id)?,
            Entity::Kernel(function, kernel) => item(&self.functions.get(function)?.kernels, kernel)?,
            Entity::Queue(id) => self.queues.get(id)?.header,
            Entity::Instruction(queue, position) => item(&self.queues.get(queue)?.instructions, position)?,
        };
        (line > 0).then_some(line)
    }
}
