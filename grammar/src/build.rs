//! From pest's pairs to the tree.
//!
//! What the grammar leaves open is decided here: precedence, texts with escapes, separators, and
//! that keys are distinct. Pest's types end in this file. The grammar promises the shape of every
//! pair; where a promise would be broken, the node is left out rather than the user disturbed.

use std::collections::BTreeMap;

use pest::iterators::{Pair, Pairs};

use crate::ast::{
    Argument, Binary, Binding, Call, Cluster, ClusterItem, Definition, Expr, ExprKind, File, Link, MAX_DEPTH,
    Model, Name, Number, Operator, Parameter, Part, Path, Pipeline, Quantity, Record, Repeat, Setting,
    Settings, Span, Statement, Text, Train, Use, UseTarget,
};
use crate::diagnostic::{Code, Diagnostic, SourceId};
use crate::parse::Rule;

type Node<'a> = Pair<'a, Rule>;

pub(crate) struct Builder<'a> {
    source: SourceId,
    /// The whole source text; only its layout is looked at.
    text: &'a str,
    /// Where the parsed piece stands in it.
    piece: Span,
    pub(crate) diagnostics: Vec<Diagnostic>,
}

/// An expression and the height of its tree.
struct Built {
    expr: Expr,
    height: usize,
}

impl<'a> Builder<'a> {
    pub(crate) fn new(source: SourceId, text: &'a str, piece: Span) -> Self {
        Builder { source, text, piece, diagnostics: Vec::new() }
    }

    pub(crate) fn file(&mut self, pairs: Pairs<'_, Rule>) -> File {
        let mut file = File { source: self.source, ..File::default() };
        for pair in pairs.flat_map(Pair::into_inner) {
            self.declaration(pair, &mut file);
        }
        file
    }

    pub(crate) fn declaration(&mut self, pair: Node<'_>, file: &mut File) {
        match pair.as_rule() {
            Rule::use_ => file.uses.extend(self.use_(pair)),
            Rule::model => file.models.extend(self.model(pair)),
            Rule::cluster => file.clusters.extend(self.cluster(pair)),
            Rule::train => {
                let span = self.span(&pair);
                let (name, settings) = self.named_settings(pair);
                file.trains.push(Train { span, name, settings });
            }
            Rule::pipeline => {
                let span = self.span(&pair);
                let (name, settings) = self.named_settings(pair);
                file.pipelines.push(Pipeline { span, name, settings });
            }
            _ => {}
        }
    }

    /// A block that was parsed alone belongs to nothing; only its faults count.
    pub(crate) fn block(&mut self, pair: Node<'_>) {
        match pair.as_rule() {
            Rule::statements => drop(self.statements(pair)),
            Rule::items => drop(self.items(pair)),
            Rule::settings => drop(self.settings(pair)),
            _ => {}
        }
    }

    fn span(&self, pair: &Node<'_>) -> Span {
        // A rule that ends in something optional has taken the blanks before it, its last part not.
        let mut last = pair.clone();
        while let Some(inner) = last.clone().into_inner().next_back() {
            last = inner;
        }
        // Recovery closes open blocks behind the end of the piece.
        let inside = |offset: usize| (self.piece.start + offset).min(self.piece.end);
        Span::new(inside(pair.as_span().start()), inside(last.as_span().end()))
    }

    fn name(&self, pair: &Node<'_>) -> Name {
        Name { span: self.span(pair), text: pair.as_str().to_owned() }
    }

    fn path(&self, pair: Node<'_>) -> Path {
        let span = self.span(&pair);
        let segments = pair.into_inner().filter(|inner| inner.as_rule() == Rule::name);
        Path { span, segments: segments.map(|segment| self.name(&segment)).collect() }
    }

    fn use_(&mut self, pair: Node<'_>) -> Option<Use> {
        let span = self.span(&pair);
        let target = pair.into_inner().last()?;
        let target = match target.as_rule() {
            Rule::text => UseTarget::File(self.text(&target)),
            _ => {
                let all = target.clone().into_inner().any(|inner| inner.as_rule() == Rule::all);
                let path = self.path(target);
                if all { UseTarget::All(path) } else { UseTarget::Name(path) }
            }
        };
        Some(Use { span, target })
    }

