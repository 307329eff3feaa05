//! Brute force against the extraction: on small layers, every way to pick one term for each class that is needed, in all
//! three prices.

use super::extract::{Choice, front};
use super::price::{Price, Rates};
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
    prices: BTreeSet<Price>,
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

    fn enumerate(&mut self, mut open: Vec<Id>, price: Price) {
        while open.last().is_some_and(|class| self.picked.contains_key(class)) {
            open.pop();
        }
        let Some(class) = open.pop() else {
            if !self.is_circular() {
                self.count += 1;
                assert!(self.count <= MOST_WAYS, "too many ways");
                self.prices.insert(price);
            }
            return;
        };
        for choice in self.choices[&class].clone() {
            let operands: Vec<Id> =
                choice.term.children.iter().map(|&child| self.egraph.find(child)).collect();
            let open = open.iter().chain(&operands).copied().collect();
            self.picked.insert(class, operands);
            self.enumerate(open, price + choice.price);
        }
        self.picked.remove(&class);
    }
}

/// The number of ways and of those on their exact front, against the extraction's.
fn compare(layer: &Layer, lengths: &[u64], host: bool) -> (usize, usize) {
    let graph: Graph = build(layer, DType::F32);
    let extents = extents(lengths);
    let saturated = saturate(&graph, lengths.len() > 1, &rules());
    let egraph = &saturated.egraph;
    let roots: Vec<Id> = roots(&graph).map(|node| egraph.find(saturated.classes[node])).collect();
    let choices = |class: Id| choices(egraph, class, &extents, Rates { host, ..RATES });
    let all = egraph.classes().map(|class| (class.id, choices(class.id))).collect();
    let mut ways = Ways { egraph, choices: all, picked: BTreeMap::new(), count: 0, prices: BTreeSet::new() };
    ways.enumerate(roots.clone(), Price::default());
    // Ascending, so that what is at most in every price comes before.
    let mut exact: Vec<Price> = Vec::new();
    for price in ways.prices {
        let is_at_most = |other: &Price| other.kept <= price.kept && other.offloaded <= price.offloaded;
        if !exact.iter().any(is_at_most) {
            exact.push(price);
        }
    }
    let found: Vec<Price> = front(egraph, &roots, choices).ways.iter().map(|way| way.price).collect();
    assert_eq!(found, exact, "{} {lengths:?}, host {host}: of {} ways", layer.name, ways.count);
    assert_eq!(exact.iter().any(|price| price.offloaded > 0), host);
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

/// A norm of a sum that goes on beside it.
fn summed() -> Layer {
    let mut layer = Sample::new("summed");
    let x = layer.input("x", 16);
    let h = layer.linear("h", x, 16, false);
    let s = layer.add("s", x, h);
    let n = layer.rms_norm("n", s);
    let n = layer.linear("out", n, 16, false);
    let y = layer.add("y", s, n);
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

/// The ways of some layers, whole and in slices.
fn counted(host: bool) -> String {
    let mut text = String::new();
    for layer in [gated(), branch(), summed(), attention()] {
        for lengths in [&[64][..], &[40, 24]] {
            let (ways, front) = compare(&layer, lengths, host);
            text += &format!("{} {lengths:?}: {ways} ways, {front} on the front\n", layer.name);
        }
    }
    text
}

/// In time and bytes kept.
#[test]
fn the_front_is_exact() {
    insta::assert_snapshot!(counted(false));
}

/// In bytes through the host too.
#[test]
fn the_front_with_offloading_is_exact() {
    insta::assert_snapshot!(counted(true));
}
