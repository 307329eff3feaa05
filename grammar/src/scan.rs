//! The words of a source text: tokens, comments, and what is wrong below the grammar.
//!
//! The parser proper is `pipe.pest`. This scanner exists for three jobs that a grammar does badly: it
//! finds faults that would confuse everything after them (a text without its end, a character from
//! elsewhere), it lets recovery see the structure of a wrong file, and it keeps the comments for the
//! formatter. One pass, linear, never fails.

use crate::ast::Span;
use crate::diagnostic::{Code, Diagnostic, SourceId};
use crate::parse::MAX_DIAGNOSTICS;

/// The three pairs of brackets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bracket {
    Brace,
    Paren,
    Square,
}

impl Bracket {
    pub(crate) const fn open(self) -> char {
        match self {
            Bracket::Brace => '{',
            Bracket::Paren => '(',
            Bracket::Square => '[',
        }
    }

    pub(crate) const fn close(self) -> char {
        match self {
            Bracket::Brace => '}',
            Bracket::Paren => ')',
            Bracket::Square => ']',
        }
    }
}

/// What a token is, as far as recovery cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Word,
    Number,
    Text,
    Open(Bracket),
    Close(Bracket),
    Comma,
    Colon,
    DoubleColon,
    Assign,
    /// `+ - * /` and `<->`
    Operator,
    /// Not of the language; a fault tells of it.
    Foreign,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) span: Span,
    /// Whether it is the first token on its line.
    pub(crate) first: bool,
}

/// How the text must change, byte for byte, so that a fault already told is not told again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patch {
    /// The text stays as it is.
    None,
    /// The bytes become blanks.
    Blank(Span),
    /// The bytes become a number.
    Number(Span),
    /// The byte becomes a line end.
    LineEnd(usize),
    /// The item that holds this byte is dropped.
    Drop(usize),
}

/// A fault and its patch. A fault that follows from another one has no diagnostic of its own.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) diagnostic: Option<Diagnostic>,
    pub(crate) patch: Patch,
}

#[derive(Debug, Default)]
pub(crate) struct Scan {
    pub(crate) tokens: Vec<Token>,
    /// Every `//` comment, from the slashes to before the line end.
    pub(crate) comments: Vec<Span>,
    pub(crate) faults: Vec<Fault>,
}

/// Scans a text: the whole of it, unless there are more faults than can be told of.
pub(crate) fn scan(source: SourceId, text: &str) -> Scan {
    let mut scanner = Scanner { source, text, at: 0, first: true, scan: Scan::default() };
    while scanner.at < text.len() && scanner.scan.faults.len() < MAX_DIAGNOSTICS {
        scanner.step();
    }
    scanner.scan
}

struct Scanner<'a> {
    source: SourceId,
    text: &'a str,
    at: usize,
    first: bool,
    scan: Scan,
}

