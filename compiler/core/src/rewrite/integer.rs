//! A second oracle for the extraction: the same choice as an integer program over a whole layer, which has too many ways
//! to enumerate.
//!
//! One binary variable for each term: of a class at most one term is picked, of a root one, and of a class that a picked
//! term reads, one. It shares with the extraction the terms and their prices, but neither an order of classes nor partial
//! ways. It has no rows against picks that go round in a circle, since no term of these layers closes one, which is checked.

use super::extract::{Choice, Way, front};
use super::price::{Price, Rates};
use super::tests::{RATES, extents};
use super::{EGraph, choices, roots, rules, saturate};
use crate::graph::{build, samples};
use crate::spec::Layer;
use egg::Id;
use microlp::{ComparisonOp, Error, OptimizationDirection, Problem, SolutionStatus, SolveOutcome, Variable};
use pipec_program::{DType, Mask};
use std::collections::{BTreeMap, BTreeSet};

/// The terms of all classes that a layer may need.
struct Terms<'a> {
    egraph: &'a EGraph,
    roots: Vec<Id>,
    choices: BTreeMap<Id, Vec<Choice>>,
}

impl<'a> Terms<'a> {
    fn new(egraph: &'a EGraph, roots: &[Id], choices: impl Fn(Id) -> Vec<Choice>) -> Self {
        let mut terms = Self { egraph, roots: roots.to_vec(), choices: BTreeMap::new() };
        let mut open = roots.to_vec();
        while let Some(class) = open.pop() {
            if terms.choices.contains_key(&class) {
                continue;
            }
            terms.choices.insert(class, choices(class));
            open.extend(terms.children(class));
        }
        assert!(!terms.is_circular());
        terms
    }

    /// The classes that a term reads.
    fn reads(&self, choice: &Choice) -> BTreeSet<Id> {
        choice.term.children.iter().map(|&child| self.egraph.find(child)).collect()
    }

    /// The classes that some term of a class reads.
    fn children(&self, class: Id) -> BTreeSet<Id> {
        self.choices[&class].iter().flat_map(|choice| self.reads(choice)).collect()
    }

    /// Whether there is a class that a term of it reads, directly or by way of others.
    fn is_circular(&self) -> bool {
        let mut left: BTreeMap<Id, BTreeSet<Id>> =
            self.choices.keys().map(|&class| (class, self.children(class))).collect();
        loop {
            let lowest: Vec<Id> =
                left.iter().filter(|(_, children)| children.is_empty()).map(|(&class, _)| class).collect();
            if lowest.is_empty() {
                return !left.is_empty();
            }
            for class in lowest {
                left.remove(&class);
                left.values_mut().for_each(|children| {
                    children.remove(&class);
                });
            }
        }
    }

    /// The price of a fastest way within limits of the bytes kept and offloaded; none if no way is within them.
    fn fastest(&self, limits: Price) -> Option<Price> {
        let mut problem = Problem::new(OptimizationDirection::Minimize);
        let mut picks: BTreeMap<Id, Vec<Variable>> = BTreeMap::new();
        for (&class, choices) in &self.choices {
            let pick = |choice: &Choice| problem.add_binary_var(choice.price.time as f64);
            picks.insert(class, choices.iter().map(pick).collect());
        }
        let picks_of = |class: Id| picks[&class].iter().copied().zip(&self.choices[&class]);
        for &class in self.choices.keys() {
            let is_root = self.roots.contains(&class);
            let count = if is_root { ComparisonOp::Eq } else { ComparisonOp::Le };
            problem.add_constraint(picks_of(class).map(|(pick, _)| (pick, 1.0)), count, 1.0);
            for child in self.children(class) {
                let readers = picks_of(class).filter(|(_, choice)| self.reads(choice).contains(&child));
                let row = readers.map(|(pick, _)| (pick, 1.0));
                let row = row.chain(picks_of(child).map(|(pick, _)| (pick, -1.0)));
                problem.add_constraint(row, ComparisonOp::Le, 0.0);
            }
        }
        let all = || self.choices.keys().flat_map(|&class| picks_of(class));
        for bytes in [|price: &Price| price.kept, |price: &Price| price.offloaded] {
            let row = all().filter(|(_, choice)| bytes(&choice.price) > 0);
            let row: Vec<(Variable, f64)> =
                row.map(|(pick, choice)| (pick, bytes(&choice.price) as f64)).collect();
            if !row.is_empty() {
                problem.add_constraint(row, ComparisonOp::Le, bytes(&limits) as f64);
            }
        }
        let solution = match problem.solve() {
            Ok(SolveOutcome::Solution(solution)) => solution,
            Ok(SolveOutcome::Interrupted(_)) => panic!("there is no limit of time"),
            Err(Error::Infeasible) => return None,
            Err(error) => panic!("{error}"),
        };
        assert_eq!(solution.status(), SolutionStatus::Optimal);
        // In integers, so that nothing is rounded.
        let picked = all().filter(|(pick, _)| solution.var_value(*pick) > 0.5);
        let price = picked.fold(Price::default(), |price, (_, choice)| price + choice.price);
        assert!(is_within(price, limits), "{price:?} {limits:?}");
        Some(price)
    }
}

