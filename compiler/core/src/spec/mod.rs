//! What was meant: model, cluster, training run and pipeline with every name, unit, shape and default resolved.
//!
//! A [`Spec`] holds ids and numbers only. It is made from one or more syntax trees, and what it holds is
//! consistent: shapes agree, batch arithmetic comes out, options do something. Places in the text are kept in a side
//! table ([`Origins`]), so that later stages can still point at them and the spec itself stays comparable.
//!
//! It deliberately holds no kernels, no gradients, no cut and no order.

mod cluster;
mod constant;
mod given;
mod model;
mod number;
mod pipeline;
mod print;
mod report;
mod resolve;
mod schedule;
mod settings;
mod sources;
mod train;

pub use given::{Given, GivenForm, schedules};
pub use model::ops;
pub use print::print;
pub use resolve::{Choice, Resolution, check, resolve};
pub use schedule::{InFlight, MemoryLimit, Placement, Schedule, Updates, WeightGrads};
pub use sources::{LIBRARY, LibraryFile, Sources, used_path, uses};

use pipe_grammar::ast::Span;
use pipe_grammar::diagnostic::SourceId;
use pipec_program::id::{Id, IdVec};
use pipec_program::{
    Bytes, BytesPerSecond, DType, Data, FlopsPerSecond, Init, LearningRate, Mask, Nanos, Pairing,
    ParameterId, RopeScaling,
};
use std::fmt;

/// Everything a `.pipe` file says, resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// The model.
    pub model: Model,
    /// The cluster.
    pub cluster: Cluster,
    /// The training run.
    pub train: Train,
    /// How the one runs on the other.
    pub pipeline: Pipeline,
    /// Rules of fusion that are left out, by name: for comparison.
    pub without: std::collections::BTreeSet<String>,
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident = $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);
        impl Id for $name {
            fn new(index: usize) -> Self {
                Self(u32::try_from(index).expect("a table has fewer than 2^32 rows"))
            }
            fn index(self) -> usize {
                self.0 as usize
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )*};
}

ids! {
    /// A distinct layer of the model.
    LayerId = "layer";
    /// A value inside a layer.
    ValueId = "x";
    /// A parameter slot of a layer: which parameter fills it differs from piece to piece.
    SlotId = "w";
}

/// A model: a chain of pieces. Each piece is one instance of a distinct layer; the first holds what stands before the
/// first `repeat` (the embedding), the last what stands after the last (the head and the loss).
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Its name.
    pub name: String,
    /// Every parameter once, in the order in which the model names them first (this order numbers the initial values).
    pub parameters: IdVec<ParameterId, Parameter>,
    /// The distinct layers. Everything costly is done once for each.
    pub layers: IdVec<LayerId, Layer>,
    /// The chain, from the input to the loss: at least one piece.
    pub pieces: Vec<Piece>,
    /// The number of token ids: the largest embedding table; tokens and targets must be below it.
    pub vocab: u64,
}

impl Model {
    /// The number of weights, each parameter counted once.
    pub fn weights(&self) -> u64 {
        self.parameters.values().map(|parameter| parameter.shape.iter().product::<u64>()).sum()
    }
}

/// A parameter: one tensor with one optimizer state, however often the model names it.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Its path: `embed`, `layer.3.wq`.
    pub name: String,
    /// Its extents; a matrix of a linear layer is `[out, in]`.
    pub shape: Vec<u64>,
    /// Its initial value.
    pub init: Init,
}

/// An instance of a layer in the chain.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// Its name: `embedding`, `layer.3`, `head`.
    pub name: String,
    /// What it computes.
    pub layer: LayerId,
    /// The parameter in each slot of the layer.
    pub parameters: IdVec<SlotId, ParameterId>,
}

impl Piece {
    /// Whether it is one of the layers: a repetition of a `repeat`.
    pub fn is_repeated(&self) -> bool {
        // Names of the language have no dot in them; only the number of a repetition brings one.
        self.name.contains('.')
    }
}

/// A distinct layer: operations on the values of every token, in order; each value is defined once.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Its name: `embedding`, `layer`, `head`.
    pub name: String,
    /// Its parameters.
    pub slots: IdVec<SlotId, Slot>,
    /// Its values.
    pub values: IdVec<ValueId, Value>,
    /// What comes in from the piece before it, in the order of that piece's outputs; empty for the first piece.
    pub inputs: Vec<ValueId>,
    /// The operations, each after those it reads.
    pub operations: Vec<Operation>,
    /// What goes out to the piece after it; empty for the last piece, which ends in a cross entropy.
    pub outputs: Vec<ValueId>,
}

