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
mod pair;
mod pass;
mod stage;
#[cfg(test)]
mod tests;

use crate::schedule::{Schedule, Step, Uses};
use pipec_program::id::IdVec;
use pipec_program::{Bytes, DType, Function, ParamId, ParameterId, Pass, Slice, TensorType};
use std::borrow::Cow;

pub(crate) use layout::{has_master, place_parameters};
pub use optimizer::{clip_function, norm_function, update_function};
pub(crate) use pair::pair_function;
pub use stage::{forward_functions, stage_functions};

/// What the functions of a stage take and need.
#[derive(Clone, Debug, PartialEq)]
pub struct StageFunctions {
    /// The element type of weights and activations.
    pub precision: DType,
    /// The element type of the gradients of weights.
    pub gradient: DType,
    /// The parameters of the stage in the order of their first use, offsets ascending.
    pub parameters: Vec<StageParameter>,
    /// The size of the weights.
    pub weights: Bytes,
    /// The size of the gradients.
    pub gradients: Bytes,
    /// The size of the first moments, of the second moments, and of the master weights where there are any.
    pub moments: Bytes,
    /// The passes over each slice.
    pub slices: IdVec<Slice, SliceFunctions>,
}

/// The passes of a stage over a slice of a micro-batch.
#[derive(Clone, Debug, PartialEq)]
pub struct SliceFunctions {
    /// The tensors that come in from the stage before, packed as in a message; empty for the first stage. The caller
    /// keeps them until the last backward pass that takes [`Region::Input`].
    pub input: Vec<TensorType>,
    /// The tensors that go out to the stage after; empty for the last stage.
    pub output: Vec<TensorType>,
    /// The leading bytes of [`Region::Saved`] that later slices take as [`Region::Prefix`].
    pub state: Bytes,
    /// The last slice that takes them; the slice itself if none does.
    pub seen_until: Slice,
    /// The forward pass.
    pub forward: StageFunction,
    /// The backward pass.
    pub backward: Backward,
}

/// The backward pass, whole and in parts, as far as the schedule asks for them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Backward {
    /// What is computed again, where that is a pass of its own.
    pub recompute: Option<StageFunction>,
    /// Both backward passes in one. It may use the saved bytes as scratch once it has read them.
    pub fused: Option<StageFunction>,
    /// The pass with respect to inputs. It also adds to the gradients of norms, which are small.
    pub inputs: Option<StageFunction>,
    /// The pass with respect to weights in one.
    pub weights: Option<StageFunction>,
    /// The pass with respect to weights in parts of as equal numbers of products as can be; there may be parts without.
    pub parts: Vec<StageFunction>,
}

/// Which backward passes a schedule asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Both passes in one.
    pub fused: bool,
    /// The weight gradients of a unit in one.
    pub weights: bool,
    /// The weight gradients of a unit in so many parts.
    pub parts: Option<u16>,
    /// Of so many pieces, the last of the stage, what is computed again is a pass of its own, right before both passes in one.
    pub recompute: usize,
}

impl Wanted {
    /// What schedules may ask for that use some passes, where a stage has so many products of weight gradients at most.
    pub fn of(uses: Uses, products: u16) -> Self {
        let parts = uses.products.then_some(products.max(1));
        Self { fused: uses.whole, weights: uses.split, parts, recompute: 0 }
    }

    /// What a schedule asks for.
    pub fn by(schedule: &Schedule) -> Self {
        let mut wanted = Self::default();
        for &step in schedule.devices.values().flatten() {
            match step {
                Step::Pass(Pass::BW, _) | Step::Pair { pass: Pass::BW, .. } => wanted.fused = true,
                Step::Pass(Pass::W, _) => wanted.weights = true,
                Step::Product(_, part) => wanted.parts = wanted.parts.max(Some(part.saturating_add(1))),
                Step::Pass(Pass::F | Pass::B | Pass::R, _) | Step::Pair { .. } => {}
            }
        }
        wanted
    }

    /// Whether weight gradients are a pass of their own.
    pub(crate) fn splits(self) -> bool {
        self.weights || self.parts.is_some()
    }
}

impl SliceFunctions {
    /// All functions, in the order in which programs list them.
    pub fn all(&self) -> impl Iterator<Item = &StageFunction> {
        let Backward { recompute, fused, inputs, weights, parts } = &self.backward;
        [&self.forward].into_iter().chain(recompute).chain(fused).chain(inputs).chain(weights).chain(parts)
    }

    /// All functions, to be changed.
    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut StageFunction> {
        let Backward { recompute, fused, inputs, weights, parts } = &mut self.backward;
        [&mut self.forward]
            .into_iter()
            .chain(recompute)
            .chain(fused)
            .chain(inputs)
            .chain(weights)
            .chain(parts)
    }

    /// The functions of a backward pass: both passes, or that with respect to inputs; and what is computed again for it.
    pub fn backward(&self) -> impl Iterator<Item = &StageFunction> {
        let Backward { recompute, fused, inputs, .. } = &self.backward;
        recompute.iter().chain(fused).chain(inputs)
    }

    /// The functions of the weight gradients, if they stand alone.
    pub fn weights(&self) -> impl Iterator<Item = &StageFunction> {
        let Backward { weights, parts, .. } = &self.backward;
        weights.iter().chain(parts)
    }
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
    /// The state of an earlier slice: the first of what its forward pass keeps.
    Prefix(Slice),
    /// What the forward pass keeps for the backward pass.
    Saved,
    /// What the forward pass keeps for the weight gradients, where these are a pass of their own.
    Held,
    /// What the forward pass hands to the host.
    Stored,
    /// The same when it has come back.
    Fetched,
    /// What is computed again, where that is a pass of its own.
    Recomputed,
    /// The message to the stage after.
    Output,
    /// The message to a backward stage that begins in a forward stage, or at its end.
    Checkpoint(u32),
    /// The loss of the micro-batch.
    Loss,
    /// The gradient that comes from the stage after.
    OutputGradient,
    /// The gradient that goes to the stage before.
    InputGradient,
    /// What the pass with respect to inputs keeps for the weight gradients.
    Pending,
    /// What later slices contribute to the gradient of the state of this one.
    StateGradient,
    /// The gradient of the state of an earlier slice.
    PrefixGradient(Slice),
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
    pub fn name(self) -> Cow<'static, str> {
        let name = match self {
            Self::Prefix(slice) => return format!("prefix_{slice}").into(),
            Self::Checkpoint(number) => return format!("checkpoint_{number}").into(),
            Self::PrefixGradient(slice) => return format!("prefix_gradient_{slice}").into(),
            Self::Weights => "weights",
            Self::Gradients => "gradients",
            Self::Tokens => "tokens",
            Self::Targets => "targets",
            Self::Input => "input",
            Self::Saved => "saved",
            Self::Held => "held",
            Self::Stored => "stored",
            Self::Fetched => "fetched",
            Self::Recomputed => "recomputed",
            Self::Output => "output",
            Self::Loss => "loss",
            Self::OutputGradient => "output_gradient",
            Self::InputGradient => "input_gradient",
            Self::Pending => "pending",
            Self::StateGradient => "state_gradient",
            Self::Moment => "moment",
            Self::Variance => "variance",
            Self::Master => "master",
            Self::Squares => "squares",
            Self::Norm => "norm",
            Self::Factor => "factor",
            Self::Workspace => "workspace",
        };
        name.into()
    }
}
