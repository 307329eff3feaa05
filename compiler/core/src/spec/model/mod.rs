//! A model: statements over named values become a chain of pieces.
//!
//! Statements are walked once, in order. What stands before the first `repeat`, each `repeat` body, and what stands
//! between or after them, becomes a [`Draft`]: a layer whose incoming values are still known by name. [`pieces`] then
//! decides what crosses each boundary and expands the drafts into pieces.
//!
//! A fault is reported where it arises and its result is poison, so that one wrong statement hides no other.

mod arguments;
mod expressions;
mod operations;
mod parameters;
mod pieces;

use super::constant::{Constant, Environment, Kind};
use super::report::Report;
use super::settings::Specialised;
use super::{Model, Operation, Origin, Origins, SlotId, Value, ValueId};
pub use arguments::ops;
use expressions::mentions;
use parameters::{Declared, Scope};
use pipe_grammar::ast::{self, ExprKind, Statement};
use pipe_grammar::diagnostic::{Code, Diagnostic, SourceId};
use pipec_program::id::IdVec;
use std::collections::{BTreeMap, BTreeSet};

/// The most repeats that a model may have, and the most repetitions and operations in all of them together: far above
/// every published model, and small enough that a hostile file ends in an error within bounded time and memory.
const MAX_REPEATS: usize = 256;
const MAX_REPETITIONS: u64 = 1 << 14;
const MAX_OPERATIONS: u64 = 1 << 22;

/// Resolves a model that is written out, for sequences of `seq` tokens if that is known.
pub(super) fn model(
    name: &str,
    declaration: &Specialised<'_, Statement>,
    seq: Option<u64>,
    origins: &mut Origins,
    report: &mut Report,
) -> Option<Model> {
    let errors = report.errors();
    let mut builder = Builder::new(declaration, seq, report);
    builder.statements(declaration.items);
    builder.check_whole(name, declaration.items);
    builder.check_parameters(declaration);
    // What is left of a faulty model is of no use to anyone.
    if builder.report.errors() > errors { None } else { builder.finish(name, origins) }
}

/// What an expression stands for.
#[derive(Clone, Debug)]
enum Term {
    Constant(Constant),
    /// A value of the draft under construction.
    Tensor(Tensor),
    /// A parameter, by its position in [`Builder::parameters`].
    Parameter(usize),
    /// The tokens of the step.
    Tokens,
    /// The next tokens.
    Targets,
    /// What a cross entropy yields.
    Loss,
    /// Bound inside a repetition only.
    Inside {
        label: String,
    },
}

/// A value and its shape: for every token `heads` vectors of `width` numbers.
#[derive(Clone, Copy, Debug)]
struct Tensor {
    value: ValueId,
    heads: u64,
    width: u64,
}

impl Tensor {
    fn describe(self) -> String {
        describe_shape(self.heads, self.width)
    }
}

fn describe_shape(heads: u64, width: u64) -> String {
    if heads == 1 { format!("{width} wide") } else { format!("{heads} heads of {width}") }
}

/// A name that a statement bound.
#[derive(Clone, Debug)]
struct Bound {
    name: String,
    origin: Origin,
    term: Term,
    /// The draft of a tensor.
    draft: usize,
    used: bool,
}

/// A layer whose incoming values are known by name.
#[derive(Debug)]
struct Draft {
    kind: DraftKind,
    values: IdVec<ValueId, Value>,
    operations: Vec<Operation>,
    origins: Vec<Origin>,
    /// The parameter in each slot.
    slots: Vec<usize>,
    slot_of: BTreeMap<usize, SlotId>,
    /// Names read before they are bound here, with the values they are here.
    incoming: BTreeMap<String, ValueId>,
    /// The values of [`Draft::incoming`].
    inputs: BTreeSet<ValueId>,
    /// The tensors that names stand for at its end, where it bound them.
    bound: BTreeMap<String, ValueId>,
}

/// What a draft came from.
#[derive(Debug)]
enum DraftKind {
    /// Statements outside of any repetition.
    Plain,
    /// A `repeat`.
    Repeat { label: String, count: u64 },
}

