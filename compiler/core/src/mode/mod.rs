//! What the rewriting found for each distinct layer: its modes, and the kernels of a mode for a slice.
//!
//! A [`Mode`] is one way to compute a layer: its steps forward and backward, with what the backward pass keeps of the
//! forward pass and what it computes again. A [`Form`] is a mode for one slice of a micro-batch: shapes are concrete, ops
//! are those of the program. Invariants of a form (checked by its verifier): every value is written once and then only added
//! to; kernels obey the signatures of their ops; a forward kernel reads nothing of the backward pass; weight kernels are read
//! by no kernel, so that the backward pass without them is complete.
//!
//! Slices of a sequence meet in attention alone. The keys and values of a slice are its *state*: queries of later slices
//! read them as a *prefix*, forward and backward, and what they contribute to the gradient of the state is added up until
//! the backward pass of the slice itself takes it. Slices therefore ascend forward and descend backward, and the last
//! slice that sees a state is the first that writes its gradient.
//!
//! It deliberately knows no buffers, no stages and no order across layers, and takes no decision.

mod emit;
mod forms;
mod print;
mod shape;
mod verify;

use crate::graph::{self, Type};
use crate::spec::{LayerId, Model, Op, SlotId};
use pipec_program::id::IdVec;
use pipec_program::{Bytes, DType, Kernel, Mask, Nanos, Part, ScalarId, Shape, Slice, TensorType, ValueId};
use std::fmt;

pub use emit::form;
pub(crate) use forms::levels;
pub use forms::{Forms, Variant, VariantId, modes};
pub use print::{print, print_modes};
pub(crate) use shape::{heads, kernel, tensor};
pub use verify::verify;

/// The modes of all distinct layers.
pub type Layers = IdVec<LayerId, Layer>;

/// A distinct layer and the ways to compute it.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Its name.
    pub name: String,
    /// The element type of weights and activations.
    pub precision: DType,
    /// The element type of the gradients of weights.
    pub gradients: DType,
    /// The modes that no other is at most in time, bytes kept and bytes offloaded; the fastest first, and at least one.
    pub modes: IdVec<ModeId, Mode>,
    /// The number of places that draw random numbers.
    pub random_sites: u64,
    /// How they were found.
    pub summary: Summary,
}

/// What went on in the e-graph of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Terms of the graph as it was put in.
    pub terms_before: usize,
    /// Terms when no rule had anything to add.
    pub terms: usize,
    /// Classes then.
    pub classes: usize,
    /// Rounds of all rules.
    pub rounds: usize,
}

/// One way to compute a layer for a slice, whichever it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mode {
    /// The time of all its kernels over a micro-batch, by the roofline of the device.
    pub time: Nanos,
    /// What it keeps of a micro-batch from the forward pass to the backward pass.
    pub kept: Bytes,
    /// What of a micro-batch goes to the host after the forward pass and comes back for the backward pass.
    pub offloaded: Bytes,
    /// The steps, each after those that it reads: the forward pass, then the backward pass.
    pub steps: IdVec<StepId, Step>,
    /// How many steps belong to the forward pass: the first.
    pub forward: usize,
    /// What goes out, in order.
    pub outputs: Vec<StepId>,
    /// The gradient of each input, in order.
    pub input_gradients: Vec<StepId>,
    /// The loss.
    pub loss: Option<StepId>,
    /// The inputs and the gradients of outputs that come in, whether a step reads them or not.
    pub boundaries: Boundaries,
    /// Contributions to the gradients of parameters: a step, and the slot of each of its results.
    pub contributions: Vec<(StepId, Vec<SlotId>)>,
    /// The names of the parameters, for people.
    pub slots: IdVec<SlotId, String>,
}

/// Names and types of what comes into a layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Boundaries {
    /// From the piece before.
    pub inputs: Vec<(String, Type)>,
    /// From the piece after, on the backward pass.
    pub output_gradients: Vec<(String, Type)>,
}

/// A step of a mode.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// A name for people.
    pub name: String,
    /// What makes it.
    pub make: Make,
    /// The steps that it reads.
    pub inputs: Vec<StepId>,
    /// The type of its result.
    pub ty: Type,
    /// Whether it is an operation of the backward pass that computes a value of the forward pass again.
    pub again: bool,
}

