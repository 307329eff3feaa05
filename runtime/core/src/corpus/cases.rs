//! The cases, op by op.

use super::{Bound, Builder, Case, Content};
use crate::device::ScalarValue;
use pipec_program::{
    Access, AttentionShape, BinaryOp, DType, Mask, Node, Op, Output, Pairing, Part, RopeScaling, Seed,
    TensorType, UnaryOp, ValueId,
};

/// Roundings behind an elementary function such as exp or tanh in f32.
const ELEMENTARY: f64 = 16.0;

/// All cases.
pub fn cases() -> Vec<Case> {
    [
        matmul(),
        tables(),
        norms(),
        rope(),
        attention(),
        losses(),
        unary(),
        binary(),
        maps(),
        optimizer(),
        regions(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn set(value: ValueId) -> Output {
    Output { value, accumulate: false }
}

fn matmul() -> Vec<Case> {
    let mut cases = Vec::new();
    let sizes = [(1, 1, 1), (1, 7, 300), (5, 1, 3), (7, 5, 1), (33, 17, 65), (64, 48, 32), (130, 67, 96)];
    for (m, n, k) in sizes {
        for (transpose_a, transpose_b) in [(false, false), (false, true), (true, false), (true, true)] {
            for (bias, accumulate) in [(false, false), (true, false), (false, true), (true, true)] {
                if bias && (transpose_a || m > 64) {
                    continue;
                }
                let flags = [(transpose_a, "ta"), (transpose_b, "tb"), (bias, "bias"), (accumulate, "acc")];
                let flags: Vec<&str> = flags.iter().filter(|flag| flag.0).map(|flag| flag.1).collect();
                let name = format!("matmul {m}x{n}x{k} {}", flags.join(" "));
                let mut case = Builder::new(name.trim_end(), Bound::OfLargest(k as f64 + 4.0));
                let a = case.read(&if transpose_a { [k, m] } else { [m, k] });
                let b = case.read(&if transpose_b { [n, k] } else { [k, n] });
                let mut inputs = vec![a, b];
                if bias {
                    inputs.push(case.read(&[n]));
                }
                let c = case.result(&[m, n], accumulate);
                case.kernel(Op::Matmul { transpose_a, transpose_b }, &inputs, &[c]);
                cases.push(case.finish());
            }
        }
    }
    // Several products of one left operand, of different widths.
    for (bias, accumulate) in [(false, false), (true, false), (false, true)] {
        let flags = [(bias, " bias"), (accumulate, " acc")];
        let flags: String = flags.iter().filter(|flag| flag.0).map(|flag| flag.1).collect();
        let (m, widths, k) = (33, [48, 16, 5], 40);
        let mut case = Builder::new(format!("matmul of three{flags}"), Bound::OfLargest(k as f64 + 4.0));
        let mut inputs = vec![case.read(&[m, k])];
        inputs.extend(widths.map(|n| case.read(&[n, k])));
        if bias {
            inputs.extend(widths.map(|n| case.read(&[n])));
        }
        let outputs = widths.map(|n| case.result(&[m, n], accumulate));
        case.kernel(Op::Matmul { transpose_a: false, transpose_b: true }, &inputs, &outputs);
        cases.push(case.finish());
    }
    cases
}

fn tables() -> Vec<Case> {
    let mut cases = Vec::new();
    for (rows, columns) in [(1, 1), (3, 70), (129, 5)] {
        for accumulate in [false, true] {
            let name = format!("sum_rows {rows}x{columns}{}", if accumulate { " acc" } else { "" });
            let mut case = Builder::new(name, Bound::OfLargest(rows as f64 + 2.0));
            let x = case.read(&[rows, columns]);
            let sum = case.result(&[columns], accumulate);
            case.kernel(Op::SumRows, &[x], &[sum]);
            cases.push(case.finish());
        }
    }
    for (count, vocab, hidden) in [(1, 1, 1), (13, 5, 7), (40, 64, 33)] {
        let mut case = Builder::new(format!("embedding {count} of {vocab}x{hidden}"), Bound::Exact);
        let (tokens, table) = (case.tokens(count, vocab), case.read(&[u64::from(vocab), hidden]));
        let out = case.result(&[count, hidden], false);
        case.kernel(Op::Embedding, &[tokens, table], &[out]);
        cases.push(case.finish());

        let bound = Bound::OfLargest(count as f64 + 1.0);
        let mut case = Builder::new(format!("embedding_grad {count} of {vocab}x{hidden}"), bound);
        let (tokens, dy) = (case.tokens(count, vocab), case.read(&[count, hidden]));
        let dtable = case.result(&[u64::from(vocab), hidden], true);
        case.kernel(Op::EmbeddingGrad, &[tokens, dy], &[dtable]);
        cases.push(case.finish());
    }
    for (sequences, tokens, first, hidden) in [(1, 1, 0, 1), (3, 5, 2, 7), (2, 8, 0, 33)] {
        let (rows, table) = (sequences * tokens, first + tokens + 1);
        let mut case = Builder::new(format!("positions {sequences}x{tokens} from {first}"), Bound::Exact);
        let x = case.read(&[table, hidden]);
        let out = case.result(&[rows, hidden], false);
        case.kernel(Op::Positions { tokens, first }, &[x], &[out]);
        cases.push(case.finish());

        let name = format!("positions_grad {sequences}x{tokens} from {first}");
        let mut case = Builder::new(name, Bound::OfLargest(sequences as f64 + 1.0));
        let dy = case.read(&[rows, hidden]);
        let dtable = case.result(&[table, hidden], true);
        case.kernel(Op::PositionsGrad { tokens, first }, &[dy], &[dtable]);
        cases.push(case.finish());
    }
    cases
}

fn norms() -> Vec<Case> {
    let mut cases = Vec::new();
    for (rows, columns) in [(1, 1), (3, 7), (5, 64), (2, 131)] {
        let forward = Bound::OfLargest(columns as f64 + ELEMENTARY);
        let mut case = Builder::new(format!("rms_norm {rows}x{columns}"), forward);
        let (x, gain) = (case.read(&[rows, columns]), case.read(&[columns]));
        let (y, inverse) = (case.result(&[rows, columns], false), case.result(&[rows], false));
        case.kernel(Op::RmsNorm { eps: 1e-5 }, &[x, gain], &[y, inverse]);
        cases.push(case.finish());

        let mut case = Builder::new(format!("layer_norm {rows}x{columns}"), forward);
        let (x, gain, bias) = (case.read(&[rows, columns]), case.read(&[columns]), case.read(&[columns]));
        let y = case.result(&[rows, columns], false);
        let (mean, inverse) = (case.result(&[rows], false), case.result(&[rows], false));
        case.kernel(Op::LayerNorm { eps: 1e-3 }, &[x, gain, bias], &[y, mean, inverse]);
        cases.push(case.finish());

        for place in [None, Some("x"), Some("the residual")] {
            let suffix = place.map(|place| format!(" in place of {place}")).unwrap_or_default();
            let name = |norm: &str| format!("{norm} {rows}x{columns} of a sum{suffix}");
            // Values that the norm reads, and the sum, which may take the place of one of them.
            let operands = |case: &mut Builder| {
                let mut operand = |name| match place == Some(name) {
                    true => case.update(&[rows, columns]),
                    false => case.read(&[rows, columns]),
                };
                let (x, residual) = (operand("x"), operand("the residual"));
                let sum = match place {
                    None => case.result(&[rows, columns], false),
                    Some("x") => set(x),
                    Some(_) => set(residual),
                };
                (x, residual, sum)
            };
            let mut case = Builder::new(name("rms_norm"), forward);
            let (x, residual, sum) = operands(&mut case);
            let gain = case.read(&[columns]);
            let (y, inverse) = (case.result(&[rows, columns], false), case.result(&[rows], false));
            case.kernel(Op::RmsNorm { eps: 1e-5 }, &[x, gain, residual], &[y, inverse, sum]);
            cases.push(case.finish());

            let mut case = Builder::new(name("layer_norm"), forward);
            let (x, residual, sum) = operands(&mut case);
            let (gain, bias) = (case.read(&[columns]), case.read(&[columns]));
            let y = case.result(&[rows, columns], false);
            let (mean, inverse) = (case.result(&[rows], false), case.result(&[rows], false));
            let outputs = [y, mean, inverse, sum];
            case.kernel(Op::LayerNorm { eps: 1e-3 }, &[x, gain, bias, residual], &outputs);
            cases.push(case.finish());
        }

        for accumulate in [false, true] {
            let suffix = if accumulate { " acc" } else { "" };
            let backward = Bound::OfLargest(4.0 * columns as f64 + rows as f64 + 2.0 * ELEMENTARY);
            let mut case = Builder::new(format!("rms_norm gradients {rows}x{columns}{suffix}"), backward);
            let (x, gain, dy) =
                (case.read(&[rows, columns]), case.read(&[columns]), case.read(&[rows, columns]));
            let inverse = case.read_in(&[rows], 0.5, 2.0);
            let dx = case.result(&[rows, columns], accumulate);
            let dx_residual = case.result(&[rows, columns], accumulate);
            let residual = case.read(&[rows, columns]);
            let dgain = case.result(&[columns], accumulate);
            case.kernel(Op::RmsNormGrad, &[x, gain, inverse, dy], &[dx]);
            case.kernel(Op::RmsNormGrad, &[x, gain, inverse, dy, residual], &[dx_residual]);
            case.kernel(Op::RmsNormGainGrad, &[x, inverse, dy], &[dgain]);
            cases.push(case.finish());

            let mut case = Builder::new(format!("layer_norm gradients {rows}x{columns}{suffix}"), backward);
            let (x, gain, dy) =
                (case.read(&[rows, columns]), case.read(&[columns]), case.read(&[rows, columns]));
            let mean = case.read_in(&[rows], -0.2, 0.2);
            let inverse = case.read_in(&[rows], 0.5, 2.0);
            let dx = case.result(&[rows, columns], accumulate);
            let dx_residual = case.result(&[rows, columns], accumulate);
            let residual = case.read(&[rows, columns]);
            let (dgain, dbias) = (case.result(&[columns], accumulate), case.result(&[columns], accumulate));
            case.kernel(Op::LayerNormGrad, &[x, gain, mean, inverse, dy], &[dx]);
            case.kernel(Op::LayerNormGrad, &[x, gain, mean, inverse, dy, residual], &[dx_residual]);
            case.kernel(Op::LayerNormParamGrad, &[x, mean, inverse, dy], &[dgain, dbias]);
            cases.push(case.finish());
        }
    }
    cases
}

fn rope() -> Vec<Case> {
    let mut cases = Vec::new();
    let llama3 = RopeScaling { factor: 8.0, low: 1.0, high: 4.0, original: 64 };
    for (pairing, pairs) in [(Pairing::Half, "half"), (Pairing::Adjacent, "adjacent")] {
        for (heads, head_dim, rotary) in [(1, 2, 2), (3, 10, 6), (2, 16, 16)] {
            for (inverse, scaling, in_place) in
                [(false, None, false), (true, None, false), (false, Some(llama3), false), (true, None, true)]
            {
                let name = format!(
                    "rope {pairs} {heads}x{head_dim} of {rotary}{}{}{}",
                    if inverse { " inverse" } else { "" },
                    if scaling.is_some() { " scaled" } else { "" },
                    if in_place { " in place" } else { "" }
                );
                // Two products and a sum, of cosines rounded to f32.
                let mut case = Builder::new(name, Bound::OfLargest(8.0));
                let (tokens, first) = (9, if inverse { 5 } else { 0 });
                let extents = [2 * tokens, heads * head_dim];
                let (x, y) = if in_place {
                    let x = case.update(&extents);
                    (x, set(x))
                } else {
                    (case.read(&extents), case.result(&extents, false))
                };
                let base = 100.0;
                case.kernel(
                    Op::Rope { tokens, first, head_dim, rotary, base, pairing, scaling, inverse },
                    &[x],
                    &[y],
                );
                cases.push(case.finish());
            }
        }
    }
    cases
}

fn attention() -> Vec<Case> {
    let mut cases = Vec::new();
    let masks = [Mask::Full, Mask::Causal, Mask::Window { size: 4 }];
    let sizes = [
        (1, 1, 1, 1, 1, 1),
        (2, 4, 2, 3, 5, 5),
        (1, 3, 1, 16, 7, 12),
        (2, 2, 2, 33, 70, 70),
        (1, 2, 1, 8, 1, 150),
    ];
    for (sequences, heads, kv_heads, head_dim, queries, keys) in sizes {
        for mask in masks {
            let scale = 1.0 / (head_dim as f64).sqrt();
            let shape = AttentionShape { sequences, heads, kv_heads, head_dim, mask, scale };
            let name = format!("{sequences}x{queries}/{keys} {heads}/{kv_heads}x{head_dim} {mask:?}");
            let q_extents = [sequences * queries, heads * head_dim];
            let k_extents = [sequences * keys, kv_heads * head_dim];
            let terms = (head_dim + keys) as f64 + 2.0 * ELEMENTARY;

            let mut case = Builder::new(format!("attention {name}"), Bound::OfLargest(terms));
            let (q, k, v) = (
                case.read_in(&q_extents, -3.0, 3.0),
                case.read_in(&k_extents, -3.0, 3.0),
                case.read(&k_extents),
            );
            let o = case.result(&q_extents, false);
            let lse = case.result(&[sequences * heads, queries], false);
            case.kernel(Op::Attention(shape), &[q, k, v], &[o, lse]);
            cases.push(case.finish());

            for accumulate in [false, true] {
                let suffix = if accumulate { " acc" } else { "" };
                let terms = 4.0 * terms + (queries * heads / kv_heads) as f64;
                let mut case =
                    Builder::new(format!("attention gradients {name}{suffix}"), Bound::OfLargest(terms));
                let (q, k, v, d_o) = (
                    case.read(&q_extents),
                    case.read(&k_extents),
                    case.read(&k_extents),
                    case.read(&q_extents),
                );
                let o = case.workspace(&q_extents);
                let lse = case.workspace(&[sequences * heads, queries]);
                let dq = case.result(&q_extents, accumulate);
                let (dk, dv) = (case.result(&k_extents, accumulate), case.result(&k_extents, accumulate));
                case.kernel(Op::Attention(shape), &[q, k, v], &[o, lse]);
                case.kernel(Op::AttentionGrad(shape), &[q, k, v, o.value, lse.value, d_o], &[dq, dk, dv]);
                cases.push(case.finish());
            }
        }
    }
    for mask in masks {
        cases.extend(attention_in_parts(mask));
    }
    cases
}

/// Keys and values in several parts, as slices of a sequence leave them.
fn attention_in_parts(mask: Mask) -> Vec<Case> {
    let (sequences, heads, kv_heads, head_dim, queries) = (2, 4, 2, 5, 9);
    let shape = AttentionShape { sequences, heads, kv_heads, head_dim, mask, scale: 0.4 };
    let parts = [[7, 0, 9], [130, 70, 9]];
    let extents = |tokens: u64, heads: u64| [sequences * tokens, heads * head_dim];
    let mut cases = Vec::new();
    for lengths in parts {
        let lengths: Vec<u64> = lengths.into_iter().filter(|&length| length > 0).collect();
        let name = format!("of {queries} queries on parts of {lengths:?} keys, {mask:?}");
        let keys: u64 = lengths.iter().sum();
        let terms = (head_dim + keys) as f64 + 2.0 * ELEMENTARY;
        let terms = 4.0 * terms + (queries * heads / kv_heads) as f64;
        let mut case = Builder::new(format!("attention {name}"), Bound::OfLargest(terms));
        let (q, d_o) = (case.read(&extents(queries, heads)), case.read(&extents(queries, heads)));
        let (mut inputs, mut gradients) = (vec![q], Vec::new());
        for (part, &length) in lengths.iter().enumerate() {
            inputs.extend([case.read(&extents(length, kv_heads)), case.read(&extents(length, kv_heads))]);
            // Later slices have added to the gradients of their prefix.
            let accumulate = part % 2 == 0;
            gradients.push(case.result(&extents(length, kv_heads), accumulate));
            gradients.push(case.result(&extents(length, kv_heads), accumulate));
        }
        let o = case.result(&extents(queries, heads), false);
        let lse = case.result(&[sequences * heads, queries], false);
        let dq = case.result(&extents(queries, heads), false);
        case.kernel(Op::Attention(shape), &inputs, &[o, lse]);
        inputs.extend([o.value, lse.value, d_o]);
        let outputs: Vec<Output> = std::iter::once(dq).chain(gradients).collect();
        case.kernel(Op::AttentionGrad(shape), &inputs, &outputs);
        cases.push(case.finish());
    }
    cases
}

fn losses() -> Vec<Case> {
    let mut cases = Vec::new();
    for (rows, columns) in [(1, 1), (3, 7), (5, 131)] {
        // Scores this large overflow an exponential that does not subtract the largest first.
        for size in [1.0, 200.0] {
            let name = format!("{rows}x{columns} within {size}");
            let terms = columns as f64 + 4.0 * ELEMENTARY;
            let mut case = Builder::new(format!("softmax {name}"), Bound::OfLargest(terms * size));
            let x = case.read_in(&[rows, columns], -size, size);
            let y = case.result(&[rows, columns], false);
            case.kernel(Op::Softmax, &[x], &[y]);
            cases.push(case.finish());

            for ignore in [None, Some(columns as u32 / 2), Some(u32::MAX)] {
                for in_place in [false, true] {
                    let name = format!(
                        "cross_entropy {name}{}{}",
                        ignore.map(|ignore| format!(" ignoring {ignore}")).unwrap_or_default(),
                        if in_place { " in place" } else { "" }
                    );
                    let mut case = Builder::new(name, Bound::OfLargest(terms * size));
                    let content = Content::Uniform { low: -size, high: size };
                    let access = if in_place { Access::Update } else { Access::Read };
                    let ty = TensorType::new(DType::F32, &[rows, columns]);
                    let logits = case.value(access, ty, Some(content));
                    let mut targets: Vec<u32> = (0..rows).map(|row| (row * 5 % columns) as u32).collect();
                    if let (Some(ignore), Some(target)) = (ignore, targets.first_mut()) {
                        *target = ignore;
                    }
                    let targets = case.listed_tokens(&targets);
                    let scale = case.scalar(ScalarValue::Real(0.37));
                    let (loss, lse) = (case.result_f64(1), case.result(&[rows], false));
                    let dlogits = if in_place { set(logits) } else { case.result(&[rows, columns], false) };
                    case.kernel(Op::CrossEntropy { ignore }, &[logits, targets], &[loss, lse]);
                    let inputs = [logits, targets, lse.value];
                    case.kernel(Op::CrossEntropyGrad { ignore, scale }, &inputs, &[dlogits]);
                    cases.push(case.finish());
                }
            }
        }
        for accumulate in [false, true] {
            let suffix = if accumulate { " acc" } else { "" };
            let bound = Bound::OfLargest(2.0 * columns as f64 + 4.0);
            let mut case = Builder::new(format!("softmax_grad {rows}x{columns}{suffix}"), bound);
            let (y, dy) = (case.read_in(&[rows, columns], 0.0, 1.0), case.read(&[rows, columns]));
            let dx = case.result(&[rows, columns], accumulate);
            case.kernel(Op::SoftmaxGrad, &[y, dy], &[dx]);
            cases.push(case.finish());
        }
    }
    cases
}

/// Zeros, ordinary numbers, ends of ranges, infinities and a NaN.
fn specials() -> Vec<f64> {
    let sizes =
        [0.0, 1e-30, 1e-6, 0.1, 0.5, 0.9999, 1.0, 1.5, 2.9, 4.0, 8.7, 20.0, 87.0, 88.7, 89.0, 104.0, 1e10];
    let mut specials: Vec<f64> = sizes.iter().flat_map(|&size| [size, -size]).collect();
    specials.extend([f64::INFINITY, f64::NEG_INFINITY, f64::NAN]);
    specials
}

fn unary() -> Vec<Case> {
    let mut cases = Vec::new();
    for op in UnaryOp::ALL {
        let nodes = vec![Node::Input(0), Node::Unary(op, 0)];
        let bound = match op {
            UnaryOp::Neg => Bound::Exact,
            // e^x multiplies the rounding of x by x, up to 88.
            UnaryOp::Exp => Bound::OfEach(8.0 * ELEMENTARY),
            UnaryOp::Tanh | UnaryOp::Erf | UnaryOp::Sigmoid => Bound::OfEach(ELEMENTARY),
        };
        // Far negative, 1 / (1 + e^-x) is as good as e^x.
        let bound = if op == UnaryOp::Sigmoid { Bound::OfEach(8.0 * ELEMENTARY) } else { bound };
        let mut case = Builder::new(format!("map {op} of specials"), bound);
        let values = specials();
        let x = case.listed(&values);
        let y = case.result(&[values.len() as u64], false);
        let op_map = Op::Map { nodes: nodes.clone(), results: vec![1], seed: None };
        case.kernel(op_map.clone(), &[x], &[y]);
        cases.push(case.finish());

        let mut case = Builder::new(format!("map {op}"), bound);
        let (x, y) = (case.read_in(&[5, 37], -10.0, 10.0), case.result(&[5, 37], false));
        case.kernel(op_map, &[x], &[y]);
        cases.push(case.finish());
    }
    cases
}

fn binary() -> Vec<Case> {
    let mut cases = Vec::new();
    let specials = specials();
    let left: Vec<f64> = specials.iter().flat_map(|&a| std::iter::repeat_n(a, specials.len())).collect();
    let right: Vec<f64> = specials.iter().copied().cycle().take(left.len()).collect();
    for op in BinaryOp::ALL {
        let mut case = Builder::new(format!("map {op} of specials"), Bound::Exact);
        let (a, b) = (case.listed(&left), case.listed(&right));
        let y = case.result(&[left.len() as u64], false);
        let nodes = vec![Node::Input(0), Node::Input(1), Node::Binary(op, 0, 1)];
        case.kernel(Op::Map { nodes, results: vec![2], seed: None }, &[a, b], &[y]);
        cases.push(case.finish());
    }
    cases
}

/// `x sigmoid(x)`.
fn silu() -> Vec<Node> {
    vec![Node::Input(0), Node::Unary(UnaryOp::Sigmoid, 0), Node::Binary(BinaryOp::Mul, 0, 1)]
}

/// `0.5 x (1 + erf(x / sqrt 2))`.
fn gelu_exact() -> Vec<Node> {
    vec![
        Node::Input(0),
        Node::Constant(std::f32::consts::FRAC_1_SQRT_2),
        Node::Binary(BinaryOp::Mul, 0, 1),
        Node::Unary(UnaryOp::Erf, 2),
        Node::Constant(1.0),
        Node::Binary(BinaryOp::Add, 3, 4),
        Node::Constant(0.5),
        Node::Binary(BinaryOp::Mul, 0, 6),
        Node::Binary(BinaryOp::Mul, 7, 5),
    ]
}

/// `0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`.
fn gelu_tanh() -> Vec<Node> {
    vec![
        Node::Input(0),
        Node::Binary(BinaryOp::Mul, 0, 0),
        Node::Binary(BinaryOp::Mul, 1, 0),
        Node::Constant(0.044715),
        Node::Binary(BinaryOp::Mul, 2, 3),
        Node::Binary(BinaryOp::Add, 0, 4),
        Node::Constant(0.797_884_6),
        Node::Binary(BinaryOp::Mul, 5, 6),
        Node::Unary(UnaryOp::Tanh, 7),
        Node::Constant(1.0),
        Node::Binary(BinaryOp::Add, 8, 9),
        Node::Constant(0.5),
        Node::Binary(BinaryOp::Mul, 0, 11),
        Node::Binary(BinaryOp::Mul, 12, 10),
    ]
}

fn maps() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, nodes) in [("silu", silu()), ("gelu exact", gelu_exact()), ("gelu tanh", gelu_tanh())] {
        for accumulate in [false, true] {
            let suffix = if accumulate { " acc" } else { "" };
            let mut case = Builder::new(format!("map {name}{suffix}"), Bound::OfLargest(2.0 * ELEMENTARY));
            let (x, y) = (case.read_in(&[7, 19], -5.0, 5.0), case.result(&[7, 19], accumulate));
            let results = vec![nodes.len() as u32 - 1];
            case.kernel(Op::Map { nodes: nodes.clone(), results, seed: None }, &[x], &[y]);
            cases.push(case.finish());
        }
    }

    // Gradients of silu(a) b: two results, of which one overwrites its input.
    let nodes = vec![
        Node::Input(0),
        Node::Input(1),
        Node::Input(2),
        Node::Unary(UnaryOp::Sigmoid, 0),
        Node::Binary(BinaryOp::Mul, 0, 3),
        Node::Binary(BinaryOp::Mul, 4, 2),
        Node::Constant(1.0),
        Node::Binary(BinaryOp::Sub, 6, 3),
        Node::Binary(BinaryOp::Mul, 4, 7),
        Node::Binary(BinaryOp::Add, 3, 8),
        Node::Binary(BinaryOp::Mul, 9, 1),
        Node::Binary(BinaryOp::Mul, 10, 2),
    ];
    let mut case = Builder::new("map gated gradients in place", Bound::OfLargest(2.0 * ELEMENTARY));
    let (a, b, dy) = (case.read(&[3, 45]), case.update(&[3, 45]), case.read(&[3, 45]));
    let da = case.result(&[3, 45], false);
    case.kernel(Op::Map { nodes, results: vec![11, 5], seed: None }, &[a, b, dy], &[da, set(b)]);
    cases.push(case.finish());

    // x row + one: a row for every row and one element everywhere.
    for (rows, columns) in [(1, 1), (1, 9), (6, 1), (4, 35)] {
        let nodes = vec![
            Node::Input(0),
            Node::Input(1),
            Node::Input(2),
            Node::Binary(BinaryOp::Mul, 0, 1),
            Node::Binary(BinaryOp::Add, 3, 2),
        ];
        let mut case = Builder::new(format!("map broadcasts {rows}x{columns}"), Bound::OfLargest(4.0));
        let (x, row, one) = (case.read(&[rows, columns]), case.read(&[columns]), case.read(&[1]));
        let y = case.result(&[rows, columns], false);
        case.kernel(Op::Map { nodes, results: vec![4], seed: None }, &[x, row, one], &[y]);
        cases.push(case.finish());
    }

    // Dropout with probability 0.25, on two sites, in place.
    let nodes = vec![
        Node::Input(0),
        Node::Random { salt: 3 },
        Node::Constant(0.25),
        Node::Binary(BinaryOp::Less, 1, 2),
        Node::Constant(1.0),
        Node::Binary(BinaryOp::Sub, 4, 3),
        Node::Constant(1.0 / 0.75),
        Node::Binary(BinaryOp::Mul, 5, 6),
        Node::Binary(BinaryOp::Mul, 0, 7),
        Node::Random { salt: 0xFFFF_FFFF_0000_0001 },
    ];
    let mut case = Builder::new("map dropout", Bound::Exact);
    let seed = case.scalar(ScalarValue::Integer(0xDEAD_BEEF_1234_5678));
    let (x, second) = (case.update(&[5, 31]), case.result(&[5, 31], false));
    let seed = Some(Seed { scalar: seed, part: None });
    case.kernel(Op::Map { nodes, results: vec![8, 9], seed }, &[x], &[set(x), second]);
    cases.push(case.finish());

    // A slice of five tokens of three sequences, with tiles that end inside of a sequence.
    let mut case = Builder::new("map dropout of a slice", Bound::Exact);
    let seed = case.scalar(ScalarValue::Integer(7));
    let y = case.result(&[15, 97], false);
    let seed = Some(Seed { scalar: seed, part: Some(Part { tokens: 5, first: 2, whole: 11 }) });
    case.kernel(Op::Map { nodes: vec![Node::Random { salt: 3 }], results: vec![0], seed }, &[], &[y]);
    cases.push(case.finish());

    // A result without inputs, and one that is an input.
    let mut case = Builder::new("map constant and copy", Bound::Exact);
    let (x, one, copy) = (case.read(&[11]), case.result(&[11], false), case.result(&[11], true));
    let nodes = vec![Node::Constant(2.5), Node::Input(0)];
    case.kernel(Op::Map { nodes, results: vec![0, 1], seed: None }, &[x], &[one, copy]);
    cases.push(case.finish());
    cases
}

fn optimizer() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut case = Builder::new("sum_squares", Bound::OfLargest(8.0));
    let inputs = [case.read(&[1]), case.read(&[7, 9]), case.read(&[1000])];
    let squares = case.result_f64(3);
    case.kernel(Op::SumSquares, &inputs, &[squares]);
    cases.push(case.finish());

    for (name, limit) in [("above", 0.5), ("below", 1e6)] {
        let mut case = Builder::new(format!("clip_factor {name} the limit"), Bound::OfEach(2.0));
        let ty = TensorType::new(DType::F64, &[5]);
        let squares = case.value(Access::Read, ty, Some(Content::Uniform { low: 0.0, high: 9.0 }));
        let (norm, factor) = (case.result_f64(1), case.result(&[1], false));
        case.kernel(Op::ClipFactor { limit }, &[squares], &[norm, factor]);
        cases.push(case.finish());
    }
    for (count, clip, step, with_master) in
        [(1, false, 1, false), (131, true, 2, false), (64, false, 100_000, false), (33, true, 3, true)]
    {
        let name = format!(
            "adamw {count} at step {step}{}{}",
            if clip { " clipped" } else { "" },
            if with_master { " with master" } else { "" }
        );
        let mut case = Builder::new(name, Bound::OfLargest(ELEMENTARY));
        let rate = case.scalar(ScalarValue::Real(3e-2));
        let step = case.scalar(ScalarValue::Integer(step));
        let mut inputs = vec![case.read(&[count])];
        if clip {
            inputs.push(case.read_in(&[1], 0.3, 0.9));
        }
        let (weight, moment) = (case.update(&[count]), case.update(&[count]));
        let positive = Content::Uniform { low: 0.0, high: 1.0 };
        let ty = TensorType::new(DType::F32, &[count]);
        let variance = case.value(Access::Update, ty, Some(positive));
        let mut outputs = vec![set(weight), set(moment), set(variance)];
        if with_master {
            outputs.push(set(case.update(&[count])));
        }
        case.kernel(
            Op::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, learning_rate: rate, step },
            &inputs,
            &outputs,
        );
        cases.push(case.finish());
    }
    cases
}

