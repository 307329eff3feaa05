//! Soundness: whatever the rules say is equal is the same tensor, on random tensors of random shapes.
//!
//! [`check`] compares every term of every class of a saturated e-graph with an evaluator of its own. Planted rules that
//! are not true must be found.

mod check;
mod evaluate;

use super::rules::alike;
use super::term::{EGraph, Head, Term, Tokens, add};
use super::{Rule, Saturated, rules, saturate};
use crate::graph::samples::{self, Sample};
use crate::graph::{Graph, Op, build, graphs};
use crate::spec::{self, Choice, LIBRARY, Layer, Sources, Spec, Unary};
use check::{Case, VOCABULARY, disagreements, values};
use egg::Id;
use evaluate::{Value, random};
use pipe_grammar::diagnostic::SourceId;
use pipec_program::id::Id as _;
use pipec_program::{BinaryOp, DType, Mask, Node};
use std::collections::BTreeSet;

/// Attention and feed-forward side by side, with a norm of each head of queries and keys.
fn parallel(width: u64, heads: u64, mask: Mask) -> Layer {
    let mut layer = Sample::new("parallel");
    let x = layer.input("x", width);
    let h = layer.layer_norm("h", x);
    let [q, k, v] = ["q", "k", "v"].map(|name| {
        let x = layer.linear(name, h, width, true);
        layer.heads(name, x, heads)
    });
    let (q, k) = (layer.rms_norm("q_norm", q), layer.rms_norm("k_norm", k));
    let o = layer.attention(q, k, v, mask);
    let o = layer.heads("o", o, 1);
    let o = layer.linear("proj", o, width, false);
    let a = layer.linear("fc", h, 2 * width, true);
    let a = layer.unary("gelu", Unary::Gelu, a);
    let a = layer.linear("out", a, width, true);
    let sum = layer.add("sum", o, a);
    let y = layer.add("y", x, sum);
    layer.output(&[y])
}

/// A feed-forward layer with a gate of softmax and two outputs.
fn gated(width: u64, hidden: u64) -> Layer {
    let mut layer = Sample::new("gated");
    let x = layer.input("x", width);
    let z = layer.input("z", width);
    let h = layer.rms_norm("h", x);
    let gate = layer.linear("gate", h, hidden, false);
    let up = layer.linear("up", h, hidden, false);
    let a = layer.unary("silu", Unary::Silu, gate);
    let a = layer.mul("act", a, up);
    let a = layer.dropout("drop", a, 0.3);
    let a = layer.linear("down", a, width, false);
    let s = layer.like("s", z, spec::Op::Softmax { x: z });
    let r = layer.unary("r", Unary::Relu, a);
    let m = layer.mul("m", s, r);
    let y = layer.add("y", x, m);
    let scaled = layer.like("scaled", a, spec::Op::Scale { x: a, factor: 1.5 });
    layer.output(&[y, scaled])
}

/// Attention whose queries, keys and values go another way too, so that their gradients are sums.
fn shared(width: u64, heads: u64, mask: Mask) -> Layer {
    let mut layer = Sample::new("shared");
    let x = layer.input("x", width);
    let [q, k, v] = ["q", "k", "v"].map(|name| {
        let x = layer.linear(name, x, width, false);
        layer.heads(name, x, heads)
    });
    let o = layer.attention(q, k, v, mask);
    let mut y = layer.heads("o", o, 1);
    for (name, other) in [("yq", q), ("yk", k), ("yv", v)] {
        let other = layer.heads(name, other, 1);
        let other = layer.linear(name, other, width, false);
        y = layer.add(name, y, other);
    }
    let y = layer.linear("y", y, width, false);
    layer.output(&[y])
}

/// Norms of sums, one of them of each head.
fn summed(width: u64, heads: u64) -> Layer {
    let mut layer = Sample::new("summed");
    let x = layer.input("x", width);
    let a = layer.linear("a", x, width, false);
    let s = layer.add("s", x, a);
    let h = layer.layer_norm("h", s);
    let b = layer.linear("b", h, width, true);
    let t = layer.add("t", h, b);
    let t = layer.heads("t", t, heads);
    let n = layer.rms_norm("n", t);
    let n = layer.heads("n", n, 1);
    let y = layer.add("y", s, n);
    layer.output(&[y])
}