/// A parameter slot.
#[derive(Clone, Debug, PartialEq)]
pub struct Slot {
    /// Its name inside the layer: `wq`.
    pub name: String,
    /// The extents of what fills it.
    pub shape: Vec<u64>,
}

/// A value: for every token a vector of `heads * width` numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Its name in the text, for messages.
    pub name: String,
    /// The number of vectors of `width` per token: 1, or the heads that `heads(x, n)` made.
    pub heads: u64,
    /// Numbers in a vector. Norms, softmax and rope work on vectors.
    pub width: u64,
}

/// An operation of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    /// What to compute.
    pub op: Op,
    /// Its result; none for the cross entropy.
    pub output: Option<ValueId>,
}

/// The operations of the language.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Rows of a table `[vocab, width]` by the tokens of the step.
    Embedding {
        /// The table.
        table: SlotId,
    },
    /// `x` plus rows `first + position` of a table `[positions, width]`.
    Positions {
        /// What they are added to.
        x: ValueId,
        /// The table.
        table: SlotId,
        /// The row of position 0.
        first: u64,
    },
    /// `x W^T + bias` with W `[out, in]`.
    Linear {
        /// The operand; its heads count as one vector.
        x: ValueId,
        /// W.
        weight: SlotId,
        /// The bias, `[out]`.
        bias: Option<SlotId>,
    },
    /// Root-mean-square norm of each vector, times a gain `[width]`.
    RmsNorm {
        /// The operand.
        x: ValueId,
        /// The gain.
        gain: SlotId,
        /// Added to the mean square.
        eps: f64,
    },
    /// Norm of each vector by mean and variance, times a gain, plus a bias, both `[width]`.
    LayerNorm {
        /// The operand.
        x: ValueId,
        /// The gain.
        gain: SlotId,
        /// The bias.
        bias: SlotId,
        /// Added to the variance.
        eps: f64,
    },
    /// Rotary positions on each vector.
    Rope {
        /// The operand, split into heads.
        x: ValueId,
        /// Components that rotate.
        rotary: u64,
        /// The base of the frequencies.
        base: f64,
        /// Which components form a pair.
        pairing: Pairing,
        /// A change of the frequencies for long contexts.
        scaling: Option<RopeScaling>,
    },
    /// Attention; the heads of `k` and `v` divide those of `q`.
    Attention {
        /// Queries, split into heads.
        q: ValueId,
        /// Keys, split into heads.
        k: ValueId,
        /// Values, split into heads.
        v: ValueId,
        /// Which keys a query sees.
        mask: Mask,
        /// The factor of the scores.
        scale: f64,
    },
    /// A function of each number.
    Unary {
        /// The function.
        function: Unary,
        /// The operand.
        x: ValueId,
    },
    /// Sum of two values of one type.
    Add {
        /// The left operand.
        a: ValueId,
        /// The right operand.
        b: ValueId,
    },
    /// Product, number by number, of two values of one type.
    Mul {
        /// The left operand.
        a: ValueId,
        /// The right operand.
        b: ValueId,
    },
    /// `factor * x` (Gemma scales its embeddings).
    Scale {
        /// The operand.
        x: ValueId,
        /// The factor.
        factor: f64,
    },
    /// Softmax of each vector.
    Softmax {
        /// The operand.
        x: ValueId,
    },
    /// Sets each number to zero with probability `p` and divides the others by `1 - p`.
    Dropout {
        /// The operand.
        x: ValueId,
        /// The probability, in (0, 1).
        p: f64,
    },
    /// The vectors of `x` split into `heads` (or joined into one): the same numbers, so it costs nothing.
    Reshape {
        /// The operand; `heads * width` stays the same.
        x: ValueId,
    },
    /// The mean cross entropy of `logits` against the next tokens, over the counted tokens of the global batch.
    CrossEntropy {
        /// One vector of `vocab` numbers per token.
        logits: ValueId,
        /// The target that counts for nothing.
        ignore: Option<u32>,
    },
}

/// Functions of one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unary {
    /// `x / (1 + e^-x)`
    Silu,
    /// `x (1 + erf(x / sqrt 2)) / 2`
    Gelu,
    /// `x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`
    GeluTanh,
    /// `max(x, 0)`
    Relu,
}