/// What makes a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Make {
    /// An operation.
    Op(graph::Op),
    /// A step of the forward pass, kept for the backward pass.
    Keep,
    /// A step of the forward pass that waits in the memory of the host for the backward pass.
    Fetch,
    /// The keys or values of earlier slices: a state.
    Earlier,
    /// What later slices contribute to the gradient of a state.
    Later,
}

/// A step of a mode: `t3`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepId(pub u32);

impl pipec_program::id::Id for StepId {
    fn new(index: usize) -> Self {
        Self(u32::try_from(index).expect("a layer has fewer than 2^32 steps"))
    }
    fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for StepId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{}", self.0)
    }
}

impl fmt::Debug for StepId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A mode of a layer, by its place among them: the fastest is `k0`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModeId(pub u32);

impl pipec_program::id::Id for ModeId {
    fn new(index: usize) -> Self {
        Self(u32::try_from(index).expect("a layer has fewer than 2^32 modes"))
    }
    fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for ModeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "k{}", self.0)
    }
}

impl fmt::Debug for ModeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// How the backward pass has a value of the forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Had {
    /// It is kept.
    Kept,
    /// It comes back from the host.
    Fetched,
    /// It is computed again.
    Again,
}

impl Mode {
    /// The steps that the backward pass has of the forward pass in some way.
    pub fn had(&self, how: Had) -> impl Iterator<Item = &Step> {
        self.steps.values().skip(self.forward).filter(move |step| match &step.make {
            Make::Keep => how == Had::Kept,
            Make::Fetch => how == Had::Fetched,
            // Parts are told with what they are of, but for a sum, which has a name of its own.
            Make::Op(graph::Op::Part(part)) => how == Had::Again && step.again && self.is_sum(step, *part),
            Make::Op(_) => how == Had::Again && step.again,
            Make::Earlier | Make::Later => false,
        })
    }

    /// Whether a part is the sum of a norm with a residual.
    fn is_sum(&self, step: &Step, part: usize) -> bool {
        step.inputs.iter().any(|&tuple| match self.steps[tuple].make {
            Make::Op(graph::Op::RmsNorm { .. }) => part == 2,
            Make::Op(graph::Op::LayerNorm { .. }) => part == 3,
            Make::Op(_) | Make::Keep | Make::Fetch | Make::Earlier | Make::Later => false,
        })
    }

    /// Whether the backward pass computes a product or an attention of the forward pass again.
    pub fn repeats_products(&self) -> bool {
        let mut backward = self.steps.values().skip(self.forward);
        backward.any(|step| matches!(step.make, Make::Op(graph::Op::Linear | graph::Op::Attention(_))))
    }
}

/// How many keys up to itself a query sees at most; none if it sees all. One reach for a whole model, so that all layers
/// of a stage read the prefixes of the same slices.
pub(crate) fn reach(model: &Model) -> Option<u64> {
    let operations = model.layers.values().flat_map(|layer| &layer.operations);
    let masks = operations.filter_map(|operation| match operation.op {
        Op::Attention { mask, .. } => Some(mask),
        Op::Embedding { .. }
        | Op::Positions { .. }
        | Op::Linear { .. }
        | Op::RmsNorm { .. }
        | Op::LayerNorm { .. }
        | Op::Rope { .. }
        | Op::Softmax { .. }
        | Op::Unary { .. }
        | Op::Add { .. }
        | Op::Mul { .. }
        | Op::Scale { .. }
        | Op::Dropout { .. }
        | Op::Reshape { .. }
        | Op::CrossEntropy { .. } => None,
    });
    let mut sizes = masks.map(|mask| match mask {
        Mask::Full | Mask::Causal => None,
        Mask::Window { size } => Some(size),
    });
    sizes.try_fold(1, |widest: u64, size| Some(widest.max(size?)))
}

/// Which tokens a form is for.
#[derive(Clone, Copy, Debug)]
pub struct Extent<'a> {
    /// The sequences of a micro-batch.
    pub sequences: u64,
    /// The tokens of every slice of a sequence.
    pub lengths: &'a [u64],
    /// The slice.
    pub slice: usize,
    /// How many keys up to itself a query sees at most; none if it sees all.
    pub reach: Option<u64>,
}

