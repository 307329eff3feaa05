//! Signatures: what every op asks of the types of its operands, which outputs may accumulate, and which may stand in
//! the place of an input.
//!
//! Shapes follow the convention of [`crate::kernel`]: a matrix is rows × columns, where columns is the innermost
//! extent; a vector is any value with as many elements. *Real* means f16, bf16, f32 or f64.

use crate::function::ScalarType;
use crate::id::ScalarId;
use crate::kernel::{AttentionShape, Mask, Node, Op, Part, Seed};
use crate::program::StepInput;
use crate::tensor::{DType, TensorType};

/// Whether an output adds to what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accumulation {
    /// It must overwrite.
    Never,
    /// It may do either.
    Allowed,
    /// It must add.
    Always,
}

/// Whether the outputs of an op add to what is there; the outputs of one op all may or none.
pub fn accumulation(op: &Op) -> Accumulation {
    match op {
        Op::Matmul { .. }
        | Op::SumRows
        | Op::RmsNormGrad
        | Op::RmsNormGainGrad
        | Op::LayerNormGrad
        | Op::LayerNormParamGrad
        | Op::AttentionGrad(_)
        | Op::SoftmaxGrad
        | Op::Map { .. } => Accumulation::Allowed,
        Op::EmbeddingGrad | Op::PositionsGrad { .. } => Accumulation::Always,
        Op::Embedding
        | Op::Positions { .. }
        | Op::RmsNorm { .. }
        | Op::LayerNorm { .. }
        | Op::Rope { .. }
        | Op::Attention(_)
        | Op::Softmax
        | Op::CrossEntropy { .. }
        | Op::CrossEntropyGrad { .. }
        | Op::SumSquares
        | Op::ClipFactor { .. }
        // Updated in place, which is not an accumulation.
        | Op::AdamW { .. } => Accumulation::Never,
    }
}

/// Whether an op reads its outputs before it writes them, accumulation aside.
pub fn updates_in_place(op: &Op) -> bool {
    match op {
        Op::AdamW { .. } => true,
        Op::Matmul { .. }
        | Op::SumRows
        | Op::Embedding
        | Op::EmbeddingGrad
        | Op::Positions { .. }
        | Op::PositionsGrad { .. }
        | Op::RmsNorm { .. }
        | Op::RmsNormGrad
        | Op::RmsNormGainGrad
        | Op::LayerNorm { .. }
        | Op::LayerNormGrad
        | Op::LayerNormParamGrad
        | Op::Rope { .. }
        | Op::Attention(_)
        | Op::AttentionGrad(_)
        | Op::Softmax
        | Op::SoftmaxGrad
        | Op::CrossEntropy { .. }
        | Op::CrossEntropyGrad { .. }
        | Op::Map { .. }
        | Op::SumSquares
        | Op::ClipFactor { .. } => false,
    }
}

/// Whether an output that overwrites may have exactly the bytes of an input of the same type.
pub fn may_replace(op: &Op, output: usize, input: usize) -> bool {
    match op {
        Op::Rope { .. } | Op::CrossEntropyGrad { .. } => output == 0 && input == 0,
        Op::Map { .. } => true,
        // The sum, in the place of either of its operands.
        Op::RmsNorm { .. } => output == 2 && (input == 0 || input == 2),
        Op::LayerNorm { .. } => output == 3 && (input == 0 || input == 3),
        Op::Matmul { .. }
        | Op::SumRows
        | Op::Embedding
        | Op::EmbeddingGrad
        | Op::Positions { .. }
        | Op::PositionsGrad { .. }
        | Op::RmsNormGrad
        | Op::RmsNormGainGrad
        | Op::LayerNormGrad
        | Op::LayerNormParamGrad
        | Op::Attention(_)
        | Op::AttentionGrad(_)
        | Op::Softmax
        | Op::SoftmaxGrad
        | Op::CrossEntropy { .. }
        | Op::SumSquares
        | Op::ClipFactor { .. }
        | Op::AdamW { .. } => false,
    }
}