/// A cluster: nodes of devices with a host each, and the wires between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Its name.
    pub name: String,
    /// The nodes, in the order in which devices are numbered.
    pub nodes: Vec<Node>,
    /// What connects any two nodes.
    pub node_wire: Option<Wire>,
}

impl Cluster {
    /// The number of devices.
    pub fn devices(&self) -> u64 {
        self.nodes.iter().map(|node| u64::from(node.devices)).sum()
    }
}

/// A node: equal devices and a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// How many devices.
    pub devices: u32,
    /// What each is.
    pub device: DeviceKind,
    /// Host memory of the node; its devices share it in equal parts.
    pub host_memory: Bytes,
    /// Processor cores of the host; its devices share them in equal parts.
    pub host_cores: u32,
    /// The rate of host memory, which the devices share likewise.
    pub host_bandwidth: BytesPerSecond,
    /// What connects a device with the host.
    pub host_wire: Option<Wire>,
    /// What connects any two devices of the node directly; without it they talk through the host.
    pub device_wire: Option<Wire>,
}

/// A kind of device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceKind {
    /// Its name in the text: `gpu`, `cpu`.
    pub name: String,
    /// Its memory.
    pub memory: Bytes,
    /// The rate of its memory.
    pub bandwidth: BytesPerSecond,
    /// Peak rates of matrix products by element type, ascending by type.
    pub rates: Vec<(DType, FlopsPerSecond)>,
    /// Threads of a CPU device; 1 elsewhere.
    pub threads: u32,
}

/// A wire: both directions at once, each at this rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wire {
    /// The rate of one direction.
    pub bandwidth: BytesPerSecond,
    /// The time before the first byte arrives.
    pub latency: Nanos,
}

/// The training run.
#[derive(Clone, Debug, PartialEq)]
pub struct Train {
    /// Tokens of a sequence.
    pub seq: u64,
    /// Sequences of a step.
    pub global_batch: u64,
    /// Sequences of a micro-batch.
    pub micro_batch: u64,
    /// The element type of weights, activations and gradients.
    pub precision: DType,
    /// In which type gradients of weights are added up.
    pub gradients: Sums,
    /// The largest global norm of gradients; larger ones are scaled down to it.
    pub clip_norm: Option<f64>,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// Where its state is.
    pub optimizer_state: OptimizerState,
    /// The learning rate over the steps.
    pub learning_rate: LearningRate,
    /// Steps of a whole run.
    pub steps: Option<u64>,
    /// The seed of initial weights, shuffling and dropout.
    pub seed: u64,
    /// Where the tokens come from.
    pub data: Option<Data>,
}

/// In which type something is added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sums {
    /// f32, or f64 where the run is.
    #[default]
    Wide,
    /// The precision of the run.
    Own,
}

/// The optimizer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimizer {
    /// Adam with decoupled weight decay.
    AdamW {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the root of the second moment.
        eps: f64,
        /// Decay of the weights per unit of learning rate.
        weight_decay: f64,
    },
}

/// Where the optimizer state of a parameter with several copies is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptimizerState {
    /// With every copy, which all take the same step.
    Copied,
    /// With one copy, which takes the step and hands its weight to the others: the copies share the parameters of a stage
    /// (Rajbhandari et al. 2020, ZeRO stage 1).
    Sharded,
}

/// How a model runs on a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Pipeline {
    /// Stages of the cut: devices times chunks per device.
    pub stages: u32,
    /// Devices of one replica of the pipeline.
    pub devices: u32,
    /// Replicas, which share the micro-batches evenly; each on its own devices, in the order of the cluster.
    pub replicas: u32,
    /// Micro-batches of a step, over all replicas.
    pub micro_batches: u32,
    /// How the pieces are cut into stages.
    pub cut: Cut,
    /// The order of passes.
    pub schedule: Schedule,
    /// The file of the order, where the schedule is from one.
    pub given: Option<Given>,
    /// How slices are cut, in hundredths: 0 for equal lengths, 100 for equal work, and between.
    pub balance: u16,
    /// What the backward pass computes again.
    pub recompute: Recompute,
    /// What waits in the memory of the host for the backward pass.
    pub offload: Offload,
    /// Where weights and optimizer state live.
    pub state: State,
}

/// Where weights and optimizer state live between steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// On the device that runs their stage.
    #[default]
    Device,
    /// On its host, which updates them; all weights of a device are loaded for a step (Ren et al. 2021, ZeRO-Offload).
    HostOptimizer,
    /// On its host, which updates them; a device holds the weights of the stage that it runs and of the next.
    Host,
}

