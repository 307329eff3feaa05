//! Every kernel against the reference device at sizes that cross the edges of its blocks, and to the bit on any number
//! of threads.
//!
//! Bounds are `terms * 2^-24` of the largest element of a result, where `terms` counts the f32 roundings of the longest
//! chain behind one element; an elementary function counts 16.

use pipec_cpu::{CpuDevice, InstructionSet};
use pipec_program::{
    Access, AttentionShape, BinaryOp, Body, Bytes, DType, Function, IdVec, Kernel, Mask, Node, Op, Output,
    Pairing, Param, Scalar, ScalarId, ScalarType, Seed, Space, TensorType, UnaryOp, Value, ValueId,
};
use pipec_runtime::{Device, ReferenceDevice, ScalarValue, splitmix};
use proptest::prelude::*;

/// An operand of the kernel under test.
struct Operand {
    ty: TensorType,
    /// Real numbers in `-size..size`, or token ids below it.
    size: f64,
    output: bool,
    accumulate: bool,
}

fn input(extents: &[u64]) -> Operand {
    Operand { ty: TensorType::new(DType::F32, extents), size: 1.0, output: false, accumulate: false }
}

fn tokens(count: u64, below: u64) -> Operand {
    let ty = TensorType::new(DType::U32, &[count]);
    Operand { ty, size: below as f64, output: false, accumulate: false }
}

fn output(extents: &[u64], accumulate: bool) -> Operand {
    Operand { ty: TensorType::new(DType::F32, extents), size: 1.0, output: true, accumulate }
}

fn bytes_of(operand: &Operand, index: usize) -> Vec<u8> {
    let draw = |element| (splitmix::at(index as u64, element) >> 40) as f64 / (1u64 << 24) as f64;
    let element = |element| match operand.ty.dtype {
        DType::U32 => ((draw(element) * operand.size) as u32).to_le_bytes().to_vec(),
        DType::F64 => (draw(element) * operand.size).to_le_bytes().to_vec(),
        DType::F32 | DType::F16 | DType::BF16 => {
            (((2.0 * draw(element) - 1.0) * operand.size) as f32).to_le_bytes().to_vec()
        }
    };
    (0..operand.ty.shape.elements()).flat_map(element).collect()
}

/// Runs one kernel and returns the bytes of its outputs.
fn run(device: &mut dyn Device, op: &Op, operands: &[Operand], scalars: &[ScalarValue]) -> Vec<Vec<u8>> {
    let mut params = IdVec::new();
    let mut values = IdVec::new();
    let mut kernel = Kernel { op: op.clone(), inputs: Vec::new(), outputs: Vec::new() };
    for (index, operand) in operands.iter().enumerate() {
        let access = match (operand.output, operand.accumulate) {
            (false, _) => Access::Read,
            (true, false) => Access::Write,
            (true, true) => Access::Update,
        };
        let param = params.push(Param { name: format!("p{index}"), bytes: operand.ty.bytes(), access });
        let value = values.push(Value { param, offset: Bytes::ZERO, ty: operand.ty.clone() });
        if operand.output {
            kernel.outputs.push(Output { value, accumulate: operand.accumulate });
        } else {
            kernel.inputs.push(value);
        }
    }
    let scalar = |argument: &ScalarValue| Scalar {
        name: "s".to_owned(),
        ty: match argument {
            ScalarValue::Real(_) => ScalarType::Real,
            ScalarValue::Integer(_) => ScalarType::Integer,
        },
    };
    let function = Function {
        name: "test".to_owned(),
        params,
        scalars: scalars.iter().map(scalar).collect(),
        pair: None,
        body: Body::Kernels { values, kernels: vec![kernel] },
    };
    let results = call(device, &function, operands, scalars);
    operands.iter().zip(results).filter(|(operand, _)| operand.output).map(|(_, bytes)| bytes).collect()
}