impl Draft {
    fn new(kind: DraftKind) -> Self {
        Draft {
            kind,
            values: IdVec::new(),
            operations: Vec::new(),
            origins: Vec::new(),
            slots: Vec::new(),
            slot_of: BTreeMap::new(),
            incoming: BTreeMap::new(),
            inputs: BTreeSet::new(),
            bound: BTreeMap::new(),
        }
    }

    fn is_empty(&self) -> bool {
        self.operations.is_empty() && self.incoming.is_empty()
    }
}

/// A model under construction.
struct Builder<'a> {
    source: SourceId,
    /// Tokens of a sequence; none where no training run says so.
    seq: Option<u64>,
    report: &'a mut Report,
    bounds: Vec<Bound>,
    /// The bound that each name stands for now.
    names: BTreeMap<String, usize>,
    /// The names of [`Builder::names`] and the parameters of the declaration that stand for constants.
    environment: Environment,
    parameters: Vec<Declared>,
    /// Names of parameters: outside repetitions, and in the present one.
    scopes: [Scope; 2],
    drafts: Vec<Draft>,
    /// Whether statements are inside a repetition.
    inside: bool,
    /// The name that the present statement binds.
    binding: String,
    /// The largest embedding table and where it is used.
    vocab: Option<(u64, Origin)>,
    /// Repeats so far, their repetitions, and the operations in all of these.
    repeats: usize,
    repetitions: u64,
    operations: u64,
    inputs: Vec<Origin>,
    losses: Vec<(Origin, usize)>,
    /// The order in which names were first bound.
    order: BTreeMap<String, usize>,
}

impl<'a> Builder<'a> {
    fn new(declaration: &Specialised<'_, Statement>, seq: Option<u64>, report: &'a mut Report) -> Self {
        Builder {
            source: declaration.source,
            seq,
            report,
            bounds: Vec::new(),
            names: BTreeMap::new(),
            environment: declaration.environment.clone(),
            parameters: Vec::new(),
            scopes: [Scope::new(declaration.items), Scope::default()],
            drafts: vec![Draft::new(DraftKind::Plain)],
            inside: false,
            binding: String::new(),
            vocab: None,
            repeats: 0,
            repetitions: 0,
            operations: 0,
            inputs: Vec::new(),
            losses: Vec::new(),
            order: BTreeMap::new(),
        }
    }

    fn origin(&self, span: ast::Span) -> Origin {
        Origin { source: self.source, span }
    }

    fn error(&self, code: Code, message: impl Into<String>) -> Diagnostic {
        Diagnostic::error(self.source, code, message)
    }

    /// The position of the draft under construction.
    fn here(&self) -> usize {
        self.drafts.len() - 1
    }

    fn draft(&mut self) -> &mut Draft {
        let here = self.here();
        &mut self.drafts[here]
    }

    fn statements(&mut self, statements: &[Statement]) {
        for statement in statements {
            if self.report.is_full() {
                return;
            }
            match statement {
                Statement::Binding(binding) => self.bind(binding),
                Statement::Repeat(repeat) if self.inside => {
                    let error = self
                        .error(Code::Unsupported, "a repeat inside a repeat")
                        .at(repeat.span, "")
                        .help("write the inner statements out, or put one repeat after the other");
                    self.report.push(error);
                }
                Statement::Repeat(repeat) => self.repeat(repeat),
            }
        }
    }

    fn bind(&mut self, binding: &ast::Binding) {
        let name = binding.name.text.clone();
        self.binding.clone_from(&name);
        let term = self.term(&binding.value);
        let origin = self.origin(binding.name.span);
        let here = self.here();
        self.environment.remove(&name);
        if let (Term::Constant(Constant { kind: Kind::Poison, .. }), Some(&old)) =
            (&term, self.names.get(&name))
        {
            // A statement that failed may have meant to use what it replaces.
            self.bounds[old].used = true;
        }
        match &term {
            Term::Constant(constant) => {
                self.environment.insert(name.clone(), constant.clone());
            }
            Term::Tensor(tensor) => {
                let value = tensor.value;
                let draft = self.draft();
                draft.bound.insert(name.clone(), value);
                // A new value is called what the text calls it; another name for an old one changes nothing.
                if !draft.inputs.contains(&value) && !matches!(binding.value.kind, ExprKind::Path(_)) {
                    draft.values[value].name.clone_from(&name);
                }
            }
            Term::Parameter(_) | Term::Tokens | Term::Targets | Term::Loss | Term::Inside { .. } => {}
        }
        if !matches!(term, Term::Tensor(_)) {
            self.draft().bound.remove(&name);
        }
        let next = self.order.len();
        self.order.entry(name.clone()).or_insert(next);
        self.names.insert(name.clone(), self.bounds.len());
        self.bounds.push(Bound { name, origin, term, draft: here, used: false });
    }

