//! The front of chains against optimal checkpointing: a dynamic program over a sequential chain of operations that differ
//! in time and bytes.
//!
//! The reference does with one value after the other what a mode can do: a value that the backward pass needs is kept from
//! the forward pass, or computed again once, with all between it and the nearest value before it that is kept. Its kernels
//! take the times that terms have, and it fuses nothing. (Beaumont et al., *Optimal checkpointing for heterogeneous chains*,
//! 2019, also compute values again more than once, to hold fewer of them at a time within the backward pass. Here, as on the
//! front, bytes are those that are kept from one pass to the other.)

use super::price::price;
use super::rules::is_free;
use super::term::{Head, Term, rank};
use super::tests::{RATES, extents};
use super::{Saturated, choices, front, roots, rules, saturate, start};
use crate::graph::samples::Sample;
use crate::graph::{Graph, build};
use crate::mode::tensor;
use crate::spec::{Layer, Unary};
use egg::Id;
use pipec_program::DType;
use proptest::prelude::*;
use std::collections::BTreeMap;

const TOKENS: &[u64] = &[64];

/// How many budgets are compared for each chain.
const BUDGETS: u64 = 10;

/// An operation of a chain.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A product, to so many numbers per token.
    Linear(u64),
    Unary(Unary),
}

fn chain(width: u64, steps: &[Step]) -> Layer {
    let mut layer = Sample::new("chain");
    let mut x = layer.input("x", width);
    for (number, step) in steps.iter().enumerate() {
        let name = format!("x{number}");
        x = match *step {
            Step::Linear(width) => layer.linear(&name, x, width, false),
            Step::Unary(function) => layer.unary(&name, function, x),
        };
    }
    layer.output(&[x])
}

fn width() -> impl Strategy<Value = u64> {
    (1u64..9).prop_map(|width| 8 * width)
}

fn linear() -> impl Strategy<Value = Step> {
    width().prop_map(Step::Linear)
}

fn unary() -> impl Strategy<Value = Step> {
    let functions = [Unary::Silu, Unary::Gelu, Unary::GeluTanh, Unary::Relu];
    prop::sample::select(functions.to_vec()).prop_map(Step::Unary)
}

/// A value of a chain: what it takes to compute it from the one before, in picoseconds, and its bytes.
#[derive(Clone, Copy, Debug)]
struct Link {
    time: u64,
    bytes: u64,
}

/// What checkpointing has to know.
struct Reference {
    /// All kernels of both passes, each once.
    time: u64,
    /// The values that the backward pass needs: all but the last.
    links: Vec<Link>,
}

impl Reference {
    fn new(graph: &Graph) -> Self {
        // Without rules every class has the one term of the graph.
        let Saturated { egraph, .. } = start(graph, false);
        let extents = extents(TOKENS);
        let time = |class: Id| price(&egraph, class, &egraph[class].nodes[0], &extents, RATES).time;
        let mut links: BTreeMap<usize, Link> = BTreeMap::new();
        for class in egraph.classes() {
            assert_eq!(class.nodes.len(), 1);
            let Term { head: Head::Again, children } = &class.nodes[0] else { continue };
            if !is_free(&egraph, children[0]) {
                let fact = &egraph[children[0]].data;
                let bytes = tensor(&fact.ty, 1, extents[0]).bytes().0;
                links.insert(rank(fact), Link { time: time(children[0]), bytes });
            }
        }
        let time = egraph.classes().map(|class| time(class.id)).sum();
        Self { time, links: links.into_values().collect() }
    }

    /// The least time within some bytes. The first value has nothing before it: it is kept.
    fn least(&self, budget: u64) -> Option<u64> {
        let again =
            |from: usize, to: usize| self.links[from + 1..to].iter().map(|link| link.time).sum::<u64>();
        // For the last value that is kept, the least time to compute those before it again, by the bytes kept.
        let mut ending: Vec<BTreeMap<u64, u64>> = Vec::new();
        for (last, link) in self.links.iter().enumerate() {
            let mut least: BTreeMap<u64, u64> = BTreeMap::new();
            if last == 0 {
                least.insert(link.bytes, 0);
            }
            for (before, known) in ending.iter().enumerate() {
                for (bytes, time) in known {
                    let time = time + again(before, last);
                    let best = least.entry(bytes + link.bytes).or_insert(time);
                    *best = time.min(*best);
                }
            }
            ending.push(least);
        }
        let ends = ending.iter().enumerate().flat_map(|(last, known)| {
            let rest = again(last, self.links.len());
            known.iter().filter(|(bytes, _)| **bytes <= budget).map(move |(_, time)| time + rest)
        });
        ends.min().map(|time| self.time + time)
    }
}

/// Bytes from the input alone to all values, with the least time within them of the reference and of the front.
fn compare(layer: &Layer) -> Vec<(u64, u64, u64)> {
    let graph = build(layer, DType::F32);
    let reference = Reference::new(&graph);
    assert_eq!(reference.links.len(), layer.operations.len());
    let extents = extents(TOKENS);
    let Saturated { egraph, classes, .. } = saturate(&graph, false, &rules());
    let roots: Vec<Id> = roots(&graph).map(|node| classes[node]).collect();
    let front = front(&egraph, &roots, |class| choices(&egraph, class, &extents, RATES)).ways;
    let all: u64 = reference.links.iter().map(|link| link.bytes).sum();
    let input = reference.links[0].bytes;
    let budget = |number: u64| input + (all - input) * number / (BUDGETS - 1);
    let row = |budget: u64| {
        let fastest = front.iter().find(|way| way.price.kept <= budget).unwrap();
        (budget, reference.least(budget).unwrap(), fastest.price.time)
    };
    (0..BUDGETS).map(budget).map(row).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50))]

    /// Where products and functions take turns nothing fuses: neither is better.
    #[test]
    fn the_front_is_optimal_checkpointing(
        width in width(), pairs in prop::collection::vec((linear(), unary()), 3..6)
    ) {
        let steps: Vec<Step> = pairs.into_iter().flat_map(|(linear, unary)| [linear, unary]).collect();
        for (budget, reference, front) in compare(&chain(width, &steps)) {
            prop_assert_eq!(front, reference, "{} bytes", budget);
        }
    }

    /// In any order the front is never worse, and better where functions follow each other, which become one kernel.
    #[test]
    fn the_front_is_never_worse(
        width in width(), steps in prop::collection::vec(prop_oneof![linear(), unary()], 6..11)
    ) {
        let fuses = steps.windows(2).any(|steps| matches!(steps, [Step::Unary(_), Step::Unary(_)]));
        for (budget, reference, front) in compare(&chain(width, &steps)) {
            prop_assert!(front <= reference - u64::from(fuses), "{budget} bytes: {front} ps, {reference} ps");
        }
    }
}
