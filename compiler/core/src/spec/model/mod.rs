//! A model: statements over named values become a chain of pieces.
//!
//! Statements are walked once, in order. What stands before the first `repeat`, each `repeat` body, and what stands
//! between or after them, becomes a [`Draft`]: a layer whose incoming values are still known by name. [`pieces`] then
//! decides what crosses each boundary and expands the drafts into pieces.
//!
//! A fault is reported where it arises and its result is poison, so that one wrong statement hides no other.

mod arguments;
mod operations;
mod parameters;
mod pieces;

use super::constant::{Constant, Environment, Kind, combine, evaluate, unknown_name};
use super::number::Number;
use super::report::Report;
use super::settings::Specialised;
use super::{Model, Op, Operation, Origin, Origins, SlotId, Value, ValueId};
use parameters::{Declared, Scope};
use pipe_grammar::ast::{self, Binary, Expr, ExprKind, Operator, Statement};
use pipe_grammar::diagnostic::{Code, Diagnostic, SourceId};
use pipec_program::id::IdVec;
use std::collections::{BTreeMap, BTreeSet};

/// The most repeats that a model may have, and the most repetitions and expanded operations: far above every
/// published model, and small enough that a hostile file ends in an error within bounded time and memory.
const MAX_REPEATS: usize = 256;
const MAX_REPETITIONS: u64 = 1 << 14;
const MAX_OPERATIONS: u64 = 1 << 22;

/// Resolves a model that is written out, for sequences of `seq` tokens.
pub(super) fn model(
    name: &str,
    declaration: &Specialised<'_, Statement>,
    seq: u64,
    origins: &mut Origins,
    report: &mut Report,
) -> Option<Model> {
    let errors = report.errors();
    let mut builder = Builder::new(declaration, seq, report);
    builder.statements(declaration.items);
    builder.check_whole(name, declaration.items);
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
    seq: u64,
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
    /// Repeats so far, and operations in all of their repetitions.
    repeats: usize,
    operations: u64,
    inputs: Vec<Origin>,
    losses: Vec<(Origin, usize)>,
    /// The order in which names were first bound.
    order: BTreeMap<String, usize>,
}

