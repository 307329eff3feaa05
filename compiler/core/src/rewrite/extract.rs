//! Extraction: from an e-graph the exact Pareto front of ways to compute its roots.
//!
//! A way picks one term for every class that it needs, and pays each class once however many terms read it: the price of a
//! shared graph, not of a tree. Classes are decided one after the other, each after all that may need it. What has been
//! decided matters to the rest only through the set of classes that are still needed, so that of all partial ways with the
//! same such set those suffice that no other is at most in every price: time, bytes kept, and bytes through the host. Nothing is lost, and since most classes are
//! needed whatever is chosen, the sets are few.

use super::price::Price;
use super::term::{EGraph, Head, Term};
use crate::graph::Op;
use egg::Id;
use std::collections::{BTreeMap, BTreeSet};

/// A term that may be picked, with its price.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    pub(super) term: Term,
    pub(super) price: Price,
}

/// A way: the picked term of every class that is needed.
#[derive(Clone, Debug)]
pub(super) struct Way {
    pub(super) price: Price,
    pub(super) picks: BTreeMap<Id, Term>,
}

/// What came of an extraction.
#[derive(Clone, Debug)]
pub(super) struct Front {
    /// The ways that no other is at most in every price, the fastest first.
    pub(super) ways: Vec<Way>,
    /// The classes that are needed and that no term computes.
    pub(super) missing: BTreeSet<Id>,
}

/// The classes that are still needed, by their place in the order.
type Needed = Box<[u64]>;

fn has(needed: &Needed, place: usize) -> bool {
    needed[place / 64] >> (place % 64) & 1 == 1
}

fn insert(needed: &mut Needed, place: usize) {
    needed[place / 64] |= 1 << (place % 64);
}

fn remove(needed: &mut Needed, place: usize) {
    needed[place / 64] &= !(1 << (place % 64));
}

/// A partial way.
#[derive(Clone, Copy, Debug)]
struct Partial {
    price: Price,
    /// The last decision, counted over all.
    last: Option<usize>,
}

/// A decision, and the one before it.
#[derive(Clone, Copy, Debug)]
struct Decision {
    before: Option<usize>,
    place: usize,
    option: usize,
}

/// The front of a set of roots, where `options` are the terms of a class that may be picked.
pub(super) fn front(egraph: &EGraph, roots: &[Id], options: impl Fn(Id) -> Vec<Choice>) -> Front {
    let roots: Vec<Id> = roots.iter().map(|&root| egraph.find(root)).collect();
    let table = Table::new(egraph, &roots, options);
    if !table.missing.is_empty() {
        return Front { ways: Vec::new(), missing: table.missing };
    }
    let count = table.order.len();
    let mut start: Needed = vec![0; count.div_ceil(64).max(1)].into();
    for &place in &table.definite {
        insert(&mut start, place);
    }
    let mut decisions: Vec<Decision> = Vec::new();
    let mut states: BTreeMap<Needed, Vec<Partial>> =
        BTreeMap::from([(start, vec![Partial { price: Price::default(), last: None }])]);
    for place in 0..count {
        let mut next: BTreeMap<Needed, Vec<Partial>> = BTreeMap::new();
        for (needed, partials) in states {
            if !has(&needed, place) {
                merge(next.entry(needed).or_default(), partials);
                continue;
            }
            for (option, (children, price)) in table.options[place].iter().enumerate() {
                let mut then = needed.clone();
                remove(&mut then, place);
                for &child in children {
                    insert(&mut then, child);
                }
                let decide = |partial: &Partial| {
                    decisions.push(Decision { before: partial.last, place, option });
                    Partial { price: partial.price + *price, last: Some(decisions.len() - 1) }
                };
                let partials = partials.iter().map(decide).collect();
                merge(next.entry(then).or_default(), partials);
            }
        }
        states = next;
    }
    let mut ends: Vec<Partial> = Vec::new();
    for partials in states.into_values() {
        merge(&mut ends, partials);
    }
    let way = |end: &Partial| {
        let mut picks = BTreeMap::new();
        let mut last = end.last;
        while let Some(decision) = last.map(|last| decisions[last]) {
            picks.insert(table.order[decision.place], table.terms[decision.place][decision.option].clone());
            last = decision.before;
        }
        // What was there for nothing may be needed by nothing.
        let mut needed: BTreeSet<Id> = roots.iter().copied().collect();
        for class in &table.order {
            if let Some(term) = needed.contains(class).then(|| picks.get(class)).flatten() {
                needed.extend(term.children.iter().map(|&child| egraph.find(child)));
            }
        }
        picks.retain(|class, _| needed.contains(class));
        Way { price: end.price, picks }
    };
    Front { ways: ends.iter().map(way).collect(), missing: BTreeSet::new() }
}

