//! Kernels: one op applied to values. The op set is closed; every device implements all of it.
//!
//! A *matrix* below is a value seen as rows × columns, where columns is its innermost extent. `T` is the number of
//! tokens of a call (sequences × tokens per sequence, sequence-major). Unless an op says otherwise, an output may not
//! share bytes with an input, and a kernel either writes an output or adds to it (`accumulate`), as [`Output`] says.
//! Only outputs of gradients and sums accumulate; which ones may stands with the op.
//!
//! Numerics: elements of `f16` and `bf16` are converted to f32, computed in f32 and rounded once on store. Sums run in
//! a fixed order for a given kernel, so that a run repeats bit for bit. Where the values of an op are `f64`, it computes
//! in f64, and statistics of rows, stated as `f32` below, are `f64` too; moments may be.

use crate::id::{ScalarId, ValueId};
use std::fmt;

/// One op with its operands.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// What to compute, with its attributes.
    pub op: Op,
    /// The operands, in the order that the op states.
    pub inputs: Vec<ValueId>,
    /// The results, in the order that the op states.
    pub outputs: Vec<Output>,
}

/// A result of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Output {
    /// Where it goes.
    pub value: ValueId,
    /// Add to what is there (`+=`) instead of overwriting it (`=`).
    pub accumulate: bool,
}

