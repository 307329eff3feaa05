//! All the faults of a wrong file, not only the first.
//!
//! A file is parsed one declaration at a time. Where that fails, the place of the failure is told of,
//! the smallest item around it - a statement, a setting, a part - is replaced by blanks, which moves
//! nothing else, and the declaration is parsed again. The blocks inside the item are parsed as well,
//! on their own, so that their faults come out too. What remains at the end is the tree.
//!
//! Every round blanks at least one token, and the bytes parsed again are bounded by [`WORK`], so that
//! hostile files cost linear time.

use std::ops::Range;

use pest::error::{ErrorVariant, InputLocation};
use pest::iterators::Pair;

use crate::ast::{File, MAX_NESTING, Span};
use crate::build::Builder;
use crate::diagnostic::{Code, Diagnostic, SourceId, suggest};
use crate::expect::{Context, expect};
use crate::nest::{Chunk, DECLARATIONS, Nest, depth};
use crate::parse::{Error, MAX_DIAGNOSTICS, Parsed, Rule, parse_rule};
use crate::scan::{Bracket, Fault, Kind, Patch, Scan, Token, shortened};

/// How many bytes are parsed again before the faults found so far must do.
const WORK: usize = 8 << 20;

/// What stands in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Block {
    Statements,
    Items,
    Settings,
}

/// A piece that is parsed on its own: a declaration or, inside something wrong, a block.
struct Job {
    /// What the piece is; none for a declaration.
    block: Option<Block>,
    tokens: Range<usize>,
    /// Where its text starts and ends in the source.
    span: Span,
    /// Its text, with everything already told of replaced byte for byte, and open blocks closed.
    text: String,
}

/// A statement, setting or part, the block it stands in, or a declaration, which stands in none.
struct Place {
    block: Option<Block>,
    item: Range<usize>,
}

/// Finds every fault and keeps what is right.
pub(crate) fn recover(source: SourceId, text: &str, scan: &Scan, nest: &Nest) -> Parsed {
    let tokens = &scan.tokens;
    let mut recovery = Recovery {
        source,
        text,
        tokens,
        nest,
        patched: text.as_bytes().to_vec(),
        dropped: Vec::new(),
        work: WORK,
        diagnostics: Vec::new(),
        file: File { source, ..File::default() },
    };
    let from_scan = recovery.apply(&scan.faults);
    let mut before: Option<&Chunk> = None;
    for chunk in &nest.chunks {
        if recovery.diagnostics.len() >= MAX_DIAGNOSTICS {
            break;
        }
        let span = recovery.span(&chunk.tokens);
        let from = from_scan.partition_point(|at| *at < span.start);
        let to = from_scan.partition_point(|at| *at < span.end);
        recovery.dropped = from_scan[from..to].to_vec();
        recovery.chunk(chunk, before);
        before = Some(chunk);
    }
    Parsed { file: recovery.file, diagnostics: recovery.diagnostics }
}

/// Replaces bytes by blanks; line ends stay, since they separate entries.
fn blank(bytes: &mut [u8], span: Span) {
    for byte in bytes.get_mut(span.range()).unwrap_or_default() {
        if *byte != b'\n' {
            *byte = b' ';
        }
    }
}

struct Recovery<'a> {
    source: SourceId,
    text: &'a str,
    tokens: &'a [Token],
    nest: &'a Nest,
    /// The text without what the scanner told of.
    patched: Vec<u8>,
    /// Offsets in this chunk whose items are to be dropped, ascending.
    dropped: Vec<usize>,
    work: usize,
    diagnostics: Vec<Diagnostic>,
    file: File,
}

