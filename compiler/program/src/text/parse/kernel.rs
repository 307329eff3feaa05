//! A line with a kernel: `v9, v10 = rms_norm(v1, v2) eps=1e-5`.

use super::cursor::{Cursor, Parsed};
use super::shortened;
use crate::id::ScalarId;
use crate::kernel::{
    AttentionShape, BinaryOp, Kernel, Mask, Node, Op, Output, Pairing, Part, RopeScaling, Seed, UnaryOp,
};

pub(super) fn parse(c: &mut Cursor<'_>) -> Parsed<Kernel> {
    let outputs = outputs(c)?;
    let at = c.here();
    let name = c.word();
    c.expect("(")?;
    let inputs = c.items(")", |c| c.id(b'v', "a value"))?;
    let op = op(c, at, name)?;
    Ok(Kernel { op, inputs, outputs })
}

/// The outputs and the `=` or `+=` after them.
fn outputs(c: &mut Cursor<'_>) -> Parsed<Vec<Output>> {
    let mut outputs = Vec::new();
    if c.eat("=") {
        return Ok(outputs);
    }
    loop {
        let accumulate = c.eat("+");
        outputs.push(Output { value: c.id(b'v', "a value")?, accumulate });
        if c.eat("=") {
            return Ok(outputs);
        }
        let at = c.here();
        if c.eat("+=") {
            if outputs.iter().any(|output| output.accumulate) {
                return c.fail_at(at, "`+=` adds to every output; mark single ones with `+` before `=`");
            }
            for output in &mut outputs {
                output.accumulate = true;
            }
            return Ok(outputs);
        }
        c.expect(",")?;
    }
}

fn op(c: &mut Cursor<'_>, at: usize, name: &str) -> Parsed<Op> {
    Ok(match name {
        "matmul" => {
            Op::Matmul { transpose_a: c.eat_word("transpose_a"), transpose_b: c.eat_word("transpose_b") }
        }
        "sum_rows" => Op::SumRows,
        "embedding" => Op::Embedding,
        "embedding_grad" => Op::EmbeddingGrad,
        "positions" => Op::Positions { tokens: whole(c, "tokens")?, first: whole(c, "first")? },
        "positions_grad" => Op::PositionsGrad { tokens: whole(c, "tokens")?, first: whole(c, "first")? },
        "rms_norm" => Op::RmsNorm { eps: real(c, "eps")? },
        "rms_norm_grad" => Op::RmsNormGrad,
        "rms_norm_gain_grad" => Op::RmsNormGainGrad,
        "layer_norm" => Op::LayerNorm { eps: real(c, "eps")? },
        "layer_norm_grad" => Op::LayerNormGrad,
        "layer_norm_param_grad" => Op::LayerNormParamGrad,
        "rope" => rope(c)?,
        "attention" => Op::Attention(attention(c)?),
        "attention_grad" => Op::AttentionGrad(attention(c)?),
        "softmax" => Op::Softmax,
        "softmax_grad" => Op::SoftmaxGrad,
        "cross_entropy" => Op::CrossEntropy { ignore: ignore(c)? },
        "cross_entropy_grad" => Op::CrossEntropyGrad { ignore: ignore(c)?, scale: scalar(c, "scale")? },
        "map" => map(c)?,
        "sum_squares" => Op::SumSquares,
        "clip_factor" => Op::ClipFactor { limit: real(c, "limit")? },
        "adamw" => Op::AdamW {
            beta1: real(c, "beta1")?,
            beta2: real(c, "beta2")?,
            eps: real(c, "eps")?,
            weight_decay: real(c, "weight_decay")?,
            learning_rate: scalar(c, "learning_rate")?,
            step: scalar(c, "step")?,
        },
        _ => return c.fail_at(at, format!("there is no op `{}`", shortened(name))),
    })
}

fn attribute(c: &mut Cursor<'_>, name: &str) -> Parsed<()> {
    c.expect_word(name)?;
    c.expect("=")
}

fn whole(c: &mut Cursor<'_>, name: &str) -> Parsed<u64> {
    attribute(c, name)?;
    c.number()
}

fn real(c: &mut Cursor<'_>, name: &str) -> Parsed<f64> {
    attribute(c, name)?;
    c.real()
}

fn scalar(c: &mut Cursor<'_>, name: &str) -> Parsed<ScalarId> {
    attribute(c, name)?;
    c.id(b's', "a scalar")
}

fn ignore(c: &mut Cursor<'_>) -> Parsed<Option<u32>> {
    if c.peek_word() != "ignore" {
        return Ok(None);
    }
    attribute(c, "ignore")?;
    Ok(Some(c.number32()?))
}

