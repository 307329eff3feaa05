//! What models mean: pieces, what crosses their boundaries, distinct layers, names and numbers of parameters.

use super::support::{RUN, small_model, spec};
use pipec_compiler::spec::{Spec, print};
use pipec_program::id::Id as _;
use proptest::prelude::*;

fn of(body: &str) -> Spec {
    spec(&format!("{}{RUN}", small_model(body))).spec
}

/// The lines about layers and pieces.
fn layers(spec: &Spec) -> String {
    print(spec)
        .lines()
        .take_while(|line| !line.starts_with("cluster"))
        .filter(|line| !line.starts_with("  parameter"))
        .collect::<Vec<_>>()
        .join("\n")
}

/// The first embedding is carried through all layers beside the stream, a value passes by a repeat that does not read
/// it, and statements between two repeats are a piece.
#[test]
fn several_values_cross_boundaries() {
    let body = "
    first = x
    skip = relu(x)
    repeat 2 as encoder { x = linear(x, 64) + first }
    x = x * 0.5
    repeat 2 as decoder { x = linear(x, 64) }
    x = x + skip";
    insta::assert_snapshot!(layers(&of(body)));
}

/// The last repetition hands on less than the others, so it is a distinct layer.
#[test]
fn last_repetition_may_differ() {
    let body = "
    m = relu(x)
    repeat 3 {
        x = linear(x, 64) + m
        m = linear(m, 64)
    }";
    insta::assert_snapshot!(layers(&of(body)));
}

#[test]
fn equal_bodies_are_one_layer() {
    let body = "
    repeat 2 as lower { x = x + linear(relu(x), 64) }
    repeat 3 as upper { y = linear(relu(x), 64)  x = x + y }";
    let spec = of(body);
    let names: Vec<_> =
        spec.model.pieces.iter().map(|piece| (piece.name.as_str(), piece.layer.index())).collect();
    assert_eq!(
        names,
        [
            ("embedding", 0),
            ("lower.0", 1),
            ("lower.1", 1),
            ("upper.0", 1),
            ("upper.1", 1),
            ("upper.2", 1),
            ("head", 2)
        ]
    );
}

#[test]
fn labels_count_on() {
    let body = "
    repeat 1 { x = relu(x) }
    repeat 1 { x = silu(x) }";
    let spec = of(body);
    let names: Vec<_> = spec.model.pieces.iter().map(|piece| piece.name.as_str()).collect();
    assert_eq!(names, ["embedding", "layer.0", "layer.1", "head"]);
}

/// Names come from `name:`, else from the statement, and stay distinct; what is declared outside is shared by all
/// repetitions.
#[test]
fn parameters_have_distinct_names() {
    let body = "
    shared = parameter([64, 64], init: zeros)
    repeat 2 as block {
        h = rms_norm(x)
        own = parameter([64, 64])
        h = linear(linear(h, 64, bias: true), 64, name: h_3)
        h = linear(layer_norm(h), 64)
        x = x + linear(linear(h, weight: shared), weight: own, bias: true)
    }";
    let spec = of(body);
    let names: Vec<_> = spec.model.parameters.values().map(|parameter| parameter.name.as_str()).collect();
    insta::assert_snapshot!(names.join("\n"));
}

#[test]
fn every_op_resolves() {
    let body = "
    x = positions(x, 32, first: 2)
    repeat 1 {
        h = layer_norm(x, eps: 1e-6)
        q = rope(heads(linear(h, 64), 4), rotary: 8, pairing: adjacent, base: 500000)
        k = rope(heads(linear(h, 32), 2), scaling: llama3 { factor: 8, low: 1, high: 4, original: 8192 })
        k = rms_norm(k)
        a = attention(q, k, heads(linear(h, 32), 2), mask: window(4), scale: 0.1)
        b = attention(q, k, k, mask: full)
        c = attention(q, k, k, mask: window(400))
        y = add(softmax(merge(a)), merge(b)) * merge(c) / 3
        y = mul(silu(y), gelu(y)) + gelu_tanh(y) * relu(-y)
        x = x + dropout(linear(y, 64, bias: true), 0.1)
        x = dropout(x, 0)
    }
    x = 2 * x";
    insta::assert_snapshot!(layers(&of(body)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// A layer of any shape is as wide as it says, and its weights add up.
    #[test]
    fn weights_add_up(layers in 1u64..20, heads in 1u64..8, width in 1u64..16, ffn in 1u64..100) {
        let hidden = 2 * heads * width;
        let text = format!(
            "{}use std::models::*\nmodel sized = llama {{ layers: {layers}, hidden: {hidden}, heads: {heads}, ffn: {ffn}, vocab: 11 }}",
            RUN.replace("small", "sized")
        );
        let model = spec(&text).spec.model;
        let layer = 4 * hidden * hidden + 3 * hidden * ffn + 2 * hidden;
        prop_assert_eq!(model.weights(), 2 * 11 * hidden + layers * layer + hidden);
        prop_assert_eq!(model.pieces.len() as u64, layers + 2);
        for piece in &model.pieces {
            let layer = &model.layers[piece.layer];
            prop_assert!(piece.parameters.len() == layer.slots.len());
            for (slot, parameter) in piece.parameters.iter() {
                prop_assert_eq!(&layer.slots[slot].shape, &model.parameters[*parameter].shape);
            }
        }
        for pair in model.pieces.windows(2) {
            let shapes = |layer: &pipec_compiler::spec::Layer, ids: &[pipec_compiler::spec::ValueId]| -> Vec<_> {
                ids.iter().map(|id| (layer.values[*id].heads, layer.values[*id].width)).collect()
            };
            let (before, after) = (&model.layers[pair[0].layer], &model.layers[pair[1].layer]);
            prop_assert_eq!(shapes(before, &before.outputs), shapes(after, &after.inputs));
        }
    }

    /// No text that parses makes the stage panic.
    #[test]
    fn nothing_panics(picks in proptest::collection::vec((0usize..26, 0usize..26, 0usize..26), 0..12)) {
        const WORDS: [&str; 26] = [
            "x", "tokens", "targets", "linear(x, 64)", "heads(x, 4)", "merge(x)", "64", "0", "seq", "x + x", "x * 2", "-x",
            "parameter([64, 64])", "rope(x)", "attention(x, x, x, mask: causal)", "1 / 0", "[1, 2]", "causal", "a", "b",
            "cross_entropy(x, targets)", "embedding(tokens, weight: a)", "linear(x, weight: a)", "2 GiB", "sqrt(-1)", "a(x)",
        ];
        let names = ["x", "a", "b", "tokens"];
        let mut body = String::new();
        for (position, (name, word, other)) in picks.iter().enumerate() {
            let (name, word, other) = (names[name % names.len()], WORDS[*word], WORDS[*other]);
            body += &match position % 3 {
                0 => format!("    {name} = {word}\n"),
                1 => format!("    repeat {} {{ {name} = {other}\n x = {word} }}\n", position % 4),
                _ => format!("    {name} = ({word}) * ({other})\n"),
            };
        }
        let text = format!("{}{RUN}", small_model(&body));
        if let Err(diagnostics) = super::support::resolve_text(&text) {
            prop_assert!(!diagnostics.is_empty());
        }
    }
}
