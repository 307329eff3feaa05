//! The cost of every op by formula.
//!
//! Symbols as in [`Op`]: a matrix is rows × columns, T tokens, V vocabulary, H width. Softmax, norms and losses count the
//! operations of their formula as [`Op`] states it, with one operation per function of one element (exponential, root,
//! logarithm) and none for a comparison. An accumulating output adds one operation per element.

use super::Cost;
use crate::kernel::{AttentionShape, Mask, Node, Op};
use crate::tensor::TensorType;
use crate::units::{Bytes, Flops};

/// The cost of an op from the types of its operands and results; each result comes with its `accumulate` flag.
///
/// | op | operations |
/// | --- | --- |
/// | `matmul` | `2 M N K`, and `M N` with a bias |
/// | `sum_rows` | `T N` |
/// | `embedding`, `positions` | none |
/// | `embedding_grad`, `positions_grad` | `T H` |
/// | `rms_norm` | `4 R C + 4 R`, and `R C` with a residual |
/// | `rms_norm_grad`, `rms_norm_gain_grad` | `6 R C + 3 R`, `3 R C` |
/// | `layer_norm` | `8 R C + 5 R`, and `R C` with a residual |
/// | `layer_norm_grad`, `layer_norm_param_grad` | `10 R C + 2 R`, `5 R C` |
/// | `rope` | 3 for every rotated component; its table of angles is not counted |
/// | `attention` | per head and sequence `4 D P + 4 P + D S + 2 S` with P visible pairs |
/// | `attention_grad` | per head and sequence `10 D P + 6 P + 2 D S` |
/// | `softmax`, `softmax_grad` | `4 R C + R`, `4 R C` |
/// | `cross_entropy`, `cross_entropy_grad` | `3 T V + 4 T`, `3 T V + T` |
/// | `map` | one per element and arithmetic node |
/// | `sum_squares`, `clip_factor` | 2 per element, `N + 3` |
/// | `adamw` | 14 per element, 15 with a factor |
///
/// Traffic is the size of all operands and results, results that are added to or updated counted twice, with these
/// exceptions: a table is touched only in the rows of the tokens, and attention never stores its scores.
pub fn op(op: &Op, inputs: &[&TensorType], outputs: &[(&TensorType, bool)]) -> Cost {
    let input = Operands(inputs);
    let result = outputs.first().map(|output| output.0);
    let elements = result.map_or(0, |ty| ty.shape.elements());
    let added: u64 = outputs.iter().filter(|output| output.1).map(|output| output.0.shape.elements()).sum();
    let traffic = inputs.iter().map(|ty| ty.bytes()).sum::<Bytes>()
        + outputs.iter().map(|(ty, accumulate)| ty.bytes() * (1 + u64::from(*accumulate))).sum::<Bytes>();

    let cost = |flops: u64| Cost { flops: Flops(flops.saturating_add(added)), traffic };
    match op {
        Op::Matmul { transpose_a, .. } => {
            let k = if *transpose_a { input.rows(0) } else { input.columns(0) };
            let elements: u64 = outputs.iter().map(|output| output.0.shape.elements()).sum();
            let bias = if inputs.len() > 1 + outputs.len() { elements } else { 0 };
            cost(product(&[2, elements, k]).saturating_add(bias))
        }
        Op::SumRows => cost(input.elements(0)),
        Op::Embedding | Op::Positions { .. } => {
            let tokens = if let Op::Embedding = op { input.bytes(0) } else { Bytes::ZERO };
            let rows = result.map(|ty| ty.bytes()).unwrap_or_default();
            Cost { flops: Flops::ZERO, traffic: tokens + rows * 2 }
        }
        Op::EmbeddingGrad | Op::PositionsGrad { .. } => {
            // The additions are the op itself; rows of the table are read, added to and written.
            let gradient = if let Op::EmbeddingGrad = op { 1 } else { 0 };
            let tokens = if gradient == 1 { input.bytes(0) } else { Bytes::ZERO };
            let added = input.elements(gradient);
            let element = result.map(|ty| ty.dtype.bytes()).unwrap_or_default();
            Cost {
                flops: Flops(added),
                traffic: tokens + input.bytes(gradient) + element * added.saturating_mul(2),
            }
        }
        Op::RmsNorm { .. } => cost(per_row(&input, if inputs.len() > 2 { 5 } else { 4 }, 4)),
        Op::RmsNormGrad => cost(per_row(&input, 6, 3)),
        Op::RmsNormGainGrad => cost(per_row(&input, 3, 0)),
        Op::LayerNorm { .. } => cost(per_row(&input, if inputs.len() > 3 { 9 } else { 8 }, 5)),
        Op::LayerNormGrad => cost(per_row(&input, 10, 2)),
        Op::LayerNormParamGrad => cost(per_row(&input, 5, 0)),
        Op::Rope { head_dim, rotary, .. } => {
            let heads = elements.checked_div(*head_dim).unwrap_or(0);
            cost(product(&[3, heads, *rotary]))
        }
        Op::Attention(shape) => {
            let (queries, keys) = lengths(shape, &input, 0);
            let pairs = visible_pairs(shape.mask, queries, keys);
            let per_head = product(&[4, shape.head_dim, pairs])
                .saturating_add(product(&[4, pairs]))
                .saturating_add(product(&[shape.head_dim, queries]))
                .saturating_add(product(&[2, queries]));
            cost(product(&[shape.sequences, shape.heads, per_head]))
        }
        Op::AttentionGrad(shape) => {
            let (queries, keys) = lengths(shape, &input, 3);
            let pairs = visible_pairs(shape.mask, queries, keys);
            let per_head = product(&[10, shape.head_dim, pairs])
                .saturating_add(product(&[6, pairs]))
                .saturating_add(product(&[2, shape.head_dim, queries]));
            cost(product(&[shape.sequences, shape.heads, per_head]))
        }
        Op::Softmax => cost(per_row(&input, 4, 1)),
        Op::SoftmaxGrad => cost(per_row(&input, 4, 0)),
        Op::CrossEntropy { .. } => cost(per_row(&input, 3, 4)),
        Op::CrossEntropyGrad { .. } => cost(per_row(&input, 3, 1)),
        Op::Map { nodes, .. } => {
            let arithmetic = nodes.iter().filter(|node| match node {
                Node::Unary(..) | Node::Binary(..) | Node::Random { .. } => true,
                Node::Input(_) | Node::Constant(_) => false,
            });
            cost(product(&[arithmetic.count() as u64, elements]))
        }
        Op::SumSquares => {
            let elements = inputs.iter().fold(0u64, |sum, ty| sum.saturating_add(ty.shape.elements()));
            cost(product(&[2, elements]))
        }
        Op::ClipFactor { .. } => cost(input.elements(0).saturating_add(3)),
        Op::AdamW { .. } => {
            let each = if inputs.len() > 1 { 15 } else { 14 };
            let updated = outputs.iter().map(|output| output.0.bytes() * 2).sum::<Bytes>();
            let read = inputs.iter().map(|ty| ty.bytes()).sum::<Bytes>();
            Cost { flops: Flops(product(&[each, elements])), traffic: read + updated }
        }
    }
}

