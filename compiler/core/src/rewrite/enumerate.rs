//! Brute force against the extraction: on small layers, every way to pick one term for each class that is needed.

use super::extract::{Choice, front};
use super::tests::{RATES, extents};
use super::{EGraph, choices, roots, rules, saturate};
use crate::graph::samples::Sample;
use crate::graph::{Graph, build};
use crate::spec::{Layer, Unary};
use egg::Id;
use pipec_program::{DType, Mask};
use std::collections::{BTreeMap, BTreeSet};

/// The most ways of a layer here: more would take too long.
const MOST_WAYS: usize = 2_000_000;

/// All ways of a layer, one pick after the other, without a thought of which are worth it.
struct Ways<'a> {
    egraph: &'a EGraph,
    choices: BTreeMap<Id, Vec<Choice>>,
    /// The operands of the choice that was picked for each class.
    picked: BTreeMap<Id, Vec<Id>>,
    /// How many ways there are, and the prices that they have.
    count: usize,
    prices: BTreeSet<(u64, u64)>,
}

impl Ways<'_> {
    /// Whether what is picked goes round in a circle.
    fn is_circular(&self) -> bool {
        let mut done: BTreeSet<Id> = BTreeSet::new();
        loop {
            let ready = |(class, operands): &(&Id, &Vec<Id>)| {
                !done.contains(class) && operands.iter().all(|operand| done.contains(operand))
            };
            let next: Vec<Id> = self.picked.iter().filter(ready).map(|(&class, _)| class).collect();
            if next.is_empty() {
                return done.len() < self.picked.len();
            }
            done.extend(next);
        }
    }

    fn enumerate(&mut self, mut open: Vec<Id>, time: u64, kept: u64) {
        while open.last().is_some_and(|class| self.picked.contains_key(class)) {
            open.pop();
        }
        let Some(class) = open.pop() else {
            if !self.is_circular() {
                self.count += 1;
                assert!(self.count <= MOST_WAYS, "too many ways");
                self.prices.insert((time, kept));
            }
            return;
        };
        for choice in self.choices[&class].clone() {
            let operands: Vec<Id> =
                choice.term.children.iter().map(|&child| self.egraph.find(child)).collect();
            let open = open.iter().chain(&operands).copied().collect();
            self.picked.insert(class, operands);
            self.enumerate(open, time + choice.price.time, kept + choice.price.kept);
        }
        self.picked.remove(&class);
    }
}

/// The number of ways and their exact front, against the extraction's.
fn compare(layer: &Layer, lengths: &[u64]) -> (usize, usize) {
    let graph: Graph = build(layer, DType::F32);
    let extents = extents(lengths);
    let saturated = saturate(&graph, lengths.len() > 1, &rules());
    let egraph = &saturated.egraph;
    let roots: Vec<Id> = roots(&graph).map(|node| egraph.find(saturated.classes[node])).collect();
    let choices = |class: Id| choices(egraph, class, &extents, RATES);
    let all = egraph.classes().map(|class| (class.id, choices(class.id))).collect();
    let mut ways = Ways { egraph, choices: all, picked: BTreeMap::new(), count: 0, prices: BTreeSet::new() };
    ways.enumerate(roots.clone(), 0, 0);
    let mut exact: Vec<(u64, u64)> = Vec::new();
    // Ascending in time, so that one stays that keeps less than all before it.
    for (time, kept) in ways.prices {
        if exact.last().is_none_or(|&(_, least)| kept < least) {
            exact.push((time, kept));
        }
    }
    let found = front(egraph, &roots, choices);
    let found: Vec<(u64, u64)> = found.ways.iter().map(|way| (way.price.time, way.price.kept)).collect();
    assert_eq!(found, exact, "{} {lengths:?}: of {} ways", layer.name, ways.count);
    (ways.count, exact.len())
}

/// A norm and a gate.
fn gated() -> Layer {
    let mut layer = Sample::new("gated");
    let x = layer.input("x", 16);
    let h = layer.rms_norm("h", x);
    let gate = layer.linear("gate", h, 24, false);
    let up = layer.linear("up", h, 24, false);
    let a = layer.unary("silu", Unary::Silu, gate);
    let y = layer.mul("y", a, up);
    layer.output(&[y])
}

/// A residual branch of two products.
fn branch() -> Layer {
    let mut layer = Sample::new("branch");
    let x = layer.input("x", 16);
    let h = layer.linear("up", x, 24, false);
    let h = layer.unary("relu", Unary::Relu, h);
    let h = layer.linear("down", h, 16, false);
    let y = layer.add("y", x, h);
    layer.output(&[y])
}

/// Attention of a value with itself.
fn attention() -> Layer {
    let mut layer = Sample::new("attention");
    let x = layer.input("x", 16);
    let q = layer.linear("q", x, 16, false);
    let q = layer.heads("q", q, 2);
    let o = layer.attention(q, q, q, Mask::Causal);
    let o = layer.heads("o", o, 1);
    layer.output(&[o])
}

#[test]
fn the_front_is_exact() {
    let mut text = String::new();
    for layer in [gated(), branch(), attention()] {
        for lengths in [&[64][..], &[40, 24]] {
            let (ways, front) = compare(&layer, lengths);
            text += &format!("{} {lengths:?}: {ways} ways, {front} on the front\n", layer.name);
        }
    }
    insta::assert_snapshot!(text);
}
