//! The lines of a formatted file: comments put where they belong, columns aligned at the end.
//!
//! Comments are not in the tree. The formatter asks for them by position as it goes: those before an
//! item stand on lines of their own, the first one after or inside it at the end of its last line. A
//! comment can thereby move, but none is lost, and a second pass finds each where it already is.

use crate::ast::Span;

/// The widest line that is made where it can be helped, in characters.
pub(crate) const WIDTH: usize = 100;

/// How far a block is indented.
const INDENT: usize = 4;

/// Beyond this column comments at line ends are not aligned with each other.
const COMMENT_COLUMN: usize = 72;

/// A place in a line that is padded so that neighbouring lines with the same key agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Align {
    pub(crate) key: String,
    pub(crate) at: usize,
}

struct Line {
    depth: usize,
    text: String,
    align: Option<Align>,
    comment: Option<String>,
    blank_before: bool,
}

impl Line {
    fn width(&self) -> usize {
        self.depth * INDENT + self.text.chars().count()
    }
}

pub(crate) struct Lines<'a> {
    text: &'a str,
    comments: &'a [Span],
    /// Offsets of the braces after which the author began a new line, ascending.
    expanded: Vec<usize>,
    /// Index of the next comment to be placed.
    next: usize,
    lines: Vec<Line>,
    /// Whether the next line starts a block or the file, where no blank line belongs.
    opened: bool,
    blank: bool,
}

impl<'a> Lines<'a> {
    pub(crate) fn new(text: &'a str, comments: &'a [Span], expanded: Vec<usize>) -> Self {
        Lines { text, comments, expanded, next: 0, lines: Vec::new(), opened: true, blank: false }
    }

    /// How many characters a line at this depth has room for.
    pub(crate) fn room(depth: usize) -> usize {
        WIDTH.saturating_sub(depth * INDENT)
    }

