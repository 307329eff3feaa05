//! The kernel corpus: small functions that together use every op and every variant of its attributes, at odd sizes.
//! A device passes if it agrees with the reference device on all of them.
//!
//! Bounds: a case allows `terms * 2^-24` of rounding, where `terms` is the longest chain of f32 roundings behind one
//! element (the length of its sums, and 16 for a call of an elementary function), relative to the largest element of
//! the tensor, or to the element itself where nothing cancels. That is the first-order bound of a sum of `terms` terms
//! none of which exceeds the result's scale; random signs keep the true error near its square root.

mod cases;

pub use cases::cases;

use crate::device::{Device, DeviceError, ScalarValue};
use crate::reference::ReferenceDevice;
use crate::splitmix;
use pipec_program::id::Id;
use pipec_program::{
    Access, Body, Bytes, DType, Function, IdVec, Kernel, Op, Output, Param, ParamId, Scalar, ScalarId,
    ScalarType, Space, TensorType, Value, ValueId,
};

/// A function with its arguments and the error that it may make.
#[derive(Clone, Debug)]
pub struct Case {
    /// Unique in the corpus.
    pub name: String,
    /// The function; its values are f32, u32 and, for sums, f64.
    pub function: Function,
    /// The scalar arguments.
    pub scalars: Vec<ScalarValue>,
    /// The bound.
    pub bound: Bound,
    /// What the values hold before the call; none for values that the call writes first.
    contents: IdVec<ValueId, Option<Content>>,
}

/// How far a result may be from that of the reference device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// `terms * 2^-24` times the largest element of the expected tensor.
    OfLargest(f64),
    /// `terms * 2^-24` times each expected element, or the smallest normal f32.
    OfEach(f64),
    /// The same bits.
    Exact,
}

/// What a value holds before a call.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// Uniform real numbers.
    Uniform {
        low: f64,
        high: f64,
    },
    /// Token ids below a number.
    Tokens {
        below: u32,
    },
    /// These, repeated.
    Listed(Vec<f64>),
    ListedTokens(Vec<u32>),
}

impl Content {
    fn bytes(&self, value: ValueId, ty: &TensorType) -> Vec<u8> {
        let count = ty.shape.elements();
        let draw = |index| splitmix::at(splitmix::at(0x636F_7270_7573, u64::from(value.0)), index) >> 40;
        let real = |value: f64| match ty.dtype {
            DType::F64 => value.to_le_bytes().to_vec(),
            DType::F32 | DType::F16 | DType::BF16 | DType::U32 => (value as f32).to_le_bytes().to_vec(),
        };
        (0..count)
            .flat_map(|index| match self {
                Self::Uniform { low, high } => {
                    real(low + (high - low) * draw(index) as f64 / (1u64 << 24) as f64)
                }
                Self::Tokens { below } => {
                    (((draw(index) * u64::from(*below)) >> 24) as u32).to_le_bytes().to_vec()
                }
                Self::Listed(values) => real(values[index as usize % values.len()]),
                Self::ListedTokens(tokens) => tokens[index as usize % tokens.len()].to_le_bytes().to_vec(),
            })
            .collect()
    }
}

/// What a call leaves in a value.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The value.
    pub value: ValueId,
    /// Its type.
    pub ty: TensorType,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl Outcome {
    /// The elements as real numbers.
    pub fn reals(&self) -> Vec<f64> {
        let chunks = |size| self.bytes.chunks_exact(size);
        match self.ty.dtype {
            DType::F64 => chunks(8).map(|b| f64::from_le_bytes(std::array::from_fn(|i| b[i]))).collect(),
            DType::F32 => {
                chunks(4).map(|b| f64::from(f32::from_le_bytes(std::array::from_fn(|i| b[i])))).collect()
            }
            DType::U32 => {
                chunks(4).map(|b| f64::from(u32::from_le_bytes(std::array::from_fn(|i| b[i])))).collect()
            }
            DType::F16 | DType::BF16 => Vec::new(),
        }
    }
}