/// Merges two fronts, each sorted by time; of equal prices the first stays.
fn merge(front: &mut Vec<Partial>, with: Vec<Partial>) {
    front.extend(with);
    front.sort_by_key(|partial| partial.price);
    // Of what is no slower: the fewest bytes through the host by the bytes kept, both falling and rising against each other.
    let mut stairs: BTreeMap<u64, u64> = BTreeMap::new();
    front.retain(|partial| {
        let Price { kept, offloaded, .. } = partial.price;
        if stairs.range(..=kept).next_back().is_some_and(|(_, &fewest)| fewest <= offloaded) {
            return false;
        }
        let worse: Vec<u64> = stairs
            .range(kept..)
            .take_while(|&(_, &other)| other >= offloaded)
            .map(|(&kept, _)| kept)
            .collect();
        worse.iter().for_each(|kept| {
            stairs.remove(kept);
        });
        stairs.insert(kept, offloaded);
        true
    });
}

/// The classes that may be needed, in an order in which each stands after all that may need it.
struct Table {
    order: Vec<Id>,
    terms: Vec<Vec<Term>>,
    /// The places of the operands of each term, and its price.
    options: Vec<Vec<(Vec<usize>, Price)>>,
    /// The places of classes that every way needs, or has for nothing.
    definite: BTreeSet<usize>,
    missing: BTreeSet<Id>,
}

impl Table {
    fn new(egraph: &EGraph, roots: &[Id], options: impl Fn(Id) -> Vec<Choice>) -> Self {
        let mut found: BTreeMap<Id, Vec<Choice>> = BTreeMap::new();
        let mut open = roots.to_vec();
        while let Some(class) = open.pop() {
            if found.contains_key(&class) {
                continue;
            }
            let options = options(class);
            open.extend(children(egraph, &options));
            found.insert(class, options);
        }
        // Terms whose operands no way computes are no options.
        let mut possible: BTreeSet<Id> = BTreeSet::new();
        loop {
            let before = possible.len();
            for (&class, options) in &found {
                let works = |option: &Choice| {
                    option.term.children.iter().all(|&child| possible.contains(&egraph.find(child)))
                };
                if options.iter().any(works) {
                    possible.insert(class);
                }
            }
            if possible.len() == before {
                break;
            }
        }
        let missing = missing(egraph, roots, &found, &possible);
        let mut table = Self {
            order: Vec::new(),
            terms: Vec::new(),
            options: Vec::new(),
            definite: BTreeSet::new(),
            missing,
        };
        if !table.missing.is_empty() {
            return table;
        }
        for options in found.values_mut() {
            options.retain(|option| {
                option.term.children.iter().all(|&child| possible.contains(&egraph.find(child)))
            });
        }
        let order = order(egraph, roots, &mut found);
        let places: BTreeMap<Id, usize> =
            order.iter().enumerate().map(|(place, &class)| (class, place)).collect();
        for class in &order {
            let options = &found[class];
            let of = |option: &Choice| {
                let children = option.term.children.iter().map(|&child| places[&egraph.find(child)]);
                (children.collect::<Vec<usize>>(), option.price)
            };
            table.options.push(options.iter().map(of).collect());
            table.terms.push(options.iter().map(|option| option.term.clone()).collect());
        }
        table.order = order;
        table.definite = roots.iter().map(|root| places[root]).collect();
        table.close();
        // What is dropped may leave operands that every way needs.
        while table.prefer_groups() || table.prefer_larger() {
            table.close();
        }
        table.take_what_is_there();
        table
    }

