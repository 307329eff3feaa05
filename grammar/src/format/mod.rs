//! The one layout of `.pipe` files: the tree written again, with the comments of the text.
//!
//! What fits on a line of 100 characters stands on one; longer settings and arguments stand one to a
//! line, and numbers fill lines. Two choices of the author are kept: settings whose first key stands on
//! a new line stay broken, and short statements or settings on one line stay together. Equal columns are aligned where
//! neighbouring lines do the same thing: bindings to the same op or to numbers, parts, links, comments.

mod lines;
mod values;

use crate::ast::{
    Binding, ClusterItem, Definition, ExprKind, File, Name, Parameter, Record, Repeat, Setting, Settings,
    Span, Statement, Use, UseTarget,
};
use crate::diagnostic::{Diagnostic, SourceId};
use crate::format::lines::{Align, Lines};
use crate::format::values::{breaks, flat, flat_count};
use crate::parse::parse;
use crate::scan::{Bracket, Kind, scan};

/// Writes a `.pipe` file in its canonical layout: the same tree, the same comments, and formatting
/// the result again changes nothing.
///
/// # Errors
/// A file with syntax errors has no layout; they are returned.
pub fn format(text: &str) -> Result<String, Vec<Diagnostic>> {
    let source = SourceId::default();
    let parsed = parse(source, text);
    if !parsed.diagnostics.is_empty() {
        return Err(parsed.diagnostics);
    }
    let scan = scan(source, text);
    let mut expanded = Vec::new();
    for pair in scan.tokens.windows(2) {
        let opens = pair[0].kind == Kind::Open(Bracket::Brace);
        if opens && pair[1].first && pair[1].kind != Kind::Close(Bracket::Brace) {
            expanded.push(pair[0].span.start);
        }
    }
    let mut writer = Writer { lines: Lines::new(text, &scan.comments, expanded) };
    writer.file(&parsed.file);
    Ok(writer.lines.finish())
}

pub(crate) struct Writer<'a> {
    pub(crate) lines: Lines<'a>,
}

/// The head of a model or cluster: `model llama(layers, dim)`.
struct Head<'a> {
    word: &'static str,
    name: &'a Name,
    parameters: &'a [Parameter],
    span: Span,
}