/// The scalars that an op takes: their types and, where only one makes sense, the step input.
pub fn scalars(op: &Op) -> Vec<(ScalarId, ScalarType, StepInput)> {
    match op {
        Op::CrossEntropyGrad { scale, .. } => vec![(*scale, ScalarType::Real, StepInput::LossScale)],
        Op::Map { seed: Some(seed), .. } => vec![(seed.scalar, ScalarType::Integer, StepInput::Seed)],
        Op::AdamW { learning_rate, step, .. } => vec![
            (*learning_rate, ScalarType::Real, StepInput::LearningRate),
            (*step, ScalarType::Integer, StepInput::Step),
        ],
        Op::Map { seed: None, .. }
        | Op::Matmul { .. }
        | Op::SumRows
        | Op::Embedding
        | Op::EmbeddingGrad
        | Op::Positions { .. }
        | Op::PositionsGrad { .. }
        | Op::RmsNorm { .. }
        | Op::RmsNormGrad
        | Op::RmsNormGainGrad
        | Op::LayerNorm { .. }
        | Op::LayerNormGrad
        | Op::LayerNormParamGrad
        | Op::Rope { .. }
        | Op::Attention(_)
        | Op::AttentionGrad(_)
        | Op::Softmax
        | Op::SoftmaxGrad
        | Op::CrossEntropy { .. }
        | Op::SumSquares
        | Op::ClipFactor { .. } => Vec::new(),
    }
}

