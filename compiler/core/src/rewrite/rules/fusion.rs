//! Fusion: operations that become one kernel, which reads what they share once and never stores what lies between.

use super::{Rule, alike, reaches};
use crate::graph::{Added, Expression, Formula, Op, Operand, Type};
use crate::rewrite::term::{EGraph, Head, Term, Tokens, add};
use egg::Id;
use pipec_program::{BinaryOp, Node};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "fuse-chain",
        from: "map f (map g (x..), y..)",
        to: "map f(g) (x.., y..)",
        condition: "the formula stays below 96 nodes",
        reason: "element-wise operations one after the other are one: what lies between is never stored",
        apply: chain,
    },
    Rule {
        name: "fuse-siblings",
        from: "map f (x..), map g (y..)",
        to: "parts of map (f, g) (x..)",
        condition: "both belong to the backward pass, the y are among the x, which do not depend on either result, and \
                    there are at most three results",
        reason: "the gradients of an operation share operands, which are read once",
        apply: siblings,
    },
    Rule {
        name: "fuse-residual",
        from: "norm_grad(x..) + y",
        to: "norm_grad(x.., y)",
        condition: "the norm adds nothing yet",
        reason: "the gradient that arrives past a norm is added as the norm stores its own",
        apply: residual,
    },
    Rule {
        name: "fuse-product",
        from: "y + product(dy, w)",
        to: "product_added(y, dy, w)",
        condition: "y is computed in the backward pass",
        reason: "a product adds to what stands where it stores",
        apply: product,
    },
    Rule {
        name: "fuse-attention-grad",
        from: "y + part(attention_grad(x..))",
        to: "part(attention_grad(x.., y))",
        condition: "y is computed in the backward pass and does not depend on the attention",
        reason: "the gradient of an attention adds to what stands where it stores",
        apply: attention_grad,
    },
];

/// The most nodes of a formula.
const MOST_NODES: usize = 96;

/// The formula of a term with one result.
fn single(term: &Term) -> Option<&Formula> {
    match &term.head {
        Head::Op(Op::Map(formula)) if formula.results.len() == 1 => Some(formula),
        Head::Op(_)
        | Head::Again
        | Head::Keep
        | Head::Slice
        | Head::Earlier
        | Head::Later(..)
        | Head::Sum => None,
    }
}

fn chain(egraph: &mut EGraph, class: Id, term: &Term) -> Vec<(Id, Id)> {
    let Some(formula) = single(term) else { return Vec::new() };
    let children: Vec<Id> = term.children.iter().map(|&child| egraph.find(child)).collect();
    let mut equal = Vec::new();
    for (position, &child) in children.iter().enumerate() {
        if children[..position].contains(&child) {
            continue;
        }
        for inner in egraph[child].nodes.clone() {
            let Some(of) = single(&inner) else { continue };
            if of.nodes.len() + formula.nodes.len() > MOST_NODES {
                continue;
            }
            let operands: Vec<Id> = inner.children.iter().map(|&child| egraph.find(child)).collect();
            let mut e = Expression::default();
            let node = e.formula(of, &operands)[0];
            let operand =
                |&other: &Id| if other == child { Operand::Node(node) } else { Operand::Value(other) };
            let operands: Vec<Operand<Id>> = children.iter().map(operand).collect();
            let results = e.compose(formula, &operands);
            let (formula, operands) = e.finish(&results);
            let fused = alike(egraph, class, Term::op(Op::Map(formula), operands));
            equal.push((class, fused));
        }
    }
    equal
}

fn siblings(egraph: &mut EGraph, class: Id, term: &Term) -> Vec<(Id, Id)> {
    let Head::Op(Op::Map(formula)) = &term.head else { return Vec::new() };
    let tokens = egraph[class].data.tokens;
    if !egraph[class].data.backward || formula.results.len() > 2 || tokens == Tokens::None {
        return Vec::new();
    }
    let operands: Vec<Id> = term.children.iter().map(|&child| egraph.find(child)).collect();
    // The classes of the results.
    let results: Vec<Id> = match formula.results.len() {
        1 => vec![class],
        count => {
            let part = |part: usize| egraph.lookup(Term::op(Op::Part(part), vec![class]));
            match (0..count).map(part).collect() {
                Some(parts) => parts,
                None => return Vec::new(),
            }
        }
    };
    let mut equal = Vec::new();
    let others: Vec<(Id, Term)> = egraph
        .classes()
        .filter(|other| other.data.backward && other.data.tokens == tokens)
        .flat_map(|other| other.nodes.iter().map(|term| (other.id, term.clone())))
        .filter(|(_, term)| single(term).is_some())
        .collect();
    for (other, with) in others {
        let Some(of) = single(&with) else { continue };
        let reads: Vec<Id> = with.children.iter().map(|&child| egraph.find(child)).collect();
        let shared = !reads.is_empty() && reads.iter().all(|child| operands.contains(child));
        let first = results.iter().all(|&result| egraph.find(result) != egraph.find(other));
        let alone = |id: Id| columns(egraph, id);
        if !shared || !first || alone(other) != alone(results[0]) {
            continue;
        }
        // Two results that are equal to their operands are copies, which need no kernel.
        let depends = results.iter().chain([&other]).any(|&result| reaches(egraph, &operands, result));
        if depends || reaches(egraph, &operands, class) {
            continue;
        }
        let mut e = Expression::default();
        let mut nodes = e.formula(formula, &operands);
        nodes.extend(e.formula(of, &reads));
        let (joint, inputs) = e.finish(&nodes);
        let mut fact = egraph[results[0]].data.clone();
        let types = results.iter().chain([&other]).map(|&id| egraph[id].data.ty.clone());
        fact.ty = Type::Tuple(types.collect());
        let tuple = add(egraph, Term::op(Op::Map(joint), inputs), Some(fact));
        for (part, &result) in results.iter().chain([&other]).enumerate() {
            let taken = add(egraph, Term::op(Op::Part(part), vec![tuple]), None);
            equal.push((result, taken));
        }
    }
    equal
}

