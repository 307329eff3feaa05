//! What was written in a `.pipe` file, as a tree.
//!
//! The tree is plain data without meaning: a key may be unknown, a unit misspelt, a name undeclared;
//! resolving all that is the work of the spec stage. Invariants that do hold: every node has the
//! [`Span`] of the text it came from; numbers, names, units and texts are well formed; the keys of one
//! [`Settings`], the arguments of one [`Call`] and the parameters of one declaration are distinct;
//! brackets nest at most [`MAX_NESTING`] and one expression at most [`MAX_DEPTH`] levels deep, so a
//! recursive walk cannot overflow the stack.
//!
//! Comments and layout are not in the tree; the formatter takes them from the text.

use std::fmt;
use std::ops::Range;

use crate::diagnostic::SourceId;

/// The deepest nesting of brackets that a file may have, blocks included.
pub const MAX_NESTING: usize = 64;

/// The greatest height of the tree of one expression; `a + b + c` has height 3.
pub const MAX_DEPTH: usize = 128;

/// A range of bytes of the source text, `start` included and `end` excluded.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span {
    /// Offset of the first byte.
    pub start: usize,
    /// Offset after the last byte.
    pub end: usize,
}

impl Span {
    /// The bytes from `start` to `end`.
    pub const fn new(start: usize, end: usize) -> Self {
        Span { start, end }
    }

    /// The smallest span that covers both.
    pub fn to(self, other: Span) -> Span {
        Span { start: self.start.min(other.start), end: self.end.max(other.end) }
    }

    /// Number of bytes.
    pub const fn len(self) -> usize {
        self.end.saturating_sub(self.start)
    }

    /// Whether it covers no byte, and thus marks a place between two of them.
    pub const fn is_empty(self) -> bool {
        self.end <= self.start
    }

    /// The same bytes as a range, for slicing the source text.
    pub const fn range(self) -> Range<usize> {
        self.start..self.end
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

/// One `.pipe` file. Every list is in source order.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct File {
    /// The text it was parsed from; spans in this tree are offsets into that text.
    pub source: SourceId,
    /// `use ...`
    pub uses: Vec<Use>,
    /// `model ...`
    pub models: Vec<Model>,
    /// `cluster ...`
    pub clusters: Vec<Cluster>,
    /// `train ...`
    pub trains: Vec<Train>,
    /// `pipeline ...`
    pub pipelines: Vec<Pipeline>,
}

/// A word written by the user: a name, a key or a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// Where it stands.
    pub span: Span,
    /// The word itself. Letters, digits and `_`, except for units, which may hold one `/`.
    pub text: String,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// One or more names joined by `::`, such as `adamw` or `std::models::llama2_13b`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// The whole path.
    pub span: Span,
    /// Its names, at least one.
    pub segments: Vec<Name>,
}

impl Path {
    /// The name, if the path is a single one.
    pub fn as_name(&self) -> Option<&Name> {
        match self.segments.as_slice() {
            [name] => Some(name),
            _ => None,
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, segment) in self.segments.iter().enumerate() {
            if index > 0 {
                f.write_str("::")?;
            }
            f.write_str(&segment.text)?;
        }
        Ok(())
    }
}

/// `use std::clusters::local`: makes declarations of another file known in this one.
#[derive(Clone, Debug, PartialEq)]
pub struct Use {
    /// The whole declaration.
    pub span: Span,
    /// What is made known.
    pub target: UseTarget,
}

/// What a [`Use`] makes known.
#[derive(Clone, Debug, PartialEq)]
pub enum UseTarget {
    /// `use std::models::llama2_13b`: one declaration.
    Name(Path),
    /// `use std::models::*`: every declaration there.
    All(Path),
    /// `use "file.pipe"`: every declaration of that file, relative to this one.
    File(Text),
}

/// A quoted text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    /// The text with its quotes.
    pub span: Span,
    /// What stands between the quotes, escapes resolved.
    pub value: String,
}