/// Checks the types of operands.
///
/// # Errors
/// The first thing that does not fit, in lower case: `input 1 has 8 columns, the op needs 16`.
pub fn check(op: &Op, inputs: &[&TensorType], outputs: &[&TensorType]) -> Result<(), String> {
    let o = Operands { inputs, outputs };
    match op {
        Op::Matmul { transpose_a, transpose_b } => matmul(&o, *transpose_a, *transpose_b),
        Op::SumRows => {
            o.counts(1..=1, 1)?;
            o.in_real(0)?;
            o.out_vector(0, o.columns(0))
        }
        Op::Embedding => {
            o.counts(2..=2, 1)?;
            o.tokens(0, o.inputs[0].shape.elements())?;
            o.in_real(1)?;
            o.out_matrix(0, o.inputs[0].shape.elements(), o.columns(1))
        }
        Op::EmbeddingGrad => {
            o.counts(2..=2, 1)?;
            o.tokens(0, o.rows(1))?;
            o.in_real(1)?;
            o.out_matrix(0, o.outputs[0].shape.rows(), o.columns(1))
        }
        Op::Positions { tokens, first } => {
            o.counts(1..=1, 1)?;
            positions(o.outputs[0], o.inputs[0], *tokens, *first)?;
            o.in_real(0)?;
            o.out_matrix(0, o.outputs[0].shape.rows(), o.columns(0))
        }
        Op::PositionsGrad { tokens, first } => {
            o.counts(1..=1, 1)?;
            positions(o.inputs[0], o.outputs[0], *tokens, *first)?;
            o.in_real(0)?;
            o.out_matrix(0, o.outputs[0].shape.rows(), o.columns(0))
        }
        Op::RmsNorm { eps } => {
            o.counts(2..=3, o.inputs.len())?;
            not_negative("eps", *eps)?;
            o.in_real(0)?;
            o.in_vector(1, o.columns(0))?;
            o.residual(2)?;
            o.out_matrix(0, o.rows(0), o.columns(0))?;
            o.out_exact(1, o.statistic(), o.rows(0))?;
            o.sum(2)
        }
        Op::RmsNormGrad => {
            o.counts(4..=5, 1)?;
            o.in_real(0)?;
            o.in_vector(1, o.columns(0))?;
            o.in_exact(2, o.statistic(), o.rows(0))?;
            o.in_like(3, 0)?;
            o.residual(4)?;
            o.out_matrix(0, o.rows(0), o.columns(0))
        }
        Op::RmsNormGainGrad => {
            o.counts(3..=3, 1)?;
            o.in_exact(1, o.statistic(), o.rows(0))?;
            o.in_like(2, 0)?;
            o.out_vector(0, o.columns(0))
        }
        Op::LayerNorm { eps } => {
            o.counts(3..=4, o.inputs.len())?;
            not_negative("eps", *eps)?;
            o.in_real(0)?;
            o.in_vector(1, o.columns(0))?;
            o.in_vector(2, o.columns(0))?;
            o.residual(3)?;
            o.out_matrix(0, o.rows(0), o.columns(0))?;
            o.out_exact(1, o.statistic(), o.rows(0))?;
            o.out_exact(2, o.statistic(), o.rows(0))?;
            o.sum(3)
        }
        Op::LayerNormGrad => {
            o.counts(5..=6, 1)?;
            o.in_real(0)?;
            o.in_vector(1, o.columns(0))?;
            o.in_exact(2, o.statistic(), o.rows(0))?;
            o.in_exact(3, o.statistic(), o.rows(0))?;
            o.in_like(4, 0)?;
            o.residual(5)?;
            o.out_matrix(0, o.rows(0), o.columns(0))
        }
        Op::LayerNormParamGrad => {
            o.counts(4..=4, 2)?;
            o.in_exact(1, o.statistic(), o.rows(0))?;
            o.in_exact(2, o.statistic(), o.rows(0))?;
            o.in_like(3, 0)?;
            o.out_vector(0, o.columns(0))?;
            o.out_vector(1, o.columns(0))
        }
        Op::Rope { tokens, head_dim, rotary, base, scaling, first: _, pairing: _, inverse: _ } => {
            o.counts(1..=1, 1)?;
            multiple("rows", o.rows(0), "tokens", *tokens)?;
            multiple("columns", o.columns(0), "head_dim", *head_dim)?;
            if !rotary.is_multiple_of(2) || rotary > head_dim {
                return Err(format!("rotary {rotary} is not an even number up to head_dim {head_dim}"));
            }
            positive("base", *base)?;
            if let Some(scaling) = scaling {
                positive("factor", scaling.factor)?;
                positive("low", scaling.low)?;
                positive("high", scaling.high)?;
            }
            o.in_real(0)?;
            o.out_matrix(0, o.rows(0), o.columns(0))
        }
        Op::Attention(shape) => {
            o.counts(3..=usize::MAX, 2)?;
            attention(&o, shape, 0)?;
            o.out_matrix(0, o.rows(0), o.columns(0))?;
            o.out_exact(1, o.statistic(), o.rows(0).saturating_mul(shape.heads))
        }
        Op::AttentionGrad(shape) => {
            o.counts(6..=usize::MAX, o.inputs.len().saturating_sub(3))?;
            let end = attention(&o, shape, 3)?;
            o.in_like(end, 0)?;
            o.in_exact(end + 1, o.statistic(), o.rows(0).saturating_mul(shape.heads))?;
            o.in_like(end + 2, 0)?;
            o.out_matrix(0, o.rows(0), o.columns(0))?;
            (1..end).try_for_each(|key| o.out_matrix(key, o.rows(key), o.columns(key)))
        }
        Op::Softmax => {
            o.counts(1..=1, 1)?;
            o.in_real(0)?;
            o.out_matrix(0, o.rows(0), o.columns(0))
        }
        Op::SoftmaxGrad => {
            o.counts(2..=2, 1)?;
            o.in_like(1, 0)?;
            o.out_matrix(0, o.rows(0), o.columns(0))
        }
        Op::CrossEntropy { ignore: _ } => {
            o.counts(2..=2, 2)?;
            o.in_real(0)?;
            o.tokens(1, o.rows(0))?;
            o.out_exact(0, DType::F64, 1)?;
            o.out_exact(1, o.statistic(), o.rows(0))
        }
        Op::CrossEntropyGrad { ignore: _, scale: _ } => {
            o.counts(3..=3, 1)?;
            o.in_real(0)?;
            o.tokens(1, o.rows(0))?;
            o.in_exact(2, o.statistic(), o.rows(0))?;
            o.out_matrix(0, o.rows(0), o.columns(0))
        }
        Op::Map { nodes, results, seed } => map(&o, nodes, results, seed.as_ref()),
        Op::SumSquares => {
            o.counts(1..=usize::MAX, 1)?;
            for input in 0..o.inputs.len() {
                o.in_real(input)?;
            }
            o.out_exact(0, DType::F64, o.inputs.len() as u64)
        }
        Op::ClipFactor { limit } => {
            o.counts(1..=1, 2)?;
            positive("limit", *limit)?;
            o.in_exact(0, DType::F64, o.inputs[0].shape.elements())?;
            o.out_exact(0, DType::F64, 1)?;
            o.out_exact(1, DType::F32, 1)
        }
        Op::AdamW { beta1, beta2, eps, weight_decay, learning_rate: _, step: _ } => {
            if !(3..=4).contains(&o.outputs.len()) {
                return Err(format!("the op has 3 or 4 outputs, here are {}", o.outputs.len()));
            }
            o.counts(1..=2, o.outputs.len())?;
            for (name, value) in [("beta1", beta1), ("beta2", beta2)] {
                if !(0.0..1.0).contains(value) {
                    return Err(format!("{name} {value:?} is not in [0, 1)"));
                }
            }
            not_negative("eps", *eps)?;
            not_negative("weight_decay", *weight_decay)?;
            let elements = o.inputs[0].shape.elements();
            o.in_real(0)?;
            if o.inputs.len() == 2 {
                o.in_exact(1, DType::F32, 1)?;
            }
            o.out_vector(0, elements)?;
            // The moments of an f64 weight are f32 or, for a run that is f64 throughout, f64.
            let wide = statistic(o.outputs[0].dtype);
            let moment = if o.outputs[1].dtype == wide { wide } else { DType::F32 };
            (1..o.outputs.len()).try_for_each(|output| o.out_exact(output, moment, elements))
        }
    }
}

