//! One small graph per distinct layer: forward, input gradient and weight gradient as pure operations on whole values.
//!
//! A [`Graph`] says what a layer computes for a micro-batch, and nothing of how: every node is a value of its own, nothing
//! is fused, written in place, sliced, kept or placed. Nodes stand after their operands; those of the backward pass stand
//! behind those of the forward pass, in the reverse order of what they differentiate.
//!
//! It deliberately knows no slices, no kernels, no memory and no costs: how a layer is computed is decided in
//! [`crate::rewrite`].

mod formula;
mod forward;
mod gradient;
mod op;
mod print;
#[cfg(test)]
pub(crate) mod samples;
#[cfg(test)]
mod tests;
mod verify;

use crate::spec::{Layer, LayerId, Model, SlotId, Sums, Train};
use pipec_program::DType;
use pipec_program::id::IdVec;
use std::fmt;

pub use formula::{Expression, Formula, Operand};
pub use op::{Added, Attention, Op, Real, Rope};
pub use print::print;
pub use verify::verify;

/// The graphs of all distinct layers.
pub type Graphs = IdVec<LayerId, Graph>;

/// The element types of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Precision {
    /// Of weights and activations.
    pub values: DType,
    /// Of the gradients of weights.
    pub gradients: DType,
}

impl Precision {
    /// Those of a training run.
    pub fn of(train: &Train) -> Self {
        let values = train.precision;
        let gradients = match train.gradients {
            Sums::Wide => accumulator_type(values),
            Sums::Own => values,
        };
        Self { values, gradients }
    }
}

impl From<DType> for Precision {
    /// With gradients in the type of sums over many elements.
    fn from(values: DType) -> Self {
        Self { values, gradients: accumulator_type(values) }
    }
}

/// The graphs of the layers of a model.
pub fn graphs(model: &Model, precision: impl Into<Precision>) -> Graphs {
    let precision = precision.into();
    model.layers.values().map(|layer| build(layer, precision)).collect()
}

/// The forward pass of a layer and both its backward passes.
pub fn build(layer: &Layer, precision: impl Into<Precision>) -> Graph {
    gradient::differentiate(forward::forward(layer, precision.into()))
}

/// A layer for one micro-batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    /// The name of the layer.
    pub name: String,
    /// The element type of weights and activations.
    pub precision: DType,
    /// The element type of the gradients of weights.
    pub gradients: DType,
    /// The nodes, each after its operands.
    pub nodes: IdVec<NodeId, Node>,
    /// How many nodes belong to the forward pass: the first.
    pub forward: usize,
    /// What comes in, in order.
    pub inputs: Vec<NodeId>,
    /// What goes out, in order; empty for the last layer.
    pub outputs: Vec<NodeId>,
    /// The gradient of each output, which comes in on the backward pass.
    pub output_gradients: Vec<NodeId>,
    /// The gradient of each input, which goes out on the backward pass; empty for the first layer.
    pub input_gradients: Vec<NodeId>,
    /// The loss; none but for the last layer.
    pub loss: Option<NodeId>,
    /// Contributions to the gradients of parameters: a node, and the slot of each of its results.
    pub contributions: Vec<(NodeId, Vec<SlotId>)>,
    /// The names of the slots, for people.
    pub slots: IdVec<SlotId, String>,
    /// The number of places that draw random numbers.
    pub random_sites: u64,
}

/// A node of a graph: `v3`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

impl pipec_program::id::Id for NodeId {
    fn new(index: usize) -> Self {
        Self(u32::try_from(index).expect("a layer has fewer than 2^32 values"))
    }
    fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A value of a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// A name for people.
    pub name: String,
    /// What computes it.
    pub op: Op,
    /// The operands, in the order that the operation states.
    pub inputs: Vec<NodeId>,
    /// Its type.
    pub ty: Type,
}

/// The type of a value, whatever the number of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    /// So many numbers for every token.
    PerToken {
        /// The element type.
        dtype: DType,
        /// Numbers per token.
        columns: u64,
    },
    /// A number for each of so many vectors of every token.
    Statistic {
        /// The element type.
        dtype: DType,
        /// Vectors per token.
        heads: u64,
    },
    /// A parameter, its gradient, or a loss.
    Whole {
        /// The element type.
        dtype: DType,
        /// The extents.
        shape: Vec<u64>,
    },
    /// Several values.
    Tuple(Vec<Type>),
}

/// The element type of sums over many elements: statistics of norms, moments, and gradients of weights unless a run says otherwise.
pub fn accumulator_type(precision: DType) -> DType {
    match precision {
        DType::F64 => DType::F64,
        DType::F32 | DType::F16 | DType::BF16 | DType::U32 => DType::F32,
    }
}

impl Graph {
    fn add(&mut self, name: impl Into<String>, op: Op, inputs: Vec<NodeId>, ty: Type) -> NodeId {
        self.nodes.push(Node { name: name.into(), op, inputs, ty })
    }

    /// One value of a tuple.
    fn part(&mut self, name: impl Into<String>, tuple: NodeId, part: usize) -> NodeId {
        let Type::Tuple(types) = &self.nodes[tuple].ty else { unreachable!("only tuples have parts") };
        let ty = types[part].clone();
        self.add(name, Op::Part(part), vec![tuple], ty)
    }

    /// Whether a node belongs to the forward pass.
    pub fn is_forward(&self, node: NodeId) -> bool {
        (node.0 as usize) < self.forward
    }
}
