//! Binding: an op with its operands becomes a kernel that needs no more questions when it runs.

use crate::attention;
use crate::elementwise::{Compiler, Expression, MapKernel, Reach};
use crate::gemm::{self, Product};
use crate::optimizer::AdamRates;
use crate::rope::{Rotation, Table};
use pipec_program::id::Id;
use pipec_program::{DType, Function, IdVec, Kernel, Op, Seed, Value, ValueId};
use std::ops::Range;
use std::sync::Arc;

pub(crate) use crate::elementwise::MOST_POINTERS;

/// A bound kernel with its operands.
pub(crate) struct Step {
    pub(crate) bound: Bound,
    pub(crate) inputs: Vec<Place>,
    pub(crate) outputs: Vec<Target>,
}

/// Where an operand lies and what it is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Place {
    /// The position of its region among the arguments.
    pub(crate) region: usize,
    /// Bytes from the start of the region.
    pub(crate) offset: usize,
    pub(crate) dtype: DType,
    pub(crate) elements: usize,
    /// Extents of the value as a matrix.
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

impl Place {
    fn bytes(&self) -> Range<usize> {
        self.offset..self.offset + self.elements * self.dtype.bytes().0 as usize
    }

    fn overlaps(&self, other: &Self) -> bool {
        let (a, b) = (self.bytes(), other.bytes());
        self.region == other.region && a.start < b.end && b.start < a.end
    }
}

/// Where a result goes.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) place: Place,
    /// Add to what is there.
    pub(crate) accumulate: bool,
}

/// A kernel with everything that is known before it runs. The operands are those of the op of the same name.
pub(crate) enum Bound {
    /// Products of one left operand.
    Matmul(Vec<Product>),
    SumRows,
    Embedding,
    EmbeddingGrad,
    Positions {
        tokens: usize,
        first: usize,
    },
    PositionsGrad {
        tokens: usize,
        first: usize,
    },
    RmsNorm {
        eps: f32,
    },
    RmsNormGrad,
    RmsNormGainGrad,
    LayerNorm {
        eps: f32,
    },
    LayerNormGrad,
    LayerNormParamGrad,
    Rope {
        table: Arc<Table>,
        head_dim: usize,
        inverse: bool,
    },
    Attention(attention::Shape),
    AttentionGrad(attention::Shape),
    Softmax,
    SoftmaxGrad,
    CrossEntropy {
        ignore: Option<u32>,
    },
    CrossEntropyGrad {
        ignore: Option<u32>,
        scale: usize,
    },
    Map {
        kernel: MapKernel,
        seed: Option<Seed>,
    },
    SumSquares,
    ClipFactor {
        limit: f64,
    },
    AdamW {
        rates: AdamRates,
        learning_rate: usize,
        step: usize,
    },
}

impl Bound {
    /// The f32 of scratch that it needs per thread.
    pub(crate) fn scratch_elements(&self) -> usize {
        match self {
            Self::Matmul(_) => gemm::scratch_elements(),
            Self::Attention(shape) | Self::AttentionGrad(shape) => shape.scratch_elements(),
            Self::SumRows
            | Self::Embedding
            | Self::EmbeddingGrad
            | Self::Positions { .. }
            | Self::PositionsGrad { .. }
            | Self::RmsNorm { .. }
            | Self::RmsNormGrad
            | Self::RmsNormGainGrad
            | Self::LayerNorm { .. }
            | Self::LayerNormGrad
            | Self::LayerNormParamGrad
            | Self::Rope { .. }
            | Self::Softmax
            | Self::SoftmaxGrad
            | Self::CrossEntropy { .. }
            | Self::CrossEntropyGrad { .. }
            | Self::Map { .. }
            | Self::SumSquares
            | Self::ClipFactor { .. }
            | Self::AdamW { .. } => 0,
        }
    }

    /// Whether an output may be the very value of an input: its kernel then reads the input where the output goes.
    fn takes_in_place(&self, output: usize, input: usize) -> bool {
        match self {
            // A row or an element of a map that is an output has the size of one, so it is a full input too.
            Self::Rope { .. } | Self::Map { .. } => true,
            Self::CrossEntropyGrad { .. } => input == 0,
            // The sum, in the place of either of its operands.
            Self::RmsNorm { .. } => output == 2 && (input == 0 || input == 2),
            Self::LayerNorm { .. } => output == 3 && (input == 0 || input == 3),
            Self::Matmul(_)
            | Self::SumRows
            | Self::Embedding
            | Self::EmbeddingGrad
            | Self::Positions { .. }
            | Self::PositionsGrad { .. }
            | Self::RmsNormGrad
            | Self::RmsNormGainGrad
            | Self::LayerNormGrad
            | Self::LayerNormParamGrad
            | Self::Attention(_)
            | Self::AttentionGrad(_)
            | Self::Softmax
            | Self::SoftmaxGrad
            | Self::CrossEntropy { .. }
            | Self::SumSquares
            | Self::ClipFactor { .. }
            | Self::AdamW { .. } => false,
        }
    }
}

