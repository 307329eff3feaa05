//! The steps of a way, in order: operands first; of the backward pass in the order of the graph, so that what is computed
//! again is computed right before it is needed.

use super::extract::Way;
use super::term::{EGraph, Head, Term, rank};
use crate::graph::{Graph, NodeId};
use crate::mode::{Boundaries, Make, Mode, Step, StepId};
use egg::Id;
use pipec_program::id::IdVec;
use pipec_program::{Bytes, Nanos};
use std::collections::BTreeMap;

/// Picoseconds in a nanosecond.
const PICOS: u64 = 1000;

/// The mode of a way; `classes` are those of the nodes of the graph.
pub(super) fn mode(graph: &Graph, egraph: &EGraph, classes: &IdVec<NodeId, Id>, way: &Way) -> Mode {
    let mut steps = Steps { graph, egraph, way, mode: Mode::default(), known: BTreeMap::new() };
    steps.mode.time = Nanos(way.price.time.div_ceil(PICOS));
    steps.mode.kept = Bytes(way.price.kept);
    steps.mode.offloaded = Bytes(way.price.offloaded);
    let ty = |&node: &NodeId| (graph.nodes[node].name.clone(), graph.nodes[node].ty.clone());
    steps.mode.boundaries = Boundaries {
        inputs: graph.inputs.iter().map(ty).collect(),
        output_gradients: graph.output_gradients.iter().map(ty).collect(),
    };
    steps.mode.slots = graph.slots.clone();
    let mut order: Vec<(usize, Id)> =
        way.picks.keys().map(|&class| (rank(&egraph[class].data), class)).collect();
    order.sort_unstable();
    let (backward, forward): (Vec<Id>, Vec<Id>) =
        order.iter().map(|&(_, class)| class).partition(|&class| egraph[class].data.backward);
    for class in forward {
        steps.step(class);
    }
    steps.mode.forward = steps.mode.steps.len();
    // What is computed again stands for a node of the forward pass, and comes with what reads it.
    for class in backward {
        if rank(&egraph[class].data) >= graph.forward {
            steps.step(class);
        }
    }
    let class = |node: NodeId| egraph.find(classes[node]);
    let outputs = graph.outputs.iter().map(|&output| steps.step(class(output))).collect();
    let gradients = graph.input_gradients.iter().map(|&gradient| steps.step(class(gradient))).collect();
    let contributions = graph.contributions.iter();
    let contributions =
        contributions.map(|(node, slots)| (steps.step(class(*node)), slots.clone())).collect();
    let loss = graph.loss.map(|loss| steps.step(class(loss)));
    Mode { outputs, input_gradients: gradients, contributions, loss, ..steps.mode }
}

struct Steps<'a> {
    graph: &'a Graph,
    egraph: &'a EGraph,
    way: &'a Way,
    mode: Mode,
    /// The step of each class.
    known: BTreeMap<Id, StepId>,
}

impl Steps<'_> {
    /// The step of a class, after those of its operands.
    fn step(&mut self, class: Id) -> StepId {
        let class = self.egraph.find(class);
        if let Some(&step) = self.known.get(&class) {
            return step;
        }
        let Some(term) = self.way.picks.get(&class) else {
            unreachable!("a way picks a term for every class that it needs")
        };
        let inputs: Vec<StepId> = term.children.iter().map(|&child| self.step(child)).collect();
        let step = match make(term) {
            // What is there already, under another name.
            None => inputs[0],
            Some(make) => {
                let fact = &self.egraph[class].data;
                let name = self.graph.nodes[fact.node].name.clone();
                let is_computed = matches!(make, Make::Op(_)) && !inputs.is_empty();
                let again = is_computed && fact.backward && rank(fact) < self.graph.forward;
                self.mode.steps.push(Step { name, make, inputs, ty: fact.ty.clone(), again })
            }
        };
        self.known.insert(class, step);
        step
    }
}

/// What makes the step of a term; none if its operand is the step.
fn make(term: &Term) -> Option<Make> {
    match &term.head {
        Head::Op(op) => Some(Make::Op(op.clone())),
        Head::Keep => Some(Make::Keep),
        Head::Fetch => Some(Make::Fetch),
        Head::Earlier => Some(Make::Earlier),
        Head::Later(..) => Some(Make::Later),
        Head::Again | Head::Slice | Head::Sum => None,
    }
}