impl Recovery<'_> {
    fn kind(&self, index: usize) -> Option<Kind> {
        self.tokens.get(index).map(|token| token.kind)
    }

    fn word(&self, index: usize) -> &str {
        match self.tokens.get(index) {
            Some(token) if token.kind == Kind::Word => &self.text[token.span.range()],
            _ => "",
        }
    }

    fn span(&self, tokens: &Range<usize>) -> Span {
        let first = self.tokens.get(tokens.start).map_or(Span::default(), |token| token.span);
        tokens
            .end
            .checked_sub(1)
            .and_then(|last| self.tokens.get(last))
            .map_or(first, |last| first.to(last.span))
    }

    /// Tells of faults and patches the text; gives the offsets whose items are to be dropped.
    fn apply(&mut self, faults: &[Fault]) -> Vec<usize> {
        let mut dropped = Vec::new();
        for fault in faults {
            self.diagnostics.extend(fault.diagnostic.clone());
            match fault.patch {
                Patch::None => {}
                Patch::Blank(span) => blank(&mut self.patched, span),
                Patch::Number(span) => {
                    blank(&mut self.patched, span);
                    self.patched[span.start] = b'0';
                }
                Patch::LineEnd(at) => self.patched[at] = b'\n',
                Patch::Drop(at) => dropped.push(at),
            }
        }
        dropped.sort_unstable();
        dropped
    }

    fn chunk(&mut self, chunk: &Chunk, before: Option<&Chunk>) {
        let mut jobs = Vec::new();
        // What the brackets looked like is a guess, which a declaration that parses proves wrong.
        if !chunk.faults.is_empty() && chunk.declares && self.dropped.is_empty() {
            let span = self.span(&chunk.tokens);
            let text = String::from_utf8_lossy(&self.patched[span.range()]).into_owned();
            self.work = self.work.saturating_sub(text.len());
            let job = Job { block: None, tokens: chunk.tokens.clone(), span, text };
            if self.shallow(&job, MAX_NESTING) && self.build(&job).is_ok() {
                return;
            }
        }
        let mut dropped = self.apply(&chunk.faults);
        self.dropped.append(&mut dropped);
        self.dropped.sort_unstable();
        if chunk.declares {
            jobs.extend(self.job(None, chunk.tokens.clone(), &self.patched, 0));
        } else {
            self.unknown_declaration(chunk, before);
            jobs.extend(self.inner_jobs(None, &chunk.tokens, &self.patched, 0));
        }
        while let Some(job) = jobs.pop() {
            self.run(job, &mut jobs);
        }
    }

    fn unknown_declaration(&mut self, chunk: &Chunk, before: Option<&Chunk>) {
        let start = chunk.tokens.start;
        let Some(token) = self.tokens.get(start) else { return };
        let told = self.patched.get(token.span.start).is_none_or(|byte| *byte == b' ');
        if told || token.kind == Kind::Foreign {
            return;
        }
        let word = &self.text[token.span.range()];
        let message = format!("expected a declaration, found `{}`", shortened(word));
        let mut diagnostic = Diagnostic::error(self.source, Code::UnknownDeclaration, message)
            .at(token.span, "not a declaration");
        let last =
            before.and_then(|before| before.tokens.end.checked_sub(1)).and_then(|last| self.tokens.get(last));
        if let Some(last) = last.filter(|last| last.kind == Kind::Close(Bracket::Brace)) {
            diagnostic = diagnostic.with(last.span, "the declaration before it ends here");
        }
        let help = match (suggest(word, DECLARATIONS), self.kind(start + 1)) {
            (Some(close), _) if token.kind == Kind::Word => format!("did you mean `{close}`?"),
            (_, Some(Kind::Colon)) => "settings stand in `train { ... }` or `pipeline { ... }`".to_owned(),
            (_, Some(Kind::Assign)) => "statements stand in `model NAME { ... }`".to_owned(),
            _ => "a file holds `use`, `model`, `cluster`, `train` and `pipeline`".to_owned(),
        };
        self.diagnostics.push(diagnostic.help(help));
    }

    /// Whether a brace is closed by the end of its declaration only.
    fn unclosed(&self, open: usize) -> bool {
        self.kind(open) == Some(Kind::Open(Bracket::Brace))
            && self.nest.partner[open].is_some_and(|end| self.kind(end) != Some(Kind::Close(Bracket::Brace)))
    }

    /// The index after the bracket that opens here and all inside it.
    fn after_bracket(&self, open: usize) -> usize {
        match self.nest.partner[open] {
            Some(end) if self.unclosed(open) => end,
            Some(end) => end + 1,
            None => open + 1,
        }
    }

    /// A piece to be parsed, its text taken from `bytes`, which start at `base` of the source.
    fn job(&self, block: Option<Block>, tokens: Range<usize>, bytes: &[u8], base: usize) -> Option<Job> {
        let span = self.tokens.get(tokens.start)?.span.to(self.tokens.get(tokens.end.checked_sub(1)?)?.span);
        let bytes = bytes.get(span.start.checked_sub(base)?..span.end.checked_sub(base)?)?;
        if bytes.first() == Some(&b' ') {
            return None;
        }
        let mut text = String::from_utf8_lossy(bytes).into_owned();
        let open = tokens.clone().filter(|index| {
            let at = self.tokens[*index].span.start - span.start;
            self.unclosed(*index) && bytes[at] != b' '
        });
        text.extend(open.map(|_| '}'));
        Some(Job { block, tokens, span, text })
    }

    /// The blocks directly inside an item.
    fn inner_blocks(&self, block: Option<Block>, item: &Range<usize>) -> Vec<(Block, Range<usize>)> {
        let mut found = Vec::new();
        let (mut index, mut depth, mut value) = (item.start, 0usize, false);
        while index < item.end {
            match self.tokens[index].kind {
                Kind::Open(Bracket::Brace) => {
                    let end = self.after_bracket(index).min(item.end);
                    found.push((self.block_at(block, item.start, value || depth > 0), index..end));
                    index = end;
                    continue;
                }
                Kind::Open(Bracket::Paren | Bracket::Square) => depth += 1,
                Kind::Close(_) => depth = depth.saturating_sub(1),
                Kind::Colon | Kind::Assign => value |= depth == 0,
                Kind::Word
                | Kind::Number
                | Kind::Text
                | Kind::Comma
                | Kind::DoubleColon
                | Kind::Operator
                | Kind::Foreign => {}
            }
            index += 1;
        }
        found
    }

    /// What stands in a block of an item that starts at `start` and stands in `outer` itself.
    fn block_at(&self, outer: Option<Block>, start: usize, value: bool) -> Block {
        let word = self.word(start);
        let keyword = if DECLARATIONS.contains(&word) { Some(word) } else { suggest(word, DECLARATIONS) };
        match outer {
            _ if value => Block::Settings,
            Some(Block::Statements) => Block::Statements,
            Some(Block::Items) if word != "link" => Block::Items,
            None if keyword == Some("model") => Block::Statements,
            None if keyword == Some("cluster") => Block::Items,
            Some(Block::Items | Block::Settings) | None => Block::Settings,
        }
    }

    fn inner_jobs(&self, block: Option<Block>, item: &Range<usize>, bytes: &[u8], base: usize) -> Vec<Job> {
        let blocks = self.inner_blocks(block, item).into_iter();
        blocks.filter_map(|(inner, tokens)| self.job(Some(inner), tokens, bytes, base)).collect()
    }

    /// The innermost item that holds a token.
    fn place(&self, job: &Job, token: usize) -> Place {
        let inside = |range: &Range<usize>| {
            range.start < token
                && (token + 1 < range.end || (self.unclosed(range.start) && token < range.end))
        };
        let mut place = Place { block: None, item: job.tokens.clone() };
        let mut next = match job.block {
            Some(block) => Some((block, job.tokens.clone())),
            None => self.inner_blocks(None, &job.tokens).into_iter().find(|(_, range)| inside(range)),
        };
        while let Some((block, range)) = next.filter(|(_, range)| inside(range)) {
            let Some(item) = self.item(job, &range, token) else { break };
            place = Place { block: Some(block), item };
            next = self.inner_blocks(place.block, &place.item).into_iter().find(|(_, range)| inside(range));
        }
        place
    }

    fn alive(&self, job: &Job, index: usize) -> bool {
        let at = self.tokens[index].span.start.checked_sub(job.span.start);
        at.and_then(|at| job.text.as_bytes().get(at)).is_some_and(|byte| *byte != b' ')
    }

    /// The item of a block that holds a token.
    fn item(&self, job: &Job, block: &Range<usize>, token: usize) -> Option<Range<usize>> {
        let end = if self.unclosed(block.start) { block.end } else { block.end - 1 };
        let (mut start, mut before, mut index) = (None, None, block.start + 1);
        while index < end {
            if !self.alive(job, index) {
                index += 1;
                continue;
            }
            if self.starts_item(index, before) {
                if index > token {
                    break;
                }
                start = Some(index);
            }
            let next = self.after_bracket(index).max(index + 1).min(end);
            before = self.kind(next - 1);
            index = next;
        }
        start.map(|start| start..index.min(end))
    }

    /// Whether a token starts a statement, setting or part, by what stands around it.
    fn starts_item(&self, index: usize, before: Option<Kind>) -> bool {
        let Some(before) = before else { return true };
        let token = &self.tokens[index];
        let next = self.kind(index + 1);
        let word = token.kind == Kind::Word;
        let named = word && matches!(next, Some(Kind::Assign | Kind::Colon));
        let ends = !matches!(before, Kind::Assign | Kind::Colon | Kind::DoubleColon | Kind::Operator);
        let begins = !matches!(
            token.kind,
            Kind::Assign | Kind::Colon | Kind::DoubleColon | Kind::Operator | Kind::Open(_) | Kind::Close(_)
        );
        (before == Kind::Comma && token.kind != Kind::Open(Bracket::Brace))
            || (token.first && (named || (ends && begins)))
            || (word && ends && next == Some(Kind::Assign))
    }

    fn run(&mut self, mut job: Job, jobs: &mut Vec<Job>) {
        if !self.shallow(&job, MAX_NESTING + 1) {
            return;
        }
        let from = self.dropped.partition_point(|at| *at < job.span.start);
        let to = self.dropped.partition_point(|at| *at < job.span.end);
        for index in from..to {
            let at = self.dropped[index];
            let token = self.tokens.partition_point(|token| token.span.end <= at);
            if token < job.tokens.end && self.alive(&job, token) && !self.remove(&mut job, token, jobs) {
                return;
            }
        }
        while self.diagnostics.len() < MAX_DIAGNOSTICS
            && self.shallow(&job, MAX_NESTING + 1)
            && self.spend(job.text.len())
        {
            let Err(error) = self.build(&job) else { return };
            let blame = self.tell(&job, &error);
            if !self.alive(&job, blame) || !self.remove(&mut job, blame, jobs) {
                return;
            }
        }
    }

    /// Takes so many bytes off the work that is left; whether there was enough.
    fn spend(&mut self, bytes: usize) -> bool {
        let left = self.work.checked_sub(bytes);
        self.work = left.unwrap_or(0);
        left.is_some()
    }

    /// Whether the parser's stack can bear a piece. What is too deep has been told of and replaced;
    /// where more is left than that, nothing else is worth telling.
    fn shallow(&self, job: &Job, limit: usize) -> bool {
        let unchanged = |token: &&Token| {
            let at = token.span.start;
            job.text.as_bytes().get(at - job.span.start) == self.text.as_bytes().get(at)
        };
        depth(self.tokens[job.tokens.clone()].iter().filter(unchanged)) <= limit
    }

    /// Parses a piece and takes it into the file.
    fn build(&mut self, job: &Job) -> Result<(), Error> {
        let rule = match job.block {
            None => Rule::one_declaration,
            Some(Block::Statements) => Rule::one_statements,
            Some(Block::Items) => Rule::one_items,
            Some(Block::Settings) => Rule::one_settings,
        };
        let mut builder = Builder::new(self.source, self.text, job.span);
        for pair in parse_rule(rule, &job.text)?.flat_map(Pair::into_inner) {
            match job.block {
                None => builder.declaration(pair, &mut self.file),
                Some(_) => builder.block(pair),
            }
        }
        self.diagnostics.append(&mut builder.diagnostics);
        Ok(())
    }

    /// Tells of one failure; gives the token to blame.
    fn tell(&mut self, job: &Job, error: &Error) -> usize {
        let at = match error.location {
            InputLocation::Pos(at) | InputLocation::Span((at, _)) => job.span.start + at,
        };
        let expected: &[Rule] = match &error.variant {
            ErrorVariant::ParsingError { positives, .. } => positives,
            ErrorVariant::CustomError { .. } => &[],
        };
        let alive: Vec<usize> = job.tokens.clone().filter(|index| self.alive(job, *index)).collect();
        let found = alive.partition_point(|index| self.tokens[*index].span.end <= at);
        let near = alive.get(found).or(alive.last()).copied().unwrap_or(job.tokens.start);
        let block = self.place(job, near).block;
        let (source, text, tokens) = (self.source, self.text, self.tokens);
        let told = expect(&Context { source, text, tokens, alive: &alive, found, block }, expected);
        self.diagnostics.push(told.diagnostic);
        told.blame.unwrap_or(job.tokens.start)
    }

    /// Blanks the item that holds a token and queues the blocks inside it. Whether anything is left
    /// that can be parsed.
    fn remove(&mut self, job: &mut Job, token: usize, jobs: &mut Vec<Job>) -> bool {
        let place = self.place(job, token);
        let inner = self.inner_jobs(place.block, &place.item, job.text.as_bytes(), job.span.start);
        if !self.spend(job.text.len()) {
            return false;
        }
        for inner in inner {
            if self.spend(inner.text.len()) {
                jobs.push(inner);
            }
        }
        let unclosed =
            place.item.clone().filter(|index| self.unclosed(*index) && self.alive(job, *index)).count();
        let Some(last) = place.item.end.checked_sub(1).and_then(|last| self.tokens.get(last)) else {
            return false;
        };
        let start = self.tokens[place.item.start].span.start - job.span.start;
        let end = last.span.end - job.span.start;
        let mut bytes = std::mem::take(&mut job.text).into_bytes();
        blank(&mut bytes, Span::new(start, end));
        // The braces that closed its blocks go with them.
        bytes.truncate(bytes.len() - unclosed);
        job.text = String::from_utf8_lossy(&bytes).into_owned();
        place.block.is_some() && place.item.contains(&token)
    }
}
