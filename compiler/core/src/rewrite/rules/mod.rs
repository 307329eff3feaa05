//! The rules: a table of equalities that hold for every layer.
//!
//! A rule looks at one term of a class and says what the class, or another, is equal to. Rules never remove anything: what
//! is worth it is decided by the extraction.

mod fusion;
mod phase;
mod slicing;
#[cfg(test)]
mod tests;

use super::term::{EGraph, Facts, Term, add};
use egg::{Id, SearchMatches, Searcher, Subst, Symbol, Var};

pub(super) use phase::is_free;

/// An equality.
#[derive(Clone, Copy)]
pub struct Rule {
    /// The name.
    pub name: &'static str,
    /// What it looks for.
    pub from: &'static str,
    /// What that is equal to.
    pub to: &'static str,
    /// When it holds.
    pub condition: &'static str,
    /// Why it holds, and what it is good for.
    pub reason: &'static str,
    /// The pairs of classes that are equal because a class has a term.
    pub(super) apply: fn(&mut EGraph, Id, &Term) -> Vec<(Id, Id)>,
}

/// All rules.
pub fn rules() -> Vec<Rule> {
    [slicing::RULES, phase::RULES, fusion::RULES].concat()
}

/// The rules that only make kernels out of kernels: a layer can be computed without them.
pub fn fusion() -> &'static [Rule] {
    fusion::RULES
}

/// Rules in the form that egg takes.
pub(super) fn rewrites(rules: &[Rule]) -> Vec<egg::Rewrite<Term, Facts>> {
    let rewrite = |rule: &Rule| egg::Rewrite::new(rule.name, Everywhere, Apply(*rule)).ok();
    rules.iter().filter_map(rewrite).collect()
}

/// Finds every class once: rules look at its terms themselves, since attributes of operations are no patterns.
struct Everywhere;

impl Searcher<Term, Facts> for Everywhere {
    fn search_eclass_with_limit(&self, _: &EGraph, eclass: Id, _: usize) -> Option<SearchMatches<'_, Term>> {
        Some(SearchMatches { eclass, substs: vec![Subst::default()], ast: None })
    }

    fn vars(&self) -> Vec<Var> {
        Vec::new()
    }
}

struct Apply(Rule);

impl egg::Applier<Term, Facts> for Apply {
    fn apply_one(
        &self,
        egraph: &mut EGraph,
        class: Id,
        _: &Subst,
        _: Option<&egg::PatternAst<Term>>,
        name: Symbol,
    ) -> Vec<Id> {
        let mut changed = Vec::new();
        for term in egraph[class].nodes.clone() {
            for (a, b) in (self.0.apply)(egraph, class, &term) {
                if egraph.union_trusted(a, b, name) {
                    changed.push(a);
                }
            }
        }
        changed
    }
}

/// A term of the type of a class.
pub(super) fn alike(egraph: &mut EGraph, class: Id, term: Term) -> Id {
    let fact = egraph[class].data.clone();
    add(egraph, term, Some(fact))
}

/// Whether a class can be reached from others through operands.
fn reaches(egraph: &EGraph, from: &[Id], to: Id) -> bool {
    let to = egraph.find(to);
    let mut seen = std::collections::BTreeSet::new();
    let mut open: Vec<Id> = from.iter().map(|&id| egraph.find(id)).collect();
    while let Some(class) = open.pop() {
        if class == to {
            return true;
        }
        if seen.insert(class) {
            let children = egraph[class].nodes.iter().flat_map(|term| term.children.iter());
            open.extend(children.map(|&child| egraph.find(child)));
        }
    }
    false
}
