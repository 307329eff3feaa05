//! Values, on one line or on several.

use crate::ast::{Binary, Call, Expr, ExprKind, Operator, Setting, Span};
use crate::format::Writer;
use crate::format::lines::Lines;

/// The longest element of a list that is filled line by line instead of one to a line.
const SHORT: usize = 12;

/// Writes a value on one line, behind what `out` holds already. Whether it has room for it; if not,
/// `out` holds a part.
pub(crate) fn flat(lines: &Lines<'_>, expr: &Expr, out: &mut String, room: usize) -> bool {
    write_flat(lines, expr, out, room);
    out.chars().count() <= room
}

/// Writes how many there are of something that is followed by a block, where only numbers, names and
/// arithmetic stand without parentheses.
pub(crate) fn flat_count(lines: &Lines<'_>, expr: &Expr, out: &mut String) {
    match &expr.kind {
        ExprKind::Number(_) | ExprKind::Path(_) | ExprKind::Tuple(_) => {
            write_flat(lines, expr, out, usize::MAX)
        }
        ExprKind::Negate(inner) => {
            out.push('-');
            let enclosed = matches!(inner.kind, ExprKind::Binary(_));
            enclose(enclosed, out, |out| count_operand(lines, inner, enclosed, out));
        }
        ExprKind::Binary(binary) => {
            let left = encloses_left(binary);
            enclose(left, out, |out| count_operand(lines, &binary.left, left, out));
            out.push_str(&format!(" {} ", binary.operator.as_str()));
            let right = encloses_right(binary);
            enclose(right, out, |out| count_operand(lines, &binary.right, right, out));
        }
        ExprKind::Quantity(_)
        | ExprKind::Text(_)
        | ExprKind::Call(_)
        | ExprKind::Record(_)
        | ExprKind::List(_) => {
            enclose(true, out, |out| write_flat(lines, expr, out, usize::MAX));
        }
    }
}

/// Inside parentheses the restriction on what is counted does not hold.
fn count_operand(lines: &Lines<'_>, expr: &Expr, enclosed: bool, out: &mut String) {
    if enclosed { write_flat(lines, expr, out, usize::MAX) } else { flat_count(lines, expr, out) }
}

fn enclose(parentheses: bool, out: &mut String, inside: impl FnOnce(&mut String)) {
    if parentheses {
        out.push('(');
    }
    inside(out);
    if parentheses {
        out.push(')');
    }
}

const fn precedence(operator: Operator) -> u8 {
    match operator {
        Operator::Add | Operator::Subtract => 0,
        Operator::Multiply | Operator::Divide => 1,
    }
}

fn encloses_left(binary: &Binary) -> bool {
    matches!(&binary.left.kind, ExprKind::Binary(left) if precedence(left.operator) < precedence(binary.operator))
}

fn encloses_right(binary: &Binary) -> bool {
    matches!(&binary.right.kind, ExprKind::Binary(right) if precedence(right.operator) <= precedence(binary.operator))
}

/// Stops writing once the room is used up; the bytes written are then of no use but for their number.
fn write_flat(lines: &Lines<'_>, expr: &Expr, out: &mut String, room: usize) {
    // A character has at most four bytes.
    if out.len() / 4 > room {
        return;
    }
    match &expr.kind {
        ExprKind::Number(number) => out.push_str(&number.text),
        ExprKind::Quantity(quantity) => {
            out.push_str(&quantity.number.text);
            out.push(' ');
            out.push_str(&quantity.unit.text);
        }
        ExprKind::Text(text) => out.push_str(lines.source(text.span)),
        ExprKind::Path(path) => out.push_str(&path.to_string()),
        ExprKind::Call(call) => {
            out.push_str(&call.callee.to_string());
            out.push('(');
            for (index, argument) in call.arguments.iter().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                if let Some(name) = &argument.name {
                    out.push_str(&name.text);
                    out.push_str(": ");
                }
                write_flat(lines, &argument.value, out, room);
            }
            out.push(')');
        }
        ExprKind::Record(record) => {
            out.push_str(&record.path.to_string());
            out.push(' ');
            flat_settings(lines, record.settings.entries.iter(), out, room);
        }
        ExprKind::List(elements) => {
            out.push('[');
            write_elements(lines, elements, out, room);
            out.push(']');
        }
        ExprKind::Tuple(elements) => {
            out.push('(');
            write_elements(lines, elements, out, room);
            out.push_str(if elements.len() == 1 { ",)" } else { ")" });
        }
        ExprKind::Negate(inner) => {
            out.push('-');
            let parentheses = matches!(inner.kind, ExprKind::Binary(_));
            enclose(parentheses, out, |out| write_flat(lines, inner, out, room));
        }
        ExprKind::Binary(binary) => {
            enclose(encloses_left(binary), out, |out| write_flat(lines, &binary.left, out, room));
            out.push(' ');
            out.push_str(binary.operator.as_str());
            out.push(' ');
            enclose(encloses_right(binary), out, |out| write_flat(lines, &binary.right, out, room));
        }
    }
}