/// The places of the operands of a kernel.
///
/// # Errors
/// A sentence that says which operand is not supported, as all errors of this module.
pub(crate) fn places(
    function: &Function,
    values: &IdVec<ValueId, Value>,
    kernel: &Kernel,
) -> Result<(Vec<Place>, Vec<Target>), String> {
    let place = |id: ValueId| {
        let value = values.get(id).ok_or_else(|| format!("operand {id}, which is no value"))?;
        let region =
            function.params.get(value.param).ok_or_else(|| format!("operand {id} without a region"))?;
        let dtype = value.ty.dtype;
        match dtype {
            DType::F32 | DType::F64 | DType::U32 => {}
            DType::F16 | DType::BF16 => return Err(format!("elements of type {dtype}")),
        }
        if value.ty.shape.elements() == 0 {
            return Err(format!("operand {id} without elements"));
        }
        let end = value.offset + value.ty.bytes();
        if end > region.bytes || !value.offset.0.is_multiple_of(dtype.bytes().0) {
            return Err(format!("operand {id}, which is not inside its region or not aligned"));
        }
        let size = |extent: u64| usize::try_from(extent).map_err(|_| format!("operand {id} of {}", value.ty));
        Ok(Place {
            region: value.param.index(),
            offset: size(value.offset.0)?,
            dtype,
            elements: size(value.ty.shape.elements())?,
            rows: size(value.ty.shape.rows())?,
            columns: size(value.ty.shape.last())?,
        })
    };
    let inputs = kernel.inputs.iter().map(|&id| place(id)).collect::<Result<Vec<_>, _>>()?;
    let outputs = kernel
        .outputs
        .iter()
        .map(|output| Ok(Target { place: place(output.value)?, accumulate: output.accumulate }))
        .collect::<Result<Vec<_>, String>>()?;
    Ok((inputs, outputs))
}

/// The operands of a kernel while its signature is checked.
struct Operands<'a> {
    inputs: &'a [Place],
    outputs: &'a [Target],
}

impl Operands<'_> {
    /// Checks the numbers of inputs and outputs.
    fn count(&self, inputs: Range<usize>, outputs: Range<usize>) -> Result<(), String> {
        if inputs.contains(&self.inputs.len()) && outputs.contains(&self.outputs.len()) {
            return Ok(());
        }
        Err(format!("{} inputs and {} outputs", self.inputs.len(), self.outputs.len()))
    }

    /// Checks that inputs have so many f32.
    fn reads(&self, elements: &[(usize, usize)]) -> Result<(), String> {
        elements.iter().try_for_each(|&(index, elements)| match self.inputs.get(index) {
            None => Ok(()),
            Some(place) => check(place, DType::F32, elements, &format!("input {index}")),
        })
    }

    /// Checks that an input is so many token ids.
    fn reads_tokens(&self, index: usize, elements: usize) -> Result<(), String> {
        check(&self.inputs[index], DType::U32, elements, &format!("input {index}"))
    }

    /// Checks that outputs have so many f32.
    fn writes(&self, elements: &[(usize, usize)]) -> Result<(), String> {
        elements.iter().try_for_each(|&(index, elements)| match self.outputs.get(index) {
            None => Ok(()),
            Some(target) => check(&target.place, DType::F32, elements, &format!("output {index}")),
        })
    }

    fn writes_f64(&self, index: usize, elements: usize) -> Result<(), String> {
        check(&self.outputs[index].place, DType::F64, elements, &format!("output {index}"))
    }

    /// Checks that no output shares bytes with another operand, except an input that is the very same value where
    /// `in_place` allows it for the output and the input.
    fn separate(&self, in_place: impl Fn(usize, usize) -> bool) -> Result<(), String> {
        for (index, output) in self.outputs.iter().enumerate() {
            if self.outputs[..index].iter().any(|other| other.place.overlaps(&output.place)) {
                return Err(format!("output {index}, which shares bytes with another"));
            }
            for (input, place) in self.inputs.iter().enumerate() {
                let same = *place == output.place && in_place(index, input);
                if place.overlaps(&output.place) && !same {
                    return Err(format!("output {index}, which shares bytes with input {input}"));
                }
            }
        }
        Ok(())
    }
}