impl<'a> Builder<'a> {
    fn new(declaration: &Specialised<'_, Statement>, seq: u64, report: &'a mut Report) -> Self {
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
        match &term {
            Term::Constant(constant) => {
                self.environment.insert(name.clone(), constant.clone());
            }
            Term::Tensor(tensor) => {
                let value = tensor.value;
                let draft = self.draft();
                draft.bound.insert(name.clone(), value);
                // An alias of what comes in keeps its name; a new value is called what the text calls it.
                if !draft.inputs.contains(&value) {
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
            if count <= MAX_REPETITIONS {
                return Some(count);
            }
            let error = self.error(Code::OutOfRange, format!("{count} repetitions are too many"));
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

    /// The value of an expression that cannot hold tensors.
    fn constant(&mut self, expr: &Expr) -> Constant {
        let mut mentioned = BTreeSet::new();
        mentions(expr, &mut mentioned);
        for name in mentioned {
            if let Some(&index) = self.names.get(name) {
                self.bounds[index].used = true;
                // Kept apart from misspelt names: this one exists, but is no constant.
                if !self.environment.contains_key(name) {
                    let error = self
                        .error(Code::WrongKind, format!("`{name}` is not a constant"))
                        .at(expr.span, "a constant is needed here")
                        .with(self.bounds[index].origin.span, "bound here");
                    self.report.push(error);
                    return Constant::poison(self.origin(expr.span));
                }
            }
        }
        evaluate(expr, self.source, &self.environment, self.report)
    }

    /// What an expression stands for.
    fn term(&mut self, expr: &Expr) -> Term {
        match &expr.kind {
            ExprKind::Number(_)
            | ExprKind::Quantity(_)
            | ExprKind::Text(_)
            | ExprKind::List(_)
            | ExprKind::Tuple(_)
            | ExprKind::Record(_) => Term::Constant(self.constant(expr)),
            ExprKind::Path(path) => match path.as_name() {
                Some(name) if self.names.contains_key(&name.text) => self.look_up(&name.text, expr.span),
                Some(_) | None => Term::Constant(self.constant(expr)),
            },
            ExprKind::Call(call) => self.call(expr.span, call),
            ExprKind::Negate(operand) => {
                let minus_one =
                    Constant { origin: self.origin(expr.span), kind: Kind::Number(Number::integer(-1)) };
                let operand = (self.term(operand), operand.span);
                self.binary(expr.span, Operator::Multiply, (Term::Constant(minus_one), expr.span), operand)
            }
            ExprKind::Binary(binary) => {
                let Binary { operator, left, right } = binary.as_ref();
                let left = (self.term(left), left.span);
                let right = (self.term(right), right.span);
                self.binary(expr.span, *operator, left, right)
            }
        }
    }

    /// What a bound name stands for here.
    fn look_up(&mut self, name: &str, span: ast::Span) -> Term {
        let Some(&index) = self.names.get(name) else {
            return Term::Constant(Constant::poison(self.origin(span)));
        };
        let here = self.here();
        let bound = &mut self.bounds[index];
        bound.used = true;
        let (term, draft, origin) = (bound.term.clone(), bound.draft, bound.origin);
        match term {
            Term::Tensor(tensor) if draft != here => Term::Tensor(self.incoming(name, tensor)),
            Term::Inside { label } => {
                let error = self
                    .error(Code::UnknownName, format!("`{name}` is known inside the repetition only"))
                    .at(span, "")
                    .with(
                        origin.span,
                        format!("bound in each `{label}`, and not handed from one to the next"),
                    )
                    .help(format!("bind `{name}` before the repeat and read it in it"));
                self.report.push(error);
                Term::Constant(Constant::poison(self.origin(span)))
            }
            Term::Constant(constant) => {
                Term::Constant(Constant { origin: self.origin(span), kind: constant.kind })
            }
            Term::Tensor(_) | Term::Parameter(_) | Term::Tokens | Term::Targets | Term::Loss => term,
        }
    }

    /// A value of an earlier draft as it comes into this one.
    fn incoming(&mut self, name: &str, tensor: Tensor) -> Tensor {
        let draft = self.draft();
        let value = draft.incoming.get(name).copied().unwrap_or_else(|| {
            let value =
                draft.values.push(Value { name: name.to_owned(), heads: tensor.heads, width: tensor.width });
            draft.incoming.insert(name.to_owned(), value);
            draft.inputs.insert(value);
            value
        });
        Tensor { value, ..tensor }
    }

    /// Appends an operation whose result has a shape.
    fn operation(&mut self, op: Op, span: ast::Span, name: &str, heads: u64, width: u64) -> Term {
        let origin = self.origin(span);
        let draft = self.draft();
        let value = draft.values.push(Value { name: name.to_owned(), heads, width });
        draft.operations.push(Operation { op, output: Some(value) });
        draft.origins.push(origin);
        Term::Tensor(Tensor { value, heads, width })
    }

    /// `left operator right` on constants and tensors.
    fn binary(
        &mut self,
        span: ast::Span,
        operator: Operator,
        left: (Term, ast::Span),
        right: (Term, ast::Span),
    ) -> Term {
        let origin = self.origin(span);
        let poison = Term::Constant(Constant::poison(origin));
        match (left, right) {
            ((Term::Constant(a), _), (Term::Constant(b), _)) => {
                Term::Constant(combine(operator, &a, &b, origin, &self.environment, self.report))
            }
            ((Term::Tensor(a), a_span), (Term::Tensor(b), b_span)) => match operator {
                Operator::Add => self.pointwise(span, "add", (a, a_span), (b, b_span)),
                Operator::Multiply => self.pointwise(span, "mul", (a, a_span), (b, b_span)),
                Operator::Subtract | Operator::Divide => {
                    let (word, help) = match operator {
                        Operator::Divide => ("divide", "multiply, or divide by a number"),
                        Operator::Subtract | Operator::Add | Operator::Multiply => {
                            ("subtract", "write `a + -1 * b`")
                        }
                    };
                    let error = self
                        .error(Code::Unsupported, format!("there is no op to {word} two values"))
                        .at(span, "")
                        .help(help);
                    self.report.push(error);
                    poison
                }
            },
            ((Term::Tensor(x), _), (Term::Constant(factor), _)) => {
                self.scaled(span, operator, x, factor, false)
            }
            ((Term::Constant(factor), _), (Term::Tensor(x), _)) => {
                self.scaled(span, operator, x, factor, true)
            }
            ((left, left_span), (right, right_span)) => {
                for (term, span) in [(left, left_span), (right, right_span)] {
                    self.not_a_value(&term, span);
                }
                poison
            }
        }
    }

    /// `x * factor`, `factor * x` and `x / divisor`.
    fn scaled(
        &mut self,
        span: ast::Span,
        operator: Operator,
        x: Tensor,
        factor: Constant,
        factor_first: bool,
    ) -> Term {
        let poison = Term::Constant(Constant::poison(self.origin(span)));
        if factor.kind == Kind::Poison {
            return poison;
        }
        let one = Constant { origin: factor.origin, kind: Kind::Number(Number::integer(1)) };
        let factor = match operator {
            Operator::Multiply => factor,
            Operator::Divide if !factor_first => {
                combine(Operator::Divide, &one, &factor, factor.origin, &self.environment, self.report)
            }
            Operator::Add | Operator::Subtract | Operator::Divide => {
                let error = self
                    .error(
                        Code::Unsupported,
                        format!("there is no op for a number `{}` a value here", operator.as_str()),
                    )
                    .at(span, "")
                    .help("a value can be multiplied by a number or divided by one");
                self.report.push(error);
                return poison;
            }
        };
        if factor.kind == Kind::Poison {
            return poison;
        }
        match factor.as_real("a finite number", |_| true, &self.environment, self.report) {
            Some(factor) => self.operation(Op::Scale { x: x.value, factor }, span, "scale", x.heads, x.width),
            None => poison,
        }
    }

    /// Reports a term that is no value of the graph.
    fn not_a_value(&mut self, term: &Term, span: ast::Span) {
        let (found, help) = match term {
            Term::Tensor(_) | Term::Inside { .. } => return,
            Term::Constant(constant) => {
                match &constant.kind {
                    Kind::Poison => {}
                    Kind::Word(word) => {
                        let known = self.names.keys().map(String::as_str).collect::<Vec<_>>();
                        unknown_name(word, constant.origin, known, self.report);
                    }
                    Kind::Number(_)
                    | Kind::Quantity(..)
                    | Kind::Text(_)
                    | Kind::List(_)
                    | Kind::Call(..)
                    | Kind::Record(..) => {
                        super::constant::wrong_kind(constant, "a value of the model", self.report);
                    }
                }
                return;
            }
            Term::Parameter(_) => ("a parameter", "give it to an op, such as `linear(x, weight: w)`"),
            Term::Tokens | Term::Targets => ("token ids", "turn them into vectors with `embedding` first"),
            Term::Loss => {
                ("the loss", "the cross entropy is the end of a model; nothing is computed from it")
            }
        };
        let error = self.error(Code::WrongKind, format!("expected a value of the model, found {found}"));
        self.report.push(error.at(span, "").help(help));
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
        let last = self.drafts.iter().rposition(|draft| !draft.is_empty());
        match self.losses.as_slice() {
            [] if !mentions_cross_entropy(items) => {
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

fn statement_span(statement: &Statement) -> ast::Span {
    match statement {
        Statement::Binding(binding) => binding.span,
        Statement::Repeat(repeat) => repeat.span,
    }
}

/// Whether a cross entropy was written, though it may not have made sense.
fn mentions_cross_entropy(items: &[Statement]) -> bool {
    let mut mentioned = BTreeSet::new();
    for item in items {
        match item {
            Statement::Binding(binding) => mentions(&binding.value, &mut mentioned),
            Statement::Repeat(repeat) if mentions_cross_entropy(&repeat.body) => return true,
            Statement::Repeat(_) => {}
        }
    }
    mentioned.contains("cross_entropy")
}

/// Every single name in an expression, called ones included.
pub(super) fn mentions<'e>(expr: &'e Expr, into: &mut BTreeSet<&'e str>) {
    let mut path = |path: &'e ast::Path| {
        into.extend(path.as_name().map(|name| name.text.as_str()));
    };
    match &expr.kind {
        ExprKind::Number(_) | ExprKind::Quantity(_) | ExprKind::Text(_) => {}
        ExprKind::Path(name) => path(name),
        ExprKind::Call(call) => {
            path(&call.callee);
            call.arguments.iter().for_each(|argument| mentions(&argument.value, into));
        }
        ExprKind::Record(record) => {
            record.settings.entries.iter().for_each(|entry| mentions(&entry.value, into));
        }
        ExprKind::List(items) | ExprKind::Tuple(items) => {
            items.iter().for_each(|item| mentions(item, into));
        }
        ExprKind::Negate(operand) => mentions(operand, into),
        ExprKind::Binary(binary) => {
            mentions(&binary.left, into);
            mentions(&binary.right, into);
        }
    }
}
