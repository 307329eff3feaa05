//! Text to a program: one line at a time, one function per kind of line.
//!
//! Every line with an error is reported once and skipped. Time and memory are linear in the length of the text:
//! nothing recurses, and no number in the text decides the size of an allocation.

mod cursor;
mod function;
mod instruction;
mod kernel;
mod tables;

use super::lines::{FunctionLines, Lines, ParameterLines, QueueLines};
use crate::function::{Body, Function};
use crate::id::IdVec;
use crate::program::{Batch, LearningRate, Program, Training, View};
use cursor::{Cursor, Parsed, Problem};
use std::fmt;

/// After this many errors the rest of a text is not read.
const MAX_ERRORS: usize = 100;

/// An error in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextError {
    /// The line, counted from 1.
    pub line: u32,
    /// The character of the line, counted from 1.
    pub column: u32,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.message)
    }
}

impl std::error::Error for TextError {}

/// The program of a text, and where everything stands in it.
///
/// # Errors
/// Every line that is not as `docs/program.md` says, in order, up to a limit.
pub fn parse(text: &str) -> Result<(Program, Lines), Vec<TextError>> {
    let mut parser = Parser::new();
    for line in text.split('\n') {
        parser.number = parser.number.saturating_add(1);
        let mut cursor = Cursor::new(line);
        if cursor.is_finished() {
            continue;
        }
        if let Err(problem) = parser.line(&mut cursor) {
            parser.report(line, problem);
        }
        if parser.version == Version::Unknown {
            break;
        }
        if parser.errors.len() >= MAX_ERRORS {
            parser.error_here("too many errors, the rest is not read");
            return Err(parser.errors);
        }
    }
    parser.finish()
}

/// What the lines so far say.
struct Parser {
    number: u32,
    version: Version,
    block: Block,
    program: Program,
    lines: Lines,
    /// The next id of each table, which is its length unless an id was wrong.
    next: Next,
    views: Vec<View>,
    errors: Vec<TextError>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    Unseen,
    Known,
    Unknown,
}

/// The block that a line stands in, with the line of its header where an error may need it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Top,
    Parameter,
    Function,
    Queue,
}

#[derive(Default)]
struct Next {
    device: u32,
    link: u32,
    buffer: u32,
    parameter: u32,
    channel: u32,
    group: u32,
    function: u32,
    queue: u32,
    param: u32,
    scalar: u32,
    value: u32,
}

impl Parser {
    fn new() -> Self {
        Self {
            number: 0,
            version: Version::Unseen,
            block: Block::Top,
            program: Program {
                name: String::new(),
                compiler: String::new(),
                inputs: String::new(),
                batch: Batch {
                    micro_batches: 0,
                    sequences: 0,
                    tokens: 0,
                    slices: 0,
                    stages: 0,
                    forward: 0,
                    copies: 0,
                },
                slices: IdVec::new(),
                training: Training {
                    steps: None,
                    seed: 0,
                    learning_rate: LearningRate::Constant { rate: 0.0 },
                    data: None,
                },
                devices: IdVec::new(),
                links: IdVec::new(),
                parameters: IdVec::new(),
                functions: IdVec::new(),
                buffers: IdVec::new(),
                channels: IdVec::new(),
                groups: IdVec::new(),
                feeds: Vec::new(),
                readings: Vec::new(),
                queues: IdVec::new(),
            },
            lines: Lines::default(),
            next: Next::default(),
            views: Vec::new(),
            errors: Vec::new(),
        }
    }

    fn report(&mut self, line: &str, problem: Problem) {
        let before = line.get(..problem.at).map_or(0, |before| before.chars().count());
        let column = u32::try_from(before).unwrap_or(u32::MAX).saturating_add(1);
        self.errors.push(TextError { line: self.number, column, message: problem.message });
    }

    fn error_here(&mut self, message: &str) {
        self.errors.push(TextError { line: self.number.max(1), column: 1, message: message.to_owned() });
    }

    fn line(&mut self, c: &mut Cursor<'_>) -> Parsed<()> {
        if self.version == Version::Unseen {
            self.version = Version::Unknown;
            if !c.eat_word("pprog") {
                return c.fail("a program starts with the line `pprog 1`");
            }
            let at = c.here();
            let version = c.number()?;
            if version != 1 {
                return c.fail_at(
                    at,
                    format!("version {version} of the form is not known here; this pipec reads 1"),
                );
            }
            self.version = Version::Known;
            return c.finish();
        }
        if self.block != Block::Top && c.eat("}") {
            self.block = Block::Top;
            return c.finish();
        }
        match self.block {
            Block::Top => self.item(c),
            Block::Parameter => self.copy(c),
            Block::Function => self.function_line(c),
            Block::Queue => self.instruction_line(c),
        }
    }

