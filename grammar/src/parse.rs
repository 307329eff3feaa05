//! The way from text to tree: scan, match brackets, parse; and if anything is wrong, recover.

use pest::Parser as _;
use pest::iterators::Pairs;

use crate::ast::{File, MAX_NESTING, Span};
use crate::build::Builder;
use crate::diagnostic::{Code, Diagnostic, SourceId};
use crate::nest::{depth, nest};
use crate::recover::recover;
use crate::scan::scan;

/// The largest file that is read, in bytes. A spec is a page long; this bounds hostile ones.
pub const MAX_SIZE: usize = 1 << 20;

/// The most diagnostics that are given for one file.
pub const MAX_DIAGNOSTICS: usize = 100;

/// A file as far as it could be understood, and all that is wrong with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Parsed {
    /// Everything that was understood; complete if there are no diagnostics.
    pub file: File,
    /// What is wrong, by position; at most [`MAX_DIAGNOSTICS`].
    pub diagnostics: Vec<Diagnostic>,
}

#[derive(pest_derive::Parser)]
#[grammar = "../pipe.pest"]
struct Grammar;

pub(crate) type Error = Box<pest::error::Error<Rule>>;

/// Parses text by one rule of the grammar.
pub(crate) fn parse_rule(rule: Rule, text: &str) -> Result<Pairs<'_, Rule>, Error> {
    Grammar::parse(rule, text).map_err(Box::new)
}

/// Parses a `.pipe` file and reports every fault of it at once.
///
/// Never panics; time is linear in the length of the text, which [`MAX_SIZE`] bounds.
pub fn parse(source: SourceId, text: &str) -> Parsed {
    if text.len() > MAX_SIZE {
        let message = format!("this file has {} bytes, more than the {MAX_SIZE} that are read", text.len());
        let diagnostic = Diagnostic::error(source, Code::TooLarge, message)
            .at(Span::new(0, 0), "")
            .help("split it into several files and join them with `use`");
        return Parsed { file: File { source, ..File::default() }, diagnostics: vec![diagnostic] };
    }
    let scan = scan(source, text);
    if scan.faults.len() >= MAX_DIAGNOSTICS {
        let diagnostics = scan.faults.into_iter().filter_map(|fault| fault.diagnostic).collect();
        return Parsed { file: File { source, ..File::default() }, diagnostics };
    }
    let mut parsed = None;
    if scan.faults.is_empty()
        && depth(scan.tokens.iter()) <= MAX_NESTING
        && let Ok(pairs) = parse_rule(Rule::file, text)
    {
        let mut builder = Builder::new(source, text, Span::new(0, text.len()));
        let file = builder.file(pairs);
        parsed = Some(Parsed { file, diagnostics: builder.diagnostics });
    }
    let mut parsed =
        parsed.unwrap_or_else(|| recover(source, text, &scan, &nest(source, text, &scan.tokens)));
    parsed.diagnostics.sort_by_key(|diagnostic| (diagnostic.span(), diagnostic.code));
    parsed.diagnostics.truncate(MAX_DIAGNOSTICS);
    parsed
}

/// Parses the bytes of a `.pipe` file, which should be UTF-8.
pub fn parse_bytes(source: SourceId, bytes: &[u8]) -> Parsed {
    match std::str::from_utf8(bytes) {
        Ok(text) => parse(source, text),
        Err(error) => {
            let at = error.valid_up_to();
            let byte = bytes.get(at).copied().unwrap_or(0);
            let message = format!("this file is not UTF-8: byte 0x{byte:02X} at offset {at}");
            let diagnostic = Diagnostic::error(source, Code::NotUtf8, message)
                .at(Span::new(at, at), "the text is valid up to here")
                .help("save the file as UTF-8 text");
            Parsed { file: File { source, ..File::default() }, diagnostics: vec![diagnostic] }
        }
    }
}
