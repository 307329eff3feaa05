//! Values that are known without running anything: numbers, quantities, words, texts and their combinations.
//!
//! An expression becomes a [`Constant`] first and is then read as what its place needs, so that every complaint names
//! the place and what was expected there. A fault is reported once, where it arises; what comes of it is
//! [`Kind::Poison`], which every reader passes over in silence.

use super::Origin;
use super::number::{Dimension, Number, UNITS, unit};
use super::report::Report;
use pipe_grammar::ast::{Expr, ExprKind, Operator, Span};
use pipe_grammar::diagnostic::{Code, Diagnostic, SourceId, suggest};
use std::collections::BTreeMap;

/// A value and where it was written.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Constant {
    pub(super) origin: Origin,
    pub(super) kind: Kind,
}

/// What a constant is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    /// The result of a fault that has been reported.
    Poison,
    Number(Number),
    /// An amount in the base unit of its dimension.
    Quantity(Dimension, Number),
    /// A name that stands for itself: `causal`, `f32`, `true`.
    Word(String),
    Text(String),
    /// `[...]` or `(...)`.
    List(Vec<Constant>),
    /// `window(4096)`: a choice with arguments.
    Call(String, Vec<(Option<(String, Origin)>, Constant)>),
    /// `adamw { ... }`: a choice with settings.
    Record(String, Origin, Settings),
}

/// The entries of a block `{ key: value }`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Settings {
    /// The block.
    pub(super) origin: Origin,
    /// Key, its place, and value.
    pub(super) entries: Vec<(String, Origin, Constant)>,
}

/// Names that stand for constants: the parameters of a declaration and its named dimensions.
pub(super) type Environment = BTreeMap<String, Constant>;

impl Constant {
    pub(super) fn poison(origin: Origin) -> Self {
        Constant { origin, kind: Kind::Poison }
    }

    /// The constant as a name at `origin` stands for it: written there, unless it comes from another text, such as an
    /// argument that a file gives to a declaration of the library. A fault is then where it was written.
    pub(super) fn named(self, origin: Origin) -> Self {
        if self.origin.source == origin.source { Constant { origin, ..self } } else { self }
    }

    pub(super) fn number(origin: Origin, value: u64) -> Self {
        Constant { origin, kind: Kind::Number(Number::integer(value.into())) }
    }

    /// What it is, with its article, for messages.
    pub(super) fn describe(&self) -> String {
        match &self.kind {
            Kind::Poison => "nothing".to_owned(),
            Kind::Number(_) => "a number".to_owned(),
            Kind::Quantity(dimension, _) => dimension.noun().to_owned(),
            Kind::Word(word) => format!("the word `{word}`"),
            Kind::Text(_) => "a text".to_owned(),
            Kind::List(_) => "a list".to_owned(),
            Kind::Call(name, _) => format!("`{name}(..)`"),
            Kind::Record(name, _, _) => format!("`{name} {{ .. }}`"),
        }
    }
}

/// The value of an expression in which names may stand for constants.
pub(super) fn evaluate(
    expr: &Expr,
    source: SourceId,
    environment: &Environment,
    report: &mut Report,
) -> Constant {
    let origin = Origin { source, span: expr.span };
    let mut inner = |expr: &Expr| evaluate(expr, source, environment, report);
    let kind = match &expr.kind {
        ExprKind::Number(number) => Kind::Number(Number::written(number)),
        ExprKind::Quantity(quantity) => {
            let amount = Number::written(&quantity.number);
            quantity_of(amount, &quantity.unit.text, quantity.unit.span, source, report)
        }
        ExprKind::Text(text) => Kind::Text(text.value.clone()),
        ExprKind::Path(path) => match path.as_name().and_then(|name| environment.get(&name.text)) {
            Some(known) => return known.clone().named(origin),
            None => Kind::Word(path.to_string()),
        },
        ExprKind::List(items) | ExprKind::Tuple(items) => Kind::List(items.iter().map(inner).collect()),
        ExprKind::Call(call) => {
            let arguments: Vec<_> = call
                .arguments
                .iter()
                .map(|argument| {
                    let name = argument
                        .name
                        .as_ref()
                        .map(|name| (name.text.clone(), Origin { source, span: name.span }));
                    (name, inner(&argument.value))
                })
                .collect();
            let callee = call.callee.to_string();
            if callee == "sqrt" {
                return square_root(origin, &arguments, report);
            }
            Kind::Call(callee, arguments)
        }
        ExprKind::Record(record) => Kind::Record(
            record.path.to_string(),
            Origin { source, span: record.path.span },
            settings(&record.settings, source, environment, report),
        ),
        ExprKind::Negate(operand) => {
            let operand = inner(operand);
            let minus_one = Constant { origin, kind: Kind::Number(Number::integer(-1)) };
            return combine(Operator::Multiply, &minus_one, &operand, origin, environment, report);
        }
        ExprKind::Binary(binary) => {
            let (left, right) = (inner(&binary.left), inner(&binary.right));
            return combine(binary.operator, &left, &right, origin, environment, report);
        }
    };
    Constant { origin, kind }
}

