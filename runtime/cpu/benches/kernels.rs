//! Kernels at the shapes of the reference configurations S and M, on one thread. The counter is operations (products,
//! attention; causal halves counted once) or bytes moved (all else).
//!
//! `cargo bench -p pipec-cpu`; the minimum is the number to look at on a machine with other work.

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use pipec_cpu::CpuDevice;
use pipec_program::{
    Access, AttentionShape, BinaryOp, Body, Bytes, DType, Function, IdVec, Kernel, Mask, Node, Op, Output,
    Pairing, Param, Scalar, ScalarId, ScalarType, Space, TensorType, UnaryOp, Value,
};
use pipec_runtime::{Device, ScalarValue, splitmix};
use std::fmt;

fn main() {
    divan::main();
}

/// A reference configuration.
#[derive(Clone, Copy)]
struct Preset {
    name: &'static str,
    layers: u64,
    hidden: u64,
    heads: u64,
    ffn: u64,
    vocab: u64,
    sequence: u64,
    sequences: u64,
}

const PRESETS: [Preset; 2] = [
    Preset {
        name: "S",
        layers: 4,
        hidden: 256,
        heads: 4,
        ffn: 688,
        vocab: 4096,
        sequence: 256,
        sequences: 2,
    },
    Preset {
        name: "M",
        layers: 8,
        hidden: 512,
        heads: 8,
        ffn: 1376,
        vocab: 8192,
        sequence: 512,
        sequences: 1,
    },
];

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Preset {
    fn tokens(&self) -> u64 {
        self.sequence * self.sequences
    }

    fn attention(&self) -> AttentionShape {
        let head_dim = self.hidden / self.heads;
        AttentionShape {
            sequences: self.sequences,
            heads: self.heads,
            kv_heads: self.heads,
            head_dim,
            mask: Mask::Causal,
            scale: 1.0 / (head_dim as f64).sqrt(),
        }
    }

    fn parameters(&self) -> u64 {
        self.layers * (4 * self.hidden * self.hidden + 3 * self.hidden * self.ffn)
            + 2 * self.vocab * self.hidden
    }
}

/// A function of one kernel with its arguments.
struct Call {
    function: Function,
    values: IdVec<pipec_program::ValueId, Value>,
    kernel: Kernel,
    tokens_below: Vec<Option<u64>>,
    arguments: Vec<ScalarValue>,
}

impl Call {
    fn new(op: Op) -> Self {
        let body = Body::Kernels { values: IdVec::new(), kernels: Vec::new() };
        let name = op.name().to_owned();
        Self {
            function: Function { name, params: IdVec::new(), scalars: IdVec::new(), pair: None, body },
            values: IdVec::new(),
            kernel: Kernel { op, inputs: Vec::new(), outputs: Vec::new() },
            tokens_below: Vec::new(),
            arguments: Vec::new(),
        }
    }

    fn value(&mut self, dtype: DType, extents: &[u64], access: Access) -> pipec_program::ValueId {
        let ty = TensorType::new(dtype, extents);
        let param = self.function.params.push(Param { name: String::new(), bytes: ty.bytes(), access });
        self.tokens_below.push(None);
        self.values.push(Value { param, offset: Bytes::ZERO, ty })
    }

    fn input(mut self, extents: &[u64]) -> Self {
        let value = self.value(DType::F32, extents, Access::Read);
        self.kernel.inputs.push(value);
        self
    }

    fn tokens(mut self, count: u64, below: u64) -> Self {
        let value = self.value(DType::U32, &[count], Access::Read);
        self.tokens_below[value.0 as usize] = Some(below);
        self.kernel.inputs.push(value);
        self
    }

    fn output(self, extents: &[u64], accumulate: bool) -> Self {
        self.output_of(DType::F32, extents, accumulate)
    }

    fn output_of(mut self, dtype: DType, extents: &[u64], accumulate: bool) -> Self {
        let value = self.value(dtype, extents, Access::Update);
        self.kernel.outputs.push(Output { value, accumulate });
        self
    }

    fn scalar(mut self, argument: ScalarValue) -> Self {
        let ty = match argument {
            ScalarValue::Real(_) => ScalarType::Real,
            ScalarValue::Integer(_) => ScalarType::Integer,
        };
        self.function.scalars.push(Scalar { name: String::new(), ty });
        self.arguments.push(argument);
        self
    }

