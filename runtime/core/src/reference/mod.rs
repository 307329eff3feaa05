//! The reference device: interprets every op slowly and obviously. What it computes is what an op means.
//!
//! Values are read into f64, an op computes in f64 and its results are rounded once when they are stored; only
//! element-wise expressions round after every node, which is exactly their f32 arithmetic (the f64 result of an
//! operation on two f32 numbers, rounded to f32, is the f32 result: 53 >= 2 * 24 + 2 bits). So a program whose float
//! values are f64 computes in f64 throughout, and one of f32 values is as exact as f32 stores allow.
//!
//! Invariants: inputs are read completely before an output is written, so that in-place kernels need no care; sums run
//! in ascending order.
//!
//! What it deliberately does not do: be fast, use threads, or compute with f16 and bf16 values.

mod attention;
mod linear;
mod loss;
mod map;
mod norm;
mod optimizer;
mod rope;

use crate::arena::Region;
use crate::device::{Compiled, Device, DeviceError, ScalarValue};
use pipec_program::id::Id;
use pipec_program::{Body, Bytes, DType, Function, Op, ParamId, ScalarId, Seed, TensorType};

/// A device that interprets kernels.
#[derive(Debug, Default)]
pub struct ReferenceDevice {
    functions: Vec<Interpreted>,
}

/// A function with its values resolved.
#[derive(Debug)]
struct Interpreted {
    name: String,
    kernels: Vec<Step>,
}

/// A kernel with its operands resolved.
#[derive(Debug)]
struct Step {
    op: Op,
    inputs: Vec<Operand>,
    outputs: Vec<Target>,
}

/// Where a value lies.
#[derive(Clone, Debug)]
struct Operand {
    param: ParamId,
    offset: Bytes,
    ty: TensorType,
}

/// Where a result goes.
#[derive(Clone, Debug)]
struct Target {
    operand: Operand,
    accumulate: bool,
}

impl ReferenceDevice {
    /// A device without functions.
    pub fn new() -> Self {
        Self::default()
    }
}

/// The name of this kind of device.
const KIND: &str = "reference";

impl Device for ReferenceDevice {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn compile(&mut self, function: &Function) -> Result<Compiled, DeviceError> {
        let unsupported = |kernel: Option<usize>, what: String| DeviceError::Unsupported {
            device: KIND,
            function: function.name.clone(),
            kernel,
            what,
        };
        let (values, kernels) = match &function.body {
            Body::Kernels { values, kernels } => (values, kernels),
            Body::Abstract { .. } => return Err(unsupported(None, "functions without kernels".to_owned())),
        };
        let mut steps = Vec::with_capacity(kernels.len());
        for (position, kernel) in kernels.iter().enumerate() {
            let operand = |id| {
                let value = values
                    .get(id)
                    .ok_or_else(|| unsupported(Some(position), format!("an operand {id} without a value")))?;
                match value.ty.dtype {
                    DType::F32 | DType::F64 | DType::U32 => {}
                    DType::F16 | DType::BF16 => {
                        return Err(unsupported(
                            Some(position),
                            format!("elements of type {}", value.ty.dtype),
                        ));
                    }
                }
                Ok(Operand { param: value.param, offset: value.offset, ty: value.ty.clone() })
            };
            let inputs = kernel.inputs.iter().map(|&id| operand(id)).collect::<Result<_, _>>()?;
            let outputs = kernel
                .outputs
                .iter()
                .map(|output| Ok(Target { operand: operand(output.value)?, accumulate: output.accumulate }))
                .collect::<Result<_, _>>()?;
            steps.push(Step { op: kernel.op.clone(), inputs, outputs });
        }
        self.functions.push(Interpreted { name: function.name.clone(), kernels: steps });
        u32::try_from(self.functions.len() - 1)
            .map(Compiled)
            .map_err(|_| DeviceError::Failed("more than 2^32 functions".to_owned()))
    }

