use super::samples::{self, Sample};
use super::*;
use crate::spec::{Op as Operation, Unary};
use pipec_program::Mask;

/// Builds a layer and checks it.
fn graph(layer: &Layer) -> Graph {
    let graph = build(layer, DType::F32);
    assert_eq!(verify(&graph), Vec::<String>::new(), "{}", print(&graph));
    graph
}

#[test]
fn llama() {
    insta::assert_snapshot!("llama_layer", print(&graph(&samples::llama_layer(16, 4, 2, 24, Mask::Causal))));
    insta::assert_snapshot!("llama_head", print(&graph(&samples::llama_head(32, 16))));
}

#[test]
fn gpt() {
    insta::assert_snapshot!("gpt_embedding", print(&graph(&samples::gpt_embedding(32, 8, 16))));
    insta::assert_snapshot!("gpt_layer", print(&graph(&samples::gpt_layer(16, 4))));
}

/// A slot that is used twice has two contributions to its gradient.
#[test]
fn slots_used_twice() {
    let mut layer = Sample::new("layer");
    let x = layer.input("x", 16);
    let weight = layer.slot("w", &[16, 16]);
    let a = layer.op("a", 1, 16, Operation::Linear { x, weight, bias: None });
    let b = layer.op("b", 1, 16, Operation::Linear { x: a, weight, bias: None });
    let graph = graph(&layer.output(&[b]));
    let slots: Vec<&Vec<SlotId>> = graph.contributions.iter().map(|(_, slots)| slots).collect();
    assert_eq!(slots, [&vec![weight], &vec![weight]]);
}

/// Values that pass a layer by: the gradient is the one that comes in, and a value that nothing reads has gradient 0.
#[test]
fn values_that_pass_by() {
    let mut layer = Sample::new("layer");
    let x = layer.input("x", 16);
    let skip = layer.input("skip", 16);
    let _unread = layer.input("unread", 16);
    let y = layer.unary("y", Unary::Silu, x);
    let graph = graph(&layer.output(&[y, skip]));
    assert_eq!(graph.input_gradients[1], graph.output_gradients[1]);
    insta::assert_snapshot!(print(&graph));
}

#[test]
fn faults_are_told() {
    let mut broken = build(&samples::llama_head(32, 16), DType::F32);
    broken.input_gradients.pop();
    broken.contributions[0].1.clear();
    let loss = broken.loss.unwrap();
    broken.nodes[loss].op = Op::Part(1);
    insta::assert_snapshot!(verify(&broken).join("\n"));
}
