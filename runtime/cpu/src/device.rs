//! The device: compiles functions into bound kernels and runs them on regions of the arenas.
//!
//! Everything that could go wrong is found when a function is compiled: element types, the number and sizes of
//! operands, outputs that share bytes with what they must not. A run only looks at token ids.

use crate::attention;
use crate::bind::{self, Bound, Place, Step};
use crate::elementwise::{Compiler, Random, Runs};
use crate::parallel::Processor;
use crate::rope::{Rotation, Table};
use crate::simd::InstructionSet;
use crate::{embedding, gemm, norm, optimizer, rope, softmax};
use pipec_program::id::Id;
use pipec_program::{Body, Bytes, DType, Function, Seed};
use pipec_runtime::{Compiled, Device, DeviceError, Region, ScalarValue};
use std::sync::Arc;

use crate::parallel::{Rows, RowsMut};

/// The name of this kind of device.
pub(crate) const KIND: &str = "cpu";

/// A device that computes on the processor.
pub struct CpuDevice {
    processor: Processor,
    compiler: Compiler,
    tables: Vec<(Rotation, Arc<Table>)>,
    functions: Vec<CompiledFunction>,
}

/// A function as a list of bound kernels.
struct CompiledFunction {
    name: String,
    /// What the regions must be.
    regions: Vec<Needed>,
    /// The regions of the present call; kept, so that a call allocates nothing.
    arguments: Arguments,
    steps: Vec<Step>,
}

/// What a region must be at least.
#[derive(Clone, Copy, Debug)]
struct Needed {
    bytes: usize,
    /// That of the widest elements of its values: tokens of a micro-batch of odd length start at any multiple of 4 bytes.
    alignment: usize,
}

/// The regions of a call.
struct Arguments(Vec<*mut u8>);

// SAFETY: the pointers are used only during a run, by threads that the run waits for, on bytes that the engine lends to
// it alone.
unsafe impl Send for Arguments {}
// SAFETY: as above.
unsafe impl Sync for Arguments {}

impl CpuDevice {
    /// A device that computes on `threads` threads, in the best instruction set of this processor.
    ///
    /// # Errors
    /// [`DeviceError::Failed`] when threads cannot be started or code cannot be made for this processor.
    pub fn new(threads: usize) -> Result<Self, DeviceError> {
        Self::with_instruction_set(threads, InstructionSet::detect())
    }

    /// A device that computes in a certain instruction set.
    ///
    /// # Errors
    /// As [`CpuDevice::new`].
    pub fn with_instruction_set(threads: usize, set: InstructionSet) -> Result<Self, DeviceError> {
        let processor =
            Processor::new(set, threads).map_err(|error| DeviceError::Failed(error.to_string()))?;
        let compiler = Compiler::new().map_err(DeviceError::Failed)?;
        Ok(Self { processor, compiler, tables: Vec::new(), functions: Vec::new() })
    }
}