/// The type of what the ops state as f32 beside values of a type: f64 in a program of f64 values.
fn statistic(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        DType::F32 | DType::F16 | DType::BF16 | DType::U32 => DType::F32,
    }
}

fn is_real(dtype: DType) -> bool {
    match dtype {
        DType::F32 | DType::F64 | DType::F16 | DType::BF16 => true,
        DType::U32 => false,
    }
}

fn positive(name: &str, value: f64) -> Result<(), String> {
    if value.is_finite() && value > 0.0 { Ok(()) } else { Err(format!("{name} {value:?} is not positive")) }
}

fn not_negative(name: &str, value: f64) -> Result<(), String> {
    if value.is_finite() && value >= 0.0 { Ok(()) } else { Err(format!("{name} {value:?} is negative")) }
}

fn multiple(what: &str, count: u64, name: &str, divisor: u64) -> Result<(), String> {
    if divisor > 0 && count.is_multiple_of(divisor) {
        Ok(())
    } else {
        Err(format!("{count} {what} are no multiple of {name} {divisor}"))
    }
}

fn positions(rows: &TensorType, table: &TensorType, tokens: u64, first: u64) -> Result<(), String> {
    multiple("rows", rows.shape.rows(), "tokens", tokens)?;
    if first.saturating_add(tokens) > table.shape.rows() {
        let last = first.saturating_add(tokens);
        return Err(format!("positions {first}..{last} do not fit a table of {} rows", table.shape.rows()));
    }
    Ok(())
}

fn matmul(o: &Operands<'_>, transpose_a: bool, transpose_b: bool) -> Result<(), String> {
    let products = o.outputs.len().max(1);
    let biased = o.inputs.len() > 1 + products;
    let expected = 1 + products * if biased { 2 } else { 1 };
    o.counts(expected..=expected, products)?;
    let sizes = |input: usize, transpose: bool| {
        if transpose { (o.columns(input), o.rows(input)) } else { (o.rows(input), o.columns(input)) }
    };
    let (m, k) = sizes(0, transpose_a);
    o.in_real(0)?;
    for product in 0..products {
        let (inner, n) = sizes(1 + product, transpose_b);
        if k != inner {
            return Err(format!(
                "the product of [{m},{k}] and [{inner},{n}] is not defined: {k} is not {inner}"
            ));
        }
        o.in_real(1 + product)?;
        if biased {
            o.in_vector(1 + products + product, n)?;
        }
        o.out_matrix(product, m, n)?;
    }
    Ok(())
}

