//! Slices: an operation on whole sequences, seen for one slice, is an operation on slices.

use super::{Rule, alike};
use crate::graph::{Attention, Op};
use crate::rewrite::term::{EGraph, Head, Term, Tokens, add};
use egg::Id;
use pipec_program::Mask;

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "slice-tokens",
        from: "slice(op(x..))",
        to: "op(slice(x)..)",
        condition: "the result of a token depends on the operands of that token alone",
        reason: "products, norms, softmax, element-wise operations and their gradients work token by token; random numbers \
                 count by the place of an element in whole sequences, so that a slice draws what the whole would",
        apply: |egraph, class, term| operations(egraph, class, term, is_by_token),
    },
    Rule {
        name: "slice-positions",
        from: "slice(op(x, places))",
        to: "op(slice(x), slice(places))",
        condition: "the operation is a rotation or a table of positions",
        reason: "the first position of the slice is all that it needs to know",
        apply: |egraph, class, term| operations(egraph, class, term, is_by_place),
    },
    Rule {
        name: "slice-attention",
        from: "slice(attention(q, k, v))",
        to: "attention(slice(q), slice(k), slice(v), earlier(slice(k)), earlier(slice(v)))",
        condition: "the mask is causal or a window",
        reason: "a query sees no key after it: the keys and values of earlier slices are the state that crosses slices",
        apply: attention,
    },
    Rule {
        name: "slice-attention-grad",
        from: "slice(attention_grad(q, k, v, o, lse, do))",
        to: "attention_grad(slice(q).., earlier(slice(k)).., slice(o).., later(k), later(v))",
        condition: "the mask is causal or a window",
        reason: "the gradient of a key sums over the queries that see it: those of the slice and of later ones",
        apply: attention_grad,
    },
    Rule {
        name: "slice-again",
        from: "slice(again(x))",
        to: "again(slice(x))",
        condition: "",
        reason: "a slice of what is available is available",
        apply: again,
    },
    Rule {
        name: "slice-sum",
        from: "op(dy, x..)",
        to: "sum(op(slice(dy), slice(x)..))",
        condition: "the operation sums over tokens",
        reason: "the gradient of a parameter is the sum of the contributions of the slices",
        apply: sum,
    },
];

/// A class for the slice; parameters are the same for all.
fn slice(egraph: &mut EGraph, class: Id) -> Id {
    match egraph[class].data.tokens {
        Tokens::None | Tokens::Slice => class,
        Tokens::All => add(egraph, Term::new(Head::Slice, vec![class]), None),
    }
}

/// The operations of what a term takes a slice of.
fn operations_of(egraph: &EGraph, term: &Term) -> Vec<(Op, Vec<Id>)> {
    if term.head != Head::Slice {
        return Vec::new();
    }
    let of = egraph[term.children[0]].nodes.iter();
    of.filter_map(|term| match &term.head {
        Head::Op(op) => Some((op.clone(), term.children.clone())),
        Head::Again
        | Head::Keep
        | Head::Fetch
        | Head::Slice
        | Head::Earlier
        | Head::Later(..)
        | Head::Sum => None,
    })
    .collect()
}

/// The slice of an operation as the operation on slices.
fn operations(egraph: &mut EGraph, class: Id, term: &Term, takes: fn(&Op) -> bool) -> Vec<(Id, Id)> {
    let mut equal = Vec::new();
    for (op, children) in operations_of(egraph, term) {
        if takes(&op) {
            let children = children.into_iter().map(|child| slice(egraph, child)).collect();
            let sliced = alike(egraph, class, Term::op(op, children));
            equal.push((class, sliced));
        }
    }
    equal
}

fn is_by_token(op: &Op) -> bool {
    match op {
        Op::Part(_)
        | Op::Embedding
        | Op::Linear
        | Op::RmsNorm { .. }
        | Op::LayerNorm { .. }
        | Op::Softmax { .. }
        | Op::CrossEntropy { .. }
        | Op::Product(_)
        | Op::RmsNormGrad { .. }
        | Op::LayerNormGrad { .. }
        | Op::SoftmaxGrad { .. }
        | Op::Map(_)
        | Op::CrossEntropyGrad { .. } => true,
        Op::Input(_)
        | Op::Weight(_)
        | Op::Tokens
        | Op::Targets
        | Op::Places
        | Op::OutputGradient(_)
        | Op::Positions { .. }
        | Op::Rope(_)
        | Op::Attention(_)
        | Op::WeightProduct
        | Op::SumRows
        | Op::EmbeddingGrad
        | Op::PositionsGrad { .. }
        | Op::RmsNormGainGrad { .. }
        | Op::LayerNormParamGrad { .. }
        | Op::AttentionGrad { .. } => false,
    }
}