impl Writer<'_> {
    fn file(&mut self, file: &File) {
        type Write<'f> = Box<dyn FnOnce(&mut Writer<'_>) + 'f>;
        let mut declarations: Vec<(Span, bool, Write<'_>)> = Vec::new();
        for each in &file.uses {
            declarations.push((each.span, true, Box::new(|writer| writer.use_(each))));
        }
        for each in &file.models {
            let head =
                Head { word: "model", name: &each.name, parameters: &each.parameters, span: each.span };
            let write: Write<'_> = match &each.body {
                Definition::Block(statements) => Box::new(|writer| writer.model(head, statements)),
                Definition::Specialised(record) => Box::new(|writer| writer.specialised(head, record)),
            };
            declarations.push((each.span, false, write));
        }
        for each in &file.clusters {
            let head =
                Head { word: "cluster", name: &each.name, parameters: &each.parameters, span: each.span };
            let write: Write<'_> = match &each.body {
                Definition::Block(items) => Box::new(|writer| writer.cluster(head, items)),
                Definition::Specialised(record) => Box::new(|writer| writer.specialised(head, record)),
            };
            declarations.push((each.span, false, write));
        }
        for each in &file.trains {
            let head = named("train", each.name.as_ref());
            declarations.push((
                each.span,
                false,
                Box::new(|writer| writer.settings(0, head, &each.settings, "")),
            ));
        }
        for each in &file.pipelines {
            let head = named("pipeline", each.name.as_ref());
            declarations.push((
                each.span,
                false,
                Box::new(|writer| writer.settings(0, head, &each.settings, "")),
            ));
        }
        declarations.sort_by_key(|(span, _, _)| span.start);
        let mut after_use = false;
        for (span, is_use, write) in declarations {
            if !(after_use && is_use) {
                self.lines.separate();
            }
            self.lines.leading(0, span.start);
            write(self);
            self.lines.trailing(0, span.end);
            after_use = is_use;
        }
        self.lines.separate();
    }

    fn use_(&mut self, each: &Use) {
        let target = match &each.target {
            UseTarget::Name(path) => path.to_string(),
            UseTarget::All(path) => format!("{path}::*"),
            UseTarget::File(text) => self.lines.source(text.span).to_owned(),
        };
        self.lines.push(0, format!("use {target}"));
    }

    /// Gives the last line of a head, and the offset in the source where the head ends. Lines before
    /// it, which many parameters need, are written.
    fn head(&mut self, head: &Head<'_>) -> (String, usize) {
        let start = format!("{} {}", head.word, head.name);
        let (Some(first), Some(last)) = (head.parameters.first(), head.parameters.last()) else {
            return (start, head.name.span.end);
        };
        let close = self.lines.next_close(last.span.end);
        let breaks = self.lines.must_break(Span::new(head.span.start, close));
        let flat: Option<Vec<String>> =
            head.parameters.iter().map(|each| self.flat_parameter(each)).collect();
        let flat = flat.filter(|_| !breaks);
        if let Some(flat) = &flat {
            let line = format!("{start}({})", flat.join(", "));
            // Room for the ` {` after it.
            if line.chars().count() + 2 <= Lines::room(0) {
                return (line, close);
            }
        }
        self.lines.push_open(0, format!("{start}("), head.name.span.end, first.span.start);
        match flat {
            Some(flat) => self.fill(1, &flat),
            None => {
                for parameter in head.parameters {
                    self.lines.leading(1, parameter.span.start);
                    match &parameter.default {
                        None => self.lines.push(1, format!("{},", parameter.name)),
                        Some(default) => self.expr(1, format!("{}: ", parameter.name), default, ","),
                    }
                    self.lines.trailing(1, parameter.span.end);
                }
            }
        }
        self.lines.closing(1, close);
        (")".to_owned(), close)
    }

    /// The parameter, if it fits on a line.
    fn flat_parameter(&self, parameter: &Parameter) -> Option<String> {
        let mut text = parameter.name.text.clone();
        let Some(default) = &parameter.default else { return Some(text) };
        text.push_str(": ");
        // Room for the comma after it.
        flat(&self.lines, default, &mut text, Lines::room(1) - 1).then_some(text)
    }

    /// Short elements, each with its comma, as many on a line as fit.
    pub(crate) fn fill(&mut self, depth: usize, elements: &[String]) {
        let mut line = String::new();
        for element in elements {
            let width = line.chars().count() + element.chars().count();
            // A blank before and a comma after it.
            if !line.is_empty() && width + 2 > Lines::room(depth) {
                self.lines.push(depth, std::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(element);
            line.push(',');
        }
        if !line.is_empty() {
            self.lines.push(depth, line);
        }
    }

    fn model(&mut self, head: Head<'_>, statements: &[Statement]) {
        let (start, from) = self.head(&head);
        self.block(0, start, from, head.span.end - 1, statements.first().map(statement_span), |writer| {
            writer.statements(1, statements);
        });
    }

    fn cluster(&mut self, head: Head<'_>, items: &[ClusterItem]) {
        let (start, from) = self.head(&head);
        self.block(0, start, from, head.span.end - 1, items.first().map(item_span), |writer| {
            writer.items(1, items, true);
        });
    }

    /// `start {`, the inside one deeper, `}`. `from` is where `start` ends in the source, `close`
    /// where the closing brace stands, `first` what stands first inside.
    fn block(
        &mut self,
        depth: usize,
        start: String,
        from: usize,
        close: usize,
        first: Option<Span>,
        inside: impl FnOnce(&mut Self),
    ) {
        if first.is_none() && !self.lines.has_comment(Span::new(from, close)) {
            self.lines.push(depth, format!("{start} {{}}"));
            return;
        }
        let until = first.map_or(close, |first| first.start);
        self.lines.push_open(depth, format!("{start} {{"), from, until);
        inside(self);
        self.lines.closing(depth + 1, close);
        self.lines.push(depth, "}".to_owned());
    }

    fn specialised(&mut self, head: Head<'_>, record: &Record) {
        let (start, _) = self.head(&head);
        let start = format!("{start} = {}", record.path);
        if record.settings.entries.is_empty() {
            self.lines.push(0, start);
        } else {
            self.settings(0, start, &record.settings, "");
        }
    }

    fn statements(&mut self, depth: usize, statements: &[Statement]) {
        let mut rest = statements.iter().peekable();
        while let Some(statement) = rest.next() {
            match statement {
                Statement::Repeat(repeat) => {
                    self.lines.leading(depth, repeat.span.start);
                    self.repeat(depth, repeat);
                    self.lines.trailing(depth, repeat.span.end);
                }
                Statement::Binding(binding) => {
                    self.lines.leading(depth, binding.span.start);
                    let Some(mut line) = self.flat_binding(depth, binding) else {
                        self.expr(depth, format!("{} = ", binding.name), &binding.value, "");
                        self.lines.trailing(depth, binding.span.end);
                        continue;
                    };
                    let (mut end, mut alone) = (binding.span.end, true);
                    while let Some(Statement::Binding(next)) = rest.peek().copied()
                        && self.lines.same_line(end, next.span.start)
                        && let Some(more) = self.flat_binding(depth, next)
                        && line.chars().count() + 3 + more.chars().count() <= Lines::room(depth)
                    {
                        line = format!("{line}   {more}");
                        (end, alone) = (next.span.end, false);
                        rest.next();
                    }
                    match binding_key(binding).filter(|_| alone) {
                        Some(key) => {
                            let at = binding.name.text.len();
                            self.lines.push_aligned(depth, line, Align { key, at });
                        }
                        None => self.lines.push(depth, line),
                    }
                    self.lines.trailing(depth, end);
                }
            }
        }
    }

    /// The binding on one line, if it can stand there.
    fn flat_binding(&self, depth: usize, binding: &Binding) -> Option<String> {
        let mut line = format!("{} = ", binding.name);
        let room = Lines::room(depth);
        let fits = !breaks(&self.lines, &binding.value) && flat(&self.lines, &binding.value, &mut line, room);
        fits.then_some(line)
    }

    fn repeat(&mut self, depth: usize, repeat: &Repeat) {
        let mut start = "repeat ".to_owned();
        flat_count(&self.lines, &repeat.count, &mut start);
        let mut from = repeat.count.span.end;
        if let Some(label) = &repeat.label {
            start.push_str(" as ");
            start.push_str(&label.text);
            from = label.span.end;
        }
        self.block(
            depth,
            start,
            from,
            repeat.span.end - 1,
            repeat.body.first().map(statement_span),
            |writer| {
                writer.statements(depth + 1, &repeat.body);
            },
        );
    }

    fn items(&mut self, depth: usize, items: &[ClusterItem], together: bool) {
        let mut rest = items;
        while let Some((item, after)) = rest.split_first() {
            let settings: Vec<&Setting> = rest.iter().map_while(as_setting).collect();
            if !settings.is_empty() {
                self.entries(depth, &settings, together);
                rest = &rest[settings.len()..];
                continue;
            }
            rest = after;
            let span = item_span(item);
            self.lines.leading(depth, span.start);
            match item {
                // All settings were taken above.
                ClusterItem::Setting(_) => {}
                ClusterItem::Part(part) => {
                    let mut start = part.name.text.clone();
                    let mut from = part.name.span.end;
                    if let Some(count) = &part.count {
                        start.push_str(" * ");
                        flat_count(&self.lines, count, &mut start);
                        from = count.span.end;
                    }
                    let settings: Option<Vec<&Setting>> = part.items.iter().map(as_setting).collect();
                    let flat = settings.filter(|_| !self.lines.must_break(Span::new(from, part.span.end)));
                    let flat = flat.and_then(|settings| self.flat_settings(depth, &start, &settings, ""));
                    match flat {
                        Some(line) => {
                            let align = Align { key: "part".to_owned(), at: start.len() };
                            self.lines.push_aligned(depth, line, align);
                        }
                        None => self.block(
                            depth,
                            start,
                            from,
                            span.end - 1,
                            part.items.first().map(item_span),
                            |writer| {
                                let first = part.items.first().map_or(from, |first| item_span(first).start);
                                let together = !writer.lines.same_line(from, first);
                                writer.items(depth + 1, &part.items, together);
                            },
                        ),
                    }
                }
                ClusterItem::Link(link) => {
                    let start = format!("link {} <-> {}", link.from, link.to);
                    let entries: Vec<&Setting> = link.settings.entries.iter().collect();
                    let flat = Some(entries).filter(|_| !self.lines.must_break(link.settings.span));
                    match flat.and_then(|entries| self.flat_settings(depth, &start, &entries, "")) {
                        Some(line) => {
                            let align = Align { key: "link".to_owned(), at: start.len() };
                            self.lines.push_aligned(depth, line, align);
                        }
                        None => self.settings(depth, start, &link.settings, ""),
                    }
                }
            }
            self.lines.trailing(depth, span.end);
        }
    }

    /// `start { key: value, ... }suffix`, if it fits on a line.
    fn flat_settings(&self, depth: usize, start: &str, entries: &[&Setting], suffix: &str) -> Option<String> {
        let room = Lines::room(depth).saturating_sub(suffix.chars().count());
        let mut line = start.to_owned();
        line.push(' ');
        let fits = values::flat_settings(&self.lines, entries.iter().copied(), &mut line, room);
        line.push_str(suffix);
        fits.then_some(line)
    }

    /// `start { ... }suffix`, on one line or with one entry to a line.
    pub(crate) fn settings(&mut self, depth: usize, start: String, settings: &Settings, suffix: &str) {
        let entries: Vec<&Setting> = settings.entries.iter().collect();
        if !self.lines.must_break(settings.span)
            && let Some(line) = self.flat_settings(depth, &start, &entries, suffix)
        {
            self.lines.push(depth, line);
            return;
        }
        let (from, close) = (settings.span.start, settings.span.end.saturating_sub(1));
        let first = entries.first().map_or(close, |entry| entry.span.start);
        self.lines.push_open(depth, format!("{start} {{"), from, first);
        let together = !self.lines.same_line(from, first);
        self.entries(depth + 1, &entries, together);
        self.lines.closing(depth + 1, close);
        self.lines.push(depth, format!("}}{suffix}"));
    }

    /// Settings one to a line, or as the author has put them `together` on lines, where they fit.
    fn entries(&mut self, depth: usize, entries: &[&Setting], together: bool) {
        let mut rest = entries.iter().peekable();
        while let Some(entry) = rest.next() {
            self.lines.leading(depth, entry.span.start);
            let mut end = entry.span.end;
            match self.flat_setting(depth, entry) {
                None => self.expr(depth, format!("{}: ", entry.key), &entry.value, ""),
                Some(mut line) => {
                    while let Some(next) = rest.peek().filter(|_| together)
                        && self.lines.same_line(end, next.span.start)
                        && let Some(more) = self.flat_setting(depth, next)
                        && line.chars().count() + 2 + more.chars().count() <= Lines::room(depth)
                    {
                        line = format!("{line}, {more}");
                        end = next.span.end;
                        rest.next();
                    }
                    self.lines.push(depth, line);
                }
            }
            self.lines.trailing(depth, end);
        }
    }

    /// The setting on one line, if it can stand there.
    fn flat_setting(&self, depth: usize, setting: &Setting) -> Option<String> {
        let mut line = format!("{}: ", setting.key);
        let fits = !breaks(&self.lines, &setting.value)
            && flat(&self.lines, &setting.value, &mut line, Lines::room(depth));
        fits.then_some(line)
    }
}

fn named(word: &str, name: Option<&Name>) -> String {
    name.map_or(word.to_owned(), |name| format!("{word} {name}"))
}

fn statement_span(statement: &Statement) -> Span {
    match statement {
        Statement::Binding(binding) => binding.span,
        Statement::Repeat(repeat) => repeat.span,
    }
}

fn item_span(item: &ClusterItem) -> Span {
    match item {
        ClusterItem::Part(part) => part.span,
        ClusterItem::Link(link) => link.span,
        ClusterItem::Setting(setting) => setting.span,
    }
}

fn as_setting(item: &ClusterItem) -> Option<&Setting> {
    match item {
        ClusterItem::Setting(setting) => Some(setting),
        ClusterItem::Part(_) | ClusterItem::Link(_) => None,
    }
}

/// What a binding does, if its neighbours that do the same should be aligned with it.
fn binding_key(binding: &Binding) -> Option<String> {
    match &binding.value.kind {
        ExprKind::Number(_) => Some("= number".to_owned()),
        ExprKind::Call(call) => Some(format!("= {}", call.callee)),
        ExprKind::Quantity(_)
        | ExprKind::Text(_)
        | ExprKind::Path(_)
        | ExprKind::Record(_)
        | ExprKind::List(_)
        | ExprKind::Tuple(_)
        | ExprKind::Negate(_)
        | ExprKind::Binary(_) => None,
    }
}