/// A number below `bound` drawn for a site.
fn draw(site: u64, place: u64, bound: u64) -> u64 {
    (random(site, place) * bound as f64) as u64
}

/// The layers of the samples, of shapes drawn for a seed, and whether they can be sliced.
fn layers(seed: u64) -> Vec<(Layer, bool)> {
    let at = |place, bound| draw(1000 + seed, place, bound);
    let (kv_heads, group, size) = (1 + at(0, 2), 1 + at(1, 2), 2 + 2 * at(2, 2));
    let heads = kv_heads * group;
    let (width, hidden) = (heads * size, 1 + at(3, 6));
    let window = Mask::Window { size: 1 + at(4, 4) };
    vec![
        (samples::llama_embedding(VOCABULARY, width), true),
        (samples::llama_layer(width, heads, kv_heads, hidden, Mask::Causal), true),
        (samples::llama_layer(width, heads, kv_heads, hidden, window), true),
        (samples::llama_layer(width, heads, kv_heads, hidden, Mask::Full), false),
        (samples::llama_head(VOCABULARY, width), true),
        (samples::gpt_embedding(VOCABULARY, 16, width), true),
        (samples::gpt_layer(width, heads), true),
        (samples::gpt_head(VOCABULARY, width), true),
        (parallel(width, heads, Mask::Causal), true),
        (parallel(width, heads, Mask::Full), false),
        (gated(width, hidden), true),
        (summed(width, heads), true),
        (shared(width, heads, Mask::Causal), true),
        (shared(width, heads, Mask::Full), false),
    ]
}

/// Slices of a sequence, drawn for a seed: one, two or three.
fn lengths(seed: u64, count: u64) -> Vec<usize> {
    (0..count).map(|slice| 1 + draw(2000 + seed, slice, 3) as usize).collect()
}

#[test]
fn every_term_of_a_class_is_the_same_tensor() {
    let mut fires: BTreeSet<String> = BTreeSet::new();
    for seed in 0..3 {
        for (layer, can_slice) in layers(seed) {
            for count in 1..=if can_slice { 3 } else { 1 } {
                let graph = build(&layer, DType::F64);
                let saturated = saturate(&graph, count > 1, &rules());
                assert!(saturated.ends, "{}", layer.name);
                let case = Case { sequences: 2, lengths: lengths(seed, count), seed };
                let faults = disagreements(&graph, &saturated, &case);
                assert_eq!(faults, Vec::<String>::new(), "{} {case:?}", layer.name);
                fires.extend(fired(&saturated));
            }
        }
    }
    let all: BTreeSet<String> = rules().iter().map(|rule| rule.name.to_owned()).collect();
    assert_eq!(fires, all, "a rule that never fires is not tested");
}

/// The evaluator is trusted: its gradients are those of its forward pass, by central differences.
#[test]
fn gradients_are_differences() {
    for (layer, _) in layers(1) {
        let graph = build(&layer, DType::F64);
        let case = Case { sequences: 1, lengths: vec![4], seed: 5 };
        let base = values(&graph, &case, |_| None);
        // What the gradients are of: the loss, or the outputs weighted by their gradients.
        let objective = |values: &[Value]| -> f64 {
            let total = |value: &Value| value.rows().iter().flatten().sum::<f64>();
            let weighted = graph.outputs.iter().zip(&graph.output_gradients).map(|(y, dy)| {
                let (y, dy) = (&values[y.index()], &base[dy.index()]);
                y.rows().iter().flatten().zip(dy.rows().iter().flatten()).map(|(y, dy)| y * dy).sum::<f64>()
            });
            weighted.sum::<f64>() + graph.loss.map_or(0.0, |loss| total(&values[loss.index()]))
        };
        for (input, gradient) in graph.inputs.iter().zip(&graph.input_gradients) {
            let op = &graph.nodes[*input].op;
            for (row, column) in [(0, 0), (1, 1), (3, 0)] {
                let moved = |by: f64| {
                    let mut value = base[input.index()].clone();
                    let Value::Rows { rows, .. } = &mut value else { panic!("inputs have rows") };
                    rows[row][column] += by;
                    objective(&values(&graph, &case, |node| (node.op == *op).then(|| value.clone())))
                };
                let step = 1e-5;
                let difference = (moved(step) - moved(-step)) / (2.0 * step);
                let exact = base[gradient.index()].rows()[row][column];
                // The error of a central difference: step^2 of truncation, and 1e-16 / step of rounding.
                let bound = 1e-6 * (1.0 + exact.abs());
                let name = &layer.name;
                assert!((difference - exact).abs() < bound, "{name} {row} {column}: {difference} {exact}");
            }
        }
    }
}