/// The values of a block of settings.
pub(super) fn settings(
    settings: &pipe_grammar::ast::Settings,
    source: SourceId,
    environment: &Environment,
    report: &mut Report,
) -> Settings {
    let entries = settings
        .entries
        .iter()
        .map(|entry| {
            let value = evaluate(&entry.value, source, environment, report);
            (entry.key.text.clone(), Origin { source, span: entry.key.span }, value)
        })
        .collect();
    Settings { origin: Origin { source, span: settings.span }, entries }
}

/// `sqrt(x)`.
pub(super) fn square_root(
    origin: Origin,
    arguments: &[(Option<(String, Origin)>, Constant)],
    report: &mut Report,
) -> Constant {
    let [(None, operand)] = arguments else {
        report.push(
            Diagnostic::error(origin.source, Code::MissingArgument, "`sqrt` takes one number")
                .at(origin.span, "")
                .help("write `sqrt(3 / dim)`"),
        );
        return Constant::poison(origin);
    };
    match operand.kind {
        Kind::Poison => Constant::poison(origin),
        Kind::Number(number) if number.to_f64() >= 0.0 => {
            Constant { origin, kind: Kind::Number(Number::Real(number.to_f64().sqrt())) }
        }
        Kind::Number(number) => {
            report.push(
                Diagnostic::error(
                    operand.origin.source,
                    Code::OutOfRange,
                    format!("the square root of {number} is no number"),
                )
                .at(operand.origin.span, "negative"),
            );
            Constant::poison(origin)
        }
        Kind::Quantity(..)
        | Kind::Word(_)
        | Kind::Text(_)
        | Kind::List(_)
        | Kind::Call(..)
        | Kind::Record(..) => {
            wrong_kind(operand, "a number", report);
            Constant::poison(origin)
        }
    }
}

fn quantity_of(amount: Number, spelling: &str, span: Span, source: SourceId, report: &mut Report) -> Kind {
    if let Some((dimension, size)) = unit(spelling) {
        return Kind::Quantity(dimension, amount.multiply(size));
    }
    let error = Diagnostic::error(source, Code::UnknownUnit, format!("there is no unit `{spelling}`"));
    let help = match spelling {
        "Gb/s" | "Gbps" => "write `Gbit/s` for bits or `GB/s` for bytes".to_owned(),
        "Mb/s" | "Mbps" => "write `Mbit/s` for bits or `MB/s` for bytes".to_owned(),
        _ => match suggest(spelling, UNITS.iter().map(|(name, _, _)| *name)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => {
                format!("units are {}", UNITS.iter().map(|(name, _, _)| *name).collect::<Vec<_>>().join(", "))
            }
        },
    };
    report.push(error.at(span, "").help(help));
    Kind::Poison
}