fn write_elements(lines: &Lines<'_>, elements: &[Expr], out: &mut String, room: usize) {
    for (index, element) in elements.iter().enumerate() {
        if index > 0 {
            out.push_str(", ");
        }
        write_flat(lines, element, out, room);
    }
}

/// `{ key: value, ... }` on one line; whether there is room for it.
pub(crate) fn flat_settings<'s>(
    lines: &Lines<'_>,
    entries: impl Iterator<Item = &'s Setting>,
    out: &mut String,
    room: usize,
) -> bool {
    out.push('{');
    let mut any = false;
    for entry in entries {
        out.push_str(if any { ", " } else { " " });
        out.push_str(&entry.key.text);
        out.push_str(": ");
        write_flat(lines, &entry.value, out, room);
        any = true;
        if out.len() / 4 > room {
            return false;
        }
    }
    out.push_str(if any { " }" } else { "}" });
    out.chars().count() <= room
}

/// Whether a value must stand on several lines: the author began a new line in it, or it has a place
/// for one of the comments inside. A comment without a place, such as one behind a minus sign, moves
/// behind the value and must not break it, or the next pass would join it again.
pub(crate) fn breaks(lines: &Lines<'_>, expr: &Expr) -> bool {
    lines.is_expanded(expr.span) || holds_comment(lines, expr)
}

fn holds_comment(lines: &Lines<'_>, expr: &Expr) -> bool {
    if !lines.has_comment(expr.span) {
        return false;
    }
    match &expr.kind {
        ExprKind::Number(_) | ExprKind::Quantity(_) | ExprKind::Text(_) | ExprKind::Path(_) => false,
        ExprKind::Call(call) => !call.arguments.is_empty(),
        ExprKind::List(elements) | ExprKind::Tuple(elements) => !elements.is_empty(),
        ExprKind::Record(record) => lines.has_comment(record.settings.span),
        ExprKind::Negate(inner) => holds_comment(lines, inner),
        ExprKind::Binary(binary) => {
            let between = Span::new(binary.left.span.end, binary.right.span.start);
            lines.has_comment(between)
                || holds_comment(lines, &binary.left)
                || holds_comment(lines, &binary.right)
        }
    }
}