impl State {
    /// Whether the host has the state and updates it.
    pub fn is_on_host(self) -> bool {
        match self {
            Self::Device => false,
            Self::HostOptimizer | Self::Host => true,
        }
    }
}

/// What of the values that are kept for the backward pass waits in the memory of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offload {
    /// Nothing.
    #[default]
    None,
    /// What the memory of a device does not hold and its link to the host carries.
    Auto,
    /// This part of the bytes of every layer at least, in thousandths, as far as there are values to be moved.
    Part(u16),
}

/// What the backward pass computes again instead of keeping it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recompute {
    /// The same of every piece.
    Every(Level),
    /// Of each layer its own; of what stands before and after the layers as little as of [`Level::None`].
    Layers(Vec<Level>),
    /// As little as the memory of every device allows.
    Auto,
}

impl Default for Recompute {
    fn default() -> Self {
        Self::Every(Level::default())
    }
}

/// How much of a piece is computed again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// What makes the step fastest: nothing but what costs no time.
    #[default]
    None,
    /// All that spares memory without computing a matrix product or an attention again (Korthikanti et al. 2022, where
    /// attention stores no scores).
    Selective,
    /// All that spares memory: of a layer its input is kept.
    Full,
}

impl Level {
    /// All levels, from that which keeps most.
    pub const ALL: [Self; 3] = [Self::None, Self::Selective, Self::Full];

    /// The spelling in the language.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Selective => "selective",
            Self::Full => "full",
        }
    }
}

/// How the pieces are cut into stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cut {
    /// By cost: the slowest device as fast as possible.
    Balanced,
    /// So many layers (repeat instances) on each stage; what stands before the first layer goes to the first stage and
    /// what stands after the last layer to the last.
    Layers(Vec<u32>),
}

/// Where things stand in the text, for later stages to point at.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Origins {
    /// The operations of each layer, in their order.
    pub operations: IdVec<LayerId, Vec<Origin>>,
    /// The `stages` entry of the pipeline, or the pipeline.
    pub stages: Origin,
    /// The `schedule` entry of the pipeline, or the pipeline.
    pub schedule: Origin,
    /// The cut of the pipeline, or the pipeline.
    pub cut: Origin,
    /// The cluster of the pipeline.
    pub cluster: Origin,
    /// The micro-batch entry of the training run, or the run.
    pub micro_batch: Origin,
    /// The precision of the training run, or the run.
    pub precision: Origin,
}

/// A place in a source text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The text.
    pub source: SourceId,
    /// The bytes.
    pub span: Span,
}

impl Op {
    /// The values it reads, in order.
    pub fn operands(&self) -> Vec<ValueId> {
        let mut operands = Vec::new();
        self.clone().rename(
            &mut |value| {
                operands.push(value);
                value
            },
            &mut |slot| slot,
        );
        operands
    }

    /// Replaces every value it reads and every slot it uses, in order.
    pub(crate) fn rename(
        &mut self,
        value: &mut dyn FnMut(ValueId) -> ValueId,
        slot: &mut dyn FnMut(SlotId) -> SlotId,
    ) {
        match self {
            Op::Embedding { table } => *table = slot(*table),
            Op::Positions { x, table, first: _ } => {
                *x = value(*x);
                *table = slot(*table);
            }
            Op::Linear { x, weight, bias } => {
                *x = value(*x);
                *weight = slot(*weight);
                if let Some(bias) = bias {
                    *bias = slot(*bias);
                }
            }
            Op::RmsNorm { x, gain, eps: _ } => {
                *x = value(*x);
                *gain = slot(*gain);
            }
            Op::LayerNorm { x, gain, bias, eps: _ } => {
                *x = value(*x);
                *gain = slot(*gain);
                *bias = slot(*bias);
            }
            Op::Attention { q, k, v, mask: _, scale: _ } => {
                *q = value(*q);
                *k = value(*k);
                *v = value(*v);
            }
            Op::Add { a, b } | Op::Mul { a, b } => {
                *a = value(*a);
                *b = value(*b);
            }
            Op::Rope { x, rotary: _, base: _, pairing: _, scaling: _ }
            | Op::Unary { x, function: _ }
            | Op::Scale { x, factor: _ }
            | Op::Softmax { x }
            | Op::Dropout { x, p: _ }
            | Op::Reshape { x } => *x = value(*x),
            Op::CrossEntropy { logits, ignore: _ } => *logits = value(*logits),
        }
    }
}