/// Checks the queries and the parts of keys and values, which `after` other operands follow; returns their number.
fn attention(o: &Operands<'_>, shape: &AttentionShape, after: usize) -> Result<usize, String> {
    let AttentionShape { sequences, heads, kv_heads, head_dim, mask, scale } = *shape;
    if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
        return Err(format!("heads {heads} are no multiple of kv_heads {kv_heads}"));
    }
    multiple("rows of q", o.rows(0), "sequences", sequences)?;
    let end = o.inputs.len().saturating_sub(after);
    if !end.saturating_sub(1).is_multiple_of(2) {
        return Err("keys and values come in pairs".to_owned());
    }
    positive("scale", scale)?;
    o.in_real(0)?;
    let columns = heads.saturating_mul(head_dim);
    if o.columns(0) != columns {
        return Err(format!("q has {} columns, {heads} heads of {head_dim} have {columns}", o.columns(0)));
    }
    let columns = kv_heads.saturating_mul(head_dim);
    let mut keys = 0u64;
    for k in (1..end).step_by(2) {
        multiple("rows of k", o.rows(k), "sequences", sequences)?;
        if o.columns(k) != columns {
            let found = o.columns(k);
            return Err(format!("k has {found} columns, {kv_heads} heads of {head_dim} have {columns}"));
        }
        o.in_real(k)?;
        o.in_like(k + 1, k)?;
        keys = keys.saturating_add(o.rows(k));
    }
    let prefix = match mask {
        Mask::Full => true,
        Mask::Causal => keys >= o.rows(0),
        Mask::Window { size } => {
            if size == 0 {
                return Err("a window sees at least 1 key".to_owned());
            }
            keys >= o.rows(0)
        }
    };
    if prefix {
        Ok(end)
    } else {
        Err(format!("{keys} rows of keys are fewer than {} rows of queries", o.rows(0)))
    }
}

fn map(o: &Operands<'_>, nodes: &[Node], results: &[u32], seed: Option<&Seed>) -> Result<(), String> {
    if results.is_empty() {
        return Err("an expression has at least one result".to_owned());
    }
    o.counts(0..=usize::MAX, results.len())?;
    let mut random = false;
    for (position, node) in nodes.iter().enumerate() {
        let operands = match *node {
            Node::Input(input) => {
                if input as usize >= o.inputs.len() {
                    return Err(format!("n{position} takes x{input}, there are {} inputs", o.inputs.len()));
                }
                [None, None]
            }
            Node::Constant(value) => {
                if !value.is_finite() {
                    return Err(format!("n{position} is not finite"));
                }
                [None, None]
            }
            Node::Unary(_, a) => [Some(a), None],
            Node::Binary(_, a, b) => [Some(a), Some(b)],
            Node::Random { salt: _ } => {
                random = true;
                [None, None]
            }
        };
        if let Some(operand) = operands.into_iter().flatten().find(|&operand| operand as usize >= position) {
            return Err(format!("n{position} takes n{operand}, which does not stand before it"));
        }
    }
    if let Some(result) = results.iter().find(|&&result| result as usize >= nodes.len()) {
        return Err(format!("there is no node n{result}"));
    }
    if let Some(part) = seed.and_then(|seed| seed.part) {
        let Part { tokens, first, whole } = part;
        if tokens == 0 || first.checked_add(tokens).is_none_or(|end| end > whole) {
            return Err(format!("tokens {tokens} from {first} are no part of {whole}"));
        }
    }
    if random != seed.is_some() {
        return Err(if random { "random needs a seed" } else { "a seed without random" }.to_owned());
    }
    let (rows, columns) = (o.outputs[0].shape.rows(), o.outputs[0].shape.last());
    for output in 0..o.outputs.len() {
        o.out_matrix(output, rows, columns)?;
    }
    for (input, ty) in o.inputs.iter().enumerate() {
        o.in_real(input)?;
        let full = ty.shape.rows() == rows && ty.shape.last() == columns;
        if !full && ty.shape.elements() != columns && ty.shape.elements() != 1 {
            return Err(format!("input {input} is {ty}, which spreads over no [{rows},{columns}]"));
        }
    }
    Ok(())
}

/// The operands under check.
struct Operands<'a> {
    inputs: &'a [&'a TensorType],
    outputs: &'a [&'a TensorType],
}