fn check(place: &Place, dtype: DType, elements: usize, name: &str) -> Result<(), String> {
    if place.dtype == dtype && place.elements == elements {
        return Ok(());
    }
    Err(format!("{name} of {} {} instead of {elements} {dtype}", place.elements, place.dtype))
}

/// A size of the program as an index.
fn size(extent: u64) -> Result<usize, String> {
    usize::try_from(extent).map_err(|_| format!("an extent of {extent}"))
}

/// Binds an op to its operands.
pub(crate) fn bind(
    kernel: &Kernel,
    inputs: &[Place],
    outputs: &[Target],
    compiler: &mut Compiler,
    tables: &mut Vec<(Rotation, Arc<Table>)>,
) -> Result<Bound, String> {
    let operands = Operands { inputs, outputs };
    let bound = match &kernel.op {
        &Op::Matmul { transpose_a, transpose_b } => {
            let products = outputs.len();
            operands.count(1 + products..2 + 2 * products, 1..products.max(1) + 1)?;
            let a = &inputs[0];
            let depth = if transpose_a { a.rows } else { a.columns };
            let product = |(number, c): (usize, &Target)| {
                let (rows, columns) = (c.place.rows, c.place.columns);
                let bias = (1 + products + number, columns);
                operands.reads(&[(0, rows * depth), (1 + number, columns * depth), bias])?;
                operands.writes(&[(number, rows * columns)])?;
                Ok(Product { rows, columns, depth, transpose_a, transpose_b, accumulate: c.accumulate })
            };
            Bound::Matmul(outputs.iter().enumerate().map(product).collect::<Result<_, String>>()?)
        }
        Op::SumRows => {
            operands.count(1..2, 1..2)?;
            operands.reads(&[(0, inputs[0].elements)])?;
            operands.writes(&[(0, inputs[0].columns)])?;
            Bound::SumRows
        }
        Op::Embedding => {
            operands.count(2..3, 1..2)?;
            let out = &outputs[0].place;
            operands.reads_tokens(0, out.rows)?;
            operands.reads(&[(1, inputs[1].rows * out.columns)])?;
            operands.writes(&[(0, out.elements)])?;
            Bound::Embedding
        }
        Op::EmbeddingGrad => {
            operands.count(2..3, 1..2)?;
            let table = &outputs[0].place;
            operands.reads_tokens(0, inputs[1].rows)?;
            operands.reads(&[(1, inputs[1].rows * table.columns)])?;
            operands.writes(&[(0, table.elements)])?;
            Bound::EmbeddingGrad
        }
        &Op::Positions { tokens, first } => {
            operands.count(1..2, 1..2)?;
            let (tokens, first, out) = (size(tokens)?, size(first)?, &outputs[0].place);
            operands.reads(&[(0, inputs[0].rows * out.columns)])?;
            operands.writes(&[(0, out.elements)])?;
            positions(tokens, first, inputs[0].rows)?;
            Bound::Positions { tokens, first }
        }
        &Op::PositionsGrad { tokens, first } => {
            operands.count(1..2, 1..2)?;
            let (tokens, first, table) = (size(tokens)?, size(first)?, &outputs[0].place);
            operands.reads(&[(0, inputs[0].rows * table.columns)])?;
            operands.writes(&[(0, table.elements)])?;
            positions(tokens, first, table.rows)?;
            Bound::PositionsGrad { tokens, first }
        }
        &Op::RmsNorm { eps } => {
            operands.count(2..4, inputs.len()..inputs.len() + 1)?;
            let x = &inputs[0];
            operands.reads(&[(0, x.elements), (1, x.columns), (2, x.elements)])?;
            operands.writes(&[(0, x.elements), (1, x.rows), (2, x.elements)])?;
            Bound::RmsNorm { eps: eps as f32 }
        }
        Op::RmsNormGrad => {
            operands.count(4..6, 1..2)?;
            let x = &inputs[0];
            operands.reads(&[
                (0, x.elements),
                (1, x.columns),
                (2, x.rows),
                (3, x.elements),
                (4, x.elements),
            ])?;
            operands.writes(&[(0, x.elements)])?;
            Bound::RmsNormGrad
        }
        Op::RmsNormGainGrad => {
            operands.count(3..4, 1..2)?;
            let x = &inputs[0];
            operands.reads(&[(0, x.elements), (1, x.rows), (2, x.elements)])?;
            operands.writes(&[(0, x.columns)])?;
            Bound::RmsNormGainGrad
        }
        &Op::LayerNorm { eps } => {
            operands.count(3..5, inputs.len()..inputs.len() + 1)?;
            let x = &inputs[0];
            operands.reads(&[(0, x.elements), (1, x.columns), (2, x.columns), (3, x.elements)])?;
            operands.writes(&[(0, x.elements), (1, x.rows), (2, x.rows), (3, x.elements)])?;
            Bound::LayerNorm { eps: eps as f32 }
        }
        Op::LayerNormGrad => {
            operands.count(5..7, 1..2)?;
            let x = &inputs[0];
            operands.reads(&[(0, x.elements), (1, x.columns), (2, x.rows), (3, x.rows)])?;
            operands.reads(&[(4, x.elements), (5, x.elements)])?;
            operands.writes(&[(0, x.elements)])?;
            Bound::LayerNormGrad
        }
        Op::LayerNormParamGrad => {
            operands.count(4..5, 2..3)?;
            let x = &inputs[0];
            operands.reads(&[(0, x.elements), (1, x.rows), (2, x.rows), (3, x.elements)])?;
            operands.writes(&[(0, x.columns), (1, x.columns)])?;
            Bound::LayerNormParamGrad
        }
        &Op::Rope { tokens, first, head_dim, rotary, base, pairing, scaling, inverse } => {
            operands.count(1..2, 1..2)?;
            let (tokens, first) = (size(tokens)?, size(first)?);
            let (head_dim, rotary) = (size(head_dim)?, size(rotary)?);
            let x = &inputs[0];
            operands.reads(&[(0, x.elements)])?;
            operands.writes(&[(0, x.elements)])?;
            let fits = head_dim > 0 && x.columns.is_multiple_of(head_dim) && rotary <= head_dim;
            if !fits || !rotary.is_multiple_of(2) || tokens == 0 {
                return Err(format!("{rotary} rotating components of {head_dim} in rows of {}", x.columns));
            }
            let rotation = Rotation { tokens, first, rotary, base, pairing, scaling };
            let known =
                tables.iter().find(|(known, _)| *known == rotation).map(|(_, table)| Arc::clone(table));
            let table = known.unwrap_or_else(|| {
                let table = Arc::new(rotation.table());
                tables.push((rotation, Arc::clone(&table)));
                table
            });
            Bound::Rope { table, head_dim, inverse }
        }
        Op::Attention(shape) => {
            operands.count(3..usize::MAX, 2..3)?;
            let end = inputs.len();
            let shape = attention_shape(shape, inputs, end)?;
            let (queries, rows) = extents(&shape);
            operands.reads(&[(0, queries)])?;
            (1..end).try_for_each(|key| operands.reads(&[(key, shape.key_elements(key))]))?;
            operands.writes(&[(0, queries), (1, rows)])?;
            Bound::Attention(shape)
        }
        Op::AttentionGrad(shape) => {
            let end = inputs.len().saturating_sub(3);
            operands.count(6..usize::MAX, end..end + 1)?;
            let shape = attention_shape(shape, inputs, end)?;
            let (queries, rows) = extents(&shape);
            operands.reads(&[(0, queries), (end, queries), (end + 1, rows), (end + 2, queries)])?;
            operands.writes(&[(0, queries)])?;
            (1..end).try_for_each(|key| {
                operands.reads(&[(key, shape.key_elements(key))])?;
                operands.writes(&[(key, shape.key_elements(key))])
            })?;
            Bound::AttentionGrad(shape)
        }
        Op::Softmax => {
            operands.count(1..2, 1..2)?;
            operands.reads(&[(0, inputs[0].elements)])?;
            operands.writes(&[(0, inputs[0].elements)])?;
            Bound::Softmax
        }
        Op::SoftmaxGrad => {
            operands.count(2..3, 1..2)?;
            operands.reads(&[(0, inputs[0].elements), (1, inputs[0].elements)])?;
            operands.writes(&[(0, inputs[0].elements)])?;
            Bound::SoftmaxGrad
        }
        &Op::CrossEntropy { ignore } => {
            operands.count(2..3, 2..3)?;
            let logits = &inputs[0];
            operands.reads(&[(0, logits.elements)])?;
            operands.reads_tokens(1, logits.rows)?;
            operands.writes_f64(0, 1)?;
            operands.writes(&[(1, logits.rows)])?;
            Bound::CrossEntropy { ignore }
        }
        &Op::CrossEntropyGrad { ignore, scale } => {
            operands.count(3..4, 1..2)?;
            let logits = &inputs[0];
            operands.reads(&[(0, logits.elements), (2, logits.rows)])?;
            operands.reads_tokens(1, logits.rows)?;
            operands.writes(&[(0, logits.elements)])?;
            Bound::CrossEntropyGrad { ignore, scale: scale.index() }
        }
        Op::Map { nodes, results, seed } => {
            let Some(output) = outputs.first().map(|output| &output.place) else {
                return Err("a map without outputs".to_owned());
            };
            if results.len() != outputs.len() {
                return Err(format!("{} results for {} outputs", results.len(), outputs.len()));
            }
            let same = |target: &Target| target.place.elements == output.elements;
            if !outputs.iter().all(same) || outputs.iter().any(|target| target.place.dtype != DType::F32) {
                return Err("outputs of a map that differ in size or are not f32".to_owned());
            }
            let reach = |place: &Place| match place.elements {
                _ if place.dtype != DType::F32 => Err(format!("an input of {} in a map", place.dtype)),
                elements if elements == output.elements => Ok(Reach::Full),
                1 => Ok(Reach::One),
                elements if elements == output.columns => Ok(Reach::Row),
                elements => Err(format!("an input of {elements} elements in a map of {}", output.elements)),
            };
            let expression = Expression {
                nodes: nodes.clone(),
                results: results.iter().map(|&result| result as usize).collect(),
                accumulate: outputs.iter().map(|output| output.accumulate).collect(),
                inputs: inputs.iter().map(reach).collect::<Result<_, _>>()?,
            };
            Bound::Map { kernel: compiler.compile(expression)?, seed: *seed }
        }
        Op::SumSquares => {
            operands.count(1..usize::MAX, 1..2)?;
            operands.writes_f64(0, inputs.len())?;
            let all: Vec<_> =
                inputs.iter().enumerate().map(|(index, place)| (index, place.elements)).collect();
            operands.reads(&all)?;
            Bound::SumSquares
        }
        &Op::ClipFactor { limit } => {
            operands.count(1..2, 2..3)?;
            check(&inputs[0], DType::F64, inputs[0].elements, "input 0")?;
            operands.writes_f64(0, 1)?;
            operands.writes(&[(1, 1)])?;
            Bound::ClipFactor { limit }
        }
        &Op::AdamW { beta1, beta2, eps, weight_decay, learning_rate, step } => {
            operands.count(1..3, 3..5)?;
            let elements = inputs[0].elements;
            operands.reads(&[(0, elements), (1, 1)])?;
            operands.writes(&[(0, elements), (1, elements), (2, elements), (3, elements)])?;
            let rates = AdamRates { beta1, beta2, eps, weight_decay };
            Bound::AdamW { rates, learning_rate: learning_rate.index(), step: step.index() }
        }
    };
    operands.separate(|output, input| bound.takes_in_place(output, input))?;
    Ok(bound)
}

