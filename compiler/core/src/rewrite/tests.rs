use super::*;
use crate::graph::samples::{self, Sample};
use crate::graph::{Graph, build};
use crate::mode::{Form, ModeId, form, print, print_modes, verify};
use crate::spec::Unary;
use pipec_program::{BytesPerSecond, DType, FlopsPerSecond, Mask};

/// Of a device on which products take longer than what moves.
pub(super) const RATES: Rates = Rates {
    compute: FlopsPerSecond(100_000_000_000),
    bandwidth: BytesPerSecond(10_000_000_000),
    host: false,
};

/// Two sequences of 8 tokens in slices of some lengths.
pub(super) fn extents(lengths: &[u64]) -> Vec<Extent<'_>> {
    (0..lengths.len()).map(|slice| Extent { sequences: 2, lengths, slice, reach: None }).collect()
}

/// The fastest form of a layer for every slice.
fn fastest(graph: &Graph, lengths: &[u64]) -> Vec<Form> {
    let extents = extents(lengths);
    let (layer, _) = layer(graph, &extents, RATES).unwrap();
    let of_slice = |&extent: &Extent<'_>| {
        let form = form(&layer, &layer.modes[ModeId(0)], extent);
        assert_eq!(verify(&form), Vec::<String>::new(), "{}", print(&form));
        form
    };
    extents.iter().map(of_slice).collect()
}

fn whole(layer: &crate::spec::Layer) -> Form {
    fastest(&build(layer, DType::F32), &[8]).remove(0)
}

#[test]
fn llama() {
    insta::assert_snapshot!("llama_embedding", print(&whole(&samples::llama_embedding(32, 16))));
    insta::assert_snapshot!("llama_layer", print(&whole(&samples::llama_layer(16, 4, 2, 24, Mask::Causal))));
    insta::assert_snapshot!("llama_head", print(&whole(&samples::llama_head(32, 16))));
}

#[test]
fn llama_in_slices() {
    let layer = build(&samples::llama_layer(16, 4, 2, 24, Mask::Causal), DType::F32);
    let forms: Vec<String> = fastest(&layer, &[5, 3]).iter().map(print).collect();
    insta::assert_snapshot!("llama_in_slices", forms.join("\n"));
}

#[test]
fn gpt() {
    insta::assert_snapshot!("gpt_embedding", print(&whole(&samples::gpt_embedding(32, 8, 16))));
    insta::assert_snapshot!("gpt_layer", print(&whole(&samples::gpt_layer(16, 4))));
}

/// The modes of a layer, from the fastest to the one that keeps least.
#[test]
fn front() {
    let graph = build(&samples::llama_layer(64, 4, 2, 96, Mask::Causal), DType::F32);
    let extents = extents(&[64]);
    let (layer, summary) = layer(&graph, &extents, RATES).unwrap();
    let mut text = format!("{summary:?}\n");
    for mode in layer.modes.values() {
        let kept = mode.steps.values().filter(|step| step.make == crate::mode::Make::Keep);
        let names: Vec<&str> = kept.map(|step| &*step.name).collect();
        text += &format!("{} {} keeps {}\n", mode.time, mode.kept, names.join(", "));
    }
    insta::assert_snapshot!(text);
}

/// A sum that one kernel makes with its norm is computed again by an addition alone where the statistic of the norm is
/// kept, and else by the same kernel: both before any gradient.
#[test]
fn sums_are_computed_again_with_their_norm_or_alone() {
    let mut layer = Sample::new("layer");
    let x = layer.input("x", 16);
    let h = layer.linear("h", x, 16, false);
    let s = layer.add("s", x, h);
    let n = layer.layer_norm("n", s);
    let y = layer.add("y", s, n);
    let graph = build(&layer.output(&[y]), DType::F32);
    let extents = extents(&[8]);
    let (layer, _) = super::layer(&graph, &extents, RATES).unwrap();
    let mut text = print_modes(&layer);
    for mode in layer.modes.values() {
        let form = form(&layer, mode, extents[0]);
        assert_eq!(verify(&form), Vec::<String>::new(), "{}", print(&form));
        text += &format!("\n{}", print(&form));
    }
    insta::assert_snapshot!(text);
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
    insta::assert_snapshot!(print(&whole(&layer.output(&[x]))));
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
        let c = layer.op("c", 1, 16, crate::spec::Op::Scale { x: b, factor: 3.0 });
        let d = layer.add("d", c, a);
        let form = whole(&layer.output(&[d]));
        assert_eq!(form.forward.len(), 1, "{}", print(&form));
        assert_eq!(form.backward.len(), 1, "{}", print(&form));
        assert_eq!(form.backward[0].1.outputs.len(), 2);
    }
}

/// Full attention cannot be sliced, and it is told which operation it is.
#[test]
fn full_attention_is_whole() {
    let graph = build(&samples::llama_layer(16, 4, 2, 24, Mask::Full), DType::F32);
    let lengths = [4, 4];
    let operations = layer(&graph, &extents(&lengths), RATES).unwrap_err();
    let crate::graph::Op::Attention(attention) =
        &graph.nodes.values().find(|node| matches!(node.op, crate::graph::Op::Attention(_))).unwrap().op
    else {
        panic!("there is one")
    };
    assert_eq!(operations, [attention.operation]);
}