impl Device for CpuDevice {
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
            let places =
                bind::places(function, values, kernel).map_err(|what| unsupported(Some(position), what))?;
            let (inputs, outputs) = places;
            let bound = bind::bind(kernel, &inputs, &outputs, &mut self.compiler, &mut self.tables)
                .map_err(|what| unsupported(Some(position), what))?;
            self.processor.reserve(bound.scratch_elements());
            steps.push(Step { bound, inputs, outputs });
        }
        let mut regions = Vec::new();
        for (id, param) in function.params.iter() {
            let bytes = usize::try_from(param.bytes.0)
                .map_err(|_| unsupported(None, format!("a region of {}", param.bytes)))?;
            let inside = values.values().filter(|value| value.param == id);
            let alignment = inside.map(|value| value.ty.dtype.bytes().0 as usize).max().unwrap_or(1);
            regions.push(Needed { bytes, alignment });
        }
        let arguments = Arguments(Vec::with_capacity(regions.len()));
        self.functions.push(CompiledFunction { name: function.name.clone(), regions, arguments, steps });
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
            .get_mut(function.0 as usize)
            .ok_or_else(|| DeviceError::Failed(format!("function {} was never compiled", function.0)))?;
        let fits = |(region, needed): (&Region<'_>, &Needed)| {
            region.len() >= needed.bytes && region.as_ptr().align_offset(needed.alignment) == 0
        };
        if regions.len() != function.regions.len() || !regions.iter().zip(&function.regions).all(fits) {
            return Err(DeviceError::Failed(format!("regions that do not fit function `{}`", function.name)));
        }
        function.arguments.0.clear();
        function.arguments.0.extend(regions.iter().map(|region| region.as_ptr()));
        let (function, processor) = (&*function, &self.processor);
        processor.enter(|| {
            for (position, step) in function.steps.iter().enumerate() {
                Call { processor, function, position, step, scalars }.execute()?;
            }
            Ok(())
        })
    }

    fn add(&mut self, dtype: DType, from: Region<'_>, to: Region<'_>) -> Result<(), DeviceError> {
        let bytes = from.len().min(to.len());
        let aligned = |region: Region<'_>| region.as_ptr().align_offset(align_of::<f64>()) == 0;
        if !aligned(from) || !aligned(to) {
            return Err(DeviceError::Failed("regions that are not aligned".to_owned()));
        }
        match dtype {
            DType::F32 => {
                // SAFETY: the regions are valid for their length, aligned, and the engine lends them to this call
                // alone; `from` and `to` share no byte.
                let (from, to) =
                    unsafe { (slice(from.as_ptr(), bytes / 4), slice_mut(to.as_ptr(), bytes / 4)) };
                self.processor.enter(|| optimizer::add(&self.processor, from, to));
            }
            DType::F64 => {
                // SAFETY: as above.
                let (from, to): (&[f64], &mut [f64]) =
                    unsafe { (slice(from.as_ptr(), bytes / 8), slice_mut(to.as_ptr(), bytes / 8)) };
                to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
            }
            DType::F16 | DType::BF16 | DType::U32 => {
                return Err(DeviceError::Failed(format!(
                    "a cpu device does not add elements of type {dtype}"
                )));
            }
        }
        Ok(())
    }

    fn scratch(&self) -> Bytes {
        let tables: usize = self.tables.iter().map(|(_, table)| table.bytes()).sum();
        Bytes((self.processor.scratch_bytes() + tables) as u64)
    }
}

/// # Safety
/// `elements` elements at `from` are readable and not written as long as the slice lives.
unsafe fn slice<'a, T>(from: *const u8, elements: usize) -> &'a [T] {
    // SAFETY: promised by the caller.
    unsafe { std::slice::from_raw_parts(from.cast(), elements) }
}

/// # Safety
/// `elements` elements at `to` are accessed by nobody else as long as the slice lives.
unsafe fn slice_mut<'a, T>(to: *mut u8, elements: usize) -> &'a mut [T] {
    // SAFETY: promised by the caller.
    unsafe { std::slice::from_raw_parts_mut(to.cast(), elements) }
}

/// A call of one kernel.
struct Call<'a> {
    processor: &'a Processor,
    function: &'a CompiledFunction,
    position: usize,
    step: &'a Step,
    scalars: &'a [ScalarValue],
}

impl<'a> Call<'a> {
    fn pointer(&self, place: &Place) -> *mut u8 {
        self.function.arguments.0[place.region].wrapping_add(place.offset)
    }

