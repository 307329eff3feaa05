//! Expressions of a model: constants, values and the operators between them.

use super::super::constant::{Constant, Kind, combine, evaluate, unknown_name, wrong_kind};
use super::super::number::Number;
use super::super::{Op, Operation, Value};
use super::{Builder, Tensor, Term};
use pipe_grammar::ast::{self, Binary, Expr, ExprKind, Operator};
use pipe_grammar::diagnostic::Code;
use std::collections::BTreeSet;

impl Builder<'_> {
    /// The value of an expression that cannot hold tensors.
    pub(super) fn constant(&mut self, expr: &Expr) -> Constant {
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
    pub(super) fn term(&mut self, expr: &Expr) -> Term {
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
    pub(super) fn look_up(&mut self, name: &str, span: ast::Span) -> Term {
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
            Term::Constant(constant) => Term::Constant(constant.named(self.origin(span))),
            Term::Tensor(_) | Term::Parameter(_) | Term::Tokens | Term::Targets | Term::Loss => term,
        }
    }

    /// A value of an earlier draft as it comes into this one.
    pub(super) fn incoming(&mut self, name: &str, tensor: Tensor) -> Tensor {
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
    pub(super) fn operation(&mut self, op: Op, span: ast::Span, name: &str, heads: u64, width: u64) -> Term {
        let origin = self.origin(span);
        let draft = self.draft();
        let value = draft.values.push(Value { name: name.to_owned(), heads, width });
        draft.operations.push(Operation { op, output: Some(value) });
        draft.origins.push(origin);
        Term::Tensor(Tensor { value, heads, width })
    }

    /// `left operator right` on constants and tensors.
    pub(super) fn binary(
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
    pub(super) fn scaled(
        &mut self,
        span: ast::Span,
        operator: Operator,
        x: Tensor,
        factor: Constant,
        factor_first: bool,
    ) -> Term {
        let poison = Term::Constant(Constant::poison(self.origin(span)));
        match factor.kind {
            Kind::Poison => return poison,
            // A word that is no constant was meant to be a value, whatever the operator.
            Kind::Word(_) => {
                self.not_a_value(&Term::Constant(factor), span);
                return poison;
            }
            Kind::Number(_)
            | Kind::Quantity(..)
            | Kind::Text(_)
            | Kind::List(_)
            | Kind::Call(..)
            | Kind::Record(..) => {}
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
    pub(super) fn not_a_value(&mut self, term: &Term, span: ast::Span) {
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
                        wrong_kind(constant, "a value of the model", self.report);
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