    fn repeat(&mut self, repeat: &ast::Repeat) {
        self.repeats += 1;
        if self.repeats > MAX_REPEATS {
            let error = self.error(Code::OutOfRange, "too many repeats in one model");
            self.report.push(error.at(repeat.count.span, format!("at most {MAX_REPEATS}")));
            return;
        }
        let count = self.constant(&repeat.count);
        let count = count.as_count(1, &self.environment, self.report).and_then(|count| {
            self.repetitions = self.repetitions.saturating_add(count);
            if self.repetitions <= MAX_REPETITIONS {
                return Some(count);
            }
            let what = format!("{} repetitions are too many", self.repetitions);
            let error = self.error(Code::OutOfRange, what);
            self.report.push(error.at(repeat.count.span, format!("at most {MAX_REPETITIONS}")));
            None
        });
        let label = repeat.label.as_ref().map_or("layer", |label| &label.text).to_owned();
        if self.draft().is_empty() {
            self.drafts.pop();
        }
        let kind = DraftKind::Repeat { label: label.clone(), count: count.unwrap_or(1) };
        self.drafts.push(Draft::new(kind));
        self.scopes[1] = Scope::new(&repeat.body);
        let outside = (self.names.clone(), self.environment.clone());
        self.inside = true;
        self.statements(&repeat.body);
        self.inside = false;
        self.carry(repeat, outside, &label);
        self.operations += count.unwrap_or(1).saturating_mul(self.draft().operations.len() as u64);
        if self.operations > MAX_OPERATIONS {
            let error = self
                .error(Code::OutOfRange, format!("the model has {} operations", self.operations))
                .at(repeat.count.span, format!("at most {MAX_OPERATIONS} in all repetitions together"));
            self.report.push(error);
        }
        if self.draft().is_empty() && !repeat.body.is_empty() && self.report.errors() == 0 {
            let error = self.error(Code::NoEffect, "a repeat that computes nothing");
            self.report.push(error.at(repeat.span, "").help("leave it out"));
        }
        self.drafts.push(Draft::new(DraftKind::Plain));
    }

    /// Leaves the scope of a repetition: names that were bound before it and read in it are carried from one
    /// repetition to the next; others are known inside only.
    fn carry(&mut self, repeat: &ast::Repeat, outside: (BTreeMap<String, usize>, Environment), label: &str) {
        let (before, environment) = outside;
        let inside = std::mem::replace(&mut self.names, before);
        self.environment = environment;
        let here = self.here();
        for (name, index) in inside {
            let old = self.names.get(&name).copied();
            if old == Some(index) {
                continue;
            }
            let incoming = self.drafts[here].incoming.get(&name).copied();
            let carried = match (&self.bounds[index].term, incoming, old) {
                (Term::Tensor(new), Some(value), _) => Some((*new, value)),
                (Term::Constant(constant), _, _) if constant.kind == Kind::Poison => {
                    self.names.insert(name, index);
                    continue;
                }
                (Term::Constant(_), _, Some(old)) => {
                    let error = self
                        .error(
                            Code::Conflict,
                            format!("`{name}` would have to change from repetition to repetition"),
                        )
                        .at(self.bounds[index].origin.span, "bound again inside the repeat")
                        .with(self.bounds[old].origin.span, "bound before it")
                        .help("give the inner one another name");
                    self.report.push(error);
                    self.bounds[index].used = true;
                    continue;
                }
                _ => None,
            };
            let Some((new, value)) = carried else {
                // A scratch name of the body: what the last repetition left in it is out of reach.
                let term = Term::Inside { label: label.to_owned() };
                let bound = Bound { used: true, term, ..self.bounds[index].clone() };
                self.names.insert(name, self.bounds.len());
                self.bounds.push(bound);
                continue;
            };
            let first = &self.drafts[here].values[value];
            if (first.heads, first.width) != (new.heads, new.width) {
                let entered = describe_shape(first.heads, first.width);
                let error = self
                    .error(
                        Code::ShapeMismatch,
                        format!("`{name}` enters a repetition {entered} and leaves it {}", new.describe()),
                    )
                    .at(self.bounds[index].origin.span, new.describe())
                    .with(repeat.count.span, format!("repeated here; the first repetition gets it {entered}"))
                    .help("bring it back to the width it came with");
                self.report.push(error);
            }
            self.bounds[index].used = true;
            self.names.insert(name, index);
        }
    }

