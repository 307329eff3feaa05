use super::samples::{self, Sample};
use super::*;
use crate::spec::{Op, Unary};
use pipec_program::Mask;

/// Two sequences of 8 tokens.
const WHOLE: Extent<'_> = Extent { sequences: 2, lengths: &[8], slice: 0, reach: None };

/// Builds a layer for 2 sequences of 8 tokens and checks it.
fn graph(layer: &Layer) -> Graph {
    let graph = build(layer, WHOLE, DType::F32);
    assert_eq!(verify(&graph), Vec::<String>::new(), "{}", print(&graph));
    graph
}

#[test]
fn llama() {
    let embedding = graph(&samples::llama_embedding(32, 16));
    insta::assert_snapshot!("llama_embedding", print(&embedding));
    let layer = graph(&samples::llama_layer(16, 4, 2, 24, Mask::Window { size: 5 }));
    insta::assert_snapshot!("llama_layer", print(&layer));
    let head = graph(&samples::llama_head(32, 16));
    insta::assert_snapshot!("llama_head", print(&head));
}

#[test]
fn gpt() {
    let embedding = graph(&samples::gpt_embedding(32, 8, 16));
    insta::assert_snapshot!("gpt_embedding", print(&embedding));
    let layer = graph(&samples::gpt_layer(16, 4));
    insta::assert_snapshot!("gpt_layer", print(&layer));
}

/// Rows of a value with heads are its vectors: a norm of each head reads it reshaped, and nothing is copied.
#[test]
fn norms_of_heads() {
    let mut layer = Sample::new("layer");
    let x = layer.input("x", 16);
    let q = layer.linear("q", x, 16, false);
    let q = layer.heads("q", q, 4);
    let q = layer.rms_norm("q_norm", q);
    let o = layer.attention(q, q, q, Mask::Full);
    let o = layer.heads("o", o, 1);
    let x = layer.add("y", x, o);
    insta::assert_snapshot!(print(&graph(&layer.output(&[x]))));
}

/// A slot that is used twice has one gradient, and both uses add to it.
#[test]
fn slots_used_twice() {
    let mut layer = Sample::new("layer");
    let x = layer.input("x", 16);
    let weight = layer.slot("w", &[16, 16]);
    let a = layer.op("a", 1, 16, Op::Linear { x, weight, bias: None });
    let b = layer.op("b", 1, 16, Op::Linear { x: a, weight, bias: None });
    let graph = graph(&layer.output(&[b]));
    let gradients = graph.values.values().filter(|value| matches!(value.kind, Kind::WeightGradient(_)));
    assert_eq!(gradients.count(), 1);
    assert_eq!(graph.backward.iter().filter(|(phase, _)| *phase == Phase::W).count(), 2);
}

/// What an element-wise kernel needs of its operands is all that is kept: neither results nor what lies between.
#[test]
fn element_wise_chains_are_one_kernel_each_way() {
    for function in [Unary::Silu, Unary::Gelu, Unary::GeluTanh, Unary::Relu] {
        let mut layer = Sample::new("layer");
        let x = layer.input("x", 16);
        let y = layer.input("y", 16);
        let a = layer.unary("a", function, x);
        let b = layer.mul("b", a, y);
        let c = layer.op("c", 1, 16, Op::Scale { x: b, factor: 3.0 });
        let d = layer.add("d", c, a);
        let graph = graph(&layer.output(&[d]));
        assert_eq!(graph.forward.len(), 1, "{}", print(&graph));
        assert_eq!(graph.backward.len(), 1, "{}", print(&graph));
        assert_eq!(graph.backward[0].1.outputs.len(), 2);
    }
}

/// A value that two kernels read is stored, though both are element-wise.
#[test]
fn values_read_by_two_kernels_are_stored() {
    let mut layer = Sample::new("layer");
    let x = layer.input("x", 16);
    let a = layer.unary("a", Unary::Silu, x);
    let b = layer.linear("b", a, 16, false);
    let c = layer.mul("c", a, b);
    let graph = graph(&layer.output(&[c]));
    assert_eq!(graph.forward.len(), 3, "{}", print(&graph));
    insta::assert_snapshot!(print(&graph));
}

/// Values that pass a layer by: the gradient is the one that comes in, and a value that nothing reads has gradient 0.
#[test]
fn values_that_pass_by() {
    let mut layer = Sample::new("layer");
    let x = layer.input("x", 16);
    let skip = layer.input("skip", 16);
    let _unread = layer.input("unread", 16);
    let y = layer.rms_norm("y", x);
    let graph = graph(&layer.output(&[y, skip]));
    assert_eq!(graph.input_gradients[1], graph.output_gradients[1]);
    insta::assert_snapshot!(print(&graph));
}

/// Contributions that are complete already are operands of the kernel that adds to them, never copies.
#[test]
fn residuals_are_operands() {
    let layer = graph(&samples::gpt_layer(16, 4));
    let residuals = layer.backward.iter().filter(|(_, kernel)| {
        matches!(kernel.op, pipec_program::Op::LayerNormGrad) && kernel.inputs.len() == 6
    });
    assert_eq!(residuals.count(), 2);
    // Without a norm the products add up in one place and the sum with what passes by is one kernel.
    let mut post = Sample::new("post");
    let x = post.input("x", 16);
    let a = post.linear("a", x, 16, false);
    let b = post.linear("b", x, 16, false);
    let product = post.mul("product", a, b);
    let y = post.add("y", x, product);
    insta::assert_snapshot!(print(&graph(&post.output(&[y]))));
}

#[test]
fn faults_are_told() {
    let mut broken = build(&samples::llama_layer(16, 4, 2, 24, Mask::Causal), WHOLE, DType::F32);
    broken.forward.swap(0, 1);
    broken.backward.pop();
    insta::assert_snapshot!(verify(&broken).join("\n"));
}
