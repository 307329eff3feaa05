//! The operations of a graph: pure functions of whole values, forward and backward.

use super::formula::Formula;
use crate::spec::SlotId;
use pipec_program::{Mask, Pairing, RopeScaling};
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

/// A real attribute. Two are equal if their bits are, so that operations have an order and a hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Real(u64);

impl Real {
    /// The attribute of a number.
    pub fn new(value: f64) -> Self {
        Self(value.to_bits())
    }

    /// The number.
    pub fn value(self) -> f64 {
        f64::from_bits(self.0)
    }
}

impl fmt::Debug for Real {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.value())
    }
}

/// An operation. Each says `operands -> result`; a result of several values is a tuple, of which [`Op::Part`] takes one.
/// Values are per token unless it says otherwise; `heads` is the number of vectors per token that norms and softmax work
/// on.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Op {
    /// A value of the piece before.
    Input(usize),
    /// A parameter.
    Weight(SlotId),
    /// The tokens of the micro-batch.
    Tokens,
    /// The next tokens of the micro-batch.
    Targets,
    /// The positions of the tokens in their sequences.
    Places,
    /// The gradient of an output, from the piece after.
    OutputGradient(usize),
    /// `tuple -> value`: one value of a tuple.
    Part(usize),
    /// `tokens, table -> x`
    Embedding,
    /// `table, places -> rows`: the row of every position.
    Positions {
        /// The row of position 0.
        first: u64,
    },
    /// `x, weight [out, in] [, bias] -> y`
    Linear,
    /// `x, gain [, residual] -> (y, inv_rms [, sum])`: with a residual, of `sum = x + residual`.
    RmsNorm {
        /// Vectors per token.
        heads: u64,
        /// Added to the mean square.
        eps: Real,
    },
    /// `x, gain, bias [, residual] -> (y, mean, inv_std [, sum])`: with a residual, of `sum = x + residual`.
    LayerNorm {
        /// Vectors per token.
        heads: u64,
        /// Added to the variance.
        eps: Real,
    },
    /// `x -> y`
    Rope(Rope),
    /// `q, k, v [, earlier k, earlier v] -> (o, lse)`: over the keys of earlier slices too, where there are any.
    Attention(Attention),
    /// `x -> y`
    Softmax {
        /// Vectors per token.
        heads: u64,
    },
    /// `x.. -> y`, or `-> (y..)`: element-wise.
    Map(Formula),
    /// `logits, targets -> (loss, lse)`; the loss is a sum over tokens.
    CrossEntropy {
        /// The target that counts for nothing.
        ignore: Option<u32>,
    },
    /// `dy, weight -> dx`, plus `before` if it is [`Added`]: `before, dy, weight -> dx`.
    Product(Added),
    /// `dy, x -> dweight [out, in]`: a sum over tokens.
    WeightProduct,
    /// `dy -> dbias [out]`: a sum over tokens.
    SumRows,
    /// `tokens, dy -> dtable`: a sum over tokens.
    EmbeddingGrad,
    /// `dy -> dtable`: a sum over tokens.
    PositionsGrad {
        /// The row of position 0.
        first: u64,
    },
    /// `x, gain, inv_rms, dy [, before] -> dx`
    RmsNormGrad {
        /// Vectors per token.
        heads: u64,
    },
    /// `x, inv_rms, dy -> dgain`: a sum over tokens.
    RmsNormGainGrad {
        /// Vectors per token.
        heads: u64,
    },
    /// `x, gain, mean, inv_std, dy [, before] -> dx`
    LayerNormGrad {
        /// Vectors per token.
        heads: u64,
    },
    /// `x, mean, inv_std, dy -> (dgain, dbias)`: sums over tokens.
    LayerNormParamGrad {
        /// Vectors per token.
        heads: u64,
    },
    /// `q, k, v [, earlier k, earlier v], o, lse, do [, before..] -> (dq, dk, dv [, dk, dv of earlier slices])`: with one
    /// `before` for each of the results that have a bit in `added`, lowest bit first.
    AttentionGrad {
        /// The attention.
        of: Attention,
        /// Which of `dq`, `dk`, `dv` are added to something.
        added: u8,
    },
    /// `y, dy -> dx`
    SoftmaxGrad {
        /// Vectors per token.
        heads: u64,
    },
    /// `logits, targets, lse -> dlogits`
    CrossEntropyGrad {
        /// The target that counts for nothing.
        ignore: Option<u32>,
    },
}

