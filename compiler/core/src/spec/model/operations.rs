//! The ops of the language: what each asks of its arguments, and the shape of what it yields.

use super::super::constant::{Constant, Kind};
use super::super::{Op, Unary};
use super::arguments::Arguments;
use super::parameters::{TABLE, extents, matrix};
use super::{Builder, Tensor, Term, describe_shape};
use pipe_grammar::ast::Span;
use pipe_grammar::diagnostic::{Code, Diagnostic};
use pipec_program::{Init, Mask, Pairing, RopeScaling};

/// The largest extent of a tensor, so that products of two stay far below the range of a size.
pub(super) const MAX_EXTENT: u64 = 1 << 31;

const ONES: Init = Init::Constant { value: 1.0 };

impl Builder<'_> {
    /// The result of an op; `None` where a fault has been reported.
    pub(super) fn apply(&mut self, arguments: &Arguments) -> Option<Term> {
        match arguments.op {
            "input" => self.input(arguments),
            "parameter" => self.parameter(arguments),
            "embedding" => self.embedding(arguments),
            "positions" => self.positions(arguments),
            "linear" => self.linear(arguments),
            "rms_norm" => self.rms_norm(arguments),
            "layer_norm" => self.layer_norm(arguments),
            "heads" => self.heads(arguments),
            "merge" => self.merge(arguments),
            "rope" => self.rope(arguments),
            "attention" => self.attention(arguments),
            "silu" => self.unary(arguments, Unary::Silu),
            "gelu" => self.unary(arguments, Unary::Gelu),
            "gelu_tanh" => self.unary(arguments, Unary::GeluTanh),
            "relu" => self.unary(arguments, Unary::Relu),
            "add" | "mul" => {
                let (a, b) = (self.tensor(arguments, "a"), self.tensor(arguments, "b"));
                let (a, b) = ((a?, arguments.span_of("a")), (b?, arguments.span_of("b")));
                Some(self.pointwise(arguments.span, arguments.op, a, b))
            }
            "softmax" => {
                let x = self.tensor(arguments, "x")?;
                Some(self.result(arguments, Op::Softmax { x: x.value }, x.heads, x.width))
            }
            "dropout" => self.dropout(arguments),
            "cross_entropy" => self.cross_entropy(arguments),
            // Signatures and this table are written side by side; a test walks all of them.
            _ => None,
        }
    }

    fn result(&mut self, arguments: &Arguments, op: Op, heads: u64, width: u64) -> Term {
        self.operation(op, arguments.span, arguments.op, heads, width)
    }

    /// `tokens = input(token, [seq])`: the first is the tokens of the step, the second the next ones.
    fn input(&mut self, arguments: &Arguments) -> Option<Term> {
        match self.given(arguments, "kind") {
            Some(Constant { kind: Kind::Word(word), .. }) if word == "token" => {}
            Some(constant) => self.bad_choice(&constant, "the kind of an input", &["token"]),
            None => self.missing(arguments, "kind", "input(token, [seq])"),
        }
        match self.given(arguments, "shape") {
            None => self.missing(arguments, "shape", "input(token, [seq])"),
            Some(constant) => match &constant.kind {
                Kind::List(items) if items.len() == 1 => {
                    for item in items {
                        if let (Some(extent), Some(seq)) = (self.count(item, 1), self.seq)
                            && extent != seq
                        {
                            let error = fault(
                                item,
                                Code::ShapeMismatch,
                                format!("the input has {extent} tokens, the training run {seq}"),
                                format!("{extent} tokens"),
                            )
                            .help("write `[seq]`, which is what the training run says");
                            self.report.push(error);
                        }
                    }
                }
                Kind::List(items) => {
                    let what = format!("an input has one extent, not {}", items.len());
                    let error = fault(&constant, Code::ShapeMismatch, what, "")
                        .help("write `[seq]`: one token id per position; the batch is not part of a model");
                    self.report.push(error);
                }
                Kind::Poison
                | Kind::Number(_)
                | Kind::Quantity(..)
                | Kind::Word(_)
                | Kind::Text(_)
                | Kind::Call(..)
                | Kind::Record(..) => {
                    super::super::constant::wrong_kind(&constant, "a list such as `[seq]`", self.report);
                }
            },
        }
        let origin = self.origin(arguments.span);
        self.inputs.push(origin);
        match self.inputs.as_slice() {
            [_] => Some(Term::Tokens),
            [_, _] => Some(Term::Targets),
            _ => {
                let error = self
                    .error(Code::Unsupported, "a third input")
                    .at(arguments.span, "")
                    .help("a model has two: the tokens, and the next tokens as targets");
                self.report.push(error);
                None
            }
        }
    }

    fn embedding(&mut self, arguments: &Arguments) -> Option<Term> {
        let tokens = match arguments.get("tokens") {
            Some((Term::Tokens, _)) => Some(()),
            Some((Term::Targets, span)) => {
                let first = self.inputs.first().map_or(span, |origin| origin.span);
                let error = self
                    .error(Code::WrongKind, "the embedding reads the next tokens")
                    .at(span, "the second input is what the model has to predict")
                    .with(first, "the first input is what it may see");
                self.report.push(error);
                None
            }
            Some((term, span)) => {
                if !matches!(term, Term::Constant(Constant { kind: Kind::Poison, .. })) {
                    let error = self
                        .error(Code::WrongKind, "expected token ids")
                        .at(span, "")
                        .help("declare `tokens = input(token, [seq])`");
                    self.report.push(error);
                }
                None
            }
            None => {
                self.missing(arguments, "tokens", "embedding(tokens, vocab: 256, dim: 64)");
                None
            }
        };
        let shape = self.table(arguments, ["vocab", "dim"], "embedding(tokens, vocab: 256, dim: 64)");
        let (_, [vocab, dim]) = (tokens?, shape?);
        if self.here() > 0 || self.inside {
            let error = self
                .error(Code::Misplaced, "an embedding inside or after a repeat")
                .at(arguments.callee, "")
                .help("embed before the first repeat; the values can be carried through it");
            self.report.push(error);
            return None;
        }
        let table = self.weight(arguments, &[vocab, dim], TABLE)?;
        if self.vocab.is_none_or(|(largest, _)| vocab > largest) {
            self.vocab = Some((vocab, self.origin(arguments.span)));
        }
        Some(self.result(arguments, Op::Embedding { table }, 1, dim))
    }

    /// The extents of a table: from its two arguments, or from the shared one.
    fn table(&mut self, arguments: &Arguments, names: [&str; 2], example: &str) -> Option<[u64; 2]> {
        let shared = self.shared(arguments, "weight")?;
        if let Some([rows, columns]) = shared.map(|parameter| &*self.parameters[parameter].shape) {
            let mut shape = [*rows, *columns];
            for (extent, name) in shape.iter_mut().zip(names) {
                if arguments.has(name) {
                    *extent = self.extent(arguments, name, example)?;
                }
            }
            return Some(shape);
        }
        let [rows, columns] = names.map(|name| self.extent(arguments, name, example));
        Some([rows?, columns?])
    }

    fn positions(&mut self, arguments: &Arguments) -> Option<Term> {
        let x = self.tensor(arguments, "x");
        let first = match self.given(arguments, "first") {
            Some(constant) => self.count(&constant, 0),
            None => Some(0),
        };
        let shared = self.shared(arguments, "weight");
        let rows = match shared {
            None => None,
            Some(Some(shared)) if !arguments.has("rows") => self.parameters[shared].shape.first().copied(),
            Some(_) => self.extent(arguments, "rows", "positions(x, 2048)"),
        };
        let (x, first, rows) = (self.joined(x?, arguments, "x")?, first?, rows?);
        let seq = self.seq.unwrap_or(1);
        if first.saturating_add(seq) > rows {
            let error = self
                .error(
                    Code::ShapeMismatch,
                    format!(
                        "the table of positions has {rows} rows, but {seq} tokens from row {first} on need {}",
                        first.saturating_add(seq)
                    ),
                )
                .at(arguments.span_of("rows"), format!("{rows} rows"))
                .help(format!(
                    "train with `seq: {}` at most, or give the table more rows",
                    rows.saturating_sub(first)
                ));
            self.report.push(error);
            return None;
        }
        let table = self.weight(arguments, &[rows, x.width], TABLE)?;
        Some(self.result(arguments, Op::Positions { x: x.value, table, first }, 1, x.width))
    }

    /// A value that must be one vector per token.
    fn joined(&mut self, x: Tensor, arguments: &Arguments, name: &str) -> Option<Tensor> {
        if x.heads == 1 {
            return Some(x);
        }
        let error = self
            .error(Code::ShapeMismatch, format!("`{}` of {}", arguments.op, describe_shape(x.heads, x.width)))
            .at(arguments.span_of(name), format!("{} here", x.describe()))
            .help(format!("join the heads first: `{}(merge(..), ..)`", arguments.op));
        self.report.push(error);
        None
    }

    fn linear(&mut self, arguments: &Arguments) -> Option<Term> {
        let x = self.tensor(arguments, "x");
        let shared = self.shared(arguments, "weight");
        let out = match shared {
            None => None,
            Some(Some(shared)) if !arguments.has("out") => self.parameters[shared].shape.first().copied(),
            Some(_) => self.extent(arguments, "out", "linear(x, 256)"),
        };
        let (bias, shared_bias) = match arguments.get("bias") {
            Some((Term::Parameter(parameter), _)) => (Some(true), Some(*parameter)),
            Some(_) => (self.given(arguments, "bias").and_then(|constant| self.flag(&constant)), None),
            None => (Some(false), None),
        };
        let x = self.joined(x?, arguments, "x")?;
        let (out, bias) = (out?, bias?);
        let weight = self.weight(arguments, &[out, x.width], matrix(x.width))?;
        let bias = if bias { Some(self.bias(arguments, shared_bias, weight, out)?) } else { None };
        Some(self.result(arguments, Op::Linear { x: x.value, weight, bias }, 1, out))
    }

    fn flag(&mut self, constant: &Constant) -> Option<bool> {
        constant.as_flag(self.report)
    }

    fn eps(&mut self, arguments: &Arguments) -> Option<f64> {
        self.real(arguments, "eps", 1e-5, "from 0 on", |eps| eps >= 0.0)
    }

    fn rms_norm(&mut self, arguments: &Arguments) -> Option<Term> {
        let (x, eps) = (self.tensor(arguments, "x"), self.eps(arguments));
        let (x, eps) = (x?, eps?);
        let gain = self.weight(arguments, &[x.width], ONES)?;
        Some(self.result(arguments, Op::RmsNorm { x: x.value, gain, eps }, x.heads, x.width))
    }

    fn layer_norm(&mut self, arguments: &Arguments) -> Option<Term> {
        let (x, eps) = (self.tensor(arguments, "x"), self.eps(arguments));
        let shared_bias = self.shared(arguments, "bias");
        let (x, eps, shared_bias) = (x?, eps?, shared_bias?);
        let gain = self.weight(arguments, &[x.width], ONES)?;
        let bias = self.bias(arguments, shared_bias, gain, x.width)?;
        Some(self.result(arguments, Op::LayerNorm { x: x.value, gain, bias, eps }, x.heads, x.width))
    }

    fn heads(&mut self, arguments: &Arguments) -> Option<Term> {
        let x = self.tensor(arguments, "x");
        let count = self.extent(arguments, "count", "heads(x, 8)");
        let (x, count) = (x?, count?);
        if x.heads != 1 {
            let error = self
                .error(Code::ShapeMismatch, format!("already split into {}", x.describe()))
                .at(arguments.span_of("x"), x.describe())
                .help("join the heads first: `heads(merge(x), n)`");
            self.report.push(error);
            return None;
        }
        if !x.width.is_multiple_of(count) {
            let near = nearest_divisors(x.width, count);
            let error = self
                .error(Code::InexactDivision, format!("{} wide does not divide into {count} heads", x.width))
                .at(arguments.span_of("count"), format!("{count} heads"))
                .with(arguments.span_of("x"), x.describe())
                .help(format!("{near} heads would divide it"));
            self.report.push(error);
            return None;
        }
        if count == 1 {
            return Some(Term::Tensor(x));
        }
        Some(self.result(arguments, Op::Reshape { x: x.value }, count, x.width / count))
    }

    fn merge(&mut self, arguments: &Arguments) -> Option<Term> {
        let x = self.tensor(arguments, "x")?;
        if x.heads == 1 {
            return Some(Term::Tensor(x));
        }
        Some(self.result(arguments, Op::Reshape { x: x.value }, 1, x.heads * x.width))
    }

    fn rope(&mut self, arguments: &Arguments) -> Option<Term> {
        let x = self.tensor(arguments, "x");
        let base = self.real(arguments, "base", 10000.0, "above 1", |base| base > 1.0);
        let pairing = match self.given(arguments, "pairing") {
            None => Some(Pairing::Half),
            Some(Constant { kind: Kind::Word(word), .. }) if word == "half" => Some(Pairing::Half),
            Some(Constant { kind: Kind::Word(word), .. }) if word == "adjacent" => Some(Pairing::Adjacent),
            Some(constant) => {
                self.bad_choice(&constant, "a pairing", &["half", "adjacent"]);
                None
            }
        };
        let scaling = match self.given(arguments, "scaling") {
            None => Some(None),
            Some(constant) => self.scaling(&constant),
        };
        let rotary = match self.given(arguments, "rotary") {
            None => Some(None),
            Some(constant) => self.count(&constant, 1).map(Some),
        };
        let (x, base, pairing, scaling) = (x?, base?, pairing?, scaling?);
        let rotary = rotary?.unwrap_or(x.width);
        if rotary % 2 == 1 || rotary > x.width {
            let what = if rotary > x.width {
                format!("rope of {rotary} components, but a vector has {}", x.width)
            } else {
                format!("rope of {rotary} components: they rotate in pairs")
            };
            let place = if arguments.has("rotary") { "rotary" } else { "x" };
            let error = self
                .error(Code::ShapeMismatch, what)
                .at(arguments.span_of(place), if place == "x" { x.describe() } else { String::new() });
            self.report.push(if x.width < 2 {
                error.help("a vector needs at least two components to rotate")
            } else {
                error.help(format!("an even number up to {} is right", x.width))
            });
            return None;
        }
        let op = Op::Rope { x: x.value, rotary, base, pairing, scaling };
        Some(self.result(arguments, op, x.heads, x.width))
    }

    /// `none` or `llama3 { factor: 8, low: 1, high: 4, original: 8192 }`.
    fn scaling(&mut self, constant: &Constant) -> Option<Option<RopeScaling>> {
        match &constant.kind {
            Kind::Word(word) if word == "none" => Some(None),
            Kind::Record(kind, _, settings) if kind == "llama3" => {
                let keys = ["factor", "low", "high", "original"];
                let block = super::super::settings::Block::new("`llama3`", settings, &keys, &[], self.report);
                let mut real = |key: &str, example: &str| {
                    let value = block.require(key, example, self.report)?;
                    value.as_real("above 0", |value| value > 0.0, &self.environment, self.report)
                };
                let (factor, low, high) = (real("factor", "8"), real("low", "1"), real("high", "4"));
                let original = block.require("original", "8192", self.report);
                let original = original.and_then(|value| self.count(value, 1));
                let (factor, low, high, original) = (factor?, low?, high?, original?);
                if low >= high {
                    let place = block.origin("low");
                    let what = format!("`low` is {low} and `high` is {high}");
                    self.report.push(
                        Diagnostic::error(place.source, Code::OutOfRange, what)
                            .at(place.span, "must be below `high`")
                            .with(block.origin("high").span, ""),
                    );
                    return None;
                }
                Some(Some(RopeScaling { factor, low, high, original }))
            }
            Kind::Poison
            | Kind::Word(_)
            | Kind::Record(..)
            | Kind::Number(_)
            | Kind::Quantity(..)
            | Kind::Text(_)
            | Kind::List(_)
            | Kind::Call(..) => {
                self.bad_choice(constant, "a scaling", &["none", "llama3"]);
                None
            }
        }
    }

    fn attention(&mut self, arguments: &Arguments) -> Option<Term> {
        let [q, k, v] = ["q", "k", "v"].map(|name| self.tensor(arguments, name));
        let mask = match self.given(arguments, "mask") {
            Some(constant) => self.mask(&constant),
            None => {
                self.missing(arguments, "mask", "attention(q, k, v, mask: causal)");
                None
            }
        };
        let scale = match self.given(arguments, "scale") {
            Some(constant) => {
                constant.as_real("above 0", |value| value > 0.0, &self.environment, self.report).map(Some)
            }
            None => Some(None),
        };
        let (q, k, v, mask, scale) = (q?, k?, v?, mask?, scale?);
        let spans = ["q", "k", "v"].map(|name| arguments.span_of(name));
        let mismatch = |builder: &Self, what: String| -> Diagnostic {
            builder
                .error(Code::ShapeMismatch, what)
                .at(spans[1], format!("keys: {}", k.describe()))
                .with(spans[0], format!("queries: {}", q.describe()))
                .with(spans[2], format!("values: {}", v.describe()))
        };
        let error = if q.width != k.width {
            Some(mismatch(self, format!("queries of {} against keys of {}", q.width, k.width)))
        } else if (k.heads, k.width) != (v.heads, v.width) {
            Some(mismatch(self, "keys and values differ in shape".to_owned()))
        } else if !q.heads.is_multiple_of(k.heads) {
            let help = format!("{} key heads would divide them", nearest_divisors(q.heads, k.heads));
            let what = format!("{} query heads over {} key heads do not come out", q.heads, k.heads);
            Some(mismatch(self, what).help(help))
        } else {
            None
        };
        if let Some(error) = error {
            self.report.push(error);
            return None;
        }
        let scale = scale.unwrap_or_else(|| 1.0 / (q.width as f64).sqrt());
        let op = Op::Attention { q: q.value, k: k.value, v: v.value, mask, scale };
        Some(self.result(arguments, op, q.heads, q.width))
    }

    fn mask(&mut self, constant: &Constant) -> Option<Mask> {
        match &constant.kind {
            Kind::Word(word) if word == "causal" => Some(Mask::Causal),
            Kind::Word(word) if word == "full" => Some(Mask::Full),
            Kind::Call(kind, sizes) if kind == "window" => {
                let [(None, size)] = sizes.as_slice() else {
                    let what = "`window` takes the number of keys that a query sees";
                    let error = fault(constant, Code::MissingArgument, what, "").help("write `window(4096)`");
                    self.report.push(error);
                    return None;
                };
                let size = self.count(size, 1)?;
                // A window as long as the sequence hides nothing: the same numbers, and one kind of mask less to plan.
                Some(if self.seq.is_some_and(|seq| size >= seq) {
                    Mask::Causal
                } else {
                    Mask::Window { size }
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
                self.bad_choice(constant, "a mask", &["causal", "full", "window(size)"]);
                None
            }
        }
    }

    fn unary(&mut self, arguments: &Arguments, function: Unary) -> Option<Term> {
        let x = self.tensor(arguments, "x")?;
        Some(self.result(arguments, Op::Unary { function, x: x.value }, x.heads, x.width))
    }

    /// Sum or product of two values of one shape.
    pub(super) fn pointwise(
        &mut self,
        span: Span,
        op: &'static str,
        (a, a_span): (Tensor, Span),
        (b, b_span): (Tensor, Span),
    ) -> Term {
        if (a.heads, a.width) != (b.heads, b.width) {
            let word = if op == "add" { "sum" } else { "product" };
            let error = self
                .error(
                    Code::ShapeMismatch,
                    format!("a {word} of two shapes: {} and {}", a.describe(), b.describe()),
                )
                .at(b_span, b.describe())
                .with(a_span, a.describe());
            self.report.push(error);
            return Term::Constant(Constant::poison(self.origin(span)));
        }
        let (x, y) = (a.value, b.value);
        let operation = if op == "add" { Op::Add { a: x, b: y } } else { Op::Mul { a: x, b: y } };
        self.operation(operation, span, op, a.heads, a.width)
    }

    fn dropout(&mut self, arguments: &Arguments) -> Option<Term> {
        let x = self.tensor(arguments, "x");
        let Some(constant) = self.given(arguments, "p") else {
            self.missing(arguments, "p", "dropout(x, 0.1)");
            return None;
        };
        let p = constant.as_real(
            "from 0 and below 1",
            |p| (0.0..1.0).contains(&p),
            &self.environment,
            self.report,
        );
        let (x, p) = (x?, p?);
        if p == 0.0 {
            // A model that takes the probability as a parameter may be asked for none.
            return Some(Term::Tensor(x));
        }
        Some(self.result(arguments, Op::Dropout { x: x.value, p }, x.heads, x.width))
    }

    fn cross_entropy(&mut self, arguments: &Arguments) -> Option<Term> {
        let logits = self.tensor(arguments, "logits");
        let targets = match arguments.get("targets") {
            Some((Term::Targets, _)) => Some(()),
            Some((Term::Tokens, span)) => {
                let error = self
                    .error(Code::WrongKind, "the loss compares with the tokens that the model has seen")
                    .at(span, "the first input is what the model sees")
                    .help("declare a second input, `targets = input(token, [seq])`: the next tokens");
                self.report.push(error);
                None
            }
            Some((term, span)) => {
                if !matches!(term, Term::Constant(Constant { kind: Kind::Poison, .. })) {
                    let error = self
                        .error(Code::WrongKind, "expected the next tokens")
                        .at(span, "")
                        .help("declare `targets = input(token, [seq])` after the tokens");
                    self.report.push(error);
                }
                None
            }
            None => {
                self.missing(arguments, "targets", "cross_entropy(logits, targets)");
                None
            }
        };
        let ignore = match self.given(arguments, "ignore") {
            None => Some(None),
            Some(constant) => self.ignore(&constant),
        };
        let logits = self.joined(logits?, arguments, "logits");
        let (logits, _, ignore) = (logits?, targets?, ignore?);
        if let Some((vocab, table)) = self.vocab
            && logits.width != vocab
        {
            let error = self
                .error(
                    Code::ShapeMismatch,
                    format!("logits over {} tokens, but the embedding has {vocab}", logits.width),
                )
                .at(arguments.span_of("logits"), logits.describe())
                .with(table.span, format!("{vocab} tokens"))
                .help(format!("end with `linear(x, {vocab})`"));
            self.report.push(error);
            return None;
        }
        let origin = self.origin(arguments.span);
        let here = self.here();
        self.losses.push((origin, here));
        let draft = self.draft();
        draft
            .operations
            .push(super::Operation { op: Op::CrossEntropy { logits: logits.value, ignore }, output: None });
        draft.origins.push(origin);
        if self.inside {
            let error = self
                .error(Code::Misplaced, "a cross entropy inside a repeat")
                .at(arguments.callee, "")
                .help("end the model with it");
            self.report.push(error);
        }
        Some(Term::Loss)
    }

    fn ignore(&mut self, constant: &Constant) -> Option<Option<u32>> {
        let id = self.count(constant, 0)?;
        let id = match (u32::try_from(id), self.vocab) {
            (Ok(id), Some((vocab, _))) if u64::from(id) < vocab => Some(id),
            (Ok(id), None) => Some(id),
            (Ok(_) | Err(_), _) => None,
        };
        if id.is_none() {
            let vocab = self.vocab.map_or(u64::from(u32::MAX), |(vocab, _)| vocab);
            let what = "no target has this id, so that none would be ignored";
            self.report.push(fault(
                constant,
                Code::NoEffect,
                what,
                format!("the ids are 0 to {}", vocab - 1),
            ));
        }
        id.map(Some)
    }
}

/// A complaint about a constant, where it was written.
pub(super) fn fault(
    constant: &Constant,
    code: Code,
    what: impl Into<String>,
    label: impl Into<String>,
) -> Diagnostic {
    Diagnostic::error(constant.origin.source, code, what).at(constant.origin.span, label)
}

/// The divisors of `whole` next to `wished`, in words.
pub(in super::super) fn nearest_divisors(whole: u64, wished: u64) -> String {
    let divides = |count: &u64| *count > 0 && whole.is_multiple_of(*count);
    // Divisors are dense enough near small numbers; a long walk finds nothing worth naming.
    const REACH: u64 = 1 << 16;
    let below = (wished.saturating_sub(REACH)..wished.min(whole + 1)).rev().find(divides);
    let above = (wished + 1..=whole.min(wished.saturating_add(REACH))).find(divides);
    match (below, above) {
        (Some(below), Some(above)) => format!("{below} or {above}"),
        (Some(one), None) | (None, Some(one)) => one.to_string(),
        (None, None) => extents(&[1, whole]),
    }
}
