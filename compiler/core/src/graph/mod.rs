//! One small graph per distinct layer: forward, input gradient and weight gradient as kernels over typed values.
//!
//! A [`Graph`] is the layer for one micro-batch: shapes are concrete, ops are those of the program. Invariants
//! (checked by its verifier): every value is written once and then only added to; kernels obey the signatures of their ops; a
//! forward kernel reads nothing of the backward pass; weight kernels are read by no kernel, so that the backward pass
//! without them is complete.
//!
//! It deliberately knows no buffers, no stages and no order across layers.

mod expression;
mod forward;
mod gradient;
mod print;
#[cfg(test)]
pub(crate) mod samples;
#[cfg(test)]
mod tests;
mod verify;

use crate::spec::{Layer, LayerId, Model, SlotId, Train};
use pipec_program::id::IdVec;
use pipec_program::{DType, Kernel, ScalarId, Shape, TensorType, ValueId};

pub use print::print;
pub use verify::verify;

/// The graphs of all distinct layers.
pub type Graphs = IdVec<LayerId, Graph>;

/// The graphs of the layers of a model, for one micro-batch of a training run.
pub fn graphs(model: &Model, train: &Train) -> Graphs {
    model.layers.values().map(|layer| build(layer, train.micro_batch, train.seq, train.precision)).collect()
}

/// The forward pass of a layer for `sequences` sequences of `tokens` tokens, and both its backward passes.
pub fn build(layer: &Layer, sequences: u64, tokens: u64, precision: DType) -> Graph {
    gradient::differentiate(forward::forward(layer, sequences, tokens, precision))
}

/// A layer for one micro-batch. Kernels name values by the [`ValueId`] of this graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    /// The name of the layer.
    pub name: String,
    /// The element type of weights and activations. Gradients of weights and statistics of norms are f32, or f64 where
    /// this is.
    pub precision: DType,
    /// The values.
    pub values: IdVec<ValueId, Value>,
    /// What comes in, in order.
    pub inputs: Vec<ValueId>,
    /// What goes out, in order; empty for the last layer.
    pub outputs: Vec<ValueId>,
    /// The gradient of each output, which comes in on the backward pass.
    pub output_gradients: Vec<ValueId>,
    /// The gradient of each input, which goes out on the backward pass; empty for the first layer.
    pub input_gradients: Vec<ValueId>,
    /// The forward pass.
    pub forward: Vec<Kernel>,
    /// Both backward passes in one order: the kernels of [`Phase::B`] alone are the input gradient.
    pub backward: Vec<(Phase, Kernel)>,
    /// The number of places that draw random numbers; the salts of [`Node::Random`](pipec_program::Node) count them.
    pub random_sites: u64,
}

/// The scalar of a graph that holds one over the number of counted tokens of the global batch.
pub const LOSS_SCALE: ScalarId = ScalarId(0);
/// The scalar of a graph that seeds random numbers.
pub const SEED: ScalarId = ScalarId(1);

/// Which backward pass a kernel belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// With respect to inputs.
    B,
    /// With respect to weights.
    W,
}

/// A value of a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// A name for people.
    pub name: String,
    /// Its type.
    pub ty: TensorType,
    /// Where it comes from.
    pub kind: Kind,
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The piece before, or after for an output gradient.
    Boundary,
    /// The parameter in a slot.
    Weight(SlotId),
    /// The gradient of the parameter in a slot: only ever added to.
    WeightGradient(SlotId),
    /// The tokens of the micro-batch, `u32 [T]`.
    Tokens,
    /// The next tokens, `u32 [T]`.
    Targets,
    /// The loss sum of the micro-batch, `f64 [1]`.
    Loss,
    /// A kernel of this graph.
    Computed,
    /// The same bytes as another value under another shape.
    Reshaped(ValueId),
}

/// The element type of sums over many elements: gradients of weights, statistics of norms.
pub fn accumulator_type(precision: DType) -> DType {
    match precision {
        DType::F64 => DType::F64,
        DType::F32 | DType::F16 | DType::BF16 | DType::U32 => DType::F32,
    }
}

impl Graph {
    fn add(&mut self, name: String, ty: TensorType, kind: Kind) -> ValueId {
        self.values.push(Value { name, ty, kind })
    }

    /// The value whose bytes a value names: itself unless it is a reshape.
    pub fn origin(&self, value: ValueId) -> ValueId {
        match self.values[value].kind {
            Kind::Reshaped(origin) => origin,
            Kind::Boundary
            | Kind::Weight(_)
            | Kind::WeightGradient(_)
            | Kind::Tokens
            | Kind::Targets
            | Kind::Loss
            | Kind::Computed => value,
        }
    }

    /// The same bytes under another shape.
    fn reshaped(&mut self, value: ValueId, extents: &[u64]) -> ValueId {
        let origin = self.origin(value);
        if self.values[origin].ty.shape.0 == extents {
            return origin;
        }
        let of_shape = |other: &Value| other.kind == Kind::Reshaped(origin) && other.ty.shape.0 == extents;
        if let Some((id, _)) = self.values.iter().find(|(_, other)| of_shape(other)) {
            return id;
        }
        let Value { name, ty, .. } = &self.values[origin];
        let ty = TensorType { dtype: ty.dtype, shape: Shape(extents.to_vec()) };
        self.add(name.clone(), ty, Kind::Reshaped(origin))
    }
}