/// `left operator right` on numbers and quantities.
pub(super) fn combine(
    operator: Operator,
    left: &Constant,
    right: &Constant,
    origin: Origin,
    environment: &Environment,
    report: &mut Report,
) -> Constant {
    let poison = Constant::poison(origin);
    // What comes from another text is what to point at.
    let foreign = [left, right].into_iter().find(|side| side.origin.source != origin.source);
    let operands = (amount(left, environment, report), amount(right, environment, report));
    let (Some((a_dimension, a)), Some((b_dimension, b))) = operands else {
        return poison;
    };
    let dimension = match (operator, a_dimension, b_dimension) {
        (Operator::Add | Operator::Subtract, a, b) if a == b => a,
        (Operator::Multiply, a, None) | (Operator::Multiply, None, a) | (Operator::Divide, a, None) => a,
        (Operator::Divide, a, b) if a == b => None,
        (Operator::Add | Operator::Subtract | Operator::Multiply | Operator::Divide, _, _) => {
            let what = format!("`{}` does not go with these units", operator.as_str());
            report.push(match foreign {
                Some(foreign) => Diagnostic::error(foreign.origin.source, Code::WrongUnit, what)
                    .at(foreign.origin.span, foreign.describe()),
                None => Diagnostic::error(origin.source, Code::WrongUnit, what)
                    .at(origin.span, "")
                    .with(left.origin.span, left.describe())
                    .with(right.origin.span, right.describe()),
            });
            return poison;
        }
    };
    let value = match operator {
        Operator::Add => a.add(b),
        Operator::Subtract => a.subtract(b),
        Operator::Multiply => a.multiply(b),
        Operator::Divide => match a.divide(b) {
            Some(quotient) => quotient,
            None => {
                report.push(
                    Diagnostic::error(right.origin.source, Code::OutOfRange, "a division by zero")
                        .at(right.origin.span, "this is 0"),
                );
                return poison;
            }
        },
    };
    let kind = dimension.map_or(Kind::Number(value), |dimension| Kind::Quantity(dimension, value));
    Constant { origin: foreign.map_or(origin, |foreign| foreign.origin), kind }
}

fn amount(
    constant: &Constant,
    environment: &Environment,
    report: &mut Report,
) -> Option<(Option<Dimension>, Number)> {
    match &constant.kind {
        Kind::Poison => None,
        Kind::Number(number) => Some((None, *number)),
        Kind::Quantity(dimension, number) => Some((Some(*dimension), *number)),
        Kind::Word(word) => {
            unknown_name(word, constant.origin, environment.keys().map(String::as_str), report);
            None
        }
        Kind::Text(_) | Kind::List(_) | Kind::Call(..) | Kind::Record(..) => {
            wrong_kind(constant, "a number", report);
            None
        }
    }
}

/// Reports a name that nothing declares.
pub(super) fn unknown_name<'a>(
    name: &str,
    origin: Origin,
    known: impl IntoIterator<Item = &'a str>,
    report: &mut Report,
) {
    let error =
        Diagnostic::error(origin.source, Code::UnknownName, format!("nothing is called `{name}` here"))
            .at(origin.span, "");
    // Any letter is a misspelling of any other; saying so helps nobody.
    report.push(match suggest(name, known).filter(|_| name.len() > 1) {
        Some(near) => error.help(format!("did you mean `{near}`?")),
        None => error,
    });
}

/// Reports a value that is not what its place needs.
pub(super) fn wrong_kind(constant: &Constant, expected: &str, report: &mut Report) {
    if constant.kind == Kind::Poison {
        return;
    }
    report.push(
        Diagnostic::error(
            constant.origin.source,
            Code::WrongKind,
            format!("expected {expected}, found {}", constant.describe()),
        )
        .at(constant.origin.span, ""),
    );
}

impl Constant {
    /// The constant as a number.
    pub(super) fn as_number(&self, known: &Environment, report: &mut Report) -> Option<Number> {
        match &self.kind {
            Kind::Number(number) => Some(*number),
            Kind::Word(word) if matches!(word.as_str(), "true" | "false" | "none" | "auto") => {
                wrong_kind(self, "a number", report);
                None
            }
            Kind::Word(word) => {
                unknown_name(word, self.origin, known.keys().map(String::as_str), report);
                None
            }
            Kind::Quantity(dimension, _) => {
                report.push(
                    Diagnostic::error(
                        self.origin.source,
                        Code::WrongUnit,
                        format!("expected a number without a unit, found {}", dimension.noun()),
                    )
                    .at(self.origin.span, ""),
                );
                None
            }
            Kind::Poison | Kind::Text(_) | Kind::List(_) | Kind::Call(..) | Kind::Record(..) => {
                wrong_kind(self, "a number", report);
                None
            }
        }
    }