impl Writer<'_> {
    /// Writes `prefix`, a value and `suffix`, on one line if they fit, else broken inside the value.
    pub(crate) fn expr(&mut self, depth: usize, prefix: String, expr: &Expr, suffix: &str) {
        let room = Lines::room(depth).saturating_sub(suffix.chars().count());
        let mut line = prefix.clone();
        if !breaks(&self.lines, expr) && flat(&self.lines, expr, &mut line, room) {
            line.push_str(suffix);
            self.lines.push(depth, line);
            return;
        }
        match &expr.kind {
            ExprKind::Record(record) => {
                self.settings(depth, format!("{prefix}{}", record.path), &record.settings, suffix);
            }
            ExprKind::Call(call) if !call.arguments.is_empty() => {
                self.call(depth, &prefix, expr, call, suffix)
            }
            ExprKind::List(elements) if !elements.is_empty() => {
                self.elements(depth, format!("{prefix}["), expr.span, elements, &format!("]{suffix}"));
            }
            ExprKind::Tuple(elements) if !elements.is_empty() => {
                self.elements(depth, format!("{prefix}("), expr.span, elements, &format!("){suffix}"));
            }
            ExprKind::Negate(inner) => {
                let parentheses = matches!(inner.kind, ExprKind::Binary(_));
                self.enclosed(depth, format!("{prefix}-"), inner, parentheses, suffix);
            }
            ExprKind::Binary(binary) => self.chain(depth, prefix, binary, suffix),
            ExprKind::Number(_)
            | ExprKind::Quantity(_)
            | ExprKind::Text(_)
            | ExprKind::Path(_)
            | ExprKind::Call(_)
            | ExprKind::List(_)
            | ExprKind::Tuple(_) => {
                let mut line = prefix;
                write_flat(&self.lines, expr, &mut line, usize::MAX);
                line.push_str(suffix);
                self.lines.push(depth, line);
            }
        }
    }

    fn enclosed(&mut self, depth: usize, prefix: String, expr: &Expr, parentheses: bool, suffix: &str) {
        if parentheses {
            self.expr(depth, format!("{prefix}("), expr, &format!("){suffix}"));
        } else {
            self.expr(depth, prefix, expr, suffix);
        }
    }

    fn call(&mut self, depth: usize, prefix: &str, expr: &Expr, call: &Call, suffix: &str) {
        self.lines.push_open(
            depth,
            format!("{prefix}{}(", call.callee),
            call.callee.span.end,
            call.arguments.first().map_or(expr.span.end, |first| first.span.start),
        );
        for argument in &call.arguments {
            self.lines.leading(depth + 1, argument.span.start);
            let prefix = argument.name.as_ref().map_or(String::new(), |name| format!("{name}: "));
            self.expr(depth + 1, prefix, &argument.value, ",");
            self.lines.trailing(depth + 1, argument.span.end);
        }
        self.lines.closing(depth + 1, expr.span.end.saturating_sub(1));
        self.lines.push(depth, format!("){suffix}"));
    }

    /// The elements of a list or tuple: short ones fill lines, others stand one to a line.
    fn elements(&mut self, depth: usize, open: String, span: Span, elements: &[Expr], close: &str) {
        let first = elements.first().map_or(span.end, |first| first.span.start);
        self.lines.push_open(depth, open, span.start + 1, first);
        let mut short = Vec::new();
        if !self.lines.must_break(span) {
            for element in elements {
                let mut text = String::new();
                if !flat(&self.lines, element, &mut text, SHORT) {
                    short.clear();
                    break;
                }
                short.push(text);
            }
        }
        self.fill(depth + 1, &short);
        for element in elements.iter().filter(|_| short.is_empty()) {
            self.lines.leading(depth + 1, element.span.start);
            self.expr(depth + 1, String::new(), element, ",");
            self.lines.trailing(depth + 1, element.span.end);
        }
        self.lines.closing(depth + 1, span.end.saturating_sub(1));
        self.lines.push(depth, close.to_owned());
    }

    /// Operands of operators that bind equally, one to a line, each behind its operator.
    fn chain(&mut self, depth: usize, prefix: String, binary: &Binary, suffix: &str) {
        let level = precedence(binary.operator);
        let mut operands = vec![(binary.operator, &binary.right)];
        let mut first = &binary.left;
        while let ExprKind::Binary(inner) = &first.kind
            && precedence(inner.operator) == level
        {
            operands.push((inner.operator, &inner.right));
            first = &inner.left;
        }
        let parentheses = |expr: &Expr, right: bool| match &expr.kind {
            ExprKind::Binary(inner) => precedence(inner.operator) < level + u8::from(right),
            ExprKind::Number(_)
            | ExprKind::Quantity(_)
            | ExprKind::Text(_)
            | ExprKind::Path(_)
            | ExprKind::Call(_)
            | ExprKind::Record(_)
            | ExprKind::List(_)
            | ExprKind::Tuple(_)
            | ExprKind::Negate(_) => false,
        };
        self.enclosed(depth, prefix, first, parentheses(first, false), "");
        self.lines.trailing(depth + 1, first.span.end);
        let last = operands.len() - 1;
        for (index, (operator, operand)) in operands.into_iter().rev().enumerate() {
            self.lines.leading_close(depth + 1, operand.span.start);
            let suffix = if index == last { suffix } else { "" };
            let prefix = format!("{} ", operator.as_str());
            self.enclosed(depth + 1, prefix, operand, parentheses(operand, true), suffix);
            // What follows the last one follows the whole, and is the caller's.
            if index < last {
                self.lines.trailing(depth + 1, operand.span.end);
            }
        }
    }
}
