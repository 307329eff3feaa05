//! Every rule on the smallest layer that it has something to say about: the classes that it adds to, before and after.

use super::{Rule, rules};
use crate::graph::samples::Sample;
use crate::graph::{Graph, build};
use crate::rewrite::start;
use crate::rewrite::term::{EGraph, Head, Term, terms};
use crate::spec::{Layer, Op, Unary, ValueId};
use egg::Id;
use pipec_program::{DType, Mask};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Terms for people.
struct Names<'a> {
    egraph: &'a EGraph,
    /// The names of the classes of nodes.
    nodes: BTreeMap<Id, String>,
}

impl<'a> Names<'a> {
    fn new(graph: &Graph, egraph: &'a EGraph) -> Self {
        let mut nodes = BTreeMap::new();
        for (node, &class) in terms(graph).classes.iter() {
            nodes.entry(egraph.find(class)).or_insert_with(|| graph.nodes[node].name.clone());
        }
        Self { egraph, nodes }
    }

    fn term(&self, term: &Term) -> String {
        let operands: Vec<String> = term.children.iter().map(|&child| self.class(child)).collect();
        match (&term.head, &operands[..]) {
            (_, []) => term.to_string(),
            (Head::Op(crate::graph::Op::Map(_)), operands) => format!("{term} of ({})", operands.join(", ")),
            (_, operands) => format!("{term}({})", operands.join(", ")),
        }
    }

    /// The name of a class: that of its node, else what it is of one.
    fn class(&self, class: Id) -> String {
        let class = self.egraph.find(class);
        self.nodes.get(&class).cloned().unwrap_or_else(|| {
            let terms = &self.egraph[class].nodes;
            let is_given = |term: &&Term| !matches!(term.head, Head::Op(_) | Head::Keep | Head::Fetch);
            let first = terms.iter().find(is_given).or(terms.first());
            first.map(|term| self.term(term)).unwrap_or_default()
        })
    }
}

/// What a rule adds to a layer on which the rules that it `needs` have done their work.
fn golden(name: &str, needs: &[&str], sliced: bool, layer: &Layer) {
    let all = rules();
    let needed: Vec<Rule> = all.iter().filter(|rule| needs.contains(&rule.name)).copied().collect();
    let rule = *all.iter().find(|rule| rule.name == name).unwrap();
    let graph = build(layer, DType::F32);
    let before = start(&graph, sliced).run(&needed);
    let after = before.clone().run(&[rule]);
    let names = Names::new(&graph, &after.egraph);
    let lines = |egraph: &EGraph, class: Id| -> BTreeSet<String> {
        egraph[egraph.find(class)].nodes.iter().map(|term| names.term(term)).collect()
    };
    let mut text = format!("{} = {}\n", rule.from, rule.to);
    let mut classes: Vec<Id> = before.egraph.classes().map(|class| class.id).collect();
    classes.sort_unstable();
    let mut told = BTreeSet::new();
    for class in classes {
        let old = lines(&before.egraph, class);
        let new = lines(&after.egraph, class);
        if old != new && told.insert(after.egraph.find(class)) {
            writeln!(text, "\n{}:", names.class(class)).unwrap();
            old.iter().for_each(|term| writeln!(text, "  {term}").unwrap());
            new.difference(&old).for_each(|term| writeln!(text, "+ {term}").unwrap());
        }
    }
    assert!(!told.is_empty(), "{name} has nothing to say about {}", layer.name);
    insta::assert_snapshot!(name, text);
}

/// A layer of one input.
fn of(body: impl FnOnce(&mut Sample, ValueId) -> ValueId) -> Layer {
    let mut layer = Sample::new("layer");
    let x = layer.input("x", 4);
    let y = body(&mut layer, x);
    layer.output(&[y])
}

fn attention() -> Layer {
    let mut layer = Sample::new("layer");
    let [q, k, v] = ["q", "k", "v"].map(|name| layer.input(name, 4));
    let o = layer.attention(q, k, v, Mask::Causal);
    layer.output(&[o])
}

#[test]
fn slicing() {
    let linear = of(|layer, x| layer.linear("y", x, 3, false));
    golden("slice-tokens", &[], true, &linear);
    golden("slice-sum", &[], true, &linear);
    golden("slice-again", &["slice-sum"], true, &linear);
    let positions = of(|layer, x| {
        let table = layer.slot("table", &[8, 4]);
        layer.like("y", x, Op::Positions { x, table, first: 0 })
    });
    golden("slice-positions", &[], true, &positions);
    golden("slice-attention", &[], true, &attention());
    golden("slice-attention-grad", &[], true, &attention());
}

#[test]
fn phases() {
    let layer = of(|layer, x| {
        let h = layer.linear("h", x, 3, false);
        layer.unary("y", Unary::Relu, h)
    });
    golden("keep", &[], false, &layer);
    golden("offload", &[], false, &layer);
    golden("recompute", &[], false, &layer);
}

#[test]
fn fusion() {
    let mut gate = Sample::new("layer");
    let (x, z) = (gate.input("x", 4), gate.input("z", 4));
    let a = gate.unary("a", Unary::Relu, x);
    let y = gate.mul("y", a, z);
    let gate = gate.output(&[y]);
    golden("fuse-chain", &[], false, &gate);
    let mut scales = Sample::new("layer");
    let [a, b] = [("x", "a", 2.0), ("z", "b", 3.0)].map(|(name, scaled, factor)| {
        let x = scales.input(name, 4);
        scales.like(scaled, x, Op::Scale { x, factor })
    });
    let y = scales.add("y", a, b);
    golden("fuse-siblings", &[], false, &scales.output(&[y]));
    let residual = of(|layer, x| {
        let h = layer.rms_norm("h", x);
        layer.add("y", x, h)
    });
    golden("fuse-residual", &[], false, &residual);
    let mut norm = Sample::new("layer");
    let (x, y) = (norm.input("x", 4), norm.input("y", 4));
    let sum = norm.add("sum", x, y);
    let h = norm.rms_norm("h", sum);
    golden("fuse-residual-norm", &[], false, &norm.output(&[sum, h]));
    let products = of(|layer, x| {
        let (a, b) = (layer.linear("a", x, 4, false), layer.linear("b", x, 4, false));
        layer.add("y", a, b)
    });
    golden("fuse-product", &[], false, &products);
    golden("group-products", &[], false, &products);
}
