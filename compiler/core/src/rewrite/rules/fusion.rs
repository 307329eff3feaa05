//! Fusion: operations that become one kernel, which reads what they share once and never stores what lies between.

use super::{Rule, alike, reaches};
use crate::graph::{Added, Expression, Formula, Op, Operand, Type};
use crate::rewrite::term::{EGraph, Head, Term, Tokens, add, rank};
use egg::Id;
use pipec_program::{BinaryOp, Node};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "fuse-chain",
        from: "map f (map g (x..), y..)",
        to: "map f(g) (x.., y..)",
        condition: "something else than an element-wise operation reads the result, and it has fewer than 24 formulas",
        reason: "element-wise operations one after the other are one: what lies between is never stored",
        apply: chain,
    },
    Rule {
        name: "fuse-siblings",
        from: "map f (x..), map g (y..)",
        to: "parts of map (f, g) (x..)",
        condition: "both belong to the backward pass, something else than an element-wise operation reads both, the y are \
                    among the x, which do not depend on either result, and there are at most three results",
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
        name: "fuse-residual-norm",
        from: "x + y, norm(x + y, w..)",
        to: "parts of norm(x, w.., y)",
        condition: "x and y are stored, or no element-wise operation computes them",
        reason: "a norm that adds up what it reads gives the sum beside its own results, and no kernel reads it again for them",
        apply: residual_norm,
    },
    Rule {
        name: "group-products",
        from: "linear(x, w), linear(x, v)",
        to: "parts of linear(x, w, v)",
        condition: "they belong to the forward pass, all have a bias or none has; of all products of x at once: queries, keys and \
                    values, or gate and up",
        reason: "products of one operand read it once, in one kernel",
        apply: group,
    },
    Rule {
        name: "fuse-product",
        from: "y + product(dy, w)",
        to: "product_added(y, dy, w)",
        condition: "y is computed in the backward pass",
        reason: "a product adds to what stands where it stores",
        apply: product,
    },
];

/// The most formulas of a class that are put together.
const MOST_FORMULAS: usize = 24;

/// Whether something else than an element-wise operation reads a class, so that it has to be stored somewhere.
fn is_stored(egraph: &EGraph, class: Id) -> bool {
    let mut readers = egraph[class].parents().map(|parent| egraph.id_to_node(parent));
    egraph[class].data.given
        || readers.any(|reader| match &reader.head {
            Head::Op(Op::Map(_)) | Head::Again | Head::Keep | Head::Fetch | Head::Slice => false,
            Head::Op(_) | Head::Earlier | Head::Later(..) | Head::Sum => true,
        })
}

/// The formulas of a class with one result, and their operands, in canonical form and order.
fn formulas(egraph: &EGraph, class: Id) -> Vec<(Formula, Vec<Id>)> {
    let of = |term: &Term| {
        let operands = term.children.iter().map(|&child| egraph.find(child)).collect();
        single(term).map(|formula| (formula.clone(), operands))
    };
    egraph[class].nodes.iter().filter_map(of).collect()
}

/// A formula with all operands put in that nothing stores.
fn filled(egraph: &EGraph, formula: &Formula, operands: &[Id]) -> (Formula, Vec<Id>) {
    let (mut formula, mut operands) = (formula.clone(), operands.to_vec());
    loop {
        let inner = operands.iter().enumerate().find_map(|(position, &operand)| {
            let least = formulas(egraph, operand).into_iter().min_by_key(|(of, _)| of.nodes.len())?;
            (!is_stored(egraph, operand)).then_some((position, least))
        });
        let Some((position, inner)) = inner else { return (formula, operands) };
        (formula, operands) = put(&formula, &operands, operands[position], &inner);
    }
}

/// A formula with another put in for an operand.
fn put(formula: &Formula, operands: &[Id], into: Id, inner: &(Formula, Vec<Id>)) -> (Formula, Vec<Id>) {
    let mut e = Expression::default();
    let node = e.formula(&inner.0, &inner.1)[0];
    let operand = |&other: &Id| if other == into { Operand::Node(node) } else { Operand::Value(other) };
    let operands: Vec<Operand<Id>> = operands.iter().map(operand).collect();
    let results = e.compose(formula, &operands);
    e.finish(&results)
}

/// The formula of a term with one result.
fn single(term: &Term) -> Option<&Formula> {
    match &term.head {
        Head::Op(Op::Map(formula)) if formula.results.len() == 1 => Some(formula),
        Head::Op(_)
        | Head::Again
        | Head::Keep
        | Head::Fetch
        | Head::Slice
        | Head::Earlier
        | Head::Later(..)
        | Head::Sum => None,
    }
}

