//! The functions of a stage: the graphs of its pieces as kernels over regions.
//!
//! Every function takes its regions in the order of [`Region`]; a region that a stage does not need is absent. Weights
//! and gradients of a stage lie at equal offsets, parameters in the order of their first use.

use pipec_program::id::IdVec;
use pipec_program::{Bytes, Function, ParamId, ParameterId, TensorType};

/// What the forward and the backward function of a stage take and need.
#[derive(Clone, Debug, PartialEq)]
pub struct StageFunctions {
    /// The parameters of the stage with their offsets in weights and gradients, ascending.
    pub parameters: Vec<(ParameterId, Bytes)>,
    /// The size of the weights (and of the gradients, in their own element type).
    pub weights: Bytes,
    /// The size of the gradients.
    pub gradients: Bytes,
    /// The tensors that come in from the stage before, packed as in a message; empty for the first stage.
    pub input: Vec<TensorType>,
    /// The tensors that go out to the stage after; empty for the last stage.
    pub output: Vec<TensorType>,
    /// What the forward pass keeps for the backward pass, besides the input.
    pub saved: Bytes,
    /// The forward pass.
    pub forward: StageFunction,
    /// Both backward passes in one.
    pub backward: StageFunction,
}

/// A function with the meaning of its regions.
#[derive(Clone, Debug, PartialEq)]
pub struct StageFunction {
    /// The function.
    pub function: Function,
    /// What each region of the function is.
    pub regions: IdVec<ParamId, Region>,
}

/// What a region of a stage function is, in the order in which functions take them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Region {
    /// The weights of the stage.
    Weights,
    /// The gradients of the stage.
    Gradients,
    /// The tokens of the micro-batch.
    Tokens,
    /// The next tokens of the micro-batch.
    Targets,
    /// The message from the stage before.
    Input,
    /// What the forward pass keeps.
    Saved,
    /// The message to the stage after.
    Output,
    /// The loss of the micro-batch.
    Loss,
    /// The gradient that comes from the stage after.
    OutputGradient,
    /// The gradient that goes to the stage before.
    InputGradient,
    /// Scratch.
    Workspace,
}
