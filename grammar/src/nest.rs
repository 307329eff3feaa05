//! The brackets and declarations of a token list, also of a wrong one.
//!
//! Only for files that do not parse: every bracket gets its partner, every token its declaration. Where brackets do not match, the
//! question is which one to blame: a line that starts a new statement ends round and square brackets
//! that were left open, a line that starts a new declaration ends everything, and a `}` whose
//! indentation belongs to an outer block hints that an inner one was left open.

use std::ops::Range;

use crate::ast::{MAX_NESTING, Span};
use crate::diagnostic::{Code, Diagnostic, SourceId};
use crate::parse::MAX_DIAGNOSTICS;
use crate::scan::{Bracket, Fault, Kind, Patch, Token};

/// The words that start a declaration.
pub(crate) const DECLARATIONS: [&str; 5] = ["use", "model", "cluster", "train", "pipeline"];

/// The tokens of one declaration, or of something at its place.
#[derive(Clone, Debug)]
pub(crate) struct Chunk {
    pub(crate) tokens: Range<usize>,
    /// Whether it starts as a declaration does.
    pub(crate) declares: bool,
    /// What is wrong with its brackets, as far as one can tell without parsing it.
    pub(crate) faults: Vec<Fault>,
}

#[derive(Debug, Default)]
pub(crate) struct Nest {
    /// For an opening bracket the index of its closing one. A brace that is never closed has the
    /// index where its declaration ends, a bracket that is never closed the last index inside it.
    pub(crate) partner: Vec<Option<usize>>,
    pub(crate) chunks: Vec<Chunk>,
}

