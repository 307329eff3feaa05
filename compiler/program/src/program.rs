//! The program: one training step of a pipeline as one instruction list per queue of each device.
//!
//! Semantics, which verifier, simulator and engine share:
//! - A program is one step, run again and again. A device starts its next step when all of its queues have finished
//!   the present one, so instructions of two steps of one device never overlap.
//! - Queues run in order, each on its own: an instruction starts when the one before it in its queue has finished.
//!   Nothing else is ordered but by [`Instruction::Wait`], by messages and by reductions.
//! - Before a step the engine writes every [`Feed`]; after it, it reads every [`Reading`].
//! - There is no branch and no allocation: buffers have fixed places in the arena of their device and space.
//!
//! Buffers of category [`Category::Weights`] and [`Category::Optimizer`] are *state*: they hold their bytes from step
//! to step and are initialised once. All others are undefined at the start of a step (feeds are written then).
//!
//! State lies in the arena of its device, or in that of its host. Then weights are copied to buffers of category
//! [`Category::Loaded`] for the passes that read them, gradients are copied to the host when they are complete, and the update
//! runs there.

use crate::function::{Function, ScalarType};
use crate::id::{
    BufferId, ChannelId, DeviceId, FunctionId, GroupId, IdVec, LinkId, MicroBatch, ParameterId, QueueId,
    Slice, StageId,
};
use crate::tensor::{DType, TensorType};
use crate::units::{Bytes, BytesPerSecond, FlopsPerSecond, Nanos};
use std::fmt;

/// One training step for all devices.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// A name for people, usually that of the model.
    pub name: String,
    /// The version of the pipec that made it; empty when written by hand.
    pub compiler: String,
    /// SHA-256 of what it was made from, in hexadecimal; empty when written by hand.
    pub inputs: String,
    /// The sizes of a step.
    pub batch: Batch,
    /// The tokens of each slice of a sequence. Feeds hold them micro-batch by micro-batch, slice by slice, sequence by
    /// sequence.
    pub slices: IdVec<Slice, u32>,
    /// What a run of many steps needs beyond the program: learning rate, seed, data.
    pub training: Training,
    /// The devices.
    pub devices: IdVec<DeviceId, Device>,
    /// The links that messages and copies take.
    pub links: IdVec<LinkId, Link>,
    /// The parameters of the model.
    pub parameters: IdVec<ParameterId, Parameter>,
    /// The functions.
    pub functions: IdVec<FunctionId, Function>,
    /// The buffers.
    pub buffers: IdVec<BufferId, Buffer>,
    /// The channels.
    pub channels: IdVec<ChannelId, Channel>,
    /// The groups that reduce together.
    pub groups: IdVec<GroupId, Group>,
    /// What the engine writes before a step.
    pub feeds: Vec<Feed>,
    /// What the engine reads after a step.
    pub readings: Vec<Reading>,
    /// The queues with their instructions, grouped by device, devices ascending.
    pub queues: IdVec<QueueId, Queue>,
}

/// The sizes of a step. Global batch = `sequences * micro_batches`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Micro-batches n of a step.
    pub micro_batches: u32,
    /// Sequences in a micro-batch.
    pub sequences: u32,
    /// Tokens of a sequence.
    pub tokens: u32,
    /// Slices s of a sequence; 1 for a whole sequence.
    pub slices: u32,
    /// Stages, over all copies of the pipeline.
    pub stages: u32,
    /// Stages of the forward cut, where backward has one of its own: the first so many run F alone, the others R and then their
    /// backward passes. 0 where stages run all passes.
    pub forward: u32,
    /// Copies of the pipeline, which share its stages and the micro-batches evenly: of G stages a copy, those of copy k
    /// are `k G .. (k + 1) G`, and micro-batch m runs on copy `m mod copies`.
    pub copies: u32,
}

impl Batch {
    /// Stages of a copy; at least 1.
    pub fn depth(self) -> u32 {
        (self.stages / self.copies.max(1)).max(1)
    }

    /// Whether a stage is one of a backward cut: its R takes what the forward cut has passed, and keeps what F keeps elsewhere.
    pub fn is_backward(self, stage: StageId) -> bool {
        self.forward > 0 && stage.0 >= self.forward
    }

    /// Whether a stage has a pass.
    pub fn runs(self, pass: Pass, stage: StageId) -> bool {
        match pass {
            Pass::F => !self.is_backward(stage),
            Pass::R | Pass::B | Pass::W | Pass::BW => self.forward == 0 || self.is_backward(stage),
        }
    }