impl Scanner<'_> {
    fn byte(&self, offset: usize) -> u8 {
        self.text.as_bytes().get(self.at + offset).copied().unwrap_or(0)
    }

    fn push(&mut self, kind: Kind, length: usize) -> Span {
        let span = Span::new(self.at, self.at + length);
        self.scan.tokens.push(Token { kind, span, first: self.first });
        self.first = false;
        self.at = span.end;
        span
    }

    fn fault(&mut self, diagnostic: Diagnostic, patch: Patch) {
        self.scan.faults.push(Fault { diagnostic: Some(diagnostic), patch });
    }

    /// Length of the bytes from here on that satisfy the condition.
    fn run(&self, condition: impl Fn(u8) -> bool) -> usize {
        let rest = &self.text.as_bytes()[self.at..];
        rest.iter().position(|byte| !condition(*byte)).unwrap_or(rest.len())
    }

    fn step(&mut self) {
        match self.byte(0) {
            b'\n' => {
                self.first = true;
                self.at += 1;
            }
            b' ' | b'\t' | b'\r' => self.at += 1,
            b'/' if self.byte(1) == b'/' => {
                let length = self.run(|byte| byte != b'\n');
                let line = &self.text[self.at..self.at + length];
                let span = Span::new(self.at, self.at + line.trim_end().len());
                self.scan.comments.push(span);
                self.at += length;
            }
            b'/' if self.byte(1) == b'*' => self.block_comment(),
            b'"' => self.quoted(),
            b'0'..=b'9' => self.number(),
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
                let length = self.run(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
                self.push(Kind::Word, length);
            }
            b'{' => drop(self.push(Kind::Open(Bracket::Brace), 1)),
            b'}' => drop(self.push(Kind::Close(Bracket::Brace), 1)),
            b'(' => drop(self.push(Kind::Open(Bracket::Paren), 1)),
            b')' => drop(self.push(Kind::Close(Bracket::Paren), 1)),
            b'[' => drop(self.push(Kind::Open(Bracket::Square), 1)),
            b']' => drop(self.push(Kind::Close(Bracket::Square), 1)),
            b',' => drop(self.push(Kind::Comma, 1)),
            b':' if self.byte(1) == b':' => drop(self.push(Kind::DoubleColon, 2)),
            b':' => drop(self.push(Kind::Colon, 1)),
            b'=' if !matches!(self.byte(1), b'=' | b'>') => drop(self.push(Kind::Assign, 1)),
            b'<' if self.byte(1) == b'-' && self.byte(2) == b'>' => drop(self.push(Kind::Operator, 3)),
            b'-' if self.byte(1) != b'>' => drop(self.push(Kind::Operator, 1)),
            b'+' | b'*' | b'/' => drop(self.push(Kind::Operator, 1)),
            _ => self.foreign(),
        }
    }

    fn number(&mut self) {
        let mut length = self.run(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.'));
        let written = &self.text[self.at..self.at + length];
        // `1e-5`: the sign belongs to the number if digits and an `e` stand before it.
        let mantissa = written.strip_suffix(['e', 'E']);
        if mantissa.is_some_and(|m| m.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'_' | b'.')))
            && matches!(self.byte(length), b'+' | b'-')
        {
            let rest = &self.text.as_bytes()[self.at + length + 1..];
            let more = rest.iter().position(|b| !(b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.')));
            length += 1 + more.unwrap_or(rest.len());
        }
        let written = &self.text[self.at..self.at + length];
        let help = number_fault(written);
        let span = self.push(Kind::Number, length);
        if let Some(help) = help {
            let message = format!("`{}` is not a number", shortened(&self.text[span.range()]));
            let diagnostic = Diagnostic::error(self.source, Code::BadNumber, message).at(span, "").help(help);
            self.fault(diagnostic, Patch::Number(span));
        }
    }

    fn quoted(&mut self) {
        let bytes = self.text.as_bytes();
        let mut end = self.at + 1;
        let closed = loop {
            match bytes.get(end) {
                None | Some(b'\n') => break false,
                Some(b'"') => break true,
                Some(b'\\') if !matches!(bytes.get(end + 1), None | Some(b'\n')) => end += 2,
                Some(_) => end += 1,
            }
        };
        if closed {
            self.push(Kind::Text, end + 1 - self.at);
            return;
        }
        // Brackets at the end of the line most probably stand after the missing quote.
        let line = &self.text[self.at..end.min(self.text.len())];
        let body = line.trim_end_matches(|c: char| matches!(c, ')' | ']' | '}' | ',') || c.is_whitespace());
        let length = body.len().max(1);
        let span = self.push(Kind::Foreign, length);
        let diagnostic = Diagnostic::error(self.source, Code::UnclosedText, "this text has no closing quote")
            .at(span, "starts here")
            .help("a text ends with `\"` on the line where it starts; `\\\"` is a quote inside it");
        self.fault(diagnostic, Patch::Drop(span.start));
    }

    fn block_comment(&mut self) {
        let rest = &self.text[self.at..];
        let length = rest.find("*/").map_or(rest.len(), |end| end + 2);
        let span = Span::new(self.at, self.at + length);
        self.first |= rest[..length].contains('\n');
        self.at = span.end;
        let opening = Span::new(span.start, span.start + 2);
        let diagnostic =
            Diagnostic::error(self.source, Code::UnexpectedCharacter, "there are no block comments")
                .at(opening, "")
                .help("start every line of the comment with `//`");
        self.fault(diagnostic, Patch::Blank(span));
    }

    /// Something that no token starts with.
    fn foreign(&mut self) {
        let rest = &self.text[self.at..];
        let Some(first) = rest.chars().next() else { return };
        let two = rest.get(..2).unwrap_or("");
        let (length, help, patch): (usize, &str, fn(Span) -> Patch) = match first {
            '\u{FEFF}' => {
                self.at += first.len_utf8();
                return;
            }
            '#' => {
                let length = self.run(|byte| byte != b'\n');
                (length, "a comment starts with `//`", Patch::Blank)
            }
            ';' => (1, "a new line ends a statement or setting", |span| Patch::LineEnd(span.start)),
            '\u{201C}' | '\u{201D}' | '\u{2018}' | '\u{2019}' | '\'' | '`' => {
                let line = rest.lines().next().unwrap_or("");
                let closes = |c: char| c == first || matches!(c, '\u{201D}' | '\u{2019}');
                let after = first.len_utf8();
                let length = line[after..].find(closes).map_or(after, |end| {
                    let end = after + end;
                    end + line[end..].chars().next().map_or(0, char::len_utf8)
                });
                (length, "a text stands between plain double quotes, `\"`", drop_item)
            }
            '\u{00B5}' | '\u{03BC}' => (first.len_utf8(), "write `us` for microseconds", drop_item),
            '\u{2013}' | '\u{2014}' | '\u{2212}' => (first.len_utf8(), "minus is `-`", drop_item),
            '\u{00D7}' | '\u{00B7}' => (first.len_utf8(), "a product is written with `*`", drop_item),
            '\u{2194}' => (first.len_utf8(), "a link is written with `<->`", drop_item),
            '^' => (1, "there are no powers; write the product with `*`", drop_item),
            '%' => {
                (1, "there is no remainder and no percentage; write a fraction, such as `0.05`", drop_item)
            }
            _ if two == "==" => (2, "there are no conditions; a value is bound with a single `=`", drop_item),
            _ if matches!(two, "->" | "=>" | "<-") => {
                (2, "a link between parts is written `a <-> b`", drop_item)
            }
            '<' | '>' | '!' | '&' | '|' | '?' => (1, "there are no conditions in this language", drop_item),
            _ if first.is_alphabetic() => {
                let length = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
                (length, "names are written with the letters a to z, digits and `_`", drop_item)
            }
            '.' => (1, "a number starts with a digit, such as `0.1`; names are joined with `::`", drop_item),
            _ if first.is_whitespace() => (first.len_utf8(), "use plain blanks", Patch::Blank),
            _ => (first.len_utf8(), "", drop_item),
        };
        let what = match first {
            '#' => "#".to_owned(),
            _ if first.is_control() || first.is_whitespace() => format!("U+{:04X}", u32::from(first)),
            _ => shortened(&rest[..length]),
        };
        let message = format!("`{what}` is not part of the language");
        let span = match patch(Span::default()) {
            Patch::Drop(_) => self.push(Kind::Foreign, length),
            Patch::None | Patch::Blank(_) | Patch::Number(_) | Patch::LineEnd(_) => {
                let span = Span::new(self.at, self.at + length);
                self.first |= first == ';';
                self.at = span.end;
                span
            }
        };
        let marked = if first == '#' { Span::new(span.start, span.start + 1) } else { span };
        let mut diagnostic =
            Diagnostic::error(self.source, Code::UnexpectedCharacter, message).at(marked, "");
        if !help.is_empty() {
            diagnostic = diagnostic.help(help);
        }
        self.fault(diagnostic, patch(span));
    }
}

