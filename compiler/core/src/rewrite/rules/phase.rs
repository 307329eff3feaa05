//! What the backward pass needs of the forward pass is kept, waits in host memory, or is computed again.

use super::{Rule, alike};
use crate::graph::{Op, Type};
use crate::rewrite::term::{EGraph, Head, Term, add};
use egg::Id;

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "keep",
        from: "again(x)",
        to: "keep(x)",
        condition: "x is a value that the forward pass computes or takes in",
        reason: "what is kept is available: it costs memory from the forward pass to the backward pass",
        apply: keep,
    },
    Rule {
        name: "offload",
        from: "again(x)",
        to: "fetch(x)",
        condition: "x is a value of every token that the forward pass computes or takes in",
        reason: "what went to the host comes back: it costs copies instead of memory. Statistics are too small to be worth it",
        apply: offload,
    },
    Rule {
        name: "recompute",
        from: "again(op(x..))",
        to: "op(again(x)..)",
        condition: "the operation has no effect besides its result",
        reason: "an operation gives the same from the same operands: recomputation, to any depth",
        apply: recompute,
    },
];

/// Whether a class is available in both passes as it is: a parameter, the tokens, or the state of earlier slices.
pub(in crate::rewrite) fn is_free(egraph: &EGraph, class: Id) -> bool {
    egraph[class].nodes.iter().any(|term| match &term.head {
        Head::Op(Op::Weight(_) | Op::Tokens | Op::Targets | Op::Places) | Head::Earlier => true,
        Head::Slice => is_free(egraph, term.children[0]),
        Head::Op(_) | Head::Again | Head::Keep | Head::Fetch | Head::Later(..) | Head::Sum => false,
    })
}

fn keep(egraph: &mut EGraph, class: Id, term: &Term) -> Vec<(Id, Id)> {
    let is_value = match egraph[class].data.ty {
        Type::PerToken { .. } | Type::Statistic { .. } => true,
        Type::Whole { .. } | Type::Tuple(_) => false,
    };
    if term.head != Head::Again || !is_value || is_free(egraph, term.children[0]) {
        return Vec::new();
    }
    vec![(class, add(egraph, Term::new(Head::Keep, term.children.clone()), None))]
}

fn offload(egraph: &mut EGraph, class: Id, term: &Term) -> Vec<(Id, Id)> {
    let is_value = match egraph[class].data.ty {
        Type::PerToken { .. } => true,
        Type::Statistic { .. } | Type::Whole { .. } | Type::Tuple(_) => false,
    };
    if term.head != Head::Again || !is_value || is_free(egraph, term.children[0]) {
        return Vec::new();
    }
    vec![(class, add(egraph, Term::new(Head::Fetch, term.children.clone()), None))]
}

fn recompute(egraph: &mut EGraph, class: Id, term: &Term) -> Vec<(Id, Id)> {
    if term.head != Head::Again {
        return Vec::new();
    }
    let mut equal = Vec::new();
    for of in egraph[term.children[0]].nodes.clone() {
        let Head::Op(op) = &of.head else { continue };
        // Of products of one operand those are computed again that are needed, one by one.
        let is_product = |term: &Term| term.head == Head::Op(Op::Linear);
        if matches!(op, Op::Part(_)) && egraph[of.children[0]].nodes.iter().any(is_product) {
            continue;
        }
        // The loss is counted once.
        let repeats = !matches!(op, Op::CrossEntropy { .. }) && !of.children.is_empty();
        if repeats {
            let again = |&child: &Id| add(egraph, Term::new(Head::Again, vec![child]), None);
            let children = of.children.iter().map(again).collect();
            let op = alike(egraph, class, Term::op(op.clone(), children));
            equal.push((class, op));
        }
    }
    equal
}