impl Extent<'_> {
    /// The tokens of the slice in one sequence.
    pub(crate) fn tokens(self) -> u64 {
        self.lengths[self.slice]
    }

    /// The position of the first token of a slice in its sequence.
    fn first(self, slice: usize) -> u64 {
        self.lengths[..slice].iter().sum()
    }

    /// The rows of the slice in whole sequences; none if there is no other slice.
    fn part(self) -> Option<Part> {
        let part = Part {
            tokens: self.tokens(),
            first: self.first(self.slice),
            whole: self.first(self.lengths.len()),
        };
        (self.lengths.len() > 1).then_some(part)
    }

    /// Whether there is a slice some query of which may see a key of an earlier one.
    pub(crate) fn sees(self, slice: usize, earlier: usize) -> bool {
        // The first query of the slice sees `reach - 1` keys before it.
        let near = |reach| self.first(slice) + 1 < self.first(earlier + 1).saturating_add(reach);
        slice < self.lengths.len() && self.reach.is_none_or(near)
    }
}

/// A layer in some mode for one slice of a micro-batch. Kernels name values by the [`ValueId`] of this form.
#[derive(Clone, Debug, PartialEq)]
pub struct Form {
    /// The name of the layer.
    pub name: String,
    /// The element type of weights and activations. Statistics of norms are f32, or f64 where this is.
    pub precision: DType,
    /// The element type of the gradients of weights.
    pub gradients: DType,
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
    /// Both backward passes in one order: the kernels of [`Phase::R`] and [`Phase::B`] alone are the input gradient.
    pub backward: Vec<(Phase, Kernel)>,
    /// The keys and values that queries of later slices read, in the order of the attentions; empty where no slice
    /// follows.
    pub state: Vec<State>,
    /// The states of earlier slices that this one reads, slices ascending, each in the order of its state.
    pub prefix: Vec<Prefix>,
    /// The number of places that draw random numbers; the salts of [`Node::Random`](pipec_program::Node) count them.
    pub random_sites: u64,
}

/// The scalar of a form that holds one over the number of counted tokens of the global batch.
pub const LOSS_SCALE: ScalarId = ScalarId(0);
/// The scalar of a form that seeds random numbers.
pub const SEED: ScalarId = ScalarId(1);

/// Which backward pass a kernel belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// What is computed again of the forward pass: part of the pass with respect to inputs, and independent of all gradients.
    R,
    /// With respect to inputs; also the gradients of norms and positions, which are small.
    B,
    /// With respect to weights: products, each with the gradient of its bias, and the gradients of tables.
    W,
}

/// The keys or the values of an attention as later slices see them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Made by a kernel of the forward pass.
    pub value: ValueId,
    /// What later slices have contributed to its gradient, to which this slice adds; none if none sees it.
    pub gradient: Option<ValueId>,
}

/// The keys or the values of an attention from an earlier slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The earlier slice.
    pub slice: Slice,
    /// Which of its states, counted over the layer.
    pub state: usize,
    /// The state.
    pub value: ValueId,
    /// What this and later slices contribute to its gradient.
    pub gradient: ValueId,
}

/// A value of a form.
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
    /// A kernel of this form.
    Computed,
    /// The state of an earlier slice.
    Prefix,
    /// The gradient of the state of an earlier slice.
    PrefixGradient,
    /// What later slices contribute to the gradient of a state of this one.
    StateGradient,
    /// A value of the forward pass, back from the host: for the backward pass.
    Fetched(ValueId),
    /// The same bytes as another value under another shape.
    Reshaped(ValueId),
}

impl Form {
    fn add(&mut self, name: String, ty: TensorType, kind: Kind) -> ValueId {
        self.values.push(Value { name, ty, kind })
    }

    /// The products of the pass with respect to weights: for each kernel of [`Phase::W`] the number of its product, from
    /// 0, in the order of the backward pass. The gradient of a bias belongs to the product before it.
    pub fn products(&self) -> Vec<usize> {
        let mut count = 0;
        let weights = self.backward.iter().filter(|(phase, _)| *phase == Phase::W);
        let number = |(_, kernel): &(Phase, Kernel)| {
            count += usize::from(kernel.op != pipec_program::Op::SumRows || count == 0);
            count - 1
        };
        weights.map(number).collect()
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
            | Kind::Prefix
            | Kind::PrefixGradient
            | Kind::StateGradient
            | Kind::Fetched(_)
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