    fn model(&mut self, pair: Node<'_>) -> Option<Model> {
        let span = self.span(&pair);
        let (mut name, mut parameters, mut body) = (None, Vec::new(), None);
        for inner in pair.into_inner() {
            match inner.as_rule() {
                Rule::name => name = Some(self.name(&inner)),
                Rule::parameters => parameters = self.parameters(inner),
                Rule::statements => body = Some(Definition::Block(self.statements(inner))),
                Rule::specialised => body = self.specialised(inner).map(Definition::Specialised),
                _ => {}
            }
        }
        Some(Model { span, name: name?, parameters, body: body? })
    }

    fn cluster(&mut self, pair: Node<'_>) -> Option<Cluster> {
        let span = self.span(&pair);
        let (mut name, mut parameters, mut body) = (None, Vec::new(), None);
        for inner in pair.into_inner() {
            match inner.as_rule() {
                Rule::name => name = Some(self.name(&inner)),
                Rule::parameters => parameters = self.parameters(inner),
                Rule::items => body = Some(Definition::Block(self.items(inner))),
                Rule::specialised => body = self.specialised(inner).map(Definition::Specialised),
                _ => {}
            }
        }
        Some(Cluster { span, name: name?, parameters, body: body? })
    }

    fn parameters(&mut self, pair: Node<'_>) -> Vec<Parameter> {
        let mut parameters = Vec::new();
        let mut distinct = Distinct::new("parameter");
        for parameter in pair.into_inner().filter(|inner| inner.as_rule() == Rule::parameter) {
            let span = self.span(&parameter);
            let (mut name, mut default) = (None, None);
            for inner in parameter.into_inner() {
                match inner.as_rule() {
                    Rule::name => name = Some(self.name(&inner)),
                    Rule::expr => default = self.expr(inner).map(|built| built.expr),
                    _ => {}
                }
            }
            if let Some(name) = name
                && distinct.admits(self, &name)
            {
                parameters.push(Parameter { span, name, default });
            }
        }
        parameters
    }

    fn specialised(&mut self, pair: Node<'_>) -> Option<Record> {
        let end = self.span(&pair).end;
        let (mut path, mut settings) = (None, Settings { span: Span::new(end, end), entries: Vec::new() });
        for inner in pair.into_inner() {
            match inner.as_rule() {
                Rule::path => path = Some(self.path(inner)),
                Rule::record => settings = self.settings(inner).0,
                _ => {}
            }
        }
        Some(Record { path: path?, settings })
    }

    fn statements(&mut self, pair: Node<'_>) -> Vec<Statement> {
        let mut statements = Vec::new();
        for inner in pair.into_inner() {
            match inner.as_rule() {
                Rule::binding => statements.extend(self.binding(inner).map(Statement::Binding)),
                Rule::repeat => statements.extend(self.repeat(inner).map(Statement::Repeat)),
                _ => {}
            }
        }
        statements
    }

    fn binding(&mut self, pair: Node<'_>) -> Option<Binding> {
        let span = self.span(&pair);
        let (mut name, mut value) = (None, None);
        for inner in pair.into_inner() {
            match inner.as_rule() {
                Rule::bound => name = Some(self.name(&inner)),
                Rule::expr => value = self.expr(inner),
                _ => {}
            }
        }
        Some(Binding { span, name: name?, value: value?.expr })
    }

    fn repeat(&mut self, pair: Node<'_>) -> Option<Repeat> {
        let span = self.span(&pair);
        let (mut count, mut label, mut body) = (None, None, Vec::new());
        for inner in pair.into_inner() {
            match inner.as_rule() {
                Rule::count => count = self.expr(inner),
                Rule::name => label = Some(self.name(&inner)),
                Rule::statements => body = self.statements(inner),
                _ => {}
            }
        }
        Some(Repeat { span, count: count?.expr, label, body })
    }

    fn items(&mut self, pair: Node<'_>) -> Vec<ClusterItem> {
        let mut items = Vec::new();
        let mut distinct = Distinct::new("key");
        let mut separators = Separators::default();
        for inner in pair.into_inner() {
            separators.check(self, &inner);
            match inner.as_rule() {
                Rule::setting => {
                    if let Some((setting, _)) = self.setting(inner)
                        && distinct.admits(self, &setting.key)
                    {
                        items.push(ClusterItem::Setting(setting));
                    }
                }
                Rule::part => items.extend(self.part(inner).map(ClusterItem::Part)),
                Rule::link => items.extend(self.link(inner).map(ClusterItem::Link)),
                _ => {}
            }
        }
        items
    }

