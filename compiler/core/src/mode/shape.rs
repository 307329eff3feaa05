//! The operations of graphs as ops of the program: attributes and shapes for a slice.

use super::{Extent, LOSS_SCALE, SEED};
use crate::graph::{Op, Type};
use pipec_program::{self as program, AttentionShape, DType, Seed, TensorType};

impl Extent<'_> {
    /// The rows of a value per token: the tokens of the slice in all sequences.
    pub(super) fn rows(self) -> u64 {
        self.sequences * self.tokens()
    }
}

/// The type of a value for a slice: `[rows, columns]`, with one vector per row where an op works on `heads` of them.
pub(crate) fn tensor(ty: &Type, heads: u64, extent: Extent<'_>) -> TensorType {
    let rows = extent.rows();
    match ty {
        Type::PerToken { dtype: DType::U32, .. } => TensorType::new(DType::U32, &[rows]),
        Type::PerToken { dtype, columns } => TensorType::new(*dtype, &[rows * heads, columns / heads]),
        Type::Statistic { dtype, heads } => TensorType::new(*dtype, &[rows * heads]),
        Type::Whole { dtype, shape } => TensorType::new(*dtype, shape),
        Type::Tuple(_) => TensorType::new(DType::U32, &[0]),
    }
}

/// The types of the results of an operation.
pub(super) fn results(op: &Op, ty: &Type, extent: Extent<'_>) -> Vec<TensorType> {
    let types = match ty {
        Type::Tuple(types) => types.as_slice(),
        Type::PerToken { .. } | Type::Statistic { .. } | Type::Whole { .. } => std::slice::from_ref(ty),
    };
    let of = |ty: &Type| match (op, ty) {
        // Row by row of a head.
        (Op::Attention(attention), Type::Statistic { dtype, .. }) => {
            TensorType::new(*dtype, &[extent.sequences * attention.heads, extent.tokens()])
        }
        (_, ty) => tensor(ty, 1, extent),
    };
    types.iter().map(of).collect()
}

/// How many vectors per token an operation works on.
pub(crate) fn heads(op: &Op) -> u64 {
    match op {
        Op::RmsNorm { heads, .. }
        | Op::LayerNorm { heads, .. }
        | Op::Softmax { heads }
        | Op::RmsNormGrad { heads }
        | Op::RmsNormGainGrad { heads }
        | Op::LayerNormGrad { heads }
        | Op::LayerNormParamGrad { heads }
        | Op::SoftmaxGrad { heads } => *heads,
        Op::Input(_)
        | Op::Weight(_)
        | Op::Tokens
        | Op::Targets
        | Op::Places
        | Op::OutputGradient(_)
        | Op::Part(_)
        | Op::Embedding
        | Op::Positions { .. }
        | Op::Linear
        | Op::Rope(_)
        | Op::Attention(_)
        | Op::Map(_)
        | Op::CrossEntropy { .. }
        | Op::Product(_)
        | Op::WeightProduct
        | Op::SumRows
        | Op::EmbeddingGrad
        | Op::PositionsGrad { .. }
        | Op::AttentionGrad { .. }
        | Op::CrossEntropyGrad { .. } => 1,
    }
}

/// The op of a program that an operation is for a slice; none for a value that nothing computes.
pub(crate) fn kernel(op: &Op, extent: Extent<'_>) -> Option<program::Op> {
    let (tokens, first) = (extent.tokens(), extent.first(extent.slice));
    let attention = |of: &crate::graph::Attention| AttentionShape {
        sequences: extent.sequences,
        heads: of.heads,
        kv_heads: of.kv_heads,
        head_dim: of.head_dim,
        mask: of.mask,
        scale: of.scale.value(),
    };
    Some(match op {
        Op::Input(_)
        | Op::Weight(_)
        | Op::Tokens
        | Op::Targets
        | Op::Places
        | Op::OutputGradient(_)
        | Op::Part(_) => return None,
        Op::Embedding => program::Op::Embedding,
        Op::Positions { first: row } => program::Op::Positions { tokens, first: row + first },
        Op::Linear => program::Op::Matmul { transpose_a: false, transpose_b: true },
        Op::RmsNorm { eps, .. } => program::Op::RmsNorm { eps: eps.value() },
        Op::LayerNorm { eps, .. } => program::Op::LayerNorm { eps: eps.value() },
        Op::Rope(rope) => program::Op::Rope {
            tokens,
            first,
            head_dim: rope.head_dim,
            rotary: rope.rotary,
            base: rope.base,
            pairing: rope.pairing,
            scaling: rope.scaling,
            inverse: rope.inverse,
        },
        Op::Attention(of) => program::Op::Attention(attention(of)),
        Op::Softmax { .. } => program::Op::Softmax,
        Op::Map(formula) => program::Op::Map {
            nodes: formula.nodes.clone(),
            results: formula.results.clone(),
            seed: formula.is_random().then_some(Seed { scalar: SEED, part: extent.part() }),
        },
        Op::CrossEntropy { ignore } => program::Op::CrossEntropy { ignore: *ignore },
        Op::Product(_) => program::Op::Matmul { transpose_a: false, transpose_b: false },
        Op::WeightProduct => program::Op::Matmul { transpose_a: true, transpose_b: false },
        Op::SumRows => program::Op::SumRows,
        Op::EmbeddingGrad => program::Op::EmbeddingGrad,
        Op::PositionsGrad { first: row } => program::Op::PositionsGrad { tokens, first: row + first },
        Op::RmsNormGrad { .. } => program::Op::RmsNormGrad,
        Op::RmsNormGainGrad { .. } => program::Op::RmsNormGainGrad,
        Op::LayerNormGrad { .. } => program::Op::LayerNormGrad,
        Op::LayerNormParamGrad { .. } => program::Op::LayerNormParamGrad,
        Op::AttentionGrad { of, .. } => program::Op::AttentionGrad(attention(of)),
        Op::SoftmaxGrad { .. } => program::Op::SoftmaxGrad,
        Op::CrossEntropyGrad { ignore } => {
            program::Op::CrossEntropyGrad { ignore: *ignore, scale: LOSS_SCALE }
        }
    })
}