/// Numbers per token.
fn columns(egraph: &EGraph, class: Id) -> Option<u64> {
    match egraph[class].data.ty {
        Type::PerToken { columns, .. } => Some(columns),
        Type::Statistic { .. } | Type::Whole { .. } | Type::Tuple(_) => None,
    }
}

/// The two operands of a term that adds them.
fn sum(egraph: &EGraph, term: &Term) -> Option<[Id; 2]> {
    let formula = single(term)?;
    let [a, b] = term.children[..] else { return None };
    let adds = formula.nodes[..] == [Node::Input(0), Node::Input(1), Node::Binary(BinaryOp::Add, 0, 1)];
    adds.then(|| [egraph.find(a), egraph.find(b)])
}

/// Whether an operand of a sum is the second.
fn is_before(egraph: &EGraph, term: &Term, other: Id) -> bool {
    sum(egraph, term).is_some_and(|[first, second]| first != second && other == second)
}

/// For a sum, every term of one operand with the other operand.
fn added(egraph: &EGraph, term: &Term) -> Vec<(Term, Id)> {
    let Some([a, b]) = sum(egraph, term) else { return Vec::new() };
    let of = |from: Id, other: Id| egraph[from].nodes.iter().map(move |term| (term.clone(), other));
    of(a, b).chain(of(b, a)).collect()
}

/// Whether a class is computed in the backward pass.
fn is_computed(egraph: &EGraph, class: Id) -> bool {
    egraph[class].data.backward
        && egraph[class].nodes.iter().all(|term| match &term.head {
            Head::Op(Op::OutputGradient(_)) | Head::Again | Head::Keep | Head::Later(..) => false,
            Head::Slice => is_computed(egraph, term.children[0]),
            Head::Op(_) | Head::Earlier | Head::Sum => true,
        })
}

fn residual(egraph: &mut EGraph, class: Id, term: &Term) -> Vec<(Id, Id)> {
    let mut equal = Vec::new();
    for (norm, other) in added(egraph, term) {
        let operands = match norm.head {
            Head::Op(Op::RmsNormGrad { .. }) => 4,
            Head::Op(Op::LayerNormGrad { .. }) => 5,
            Head::Op(_)
            | Head::Again
            | Head::Keep
            | Head::Slice
            | Head::Earlier
            | Head::Later(..)
            | Head::Sum => {
                continue;
            }
        };
        if norm.children.len() == operands {
            let children = norm.children.iter().copied().chain([other]).collect();
            let fused = alike(egraph, class, Term::new(norm.head.clone(), children));
            equal.push((class, fused));
        }
    }
    equal
}

fn product(egraph: &mut EGraph, class: Id, term: &Term) -> Vec<(Id, Id)> {
    let mut equal = Vec::new();
    let is_product = |term: &Term| term.head == Head::Op(Op::Product(Added::No));
    let both = sum(egraph, term).is_some_and(|operands| {
        operands.iter().all(|&operand| egraph[operand].nodes.iter().any(is_product))
    });
    for (product, other) in added(egraph, term) {
        // Of two products the later one is added.
        let earlier = both && egraph[other].nodes.iter().any(is_product) && is_before(egraph, term, other);
        if is_product(&product) && !earlier && is_computed(egraph, other) {
            let children = [other].into_iter().chain(product.children).collect();
            let fused = alike(egraph, class, Term::op(Op::Product(Added::Yes), children));
            equal.push((class, fused));
        }
    }
    equal
}

fn attention_grad(egraph: &mut EGraph, class: Id, term: &Term) -> Vec<(Id, Id)> {
    let mut equal = Vec::new();
    for (part, other) in added(egraph, term) {
        let Head::Op(Op::Part(result)) = part.head else { continue };
        let tuple = egraph.find(part.children[0]);
        for gradient in egraph[tuple].nodes.clone() {
            let Head::Op(Op::AttentionGrad { of, added }) = gradient.head else { continue };
            let is_free = added >> result & 1 == 0;
            if !is_free || !is_computed(egraph, other) || reaches(egraph, &[other], tuple) {
                continue;
            }
            // Operands that are added stand in the order of the results.
            let before = (added & ((1 << result) - 1)).count_ones() as usize;
            let first = gradient.children.len() - added.count_ones() as usize;
            let mut children = gradient.children.clone();
            children.insert(first + before, other);
            let op = Op::AttentionGrad { of, added: added | 1 << result };
            let fused = alike(egraph, tuple, Term::op(op, children));
            for part in 0..3 {
                let taken = add(egraph, Term::op(Op::Part(part), vec![fused]), None);
                if part == result {
                    equal.push((class, taken));
                } else if let Some(same) = egraph.lookup(Term::op(Op::Part(part), vec![tuple])) {
                    equal.push((same, taken));
                }
            }
        }
    }
    equal
}