    /// Elements of an input.
    fn input<T>(&self, index: usize) -> &'a [T] {
        let place = &self.step.inputs[index];
        // SAFETY: the place lies in its region and is aligned (checked when compiled, the region when run); its type
        // is that of the operand; the engine lends the bytes to this call, and no output of the kernel overlaps it
        // but where the caller of this method says so.
        unsafe { slice(self.pointer(place), place.elements) }
    }

    /// Elements of an output.
    fn output<T>(&self, index: usize) -> &'a mut [T] {
        let place = &self.step.outputs[index].place;
        // SAFETY: as for inputs; no other operand of the kernel overlaps an output (checked when compiled) but an
        // input in place, which the kernels below then do not look at.
        unsafe { slice_mut(self.pointer(place), place.elements) }
    }

    /// The parts of keys and values of an attention, which end at an operand.
    fn keys_and_values(&self, end: usize) -> Vec<(&'a [f32], &'a [f32])> {
        (1..end).step_by(2).map(|part| (self.input(part), self.input(part + 1))).collect()
    }

    fn rows(&self, index: usize) -> Rows<'a> {
        Rows::new(self.input(index), self.step.inputs[index].columns)
    }

    fn rows_mut(&self, index: usize) -> RowsMut<'a> {
        RowsMut::new(self.output(index), self.step.outputs[index].place.columns)
    }

    /// The rows of an input, unless an output is the same value.
    fn rows_unless_in_place(&self, index: usize, output: usize) -> Option<Rows<'a>> {
        let (input, output) = (&self.step.inputs[index], &self.step.outputs[output].place);
        (input != output).then(|| self.rows(index))
    }

    fn accumulates(&self, index: usize) -> bool {
        self.step.outputs[index].accumulate
    }

    fn scalar(&self, index: usize) -> Result<ScalarValue, DeviceError> {
        let missing = || DeviceError::Failed(format!("function `{}` lacks a scalar", self.function.name));
        self.scalars.get(index).copied().ok_or_else(missing)
    }

    /// The token ids of an input, all of them below `rows` or equal to `ignore`.
    fn tokens(&self, index: usize, rows: usize, ignore: Option<u32>) -> Result<&'a [u32], DeviceError> {
        let tokens: &[u32] = self.input(index);
        match tokens.iter().find(|&&token| token as usize >= rows && Some(token) != ignore) {
            None => Ok(tokens),
            Some(&token) => Err(DeviceError::TokenOutOfRange {
                function: self.function.name.clone(),
                kernel: self.position,
                token,
                rows: rows as u64,
            }),
        }
    }

    /// The residual that a norm gradient has beside its `operands` operands.
    fn residual(&self, operands: usize) -> Option<Rows<'a>> {
        (self.step.inputs.len() > operands).then(|| self.rows(operands))
    }

    /// What a norm is of: its first input, plus the residual at an input if there is one, with the output of the same
    /// position for their sum.
    fn normed(&self, residual: usize) -> norm::Normed<'a> {
        if self.step.inputs.len() <= residual {
            return norm::Normed::Rows(self.rows(0));
        }
        norm::Normed::Sum {
            x: self.rows_unless_in_place(0, residual),
            residual: self.rows_unless_in_place(residual, residual),
            sum: self.rows_mut(residual),
        }
    }

    fn execute(&self) -> Result<(), DeviceError> {
        let processor = self.processor;
        match &self.step.bound {
            Bound::Matmul(products) => {
                let count = products.len();
                for (number, product) in products.iter().enumerate() {
                    let biased = self.step.inputs.len() > 1 + count;
                    let bias = biased.then(|| self.input(1 + count + number));
                    let (a, b, c) = (self.input(0), self.input(1 + number), self.output(number));
                    gemm::matmul(processor, *product, a, b, bias, c);
                }
            }
            Bound::SumRows => norm::sum_rows(processor, self.rows(0), self.output(0), self.accumulates(0)),
            Bound::Embedding => {
                let tokens = self.tokens(0, self.step.inputs[1].rows, None)?;
                embedding::gather(processor, self.rows(1), &|token| tokens[token] as usize, self.rows_mut(0));
            }
            Bound::EmbeddingGrad => {
                let rows = self.step.outputs[0].place.rows;
                let tokens = self.tokens(0, rows, None)?;
                let index = |token: usize| tokens[token] as usize;
                embedding::scatter_add(processor, self.rows(1), &index, self.output(0), rows);
            }
            &Bound::Positions { tokens, first } => {
                embedding::gather(processor, self.rows(0), &|token| first + token % tokens, self.rows_mut(0));
            }
            &Bound::PositionsGrad { tokens, first } => {
                let rows = self.step.outputs[0].place.rows;
                let index = |token| first + token % tokens;
                embedding::scatter_add(processor, self.rows(0), &index, self.output(0), rows);
            }
            &Bound::RmsNorm { eps } => {
                norm::rms_norm(
                    processor,
                    eps,
                    self.normed(2),
                    self.input(1),
                    self.rows_mut(0),
                    self.output(1),
                );
            }
            Bound::RmsNormGrad => norm::rms_norm_grad(
                processor,
                self.rows(0),
                self.input(1),
                self.input(2),
                self.rows(3),
                self.residual(4),
                self.rows_mut(0),
                self.accumulates(0),
            ),
            Bound::RmsNormGainGrad => norm::rms_norm_gain_grad(
                processor,
                self.rows(0),
                self.input(1),
                self.rows(2),
                self.output(0),
                self.accumulates(0),
            ),
            &Bound::LayerNorm { eps } => norm::layer_norm(
                processor,
                eps,
                self.normed(3),
                self.input(1),
                self.input(2),
                self.rows_mut(0),
                self.output(1),
                self.output(2),
            ),
            Bound::LayerNormGrad => norm::layer_norm_grad(
                processor,
                self.rows(0),
                self.input(1),
                self.input(2),
                self.input(3),
                self.rows(4),
                self.residual(5),
                self.rows_mut(0),
                self.accumulates(0),
            ),
            Bound::LayerNormParamGrad => norm::layer_norm_param_grad(
                processor,
                self.rows(0),
                self.input(1),
                self.input(2),
                self.rows(3),
                self.output(0),
                self.accumulates(0),
                self.output(1),
                self.accumulates(1),
            ),
            Bound::Rope { table, head_dim, inverse } => {
                let x = self.rows_unless_in_place(0, 0);
                rope::rope(processor, table, *head_dim, *inverse, x, self.rows_mut(0));
            }
            Bound::Attention(shape) => attention::attention(
                processor,
                shape,
                self.input(0),
                &self.keys_and_values(self.step.inputs.len()),
                self.output(0),
                self.output(1),
            ),
            Bound::AttentionGrad(shape) => {
                let end = self.step.inputs.len() - 3;
                let operands = attention::Operands {
                    q: self.input(0),
                    keys_and_values: &self.keys_and_values(end),
                    o: self.input(end),
                    lse: self.input(end + 1),
                    d_o: self.input(end + 2),
                };
                let parts = (1..end).step_by(2).map(|part| attention::PartGradients {
                    dk: self.output(part),
                    dv: self.output(part + 1),
                    accumulate: [self.accumulates(part), self.accumulates(part + 1)],
                });
                let gradients = attention::Gradients {
                    dq: self.output(0),
                    accumulate: self.accumulates(0),
                    parts: parts.collect(),
                };
                attention::attention_grad(processor, shape, operands, gradients);
            }
            Bound::Softmax => softmax::softmax(processor, self.rows(0), self.rows_mut(0)),
            Bound::SoftmaxGrad => {
                let dx = self.rows_mut(0);
                softmax::softmax_grad(processor, self.rows(0), self.rows(1), dx, self.accumulates(0));
            }
            &Bound::CrossEntropy { ignore } => {
                let logits = self.rows(0);
                let targets = self.tokens(1, logits.columns, ignore)?;
                let loss = softmax::cross_entropy(processor, ignore, logits, targets, self.output(1));
                self.output::<f64>(0)[0] = loss;
            }
            &Bound::CrossEntropyGrad { ignore, scale } => {
                let targets = self.tokens(1, self.step.inputs[0].columns, ignore)?;
                let (scale, logits) = (self.scalar(scale)?.real() as f32, self.rows_unless_in_place(0, 0));
                let dlogits = self.rows_mut(0);
                softmax::cross_entropy_grad(
                    processor,
                    ignore,
                    scale,
                    logits,
                    targets,
                    self.input(2),
                    dlogits,
                );
            }
            Bound::Map { kernel, seed } => {
                let output = &self.step.outputs[0].place;
                let random = match seed {
                    Some(Seed { scalar, part }) => Random {
                        seed: self.scalar(scalar.index())?.integer(),
                        runs: part.map(|part| Runs::new(part, output.columns)),
                    },
                    None => Random { seed: 0, runs: None },
                };
                let mut pointers = [std::ptr::null_mut(); bind::MOST_POINTERS];
                let places =
                    self.step.inputs.iter().chain(self.step.outputs.iter().map(|output| &output.place));
                for (pointer, place) in pointers.iter_mut().zip(places) {
                    *pointer = self.pointer(place).cast::<f32>();
                }
                let count = self.step.inputs.len() + self.step.outputs.len();
                // SAFETY: the operands have the sizes of the expression and overlap only as it allows (checked when
                // compiled); the engine lends the bytes to this call; the compiler lives in the device.
                unsafe { kernel.run(processor, random, output.rows, output.columns, &pointers[..count]) };
            }
            Bound::SumSquares => {
                let inputs = self.step.inputs.len();
                optimizer::sum_squares(processor, inputs, &|index| self.input(index), self.output(0));
            }
            &Bound::ClipFactor { limit } => {
                let (norm, factor) = optimizer::clip_factor(self.input(0), limit);
                self.output::<f64>(0)[0] = norm;
                self.output::<f32>(1)[0] = factor;
            }
            Bound::AdamW { rates, learning_rate, step } => {
                let adam = rates.at(self.scalar(*learning_rate)?.real(), self.scalar(*step)?.integer());
                let factor = if self.step.inputs.len() > 1 { self.input::<f32>(1)[0] } else { 1.0 };
                let (moment, variance) = (self.output(1), self.output(2));
                let gradient = self.input(0);
                if self.step.outputs.len() > 3 {
                    let master = self.output::<f32>(3);
                    optimizer::adamw(processor, adam, factor, gradient, master, moment, variance);
                    self.output::<f32>(0).copy_from_slice(master);
                } else {
                    optimizer::adamw(processor, adam, factor, gradient, self.output(0), moment, variance);
                }
            }
        }
        Ok(())
    }
}