    /// A line outside of every block.
    fn item(&mut self, c: &mut Cursor<'_>) -> Parsed<()> {
        let at = c.here();
        let word = c.word();
        match word {
            "program" => {
                once(c, at, word, &mut self.lines.program, self.number)?;
                self.program.name = c.string()?;
            }
            "compiler" => {
                if !self.program.compiler.is_empty() {
                    return c.fail_at(at, "`compiler` stands twice");
                }
                self.program.compiler = c.string()?;
            }
            "inputs" => {
                if !self.program.inputs.is_empty() {
                    return c.fail_at(at, "`inputs` stands twice");
                }
                self.program.inputs = c.string()?;
            }
            "batch" => {
                once(c, at, word, &mut self.lines.batch, self.number)?;
                (self.program.batch, self.program.slices) = tables::batch(c)?;
            }
            "training" => {
                once(c, at, word, &mut self.lines.training, self.number)?;
                tables::training(c, &mut self.program.training)?;
            }
            "learning_rate" => {
                once(c, at, word, &mut self.lines.learning_rate, self.number)?;
                self.program.training.learning_rate = tables::learning_rate(c)?;
            }
            "data" => {
                once(c, at, word, &mut self.lines.data, self.number)?;
                self.program.training.data = Some(tables::data(c)?);
            }
            "device" => self.device(c)?,
            "link" => self.link(c)?,
            "buffer" => self.buffer(c)?,
            "parameter" => {
                // Entered even if the header is wrong, so that the lines of the block are read as such.
                self.block = Block::Parameter;
                self.lines.parameters.push(ParameterLines { header: self.number, copies: Vec::new() });
                self.parameter(c)?;
            }
            "channel" => self.channel(c)?,
            "group" => self.group(c)?,
            "feed" => self.feed(c)?,
            "reading" => self.reading(c)?,
            "function" => {
                self.block = Block::Function;
                self.lines.functions.push(FunctionLines { header: self.number, ..FunctionLines::default() });
                let function = Function {
                    name: String::new(),
                    params: IdVec::new(),
                    scalars: IdVec::new(),
                    pair: None,
                    body: Body::Kernels { values: IdVec::new(), kernels: Vec::new() },
                };
                self.program.functions.push(function);
                self.function_header(c)?;
            }
            "queue" => {
                self.block = Block::Queue;
                self.lines.queues.push(QueueLines { header: self.number, instructions: Vec::new() });
                self.queue(c)?;
            }
            "" => return c.fail("expected a word that says what the line is, such as `buffer` or `queue`"),
            _ => return c.fail_at(at, format!("`{}` starts no line of a program", shortened(word))),
        }
        c.finish()
    }

    fn finish(mut self) -> Result<(Program, Lines), Vec<TextError>> {
        if self.version == Version::Unseen {
            self.error_here("a program starts with the line `pprog 1`");
        }
        if self.version == Version::Known {
            if self.block != Block::Top {
                self.error_here("the last block has no `}`");
            }
            let needed = [
                ("program", self.lines.program),
                ("batch", self.lines.batch),
                ("training", self.lines.training),
                ("learning_rate", self.lines.learning_rate),
            ];
            for (word, line) in needed {
                if line == 0 {
                    self.error_here(&format!("the text has no line `{word}`"));
                }
            }
        }
        if self.errors.is_empty() { Ok((self.program, self.lines)) } else { Err(self.errors) }
    }

    /// `b12[0..4096]`, or `b12` for all of a buffer that stands above.
    fn view(&self, c: &mut Cursor<'_>) -> Parsed<View> {
        let at = c.here();
        let buffer = c.id(b'b', "a buffer")?;
        if c.eat("[") {
            let (offset, bytes) = c.range_after_bracket()?;
            return Ok(View { buffer, offset, bytes });
        }
        match self.program.buffers.get(buffer) {
            Some(row) => Ok(View { buffer, offset: crate::Bytes::ZERO, bytes: row.bytes }),
            // A buffer whose line was wrong has been reported there.
            None if !self.errors.is_empty() => {
                Ok(View { buffer, offset: crate::Bytes::ZERO, bytes: crate::Bytes::ZERO })
            }
            None => c.fail_at(
                at,
                format!("{buffer} stands not above; its size is needed unless a range is given"),
            ),
        }
    }
}

/// Marks a line that may stand once.
fn once(c: &Cursor<'_>, at: usize, word: &str, line: &mut u32, number: u32) -> Parsed<()> {
    if *line != 0 {
        return c.fail_at(at, format!("`{word}` stands twice; first in line {line}"));
    }
    *line = number;
    Ok(())
}

fn shortened(word: &str) -> String {
    word.chars().take(24).collect()
}