    fn bench(mut self, bencher: Bencher, items: Option<u64>) {
        self.function.body = Body::Kernels { values: self.values.clone(), kernels: vec![self.kernel] };
        let mut device = CpuDevice::new(1).expect("a device");
        let mut end = Bytes::ZERO;
        let mut places = Vec::new();
        for value in self.values.values() {
            places.push((end, value.ty.bytes()));
            end = (end + value.ty.bytes()).align_up(64);
        }
        let bytes: u64 = places.iter().map(|place| place.1.0).sum();
        let arena = device.allocate(Space::Device, end).expect("memory");
        let regions: Vec<_> =
            places.iter().map(|&(start, bytes)| arena.region(start, bytes).expect("inside")).collect();
        for (index, (&region, below)) in regions.iter().zip(&self.tokens_below).enumerate() {
            let draw = |element: usize| splitmix::at(index as u64, element as u64) >> 40;
            let word = |element| match below {
                Some(below) => (((draw(element) * below) >> 24) as u32).to_le_bytes(),
                None => (draw(element) as f32 / (1u64 << 24) as f32).to_le_bytes(),
            };
            let contents: Vec<u8> = (0..region.len() / 4).flat_map(word).collect();
            device.write(&contents, region).expect("written");
        }
        let compiled = device.compile(&self.function).expect("compiled");
        let run = move || device.run(compiled, &regions, &self.arguments).expect("run");
        match items {
            Some(items) => bencher.counter(ItemsCount::new(items)).bench_local(run),
            None => bencher.counter(BytesCount::new(bytes)).bench_local(run),
        }
    }
}

/// A linear layer: rows are tokens.
fn linear(bencher: Bencher, preset: Preset, inputs: u64, outputs: u64, pass: Pass) {
    let tokens = preset.tokens();
    let call = match pass {
        Pass::Forward => Call::new(Op::Matmul { transpose_a: false, transpose_b: true })
            .input(&[tokens, inputs])
            .input(&[outputs, inputs])
            .output(&[tokens, outputs], false),
        Pass::Input => Call::new(Op::Matmul { transpose_a: false, transpose_b: false })
            .input(&[tokens, outputs])
            .input(&[outputs, inputs])
            .output(&[tokens, inputs], false),
        Pass::Weight => Call::new(Op::Matmul { transpose_a: true, transpose_b: false })
            .input(&[tokens, outputs])
            .input(&[tokens, inputs])
            .output(&[outputs, inputs], true),
    };
    call.bench(bencher, Some(2 * tokens * inputs * outputs));
}

#[derive(Clone, Copy)]
enum Pass {
    Forward,
    Input,
    Weight,
}

macro_rules! linears {
    ($($name:ident |$preset:ident| $inputs:expr, $outputs:expr;)*) => {$(
        mod $name {
            use super::*;

            #[divan::bench(args = PRESETS)]
            fn forward(bencher: Bencher, $preset: Preset) {
                linear(bencher, $preset, $inputs, $outputs, Pass::Forward);
            }

            #[divan::bench(args = PRESETS)]
            fn input_gradient(bencher: Bencher, $preset: Preset) {
                linear(bencher, $preset, $inputs, $outputs, Pass::Input);
            }

            #[divan::bench(args = PRESETS)]
            fn weight_gradient(bencher: Bencher, $preset: Preset) {
                linear(bencher, $preset, $inputs, $outputs, Pass::Weight);
            }
        }
    )*};
}

linears! {
    linear_projection |preset| preset.hidden, preset.hidden;
    linear_up |preset| preset.hidden, preset.ffn;
    linear_down |preset| preset.ffn, preset.hidden;
    linear_head |preset| preset.hidden, preset.vocab;
}

fn attention_operations(preset: Preset) -> u64 {
    2 * preset.sequences * preset.sequence * preset.sequence * preset.hidden
}

#[divan::bench(args = PRESETS)]
fn attention(bencher: Bencher, preset: Preset) {
    let q = [preset.tokens(), preset.hidden];
    let rows = [preset.sequences * preset.heads, preset.sequence];
    let call = Call::new(Op::Attention(preset.attention())).input(&q).input(&q).input(&q);
    call.output(&q, false).output(&rows, false).bench(bencher, Some(attention_operations(preset)));
}

#[divan::bench(args = PRESETS)]
fn attention_grad(bencher: Bencher, preset: Preset) {
    let q = [preset.tokens(), preset.hidden];
    let rows = [preset.sequences * preset.heads, preset.sequence];
    let call =
        Call::new(Op::AttentionGrad(preset.attention())).input(&q).input(&q).input(&q).input(&q).input(&rows);
    let call = call.input(&q).output(&q, false).output(&q, false).output(&q, false);
    call.bench(bencher, Some(attention_operations(preset) * 5 / 2));
}