impl Case {
    /// Compiles the function on a device and calls it once; returns all values in regions that the call writes and
    /// that outlive it.
    pub fn run(&self, device: &mut dyn Device) -> Result<Vec<Outcome>, DeviceError> {
        let mut offsets = Vec::new();
        let mut end = Bytes::ZERO;
        for param in self.function.params.values() {
            let start = end.align_up(64);
            offsets.push(start);
            end = start + param.bytes;
        }
        let arena = device.allocate(Space::Device, end)?;
        let regions: Vec<_> = self
            .function
            .params
            .values()
            .zip(&offsets)
            .filter_map(|(param, &offset)| arena.region(offset, param.bytes))
            .collect();
        let Body::Kernels { values, .. } = &self.function.body else {
            return Ok(Vec::new());
        };
        let place = |value: &Value| {
            regions
                .get(value.param.index())
                .and_then(|region| region.slice(value.offset, value.ty.bytes()))
                .ok_or_else(|| DeviceError::Failed("a value outside its region".to_owned()))
        };
        for (id, value) in values.iter() {
            if let Some(content) = &self.contents[id] {
                device.write(&content.bytes(id, &value.ty), place(value)?)?;
            }
        }
        let compiled = device.compile(&self.function)?;
        device.run(compiled, &regions, &self.scalars)?;
        let mut results = Vec::new();
        for (id, value) in values.iter() {
            match self.function.params[value.param].access {
                Access::Write | Access::Update | Access::Accumulate => {
                    let mut bytes = vec![0; place(value)?.len()];
                    device.read(place(value)?, &mut bytes)?;
                    results.push(Outcome { value: id, ty: value.ty.clone(), bytes });
                }
                Access::Read | Access::Workspace => {}
            }
        }
        Ok(results)
    }

    /// Runs the case on the reference device and twice on `device`: the results must agree within the bound, and the
    /// two runs to the bit. The error says what differs.
    pub fn check(&self, device: &mut dyn Device) -> Result<(), String> {
        let fail = |what: String| format!("{}: {what}", self.name);
        let expected = self.run(&mut ReferenceDevice::new()).map_err(|error| fail(error.to_string()))?;
        let actual = self.run(device).map_err(|error| fail(error.to_string()))?;
        let again = self.run(device).map_err(|error| fail(error.to_string()))?;
        if actual != again {
            return Err(fail("two runs differ".to_owned()));
        }
        for (expected, actual) in expected.iter().zip(&actual) {
            self.compare(expected, actual).map_err(fail)?;
        }
        Ok(())
    }

    fn compare(&self, expected: &Outcome, actual: &Outcome) -> Result<(), String> {
        const UNIT: f64 = 1.0 / (1u64 << 24) as f64;
        let reals = expected.reals();
        let largest = reals
            .iter()
            .filter(|real| real.is_finite())
            .fold(0.0_f64, |largest, real| largest.max(real.abs()));
        for (index, (&want, got)) in reals.iter().zip(actual.reals()).enumerate() {
            let allowed = match self.bound {
                Bound::OfLargest(terms) => terms * UNIT * largest,
                Bound::OfEach(terms) => (terms * UNIT * want.abs()).max(f64::from(f32::MIN_POSITIVE)),
                Bound::Exact => 0.0,
            };
            let same = want == got || (want.is_nan() && got.is_nan());
            // A difference that is no number is not near.
            let near = (want - got).abs() <= allowed;
            if !same && !near {
                let value = expected.value;
                return Err(format!("{value}[{index}] is {got:e} instead of {want:e} (allowed {allowed:e})"));
            }
        }
        Ok(())
    }
}

/// Builds a case: every value gets a region of its own unless it is put into another one.
pub(crate) struct Builder {
    name: String,
    params: IdVec<ParamId, Param>,
    scalars: IdVec<ScalarId, Scalar>,
    arguments: Vec<ScalarValue>,
    values: IdVec<ValueId, Value>,
    contents: IdVec<ValueId, Option<Content>>,
    kernels: Vec<Kernel>,
    bound: Bound,
}

impl Builder {
    pub(crate) fn new(name: impl Into<String>, bound: Bound) -> Self {
        Self {
            name: name.into(),
            params: IdVec::new(),
            scalars: IdVec::new(),
            arguments: Vec::new(),
            values: IdVec::new(),
            contents: IdVec::new(),
            kernels: Vec::new(),
            bound,
        }
    }