fn rope(c: &mut Cursor<'_>) -> Parsed<Op> {
    let tokens = whole(c, "tokens")?;
    let first = whole(c, "first")?;
    let head_dim = whole(c, "head_dim")?;
    let rotary = whole(c, "rotary")?;
    let base = real(c, "base")?;
    attribute(c, "pairing")?;
    let pairing = c.choice("a pairing", &[Pairing::Half, Pairing::Adjacent], |pairing| match pairing {
        Pairing::Half => "half",
        Pairing::Adjacent => "adjacent",
    })?;
    let scaling = if c.peek_word() == "factor" {
        let factor = real(c, "factor")?;
        let low = real(c, "low")?;
        let high = real(c, "high")?;
        Some(RopeScaling { factor, low, high, original: whole(c, "original")? })
    } else {
        None
    };
    let inverse = c.eat_word("inverse");
    Ok(Op::Rope { tokens, first, head_dim, rotary, base, pairing, scaling, inverse })
}

fn attention(c: &mut Cursor<'_>) -> Parsed<AttentionShape> {
    let sequences = whole(c, "sequences")?;
    let heads = whole(c, "heads")?;
    let kv_heads = whole(c, "kv_heads")?;
    let head_dim = whole(c, "head_dim")?;
    attribute(c, "mask")?;
    let at = c.here();
    let mask = match c.word() {
        "full" => Mask::Full,
        "causal" => Mask::Causal,
        "window" => {
            c.expect("(")?;
            let size = c.number()?;
            c.expect(")")?;
            Mask::Window { size }
        }
        _ => return c.fail_at(at, "expected a mask (full, causal, window)"),
    };
    Ok(AttentionShape { sequences, heads, kv_heads, head_dim, mask, scale: real(c, "scale")? })
}

/// ` { n0 = x0, n1 = sigmoid(n0), n2 = n0 * n1 } -> n2`
fn map(c: &mut Cursor<'_>) -> Parsed<Op> {
    let seed = if c.peek_word() == "seed" {
        let scalar = scalar(c, "seed")?;
        Some(Seed { scalar, part: part(c)? })
    } else {
        None
    };
    c.expect("{")?;
    let mut position = 0u32;
    let nodes = c.items("}", |c| {
        let at = c.here();
        let number = node_number(c)?;
        if number != position {
            return c.fail_at(at, format!("nodes count up from 0: expected n{position}"));
        }
        position = position.saturating_add(1);
        c.expect("=")?;
        node(c)
    })?;
    c.expect("->")?;
    let mut results = Vec::new();
    if !c.is_finished() {
        results.push(node_number(c)?);
        while c.eat(",") {
            results.push(node_number(c)?);
        }
    }
    Ok(Op::Map { nodes, results, seed })
}

fn part(c: &mut Cursor<'_>) -> Parsed<Option<Part>> {
    if c.peek_word() != "tokens" {
        return Ok(None);
    }
    let (tokens, first) = (whole(c, "tokens")?, whole(c, "first")?);
    Ok(Some(Part { tokens, first, whole: whole(c, "whole")? }))
}

fn node_number(c: &mut Cursor<'_>) -> Parsed<u32> {
    // A node has no id type of its own; a value id carries its number.
    let id: crate::ValueId = c.id(b'n', "a node")?;
    Ok(id.0)
}

fn node(c: &mut Cursor<'_>) -> Parsed<Node> {
    let at = c.here();
    let word = c.peek_word();
    if let Some(digits) = word.strip_prefix('x')
        && digits.bytes().all(|byte| byte.is_ascii_digit())
    {
        let id: crate::ValueId = c.id(b'x', "an input")?;
        return Ok(Node::Input(id.0));
    }
    if let Some(digits) = word.strip_prefix('n')
        && digits.starts_with(|c: char| c.is_ascii_digit())
    {
        let a = node_number(c)?;
        let infix = [BinaryOp::Add, BinaryOp::Sub, BinaryOp::Mul, BinaryOp::Div, BinaryOp::Less];
        for op in infix {
            if c.eat(op.symbol()) {
                return Ok(Node::Binary(op, a, node_number(c)?));
            }
        }
        return c.fail("expected an operation after the node (+, -, *, /, <)");
    }
    if let Some(&op) = UnaryOp::ALL.iter().find(|op| op.name() == word) {
        c.expect_word(word)?;
        c.expect("(")?;
        let a = node_number(c)?;
        c.expect(")")?;
        return Ok(Node::Unary(op, a));
    }
    if let Some(op) = [BinaryOp::Max, BinaryOp::Min].into_iter().find(|op| op.symbol() == word) {
        c.expect_word(word)?;
        c.expect("(")?;
        let a = node_number(c)?;
        c.expect(",")?;
        let b = node_number(c)?;
        c.expect(")")?;
        return Ok(Node::Binary(op, a, b));
    }
    if c.eat_word("random") {
        c.expect("(")?;
        let salt = c.number()?;
        c.expect(")")?;
        return Ok(Node::Random { salt });
    }
    if word.is_empty() || word.starts_with(|c: char| c.is_ascii_digit()) {
        return Ok(Node::Constant(c.real32()?));
    }
    c.fail_at(at, format!("`{}` is no node of an expression", shortened(word)))
}
