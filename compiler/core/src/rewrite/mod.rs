//! Decisions by equality: how a layer is sliced, what its backward pass keeps and what it computes again, and what becomes
//! one kernel.
//!
//! Every distinct layer is one small e-graph (the crate `egg`). Its graph is put in, the [`rules()`] say what is equal to
//! what until nothing is left to say, and the extraction finds the Pareto front of ways to compute what the layer gives,
//! in time and in bytes kept for the backward pass. The forward results are roots as the gradients are: else the cheapest
//! forward pass would be none.
//!
//! It deliberately knows nothing of stages, schedules or budgets: which mode a layer takes on which stage is the plan's to
//! choose. Types of egg stay in here.

#[cfg(test)]
mod chain;
#[cfg(test)]
mod enumerate;
mod extract;
#[cfg(test)]
mod integer;
mod price;
mod rules;
#[cfg(test)]
mod soundness;
mod steps;
mod term;
#[cfg(test)]
mod tests;

use crate::graph::{Graph, Graphs, NodeId, Op, graphs};
use crate::mode::{Extent, Forms, Layer, Layers, Summary, modes, reach};
use crate::spec::{LayerId, Model, Offload, Recompute, Train};
use egg::Id;
use extract::{Choice, front};
use pipec_program::Slice;
use pipec_program::id::IdVec;
use std::collections::BTreeSet;
use std::time::Duration;
use term::{EGraph, Head, Term, Terms, Tokens, add, terms};

pub use price::Rates;
pub use rules::{Rule, fusion, rules};

/// The most rounds of all rules; no layer has needed a quarter of them.
const MOST_ROUNDS: usize = 64;
/// The most terms of a layer; no layer has needed a tenth of them.
const MOST_TERMS: usize = 100_000;

/// A layer that cannot be cut into slices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotSliceable {
    /// The layer.
    pub layer: LayerId,
    /// The positions of the operations that need whole sequences, ascending.
    pub operations: Vec<usize>,
}

/// The modes of the layers of a model for slices of some lengths under some rules, priced for a device.
///
/// # Errors
/// The first layer that cannot be sliced, if there is more than one slice.
pub fn rewrite(
    graphs: &Graphs,
    model: &Model,
    train: &Train,
    lengths: &[u64],
    rates: Rates,
    rules: &[Rule],
) -> Result<Layers, NotSliceable> {
    let reach = reach(model);
    let extents: IdVec<Slice, Extent<'_>> = (0..lengths.len())
        .map(|slice| Extent { sequences: train.micro_batch, lengths, slice, reach })
        .collect();
    let extents: Vec<Extent<'_>> = extents.values().copied().collect();
    graphs
        .iter()
        .map(|(id, graph)| {
            let layer = layer_under(graph, &extents, rates, rules).map(|(layer, _)| layer);
            layer.map_err(|operations| NotSliceable { layer: id, operations })
        })
        .collect()
}

/// The forms of the pieces of a model in their fastest modes, for slices of some lengths.
///
/// # Errors
/// As [`rewrite`].
pub fn fastest(model: &Model, train: &Train, lengths: &[u64], rates: Rates) -> Result<Forms, NotSliceable> {
    let layers = rewrite(&graphs(model, train.precision), model, train, lengths, rates, &rules())?;
    Ok(Forms::new(
        &layers,
        model,
        train,
        lengths,
        &modes(&layers, model, &Recompute::default(), Offload::None),
    ))
}