/// Whether a product is added to something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Added {
    /// It stands alone.
    No,
    /// To the first operand.
    Yes,
}

/// An attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attention {
    /// Query heads.
    pub heads: u64,
    /// Key and value heads.
    pub kv_heads: u64,
    /// Components of a head.
    pub head_dim: u64,
    /// Which keys a query sees.
    pub mask: Mask,
    /// The factor of the scores.
    pub scale: Real,
    /// The position of the operation in its layer.
    pub operation: usize,
}

/// A rotation by position.
#[derive(Clone, Copy, Debug)]
pub struct Rope {
    /// Components of a head.
    pub head_dim: u64,
    /// Components that rotate.
    pub rotary: u64,
    /// The base of the frequencies.
    pub base: f64,
    /// Which components form a pair.
    pub pairing: Pairing,
    /// A change of the frequencies for long contexts.
    pub scaling: Option<RopeScaling>,
    /// Rotate backwards: the gradient.
    pub inverse: bool,
}

impl Rope {
    fn key(&self) -> (u64, u64, Real, Pairing, Option<[u64; 4]>, bool) {
        let Self { head_dim, rotary, base, pairing, scaling, inverse } = *self;
        let scaling = scaling.map(|RopeScaling { factor, low, high, original }| {
            [factor.to_bits(), low.to_bits(), high.to_bits(), original]
        });
        (head_dim, rotary, Real::new(base), pairing, scaling, inverse)
    }
}

impl PartialEq for Rope {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Rope {}

impl Hash for Rope {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl PartialOrd for Rope {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Rope {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl Op {
    /// A name for people.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Input(_) => "input",
            Self::Weight(_) => "weight",
            Self::Tokens => "tokens",
            Self::Targets => "targets",
            Self::Places => "places",
            Self::OutputGradient(_) => "output_gradient",
            Self::Part(_) => "part",
            Self::Embedding => "embedding",
            Self::Positions { .. } => "positions",
            Self::Linear => "linear",
            Self::RmsNorm { .. } => "rms_norm",
            Self::LayerNorm { .. } => "layer_norm",
            Self::Rope(_) => "rope",
            Self::Attention(_) => "attention",
            Self::Softmax { .. } => "softmax",
            Self::Map(_) => "map",
            Self::CrossEntropy { .. } => "cross_entropy",
            Self::Product(Added::No) => "product",
            Self::Product(Added::Yes) => "product_added",
            Self::WeightProduct => "weight_product",
            Self::SumRows => "sum_rows",
            Self::EmbeddingGrad => "embedding_grad",
            Self::PositionsGrad { .. } => "positions_grad",
            Self::RmsNormGrad { .. } => "rms_norm_grad",
            Self::RmsNormGainGrad { .. } => "rms_norm_gain_grad",
            Self::LayerNormGrad { .. } => "layer_norm_grad",
            Self::LayerNormParamGrad { .. } => "layer_norm_param_grad",
            Self::AttentionGrad { .. } => "attention_grad",
            Self::SoftmaxGrad { .. } => "softmax_grad",
            Self::CrossEntropyGrad { .. } => "cross_entropy_grad",
        }
    }

    /// Whether the result is a sum over the tokens, that is a contribution to the gradient of a parameter.
    pub fn sums_tokens(&self) -> bool {
        match self {
            Self::WeightProduct
            | Self::SumRows
            | Self::EmbeddingGrad
            | Self::PositionsGrad { .. }
            | Self::RmsNormGainGrad { .. }
            | Self::LayerNormParamGrad { .. } => true,
            Self::Input(_)
            | Self::Weight(_)
            | Self::Tokens
            | Self::Targets
            | Self::Places
            | Self::OutputGradient(_)
            | Self::Part(_)
            | Self::Embedding
            | Self::Positions { .. }
            | Self::Linear
            | Self::RmsNorm { .. }
            | Self::LayerNorm { .. }
            | Self::Rope(_)
            | Self::Attention(_)
            | Self::Softmax { .. }
            | Self::Map(_)
            | Self::CrossEntropy { .. }
            | Self::Product(_)
            | Self::RmsNormGrad { .. }
            | Self::LayerNormGrad { .. }
            | Self::AttentionGrad { .. }
            | Self::SoftmaxGrad { .. }
            | Self::CrossEntropyGrad { .. } => false,
        }
    }
}