/// Every model of the library with its sizes filled in.
fn shipped() -> Vec<(String, Spec)> {
    let sized = |line: &&str| {
        let renamed = line.split_once(" = ").is_some_and(|(head, _)| !head.contains('('));
        renamed || line.starts_with("phi2") || line.starts_with("glm_130b")
    };
    let lines = LIBRARY.iter().flat_map(|file| file.text.lines());
    let lines = lines.filter_map(|line| line.strip_prefix("model ")).filter(sized);
    let resolve = |line: &str| {
        let name: String = line.chars().take_while(|&c| c.is_alphanumeric() || c == '_').collect();
        let text = format!(
            "train {{ seq: 2048, global_batch: 1, micro_batch: 1, precision: bf16, optimizer: adamw {{ lr: 1e-4 }} }}
            pipeline {{ model: std::models::{name}, cluster: std::clusters::dgx_h100 }}"
        );
        let mut sources = Sources::new();
        sources.add("test.pipe", pipe_grammar::parse(SourceId(0), &text).file);
        match spec::resolve(&sources, SourceId(0), &Choice::default()) {
            Ok(resolution) => (name, resolution.spec),
            Err(errors) => panic!("{name}: {errors:?}"),
        }
    };
    lines.map(resolve).collect()
}

/// The rules that had something to say.
fn fired(saturated: &Saturated) -> BTreeSet<String> {
    let applied = saturated.rounds.iter().flat_map(|round| &round.applied);
    applied.filter(|(_, count)| **count > 0).map(|(rule, _)| rule.to_string()).collect()
}

/// A rule that nothing needs is none.
#[test]
fn rules_fire_on_shipped_models() {
    let mut fires: BTreeSet<String> = BTreeSet::new();
    for (_, spec) in shipped() {
        for graph in graphs(&spec.model, spec.train.precision).values() {
            for sliced in [false, true] {
                fires.extend(fired(&saturate(graph, sliced, &rules())));
            }
        }
    }
    let silent: Vec<&str> =
        rules().iter().map(|rule| rule.name).filter(|&name| !fires.contains(name)).collect();
    assert_eq!(silent, Vec::<&str>::new());
}

/// The slice of an operation as the operation on slices, whether that is true or not.
fn sliced_as_if_by_token(
    egraph: &mut EGraph,
    class: Id,
    term: &Term,
    takes: fn(&Op) -> bool,
) -> Vec<(Id, Id)> {
    let mut equal = Vec::new();
    if term.head == Head::Slice {
        for of in egraph[term.children[0]].nodes.clone() {
            let Head::Op(op) = &of.head else { continue };
            if takes(op) {
                let slice = |&child: &Id| match egraph[child].data.tokens {
                    Tokens::All => add(egraph, Term::new(Head::Slice, vec![child]), None),
                    Tokens::None | Tokens::Slice => child,
                };
                let children = of.children.iter().map(slice).collect();
                equal.push((class, alike(egraph, class, Term::op(op.clone(), children))));
            }
        }
    }
    equal
}

/// Attention is sliced as if a token needed itself alone.
fn attention_by_token(egraph: &mut EGraph, class: Id, term: &Term) -> Vec<(Id, Id)> {
    sliced_as_if_by_token(egraph, class, term, |op| matches!(op, Op::Attention(_)))
}

