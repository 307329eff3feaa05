//! The ops of the language with their arguments, and how a call is matched to them.

use super::super::Origin;
use super::super::constant::{Constant, Kind, square_root, unknown_name, wrong_kind};
use super::operations::{MAX_EXTENT, fault};
use super::{Builder, Tensor, Term};
use pipe_grammar::ast::{self, ExprKind, Span};
use pipe_grammar::diagnostic::{Code, suggest};

/// An op: its arguments by position, which may also be given by name, and those given by name only.
pub(super) struct Signature {
    pub(super) op: &'static str,
    positional: &'static [&'static str],
    named: &'static [&'static str],
}

/// Every op of the language.
pub(super) const SIGNATURES: &[Signature] = &[
    Signature { op: "input", positional: &["kind", "shape"], named: &[] },
    Signature { op: "parameter", positional: &["shape"], named: &["init", "name"] },
    Signature {
        op: "embedding",
        positional: &["tokens", "vocab", "dim"],
        named: &["weight", "init", "name"],
    },
    Signature { op: "positions", positional: &["x", "rows"], named: &["first", "weight", "init", "name"] },
    Signature { op: "linear", positional: &["x", "out"], named: &["bias", "weight", "init", "name"] },
    Signature { op: "rms_norm", positional: &["x"], named: &["eps", "weight", "name"] },
    Signature { op: "layer_norm", positional: &["x"], named: &["eps", "weight", "bias", "name"] },
    Signature { op: "heads", positional: &["x", "count"], named: &[] },
    Signature { op: "merge", positional: &["x"], named: &[] },
    Signature { op: "rope", positional: &["x"], named: &["base", "pairing", "rotary", "scaling"] },
    Signature { op: "attention", positional: &["q", "k", "v"], named: &["mask", "scale"] },
    Signature { op: "silu", positional: &["x"], named: &[] },
    Signature { op: "gelu", positional: &["x"], named: &[] },
    Signature { op: "gelu_tanh", positional: &["x"], named: &[] },
    Signature { op: "relu", positional: &["x"], named: &[] },
    Signature { op: "add", positional: &["a", "b"], named: &[] },
    Signature { op: "mul", positional: &["a", "b"], named: &[] },
    Signature { op: "softmax", positional: &["x"], named: &[] },
    Signature { op: "dropout", positional: &["x", "p"], named: &[] },
    Signature { op: "cross_entropy", positional: &["logits", "targets"], named: &["ignore"] },
];

/// Every op of the language with the names of its arguments: those by position first, then those by name only.
pub fn ops() -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
    SIGNATURES.iter().map(|signature| {
        (signature.op, signature.positional.iter().chain(signature.named).copied().collect())
    })
}

/// Calls that are constants: choices with arguments.
const CONSTRUCTORS: &[&str] = &["window", "uniform", "normal"];

/// Ops of other frameworks and of models that pipec does not express.
const UNAVAILABLE: &[&str] = &[
    "moe",
    "experts",
    "router",
    "mla",
    "conv",
    "conv1d",
    "alibi",
    "concat",
    "split",
    "tanh",
    "sigmoid",
    "exp",
    "swiglu",
    "geglu",
    "batch_norm",
    "group_norm",
    "softcap",
    "mamba",
];