    fn run(
        &mut self,
        function: Compiled,
        regions: &[Region<'_>],
        scalars: &[ScalarValue],
    ) -> Result<(), DeviceError> {
        let function = self
            .functions
            .get(function.0 as usize)
            .ok_or_else(|| DeviceError::Failed(format!("function {} was never compiled", function.0)))?;
        for (position, step) in function.kernels.iter().enumerate() {
            Call { function, position, step, regions, scalars }.execute()?;
        }
        Ok(())
    }

    fn add(&mut self, dtype: DType, from: Region<'_>, to: Region<'_>) -> Result<(), DeviceError> {
        let sum: Vec<f64> =
            load(dtype, from)?.into_iter().zip(load(dtype, to)?).map(|(added, sum)| sum + added).collect();
        store(dtype, to, &sum)
    }

    fn scratch(&self) -> Bytes {
        Bytes::ZERO
    }
}

/// One kernel of a call with its arguments.
struct Call<'a> {
    function: &'a Interpreted,
    position: usize,
    step: &'a Step,
    regions: &'a [Region<'a>],
    scalars: &'a [ScalarValue],
}

impl Call<'_> {
    fn execute(&self) -> Result<(), DeviceError> {
        match &self.step.op {
            &Op::Matmul { transpose_a, transpose_b } => {
                let (a, products) = (self.floats(0)?, self.step.outputs.len());
                for product in 0..products {
                    let b = self.floats(1 + product)?;
                    let biased = self.step.inputs.len() > 1 + products;
                    let bias = if biased { Some(self.floats(1 + products + product)?) } else { None };
                    let (rows, columns) = self.output_matrix(product)?;
                    let c = linear::matmul(&a, &b, bias.as_deref(), rows, columns, transpose_a, transpose_b);
                    self.write(product, &c)?;
                }
                Ok(())
            }
            Op::SumRows => self.write(0, &linear::sum_rows(&self.floats(0)?, self.output_matrix(0)?.1)),
            Op::Embedding => {
                let (tokens, table) = (self.tokens(0)?, self.floats(1)?);
                let (rows, columns) = self.input_matrix(1)?;
                self.check_tokens(tokens.iter().copied(), rows)?;
                self.write(0, &linear::embedding(&tokens, &table, columns))
            }
            Op::EmbeddingGrad => {
                let (tokens, dy) = (self.tokens(0)?, self.floats(1)?);
                let (rows, columns) = self.output_matrix(0)?;
                self.check_tokens(tokens.iter().copied(), rows)?;
                self.write(0, &linear::embedding_grad(&tokens, &dy, rows, columns))
            }
            &Op::Positions { tokens, first } => {
                let (rows, columns) = self.output_matrix(0)?;
                let indices = linear::position_rows(rows, tokens, first);
                self.check_tokens(indices.iter().copied(), self.input_matrix(0)?.0)?;
                self.write(0, &linear::embedding(&indices, &self.floats(0)?, columns))
            }
            &Op::PositionsGrad { tokens, first } => {
                let (rows, columns) = self.output_matrix(0)?;
                let indices = linear::position_rows(self.input_matrix(0)?.0, tokens, first);
                self.check_tokens(indices.iter().copied(), rows)?;
                self.write(0, &linear::embedding_grad(&indices, &self.floats(0)?, rows, columns))
            }
            &Op::RmsNorm { eps } => {
                let (y, inv_rms) = norm::rms_norm(&self.normed(2)?, &self.floats(1)?, eps);
                self.write(0, &y)?;
                self.write(1, &inv_rms)
            }
            Op::RmsNormGrad => {
                let dx = norm::rms_norm_grad(
                    &self.floats(0)?,
                    &self.floats(1)?,
                    &self.floats(2)?,
                    &self.floats(3)?,
                );
                self.write(0, &self.with_residual(4, dx)?)
            }
            Op::RmsNormGainGrad => {
                let columns = self.output_matrix(0)?.1;
                let dgain =
                    norm::rms_norm_gain_grad(&self.floats(0)?, &self.floats(1)?, &self.floats(2)?, columns);
                self.write(0, &dgain)
            }
            &Op::LayerNorm { eps } => {
                let (y, mean, inv_std) =
                    norm::layer_norm(&self.normed(3)?, &self.floats(1)?, &self.floats(2)?, eps);
                self.write(0, &y)?;
                self.write(1, &mean)?;
                self.write(2, &inv_std)
            }
            Op::LayerNormGrad => {
                let dx = norm::layer_norm_grad(
                    &self.floats(0)?,
                    &self.floats(1)?,
                    &self.floats(2)?,
                    &self.floats(3)?,
                    &self.floats(4)?,
                );
                self.write(0, &self.with_residual(5, dx)?)
            }
            Op::LayerNormParamGrad => {
                let columns = self.output_matrix(0)?.1;
                let (dgain, dbias) = norm::layer_norm_param_grad(
                    &self.floats(0)?,
                    &self.floats(1)?,
                    &self.floats(2)?,
                    &self.floats(3)?,
                    columns,
                );
                self.write(0, &dgain)?;
                self.write(1, &dbias)
            }
            &Op::Rope { tokens, first, head_dim, rotary, base, pairing, scaling, inverse } => {
                let shape = rope::Rope {
                    tokens,
                    first,
                    head_dim: size(head_dim),
                    rotary: size(rotary),
                    base,
                    pairing,
                    scaling,
                };
                let columns = self.input_matrix(0)?.1;
                let rounded = self.input(0)?.ty.dtype == DType::F32;
                self.write(0, &rope::rope(&self.floats(0)?, columns, &shape, inverse, rounded))
            }
            Op::Attention(shape) => {
                let [k, v] = self.keys_and_values(self.step.inputs.len(), shape.sequences)?;
                let (o, lse) = attention::attention(&self.floats(0)?, &k.joined(), &v.joined(), shape);
                self.write(0, &o)?;
                self.write(1, &lse)
            }
            Op::AttentionGrad(shape) => {
                let end = self.step.inputs.len().saturating_sub(3);
                let [k, v] = self.keys_and_values(end, shape.sequences)?;
                let forward = attention::Forward {
                    q: &self.floats(0)?,
                    k: &k.joined(),
                    v: &v.joined(),
                    o: &self.floats(end)?,
                    lse: &self.floats(end + 1)?,
                };
                let (dq, dk, dv) = attention::attention_grad(&forward, &self.floats(end + 2)?, shape);
                self.write(0, &dq)?;
                let parts = k.parted(&dk).into_iter().zip(v.parted(&dv));
                (1..).step_by(2).zip(parts).try_for_each(|(output, (dk, dv))| {
                    self.write(output, &dk)?;
                    self.write(output + 1, &dv)
                })
            }
            Op::Softmax => self.write(0, &loss::softmax(&self.floats(0)?, self.input_matrix(0)?.1)),
            Op::SoftmaxGrad => {
                let columns = self.input_matrix(0)?.1;
                self.write(0, &loss::softmax_grad(&self.floats(0)?, &self.floats(1)?, columns))
            }
            &Op::CrossEntropy { ignore } => {
                let (logits, targets) = (self.floats(0)?, self.tokens(1)?);
                let columns = self.input_matrix(0)?.1;
                self.check_tokens(targets.iter().copied().filter(|&target| Some(target) != ignore), columns)?;
                let (loss, lse) = loss::cross_entropy(&logits, &targets, columns, ignore);
                self.write(0, &[loss])?;
                self.write(1, &lse)
            }
            &Op::CrossEntropyGrad { ignore, scale } => {
                let (logits, targets, lse) = (self.floats(0)?, self.tokens(1)?, self.floats(2)?);
                let columns = self.input_matrix(0)?.1;
                self.check_tokens(targets.iter().copied().filter(|&target| Some(target) != ignore), columns)?;
                let scale = self.scalar(scale)?.real();
                self.write(0, &loss::cross_entropy_grad(&logits, &targets, &lse, columns, ignore, scale))
            }
            Op::Map { nodes, results, seed } => {
                let inputs = (0..self.step.inputs.len())
                    .map(|input| self.floats(input))
                    .collect::<Result<Vec<_>, _>>()?;
                let (rows, columns) = self.output_matrix(0)?;
                let random = match seed {
                    Some(Seed { scalar, part }) => {
                        map::Random { seed: self.scalar(*scalar)?.integer(), part: *part }
                    }
                    None => map::Random { seed: 0, part: None },
                };
                let double = self.step.inputs.iter().any(|input| input.ty.dtype == DType::F64)
                    || self.step.outputs.iter().any(|output| output.operand.ty.dtype == DType::F64);
                let precision = if double { map::Precision::Double } else { map::Precision::Single };
                let outputs = map::map(nodes, results, &inputs, rows * columns, columns, random, precision);
                outputs.iter().enumerate().try_for_each(|(output, values)| self.write(output, values))
            }
            Op::SumSquares => {
                let squares = (0..self.step.inputs.len())
                    .map(|input| Ok(optimizer::sum_squares(&self.floats(input)?)))
                    .collect::<Result<Vec<_>, DeviceError>>()?;
                self.write(0, &squares)
            }
            &Op::ClipFactor { limit } => {
                let (norm, factor) = optimizer::clip_factor(&self.floats(0)?, limit);
                self.write(0, &[norm])?;
                self.write(1, &[factor])
            }
            &Op::AdamW { beta1, beta2, eps, weight_decay, learning_rate, step } => {
                let gradient = self.floats(0)?;
                let factor = if self.step.inputs.len() > 1 {
                    self.floats(1)?.first().copied().unwrap_or(1.0)
                } else {
                    1.0
                };
                let adam = optimizer::AdamW {
                    beta1,
                    beta2,
                    eps,
                    weight_decay,
                    learning_rate: self.scalar(learning_rate)?.real(),
                    step: self.scalar(step)?.integer(),
                };
                // The weight is the master or, with one, its rounding.
                let master = if self.step.outputs.len() > 3 { Some(3) } else { None };
                let state = [self.present(master.unwrap_or(0))?, self.present(1)?, self.present(2)?];
                let [weight, moment, variance] = optimizer::adamw(&adam, &gradient, factor, state);
                self.write(0, &weight)?;
                self.write(1, &moment)?;
                self.write(2, &variance)?;
                match master {
                    Some(master) => self.write(master, &weight),
                    None => Ok(()),
                }
            }
        }
    }

    /// A value plus the residual that stands at an input, if there is one.
    fn with_residual(&self, index: usize, mut value: Vec<f64>) -> Result<Vec<f64>, DeviceError> {
        if self.step.inputs.len() > index {
            for (sum, residual) in value.iter_mut().zip(self.floats(index)?) {
                *sum += residual;
            }
        }
        Ok(value)
    }

    /// What a norm is of: its first input or, if there is a residual at an input, their sum, rounded as the output of the
    /// same position stores it.
    fn normed(&self, index: usize) -> Result<Vec<f64>, DeviceError> {
        let x = self.floats(0)?;
        if self.step.inputs.len() <= index {
            return Ok(x);
        }
        self.write(index, &self.with_residual(index, x)?)?;
        self.present(index)
    }

    fn malformed(&self, what: &str) -> DeviceError {
        DeviceError::Unsupported {
            device: KIND,
            function: self.function.name.clone(),
            kernel: Some(self.position),
            what: what.to_owned(),
        }
    }

    fn input(&self, index: usize) -> Result<&Operand, DeviceError> {
        self.step.inputs.get(index).ok_or_else(|| self.malformed("an op with too few inputs"))
    }

    fn output(&self, index: usize) -> Result<&Target, DeviceError> {
        self.step.outputs.get(index).ok_or_else(|| self.malformed("an op with too few outputs"))
    }

    /// Rows and columns of an input seen as a matrix.
    fn input_matrix(&self, index: usize) -> Result<(usize, usize), DeviceError> {
        let shape = &self.input(index)?.ty.shape;
        Ok((size(shape.rows()), size(shape.last())))
    }

    /// Rows and columns of an output seen as a matrix.
    fn output_matrix(&self, index: usize) -> Result<(usize, usize), DeviceError> {
        let shape = &self.output(index)?.operand.ty.shape;
        Ok((size(shape.rows()), size(shape.last())))
    }

    fn region(&self, operand: &Operand) -> Result<Region<'_>, DeviceError> {
        self.regions
            .get(operand.param.index())
            .and_then(|region| region.slice(operand.offset, operand.ty.bytes()))
            .ok_or_else(|| self.malformed("a value outside its region"))
    }

    /// An input as real numbers.
    fn floats(&self, index: usize) -> Result<Vec<f64>, DeviceError> {
        let operand = self.input(index)?;
        load(operand.ty.dtype, self.region(operand)?)
    }

    /// What an output holds at present.
    fn present(&self, index: usize) -> Result<Vec<f64>, DeviceError> {
        let operand = &self.output(index)?.operand;
        load(operand.ty.dtype, self.region(operand)?)
    }

    /// An input as token ids.
    fn tokens(&self, index: usize) -> Result<Vec<u32>, DeviceError> {
        let operand = self.input(index)?;
        Ok(words(self.region(operand)?).map(u32::from_le_bytes).collect())
    }

    fn scalar(&self, id: ScalarId) -> Result<ScalarValue, DeviceError> {
        self.scalars.get(id.index()).copied().ok_or_else(|| self.malformed("a missing scalar"))
    }

    /// The parts of keys and of values, which end at an operand.
    fn keys_and_values(&self, end: usize, sequences: u64) -> Result<[attention::Parts; 2], DeviceError> {
        let parts = |first: usize| {
            let parts = (first..end).step_by(2).map(|part| self.floats(part)).collect::<Result<_, _>>()?;
            Ok(attention::Parts { sequences: size(sequences), parts })
        };
        Ok([parts(1)?, parts(2)?])
    }

    fn check_tokens(&self, mut tokens: impl Iterator<Item = u32>, rows: usize) -> Result<(), DeviceError> {
        match tokens.find(|&token| token as usize >= rows) {
            None => Ok(()),
            Some(token) => Err(DeviceError::TokenOutOfRange {
                function: self.function.name.clone(),
                kernel: self.position,
                token,
                rows: rows as u64,
            }),
        }
    }

    /// Stores a result, or adds it to what is there.
    fn write(&self, index: usize, values: &[f64]) -> Result<(), DeviceError> {
        let target = self.output(index)?;
        let region = self.region(&target.operand)?;
        let dtype = target.operand.ty.dtype;
        if target.accumulate {
            let sum: Vec<f64> = load(dtype, region)?.iter().zip(values).map(|(old, new)| old + new).collect();
            store(dtype, region, &sum)
        } else {
            store(dtype, region, values)
        }
    }
}