/// `model NAME(parameters) { statements }` or `model NAME(parameters) = other { settings }`.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// The whole declaration.
    pub span: Span,
    /// Its name.
    pub name: Name,
    /// What a specialisation may set; empty without parentheses.
    pub parameters: Vec<Parameter>,
    /// What it is.
    pub body: Definition<Statement>,
}

/// `cluster NAME(parameters) { items }` or `cluster NAME(parameters) = other { settings }`.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// The whole declaration.
    pub span: Span,
    /// Its name.
    pub name: Name,
    /// What a specialisation may set; empty without parentheses.
    pub parameters: Vec<Parameter>,
    /// What it is.
    pub body: Definition<ClusterItem>,
}

/// `train NAME? { settings }`.
#[derive(Clone, Debug, PartialEq)]
pub struct Train {
    /// The whole declaration.
    pub span: Span,
    /// Its name, which a file with a single `train` does not need.
    pub name: Option<Name>,
    /// How the model is trained.
    pub settings: Settings,
}

/// `pipeline NAME? { settings }`.
#[derive(Clone, Debug, PartialEq)]
pub struct Pipeline {
    /// The whole declaration.
    pub span: Span,
    /// Its name, which a file with a single `pipeline` does not need.
    pub name: Option<Name>,
    /// Which model runs on which cluster, and how.
    pub settings: Settings,
}

/// A parameter of a model or cluster: `dim`, which every use must set, or `kv_heads: heads`.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Name and default.
    pub span: Span,
    /// Its name.
    pub name: Name,
    /// Its value where a use sets none. It may name parameters that stand before it.
    pub default: Option<Expr>,
}

/// What a model or a cluster is.
#[derive(Clone, Debug, PartialEq)]
pub enum Definition<Item> {
    /// `{ ... }`: written out.
    Block(Vec<Item>),
    /// `= llama { layers: 32, dim: 4096 }`: another declaration with these arguments. A bare
    /// `= llama` has empty settings.
    Specialised(Record),
}

/// A statement of a model.
#[derive(Clone, Debug, PartialEq)]
pub enum Statement {
    /// `name = expression`
    Binding(Binding),
    /// `repeat N as name { ... }`
    Repeat(Repeat),
}

/// `name = expression`: a value of the graph, a parameter tensor or a named dimension. Binding a
/// name again gives the name a new value from there on.
#[derive(Clone, Debug, PartialEq)]
pub struct Binding {
    /// The whole statement.
    pub span: Span,
    /// The name bound.
    pub name: Name,
    /// Its value.
    pub value: Expr,
}

/// `repeat N as name { ... }`: the statements N times, each time with parameters of its own. Names
/// bound inside that were bound before the block are carried from one time to the next.
#[derive(Clone, Debug, PartialEq)]
pub struct Repeat {
    /// The whole statement.
    pub span: Span,
    /// How often.
    pub count: Expr,
    /// What one repetition is called in names of parameters and in messages.
    pub label: Option<Name>,
    /// What is repeated.
    pub body: Vec<Statement>,
}

/// One thing inside a cluster or one of its parts.
#[derive(Clone, Debug, PartialEq)]
pub enum ClusterItem {
    /// `gpu * 8 { ... }`
    Part(Part),
    /// `link gpu <-> host { ... }`
    Link(Link),
    /// `memory: 24 GiB`
    Setting(Setting),
}

/// `gpu * 8 { ... }`: so many parts of a kind, all alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// The whole part.
    pub span: Span,
    /// Its kind: `node`, `gpu`, `host` and so on.
    pub name: Name,
    /// How many of them the enclosing part has; one if absent.
    pub count: Option<Expr>,
    /// What each of them has.
    pub items: Vec<ClusterItem>,
}

/// `link gpu <-> host { ... }`: what connects every pair of such parts.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// The whole link.
    pub span: Span,
    /// The kind of part at one end.
    pub from: Name,
    /// The kind of part at the other end.
    pub to: Name,
    /// Its properties.
    pub settings: Settings,
}

/// `{ key: value, ... }`, keys distinct.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Settings {
    /// From `{` to `}`.
    pub span: Span,
    /// The entries in source order.
    pub entries: Vec<Setting>,
}