/// The arguments of a call, matched to its op.
pub(super) struct Arguments {
    pub(super) op: &'static str,
    /// The whole call.
    pub(super) span: Span,
    /// The name of the op in the call.
    pub(super) callee: Span,
    given: Vec<(&'static str, Term, Span)>,
    /// The `name:` argument.
    pub(super) name: Option<(String, Span)>,
}

impl Arguments {
    pub(super) fn get(&self, name: &str) -> Option<(&Term, Span)> {
        self.given.iter().find(|(given, _, _)| *given == name).map(|(_, term, span)| (term, *span))
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub(super) fn span_of(&self, name: &str) -> Span {
        self.get(name).map_or(self.callee, |(_, span)| span)
    }
}

impl Builder<'_> {
    /// The value of a call.
    pub(super) fn call(&mut self, span: Span, call: &ast::Call) -> Term {
        let origin = self.origin(span);
        let callee = self.callee(&call.callee);
        let Some(signature) = SIGNATURES.iter().find(|signature| signature.op == callee) else {
            return Term::Constant(self.constant_call(origin, &callee, call));
        };
        let mut arguments =
            Arguments { op: signature.op, span, callee: call.callee.span, given: Vec::new(), name: None };
        let mut positional = signature.positional.iter();
        let errors = self.report.errors();
        for argument in &call.arguments {
            let slot = match &argument.name {
                None => positional.next().copied(),
                Some(name) if name.text == "name" && signature.named.contains(&"name") => {
                    arguments.name = self.parameter_name(&argument.value);
                    continue;
                }
                Some(name) => signature
                    .positional
                    .iter()
                    .chain(signature.named)
                    .copied()
                    .find(|slot| *slot == name.text),
            };
            let term = self.term(&argument.value);
            match slot {
                Some(slot) if arguments.has(slot) => {
                    let error = self
                        .error(Code::DuplicateKey, format!("`{}` gets `{slot}` twice", signature.op))
                        .at(argument.span, "")
                        .with(arguments.span_of(slot), "first given here");
                    self.report.push(error);
                }
                Some(slot) => arguments.given.push((slot, term, argument.value.span)),
                None => self.unknown_argument(signature, argument),
            }
        }
        let misread = self.report.errors() > errors;
        // What an op makes of arguments that were misread is not to be trusted.
        self.apply(&arguments).filter(|_| !misread).unwrap_or(Term::Constant(Constant::poison(origin)))
    }

    /// The op that a callee names, directly or through a constant (`activation: gelu`).
    fn callee(&mut self, path: &ast::Path) -> String {
        let spelling = path.to_string();
        if let Some(Constant { kind: Kind::Word(word), .. }) = self.environment.get(&spelling) {
            let word = word.clone();
            if let Some(&index) = self.names.get(&spelling) {
                self.bounds[index].used = true;
            }
            return word;
        }
        spelling
    }

    fn unknown_argument(&mut self, signature: &Signature, argument: &ast::Argument) {
        let slots = || signature.positional.iter().chain(signature.named).copied();
        let listed = slots().collect::<Vec<_>>().join(", ");
        let error = match &argument.name {
            Some(name) => {
                let error = self
                    .error(
                        Code::UnknownArgument,
                        format!("`{}` takes no argument `{}`", signature.op, name.text),
                    )
                    .at(name.span, "");
                match suggest(&name.text, slots()) {
                    Some(near) => error.help(format!("did you mean `{near}`?")),
                    None => error.help(format!("its arguments are {listed}")),
                }
            }
            None => self
                .error(Code::UnknownArgument, format!("too many arguments for `{}`", signature.op))
                .at(argument.span, "")
                .help(format!("its arguments are {listed}")),
        };
        self.report.push(error);
    }

    /// A call of no op: a function of numbers, a choice with arguments, or a mistake.
    fn constant_call(&mut self, origin: Origin, callee: &str, call: &ast::Call) -> Constant {
        let arguments: Vec<_> = call
            .arguments
            .iter()
            .map(|argument| {
                let name = argument.name.as_ref().map(|name| (name.text.clone(), self.origin(name.span)));
                let value = match self.term(&argument.value) {
                    Term::Constant(constant) => constant,
                    Term::Tensor(_)
                    | Term::Parameter(_)
                    | Term::Tokens
                    | Term::Targets
                    | Term::Loss
                    | Term::Inside { .. } => Constant::poison(self.origin(argument.value.span)),
                };
                (name, value)
            })
            .collect();
        if callee == "sqrt" {
            return square_root(origin, &arguments, self.report);
        }
        if CONSTRUCTORS.contains(&callee) {
            return Constant { origin, kind: Kind::Call(callee.to_owned(), arguments) };
        }
        let error = if UNAVAILABLE.contains(&callee) {
            self.error(Code::Unsupported, format!("the op `{callee}` is not available"))
                .at(call.callee.span, "pipec does not have this")
        } else {
            let error =
                self.error(Code::UnknownOp, format!("there is no op `{callee}`")).at(call.callee.span, "");
            let functions = CONSTRUCTORS.iter().copied().chain(["sqrt"]);
            match suggest(callee, SIGNATURES.iter().map(|signature| signature.op).chain(functions)) {
                Some(near) => error.help(format!("did you mean `{near}`?")),
                None => {
                    let ops: Vec<_> = SIGNATURES.iter().map(|signature| signature.op).collect();
                    error.help(format!("the ops are {}", ops.join(", ")))
                }
            }
        };
        self.report.push(error);
        Constant::poison(origin)
    }