fn drop_item(span: Span) -> Patch {
    Patch::Drop(span.start)
}

/// Why a word that starts with a digit is neither a number nor a number with its unit.
fn number_fault(written: &str) -> Option<&'static str> {
    let bytes = written.as_bytes();
    let digits = |mut at: usize| {
        // Digits with single `_` between them; the place after them, or none.
        let start = at;
        while at < bytes.len() {
            match bytes[at] {
                b'0'..=b'9' => at += 1,
                b'_' if at > start && bytes.get(at + 1).is_some_and(u8::is_ascii_digit) => at += 1,
                _ => break,
            }
        }
        (at > start).then_some(at)
    };
    let mut at = digits(0).unwrap_or(0);
    if written.len() > 1 && bytes[0] == b'0' && matches!(bytes[1], b'x' | b'X' | b'b' | b'o') {
        return Some("numbers are decimal");
    }
    if bytes.get(at) == Some(&b'.') {
        match digits(at + 1) {
            Some(end) => at = end,
            None => return Some("digits stand on both sides of the point, as in `1.0`"),
        }
    }
    if matches!(bytes.get(at), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(at + 1), Some(b'+' | b'-')));
        if let Some(end) = digits(at + 1 + sign) {
            at = end;
        } else if at + 1 + sign == bytes.len() {
            return Some("digits stand after the `e`, as in `1e-5`");
        }
    }
    let rest = &written[at..];
    if rest.contains('.') {
        return Some("a number has one point; a new number starts after a blank or comma");
    }
    if rest.contains('_') {
        return Some("`_` stands between two digits, as in `1_000_000`; a unit follows after a blank");
    }
    None
}

/// The text, cut where a message would become hard to read.
pub(crate) fn shortened(text: &str) -> String {
    const LONGEST: usize = 32;
    match text.char_indices().nth(LONGEST) {
        Some((cut, _)) => format!("{}...", &text[..cut]),
        None => text.to_owned(),
    }
}
