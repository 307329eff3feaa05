//! Whether an e-graph is true: every term of a class is the same tensor.
//!
//! Values of the nodes of the graph are computed from random leaves. A class of a node has the value of the node, any
//! other that of one of its terms. Then every term of every class is computed from the values of its operands: if all are
//! as the class says, so is whatever an extraction picks.

use super::evaluate::{Token, Value, attend_grad, evaluate, random};
use crate::graph::{Graph, Node, Op, Type};
use crate::rewrite::term::{Head, Term, terms};
use crate::rewrite::{Saturated, is_leaf};
use egg::Id;
use pipec_program::id::{Id as _, IdVec};
use std::collections::BTreeMap;
use std::ops::Range;

/// Tokens and targets are below it, and all tables for tests have as many rows.
pub(super) const VOCABULARY: u64 = 7;

/// How far apart two values may be, relative to the largest magnitude of the value and of what it is computed from: f64
/// sums in another order, which may cancel (the gradient of a bias of keys without rotation is exactly 0).
const BOUND: f64 = 1e-9;

/// The tokens that a graph is computed for.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) sequences: usize,
    /// The tokens of each slice of a sequence.
    pub(super) lengths: Vec<usize>,
    pub(super) seed: u64,
}

impl Case {
    fn length(&self) -> usize {
        self.lengths.iter().sum()
    }

    /// The positions of each slice.
    fn slices(&self) -> Vec<Range<usize>> {
        let ends = self.lengths.iter().scan(0, |end, length| {
            *end += length;
            Some(*end - length..*end)
        });
        ends.collect()
    }

    /// The random value of a leaf.
    fn leaf(&self, node: &Node, number: usize) -> Value {
        let (site, mut place) = (self.seed << 20 | 1 << 16 | number as u64, 0);
        let mut next = || {
            place += 1;
            random(site, place)
        };
        let tokens = || -> Vec<Token> {
            let of_sequence = |sequence| (0..self.length()).map(move |position| (sequence, position));
            (0..self.sequences).flat_map(of_sequence).collect()
        };
        let rows = |row: &mut dyn FnMut(Token) -> Vec<f64>| {
            let tokens = tokens();
            let rows = tokens.iter().map(|&token| row(token)).collect();
            Value::Rows { tokens, rows }
        };
        match (&node.op, &node.ty) {
            (Op::Places, _) => rows(&mut |(_, position)| vec![position as f64]),
            (Op::Tokens | Op::Targets, _) => rows(&mut |_| vec![(next() * VOCABULARY as f64).floor()]),
            (_, Type::PerToken { columns, .. }) => {
                rows(&mut |_| (0..*columns).map(|_| 2.0 * next() - 1.0).collect())
            }
            (_, Type::Whole { shape, .. }) => {
                Value::Whole((0..shape.iter().product()).map(|_| 2.0 * next() - 1.0).collect())
            }
            (_, ty @ (Type::Statistic { .. } | Type::Tuple(_))) => panic!("no leaf is of type {ty}"),
        }
    }
}

/// The value of every node of a graph, for whole sequences; leaves that are not `given` are random.
pub(super) fn values(graph: &Graph, case: &Case, given: impl Fn(&Node) -> Option<Value>) -> Vec<Value> {
    let mut values: Vec<Value> = Vec::new();
    for (id, node) in graph.nodes.iter() {
        let operands: Vec<Value> = node.inputs.iter().map(|&input| values[input.index()].clone()).collect();
        values.push(match is_leaf(&node.op) {
            true => given(node).unwrap_or_else(|| case.leaf(node, id.index())),
            false => evaluate(&node.op, &operands, &node.ty, case.length()).unwrap(),
        });
    }
    values
}

struct Reference<'a> {
    graph: &'a Graph,
    case: &'a Case,
    slices: Vec<Range<usize>>,
    /// The value of each node.
    values: Vec<Value>,
}

