//! The functions of a stage: the graphs of its pieces as kernels over regions, and the functions of its optimizer step.
//!
//! Every function takes its regions in the order of [`Region`]; a region that a function does not need is absent.
//!
//! Layout: the parameters of a stage stand in the order of their first use, each once however often the stage names
//! it, and start at a multiple of 64 bytes in weights, gradients and optimizer state alike, with the same gaps counted
//! in elements. So a range that is contiguous in one of them is contiguous in all.
//!
//! The module deliberately knows no buffers and no devices: where a region lies is said at each call.

mod layout;
mod optimizer;
mod pass;
mod stage;
#[cfg(test)]
mod tests;

use pipec_program::id::IdVec;
use pipec_program::{Bytes, DType, Function, ParamId, ParameterId, TensorType};

pub(crate) use layout::{has_master, place_parameters};
pub use optimizer::{clip_function, norm_function, update_function};
pub use stage::stage_functions;

/// What the forward and the backward function of a stage take and need.
#[derive(Clone, Debug, PartialEq)]
pub struct StageFunctions {
    /// The element type of weights and activations; gradients of weights are f32, or f64 where this is.
    pub precision: DType,
    /// The parameters of the stage in the order of their first use, offsets ascending.
    pub parameters: Vec<StageParameter>,
    /// The size of the weights.
    pub weights: Bytes,
    /// The size of the gradients.
    pub gradients: Bytes,
    /// The size of the first moments, of the second moments, and of the master weights where there are any.
    pub moments: Bytes,
    /// The tensors that come in from the stage before, packed as in a message; empty for the first stage. The caller
    /// keeps them until the backward pass if that takes [`Region::Input`].
    pub input: Vec<TensorType>,
    /// The tensors that go out to the stage after; empty for the last stage.
    pub output: Vec<TensorType>,
    /// What the forward pass keeps for the backward pass, besides the input.
    pub saved: Bytes,
    /// The forward pass.
    pub forward: StageFunction,
    /// Both backward passes in one. It may use the saved bytes as scratch once it has read them.
    pub backward: StageFunction,
}

/// A parameter of a stage and its place in the regions of the stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageParameter {
    /// The parameter.
    pub parameter: ParameterId,
    /// Its elements.
    pub elements: u64,
    /// Where it starts in [`Region::Weights`].
    pub weight: Bytes,
    /// Where it starts in [`Region::Gradients`].
    pub gradient: Bytes,
    /// Where it starts in [`Region::Moment`], [`Region::Variance`] and [`Region::Master`].
    pub moment: Bytes,
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
    /// The first moments of the stage.
    Moment,
    /// The second moments of the stage.
    Variance,
    /// The weights of the stage in f32.
    Master,
    /// The squared norm of the gradient of every parameter of the model, `f64 [parameters]`.
    Squares,
    /// The global norm of the gradients, `f64 [1]`.
    Norm,
    /// The factor of clipping, `f32 [1]`.
    Factor,
    /// Scratch.
    Workspace,
}

impl Region {
    /// The name of the parameter of a function.
    pub fn name(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::Gradients => "gradients",
            Self::Tokens => "tokens",
            Self::Targets => "targets",
            Self::Input => "input",
            Self::Saved => "saved",
            Self::Output => "output",
            Self::Loss => "loss",
            Self::OutputGradient => "output_gradient",
            Self::InputGradient => "input_gradient",
            Self::Moment => "moment",
            Self::Variance => "variance",
            Self::Master => "master",
            Self::Squares => "squares",
            Self::Norm => "norm",
            Self::Factor => "factor",
            Self::Workspace => "workspace",
        }
    }
}