/// Calls a function whose regions are operands, and returns what it leaves in each.
fn call(
    device: &mut dyn Device,
    function: &Function,
    operands: &[Operand],
    scalars: &[ScalarValue],
) -> Vec<Vec<u8>> {
    let starts: Vec<Bytes> = operands
        .iter()
        .scan(Bytes::ZERO, |end, operand| {
            let start = *end;
            *end = (start + operand.ty.bytes()).align_up(64);
            Some(start)
        })
        .collect();
    let total = operands.iter().fold(Bytes::ZERO, |end, operand| (end + operand.ty.bytes()).align_up(64));
    let arena = device.allocate(Space::Device, total).expect("memory");
    let regions: Vec<_> = operands
        .iter()
        .zip(&starts)
        .map(|(operand, &start)| arena.region(start, operand.ty.bytes()).expect("inside"))
        .collect();
    for (index, (operand, &region)) in operands.iter().zip(&regions).enumerate() {
        device.write(&bytes_of(operand, index), region).expect("written");
    }
    let compiled = device.compile(function).unwrap_or_else(|error| panic!("{error}"));
    device.run(compiled, &regions, scalars).unwrap_or_else(|error| panic!("{error}"));
    regions
        .iter()
        .map(|&region| {
            let mut bytes = vec![0; region.len()];
            device.read(region, &mut bytes).expect("read");
            bytes
        })
        .collect()
}

/// Adds two values and norms the sum, in two kernels and in one: the results of the two, then of the one.
fn sum_and_norm(device: &mut dyn Device, rows: u64, columns: u64, op: &Op) -> [Vec<Vec<u8>>; 2] {
    let statistics = if matches!(op, Op::LayerNorm { .. }) { 2 } else { 1 };
    let whole = [rows, columns];
    // x, residual, gain and, for as many statistics, a bias.
    let mut operands = vec![input(&whole), input(&whole)];
    operands.extend((0..statistics).map(|_| input(&[columns])));
    let first = operands.len();
    let results = || {
        let statistics = (0..statistics).map(|_| output(&[rows], false));
        [output(&whole, false)].into_iter().chain(statistics).chain([output(&whole, false)])
    };
    let count = results().count();
    operands.extend(results().chain(results()));
    let id = |index: usize| ValueId(u32::try_from(index).expect("few values"));
    let outputs = |range: std::ops::Range<usize>| -> Vec<Output> {
        range.map(|index| Output { value: id(index), accumulate: false }).collect()
    };
    let parameters = 2..first;
    let normed = |x: usize| [x].into_iter().chain(parameters.clone()).map(id);
    let (two, one) = (first..first + count, first + count..first + 2 * count);
    let add = Op::Map {
        nodes: vec![Node::Input(0), Node::Input(1), Node::Binary(BinaryOp::Add, 0, 1)],
        results: vec![2],
        seed: None,
    };
    let kernels = vec![
        Kernel { op: add, inputs: vec![id(0), id(1)], outputs: outputs(two.end - 1..two.end) },
        Kernel {
            op: op.clone(),
            inputs: normed(two.end - 1).collect(),
            outputs: outputs(two.start..two.end - 1),
        },
        Kernel { op: op.clone(), inputs: normed(0).chain([id(1)]).collect(), outputs: outputs(one.clone()) },
    ];
    let mut params = IdVec::new();
    let mut values = IdVec::new();
    for (index, Operand { ty, output, .. }) in operands.iter().enumerate() {
        let access = if *output { Access::Write } else { Access::Read };
        let param = params.push(Param { name: format!("p{index}"), bytes: ty.bytes(), access });
        values.push(Value { param, offset: Bytes::ZERO, ty: ty.clone() });
    }
    let function = Function {
        name: "test".to_owned(),
        params,
        scalars: IdVec::new(),
        pair: None,
        body: Body::Kernels { values, kernels },
    };
    let results = call(device, &function, &operands, &[]);
    [results[two].to_vec(), results[one].to_vec()]
}

fn reals(bytes: &[u8], dtype: DType) -> Vec<f64> {
    match dtype {
        DType::F64 => bytes.as_chunks().0.iter().map(|&word| f64::from_le_bytes(word)).collect(),
        DType::F32 | DType::F16 | DType::BF16 | DType::U32 => {
            bytes.as_chunks().0.iter().map(|&word| f64::from(f32::from_le_bytes(word))).collect()
        }
    }
}