/// Checks that a table has all positions.
fn positions(tokens: usize, first: usize, rows: usize) -> Result<(), String> {
    if tokens == 0 || first.saturating_add(tokens) > rows {
        return Err(format!("positions {first}..{} of {rows}", first.saturating_add(tokens)));
    }
    Ok(())
}

/// The sizes of an attention whose parts of keys and values are the operands from 1 to `end`.
fn attention_shape(
    shape: &pipec_program::AttentionShape,
    inputs: &[Place],
    end: usize,
) -> Result<attention::Shape, String> {
    let (sequences, heads) = (size(shape.sequences)?, size(shape.heads)?);
    let (kv_heads, head_dim) = (size(shape.kv_heads)?, size(shape.head_dim)?);
    let per_sequence = |place: &Place| place.rows / sequences.max(1);
    let fits = sequences > 0 && kv_heads > 0 && heads.is_multiple_of(kv_heads) && head_dim > 0;
    if !fits || inputs[..end].iter().any(|place| !place.rows.is_multiple_of(sequences)) {
        return Err(format!("{heads} heads on {kv_heads} in {sequences} sequences"));
    }
    if !end.saturating_sub(1).is_multiple_of(2) {
        return Err("keys without values".to_owned());
    }
    Ok(attention::Shape {
        sequences,
        queries: per_sequence(&inputs[0]),
        parts: inputs[1..end].iter().step_by(2).map(per_sequence).collect(),
        heads,
        kv_heads,
        head_dim,
        mask: shape.mask,
        scale: shape.scale as f32,
    })
}

/// Elements of `q` and of the log-sum-exp.
fn extents(shape: &attention::Shape) -> (usize, usize) {
    let queries = shape.sequences * shape.queries;
    (queries * shape.heads * shape.head_dim, queries * shape.heads)
}