/// The closed set of ops. Each says `inputs -> outputs`.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// `a, b.. [, bias [N]..] -> c [M,N]..`: `c = op(a) op(b) + bias`, where `op` transposes if the flag says so: `a` is
    /// `[M,K]` or, transposed, `[K,M]`; `b` is `[K,N]` or, transposed, `[N,K]`. `c` may accumulate. There are as many `c` as
    /// `b`, each with its own N, and as many biases or none: products of one `a`, which is read once.
    Matmul {
        /// `a` is stored `[K,M]`.
        transpose_a: bool,
        /// `b` is stored `[N,K]`, as the weight `[out,in]` of a linear layer is.
        transpose_b: bool,
    },
    /// `x [T,N] -> sum [N]`: the sum over rows, ascending: the gradient of a bias. May accumulate.
    SumRows,
    /// `tokens u32 [T], table [V,H] -> out [T,H]`: rows of the table.
    Embedding,
    /// `tokens u32 [T], dy [T,H] -> dtable [V,H]`: adds row t of `dy` to row `tokens[t]`, t ascending. Must accumulate.
    EmbeddingGrad,
    /// `table [P,H] -> out [T,H]`: row `first + t mod tokens` for the token t of a sequence: learned positions.
    Positions {
        /// Tokens per sequence in this call; T is a multiple.
        tokens: u64,
        /// Row of the table for the first token (OPT starts at 2).
        first: u64,
    },
    /// `dy [T,H] -> dtable [P,H]`: adds row t of `dy` to row `first + t mod tokens`, t ascending. Must accumulate.
    PositionsGrad {
        /// Tokens per sequence in this call; T is a multiple.
        tokens: u64,
        /// Row of the table for the first token.
        first: u64,
    },
    /// `x [R,C], gain [C] [, residual [R,C]] -> y [R,C], inv_rms f32 [R] [, sum [R,C]]`:
    /// `inv_rms = 1 / sqrt(mean(x^2) + eps)`, `y = x inv_rms gain`. With a residual, x stands for `x + residual`, rounded as
    /// it is stored in `sum`, which may be the same value as `x` or the residual.
    RmsNorm {
        /// Added to the mean square.
        eps: f64,
    },
    /// `x [R,C], gain [C], inv_rms f32 [R], dy [R,C] [, residual [R,C]] -> dx [R,C]`: the gradient, plus the residual
    /// (the gradient that arrives past the norm). May accumulate.
    RmsNormGrad,
    /// `x [R,C], inv_rms f32 [R], dy [R,C] -> dgain [C]`. May accumulate.
    RmsNormGainGrad,
    /// `x [R,C], gain [C], bias [C] [, residual [R,C]] -> y [R,C], mean f32 [R], inv_std f32 [R] [, sum [R,C]]`:
    /// `y = (x - mean) inv_std gain + bias`, `inv_std = 1 / sqrt(variance + eps)` with the variance over C (not C - 1); the
    /// residual and the sum are those of [`Op::RmsNorm`].
    LayerNorm {
        /// Added to the variance.
        eps: f64,
    },
    /// `x [R,C], gain [C], mean f32 [R], inv_std f32 [R], dy [R,C] [, residual [R,C]] -> dx [R,C]`: the gradient, plus
    /// the residual. May accumulate.
    LayerNormGrad,
    /// `x [R,C], mean f32 [R], inv_std f32 [R], dy [R,C] -> dgain [C], dbias [C]`. Both may accumulate.
    LayerNormParamGrad,
    /// `x [T, heads*head_dim] -> y` of the same type, which may be the same value: rotates pairs of components of each
    /// head by `position * base^(-2 i / rotary)` for pair i of `rotary / 2`; components from `rotary` on are copied.
    /// The position of row t is `first + t mod tokens`. Cosine and sine are computed in f64 and rounded to f32.
    Rope {
        /// Tokens per sequence in this call; T is a multiple.
        tokens: u64,
        /// The position of the first token of a sequence in this call.
        first: u64,
        /// Components of a head.
        head_dim: u64,
        /// Components that rotate, even, at most `head_dim`.
        rotary: u64,
        /// The base of the frequencies, 10000 in the original.
        base: f64,
        /// Which components form a pair.
        pairing: Pairing,
        /// A change of the frequencies for long contexts.
        scaling: Option<RopeScaling>,
        /// Rotate backwards: the gradient.
        inverse: bool,
    },
    /// `q [B*S, heads*head_dim], (k [B*K, kv_heads*head_dim], v` like `k).. -> o` like `q`, `lse f32 [B*heads, S]`:
    /// `o = softmax(scale q k^T + mask) v` per head, where head h reads key head `h * kv_heads / heads`, and `lse` is
    /// the natural logarithm of the sum of exponentials of each row. The keys of a sequence come in one or more
    /// *parts*, each a pair of `k` and `v` with an extent K of its own, in the order of positions: those of earlier
    /// slices, and last the slice's own. Query s of a sequence stands at position `sum(K) - S + s`.
    Attention(AttentionShape),
    /// `q, (k, v).., o, lse, do -> dq, (dk, dv)..`, with the shapes of [`Op::Attention`]. All may accumulate, each for
    /// itself.
    AttentionGrad(AttentionShape),
    /// `x [R,C] -> y [R,C]`: softmax of each row.
    Softmax,
    /// `y [R,C], dy [R,C] -> dx [R,C]`: `dx = y (dy - sum(dy y))`. May accumulate.
    SoftmaxGrad,
    /// `logits [T,V], targets u32 [T] -> loss f64 [1], lse f32 [T]`: `loss` is the sum over the rows whose target is
    /// not `ignore` of `lse - logits[target]`, in f64, rows ascending.
    CrossEntropy {
        /// The target that counts for nothing.
        ignore: Option<u32>,
    },
    /// `logits [T,V], targets u32 [T], lse f32 [T] -> dlogits [T,V]`, which may be the same value as `logits`:
    /// `scale (softmax(logits) - onehot(target))`; zero in rows whose target is `ignore`.
    CrossEntropyGrad {
        /// The target that counts for nothing.
        ignore: Option<u32>,
        /// The factor: one over the number of counted tokens of the whole global batch.
        scale: ScalarId,
    },
    /// `x.. -> y..`: element-wise expressions over inputs; all outputs have the same shape. An input has that shape, or
    /// is the innermost row `[C]` (repeated for every row), or has one element (repeated everywhere). An output may be
    /// the same value as an input of the full shape. Outputs may accumulate.
    Map {
        /// The expression, each node after its operands.
        nodes: Vec<Node>,
        /// The node of each output.
        results: Vec<u32>,
        /// What [`Node::Random`] draws from; present exactly when one occurs.
        seed: Option<Seed>,
    },
    /// `x.. -> squares f64 [N]`: the sum of squares of each of the N inputs, in f64, elements ascending.
    SumSquares,
    /// `squares f64 [N] -> norm f64 [1], factor f32 [1]`: `norm` is the root of the sum, ascending; `factor` is
    /// `min(1, limit / norm)`, 1 for a norm of zero.
    ClipFactor {
        /// The largest norm that passes unchanged.
        limit: f64,
    },
    /// `gradient [N] [, factor f32 [1]] -> weight [N], moment f32 [N], variance f32 [N] [, master f32 [N]]`, outputs
    /// updated in place. With a master, `w` below is the master and the weight becomes its rounding.
    /// With `g = factor * gradient`: `m = beta1 m + (1 - beta1) g`, `v = beta2 v + (1 - beta2) g^2`,
    /// `w = w (1 - rate weight_decay) - rate / (1 - beta1^step) * m / (sqrt(v) / sqrt(1 - beta2^step) + eps)`
    /// (decoupled weight decay, Loshchilov and Hutter 2019).
    AdamW {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the root of the second moment.
        eps: f64,
        /// Decay of the weights per unit of learning rate.
        weight_decay: f64,
        /// The learning rate, a real scalar.
        learning_rate: ScalarId,
        /// The number of this step, from 1, an integer scalar.
        step: ScalarId,
    },
}

/// What random numbers depend on besides their site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed {
    /// The integer scalar of the call.
    pub scalar: ScalarId,
    /// Which rows of whole sequences the call has; none if it has whole sequences.
    pub part: Option<Part>,
}

/// A slice of every sequence: row r of a call is row `(r / tokens) whole + first + r mod tokens` of the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Tokens per sequence in this call, at least 1.
    pub tokens: u64,
    /// Tokens of a sequence before them.
    pub first: u64,
    /// Tokens of a whole sequence.
    pub whole: u64,
}

/// The sizes of an attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Sequences B in this call.
    pub sequences: u64,
    /// Query heads.
    pub heads: u64,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u64,
    /// Components of a head.
    pub head_dim: u64,
    /// Which keys a query sees.
    pub mask: Mask,
    /// The factor of the scores, `1 / sqrt(head_dim)` unless the model says otherwise.
    pub scale: f64,
}