/// The reference, one thread and three threads must agree.
fn check(op: &Op, operands: &[Operand], scalars: &[ScalarValue], terms: f64) {
    let expected = run(&mut ReferenceDevice::new(), op, operands, scalars);
    for set in InstructionSet::available() {
        let on = |threads| {
            let mut device = CpuDevice::with_instruction_set(threads, set).expect("a device");
            run(&mut device, op, operands, scalars)
        };
        let actual = on(1);
        assert_eq!(actual, on(3), "{op:?} depends on the number of threads ({})", set.name());
        let types = operands.iter().filter(|operand| operand.output).map(|operand| operand.ty.dtype);
        for (output, ((expected, actual), dtype)) in expected.iter().zip(&actual).zip(types).enumerate() {
            let (expected, actual) = (reals(expected, dtype), reals(actual, dtype));
            let largest = expected.iter().fold(0.0_f64, |largest, x| largest.max(x.abs()));
            let allowed = terms * largest / (1u64 << 24) as f64;
            for (index, (want, got)) in expected.iter().zip(&actual).enumerate() {
                assert!(
                    (want - got).abs() <= allowed,
                    "{op:?} output {output}[{index}] is {got:e} instead of {want:e} ({}, allowed {allowed:e})",
                    set.name()
                );
            }
        }
    }
}

fn attention_operands(shape: &AttentionShape, queries: u64, keys: u64) -> ([u64; 2], [u64; 2], [u64; 2]) {
    let q = [shape.sequences * queries, shape.heads * shape.head_dim];
    let k = [shape.sequences * keys, shape.kv_heads * shape.head_dim];
    (q, k, [shape.sequences * shape.heads, queries])
}

fn check_attention(shape: AttentionShape, queries: u64, keys: u64, accumulate: bool) {
    let (q, k, rows) = attention_operands(&shape, queries, keys);
    let terms = (shape.head_dim + keys) as f64 + 32.0;
    let operands = [input(&q), input(&k), input(&k), output(&q, false), output(&rows, false)];
    check(&Op::Attention(shape), &operands, &[], terms);

    // Not the true output and log-sum-exp of a forward pass: the formula of the gradient holds for any.
    let operands = [
        input(&q),
        input(&k),
        input(&k),
        input(&q),
        input(&rows),
        input(&q),
        output(&q, accumulate),
        output(&k, accumulate),
        output(&k, accumulate),
    ];
    let terms = 4.0 * terms + (queries * shape.heads / shape.kv_heads) as f64;
    check(&Op::AttentionGrad(shape), &operands, &[], terms);
}

#[test]
fn attention_crosses_blocks_of_queries_and_keys() {
    for (mask, sequences, heads, kv_heads, head_dim, queries, keys) in [
        (Mask::Causal, 1, 2, 1, 64, 200, 200),
        (Mask::Causal, 2, 2, 2, 32, 97, 301),
        (Mask::Full, 1, 4, 2, 48, 61, 193),
        (Mask::Window { size: 70 }, 1, 2, 1, 80, 230, 310),
        (Mask::Window { size: 1 }, 1, 1, 1, 16, 100, 100),
    ] {
        let scale = 1.0 / (head_dim as f64).sqrt();
        let shape = AttentionShape { sequences, heads, kv_heads, head_dim, mask, scale };
        check_attention(shape, queries, keys, false);
    }
}

#[test]
fn products_cross_the_edges_of_packed_chunks() {
    for (m, n, k) in [(530, 131, 9), (25, 300, 258), (13, 33, 520), (1063, 17, 3)] {
        for (transpose_a, transpose_b) in [(false, false), (false, true), (true, false), (true, true)] {
            let a = input(&if transpose_a { [k, m] } else { [m, k] });
            let b = input(&if transpose_b { [n, k] } else { [k, n] });
            let op = Op::Matmul { transpose_a, transpose_b };
            check(&op, &[a, b, output(&[m, n], transpose_a)], &[], k as f64 + 4.0);
        }
    }
}