    /// Finds the classes that every way needs: a class needs itself and what all its terms need, whichever is picked.
    fn close(&mut self) {
        let mut needs: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); self.order.len()];
        for place in (0..self.order.len()).rev() {
            let of_option = |(children, _): &(Vec<usize>, Price)| -> BTreeSet<usize> {
                children.iter().flat_map(|&child| needs[child].iter().copied()).collect()
            };
            let mut options = self.options[place].iter().map(of_option);
            let first = options.next().unwrap_or_default();
            let mut all = options.fold(first, |all, other| &all & &other);
            all.insert(place);
            needs[place] = all;
        }
        let roots: Vec<usize> = self.definite.iter().copied().collect();
        self.definite.extend(roots.into_iter().flat_map(|root| std::mem::take(&mut needs[root])));
    }

    /// Where all parts of a tuple are needed in every way, and it costs no more than what else makes them, nothing else is
    /// worth it: the other terms of its parts are dropped, so that fewer ways are looked at. Returns whether any was.
    fn prefer_groups(&mut self) -> bool {
        let mut dropped = false;
        for (tuple, parts) in self.parts() {
            let [(operands, price)] = &self.options[tuple][..] else { continue };
            let mut others = Price::default();
            let is_worse = parts.iter().all(|&(place, option)| {
                // One other term, with no operand that the tuple has not.
                let other: Vec<&(Vec<usize>, Price)> = self.options[place]
                    .iter()
                    .enumerate()
                    .filter(|&(other, _)| other != option)
                    .map(|(_, of)| of)
                    .collect();
                let [(needs, price)] = other[..] else { return false };
                others = others + *price;
                self.definite.contains(&place) && needs.iter().all(|need| operands.contains(need))
            });
            if is_worse && price.is_at_most(others) {
                dropped = true;
                for (place, option) in parts {
                    self.options[place] = vec![self.options[place][option].clone()];
                    self.terms[place] = vec![self.terms[place][option].clone()];
                }
            }
        }
        dropped
    }

    /// Where a tuple reads a part of another that has all its parts too, as the results of a norm read the sum that a norm
    /// with a residual gives beside them: if the other costs no more than the tuple with whatever else makes what it reads, and
    /// reads nothing else, the tuple is not worth it, and the terms that take its parts, which alone read it, are dropped.
    /// Returns whether any was.
    fn prefer_larger(&mut self) -> bool {
        let parts = self.parts();
        let is_part = |place: usize, of: &[(usize, usize)]| of.iter().any(|&(part, _)| part == place);
        for (&tuple, smaller) in parts.iter().filter(|(tuple, _)| !self.definite.contains(tuple)) {
            let [(operands, price)] = &self.options[tuple][..] else { continue };
            let is_larger = |other: usize, larger: &[(usize, usize)]| {
                let [(needs, whole)] = &self.options[other][..] else { return false };
                let all = smaller.iter().all(|&(place, _)| is_part(place, larger));
                let (read, rest): (Vec<usize>, Vec<usize>) =
                    operands.iter().partition(|&&operand| is_part(operand, larger));
                let [read] = read[..] else { return false };
                // Whatever else makes what it reads.
                let mut makes = self.options[read].iter().filter(|(children, _)| *children != [other]);
                all && makes.all(|(children, of)| {
                    whole.is_at_most(*price + *of)
                        && needs.iter().all(|need| rest.contains(need) || children.contains(need))
                })
            };
            if parts.iter().any(|(&other, larger)| is_larger(other, larger)) {
                for &(place, option) in smaller {
                    self.options[place].remove(option);
                    self.terms[place].remove(option);
                }
                return true;
            }
        }
        false
    }

    /// Takes what costs nothing and needs only what every way needs: nothing else is worth it, and whether it is needed tells
    /// no ways apart.
    fn take_what_is_there(&mut self) {
        for place in (0..self.order.len()).rev() {
            let there = self.options[place].iter().position(|(children, price)| {
                *price == Price::default() && children.iter().all(|child| self.definite.contains(child))
            });
            if let Some(option) = there {
                self.options[place] = vec![self.options[place][option].clone()];
                self.terms[place] = vec![self.terms[place][option].clone()];
                self.definite.insert(place);
            }
        }
    }

    /// The classes and options that take a part of each tuple.
    fn parts(&self) -> BTreeMap<usize, Vec<(usize, usize)>> {
        let mut parts: BTreeMap<usize, Vec<(usize, usize)>> = BTreeMap::new();
        for (place, terms) in self.terms.iter().enumerate() {
            for (option, term) in terms.iter().enumerate() {
                if let Head::Op(Op::Part(_)) = term.head {
                    parts.entry(self.options[place][option].0[0]).or_default().push((place, option));
                }
            }
        }
        parts
    }
}