    /// Whether the copy of a stage is that of a micro-batch.
    pub fn meets(self, stage: StageId, micro_batch: MicroBatch) -> bool {
        micro_batch.0 % self.copies.max(1) == stage.0 / self.depth()
    }

    /// The micro-batches that pass a stage.
    pub fn micro_batches_of(self, stage: StageId) -> u32 {
        let copies = self.copies.max(1);
        let first = stage.0 / self.depth();
        self.micro_batches.saturating_sub(first).div_ceil(copies)
    }
}

/// What a run needs beyond one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Training {
    /// Steps of a whole run; none where the file does not say.
    pub steps: Option<u64>,
    /// The seed of initial weights, shuffling and dropout.
    pub seed: u64,
    /// The learning rate over the steps.
    pub learning_rate: LearningRate,
    /// Where the tokens come from; none for a program that only verifies and simulates.
    pub data: Option<Data>,
}

/// The learning rate of step t, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LearningRate {
    /// Always the same.
    Constant {
        /// The rate.
        rate: f64,
    },
    /// `peak * t / warmup` while `t <= warmup`, then half a cosine from `peak` at `warmup` to `floor` at `steps`, then
    /// `floor`.
    Cosine {
        /// The highest rate.
        peak: f64,
        /// Steps of linear warm-up; may be 0.
        warmup: u64,
        /// The step at which `floor` is reached.
        steps: u64,
        /// The lowest rate.
        floor: f64,
    },
}

impl LearningRate {
    /// The rate of step `step`, counted from 1.
    pub fn at(self, step: u64) -> f64 {
        match self {
            Self::Constant { rate } => rate,
            Self::Cosine { peak, warmup, steps, floor } => {
                if warmup > 0 && step <= warmup {
                    peak * step as f64 / warmup as f64
                } else if step >= steps {
                    floor
                } else {
                    let share = (step - warmup) as f64 / (steps - warmup) as f64;
                    floor + 0.5 * (peak - floor) * (1.0 + (std::f64::consts::PI * share).cos())
                }
            }
        }
    }
}

/// Where the tokens come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// Text files, in the order of their sorted paths, joined and cut into sequences.
    Text {
        /// Files, folders or glob patterns, relative to where the run is started.
        paths: Vec<String>,
        /// How text becomes tokens.
        tokenizer: Tokenizer,
        /// Whether sequences are drawn in a seeded order, a new one each epoch.
        shuffle: bool,
    },
    /// A file of token ids, little-endian, read by position and never as a whole.
    Tokens {
        /// The file.
        path: String,
        /// The size of one id.
        width: TokenWidth,
        /// Whether sequences are drawn in a seeded order, a new one each epoch.
        shuffle: bool,
    },
    /// Tokens by formula: the pseudo-random walk over the vocabulary that the reference runs use (`docs/reference.md`).
    Formula {
        /// The number of token ids.
        vocab: u32,
    },
}

/// How text becomes tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tokenizer {
    /// One token per byte, 256 ids.
    Bytes,
    /// A `tokenizer.json`.
    File(String),
}

/// The size of a stored token id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenWidth {
    /// Two bytes.
    U16,
    /// Four bytes.
    U32,
}

/// A device: one thing that computes, with an arena of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// A name for people: `gpu`, `cpu`.
    pub name: String,
    /// The capacity of its device arena.
    pub memory: Bytes,
    /// The capacity of its share of host memory.
    pub host_memory: Bytes,
    /// The rate of memory traffic.
    pub bandwidth: BytesPerSecond,
    /// The rate of memory traffic of its share of the host.
    pub host_bandwidth: BytesPerSecond,
    /// The links that a copy from its host arena to its device arena takes, in order; empty when the cluster does not say.
    pub upload: Vec<LinkId>,
    /// The links that a copy from its device arena to its host arena takes, in order; empty when the cluster does not say.
    pub download: Vec<LinkId>,
    /// The peak rate of matrix products by element type, ascending by type.
    pub rates: Vec<(DType, FlopsPerSecond)>,
    /// The threads of a CPU device; 1 elsewhere.
    pub threads: u32,
    /// The threads of its share of the host.
    pub host_threads: u32,
}

/// A link: one direction of a wire, which carries one message at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// A name for people: `d0->host0`.
    pub name: String,
    /// The rate.
    pub bandwidth: BytesPerSecond,
    /// The time before the first byte arrives.
    pub latency: Nanos,
}

/// A parameter of the model: one logical tensor, whatever the number of its copies.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Its path in the model, `layer.3.wq`. Unique in its program.
    pub name: String,
    /// Its type as stored in weights.
    pub ty: TensorType,
    /// Its initial value.
    pub init: Init,
    /// Where it lives; at least one. Copies hold the same bytes after every step.
    pub copies: Vec<Placed>,
}