impl Settings {
    /// The entry with this key.
    pub fn get(&self, key: &str) -> Option<&Setting> {
        self.entries.iter().find(|entry| entry.key.text == key)
    }
}

/// `key: value`.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Key and value.
    pub span: Span,
    /// The key.
    pub key: Name,
    /// The value.
    pub value: Expr,
}

/// A value: in settings, in the arguments of calls and at the right of a binding alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Expr {
    /// The whole expression, with the parentheses around it if there are any.
    pub span: Span,
    /// What it is.
    pub kind: ExprKind,
}

/// The forms of an [`Expr`].
#[derive(Clone, Debug, PartialEq)]
pub enum ExprKind {
    /// `256`, `1e-5`, `1_000_000`
    Number(Number),
    /// `24 GiB`
    Quantity(Quantity),
    /// `"docs/**/*.md"`
    Text(Text),
    /// `auto`, `std::models::llama2_13b`
    Path(Path),
    /// `linear(h, 256, bias: true)`
    Call(Call),
    /// `adamw { lr: 3e-4 }`
    Record(Record),
    /// `[vocab, dim]`
    List(Vec<Expr>),
    /// `(0.9, 0.95)`; `(0.9,)` has one element
    Tuple(Vec<Expr>),
    /// `-x`
    Negate(Box<Expr>),
    /// `4 * dim`
    Binary(Box<Binary>),
}

/// A number as it was written, so that nothing is lost before its use is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Number {
    /// Digits, with an optional fraction and exponent; `_` may stand between two digits.
    pub text: String,
}

impl Number {
    /// The nearest `f64`; infinite where the number is beyond its range.
    pub fn to_f64(&self) -> f64 {
        // The grammar admits a subset of what `f64` parses, so this cannot fail on a parsed file.
        self.text.replace('_', "").parse().unwrap_or(f64::NAN)
    }

    /// The exact value, if it is an integer that fits: `256`, `1_000_000`, `1e6` and `2.5e3` are.
    pub fn to_u64(&self) -> Option<u64> {
        let text = self.text.replace('_', "");
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i64>().ok()?),
            None => (text.as_str(), 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = format!("{whole}{fraction}");
        let significant = digits.trim_end_matches('0');
        if significant.is_empty() {
            return Some(0);
        }
        let dropped = i64::try_from(digits.len() - significant.len()).ok()?;
        let scale = exponent.checked_sub(i64::try_from(fraction.len()).ok()?)?.checked_add(dropped)?;
        let scale = u32::try_from(scale).ok()?;
        significant.parse::<u64>().ok()?.checked_mul(10u64.checked_pow(scale)?)
    }
}

/// A number with a unit. What units there are is not the grammar's business.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantity {
    /// How much.
    pub number: Number,
    /// Of what: `GiB`, `TFLOPS`, `GB/s`.
    pub unit: Name,
}

/// `linear(h, 256, bias: true)`: an op, or a kind of value that takes arguments.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// What is called.
    pub callee: Path,
    /// In source order: positional arguments first, then named ones.
    pub arguments: Vec<Argument>,
}

/// An argument of a [`Call`].
#[derive(Clone, Debug, PartialEq)]
pub struct Argument {
    /// Name and value.
    pub span: Span,
    /// Its name; `None` for a positional argument.
    pub name: Option<Name>,
    /// Its value.
    pub value: Expr,
}

/// `adamw { lr: 3e-4 }`: a choice with settings of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// What is chosen.
    pub path: Path,
    /// Its settings.
    pub settings: Settings,
}

/// Two operands and an operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Binary {
    /// The operator.
    pub operator: Operator,
    /// The operand before it.
    pub left: Expr,
    /// The operand after it.
    pub right: Expr,
}

/// `+ - * /`, on numbers, named dimensions and, where the ops exist, tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// `+`
    Add,
    /// `-`
    Subtract,
    /// `*`
    Multiply,
    /// `/`
    Divide,
}

impl Operator {
    /// The operator as it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Operator::Add => "+",
            Operator::Subtract => "-",
            Operator::Multiply => "*",
            Operator::Divide => "/",
        }
    }
}