fn children<'a>(egraph: &'a EGraph, options: &'a [Choice]) -> impl Iterator<Item = Id> + 'a {
    options.iter().flat_map(|option| &option.term.children).map(|&child| egraph.find(child))
}

/// The deepest classes that are needed and that nothing computes: those all of whose terms there are none.
fn missing(
    egraph: &EGraph,
    roots: &[Id],
    found: &BTreeMap<Id, Vec<Choice>>,
    possible: &BTreeSet<Id>,
) -> BTreeSet<Id> {
    let mut missing = BTreeSet::new();
    let mut seen = BTreeSet::new();
    let mut open: Vec<Id> = roots.iter().copied().filter(|root| !possible.contains(root)).collect();
    while let Some(class) = open.pop() {
        if !seen.insert(class) {
            continue;
        }
        match found.get(&class) {
            Some(options) if !options.is_empty() => {
                open.extend(children(egraph, options).filter(|child| !possible.contains(child)));
            }
            Some(_) | None => {
                missing.insert(class);
            }
        }
    }
    missing
}

/// All classes, each after those whose terms have it as an operand. Terms may close circles; of each circle a term is dropped
/// that is not the lowest of its class, of which every circle has one, since the lowest terms alone make none.
fn order(egraph: &EGraph, roots: &[Id], found: &mut BTreeMap<Id, Vec<Choice>>) -> Vec<Id> {
    let lowest = lowest(egraph, found);
    loop {
        match walk(egraph, roots, found) {
            Ok(order) => return order,
            Err(circle) => {
                let ends = circle.iter().skip(1).chain(circle.first());
                for (class, child) in circle.iter().zip(ends) {
                    let Some(choices) = found.get_mut(class) else { continue };
                    let before = choices.len();
                    choices.retain(|choice| {
                        let closes = choice.term.children.iter().any(|&other| egraph.find(other) == *child);
                        !closes || lowest.get(class) == Some(&choice.term)
                    });
                    if choices.len() < before {
                        break;
                    }
                }
            }
        }
    }
}

/// The term of each class whose operands need the fewest terms one on the other.
fn lowest(egraph: &EGraph, found: &BTreeMap<Id, Vec<Choice>>) -> BTreeMap<Id, Term> {
    let mut heights: BTreeMap<Id, usize> = BTreeMap::new();
    let mut lowest: BTreeMap<Id, Term> = BTreeMap::new();
    for height in 0.. {
        // Terms all of whose operands are lower than this.
        let reached: Vec<(Id, Term)> = found
            .iter()
            .filter(|(class, _)| !heights.contains_key(class))
            .filter_map(|(&class, choices)| {
                let is_reached = |choice: &&Choice| {
                    choice.term.children.iter().all(|&child| heights.contains_key(&egraph.find(child)))
                };
                choices.iter().find(is_reached).map(|choice| (class, choice.term.clone()))
            })
            .collect();
        if reached.is_empty() {
            break;
        }
        for (class, term) in reached {
            heights.insert(class, height);
            lowest.insert(class, term);
        }
    }
    lowest
}

/// The classes in order, or the classes of a circle, each with an operand in the next.
fn walk(egraph: &EGraph, roots: &[Id], found: &BTreeMap<Id, Vec<Choice>>) -> Result<Vec<Id>, Vec<Id>> {
    let mut done: BTreeSet<Id> = BTreeSet::new();
    let mut order: Vec<Id> = Vec::new();
    for &root in roots {
        // The classes from the root to where the walk is, each with the operands that are left.
        let mut path: Vec<(Id, Vec<Id>)> = Vec::new();
        let enter = |class: Id| -> (Id, Vec<Id>) {
            let choices = found.get(&class).map(Vec::as_slice).unwrap_or_default();
            let mut left: Vec<Id> = children(egraph, choices).collect();
            left.reverse();
            (class, left)
        };
        if !done.contains(&root) {
            path.push(enter(root));
        }
        while let Some((class, left)) = path.last_mut() {
            match left.pop() {
                Some(child) if done.contains(&child) => {}
                Some(child) => {
                    if let Some(start) = path.iter().position(|&(other, _)| other == child) {
                        return Err(path[start..].iter().map(|&(class, _)| class).collect());
                    }
                    path.push(enter(child));
                }
                None => {
                    done.insert(*class);
                    order.push(*class);
                    path.pop();
                }
            }
        }
    }
    order.reverse();
    Ok(order)
}