    /// Warns of parameters of the declaration that nothing mentions.
    fn check_parameters(&mut self, declaration: &Specialised<'_, Statement>) {
        let mut words = BTreeSet::new();
        mentioned(declaration.items, &mut words);
        for default in declaration.parameters.iter().filter_map(|parameter| parameter.default.as_ref()) {
            mentions(default, &mut words);
        }
        for parameter in declaration.parameters {
            let name = &parameter.name;
            if !words.contains(name.text.as_str()) {
                let message = format!("parameter `{name}` of the model is never used");
                let warning = Diagnostic::warning(self.source, Code::Unused, message).at(name.span, "");
                self.report.push(warning.help("use it or leave it out"));
            }
        }
    }

    /// Checks what only the whole model shows: names that nothing uses, and the loss.
    fn check_whole(&mut self, model: &str, items: &[Statement]) {
        if self.report.is_full() {
            return;
        }
        for bound in &self.bounds {
            if bound.used {
                continue;
            }
            let unused = format!("`{}` is never used", bound.name);
            let diagnostic = match &bound.term {
                Term::Constant(constant) if constant.kind == Kind::Poison => continue,
                Term::Loss | Term::Inside { .. } => continue,
                Term::Constant(_) => Diagnostic::warning(self.source, Code::Unused, unused),
                Term::Tensor(_) | Term::Parameter(_) | Term::Tokens | Term::Targets => {
                    Diagnostic::error(self.source, Code::Unused, unused)
                }
            };
            self.report.push(diagnostic.at(bound.origin.span, "").help("use it or leave it out"));
        }
        let mut words = BTreeSet::new();
        mentioned(items, &mut words);
        let last = self.drafts.iter().rposition(|draft| !draft.is_empty());
        match self.losses.as_slice() {
            // One that was written but made no sense has been reported.
            [] if !words.contains("cross_entropy") => {
                let span = items.last().map_or(ast::Span::default(), statement_span);
                let error = self
                    .error(Code::NoLoss, format!("model `{model}` has no loss"))
                    .at(span, "it ends here")
                    .help("end it with `loss = cross_entropy(logits, targets)`");
                self.report.push(error);
            }
            [] => {}
            [(origin, draft)] => {
                if Some(*draft) != last {
                    let error = self
                        .error(Code::Misplaced, "the loss is not at the end of the model")
                        .at(origin.span, "")
                        .help("nothing may be computed after the cross entropy, and it stands outside of any repeat");
                    self.report.push(error);
                }
            }
            [(first, _), rest @ ..] => {
                for (origin, _) in rest {
                    let error = self
                        .error(Code::NoLoss, format!("model `{model}` has {} losses", rest.len() + 1))
                        .at(origin.span, "another cross entropy")
                        .with(first.span, "the first one")
                        .help("keep one of them");
                    self.report.push(error);
                }
            }
        }
    }
}

/// Every single name that statements mention.
fn mentioned<'e>(statements: &'e [Statement], into: &mut BTreeSet<&'e str>) {
    for statement in statements {
        match statement {
            Statement::Binding(binding) => mentions(&binding.value, into),
            Statement::Repeat(repeat) => {
                mentions(&repeat.count, into);
                mentioned(&repeat.body, into);
            }
        }
    }
}

fn statement_span(statement: &Statement) -> ast::Span {
    match statement {
        Statement::Binding(binding) => binding.span,
        Statement::Repeat(repeat) => repeat.span,
    }
}