impl Operands<'_> {
    fn counts(&self, inputs: std::ops::RangeInclusive<usize>, outputs: usize) -> Result<(), String> {
        if !inputs.contains(&self.inputs.len()) {
            let wanted = match (inputs.start(), inputs.end()) {
                (least, &usize::MAX) => format!("at least {least}"),
                (least, most) if least == most => least.to_string(),
                (least, most) => format!("{least} to {most}"),
            };
            return Err(format!("the op has {wanted} inputs, here are {}", self.inputs.len()));
        }
        if outputs != self.outputs.len() {
            return Err(format!("the op has {outputs} outputs, here are {}", self.outputs.len()));
        }
        Ok(())
    }

    fn rows(&self, input: usize) -> u64 {
        self.inputs[input].shape.rows()
    }

    fn columns(&self, input: usize) -> u64 {
        self.inputs[input].shape.last()
    }

    fn in_real(&self, input: usize) -> Result<(), String> {
        real("input", input, self.inputs[input])
    }

    fn in_vector(&self, input: usize, elements: u64) -> Result<(), String> {
        real("input", input, self.inputs[input])?;
        vector("input", input, self.inputs[input], elements)
    }

    /// The type of statistics that belong to the first input.
    fn statistic(&self) -> DType {
        statistic(self.inputs[0].dtype)
    }

    fn in_exact(&self, input: usize, dtype: DType, elements: u64) -> Result<(), String> {
        typed("input", input, self.inputs[input], dtype)?;
        vector("input", input, self.inputs[input], elements)
    }

    /// A real matrix with the rows and columns of another input.
    fn in_like(&self, input: usize, other: usize) -> Result<(), String> {
        real("input", other, self.inputs[other])?;
        matrix("input", input, self.inputs[input], self.rows(other), self.columns(other))
    }

    /// The optional last input, a matrix like the first.
    fn residual(&self, input: usize) -> Result<(), String> {
        if input < self.inputs.len() { self.in_like(input, 0) } else { Ok(()) }
    }

    /// The optional last output, a matrix like the first input.
    fn sum(&self, output: usize) -> Result<(), String> {
        if output < self.outputs.len() {
            self.out_matrix(output, self.rows(0), self.columns(0))
        } else {
            Ok(())
        }
    }

    fn tokens(&self, input: usize, count: u64) -> Result<(), String> {
        typed("input", input, self.inputs[input], DType::U32)?;
        vector("input", input, self.inputs[input], count)
    }

    fn out_matrix(&self, output: usize, rows: u64, columns: u64) -> Result<(), String> {
        matrix("output", output, self.outputs[output], rows, columns)
    }

    fn out_vector(&self, output: usize, elements: u64) -> Result<(), String> {
        real("output", output, self.outputs[output])?;
        vector("output", output, self.outputs[output], elements)
    }

    fn out_exact(&self, output: usize, dtype: DType, elements: u64) -> Result<(), String> {
        typed("output", output, self.outputs[output], dtype)?;
        vector("output", output, self.outputs[output], elements)
    }
}

fn real(side: &str, operand: usize, ty: &TensorType) -> Result<(), String> {
    if is_real(ty.dtype) { Ok(()) } else { Err(format!("{side} {operand} is {ty}, which is not real")) }
}

fn typed(side: &str, operand: usize, ty: &TensorType, dtype: DType) -> Result<(), String> {
    if ty.dtype == dtype { Ok(()) } else { Err(format!("{side} {operand} is {ty}, the op needs {dtype}")) }
}

fn vector(side: &str, operand: usize, ty: &TensorType, elements: u64) -> Result<(), String> {
    if ty.shape.elements() == elements {
        Ok(())
    } else {
        Err(format!("{side} {operand} is {ty}, the op needs {elements} elements"))
    }
}

fn matrix(side: &str, operand: usize, ty: &TensorType, rows: u64, columns: u64) -> Result<(), String> {
    real(side, operand, ty)?;
    if ty.shape.rows() == rows && ty.shape.last() == columns {
        Ok(())
    } else {
        Err(format!("{side} {operand} is {ty}, the op needs [{rows},{columns}]"))
    }
}