/// A copy of a parameter on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its bytes.
    pub weight: View,
    /// Its gradient, to which passes add.
    pub gradient: View,
    /// Where the update finds its gradient, on the host; none where that is [`Placed::gradient`].
    pub landed: Option<View>,
    /// First and second moment; none where another copy is updated and this one takes its weight by a broadcast.
    pub moments: Option<[View; 2]>,
    /// The weight in f32, where [`Placed::weight`] is only its rounding to a shorter type.
    pub master: Option<View>,
    /// The stages that use it here; of a forward cut, those that load it from here. The gradient is complete when each of them that
    /// has backward passes has added one contribution for every micro-batch and slice.
    pub stages: Vec<StageId>,
}

/// An initial value; element i (flat) of parameter number t (the position in the table) draws from counters alone, so
/// that it does not depend on the cut.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All the same.
    Constant {
        /// The value.
        value: f32,
    },
    /// `f32(u * bound)` with `u = (at(at(seed, t), i) >> 40) * 2^-23 - 1` in [-1, 1), product in f64; `at` is
    /// SplitMix64 as a counter.
    Uniform {
        /// The bound.
        bound: f64,
    },
    /// `f32(std * sqrt(-2 ln u) cos(2 pi w))` with u in (0, 1] and w in [0, 1) from outputs 2 i and 2 i + 1 of the same
    /// counter (upper 53 bits), in f64.
    Normal {
        /// The standard deviation.
        std: f64,
    },
}

/// Some bytes of a buffer, printed `b12[0..4096]`, or `b12` when it is all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct View {
    /// The buffer.
    pub buffer: BufferId,
    /// Where it starts.
    pub offset: Bytes,
    /// How long it is.
    pub bytes: Bytes,
}

/// A named range of an arena. Buffers may share bytes where the live ranges of their contents do not meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// A name for people: `weights_g0`, `saved_g0.1`.
    pub name: String,
    /// The device.
    pub device: DeviceId,
    /// The arena.
    pub space: Space,
    /// Where it starts in the arena; a multiple of 64.
    pub offset: Bytes,
    /// How long it is.
    pub bytes: Bytes,
    /// What it is for.
    pub category: Category,
}

/// An arena of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Space {
    /// The memory it computes in.
    Device,
    /// Its share of host memory.
    Host,
}

/// What a buffer is for; memory is reported by these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Category {
    /// Weights; state.
    Weights,
    /// Weights that have come from the host, for as long as passes read them.
    Loaded,
    /// Gradients of weights.
    Gradients,
    /// Moments of the optimizer; state.
    Optimizer,
    /// What a forward pass keeps for its backward pass.
    Activations,
    /// Messages before they are sent and after they were received.
    Communication,
    /// Scratch of one call.
    Workspace,
    /// Tokens, losses, norms: what the engine writes and reads.
    Data,
}

impl Category {
    /// All categories, in the order of reports.
    pub const ALL: [Self; 8] = [
        Self::Weights,
        Self::Loaded,
        Self::Gradients,
        Self::Optimizer,
        Self::Activations,
        Self::Communication,
        Self::Workspace,
        Self::Data,
    ];

    /// The spelling in text and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::Loaded => "loaded",
            Self::Gradients => "gradients",
            Self::Optimizer => "optimizer",
            Self::Activations => "activations",
            Self::Communication => "communication",
            Self::Workspace => "workspace",
            Self::Data => "data",
        }
    }

    /// Whether its buffers hold their bytes from step to step.
    pub fn is_state(self) -> bool {
        match self {
            Self::Weights | Self::Optimizer => true,
            Self::Loaded
            | Self::Gradients
            | Self::Activations
            | Self::Communication
            | Self::Workspace
            | Self::Data => false,
        }
    }
}

/// An ordered, typed stream of messages from one device to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    /// The sender.
    pub from: DeviceId,
    /// The receiver.
    pub to: DeviceId,
    /// The tensors of every message, packed one after the other at multiples of 64 bytes.
    pub message: Vec<TensorType>,
    /// Messages that the channel itself can hold: 0 is a rendezvous, where a send finishes with its receive.
    pub capacity: u32,
    /// The links that a message takes, in order; empty when the cluster does not say.
    pub route: Vec<LinkId>,
}

impl Channel {
    /// The size of a message: the tensors of [`Channel::message`], each starting at a multiple of 64 bytes.
    pub fn bytes(&self) -> Bytes {
        self.message.iter().fold(Bytes::ZERO, |end, ty| end.align_up(64) + ty.bytes())
    }
}