/// A size of the program as an index. A tensor that is in memory has sizes that fit.
fn size(extent: u64) -> usize {
    usize::try_from(extent).unwrap_or(usize::MAX)
}

/// The bytes of a region in words of N.
fn words<'a, const N: usize>(region: Region<'a>) -> impl Iterator<Item = [u8; N]> + use<'a, N> {
    let mut bytes = vec![0; region.len()];
    region.load(&mut bytes);
    let mut words = Vec::with_capacity(bytes.len() / N);
    words.extend(bytes.chunks_exact(N).map(|chunk| {
        let mut word = [0; N];
        word.copy_from_slice(chunk);
        word
    }));
    words.into_iter()
}

/// The elements of a region.
fn load(dtype: DType, region: Region<'_>) -> Result<Vec<f64>, DeviceError> {
    match dtype {
        DType::F32 => Ok(words(region).map(|word| f64::from(f32::from_le_bytes(word))).collect()),
        DType::F64 => Ok(words(region).map(f64::from_le_bytes).collect()),
        DType::F16 | DType::BF16 | DType::U32 => {
            Err(DeviceError::Failed(format!("elements of type {dtype} where real numbers were expected")))
        }
    }
}

/// Stores elements, rounded to their type.
fn store(dtype: DType, region: Region<'_>, values: &[f64]) -> Result<(), DeviceError> {
    let bytes: Vec<u8> = match dtype {
        DType::F32 => values.iter().flat_map(|&value| (value as f32).to_le_bytes()).collect(),
        DType::F64 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DType::F16 | DType::BF16 | DType::U32 => {
            return Err(DeviceError::Failed(format!(
                "elements of type {dtype} where real numbers were expected"
            )));
        }
    };
    region.store(&bytes);
    Ok(())
}

