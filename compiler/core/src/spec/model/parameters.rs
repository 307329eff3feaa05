//! The parameters of a model: how they are named, shared and initialised.
//!
//! A parameter is called by `name:`, else by the name that its statement binds; where that is taken, `_2`, `_3` and so
//! on is added, so that names are distinct and the same for the same text. Sharing is explicit: `w = parameter([..])`
//! is one parameter however often `w` is given to an op.
//!
//! Unless the text says otherwise, tables are normal with deviation 0.02 (GPT-2), matrices `[out, in]` uniform within
//! `1 / sqrt(in)`, gains one and biases zero.

use super::super::constant::Kind;
use super::super::{Origin, SlotId};
use super::arguments::Arguments;
use super::operations::fault;
use super::{Builder, Draft, Term};
use pipe_grammar::ast::{Expr, ExprKind, Span, Statement};
use pipe_grammar::diagnostic::Code;
use pipec_program::Init;
use pipec_program::id::Id;
use std::collections::{BTreeMap, BTreeSet};

/// A parameter, or one for each repetition.
#[derive(Clone, Debug)]
pub(super) struct Declared {
    /// Its name, without that of a repetition.
    pub(super) name: String,
    pub(super) origin: Origin,
    pub(super) shape: Vec<u64>,
    pub(super) init: Init,
    /// Whether each repetition has one of its own.
    pub(super) local: bool,
}

/// The default of tables and of parameters that are declared by themselves.
pub(super) const TABLE: Init = Init::Normal { std: 0.02 };

/// The default of the matrix of a linear layer.
pub(super) fn matrix(inputs: u64) -> Init {
    Init::Uniform { bound: 1.0 / (inputs as f64).sqrt() }
}

/// The names of the parameters of one scope: a repetition, or what stands outside of all.
#[derive(Debug, Default)]
pub(super) struct Scope {
    /// Names that `name:` gives somewhere in the scope: no default name takes them.
    reserved: BTreeSet<String>,
    declared: BTreeMap<String, usize>,
    /// The next number to try behind a name.
    next: BTreeMap<String, u64>,
}

impl Scope {
    /// The scope of these statements, repeats in them left out.
    pub(super) fn new(statements: &[Statement]) -> Self {
        let mut scope = Scope::default();
        for statement in statements {
            if let Statement::Binding(binding) = statement {
                collect(&binding.value, &mut scope.reserved);
            }
        }
        scope
    }

    /// A name that is not taken: the wished one, or that with a number.
    fn free(&mut self, base: String) -> String {
        let mut name = base.clone();
        while self.reserved.contains(&name) || self.declared.contains_key(&name) {
            let next = self.next.entry(base.clone()).or_insert(2);
            name = format!("{base}_{next}");
            *next += 1;
        }
        name
    }
}

fn collect(expr: &Expr, into: &mut BTreeSet<String>) {
    match &expr.kind {
        ExprKind::Number(_) | ExprKind::Quantity(_) | ExprKind::Text(_) | ExprKind::Path(_) => {}
        ExprKind::Record(_) => {}
        ExprKind::Call(call) => {
            for argument in &call.arguments {
                match (&argument.name, &argument.value.kind) {
                    (Some(name), ExprKind::Path(path)) if name.text == "name" => {
                        into.insert(path.to_string());
                    }
                    _ => collect(&argument.value, into),
                }
            }
        }
        ExprKind::List(items) | ExprKind::Tuple(items) => items.iter().for_each(|item| collect(item, into)),
        ExprKind::Negate(operand) => collect(operand, into),
        ExprKind::Binary(binary) => {
            collect(&binary.left, into);
            collect(&binary.right, into);
        }
    }
}