    fn part(&mut self, pair: Node<'_>) -> Option<Part> {
        let span = self.span(&pair);
        let (mut name, mut count, mut items) = (None, None, Vec::new());
        for inner in pair.into_inner() {
            match inner.as_rule() {
                Rule::kind => name = Some(self.name(&inner)),
                Rule::count => count = Some(self.expr(inner)?.expr),
                Rule::items => items = self.items(inner),
                _ => {}
            }
        }
        Some(Part { span, name: name?, count, items })
    }

    fn link(&mut self, pair: Node<'_>) -> Option<Link> {
        let span = self.span(&pair);
        let (mut ends, mut settings) = (Vec::new(), Settings::default());
        for inner in pair.into_inner() {
            match inner.as_rule() {
                Rule::kind => ends.push(self.name(&inner)),
                Rule::settings => settings = self.settings(inner).0,
                _ => {}
            }
        }
        let mut ends = ends.into_iter();
        Some(Link { span, from: ends.next()?, to: ends.next()?, settings })
    }

    fn named_settings(&mut self, pair: Node<'_>) -> (Option<Name>, Settings) {
        let (mut name, mut settings) = (None, Settings::default());
        for inner in pair.into_inner() {
            match inner.as_rule() {
                Rule::name => name = Some(self.name(&inner)),
                Rule::settings => settings = self.settings(inner).0,
                _ => {}
            }
        }
        (name, settings)
    }

    /// The settings and the greatest height of a value in them.
    fn settings(&mut self, pair: Node<'_>) -> (Settings, usize) {
        let span = self.span(&pair);
        let (mut entries, mut height) = (Vec::new(), 0);
        let mut distinct = Distinct::new("key");
        let mut separators = Separators::default();
        for inner in pair.into_inner() {
            separators.check(self, &inner);
            if inner.as_rule() == Rule::setting
                && let Some((setting, value_height)) = self.setting(inner)
                && distinct.admits(self, &setting.key)
            {
                entries.push(setting);
                height = height.max(value_height);
            }
        }
        (Settings { span, entries }, height)
    }

    fn setting(&mut self, pair: Node<'_>) -> Option<(Setting, usize)> {
        let span = self.span(&pair);
        let (mut key, mut value) = (None, None);
        for inner in pair.into_inner() {
            match inner.as_rule() {
                Rule::key => key = Some(self.name(&inner)),
                Rule::expr => value = self.expr(inner),
                _ => {}
            }
        }
        let value = value?;
        Some((Setting { span, key: key?, value: value.expr }, value.height))
    }

    /// Operands and operators in a row: `*` and `/` bind tighter than `+` and `-`, all from the left.
    fn expr(&mut self, pair: Node<'_>) -> Option<Built> {
        let (mut sum, mut product): (Option<(Built, Operator)>, Option<Built>) = (None, None);
        let mut operator = None;
        for inner in pair.into_inner() {
            match inner.as_rule() {
                Rule::operand | Rule::count_operand => {
                    let operand = self.operand(inner)?;
                    product = match (product.take(), operator.take()) {
                        (Some(left), Some(operator)) => Some(self.binary(left, operator, operand)?),
                        _ => Some(operand),
                    };
                }
                Rule::operator => match inner.as_str() {
                    "*" => operator = Some(Operator::Multiply),
                    "/" => operator = Some(Operator::Divide),
                    sign => {
                        let left = self.finish(sum.take(), product.take())?;
                        sum = Some((left, if sign == "+" { Operator::Add } else { Operator::Subtract }));
                    }
                },
                _ => {}
            }
        }
        self.finish(sum, product)
    }

    fn finish(&mut self, sum: Option<(Built, Operator)>, product: Option<Built>) -> Option<Built> {
        match sum {
            Some((left, operator)) => self.binary(left, operator, product?),
            None => product,
        }
    }

    fn binary(&mut self, left: Built, operator: Operator, right: Built) -> Option<Built> {
        let span = left.expr.span.to(right.expr.span);
        self.check_unit(&left.expr, operator, &right.expr);
        let height = left.height.max(right.height) + 1;
        let kind = ExprKind::Binary(Box::new(Binary { operator, left: left.expr, right: right.expr }));
        self.node(span, kind, height)
    }