impl Reference<'_> {
    /// What later slices contribute to the gradient of the keys (1) or values (2) of a slice: by its definition, the
    /// gradient for whole sequences where only queries behind the slice count.
    fn later(&self, operation: usize, operand: usize, slice: &Range<usize>) -> Value {
        let is_it =
            |node: &&Node| matches!(node.op, Op::AttentionGrad { of, .. } if of.operation == operation);
        let node = self.graph.nodes.values().find(is_it).expect("only attentions have a later state");
        let Op::AttentionGrad { of, .. } = node.op else { unreachable!("it was found so") };
        let [q, k, v, o, lse, dy] = [0, 1, 2, 3, 4, 5].map(|at| &self.values[node.inputs[at].index()]);
        let behind = slice.end..self.case.length();
        let [q, o, lse, dy] = [q, o, lse, dy].map(|value| value.slice(&behind));
        attend_grad(&of, [&q, k, v, &o, &lse, &dy])[operand].slice(slice)
    }

    /// A term for every slice; `operands` are the values of each operand for every slice.
    fn term(&self, term: &Term, operands: &[&Vec<Value>], ty: &Type) -> Result<Vec<Value>, String> {
        let slices = 0..self.slices.len();
        match &term.head {
            Head::Again | Head::Keep | Head::Fetch => Ok(operands[0].clone()),
            Head::Slice => Ok(slices.map(|slice| operands[0][slice].slice(&self.slices[slice])).collect()),
            Head::Earlier => Ok(slices.map(|slice| Value::concatenate(&operands[0][..slice])).collect()),
            Head::Later(operation, operand) => {
                Ok(self.slices.iter().map(|slice| self.later(*operation, *operand, slice)).collect())
            }
            Head::Sum => Ok(vec![Value::sum(operands[0]); self.slices.len()]),
            Head::Op(op) if is_leaf(op) => {
                let node = self.graph.nodes.iter().find(|(_, node)| node.op == *op);
                let (id, _) = node.expect("leaves are nodes of the graph");
                Ok(vec![self.values[id.index()].clone(); self.slices.len()])
            }
            Head::Op(op) => {
                let of_slice = |slice: usize| {
                    let operands: Vec<Value> =
                        operands.iter().map(|operand| operand[slice].clone()).collect();
                    evaluate(op, &operands, ty, self.case.length())
                };
                slices.map(of_slice).collect()
            }
        }
    }
}

/// Every term of an e-graph that is not the tensor that its class is, as a sentence; empty where all rules are sound.
pub(super) fn disagreements(graph: &Graph, saturated: &Saturated, case: &Case) -> Vec<String> {
    let egraph = &saturated.egraph;
    let values = values(graph, case, |_| None);
    let reference = Reference { graph, case, slices: case.slices(), values };
    let mut known: BTreeMap<Id, Vec<Value>> = BTreeMap::new();
    let classes: IdVec<_, Id> = terms(graph).classes;
    for (node, &class) in classes.iter() {
        let value = &reference.values[node.index()];
        known.entry(egraph.find(class)).or_insert_with(|| vec![value.clone(); case.lengths.len()]);
    }
    let mut ids: Vec<Id> = egraph.classes().map(|class| class.id).collect();
    ids.sort_unstable();
    let compute = |known: &BTreeMap<Id, Vec<Value>>, class: Id, term: &Term| {
        let operands: Option<Vec<&Vec<Value>>> =
            term.children.iter().map(|&child| known.get(&egraph.find(child))).collect();
        operands.map(|operands| reference.term(term, &operands, &egraph[class].data.ty))
    };
    loop {
        let before = known.len();
        for &class in &ids {
            if !known.contains_key(&class) {
                let mut found =
                    egraph[class].nodes.iter().filter_map(|term| compute(&known, class, term)?.ok());
                if let Some(value) = found.next() {
                    known.insert(class, value);
                }
            }
        }
        if known.len() == before {
            break;
        }
    }
    let mut faults = Vec::new();
    for &class in &ids {
        let name = &graph.nodes[egraph[class].data.node].name;
        for term in &egraph[class].nodes {
            let mut fault = |what: String| faults.push(format!("{name}: {term} {what}"));
            match compute(&known, class, term) {
                None => fault("has no value".to_owned()),
                Some(Err(why)) => fault(why),
                Some(Ok(values)) => {
                    let apart = values.iter().zip(&known[&class]).map(|(a, b)| a.distance(b));
                    let operands = term.children.iter().map(|&child| &known[&egraph.find(child)]);
                    let largest = operands.flatten().chain(&values).map(Value::largest).fold(0.0, f64::max);
                    let apart = apart.fold(0.0, f64::max) / largest.max(f64::MIN_POSITIVE);
                    if apart > BOUND {
                        fault(format!("is off by {apart:.1e}"));
                    }
                }
            }
        }
    }
    faults
}