impl Builder<'_> {
    /// The shared parameter that an argument gives to an op, if it gives one; `None` where it is something else.
    pub(super) fn shared(&mut self, arguments: &Arguments, argument: &str) -> Option<Option<usize>> {
        let Some((term, span)) = arguments.get(argument) else { return Some(None) };
        if let Term::Parameter(parameter) = term {
            return Some(Some(*parameter));
        }
        if !matches!(term, Term::Constant(constant) if constant.kind == Kind::Poison) {
            let error = self
                .error(Code::WrongKind, format!("`{argument}` of `{}` is a parameter", arguments.op))
                .at(span, "")
                .help("declare it as `w = parameter([rows, columns])`");
            self.report.push(error);
        }
        None
    }

    /// The weight of an op: the shared one that `weight` gives, or a new one.
    pub(super) fn weight(&mut self, arguments: &Arguments, shape: &[u64], init: Init) -> Option<SlotId> {
        let Some(parameter) = self.shared(arguments, "weight")? else {
            let init = self.init(arguments, init)?;
            let parameter = self.declare(arguments, shape.to_vec(), init);
            return Some(self.slot(parameter));
        };
        self.check_shape(arguments, "weight", parameter, shape)?;
        self.no_effect_beside_weight(arguments);
        Some(self.slot(parameter))
    }

    /// The bias that goes with a weight: the shared one, or a new one of zeros.
    pub(super) fn bias(
        &mut self,
        arguments: &Arguments,
        shared: Option<usize>,
        weight: SlotId,
        width: u64,
    ) -> Option<SlotId> {
        if let Some(parameter) = shared {
            self.check_shape(arguments, "bias", parameter, &[width])?;
            return Some(self.slot(parameter));
        }
        let owner = match &arguments.name {
            Some((name, _)) => name.clone(),
            None if arguments.has("weight") => self.binding.clone(),
            None => {
                let parameter = self.draft().slots[weight.index()];
                self.parameters[parameter].name.clone()
            }
        };
        let scope = &mut self.scopes[usize::from(self.inside)];
        let name = scope.free(format!("{owner}_bias"));
        scope.declared.insert(name.clone(), self.parameters.len());
        let parameter = self.add(name, arguments.callee, vec![width], Init::Constant { value: 0.0 });
        Some(self.slot(parameter))
    }

    /// Checks that a shared parameter has the shape that an op needs.
    fn check_shape(
        &mut self,
        arguments: &Arguments,
        argument: &str,
        parameter: usize,
        shape: &[u64],
    ) -> Option<()> {
        let declared = &self.parameters[parameter];
        if declared.shape == shape {
            return Some(());
        }
        let found = extents(&declared.shape);
        let what =
            format!("`{}` needs {} here, and `{}` is {found}", arguments.op, extents(shape), declared.name);
        let error = self
            .error(Code::ShapeMismatch, what)
            .at(arguments.span_of(argument), format!("this is {found}"))
            .with(declared.origin.span, "declared here");
        self.report.push(error);
        None
    }

    /// `init:` and `name:` mean nothing for a parameter that is declared elsewhere.
    fn no_effect_beside_weight(&mut self, arguments: &Arguments) {
        let spans = [
            ("init", arguments.get("init").map(|(_, span)| span)),
            ("name", arguments.name.as_ref().map(|(_, span)| *span)),
        ];
        for (key, span) in spans {
            // A bias beside a shared matrix is new and takes its name from `name:`.
            if let Some(span) = span
                && !(key == "name" && arguments.has("bias"))
            {
                let error = self
                    .error(Code::NoEffect, format!("`{key}` does nothing beside `weight`"))
                    .at(span, "")
                    .with(arguments.span_of("weight"), "the parameter is declared elsewhere")
                    .help(format!("give `{key}` where the parameter is declared"));
                self.report.push(error);
            }
        }
    }

    /// `w = parameter([rows, columns], init: ..)`.
    pub(super) fn parameter(&mut self, arguments: &Arguments) -> Option<Term> {
        let shape = self.shape(arguments, "parameter([vocab, dim])");
        let init = self.init(arguments, TABLE);
        let (shape, init) = (shape?, init?);
        Some(Term::Parameter(self.declare(arguments, shape, init)))
    }

    /// The `shape` argument: a list of one or two extents.
    fn shape(&mut self, arguments: &Arguments, example: &str) -> Option<Vec<u64>> {
        let Some(constant) = self.given(arguments, "shape") else {
            self.missing(arguments, "shape", example);
            return None;
        };
        let Kind::List(items) = &constant.kind else {
            super::super::constant::wrong_kind(
                &constant,
                "a list of extents such as `[vocab, dim]`",
                self.report,
            );
            return None;
        };
        if items.is_empty() || items.len() > 2 {
            let what = format!("a parameter has one or two extents, not {}", items.len());
            let error = fault(&constant, Code::ShapeMismatch, what, "").help(format!("write `{example}`"));
            self.report.push(error);
            return None;
        }
        let extents: Vec<_> = items.iter().map(|item| self.count(item, 1)).collect();
        extents.into_iter().collect()
    }

    /// The `init` argument.
    fn init(&mut self, arguments: &Arguments, default: Init) -> Option<Init> {
        let Some(constant) = self.given(arguments, "init") else {
            return Some(default);
        };
        let positive = |value: f64| value > 0.0;
        match &constant.kind {
            Kind::Word(word) if word == "zeros" => Some(Init::Constant { value: 0.0 }),
            Kind::Word(word) if word == "ones" => Some(Init::Constant { value: 1.0 }),
            Kind::Call(kind, values) if matches!(kind.as_str(), "uniform" | "normal") => {
                let [(None, value)] = values.as_slice() else {
                    let what = format!("`{kind}` takes one number");
                    let error = fault(&constant, Code::MissingArgument, what, "")
                        .help(format!("write `{kind}(0.02)`"));
                    self.report.push(error);
                    return None;
                };
                let value = value.as_real("above 0", positive, &self.environment, self.report)?;
                Some(if kind == "uniform" {
                    Init::Uniform { bound: value }
                } else {
                    Init::Normal { std: value }
                })
            }
            Kind::Poison
            | Kind::Word(_)
            | Kind::Call(..)
            | Kind::Number(_)
            | Kind::Quantity(..)
            | Kind::Text(_)
            | Kind::List(_)
            | Kind::Record(..) => {
                let choices = ["uniform(bound)", "normal(deviation)", "zeros", "ones"];
                self.bad_choice(&constant, "an initial value", &choices);
                None
            }
        }
    }

    /// Adds a parameter under the name that is given, or one that is free.
    fn declare(&mut self, arguments: &Arguments, shape: Vec<u64>, init: Init) -> usize {
        let index = self.parameters.len();
        let scope = &mut self.scopes[usize::from(self.inside)];
        let Some((name, span)) = &arguments.name else {
            let name = scope.free(self.binding.clone());
            scope.declared.insert(name.clone(), index);
            return self.add(name, arguments.callee, shape, init);
        };
        if let Some(first) = scope.declared.insert(name.clone(), index) {
            let error = self
                .error(Code::DuplicateName, format!("two parameters are called `{name}`"))
                .at(*span, "")
                .with(self.parameters[first].origin.span, "the first one")
                .help(format!(
                    "to share one, declare `{name} = parameter([..])` and give `weight: {name}` to both ops"
                ));
            self.report.push(error);
        }
        self.add(name.clone(), *span, shape, init)
    }

    fn add(&mut self, name: String, span: Span, shape: Vec<u64>, init: Init) -> usize {
        let origin = self.origin(span);
        self.parameters.push(Declared { name, origin, shape, init, local: self.inside });
        self.parameters.len() - 1
    }

    /// The slot of a parameter in the present draft.
    fn slot(&mut self, parameter: usize) -> SlotId {
        let Draft { slots, slot_of, .. } = self.draft();
        *slot_of.entry(parameter).or_insert_with(|| {
            slots.push(parameter);
            SlotId::new(slots.len() - 1)
        })
    }
}

/// `[4096, 256]`.
pub(super) fn extents(shape: &[u64]) -> String {
    let extents: Vec<_> = shape.iter().map(u64::to_string).collect();
    format!("[{}]", extents.join(", "))
}