#[divan::bench(args = PRESETS)]
fn rms_norm(bencher: Bencher, preset: Preset) {
    let x = [preset.tokens(), preset.hidden];
    let call = Call::new(Op::RmsNorm { eps: 1e-5 }).input(&x).input(&[preset.hidden]);
    call.output(&x, false).output(&[preset.tokens()], false).bench(bencher, None);
}

#[divan::bench(args = PRESETS)]
fn rms_norm_of_sum(bencher: Bencher, preset: Preset) {
    let x = [preset.tokens(), preset.hidden];
    let call = Call::new(Op::RmsNorm { eps: 1e-5 }).input(&x).input(&[preset.hidden]).input(&x);
    let call = call.output(&x, false).output(&[preset.tokens()], false).output(&x, false);
    call.bench(bencher, None);
}

#[divan::bench(args = PRESETS)]
fn rms_norm_grad(bencher: Bencher, preset: Preset) {
    let x = [preset.tokens(), preset.hidden];
    let call =
        Call::new(Op::RmsNormGrad).input(&x).input(&[preset.hidden]).input(&[preset.tokens()]).input(&x);
    call.input(&x).output(&x, false).bench(bencher, None);
}

#[divan::bench(args = PRESETS)]
fn rms_norm_gain_grad(bencher: Bencher, preset: Preset) {
    let x = [preset.tokens(), preset.hidden];
    let call = Call::new(Op::RmsNormGainGrad).input(&x).input(&[preset.tokens()]).input(&x);
    call.output(&[preset.hidden], true).bench(bencher, None);
}

#[divan::bench(args = PRESETS)]
fn rope(bencher: Bencher, preset: Preset) {
    let head_dim = preset.hidden / preset.heads;
    let op = Op::Rope {
        first: 0,
        tokens: preset.sequence,
        head_dim,
        rotary: head_dim,
        base: 10000.0,
        pairing: Pairing::Half,
        scaling: None,
        inverse: false,
    };
    let x = [preset.tokens(), preset.hidden];
    Call::new(op).input(&x).output(&x, false).bench(bencher, None);
}

#[divan::bench(args = PRESETS)]
fn cross_entropy(bencher: Bencher, preset: Preset) {
    let logits = [preset.tokens(), preset.vocab];
    let call =
        Call::new(Op::CrossEntropy { ignore: None }).input(&logits).tokens(preset.tokens(), preset.vocab);
    call.output_of(DType::F64, &[1], false).output(&[preset.tokens()], false).bench(bencher, None);
}

#[divan::bench(args = PRESETS)]
fn cross_entropy_grad(bencher: Bencher, preset: Preset) {
    let logits = [preset.tokens(), preset.vocab];
    let call = Call::new(Op::CrossEntropyGrad { ignore: None, scale: ScalarId(0) }).input(&logits);
    let call = call.tokens(preset.tokens(), preset.vocab).input(&[preset.tokens()]).output(&logits, false);
    call.scalar(ScalarValue::Real(1e-3)).bench(bencher, None);
}

/// `silu(a) b`.
#[divan::bench(args = PRESETS)]
fn gated_silu(bencher: Bencher, preset: Preset) {
    let nodes = vec![
        Node::Input(0),
        Node::Input(1),
        Node::Unary(UnaryOp::Sigmoid, 0),
        Node::Binary(BinaryOp::Mul, 0, 2),
        Node::Binary(BinaryOp::Mul, 3, 1),
    ];
    let x = [preset.tokens(), preset.ffn];
    let call = Call::new(Op::Map { nodes, results: vec![4], seed: None }).input(&x).input(&x);
    call.output(&x, false).bench(bencher, None);
}

/// `a + b`, at the speed of memory.
#[divan::bench(args = PRESETS)]
fn residual(bencher: Bencher, preset: Preset) {
    let nodes = vec![Node::Input(0), Node::Input(1), Node::Binary(BinaryOp::Add, 0, 1)];
    let x = [preset.tokens(), preset.hidden];
    let call = Call::new(Op::Map { nodes, results: vec![2], seed: None }).input(&x).input(&x);
    call.output(&x, false).bench(bencher, None);
}

#[divan::bench(args = PRESETS, sample_count = 10)]
fn adamw(bencher: Bencher, preset: Preset) {
    let op = Op::AdamW {
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        weight_decay: 0.1,
        learning_rate: ScalarId(0),
        step: ScalarId(1),
    };
    let n = [preset.parameters()];
    let call = Call::new(op).input(&n).output(&n, false).output(&n, false).output(&n, false);
    call.scalar(ScalarValue::Real(1e-3)).scalar(ScalarValue::Integer(5)).bench(bencher, None);
}