#[test]
fn long_rows_and_long_tables() {
    let (rows, columns) = (70, 1500);
    let x = || input(&[rows, columns]);
    let row = || input(&[columns]);
    let terms = columns as f64 + 32.0;
    check(
        &Op::RmsNorm { eps: 1e-5 },
        &[x(), row(), output(&[rows, columns], false), output(&[rows], false)],
        &[],
        terms,
    );
    let op = Op::LayerNorm { eps: 1e-5 };
    let outputs = [output(&[rows, columns], false), output(&[rows], false), output(&[rows], false)];
    let operands: Vec<_> = [x(), row(), row()].into_iter().chain(outputs).collect();
    check(&op, &operands, &[], terms);
    check(&Op::Softmax, &[x(), output(&[rows, columns], false)], &[], terms);
    check(&Op::SumRows, &[x(), output(&[columns], true)], &[], rows as f64 + 2.0);

    let logits = || input(&[rows, columns]);
    let loss = Operand { ty: TensorType::new(DType::F64, &[1]), size: 1.0, output: true, accumulate: false };
    let operands = [logits(), tokens(rows, columns), loss, output(&[rows], false)];
    check(&Op::CrossEntropy { ignore: Some(3) }, &operands, &[], terms);
    let operands = [logits(), tokens(rows, columns), input(&[rows]), output(&[rows, columns], false)];
    let op = Op::CrossEntropyGrad { ignore: None, scale: ScalarId(0) };
    check(&op, &operands, &[ScalarValue::Real(0.25)], 64.0);

    let operands = [tokens(rows, 9), input(&[rows, columns]), output(&[9, columns], true)];
    check(&Op::EmbeddingGrad, &operands, &[], rows as f64 + 1.0);
}

#[test]
fn maps_cross_tiles() {
    // dropout(silu(x row) + one), and the sigmoid.
    let nodes = vec![
        Node::Input(0),
        Node::Input(1),
        Node::Input(2),
        Node::Binary(BinaryOp::Mul, 0, 1),
        Node::Unary(UnaryOp::Sigmoid, 3),
        Node::Binary(BinaryOp::Mul, 3, 4),
        Node::Binary(BinaryOp::Add, 5, 2),
        Node::Random { salt: 5 },
        Node::Constant(0.5),
        Node::Binary(BinaryOp::Less, 7, 8),
        Node::Binary(BinaryOp::Mul, 6, 9),
    ];
    for (rows, columns) in [(3, 1100), (700, 3), (1, 512), (40, 513)] {
        let op = Op::Map {
            nodes: nodes.clone(),
            results: vec![10, 4],
            seed: Some(Seed { scalar: ScalarId(0), part: None }),
        };
        let extents = [rows, columns];
        let operands = [
            input(&extents),
            input(&[columns]),
            input(&[1]),
            output(&extents, true),
            output(&extents, false),
        ];
        check(&op, &operands, &[ScalarValue::Integer(77)], 32.0);
    }
}

#[test]
fn optimizer_and_squares_of_long_tensors() {
    let n = 100_003;
    let op = Op::AdamW {
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        weight_decay: 0.1,
        learning_rate: ScalarId(0),
        step: ScalarId(1),
    };
    // Zero variances, as at the start of a run.
    let variance = Operand { size: 0.0, ..output(&[n], false) };
    let operands = [input(&[n]), output(&[n], false), output(&[n], false), variance];
    check(&op, &operands, &[ScalarValue::Real(1e-3), ScalarValue::Integer(3)], 32.0);

    let squares =
        Operand { ty: TensorType::new(DType::F64, &[2]), size: 1.0, output: true, accumulate: false };
    // Sums in f64 are exact far beyond f32: one f32 rounding is already generous.
    check(&Op::SumSquares, &[input(&[n]), input(&[n / 2]), squares], &[], 1e-3);
}

#[test]
fn refuses_what_it_cannot_do() {
    let refused = |op: Op, operands: &[Operand]| {
        let result = std::panic::catch_unwind(|| {
            run(&mut CpuDevice::new(1).expect("a device"), &op, operands, &[]);
        });
        let message = result.expect_err("refused");
        message.downcast_ref::<String>().cloned().unwrap_or_default()
    };
    let half = Operand { ty: TensorType::new(DType::BF16, &[4]), ..input(&[4]) };
    assert!(refused(Op::Softmax, &[half, output(&[4], false)]).contains("elements of type bf16"));
    assert!(refused(Op::Softmax, &[input(&[4]), output(&[5], false)]).contains("output 0"));
    assert!(refused(Op::Softmax, &[output(&[4], false)]).contains("0 inputs"));
    let op = Op::Positions { tokens: 4, first: 2 };
    assert!(refused(op, &[input(&[5, 2]), output(&[4, 2], false)]).contains("positions 2..6 of 5"));
}