    /// `12.5 GB / s` divides by a name `s`, which is hardly what was meant.
    fn check_unit(&mut self, left: &Expr, operator: Operator, right: &Expr) {
        if let (ExprKind::Quantity(quantity), Operator::Divide, ExprKind::Path(path)) =
            (&left.kind, operator, &right.kind)
            && let Some(name) = path.as_name()
            && name.text == "s"
            && !quantity.unit.text.contains('/')
        {
            let span = quantity.unit.span.to(name.span);
            let message = format!("the unit `{}/s` is torn apart", quantity.unit);
            let diagnostic = Diagnostic::error(self.source, Code::BrokenUnit, message).at(span, "").help(
                format!("write `{} {}/s`, the unit without blanks", quantity.number.text, quantity.unit),
            );
            self.diagnostics.push(diagnostic);
        }
    }

    /// A node of the tree, unless it has grown too high.
    fn node(&mut self, span: Span, kind: ExprKind, height: usize) -> Option<Built> {
        if height <= MAX_DEPTH {
            return Some(Built { expr: Expr { span, kind }, height });
        }
        let message = format!("this expression is more than {MAX_DEPTH} levels deep");
        let diagnostic = Diagnostic::error(self.source, Code::TooDeep, message)
            .at(span, "")
            .help("bind parts of it to names of their own");
        self.diagnostics.push(diagnostic);
        None
    }

    fn operand(&mut self, pair: Node<'_>) -> Option<Built> {
        let (mut signs, mut value) = (Vec::new(), None);
        for inner in pair.into_inner() {
            match inner.as_rule() {
                Rule::negate => signs.push(self.span(&inner)),
                _ => value = Some(self.primary(inner)?),
            }
        }
        let mut value = value?;
        for sign in signs.into_iter().rev() {
            let height = value.height + 1;
            value = self.node(sign.to(value.expr.span), ExprKind::Negate(Box::new(value.expr)), height)?;
        }
        Some(value)
    }

    fn primary(&mut self, pair: Node<'_>) -> Option<Built> {
        let span = self.span(&pair);
        match pair.as_rule() {
            Rule::quantity => {
                let mut inner = pair.into_inner();
                let number = Number { text: inner.next()?.as_str().to_owned() };
                let kind = match inner.next() {
                    Some(unit) => ExprKind::Quantity(Quantity { number, unit: self.name(&unit) }),
                    None => ExprKind::Number(number),
                };
                self.node(span, kind, 1)
            }
            Rule::number => self.node(span, ExprKind::Number(Number { text: pair.as_str().to_owned() }), 1),
            Rule::text => {
                let text = self.text(&pair);
                self.node(span, ExprKind::Text(text), 1)
            }
            Rule::path => {
                let path = self.path(pair);
                self.node(span, ExprKind::Path(path), 1)
            }
            Rule::list => {
                let (elements, height, _) = self.elements(pair)?;
                self.node(span, ExprKind::List(elements), height + 1)
            }
            Rule::group => {
                let (mut elements, height, comma) = self.elements(pair)?;
                if !comma && elements.len() == 1 {
                    let mut expr = elements.pop()?;
                    expr.span = span;
                    return Some(Built { expr, height });
                }
                self.node(span, ExprKind::Tuple(elements), height + 1)
            }
            Rule::reference => self.reference(pair),
            _ => None,
        }
    }

    /// The elements between brackets, their greatest height, and whether there is a comma.
    fn elements(&mut self, pair: Node<'_>) -> Option<(Vec<Expr>, usize, bool)> {
        let (mut elements, mut height, mut comma) = (Vec::new(), 0, false);
        for inner in pair.into_inner() {
            match inner.as_rule() {
                Rule::expr => {
                    let built = self.expr(inner)?;
                    height = height.max(built.height);
                    elements.push(built.expr);
                }
                Rule::comma => comma = true,
                _ => {}
            }
        }
        Some((elements, height, comma))
    }

    fn reference(&mut self, pair: Node<'_>) -> Option<Built> {
        let span = self.span(&pair);
        let mut inner = pair.into_inner();
        let path = self.path(inner.next()?);
        let (kind, height) = match inner.next() {
            None => (ExprKind::Path(path), 0),
            Some(rest) if rest.as_rule() == Rule::arguments => {
                let (arguments, height) = self.arguments(rest)?;
                (ExprKind::Call(Call { callee: path, arguments }), height)
            }
            Some(rest) => {
                let (settings, height) = self.settings(rest);
                (ExprKind::Record(Record { path, settings }), height)
            }
        };
        self.node(span, kind, height + 1)
    }

