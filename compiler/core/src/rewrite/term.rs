//! Terms: the language of the e-graph, and what is known of every class.
//!
//! The phase is part of a term: `again(x)` is x, available in the backward pass. Then that it is kept, and that it is
//! computed again from operands that are available in the backward pass, are true equalities, and no class ever holds both
//! a value of the forward pass and one of the backward pass. Slices are part of a term too: `slice(x)` is x for the slice at
//! hand, whichever it is.

use crate::graph::{Graph, NodeId, Op, Type};
use egg::{Id, Language};
use pipec_program::id::{Id as _, IdVec};
use std::fmt;

/// An operation on terms.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Head {
    /// An operation of the graph.
    Op(Op),
    /// The operand, available in the backward pass.
    Again,
    /// The operand, kept for the backward pass.
    Keep,
    /// The operand, sent to the host after the forward pass and fetched back for the backward pass.
    Fetch,
    /// The operand for the slice.
    Slice,
    /// The keys or values of earlier slices; the operand is those of the slice.
    Earlier,
    /// What later slices contribute to the gradient of a state, of the attention of an operation and the number of its
    /// operand; the operand is the state.
    Later(usize, usize),
    /// The sum of a contribution over all slices.
    Sum,
}

/// A term: an operation on classes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Term {
    pub(super) head: Head,
    pub(super) children: Vec<Id>,
}

impl Term {
    pub(super) fn new(head: Head, children: Vec<Id>) -> Self {
        Self { head, children }
    }

    pub(super) fn op(op: Op, children: Vec<Id>) -> Self {
        Self::new(Head::Op(op), children)
    }
}

impl Language for Term {
    type Discriminant = Head;

    fn discriminant(&self) -> Head {
        self.head.clone()
    }

    fn matches(&self, other: &Self) -> bool {
        self.head == other.head && self.children.len() == other.children.len()
    }

    fn children(&self) -> &[Id] {
        &self.children
    }

    fn children_mut(&mut self) -> &mut [Id] {
        &mut self.children
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.head {
            Head::Op(Op::Input(position)) => write!(f, "input{position}"),
            Head::Op(Op::OutputGradient(position)) => write!(f, "output_gradient{position}"),
            Head::Op(Op::Weight(slot)) => write!(f, "{slot}"),
            Head::Op(Op::Part(part)) => write!(f, "part{part}"),
            Head::Op(Op::Map(formula)) => write!(f, "map {formula}"),
            Head::Op(op) => f.write_str(op.name()),
            Head::Again => f.write_str("again"),
            Head::Keep => f.write_str("keep"),
            Head::Fetch => f.write_str("fetch"),
            Head::Slice => f.write_str("slice"),
            Head::Earlier => f.write_str("earlier"),
            Head::Later(..) => f.write_str("later"),
            Head::Sum => f.write_str("sum"),
        }
    }
}

/// Which tokens a value is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Tokens {
    /// Of none: a parameter.
    None,
    /// Of a slice.
    Slice,
    /// Of whole sequences.
    All,
}

/// What is known of a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fact {
    /// The type.
    pub(super) ty: Type,
    /// The tokens.
    pub(super) tokens: Tokens,
    /// Whether it belongs to the backward pass.
    pub(super) backward: bool,
    /// The first node of the graph that it stands for.
    pub(super) node: NodeId,
    /// Whether the layer has to give it.
    pub(super) given: bool,
}

/// The analysis of terms: types, phases and tokens follow from operands; a rule that joins classes of different types is
/// unsound.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// The facts of the term that is added next, where they do not follow from its operands.
    pub(super) next: Option<Fact>,
}

pub(super) type EGraph = egg::EGraph<Term, Facts>;

impl egg::Analysis<Term> for Facts {
    type Data = Fact;

    fn make(egraph: &mut EGraph, term: &Term, id: Id) -> Fact {
        let child = |index: usize| egraph[term.children[index]].data.clone();
        match &term.head {
            Head::Again | Head::Keep | Head::Fetch => Fact { backward: true, given: false, ..child(0) },
            Head::Slice => Fact { tokens: Tokens::Slice, ..child(0) },
            Head::Earlier => Fact { given: false, ..child(0) },
            Head::Later(..) => Fact { backward: true, given: false, ..child(0) },
            Head::Sum => Fact { tokens: Tokens::All, ..child(0) },
            Head::Op(op) => {
                let children = term.children.iter().map(|&child| &egraph[child].data);
                let backward = children.clone().any(|fact| fact.backward);
                let tokens = children.map(|fact| fact.tokens).max().unwrap_or(Tokens::None);
                match (op, egraph.analysis.next.clone()) {
                    (_, Some(fact)) => {
                        let (tokens, backward) = (tokens.max(fact.tokens), backward || fact.backward);
                        Fact { tokens, backward, ..fact }
                    }
                    (Op::Part(part), None) => {
                        let tuple = child(0);
                        let Type::Tuple(types) = tuple.ty else { unreachable!("only tuples have parts") };
                        Fact { ty: types[*part].clone(), given: false, ..tuple }
                    }
                    // Told when the term was added.
                    (_, None) => egraph[id].data.clone(),
                }
            }
        }
    }

    fn merge(&mut self, a: &mut Fact, b: Fact) -> egg::DidMerge {
        assert!(
            a.ty == b.ty && a.backward == b.backward && a.tokens == b.tokens,
            "an unsound rule joined {a:?} and {b:?}"
        );
        let before = (a.node, a.given);
        a.node = a.node.min(b.node);
        a.given |= b.given;
        let after = (a.node, a.given);
        egg::DidMerge(before != after, (b.node, b.given) != after)
    }
}

/// A graph as an e-graph.
pub(super) struct Terms {
    pub(super) egraph: EGraph,
    /// The class of each node.
    pub(super) classes: IdVec<NodeId, Id>,
}

/// The terms of a graph; nodes of the backward pass read those of the forward pass again.
pub(super) fn terms(graph: &Graph) -> Terms {
    let mut egraph = EGraph::default();
    let mut classes: IdVec<NodeId, Id> = IdVec::new();
    for (id, node) in graph.nodes.iter() {
        let backward = !graph.is_forward(id);
        let children = node.inputs.iter().map(|&input| {
            let class = classes[input];
            if backward && graph.is_forward(input) {
                return add(&mut egraph, Term::new(Head::Again, vec![class]), None);
            }
            class
        });
        let children = children.collect();
        let of_tokens =
            matches!(node.op, Op::Input(_) | Op::Tokens | Op::Targets | Op::Places | Op::OutputGradient(_));
        let tokens = if of_tokens { Tokens::All } else { Tokens::None };
        let given = graph.outputs.contains(&id) || graph.input_gradients.contains(&id);
        let fact = Fact { ty: node.ty.clone(), tokens, backward, node: id, given };
        classes.push(add(&mut egraph, Term::op(node.op.clone(), children), Some(fact)));
    }
    egraph.rebuild();
    Terms { egraph, classes }
}

/// Adds a term, with the facts that do not follow from its operands.
pub(super) fn add(egraph: &mut EGraph, term: Term, fact: Option<Fact>) -> Id {
    egraph.analysis.next = fact;
    let id = egraph.add(term);
    egraph.analysis.next = None;
    id
}

/// The index of a node, for order.
pub(super) fn rank(fact: &Fact) -> usize {
    fact.node.index()
}