#[test]
fn scratch_is_bounded_and_reported() {
    let mut device = CpuDevice::new(2).expect("a device");
    assert_eq!(device.scratch(), Bytes::ZERO);
    let op = Op::Matmul { transpose_a: false, transpose_b: false };
    run(&mut device, &op, &[input(&[500, 500]), input(&[500, 500]), output(&[500, 500], false)], &[]);
    let scratch = device.scratch();
    assert!(scratch > Bytes::ZERO && scratch < Bytes(4 << 20), "{scratch:?}");
    run(&mut device, &op, &[input(&[900, 700]), input(&[700, 800]), output(&[900, 800], false)], &[]);
    assert_eq!(device.scratch(), scratch);
}

fn masks() -> impl Strategy<Value = Mask> {
    prop_oneof![Just(Mask::Full), Just(Mask::Causal), (1..40u64).prop_map(|size| Mask::Window { size })]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn attention_of_any_shape(
        mask in masks(), sequences in 1..3u64, kv_heads in 1..3u64, group in 1..3u64,
        head_dim in prop::sample::select(vec![1u64, 7, 16, 17, 33]), queries in 1..60u64, prefix in 0..70u64,
        accumulate: bool,
    ) {
        let scale = 1.0 / (head_dim as f64).sqrt();
        let shape = AttentionShape { sequences, heads: kv_heads * group, kv_heads, head_dim, mask, scale };
        check_attention(shape, queries, queries + prefix, accumulate);
    }

    #[test]
    fn products_of_any_shape(
        m in 1..70u64, n in 1..70u64, k in 1..40u64, transpose_a: bool, transpose_b: bool, accumulate: bool,
    ) {
        let a = input(&if transpose_a { [k, m] } else { [m, k] });
        let b = input(&if transpose_b { [n, k] } else { [k, n] });
        let operands = [a, b, input(&[n]), output(&[m, n], accumulate)];
        check(&Op::Matmul { transpose_a, transpose_b }, &operands, &[], k as f64 + 4.0);
    }

    #[test]
    fn norm_gradients_of_any_shape(rows in 1..40u64, columns in 1..140u64, accumulate: bool) {
        let x = || input(&[rows, columns]);
        let (gain, row) = (|| input(&[columns]), || input(&[rows]));
        let dx = || output(&[rows, columns], accumulate);
        let terms = 4.0 * columns as f64 + rows as f64 + 32.0;
        check(&Op::RmsNormGrad, &[x(), gain(), row(), x(), dx()], &[], terms);
        check(&Op::RmsNormGainGrad, &[x(), row(), x(), output(&[columns], accumulate)], &[], terms);
        check(&Op::LayerNormGrad, &[x(), gain(), row(), row(), x(), dx()], &[], terms);
        let sums = [output(&[columns], accumulate), output(&[columns], !accumulate)];
        let operands: Vec<_> = [x(), row(), row(), x()].into_iter().chain(sums).collect();
        check(&Op::LayerNormParamGrad, &operands, &[], terms);
        check(&Op::SoftmaxGrad, &[x(), x(), dx()], &[], terms);
    }

    #[test]
    fn norms_of_sums_have_the_bits_of_two_kernels(rows in 1..60u64, columns in 1..140u64, layer_norm: bool) {
        let eps = 1e-5;
        let op = if layer_norm { Op::LayerNorm { eps } } else { Op::RmsNorm { eps } };
        for set in InstructionSet::available() {
            for threads in [1, 3] {
                let mut device = CpuDevice::with_instruction_set(threads, set).expect("a device");
                let [two, one] = sum_and_norm(&mut device, rows, columns, &op);
                prop_assert_eq!(two, one, "{} on {} threads", set.name(), threads);
            }
        }
    }

    #[test]
    fn rotations_of_any_shape(
        sequences in 1..4u64, tokens in 1..20u64, heads in 1..4u64, half in 1..20u64, rest in 0..5u64,
        adjacent: bool, inverse: bool,
    ) {
        let pairing = if adjacent { Pairing::Adjacent } else { Pairing::Half };
        let (rotary, head_dim) = (2 * half, 2 * half + rest);
        let op = Op::Rope { tokens, first: 0, head_dim, rotary, base: 10000.0, pairing, scaling: None, inverse };
        let extents = [sequences * tokens, heads * head_dim];
        check(&op, &[input(&extents), output(&extents, false)], &[], 8.0);
    }
}