    fn arguments(&mut self, pair: Node<'_>) -> Option<(Vec<Argument>, usize)> {
        let (mut arguments, mut height) = (Vec::<Argument>::new(), 0);
        let mut distinct = Distinct::new("argument");
        for argument in pair.into_inner().filter(|inner| inner.as_rule() == Rule::argument) {
            let span = self.span(&argument);
            let (mut name, mut value) = (None, None);
            for inner in argument.into_inner() {
                match inner.as_rule() {
                    Rule::key => name = Some(self.name(&inner)),
                    Rule::expr => value = Some(self.expr(inner)?),
                    _ => {}
                }
            }
            let value = value?;
            height = height.max(value.height);
            if name.as_ref().is_some_and(|name| !distinct.admits(self, name)) {
                continue;
            }
            if let (None, Some(named)) = (&name, arguments.last().filter(|last| last.name.is_some())) {
                let diagnostic = Diagnostic::error(
                    self.source,
                    Code::ArgumentOrder,
                    "a positional argument after a named one",
                )
                .at(span, "positional")
                .with(named.span, "named")
                .help("move it before the named ones, or give it its name");
                self.diagnostics.push(diagnostic);
                continue;
            }
            arguments.push(Argument { span, name, value: value.expr });
        }
        Some((arguments, height))
    }

    fn text(&mut self, pair: &Node<'_>) -> Text {
        let span = self.span(pair);
        let written = pair.as_str();
        let inside = written.get(1..written.len().saturating_sub(1)).unwrap_or("");
        let mut value = String::with_capacity(inside.len());
        let mut characters = inside.char_indices();
        while let Some((_, character)) = characters.next() {
            if character != '\\' {
                value.push(character);
                continue;
            }
            match characters.next() {
                Some((_, 'n')) => value.push('\n'),
                Some((_, 't')) => value.push('\t'),
                Some((_, same @ ('"' | '\\'))) => value.push(same),
                Some((at, other)) => {
                    let start = span.start + at;
                    let wrong = Span::new(start, start + 1 + other.len_utf8());
                    let message = format!("`\\{other}` has no meaning in a text");
                    let diagnostic = Diagnostic::error(self.source, Code::BadEscape, message)
                        .at(wrong, "")
                        .help("the escapes are `\\\"`, `\\\\`, `\\n` and `\\t`");
                    self.diagnostics.push(diagnostic);
                }
                None => {}
            }
        }
        Text { span, value }
    }
}

/// The names seen so far among siblings that must be distinct.
struct Distinct {
    what: &'static str,
    seen: BTreeMap<String, Span>,
}

impl Distinct {
    fn new(what: &'static str) -> Self {
        Distinct { what, seen: BTreeMap::new() }
    }

    /// Whether the name is new; reports it if it is not.
    fn admits(&mut self, builder: &mut Builder<'_>, name: &Name) -> bool {
        let Some(first) = self.seen.get(&name.text) else {
            self.seen.insert(name.text.clone(), name.span);
            return true;
        };
        let message = format!("the {} `{name}` is written twice", self.what);
        let diagnostic = Diagnostic::error(builder.source, Code::DuplicateKey, message)
            .at(name.span, "again here")
            .with(*first, "first here")
            .help("keep one of them");
        builder.diagnostics.push(diagnostic);
        false
    }
}

/// Watches that a comma or a line end stands between two entries.
#[derive(Default)]
struct Separators {
    /// Where the last entry ends, if no comma has followed it.
    open: Option<usize>,
}

impl Separators {
    fn check(&mut self, builder: &mut Builder<'_>, pair: &Node<'_>) {
        let span = builder.span(pair);
        match pair.as_rule() {
            Rule::comma => self.open = None,
            Rule::setting | Rule::part | Rule::link => {
                if let Some(end) = self.open
                    && !builder.text.get(end..span.start).is_some_and(|between| between.contains('\n'))
                {
                    let first = pair.clone().into_inner().next().map_or(span, |inner| builder.span(&inner));
                    let diagnostic = Diagnostic::error(
                        builder.source,
                        Code::MissingSeparator,
                        "expected `,` or a new line",
                    )
                    .at(Span::new(end, end), "missing here")
                    .with(first, "the next entry");
                    builder.diagnostics.push(diagnostic);
                }
                self.open = Some(span.end);
            }
            _ => {}
        }
    }
}