/// Devices that share a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// What every member holds after they have met.
    pub result: Shared,
    /// The members, at least two, each once.
    pub members: Vec<DeviceId>,
    /// The type of the tensor.
    pub ty: TensorType,
    /// The links of a ring through the members; empty when the cluster does not say.
    pub route: Vec<LinkId>,
}

/// What the members of a group hold after they have met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Shared {
    /// The sum of the tensors of all, added in the order of the members.
    Sum,
    /// The tensor of the first member.
    Broadcast,
}

impl Shared {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Sum, Self::Broadcast];

    /// The spelling in `.pprog` text.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Broadcast => "broadcast",
        }
    }
}

/// What the engine writes before a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feed {
    /// What it is.
    pub kind: FeedKind,
    /// Where it goes: `u32 [micro_batches, sequences, tokens]`.
    pub view: View,
}

/// What the engine writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FeedKind {
    /// The tokens of the step.
    Tokens,
    /// The token after each of them.
    Targets,
}

impl FeedKind {
    /// All kinds.
    pub const ALL: [Self; 2] = [Self::Tokens, Self::Targets];

    /// The spelling in text.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Targets => "targets",
        }
    }
}

/// What the engine reads after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// What it is.
    pub kind: ReadingKind,
    /// Where it stands.
    pub view: View,
}

/// What the engine reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReadingKind {
    /// `f64 [micro_batches, slices]`: sums of token losses.
    Loss,
    /// `f64 [1]`: the global norm of the gradients before clipping.
    GradientNorm,
}

impl ReadingKind {
    /// All kinds.
    pub const ALL: [Self; 2] = [Self::Loss, Self::GradientNorm];

    /// The spelling in text.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::GradientNorm => "gradient_norm",
        }
    }
}

/// An in-order queue of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Queue {
    /// Its device.
    pub device: DeviceId,
    /// What kind of instructions it runs.
    pub kind: QueueKind,
    /// The instructions of one step.
    pub instructions: Vec<Instruction>,
}

/// What a queue is for. A device has at most one compute queue, and any number of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QueueKind {
    /// `run`, `fill` and copies inside the device arena.
    Compute,
    /// `send`.
    Send,
    /// `recv`.
    Receive,
    /// `reduce`.
    Collective,
    /// `copy` from the host arena to the device arena.
    HostToDevice,
    /// `copy` from the device arena to the host arena.
    DeviceToHost,
    /// `run` and `fill` on the host arena.
    HostCompute,
}

impl QueueKind {
    /// All kinds.
    pub const ALL: [Self; 7] = [
        Self::Compute,
        Self::Send,
        Self::Receive,
        Self::Collective,
        Self::HostToDevice,
        Self::DeviceToHost,
        Self::HostCompute,
    ];

    /// The spelling in text and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Send => "send",
            Self::Receive => "receive",
            Self::Collective => "collective",
            Self::HostToDevice => "host_to_device",
            Self::DeviceToHost => "device_to_host",
            Self::HostCompute => "host_compute",
        }
    }
}

/// An instruction. Every kind of queue also takes waits.
#[derive(Clone, Debug, PartialEq)]
pub enum Instruction {
    /// Calls a function.
    Run {
        /// The function.
        function: FunctionId,
        /// One view per region parameter.
        views: Box<[View]>,
        /// One argument per scalar parameter.
        scalars: Box<[Argument]>,
        /// What the call does for the step.
        work: Work,
    },
    /// Sends a message: finishes when the channel has taken it.
    Send {
        /// The channel.
        channel: ChannelId,
        /// The message.
        view: View,
        /// The pass and unit that made it.
        work: Work,
    },
    /// Receives the next message of a channel: finishes when the message stands in the view.
    Recv {
        /// The channel.
        channel: ChannelId,
        /// Where the message goes.
        view: View,
        /// The pass and unit that made it.
        work: Work,
    },
    /// Copies bytes between two views of the same length of one device, which share no byte.
    Copy {
        /// From where.
        from: View,
        /// To where.
        to: View,
    },
    /// Sets every byte to zero.
    Fill {
        /// Where.
        view: View,
    },
    /// Sums a tensor over a group, in place. All members meet.
    Reduce {
        /// The group.
        group: GroupId,
        /// The tensor.
        view: View,
        /// What is summed.
        work: Work,
    },
    /// Waits until the first `position` instructions of another queue of the same device have finished.
    Wait {
        /// The other queue.
        queue: QueueId,
        /// How many of its instructions.
        position: Position,
    },
}

// A program has many instructions: what is rare is boxed.
const _: () = assert!(size_of::<Instruction>() <= 56);