    pub(crate) fn source(&self, span: Span) -> &'a str {
        self.text.get(span.range()).unwrap_or("")
    }

    /// Whether two places are on one line of the source.
    pub(crate) fn same_line(&self, from: usize, to: usize) -> bool {
        self.text.get(from..to).is_some_and(|between| !between.contains('\n'))
    }

    /// Where the next `)` stands that is not in a comment, given that only commas come before it.
    pub(crate) fn next_close(&self, from: usize) -> usize {
        let mut at = from;
        loop {
            let first = self.comments.partition_point(|comment| comment.end <= at);
            let comment = self.comments.get(first).map_or(self.text.len(), |comment| comment.start);
            match self.text.get(at..comment).and_then(|between| between.find(')')) {
                Some(found) => return at + found,
                None => match self.comments.get(first) {
                    Some(comment) => at = comment.end,
                    None => return self.text.len(),
                },
            }
        }
    }

    pub(crate) fn has_comment(&self, span: Span) -> bool {
        let first = self.comments.partition_point(|comment| comment.start < span.start);
        self.comments.get(first).is_some_and(|comment| comment.start < span.end)
    }

    /// Whether what stands there cannot or should not be written on one line.
    pub(crate) fn must_break(&self, span: Span) -> bool {
        self.has_comment(span) || self.is_expanded(span)
    }

    /// Whether the author began a new line after a brace in there.
    pub(crate) fn is_expanded(&self, span: Span) -> bool {
        let first = self.expanded.partition_point(|brace| *brace < span.start);
        self.expanded.get(first).is_some_and(|brace| *brace < span.end)
    }

    pub(crate) fn push(&mut self, depth: usize, text: String) {
        let blank_before = std::mem::take(&mut self.blank) && !std::mem::take(&mut self.opened);
        self.opened = false;
        self.lines.push(Line { depth, text, align: None, comment: None, blank_before });
    }

    /// A line that neighbours with the same key are aligned with.
    pub(crate) fn push_aligned(&mut self, depth: usize, text: String, align: Align) {
        self.push(depth, text);
        if let Some(line) = self.lines.last_mut() {
            line.align = Some(align);
        }
    }

    /// A line that opens a block or bracket. `from` is where its last word ends in the source, `until`
    /// where the first thing inside starts: a comment between them on the same line stays there.
    pub(crate) fn push_open(&mut self, depth: usize, text: String, from: usize, until: usize) {
        self.push(depth, text);
        self.place(depth + 1, |lines, comment| {
            comment.start < from || (comment.start < until && lines.same_line(from, comment.start))
        });
        self.opened = true;
    }

    /// Puts a blank line before whatever comes next.
    pub(crate) fn separate(&mut self) {
        self.blank = true;
    }

    /// Places the comments that stand before an item, and keeps one blank line before each and it.
    pub(crate) fn leading(&mut self, depth: usize, until: usize) {
        let mut forced = std::mem::take(&mut self.blank);
        while let Some(comment) = self.comments.get(self.next).filter(|comment| comment.start < until) {
            self.next += 1;
            self.blank = std::mem::take(&mut forced) || self.blank_before(comment.start);
            self.push(depth, self.source(*comment).to_owned());
        }
        self.blank = forced || self.blank_before(until);
    }

    /// As [`Lines::leading`], where blank lines have no place.
    pub(crate) fn leading_close(&mut self, depth: usize, until: usize) {
        self.leading(depth, until);
        self.blank = false;
    }

    /// Places the comments that stand before a closing bracket.
    pub(crate) fn closing(&mut self, depth: usize, until: usize) {
        self.leading(depth, until);
        self.blank = false;
        self.opened = false;
    }

    /// Places what comments are left inside an item, and the one after it on the same line.
    pub(crate) fn trailing(&mut self, depth: usize, end: usize) {
        self.place(depth, |lines, comment| {
            let between = lines.text.get(end..comment.start);
            comment.start < end
                || between
                    .is_some_and(|between| between.chars().all(|c| matches!(c, ' ' | '\t' | '\r' | ',')))
        });
    }

    /// Places the next comments while the condition holds: the first at the end of the last line.
    fn place(&mut self, depth: usize, condition: impl Fn(&Self, Span) -> bool) {
        let mut apart = false;
        while let Some(comment) =
            self.comments.get(self.next).copied().filter(|comment| condition(self, *comment))
        {
            self.next += 1;
            let words = self.source(comment).to_owned();
            match self.lines.last_mut().filter(|line| line.comment.is_none() && !line.text.starts_with("//"))
            {
                Some(line) => line.comment = Some(words),
                None => {
                    // Between declarations a comment stands apart.
                    self.blank = depth == 0 && !std::mem::replace(&mut apart, true);
                    self.push(depth, words);
                }
            }
        }
    }

    fn blank_before(&self, at: usize) -> bool {
        let before = self.text.get(..at).unwrap_or("");
        let blanks = &before[before.trim_end().len()..];
        blanks.matches('\n').count() > 1
    }

    /// The whole text.
    pub(crate) fn finish(mut self) -> String {
        self.leading(0, self.text.len());
        self.align_columns();
        self.align_comments();
        let mut out = String::new();
        for line in &self.lines {
            if line.blank_before {
                out.push('\n');
            }
            out.extend(std::iter::repeat_n(' ', line.depth * INDENT));
            out.push_str(&line.text);
            if let Some(comment) = &line.comment {
                out.push_str(comment);
            }
            out.push('\n');
        }
        out
    }

    /// The end of the run of lines from `start` on that belong together by `same`.
    fn run(&self, start: usize, same: impl Fn(&Line) -> bool) -> usize {
        let depth = self.lines[start].depth;
        let belongs = |line: &Line| line.depth == depth && same(line);
        let rest = &self.lines[start + 1..];
        start + 1 + rest.iter().take_while(|line| !line.blank_before && belongs(line)).count()
    }

    fn align_columns(&mut self) {
        let mut start = 0;
        while start < self.lines.len() {
            let Some(key) = self.lines[start].align.clone().map(|align| align.key) else {
                start += 1;
                continue;
            };
            let end = self.run(start, |line| line.align.as_ref().is_some_and(|align| align.key == key));
            let column = |line: &Line| line.align.as_ref().map_or(0, |align| align.at);
            let widest = self.lines[start..end].iter().map(column).max().unwrap_or(0);
            if self.lines[start..end].iter().all(|line| line.width() + widest - column(line) <= WIDTH) {
                for line in &mut self.lines[start..end] {
                    let at = column(line);
                    line.text.insert_str(at, &" ".repeat(widest - at));
                }
            }
            start = end;
        }
    }

    fn align_comments(&mut self) {
        let mut start = 0;
        while start < self.lines.len() {
            if self.lines[start].comment.is_none() {
                start += 1;
                continue;
            }
            let end = self.run(start, |line| line.comment.is_some());
            let widest = self.lines[start..end].iter().map(Line::width).max().unwrap_or(0);
            for line in &mut self.lines[start..end] {
                let padding = if widest <= COMMENT_COLUMN { widest - line.width() } else { 0 };
                line.text.push_str(&" ".repeat(padding + 2));
            }
            start = end;
        }
    }
}