fn is_by_place(op: &Op) -> bool {
    matches!(op, Op::Rope(_) | Op::Positions { .. })
}

/// Whether no query sees a later key.
fn looks_back(attention: &Attention) -> bool {
    match attention.mask {
        Mask::Causal | Mask::Window { .. } => true,
        Mask::Full => false,
    }
}

fn attention(egraph: &mut EGraph, class: Id, term: &Term) -> Vec<(Id, Id)> {
    let mut equal = Vec::new();
    for (op, children) in operations_of(egraph, term) {
        let Op::Attention(of) = &op else { continue };
        if looks_back(of) && children.len() == 3 {
            let mut children: Vec<Id> = children.into_iter().map(|child| slice(egraph, child)).collect();
            for state in [children[1], children[2]] {
                children.push(add(egraph, Term::new(Head::Earlier, vec![state]), None));
            }
            let sliced = alike(egraph, class, Term::op(op, children));
            equal.push((class, sliced));
        }
    }
    equal
}

fn attention_grad(egraph: &mut EGraph, class: Id, term: &Term) -> Vec<(Id, Id)> {
    let mut equal = Vec::new();
    for (op, children) in operations_of(egraph, term) {
        let Op::AttentionGrad { of, added: 0 } = op else { continue };
        if !looks_back(&of) || children.len() != 6 {
            continue;
        }
        // The keys and values as the forward pass has them.
        let forward = |egraph: &EGraph, child: Id| {
            egraph[child].nodes.iter().find(|term| term.head == Head::Again).map(|term| term.children[0])
        };
        let (Some(k), Some(v)) = (forward(egraph, children[1]), forward(egraph, children[2])) else {
            continue;
        };
        let states = [k, v].map(|state| {
            let own = slice(egraph, state);
            let earlier = add(egraph, Term::new(Head::Earlier, vec![own]), None);
            add(egraph, Term::new(Head::Again, vec![earlier]), None)
        });
        let own: Vec<Id> = children.into_iter().map(|child| slice(egraph, child)).collect();
        let mut children = own[..3].to_vec();
        children.extend(states);
        children.extend(&own[3..]);
        for (operand, state) in (1..).zip(states) {
            children.push(add(egraph, Term::new(Head::Later(of.operation, operand), vec![state]), None));
        }
        let sliced = alike(egraph, class, Term::op(Op::AttentionGrad { of, added: 0b110 }, children));
        equal.push((class, sliced));
    }
    equal
}

fn again(egraph: &mut EGraph, class: Id, term: &Term) -> Vec<(Id, Id)> {
    if term.head != Head::Slice {
        return Vec::new();
    }
    let of = egraph[term.children[0]].nodes.iter().find(|term| term.head == Head::Again);
    let Some(of) = of.map(|term| term.children[0]) else { return Vec::new() };
    let sliced = slice(egraph, of);
    vec![(class, add(egraph, Term::new(Head::Again, vec![sliced]), None))]
}

fn sum(egraph: &mut EGraph, class: Id, term: &Term) -> Vec<(Id, Id)> {
    let Head::Op(op) = &term.head else { return Vec::new() };
    if !op.sums_tokens() || egraph[class].data.tokens != Tokens::All {
        return Vec::new();
    }
    let children = term.children.iter().map(|&child| slice(egraph, child)).collect();
    let mut fact = egraph[class].data.clone();
    fact.tokens = Tokens::Slice;
    let contribution = add(egraph, Term::op(op.clone(), children), Some(fact));
    let sum = add(egraph, Term::new(Head::Sum, vec![contribution]), None);
    // The whole is of all tokens, its sum over slices of none: the two are the same tensor.
    vec![(class, sum)]
}