/// The deepest nesting of brackets, matching or not: what the parser's stack must bear.
pub(crate) fn depth<'t>(tokens: impl Iterator<Item = &'t Token>) -> usize {
    let (mut depth, mut deepest) = (0usize, 0usize);
    for token in tokens {
        match token.kind {
            Kind::Open(_) => depth += 1,
            Kind::Close(_) => depth = depth.saturating_sub(1),
            Kind::Word
            | Kind::Number
            | Kind::Text
            | Kind::Comma
            | Kind::Colon
            | Kind::DoubleColon
            | Kind::Assign
            | Kind::Operator
            | Kind::Foreign => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

/// Matches all brackets.
pub(crate) fn nest(source: SourceId, text: &str, tokens: &[Token]) -> Nest {
    let mut nester = Nester {
        source,
        text,
        tokens,
        frames: Vec::new(),
        beyond: 0,
        indentation: 0,
        suspect: None,
        told_depth: false,
        count: 0,
        complete: true,
        nest: Nest { partner: vec![None; tokens.len()], ..Nest::default() },
    };
    for index in 0..tokens.len() {
        nester.step(index);
    }
    nester.close_declaration(tokens.len());
    nester.nest
}

struct Frame {
    bracket: Bracket,
    token: usize,
    /// Of the line it stands on.
    indentation: usize,
}

/// Brackets beyond this depth are not matched; the file is refused long before.
const MAX_FRAMES: usize = 4 * MAX_NESTING;

struct Nester<'a> {
    source: SourceId,
    text: &'a str,
    tokens: &'a [Token],
    frames: Vec<Frame>,
    /// How many brackets are open beyond [`MAX_FRAMES`].
    beyond: usize,
    /// Of the current line.
    indentation: usize,
    /// An opening brace whose closing one is indented like that of an outer block.
    suspect: Option<usize>,
    told_depth: bool,
    /// How many faults there are.
    count: usize,
    /// Whether the current declaration has had its block.
    complete: bool,
    nest: Nest,
}

impl Nester<'_> {
    fn fault(&mut self, fault: Fault) {
        // Later ones would not be told of anyway.
        if self.count < MAX_DIAGNOSTICS
            && let Some(chunk) = self.nest.chunks.last_mut()
        {
            self.count += 1;
            chunk.faults.push(fault);
        }
    }

    fn word(&self, index: usize) -> &str {
        match self.tokens.get(index) {
            Some(token) if token.kind == Kind::Word => &self.text[token.span.range()],
            _ => "",
        }
    }

    fn kind(&self, index: usize) -> Option<Kind> {
        self.tokens.get(index).map(|token| token.kind)
    }

    fn span(&self, index: usize) -> Span {
        self.tokens.get(index).map_or(Span::new(self.text.len(), self.text.len()), |token| token.span)
    }

    /// Whether a declaration of the usual shape starts here.
    fn declares(&self, index: usize) -> bool {
        let opens = |at| self.kind(at) == Some(Kind::Open(Bracket::Brace));
        let next = self.kind(index + 1);
        match self.word(index) {
            "use" => matches!(next, Some(Kind::Word | Kind::Text)),
            "model" | "cluster" => {
                let after = self.kind(index + 2);
                let same_line = self.tokens.get(index + 1).is_some_and(|token| !token.first);
                let usual = [Kind::Open(Bracket::Brace), Kind::Open(Bracket::Paren), Kind::Assign];
                next == Some(Kind::Word) && same_line && after.is_some_and(|kind| usual.contains(&kind))
            }
            "train" | "pipeline" => opens(index + 1) || (next == Some(Kind::Word) && opens(index + 2)),
            _ => false,
        }
    }

    /// Whether something that wants to be a declaration starts here: `modle tiny {`.
    fn resembles_declaration(&self, index: usize) -> bool {
        let after = usize::from(self.kind(index + 1) == Some(Kind::Word));
        self.kind(index) == Some(Kind::Word)
            && self.kind(index + 1 + after) == Some(Kind::Open(Bracket::Brace))
    }

    fn starts_chunk(&self, index: usize) -> Option<bool> {
        let first = self.tokens[index].first;
        let Some(chunk) = self.nest.chunks.last() else {
            return Some(DECLARATIONS.contains(&self.word(index)));
        };
        if self.declares(index) && (first || (self.frames.is_empty() && self.complete)) {
            return Some(true);
        }
        if !self.frames.is_empty() || matches!(self.kind(index), Some(Kind::Close(_))) {
            return None;
        }
        let after_use = chunk.declares && self.word(chunk.tokens.start) == "use" && first;
        let keyword = DECLARATIONS.contains(&self.word(index));
        if keyword && first && !matches!(self.kind(index + 1), Some(Kind::Assign | Kind::Colon)) {
            return Some(true);
        }
        // Lines that belong nowhere are told of once.
        let ends =
            (self.complete && chunk.declares) || after_use || (first && self.resembles_declaration(index));
        ends.then_some(false)
    }

    fn step(&mut self, index: usize) {
        if self.tokens[index].first {
            let before = &self.text[..self.span(index).start];
            self.indentation = before.len() - before.trim_end_matches([' ', '\t', '\r']).len();
        }
        if let Some(declares) = self.starts_chunk(index) {
            self.close_declaration(index);
            self.nest.chunks.push(Chunk { tokens: index..index, declares, faults: Vec::new() });
            self.complete = false;
        }
        if let Some(chunk) = self.nest.chunks.last_mut() {
            chunk.tokens.end = index + 1;
        }
        if self.new_item_in_brackets(index) || self.body_in_brackets(index) {
            self.close_brackets(index);
        }
        match self.tokens[index].kind {
            Kind::Open(bracket) => self.open(index, bracket),
            Kind::Close(bracket) => self.close(index, bracket),
            Kind::Word
            | Kind::Number
            | Kind::Text
            | Kind::Comma
            | Kind::Colon
            | Kind::DoubleColon
            | Kind::Assign
            | Kind::Operator
            | Kind::Foreign => {}
        }
    }

    /// Whether a line inside round or square brackets starts a statement or setting: then the
    /// brackets should have been closed before it.
    fn new_item_in_brackets(&self, index: usize) -> bool {
        let Some(frame) = self.frames.last().filter(|frame| frame.bracket != Bracket::Brace) else {
            return false;
        };
        let opener = frame.indentation;
        let next = self.kind(index + 1);
        let repeats = self.word(index) == "repeat"
            && matches!(next, Some(Kind::Word | Kind::Number | Kind::Open(Bracket::Brace)));
        let starts = self.tokens[index].first
            && self.kind(index) == Some(Kind::Word)
            && (repeats || matches!(next, Some(Kind::Assign | Kind::Colon)));
        let continues = index.checked_sub(1).and_then(|before| self.kind(before)).is_none_or(|before| {
            matches!(before, Kind::Comma | Kind::Open(_) | Kind::Operator | Kind::Colon | Kind::Assign)
        });
        starts && (!continues || self.indentation <= opener)
    }

    /// Whether the body of a declaration starts while its parameters are still open.
    fn body_in_brackets(&self, index: usize) -> bool {
        self.kind(index) == Some(Kind::Open(Bracket::Brace))
            && self.tokens.get(index + 1).is_some_and(|token| token.first)
            && !self.frames.is_empty()
            && self.frames.iter().all(|frame| frame.bracket != Bracket::Brace)
    }

    fn open(&mut self, index: usize, bracket: Bracket) {
        if self.frames.len() >= MAX_FRAMES {
            self.beyond += 1;
            return;
        }
        self.frames.push(Frame { bracket, token: index, indentation: self.indentation });
        if self.frames.len() == MAX_NESTING + 1 && !self.told_depth {
            self.told_depth = true;
            let message = format!("brackets are nested more than {MAX_NESTING} deep");
            let diagnostic = Diagnostic::error(self.source, Code::TooDeep, message)
                .at(self.span(index), "too deep here")
                .help("bind inner values to names of their own");
            self.fault(Fault { diagnostic: Some(diagnostic), patch: Patch::None });
        }
    }

    /// Removes the innermost frame. What is nested too deeply has been told of and disappears.
    fn pop(&mut self, end: usize) -> Option<Frame> {
        let depth = self.frames.len();
        let frame = self.frames.pop()?;
        if depth == MAX_NESTING + 1 {
            let from = self.span(frame.token);
            let to = self.span(end);
            let patch = match frame.bracket {
                Bracket::Brace => Patch::Blank(Span::new(from.end, to.start)),
                Bracket::Paren | Bracket::Square => Patch::Number(Span::new(from.start, to.end)),
            };
            self.fault(Fault { diagnostic: None, patch });
        }
        Some(frame)
    }

    fn close(&mut self, index: usize, bracket: Bracket) {
        if self.beyond > 0 {
            self.beyond -= 1;
            return;
        }
        let brace = self.frames.iter().rposition(|frame| frame.bracket == Bracket::Brace);
        let floor = match bracket {
            Bracket::Brace => 0,
            Bracket::Paren | Bracket::Square => brace.map_or(0, |at| at + 1),
        };
        let opener = self.frames.iter().rposition(|frame| frame.bracket == bracket).filter(|at| *at >= floor);
        match opener {
            Some(at) => {
                if at + 1 < self.frames.len() {
                    self.report_unclosed(at + 1, index);
                }
                self.pop_unclosed(at + 1, index);
                self.match_indentation(index);
                if let Some(frame) = self.pop(index) {
                    self.nest.partner[frame.token] = Some(index);
                }
                self.complete |= self.frames.is_empty() && bracket == Bracket::Brace;
            }
            None if self.frames.len() > floor => self.mismatch(index, bracket),
            None => self.stray(index, bracket),
        }
    }

    /// `(a, b]`
    fn mismatch(&mut self, index: usize, bracket: Bracket) {
        let Some(frame) = self.pop(index) else { return };
        self.nest.partner[frame.token] = Some(index);
        let (open, close) = (frame.bracket.open(), frame.bracket.close());
        let message = format!("`{}` does not close `{open}`", bracket.close());
        let diagnostic = Diagnostic::error(self.source, Code::StrayBracket, message)
            .at(self.span(index), format!("expected `{close}`"))
            .with(self.span(frame.token), "opened here");
        self.fault(Fault { diagnostic: Some(diagnostic), patch: Patch::Drop(self.span(index).start) });
    }

    fn stray(&mut self, index: usize, bracket: Bracket) {
        let span = self.span(index);
        // After a line that belongs nowhere, or a header without its `{`, that one is the fault.
        let excused = bracket == Bracket::Brace
            && self.nest.chunks.last().is_some_and(|chunk| !self.complete && chunk.tokens.start < index);
        if excused {
            return;
        }
        let message = format!("`{}` closes nothing", bracket.close());
        let diagnostic = Diagnostic::error(self.source, Code::StrayBracket, message)
            .at(span, format!("there is no open `{}`", bracket.open()))
            .help("delete it, or open its bracket where it should start");
        self.fault(Fault { diagnostic: Some(diagnostic), patch: Patch::Blank(span) });
    }

    fn match_indentation(&mut self, index: usize) {
        let Some(frame) = self.frames.last() else { return };
        let token = &self.tokens[index];
        if frame.bracket != Bracket::Brace || !token.first || self.suspect.is_some() {
            return;
        }
        let indentation = self.indentation;
        let like_outer = self.frames[..self.frames.len() - 1]
            .iter()
            .rev()
            .find(|outer| outer.bracket == Bracket::Brace)
            .is_some_and(|outer| outer.indentation == indentation);
        if like_outer && frame.indentation > indentation {
            self.suspect = Some(frame.token);
        }
    }

    /// Ends the round and square brackets that are open at a new statement.
    fn close_brackets(&mut self, index: usize) {
        let floor =
            self.frames.iter().rposition(|frame| frame.bracket == Bracket::Brace).map_or(0, |at| at + 1);
        self.report_unclosed(floor, index);
        self.pop_unclosed(floor, index);
    }

    /// Removes the frames from `floor` on, which end before the token at `index`.
    fn pop_unclosed(&mut self, floor: usize, index: usize) {
        while self.frames.len() > floor {
            let Some(frame) = self.pop(index.saturating_sub(1)) else { return };
            self.nest.partner[frame.token] = Some(index.saturating_sub(1));
        }
    }

    /// Ends everything that is open where a declaration or the file ends.
    fn close_declaration(&mut self, index: usize) {
        let brackets =
            self.frames.iter().rposition(|frame| frame.bracket == Bracket::Brace).map_or(0, |at| at + 1);
        if brackets < self.frames.len() {
            self.report_unclosed(brackets, index);
        } else if brackets > 0 {
            self.report_unclosed_braces(index);
        }
        while let Some(frame) = self.pop(index) {
            let end = if frame.bracket == Bracket::Brace { index } else { index.saturating_sub(1) };
            self.nest.partner[frame.token] = Some(end);
        }
        self.suspect = None;
        self.beyond = 0;
        self.told_depth = false;
    }

    /// Tells of the frames from `floor` on, which are round or square, or braces under a bracket.
    fn report_unclosed(&mut self, floor: usize, index: usize) {
        let unclosed: Vec<(usize, Bracket)> =
            self.frames[floor..].iter().map(|frame| (frame.token, frame.bracket)).collect();
        let Some((innermost, bracket)) = unclosed.last().copied() else { return };
        let patch = Patch::Drop(self.span(innermost).start);
        // A text without its end has swallowed what would close them, and has been told of.
        let swallowed = self.tokens[innermost..index]
            .iter()
            .any(|token| token.kind == Kind::Foreign && self.text[token.span.range()].starts_with('"'));
        if swallowed {
            self.fault(Fault { diagnostic: None, patch });
            return;
        }
        let end = self.span(index.saturating_sub(1)).end;
        let message = match unclosed.len() {
            1 => format!("`{}` is never closed", bracket.open()),
            count => format!("{count} brackets are never closed"),
        };
        let closers: String = unclosed.iter().rev().map(|(_, bracket)| bracket.close()).collect();
        let mut diagnostic = Diagnostic::error(self.source, Code::UnclosedBracket, message)
            .at(self.span(innermost), "opened here");
        for (token, _) in unclosed.iter().rev().skip(1).take(3) {
            diagnostic = diagnostic.with(self.span(*token), "and here");
        }
        if closers.len() <= 8 {
            diagnostic = diagnostic.with(Span::new(end, end), format!("expected `{closers}`"));
        }
        self.fault(Fault { diagnostic: Some(diagnostic), patch });
    }

    fn report_unclosed_braces(&mut self, index: usize) {
        let innermost = self.frames.last().map_or(0, |frame| frame.token);
        let (message, opener) = match self.frames.len() {
            1 => ("this block is never closed".to_owned(), self.suspect.unwrap_or(innermost)),
            count => (format!("{count} blocks are never closed"), innermost),
        };
        let what = if self.suspect.is_some() && self.frames.len() == 1 {
            "probably this one, by the indentation of its `}`"
        } else {
            "opened here"
        };
        let mut diagnostic =
            Diagnostic::error(self.source, Code::UnclosedBracket, message).at(self.span(opener), what);
        for frame in self.frames.iter().rev().filter(|frame| frame.token != opener).take(3) {
            diagnostic = diagnostic.with(self.span(frame.token), "still open");
        }
        if index < self.tokens.len() {
            diagnostic = diagnostic.with(self.span(index), "but a new declaration starts here");
        }
        let diagnostic = diagnostic.help("add the missing `}`");
        self.fault(Fault { diagnostic: Some(diagnostic), patch: Patch::None });
    }
}