fn is_within(price: Price, limits: Price) -> bool {
    price.kept <= limits.kept && price.offloaded <= limits.offloaded
}

/// Asks for the fastest ways of a layer within the limits that `limits` names for its front, and compares each with the
/// fastest of the front that is within them; returns how many limits no way is within.
fn compare(layer: &Layer, lengths: &[u64], host: bool, limits: impl FnOnce(&[Way]) -> Vec<Price>) -> usize {
    let graph = build(layer, DType::F32);
    let extents = extents(lengths);
    let saturated = saturate(&graph, lengths.len() > 1, &rules());
    let egraph = &saturated.egraph;
    let roots: Vec<Id> = roots(&graph).map(|node| egraph.find(saturated.classes[node])).collect();
    let choices = |class: Id| choices(egraph, class, &extents, Rates { host, ..RATES });
    let front = front(egraph, &roots, choices).ways;
    let terms = Terms::new(egraph, &roots, choices);
    let mut impossible = 0;
    for limits in limits(&front) {
        let expected = front.iter().map(|way| way.price).find(|&price| is_within(price, limits));
        let found = terms.fastest(limits);
        let time = |price: Price| price.time;
        assert_eq!(found.map(time), expected.map(time), "{lengths:?}: {limits:?}");
        impossible += usize::from(found.is_none());
    }
    impossible
}

/// Some bytes for the fastest way, and just too few for each way of the front: then every one of them is compared, and that
/// there is no other between them.
fn steps(front: &[Way]) -> Vec<Price> {
    let most = Price { kept: 1 << 40, ..Price::default() };
    let fewer = front.iter().map(|way| Price { kept: way.price.kept - 1, ..Price::default() });
    [most].into_iter().chain(fewer).collect()
}

/// A grid from nothing to the most that is kept and offloaded: a front in three prices has hundreds of ways, and where both
/// bytes are scarce a program takes many times as long.
fn grid(front: &[Way]) -> Vec<Price> {
    const COUNT: u64 = 5;
    let most = |bytes: fn(&Price) -> u64| front.iter().map(|way| bytes(&way.price)).max().unwrap();
    let (kept, offloaded) = (most(|price| price.kept), most(|price| price.offloaded));
    assert!(kept > 0 && offloaded > 0);
    let at = |most: u64, place: u64| most * place / (COUNT - 1);
    let point = |place: u64| Price {
        kept: at(kept, place / COUNT),
        offloaded: at(offloaded, place % COUNT),
        ..Price::default()
    };
    (0..COUNT * COUNT).map(point).collect()
}

fn llama() -> Layer {
    samples::llama_layer(64, 4, 2, 96, Mask::Causal)
}

/// No way is faster, nor is there one below the front.
fn check(layer: &Layer, lengths: &[u64]) {
    assert_eq!(compare(layer, lengths, false, steps), 1);
}

#[test]
fn no_way_of_llama_is_faster() {
    check(&llama(), &[64]);
}

#[test]
fn no_way_of_llama_in_slices_is_faster() {
    check(&llama(), &[40, 24]);
}

#[test]
fn no_way_of_gpt_is_faster() {
    check(&samples::gpt_layer(64, 4), &[64]);
}

#[test]
fn no_way_that_offloads_is_faster() {
    for layer in [llama(), samples::gpt_layer(64, 4)] {
        // There is none that neither keeps nor offloads anything.
        assert_eq!(compare(&layer, &[64], true, grid), 1);
    }
}