    /// The value of `name:`, which is a name and not what the name may stand for.
    fn parameter_name(&mut self, expr: &ast::Expr) -> Option<(String, Span)> {
        if let ExprKind::Path(path) = &expr.kind
            && let Some(name) = path.as_name()
        {
            return Some((name.text.clone(), name.span));
        }
        let error = self.error(Code::WrongKind, "expected a name for the parameter").at(expr.span, "");
        self.report.push(error.help("write `name: wq`"));
        None
    }

    /// Reports an argument that is required, with an example of it.
    pub(super) fn missing(&mut self, arguments: &Arguments, name: &str, example: &str) {
        let error = self
            .error(Code::MissingArgument, format!("`{}` needs `{name}`", arguments.op))
            .at(arguments.callee, "")
            .help(format!("write `{example}`"));
        self.report.push(error);
    }

    /// An argument that must be a value of the model.
    pub(super) fn tensor(&mut self, arguments: &Arguments, name: &str) -> Option<Tensor> {
        let Some((term, span)) = arguments.get(name) else {
            self.missing(arguments, name, &format!("{}({name}, ..)", arguments.op));
            return None;
        };
        if let Term::Tensor(tensor) = term {
            return Some(*tensor);
        }
        let term = term.clone();
        self.not_a_value(&term, span);
        None
    }

    /// An argument that must be a constant, if it is there.
    pub(super) fn given(&mut self, arguments: &Arguments, name: &str) -> Option<Constant> {
        let (term, span) = arguments.get(name)?;
        match term {
            Term::Constant(constant) => Some(constant.clone()),
            Term::Tensor(_)
            | Term::Parameter(_)
            | Term::Tokens
            | Term::Targets
            | Term::Loss
            | Term::Inside { .. } => {
                let error = self
                    .error(Code::WrongKind, format!("`{name}` of `{}` is a constant", arguments.op))
                    .at(span, "this is computed by the model");
                self.report.push(error);
                Some(Constant::poison(self.origin(span)))
            }
        }
    }

    /// An argument that must be a whole number from 1 on.
    pub(super) fn extent(&mut self, arguments: &Arguments, name: &str, example: &str) -> Option<u64> {
        let Some(constant) = self.given(arguments, name) else {
            self.missing(arguments, name, example);
            return None;
        };
        let count = self.count(&constant, 1)?;
        if count <= MAX_EXTENT {
            return Some(count);
        }
        let what = format!("{count} is too large");
        self.report.push(fault(&constant, Code::OutOfRange, what, format!("at most {MAX_EXTENT}")));
        None
    }

    /// A constant as a whole number; misspelt names are compared with all that are known.
    pub(super) fn count(&mut self, constant: &Constant, least: u64) -> Option<u64> {
        constant.as_count(least, &self.environment, self.report)
    }

    /// An argument that must be a real number, or its default.
    pub(super) fn real(
        &mut self,
        arguments: &Arguments,
        name: &str,
        default: f64,
        range: &str,
        allowed: impl Fn(f64) -> bool,
    ) -> Option<f64> {
        match self.given(arguments, name) {
            Some(constant) => constant.as_real(range, allowed, &self.environment, self.report),
            None => Some(default),
        }
    }

    /// Reports a choice that an argument does not offer.
    pub(super) fn bad_choice(&mut self, constant: &Constant, what: &str, choices: &[&str]) {
        match &constant.kind {
            Kind::Poison => {}
            Kind::Word(word) | Kind::Call(word, _) | Kind::Record(word, _, _)
                if suggest(word, choices.iter().copied()).is_some() =>
            {
                unknown_name(word, constant.origin, choices.iter().copied(), self.report);
            }
            Kind::Word(_)
            | Kind::Call(..)
            | Kind::Record(..)
            | Kind::Number(_)
            | Kind::Quantity(..)
            | Kind::Text(_)
            | Kind::List(_) => {
                wrong_kind(constant, &format!("{what}: {}", choices.join(", ")), self.report);
            }
        }
    }
}