/// The number of (query, key) pairs that a mask lets see each other: queries are the last `queries` of `keys` positions.
///
/// - full: `S K`
/// - causal: `S (K - S) + S (S + 1) / 2`
/// - window of w: the sum over queries of `min(w, K - S + s + 1)`
fn visible_pairs(mask: Mask, queries: u64, keys: u64) -> u64 {
    let (queries, keys) = (u128::from(queries), u128::from(keys));
    let prefix = keys.saturating_sub(queries);
    // Query s sees all of `prefix + s + 1` positions up to itself.
    let up_to_itself =
        |count: u128| prefix.saturating_mul(count).saturating_add(count.saturating_mul(count + 1) / 2);
    let pairs = match mask {
        Mask::Full => queries.saturating_mul(keys),
        Mask::Causal => up_to_itself(queries),
        Mask::Window { size } => {
            // The first queries, whose positions are all inside the window, then those that see exactly `size`.
            let size = u128::from(size);
            let growing = size.saturating_sub(prefix).min(queries);
            up_to_itself(growing).saturating_add((queries - growing).saturating_mul(size))
        }
    };
    u64::try_from(pairs).unwrap_or(u64::MAX)
}

/// Queries and keys of one sequence, where `after` other operands follow the parts of keys and values.
fn lengths(shape: &AttentionShape, input: &Operands<'_>, after: usize) -> (u64, u64) {
    let length = |position| input.rows(position).checked_div(shape.sequences).unwrap_or(0);
    let parts = (1..input.0.len().saturating_sub(after)).step_by(2);
    (length(0), parts.map(length).fold(0, u64::saturating_add))
}