/// The gradient of an attention is sliced as if later slices contributed nothing.
fn attention_grad_by_token(egraph: &mut EGraph, class: Id, term: &Term) -> Vec<(Id, Id)> {
    sliced_as_if_by_token(egraph, class, term, |op| matches!(op, Op::AttentionGrad { .. }))
}

/// The gradient of a weight is that of a slice.
fn no_sum(egraph: &mut EGraph, class: Id, term: &Term) -> Vec<(Id, Id)> {
    let Head::Op(Op::WeightProduct) = &term.head else { return Vec::new() };
    if term.children.iter().any(|&child| egraph[child].data.tokens != Tokens::All) {
        return Vec::new();
    }
    let slice = |&child: &Id| add(egraph, Term::new(Head::Slice, vec![child]), None);
    let children = term.children.iter().map(slice).collect();
    vec![(class, alike(egraph, class, Term::op(Op::WeightProduct, children)))]
}

/// A sum is its first operand.
fn no_residual(egraph: &mut EGraph, class: Id, term: &Term) -> Vec<(Id, Id)> {
    let Head::Op(Op::Map(formula)) = &term.head else { return Vec::new() };
    let adds = formula.nodes[..] == [Node::Input(0), Node::Input(1), Node::Binary(BinaryOp::Add, 0, 1)];
    let same = adds && egraph[term.children[0]].data.backward == egraph[class].data.backward;
    if same { vec![(class, term.children[0])] } else { Vec::new() }
}

/// The operands of a map of two stand in any order.
fn swapped(egraph: &mut EGraph, class: Id, term: &Term) -> Vec<(Id, Id)> {
    let (Head::Op(Op::Map(_)), [a, b]) = (&term.head, &term.children[..]) else { return Vec::new() };
    vec![(class, alike(egraph, class, Term::new(term.head.clone(), vec![*b, *a])))]
}

/// A product is added to itself.
fn added_twice(egraph: &mut EGraph, class: Id, term: &Term) -> Vec<(Id, Id)> {
    let Head::Op(Op::Product(_)) = &term.head else { return Vec::new() };
    let [dy, weight] = term.children[..] else { return Vec::new() };
    let children = vec![class, dy, weight];
    vec![(class, alike(egraph, class, Term::op(Op::Product(crate::graph::Added::Yes), children)))]
}

/// Rules that are not true are found, each on a layer where it has something to say.
#[test]
fn planted_rules_are_found() {
    let rule = |name, apply| Rule { name, from: "", to: "", condition: "", reason: "", apply };
    let causal = samples::llama_layer(4, 2, 1, 3, Mask::Causal);
    let full = samples::llama_layer(4, 2, 1, 3, Mask::Full);
    let sliced: Vec<usize> = vec![2, 3];
    let planted = [
        (rule("full attention by token", attention_by_token), &full, sliced.clone()),
        (rule("causal attention by token", attention_by_token), &causal, sliced.clone()),
        (rule("attention gradient by token", attention_grad_by_token), &causal, sliced.clone()),
        (rule("weight gradient without its sum", no_sum), &causal, sliced),
        (rule("no residual", no_residual), &causal, vec![4]),
        (rule("swapped operands", swapped), &gated(3, 4), vec![4]),
        (rule("added twice", added_twice), &causal, vec![4]),
    ];
    for (rule, layer, lengths) in planted {
        let graph: Graph = build(layer, DType::F64);
        let case = Case { sequences: 2, lengths, seed: 9 };
        let sliced = case.lengths.len() > 1;
        // What the rules in force say is true, so that what is found is what was planted.
        let name = rule.name;
        let before = disagreements(&graph, &saturate(&graph, sliced, &[]), &case);
        assert_eq!(before, Vec::<String>::new(), "{name}");
        let saturated = saturate(&graph, sliced, &[rule]);
        assert_ne!(disagreements(&graph, &saturated, &case), Vec::<String>::new(), "{name} was not found");
    }
}