/// The modes of a layer, and what went on; or the operations that cannot be sliced.
///
/// # Errors
/// The positions of operations that need whole sequences, where there is more than one slice.
pub fn layer(graph: &Graph, extents: &[Extent<'_>], rates: Rates) -> Result<(Layer, Summary), Vec<usize>> {
    layer_under(graph, extents, rates, &rules())
}

/// The same under some rules.
fn layer_under(
    graph: &Graph,
    extents: &[Extent<'_>],
    rates: Rates,
    rules: &[Rule],
) -> Result<(Layer, Summary), Vec<usize>> {
    let saturated = saturate(graph, extents.len() > 1, rules);
    debug_assert!(saturated.ends, "the rules do not end on layer {}", graph.name);
    let summary = saturated.summary();
    let Saturated { egraph, classes, .. } = saturated;
    let roots: Vec<Id> = roots(graph).map(|node| classes[node]).collect();
    let front = front(&egraph, &roots, |class| choices(&egraph, class, extents, rates));
    if !front.missing.is_empty() {
        return Err(blocking(graph, &egraph, &front.missing));
    }
    let modes = front.ways.iter().map(|way| steps::mode(graph, &egraph, &classes, way)).collect();
    let layer = Layer {
        name: graph.name.clone(),
        precision: graph.precision,
        gradients: graph.gradients,
        modes,
        random_sites: graph.random_sites,
        summary,
    };
    Ok((layer, summary))
}

/// The e-graph of a layer and what rules have done to it.
#[derive(Clone)]
struct Saturated {
    egraph: EGraph,
    /// What the layer gives and computes, by node: for the slice, where there are some.
    classes: IdVec<NodeId, Id>,
    terms_before: usize,
    /// The rounds of all rules.
    rounds: Vec<egg::Iteration<()>>,
    /// Whether the rules came to an end.
    ends: bool,
}

impl Saturated {
    /// Adds what some rules have to say.
    fn run(mut self, rules: &[Rule]) -> Self {
        let runner = egg::Runner::<Term, term::Facts>::default()
            .with_egraph(self.egraph)
            .with_scheduler(egg::SimpleScheduler)
            .with_iter_limit(MOST_ROUNDS)
            .with_node_limit(MOST_TERMS)
            .with_time_limit(Duration::MAX)
            .run(&rules::rewrites(rules));
        self.ends = matches!(runner.stop_reason, Some(egg::StopReason::Saturated));
        self.rounds.extend(runner.iterations);
        Self { egraph: runner.egraph, ..self }
    }

    fn summary(&self) -> Summary {
        Summary {
            terms_before: self.terms_before,
            terms: self.egraph.total_number_of_nodes(),
            classes: self.egraph.number_of_classes(),
            rounds: self.rounds.len(),
        }
    }
}

/// The e-graph of a layer under some rules.
fn saturate(graph: &Graph, sliced: bool, rules: &[Rule]) -> Saturated {
    start(graph, sliced).run(rules)
}

/// The e-graph of a layer before any rule.
fn start(graph: &Graph, sliced: bool) -> Saturated {
    let Terms { mut egraph, mut classes } = terms(graph);
    let terms_before = egraph.total_number_of_nodes();
    if sliced {
        for (id, class) in classes.iter_mut() {
            // What is summed over tokens is the same whether sliced or not.
            if egraph[*class].data.tokens == Tokens::All && !graph.nodes[id].op.sums_tokens() {
                *class = add(&mut egraph, Term::new(Head::Slice, vec![*class]), None);
            }
        }
        egraph.rebuild();
    }
    Saturated { egraph, classes, terms_before, rounds: Vec::new(), ends: false }
}

/// What a layer has to give, forward and backward.
fn roots(graph: &Graph) -> impl Iterator<Item = NodeId> + '_ {
    let contributions = graph.contributions.iter().map(|(contribution, _)| *contribution);
    let forward = graph.outputs.iter().copied().chain(graph.loss);
    forward.chain(contributions).chain(graph.input_gradients.iter().copied())
}

/// The terms of a class that can be carried out: on slices only, where there are some.
fn choices(egraph: &EGraph, class: Id, extents: &[Extent<'_>], rates: Rates) -> Vec<Choice> {
    let sliced = extents.len() > 1;
    let whole = egraph[class].data.tokens == Tokens::All;
    let is_possible = |term: &&Term| match &term.head {
        Head::Op(op) => !sliced || !whole || is_leaf(op),
        Head::Slice => sliced && egraph[term.children[0]].nodes.iter().any(is_given),
        Head::Again => rules::is_free(egraph, term.children[0]),
        Head::Keep => true,
        Head::Fetch => rates.host,
        Head::Earlier | Head::Later(..) | Head::Sum => sliced,
    };
    let choice =
        |term: &Term| Choice { term: term.clone(), price: price::price(egraph, class, term, extents, rates) };
    egraph[class].nodes.iter().filter(is_possible).map(choice).collect()
}

/// Whether an operation takes what is given.
fn is_leaf(op: &Op) -> bool {
    match op {
        Op::Input(_) | Op::Weight(_) | Op::Tokens | Op::Targets | Op::Places | Op::OutputGradient(_) => true,
        Op::Part(_)
        | Op::Embedding
        | Op::Positions { .. }
        | Op::Linear
        | Op::RmsNorm { .. }
        | Op::LayerNorm { .. }
        | Op::Rope(_)
        | Op::Attention(_)
        | Op::Softmax { .. }
        | Op::Map(_)
        | Op::CrossEntropy { .. }
        | Op::Product(_)
        | Op::WeightProduct
        | Op::SumRows
        | Op::EmbeddingGrad
        | Op::PositionsGrad { .. }
        | Op::RmsNormGrad { .. }
        | Op::RmsNormGainGrad { .. }
        | Op::LayerNormGrad { .. }
        | Op::LayerNormParamGrad { .. }
        | Op::AttentionGrad { .. }
        | Op::SoftmaxGrad { .. }
        | Op::CrossEntropyGrad { .. } => false,
    }
}

fn is_given(term: &Term) -> bool {
    match &term.head {
        Head::Op(op) => is_leaf(op),
        Head::Again
        | Head::Keep
        | Head::Fetch
        | Head::Slice
        | Head::Earlier
        | Head::Later(..)
        | Head::Sum => false,
    }
}

/// The operations of the language behind classes that nothing computes for a slice.
fn blocking(graph: &Graph, egraph: &EGraph, missing: &BTreeSet<Id>) -> Vec<usize> {
    let mut operations: BTreeSet<usize> = BTreeSet::new();
    for &class in missing {
        let of = egraph[class].nodes.iter().flat_map(|term| match term.head {
            Head::Slice => egraph[term.children[0]].nodes.clone(),
            Head::Op(_)
            | Head::Again
            | Head::Keep
            | Head::Fetch
            | Head::Earlier
            | Head::Later(..)
            | Head::Sum => Vec::new(),
        });
        for term in of {
            if let Head::Op(Op::Attention(of) | Op::AttentionGrad { of, .. }) = term.head {
                operations.insert(of.operation);
            }
        }
    }
    debug_assert!(!operations.is_empty(), "layer {} has no way to be computed", graph.name);
    operations.into_iter().collect()
}