/// A number of instructions of a queue, counted from its start in a step.
pub type Position = u32;

/// The argument of a scalar parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument {
    /// A whole number that stands in the program.
    Integer(u64),
    /// A real number that stands in the program.
    Real(f64),
    /// A number that the engine computes for each step.
    Step(StepInput),
}

/// What the engine computes for each step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StepInput {
    /// The learning rate, real.
    LearningRate,
    /// The number of the step, counted from 1, an integer.
    Step,
    /// One over the number of counted tokens of the global batch, real.
    LossScale,
    /// `at(at(seed, step), micro_batch)` of the call's unit by SplitMix64, an integer: the seed of dropout. In a pair the
    /// unit is that of the half which the scalar belongs to.
    Seed,
}

impl StepInput {
    /// All step inputs.
    pub const ALL: [Self; 4] = [Self::LearningRate, Self::Step, Self::LossScale, Self::Seed];

    /// The spelling in text, after `step.`.
    pub fn name(self) -> &'static str {
        match self {
            Self::LearningRate => "learning_rate",
            Self::Step => "number",
            Self::LossScale => "loss_scale",
            Self::Seed => "seed",
        }
    }

    /// The type of the scalar that takes it.
    pub fn ty(self) -> ScalarType {
        match self {
            Self::LearningRate | Self::LossScale => ScalarType::Real,
            Self::Step | Self::Seed => ScalarType::Integer,
        }
    }
}

/// What an instruction does for the step.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Work {
    /// A pass of a unit: `F g2.m3.i0`.
    Pass(Pass, Unit),
    /// A forward and a backward pass in one call: `F g2.m3.i0 + BW g5.m1.i0`. In a box, so that the many instructions that
    /// are no pair do not grow by a second unit.
    Pair(Box<Pair>),
    /// Work on all parameters of a stage, once a step: `update g1`.
    Stage(StepWork, StageId),
    /// Work for the whole model, once a step: `clip`.
    Step(StepWork),
}

impl Work {
    /// The passes that it is: none, one, or the forward and then the backward pass of a pair.
    pub fn passes(&self) -> impl Iterator<Item = (Pass, Unit)> + Clone + use<> {
        let (first, second) = match self {
            Self::Pass(pass, unit) => (Some((*pass, *unit)), None),
            Self::Pair(pair) => (Some((Pass::F, pair.forward)), Some((pair.pass, pair.backward))),
            Self::Stage(..) | Self::Step(_) => (None, None),
        };
        first.into_iter().chain(second)
    }
}

/// A forward and a backward pass of two units in one call. What both need is there before it, and what both make is there
/// after it; in between their kernels may run in any order that each of them allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pair {
    /// The unit of F.
    pub forward: Unit,
    /// The unit of the backward pass.
    pub backward: Unit,
    /// B or BW.
    pub pass: Pass,
}

/// The pass of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pass {
    /// Forward.
    F,
    /// Backward with respect to inputs.
    B,
    /// Backward with respect to weights.
    W,
    /// Both backward passes in one.
    BW,
    /// Recomputation.
    R,
}

impl Pass {
    /// All passes.
    pub const ALL: [Self; 5] = [Self::F, Self::B, Self::W, Self::BW, Self::R];

    /// The spelling in text, names and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::F => "F",
            Self::B => "B",
            Self::W => "W",
            Self::BW => "BW",
            Self::R => "R",
        }
    }
}

/// Work done once a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StepWork {
    /// Adds up the gradients of tied copies.
    Tie,
    /// Squares of gradients.
    Norm,
    /// The factor of clipping.
    Clip,
    /// The optimizer.
    Update,
    /// Weights of a stage on their way from a host to another device.
    Load,
}

impl StepWork {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Tie, Self::Norm, Self::Clip, Self::Update, Self::Load];

    /// The spelling in text and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tie => "tie",
            Self::Norm => "norm",
            Self::Clip => "clip",
            Self::Update => "update",
            Self::Load => "load",
        }
    }
}

/// A unit of work: printed `g2.m3.i0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unit {
    /// The stage.
    pub stage: StageId,
    /// The micro-batch.
    pub micro_batch: MicroBatch,
    /// The slice.
    pub slice: Slice,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.stage, self.micro_batch, self.slice)
    }
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "F {} + {} {}", self.forward, self.pass.name(), self.backward)
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pass(pass, unit) => write!(f, "{} {unit}", pass.name()),
            Self::Pair(pair) => pair.fmt(f),
            Self::Stage(work, stage) => write!(f, "{} {stage}", work.name()),
            Self::Step(work) => f.write_str(work.name()),
        }
    }
}