    /// The constant as a whole number from `least` on.
    pub(super) fn as_count(&self, least: u64, known: &Environment, report: &mut Report) -> Option<u64> {
        let number = self.as_number(known, report)?;
        let (source, span) = (self.origin.source, self.origin.span);
        if let Some(count) = number.to_u64()
            && count >= least
        {
            return Some(count);
        }
        let value = number.to_f64();
        let error = if value.fract() != 0.0 {
            let (code, what) = match number {
                Number::Exact { numerator, denominator } => (
                    Code::InexactDivision,
                    format!("{numerator} / {denominator} is {value}, but a whole number is needed"),
                ),
                Number::Real(_) => (Code::NotAnInteger, format!("{value} is not a whole number")),
            };
            let (below, above) = (value.floor(), value.ceil());
            let error = Diagnostic::error(source, code, what).at(span, "");
            if below >= least as f64 && code == Code::NotAnInteger {
                error.help(format!("{below} and {above} are"))
            } else {
                error
            }
        } else if value < least as f64 {
            Diagnostic::error(source, Code::OutOfRange, format!("{number} is too small"))
                .at(span, format!("must be at least {least}"))
        } else {
            Diagnostic::error(source, Code::OutOfRange, format!("{number} is too large"))
                .at(span, "does not fit 64 bits")
        };
        report.push(error);
        None
    }

    /// The constant as a real number in a range that is described in words.
    pub(super) fn as_real(
        &self,
        range: &str,
        allowed: impl Fn(f64) -> bool,
        known: &Environment,
        report: &mut Report,
    ) -> Option<f64> {
        let value = self.as_number(known, report)?.to_f64();
        if value.is_finite() && allowed(value) {
            return Some(value);
        }
        report.push(
            Diagnostic::error(self.origin.source, Code::OutOfRange, format!("{value} is out of range"))
                .at(self.origin.span, format!("must be {range}")),
        );
        None
    }

    /// The constant as a positive amount of a dimension, in its base unit, rounded to a whole number of them.
    pub(super) fn as_quantity(&self, dimension: Dimension, report: &mut Report) -> Option<u64> {
        let (source, span) = (self.origin.source, self.origin.span);
        match &self.kind {
            Kind::Quantity(found, amount) if *found == dimension => {
                let value = amount.to_f64().round();
                if value >= 0.0 && value < u64::MAX as f64 {
                    return Some(amount.to_u64().unwrap_or(value as u64));
                }
                report.push(
                    Diagnostic::error(source, Code::OutOfRange, "a quantity that pipec cannot count")
                        .at(span, "must be positive and fit 64 bits"),
                );
            }
            Kind::Quantity(found, _) => report.push(
                Diagnostic::error(
                    source,
                    Code::WrongUnit,
                    format!("this is {}, but {} is needed", found.noun(), dimension.noun()),
                )
                .at(span, "")
                .help(format!("write {}", dimension.describe())),
            ),
            Kind::Number(number) => report.push(
                Diagnostic::error(source, Code::MissingUnit, format!("{number} of what?"))
                    .at(span, "a unit is missing")
                    .help(format!("write {}", dimension.describe())),
            ),
            Kind::Poison
            | Kind::Word(_)
            | Kind::Text(_)
            | Kind::List(_)
            | Kind::Call(..)
            | Kind::Record(..) => {
                wrong_kind(self, dimension.describe(), report);
            }
        }
        None
    }

    /// The constant as `true` or `false`.
    pub(super) fn as_flag(&self, report: &mut Report) -> Option<bool> {
        match &self.kind {
            Kind::Word(word) if word == "true" => Some(true),
            Kind::Word(word) if word == "false" => Some(false),
            Kind::Poison
            | Kind::Number(_)
            | Kind::Quantity(..)
            | Kind::Word(_)
            | Kind::Text(_)
            | Kind::List(_)
            | Kind::Call(..)
            | Kind::Record(..) => {
                wrong_kind(self, "`true` or `false`", report);
                None
            }
        }
    }

    /// The constant as a text.
    pub(super) fn as_text(&self, report: &mut Report) -> Option<&str> {
        if let Kind::Text(text) = &self.kind {
            return Some(text);
        }
        wrong_kind(self, "a text in quotes", report);
        None
    }
}