/// `each * R * C + row * R` for the first operand.
fn per_row(input: &Operands<'_>, each: u64, row: u64) -> u64 {
    product(&[each, input.elements(0)]).saturating_add(product(&[row, input.rows(0)]))
}

fn product(factors: &[u64]) -> u64 {
    factors.iter().fold(1, |product, &factor| product.saturating_mul(factor))
}

/// The types of the operands; one that is missing has no elements.
struct Operands<'a>(&'a [&'a TensorType]);

impl Operands<'_> {
    fn elements(&self, position: usize) -> u64 {
        self.0.get(position).map_or(0, |ty| ty.shape.elements())
    }
    fn rows(&self, position: usize) -> u64 {
        self.0.get(position).map_or(0, |ty| ty.shape.rows())
    }
    fn columns(&self, position: usize) -> u64 {
        self.0.get(position).map_or(0, |ty| ty.shape.last())
    }
    fn bytes(&self, position: usize) -> Bytes {
        self.0.get(position).map(|ty| ty.bytes()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::ScalarId;
    use crate::kernel::{BinaryOp, UnaryOp};
    use crate::tensor::DType;

    fn f32(extents: &[u64]) -> TensorType {
        TensorType::new(DType::F32, extents)
    }

    #[test]
    fn a_matmul_counts_two_per_multiply_add() {
        let (a, b, c, bias) = (f32(&[3, 5]), f32(&[7, 5]), f32(&[3, 7]), f32(&[7]));
        let matmul = Op::Matmul { transpose_a: false, transpose_b: true };
        let plain = op(&matmul, &[&a, &b], &[(&c, false)]);
        assert_eq!(plain, Cost { flops: Flops(2 * 3 * 5 * 7), traffic: Bytes(4 * (15 + 35 + 21)) });
        let biased = op(&matmul, &[&a, &b, &bias], &[(&c, false)]);
        assert_eq!(biased.flops, Flops(2 * 3 * 5 * 7 + 21));
        let added = op(&matmul, &[&a, &b], &[(&c, true)]);
        assert_eq!(added, Cost { flops: Flops(2 * 3 * 5 * 7 + 21), traffic: Bytes(4 * (15 + 35 + 2 * 21)) });
        // a stored [K,M]: K is the number of rows.
        let transposed = Op::Matmul { transpose_a: true, transpose_b: false };
        assert_eq!(op(&transposed, &[&f32(&[5, 3]), &f32(&[5, 7])], &[(&c, false)]).flops, plain.flops);
    }

    #[test]
    fn a_norm_of_a_sum_costs_the_addition_and_no_second_reading() {
        let (x, gain, row) = (f32(&[4, 8]), f32(&[8]), f32(&[4]));
        let add = Op::Map {
            nodes: vec![Node::Input(0), Node::Input(1), Node::Binary(BinaryOp::Add, 0, 1)],
            results: vec![2],
            seed: None,
        };
        let add = op(&add, &[&x, &x], &[(&x, false)]);
        for (norm, parameters, statistics) in
            [(Op::RmsNorm { eps: 1e-5 }, 1, 1), (Op::LayerNorm { eps: 1e-5 }, 2, 2)]
        {
            let mut inputs = [&[&x][..], &vec![&gain; parameters]].concat();
            let mut outputs = [&[(&x, false)][..], &vec![(&row, false); statistics]].concat();
            let plain = op(&norm, &inputs, &outputs);
            inputs.push(&x);
            outputs.push((&x, false));
            let both = op(&norm, &inputs, &outputs);
            assert_eq!(both.flops, plain.flops + add.flops);
            assert_eq!(both.traffic + x.bytes(), plain.traffic + add.traffic);
        }
    }

    #[test]
    fn visible_pairs_agree_with_counting() {
        for queries in 0..7u64 {
            for keys in queries..9 {
                for mask in [Mask::Full, Mask::Causal, Mask::Window { size: 1 }, Mask::Window { size: 3 }] {
                    let mut counted = 0;
                    for query in 0..queries {
                        let position = keys - queries + query;
                        counted += (0..keys)
                            .filter(|&key| match mask {
                                Mask::Full => true,
                                Mask::Causal => key <= position,
                                Mask::Window { size } => key <= position && key + size > position,
                            })
                            .count() as u64;
                    }
                    assert_eq!(visible_pairs(mask, queries, keys), counted, "{mask:?} {queries} {keys}");
                }
            }
        }
    }

    #[test]
    fn slices_of_causal_attention_cost_as_much_as_the_whole() {
        let whole = visible_pairs(Mask::Causal, 64, 64);
        let slices: u64 = (1..=4).map(|slice| visible_pairs(Mask::Causal, 16, 16 * slice)).sum();
        assert_eq!(whole, slices);
    }

    #[test]
    fn an_embedding_touches_only_the_rows_of_its_tokens() {
        let tokens = TensorType::new(DType::U32, &[6]);
        let (table, rows) = (f32(&[50_000, 8]), f32(&[6, 8]));
        let forward = op(&Op::Embedding, &[&tokens, &table], &[(&rows, false)]);
        assert_eq!(forward, Cost { flops: Flops(0), traffic: Bytes(6 * 4 + 2 * 6 * 8 * 4) });
        let backward = op(&Op::EmbeddingGrad, &[&tokens, &rows], &[(&table, true)]);
        assert_eq!(backward, Cost { flops: Flops(48), traffic: Bytes(6 * 4 + 3 * 6 * 8 * 4) });
    }

    #[test]
    fn a_map_counts_its_arithmetic_nodes() {
        let x = f32(&[4, 8]);
        let silu = Op::Map {
            nodes: vec![Node::Input(0), Node::Unary(UnaryOp::Sigmoid, 0), Node::Binary(BinaryOp::Mul, 0, 1)],
            results: vec![2],
            seed: None,
        };
        assert_eq!(op(&silu, &[&x], &[(&x, false)]), Cost { flops: Flops(64), traffic: Bytes(256) });
    }

    #[test]
    fn adamw_reads_and_writes_three_tensors() {
        let w = f32(&[100]);
        let adamw = Op::AdamW {
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay: 0.1,
            learning_rate: ScalarId(0),
            step: ScalarId(1),
        };
        let cost = op(&adamw, &[&w], &[(&w, false), (&w, false), (&w, false)]);
        assert_eq!(cost, Cost { flops: Flops(1400), traffic: Bytes(400 * 7) });
    }

    #[test]
    fn huge_extents_saturate() {
        let huge = f32(&[u64::MAX, 2]);
        let cost = op(&Op::Softmax, &[&huge], &[(&huge, true)]);
        assert_eq!(cost.flops, Flops(u64::MAX));
    }
}