#[cfg(test)]
mod gradient_check {
    //! Central differences in f64.

    /// Checks `gradient` of the scalar function `f` at `x`: every component to 1e-6 of the largest.
    pub(super) fn check(name: &str, x: &[f64], gradient: &[f64], f: impl Fn(&[f64]) -> f64) {
        let largest = gradient.iter().fold(1e-3_f64, |largest, value| largest.max(value.abs()));
        let mut moved = x.to_vec();
        for index in 0..x.len() {
            let step = 1e-5;
            moved[index] = x[index] + step;
            let above = f(&moved);
            moved[index] = x[index] - step;
            let below = f(&moved);
            moved[index] = x[index];
            let difference = (above - below) / (2.0 * step);
            assert!(
                (difference - gradient[index]).abs() <= 1e-6 * largest,
                "{name}[{index}]: {} by the gradient, {difference} by differences",
                gradient[index]
            );
        }
    }

    /// Numbers in [-1, 1) from a counter.
    pub(super) fn numbers(seed: u64, count: usize) -> Vec<f64> {
        (0..count as u64)
            .map(|index| (crate::splitmix::at(seed, index) >> 40) as f64 / (1u64 << 23) as f64 - 1.0)
            .collect()
    }

    /// The inner product.
    pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
        a.iter().zip(b).map(|(a, b)| a * b).sum()
    }
}