fn chain(egraph: &mut EGraph, class: Id, term: &Term) -> Vec<(Id, Id)> {
    let Some(formula) = single(term) else { return Vec::new() };
    if !is_stored(egraph, class) {
        return Vec::new();
    }
    let known = formulas(egraph, class).len();
    let operands: Vec<Id> = term.children.iter().map(|&child| egraph.find(child)).collect();
    // All that nothing stores at once, and one after the other as far as there is room.
    let mut fused = vec![filled(egraph, formula, &operands)];
    for (position, &operand) in operands.iter().enumerate() {
        if !operands[..position].contains(&operand) {
            let inner = formulas(egraph, operand);
            fused.extend(inner.iter().map(|inner| put(formula, &operands, operand, inner)));
        }
    }
    fused.truncate((1 + MOST_FORMULAS).saturating_sub(known).max(1));
    let equal = |(formula, operands): (Formula, Vec<Id>)| {
        (class, alike(egraph, class, Term::op(Op::Map(formula), operands)))
    };
    fused.into_iter().map(equal).collect()
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
    if results.iter().any(|&result| !is_stored(egraph, result)) {
        return Vec::new();
    }
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
        let shared = is_stored(egraph, other)
            && !reads.is_empty()
            && reads.iter().all(|child| operands.contains(child));
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
            Head::Op(Op::OutputGradient(_)) | Head::Again | Head::Keep | Head::Fetch | Head::Later(..) => {
                false
            }
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
            | Head::Fetch
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

fn residual_norm(egraph: &mut EGraph, class: Id, term: &Term) -> Vec<(Id, Id)> {
    let operands = match &term.head {
        Head::Op(Op::RmsNorm { .. }) => 2,
        Head::Op(Op::LayerNorm { .. }) => 3,
        Head::Op(_)
        | Head::Again
        | Head::Keep
        | Head::Fetch
        | Head::Slice
        | Head::Earlier
        | Head::Later(..)
        | Head::Sum => return Vec::new(),
    };
    // Of whole sequences that are cut there is nothing to compute.
    let is_cut = egraph.lookup(Term::new(Head::Slice, vec![class])).is_some();
    let Type::Tuple(results) = egraph[class].data.ty.clone() else { return Vec::new() };
    if term.children.len() != operands || is_cut {
        return Vec::new();
    }
    let total = egraph.find(term.children[0]);
    let sums: Vec<[Id; 2]> = egraph[total].nodes.iter().filter_map(|term| sum(egraph, term)).collect();
    // What nothing stores is better put into the sum than stored for the norm.
    let is_operand = |egraph: &EGraph, class: Id| {
        egraph[class].data.ty == egraph[total].data.ty
            && (is_stored(egraph, class) || formulas(egraph, class).is_empty())
    };
    let mut equal = Vec::new();
    for [x, y] in sums {
        if !is_operand(egraph, x) || !is_operand(egraph, y) {
            continue;
        }
        let children = [x].into_iter().chain(term.children[1..].iter().copied()).chain([y]).collect();
        let mut fact = egraph[class].data.clone();
        fact.ty = Type::Tuple(results.iter().cloned().chain([egraph[total].data.ty.clone()]).collect());
        let tuple = add(egraph, Term::new(term.head.clone(), children), Some(fact));
        for part in 0..results.len() {
            // What nothing asks for is no class.
            if let Some(known) = egraph.lookup(Term::op(Op::Part(part), vec![class])) {
                equal.push((known, alike(egraph, known, Term::op(Op::Part(part), vec![tuple]))));
            }
        }
        equal.push((total, alike(egraph, total, Term::op(Op::Part(results.len()), vec![tuple]))));
    }
    equal
}

fn group(egraph: &mut EGraph, class: Id, term: &Term) -> Vec<(Id, Id)> {
    let is_single = |class: Id| matches!(egraph[class].data.ty, Type::PerToken { .. });
    if term.head != Head::Op(Op::Linear) || !is_single(class) || egraph[class].data.backward {
        return Vec::new();
    }
    // Of whole sequences that are cut there is nothing to compute.
    if egraph.lookup(Term::new(Head::Slice, vec![class])).is_some() {
        return Vec::new();
    }
    let x = egraph.find(term.children[0]);
    let mut members: Vec<(usize, Id, Term)> = Vec::new();
    let readers: Vec<Id> = egraph[x].parents().collect();
    for other in readers.into_iter().map(|reader| egraph.find(reader)) {
        let fact = &egraph[other].data;
        let alike = is_single(other) && !fact.backward;
        let product = |of: &&Term| {
            of.head == Head::Op(Op::Linear)
                && of.children.len() == term.children.len()
                && egraph.find(of.children[0]) == x
        };
        if let Some(product) = egraph[other].nodes.iter().find(product).filter(|_| alike)
            && members.iter().all(|(_, member, _)| *member != other)
        {
            members.push((rank(fact), other, product.clone()));
        }
    }
    members.sort_by_key(|&(rank, id, _)| (rank, id));
    // Once for all of them.
    if members.len() < 2 || members[0].1 != egraph.find(class) {
        return Vec::new();
    }
    let operands = |position: usize| members.iter().map(move |(.., product)| product.children[position]);
    let children: Vec<Id> = [x].into_iter().chain((1..term.children.len()).flat_map(operands)).collect();
    let mut fact = egraph[class].data.clone();
    fact.ty = Type::Tuple(members.iter().map(|&(_, id, _)| egraph[id].data.ty.clone()).collect());
    fact.given = false;
    let tuple = add(egraph, Term::op(Op::Linear, children), Some(fact));
    let part = |(part, &(_, id, _)): (usize, &(usize, Id, Term))| {
        (id, alike(egraph, id, Term::op(Op::Part(part), vec![tuple])))
    };
    members.iter().enumerate().map(part).collect()
}

fn product(egraph: &mut EGraph, class: Id, term: &Term) -> Vec<(Id, Id)> {
    let mut equal = Vec::new();
    let is_product = |term: &Term| term.head == Head::Op(Op::Product(Added::No));
    let both = sum(egraph, term)
        .is_some_and(|operands| operands.iter().all(|&operand| egraph[operand].nodes.iter().any(is_product)));
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