/// Which keys a query at position i sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mask {
    /// All.
    Full,
    /// `0 ..= i`.
    Causal,
    /// The last `size` up to itself: `i - size + 1 ..= i`, from 0.
    Window {
        /// The number of keys seen, at least 1.
        size: u64,
    },
}

/// Which components of a head rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pairing {
    /// Component i with `i + rotary / 2`: GPT-NeoX, Llama in Hugging Face form.
    Half,
    /// Component 2 i with 2 i + 1: the original paper, GPT-J.
    Adjacent,
}

/// The frequency change of Llama 3.1: wavelengths above `original / low` are divided by `factor`, those below
/// `original / high` stay, and between them the two are blended linearly in `original / wavelength`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeScaling {
    /// The divisor of low frequencies.
    pub factor: f64,
    /// `low_freq_factor` of the published configuration.
    pub low: f64,
    /// `high_freq_factor` of the published configuration.
    pub high: f64,
    /// The context length before the extension.
    pub original: u64,
}

/// A node of an element-wise expression; operands are earlier nodes. All arithmetic is f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Node {
    /// Element of the kernel's input of this position.
    Input(u32),
    /// A constant.
    Constant(f32),
    /// One operand.
    Unary(UnaryOp, u32),
    /// Two operands.
    Binary(BinaryOp, u32, u32),
    /// A number in [0, 1) that depends on the seed, the salt and the flat index of the element in whole sequences alone
    /// (see [`Part`]), so that slices draw what the whole would: the upper 24 bits
    /// of SplitMix64's output number `index` for the state `at(seed, salt)`, times 2^-24. Dropout.
    Random {
        /// Tells the sites of one function apart.
        salt: u64,
    },
}

/// Functions of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UnaryOp {
    /// `-x`
    Neg,
    /// `e^x`
    Exp,
    /// Hyperbolic tangent.
    Tanh,
    /// The error function.
    Erf,
    /// `1 / (1 + e^-x)`
    Sigmoid,
}

/// Functions of two elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BinaryOp {
    /// `a + b`
    Add,
    /// `a - b`
    Sub,
    /// `a * b`
    Mul,
    /// `a / b`
    Div,
    /// The larger; `a` where they are equal or not comparable.
    Max,
    /// The smaller; `a` where they are equal or not comparable.
    Min,
    /// 1 where `a < b`, else 0.
    Less,
}

impl Op {
    /// The spelling in `.pprog` text and reports.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Matmul { .. } => "matmul",
            Self::SumRows => "sum_rows",
            Self::Embedding => "embedding",
            Self::EmbeddingGrad => "embedding_grad",
            Self::Positions { .. } => "positions",
            Self::PositionsGrad { .. } => "positions_grad",
            Self::RmsNorm { .. } => "rms_norm",
            Self::RmsNormGrad => "rms_norm_grad",
            Self::RmsNormGainGrad => "rms_norm_gain_grad",
            Self::LayerNorm { .. } => "layer_norm",
            Self::LayerNormGrad => "layer_norm_grad",
            Self::LayerNormParamGrad => "layer_norm_param_grad",
            Self::Rope { .. } => "rope",
            Self::Attention(_) => "attention",
            Self::AttentionGrad(_) => "attention_grad",
            Self::Softmax => "softmax",
            Self::SoftmaxGrad => "softmax_grad",
            Self::CrossEntropy { .. } => "cross_entropy",
            Self::CrossEntropyGrad { .. } => "cross_entropy_grad",
            Self::Map { .. } => "map",
            Self::SumSquares => "sum_squares",
            Self::ClipFactor { .. } => "clip_factor",
            Self::AdamW { .. } => "adamw",
        }
    }
}

impl UnaryOp {
    /// All functions of one element.
    pub const ALL: [Self; 5] = [Self::Neg, Self::Exp, Self::Tanh, Self::Erf, Self::Sigmoid];

    /// The spelling in text and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Neg => "neg",
            Self::Exp => "exp",
            Self::Tanh => "tanh",
            Self::Erf => "erf",
            Self::Sigmoid => "sigmoid",
        }
    }
}

impl BinaryOp {
    /// All functions of two elements.
    pub const ALL: [Self; 7] = [Self::Add, Self::Sub, Self::Mul, Self::Div, Self::Max, Self::Min, Self::Less];

    /// The name in code and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Sub => "sub",
            Self::Mul => "mul",
            Self::Div => "div",
            Self::Max => "max",
            Self::Min => "min",
            Self::Less => "less",
        }
    }

    /// The spelling in `.pprog` text: `+`, `-`, `*`, `/` and `<` between the operands, `max` and `min` before them.
    pub fn symbol(self) -> &'static str {
        match self {
            Self::Add => "+",
            Self::Sub => "-",
            Self::Mul => "*",
            Self::Div => "/",
            Self::Max => "max",
            Self::Min => "min",
            Self::Less => "<",
        }
    }
}

impl fmt::Display for UnaryOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for BinaryOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
