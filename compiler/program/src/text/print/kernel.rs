//! Kernels to text, one line each: `v9, v10 = rms_norm(v1, v2) eps=1e-5`.

use super::writer::Writer;
use crate::kernel::{AttentionShape, BinaryOp, Kernel, Mask, Node, Op, Output, Pairing};

pub(super) fn print(w: &mut Writer, kernel: &Kernel) {
    print_outputs(w, &kernel.outputs);
    w.put(kernel.op.name()).put("(");
    w.items(&kernel.inputs, |w, value| {
        w.put("v").number(value.0);
    });
    w.put(")");
    print_attributes(w, &kernel.op);
}

/// `v1, v2 = `, `v1, v2 += ` when all accumulate, and `v1, +v2 = ` when some do.
fn print_outputs(w: &mut Writer, outputs: &[Output]) {
    let all = !outputs.is_empty() && outputs.iter().all(|output| output.accumulate);
    w.items(outputs, |w, output| {
        w.put(if output.accumulate && !all { "+v" } else { "v" }).number(output.value.0);
    });
    w.put(match (outputs.is_empty(), all) {
        (true, _) => "= ",
        (false, true) => " += ",
        (false, false) => " = ",
    });
}

fn print_attributes(w: &mut Writer, op: &Op) {
    match op {
        Op::Matmul { transpose_a, transpose_b } => {
            flag(w, "transpose_a", *transpose_a);
            flag(w, "transpose_b", *transpose_b);
        }
        Op::Positions { tokens, first } | Op::PositionsGrad { tokens, first } => {
            whole(w, "tokens", *tokens);
            whole(w, "first", *first);
        }
        Op::RmsNorm { eps } | Op::LayerNorm { eps } => real(w, "eps", *eps),
        Op::Rope { tokens, first, head_dim, rotary, base, pairing, scaling, inverse } => {
            whole(w, "tokens", *tokens);
            whole(w, "first", *first);
            whole(w, "head_dim", *head_dim);
            whole(w, "rotary", *rotary);
            real(w, "base", *base);
            w.put(match pairing {
                Pairing::Half => " pairing=half",
                Pairing::Adjacent => " pairing=adjacent",
            });
            if let Some(scaling) = scaling {
                real(w, "factor", scaling.factor);
                real(w, "low", scaling.low);
                real(w, "high", scaling.high);
                whole(w, "original", scaling.original);
            }
            flag(w, "inverse", *inverse);
        }
        Op::Attention(shape) | Op::AttentionGrad(shape) => print_attention(w, shape),
        Op::CrossEntropy { ignore } => print_ignore(w, *ignore),
        Op::CrossEntropyGrad { ignore, scale } => {
            print_ignore(w, *ignore);
            w.put(" scale=s").number(scale.0);
        }
        Op::Map { nodes, results, seed } => {
            if let Some(seed) = seed {
                w.put(" seed=s").number(seed.scalar.0);
                if let Some(part) = seed.part {
                    whole(w, "tokens", part.tokens);
                    whole(w, "first", part.first);
                    whole(w, "whole", part.whole);
                }
            }
            print_nodes(w, nodes);
            w.put(" -> ");
            w.items(results, |w, &node| {
                w.put("n").number(node);
            });
        }
        Op::ClipFactor { limit } => real(w, "limit", *limit),
        Op::AdamW { beta1, beta2, eps, weight_decay, learning_rate, step } => {
            real(w, "beta1", *beta1);
            real(w, "beta2", *beta2);
            real(w, "eps", *eps);
            real(w, "weight_decay", *weight_decay);
            w.put(" learning_rate=s").number(learning_rate.0).put(" step=s").number(step.0);
        }
        Op::SumRows
        | Op::Embedding
        | Op::EmbeddingGrad
        | Op::RmsNormGrad
        | Op::RmsNormGainGrad
        | Op::LayerNormGrad
        | Op::LayerNormParamGrad
        | Op::Softmax
        | Op::SoftmaxGrad
        | Op::SumSquares => {}
    }
}

fn flag(w: &mut Writer, name: &str, set: bool) {
    if set {
        w.put(" ").put(name);
    }
}

fn whole(w: &mut Writer, name: &str, number: u64) {
    w.put(" ").put(name).put("=").number(number);
}

fn real(w: &mut Writer, name: &str, number: f64) {
    w.put(" ").put(name).put("=").real(number);
}

fn print_ignore(w: &mut Writer, ignore: Option<u32>) {
    if let Some(ignore) = ignore {
        whole(w, "ignore", u64::from(ignore));
    }
}

fn print_attention(w: &mut Writer, shape: &AttentionShape) {
    whole(w, "sequences", shape.sequences);
    whole(w, "heads", shape.heads);
    whole(w, "kv_heads", shape.kv_heads);
    whole(w, "head_dim", shape.head_dim);
    match shape.mask {
        Mask::Full => w.put(" mask=full"),
        Mask::Causal => w.put(" mask=causal"),
        Mask::Window { size } => w.put(" mask=window(").number(size).put(")"),
    };
    real(w, "scale", shape.scale);
}

/// ` { n0 = x0, n1 = sigmoid(n0), n2 = n0 * n1 }`
fn print_nodes(w: &mut Writer, nodes: &[Node]) {
    w.put(" {");
    for (position, node) in (0u64..).zip(nodes) {
        w.put(if position > 0 { ", n" } else { " n" }).number(position).put(" = ");
        match *node {
            Node::Input(input) => w.put("x").number(input),
            Node::Constant(value) => w.real32(value),
            Node::Unary(op, a) => w.put(op.name()).put("(n").number(a).put(")"),
            Node::Binary(op, a, b) => match op {
                BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Div | BinaryOp::Less => {
                    w.put("n").number(a).put(" ").put(op.symbol()).put(" n").number(b)
                }
                BinaryOp::Max | BinaryOp::Min => {
                    w.put(op.symbol()).put("(n").number(a).put(", n").number(b).put(")")
                }
            },
            Node::Random { salt } => w.put("random(").number(salt).put(")"),
        };
    }
    w.put(if nodes.is_empty() { "}" } else { " }" });
}