    /// A value in a new region.
    pub(crate) fn value(&mut self, access: Access, ty: TensorType, content: Option<Content>) -> ValueId {
        let name = format!("p{}", self.params.len());
        let param = self.params.push(Param { name, bytes: ty.bytes(), access });
        self.contents.push(content);
        self.values.push(Value { param, offset: Bytes::ZERO, ty })
    }

    /// A value at the end of the region of another one, at the next multiple of its element size.
    pub(crate) fn beside(&mut self, other: ValueId, ty: TensorType, content: Option<Content>) -> ValueId {
        let param = self.values[other].param;
        let offset = self.params[param].bytes.align_up(ty.dtype.bytes().0);
        self.params[param].bytes = offset + ty.bytes();
        self.contents.push(content);
        self.values.push(Value { param, offset, ty })
    }

    /// f32 numbers in [-1, 1) to read.
    pub(crate) fn read(&mut self, extents: &[u64]) -> ValueId {
        self.read_in(extents, -1.0, 1.0)
    }

    /// f32 numbers in [low, high) to read.
    pub(crate) fn read_in(&mut self, extents: &[u64], low: f64, high: f64) -> ValueId {
        let content = Content::Uniform { low, high };
        self.value(Access::Read, TensorType::new(DType::F32, extents), Some(content))
    }

    /// f32 numbers in [-1, 1) to change in place.
    pub(crate) fn update(&mut self, extents: &[u64]) -> ValueId {
        let content = Content::Uniform { low: -1.0, high: 1.0 };
        self.value(Access::Update, TensorType::new(DType::F32, extents), Some(content))
    }

    /// Listed f32 numbers to read.
    pub(crate) fn listed(&mut self, values: &[f64]) -> ValueId {
        let ty = TensorType::new(DType::F32, &[values.len() as u64]);
        self.value(Access::Read, ty, Some(Content::Listed(values.to_vec())))
    }

    /// Token ids to read.
    pub(crate) fn tokens(&mut self, count: u64, below: u32) -> ValueId {
        let ty = TensorType::new(DType::U32, &[count]);
        self.value(Access::Read, ty, Some(Content::Tokens { below }))
    }

    /// Listed token ids to read.
    pub(crate) fn listed_tokens(&mut self, tokens: &[u32]) -> ValueId {
        let ty = TensorType::new(DType::U32, &[tokens.len() as u64]);
        self.value(Access::Read, ty, Some(Content::ListedTokens(tokens.to_vec())))
    }

    /// An f32 result, overwritten or, if `accumulate`, added to numbers in [-1, 1).
    pub(crate) fn result(&mut self, extents: &[u64], accumulate: bool) -> Output {
        let ty = TensorType::new(DType::F32, extents);
        let value = if accumulate {
            self.value(Access::Accumulate, ty, Some(Content::Uniform { low: -1.0, high: 1.0 }))
        } else {
            self.value(Access::Write, ty, None)
        };
        Output { value, accumulate }
    }

    /// An f64 result.
    pub(crate) fn result_f64(&mut self, count: u64) -> Output {
        let value = self.value(Access::Write, TensorType::new(DType::F64, &[count]), None);
        Output { value, accumulate: false }
    }

    /// Scratch.
    pub(crate) fn workspace(&mut self, extents: &[u64]) -> Output {
        let value = self.value(Access::Workspace, TensorType::new(DType::F32, extents), None);
        Output { value, accumulate: false }
    }

    /// A scalar with its argument.
    pub(crate) fn scalar(&mut self, argument: ScalarValue) -> ScalarId {
        let ty = match argument {
            ScalarValue::Real(_) => ScalarType::Real,
            ScalarValue::Integer(_) => ScalarType::Integer,
        };
        self.arguments.push(argument);
        self.scalars.push(Scalar { name: format!("s{}", self.scalars.len()), ty })
    }

    pub(crate) fn kernel(&mut self, op: Op, inputs: &[ValueId], outputs: &[Output]) {
        self.kernels.push(Kernel { op, inputs: inputs.to_vec(), outputs: outputs.to_vec() });
    }

    pub(crate) fn finish(self) -> Case {
        Case {
            function: Function {
                name: self.name.clone(),
                params: self.params,
                scalars: self.scalars,
                pair: None,
                body: Body::Kernels { values: self.values, kernels: self.kernels },
            },
            name: self.name,
            scalars: self.arguments,
            bound: self.bound,
            contents: self.contents,
        }
    }
}