/// Functions with several values in one region, and with reuse of a workspace.
fn regions() -> Vec<Case> {
    let mut case = Builder::new("two layers in one region", Bound::OfLargest(64.0));
    let x = case.read(&[5, 6]);
    let first = case.read(&[7, 6]);
    let content = || Some(Content::Uniform { low: -1.0, high: 1.0 });
    let bias = case.beside(first, TensorType::new(DType::F32, &[7]), content());
    let second = case.beside(first, TensorType::new(DType::F32, &[3, 7]), content());
    let hidden = case.workspace(&[5, 7]);
    let y = case.result(&[5, 3], false);
    let linear = Op::Matmul { transpose_a: false, transpose_b: true };
    case.kernel(linear.clone(), &[x, first, bias], &[hidden]);
    let activation = Op::Map { nodes: silu(), results: vec![2], seed: None };
    case.kernel(activation, &[hidden.value], &[hidden]);
    case.kernel(linear, &[hidden.value, second], &[y]);
    vec![case.finish()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::ReferenceDevice;
    use pipec_program::Body;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_every_op_occurs() {
        let cases = cases();
        let names: BTreeSet<&str> = cases.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names.len(), cases.len());
        let mut ops = BTreeSet::new();
        for case in &cases {
            if let Body::Kernels { kernels, .. } = &case.function.body {
                ops.extend(kernels.iter().map(|kernel| kernel.op.name()));
            }
        }
        assert_eq!(ops.len(), 23, "{ops:?}");
    }

    #[test]
    fn the_reference_device_passes() {
        for case in cases() {
            case.check(&mut ReferenceDevice::new()).unwrap_or_else(|error| panic!("{error}"));
        }
    }

    #[test]
    fn a_wrong_result_fails() {
        let case = cases().into_iter().find(|case| case.name == "map silu").expect("the case");
        let expected = case.run(&mut ReferenceDevice::new()).expect("the reference runs");
        let mut wrong = expected.clone();
        wrong[0].bytes[3] ^= 1;
        assert!(case.compare(&expected[0], &wrong[0]).is_err());
    }
}
