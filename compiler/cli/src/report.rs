//! Diagnostics as text: for people through miette, one line each, or as JSON.
//!
//! This is the only place where a diagnostic is drawn. Faults of pipec itself look different from faults of the input
//! and ask for a report.

use crate::arguments::{Color, ErrorFormat};
use miette::{GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, SourceCode};
use pipe_grammar::diagnostic::{Diagnostic, Severity, SourceId};
use pipec_compiler::spec::LIBRARY;
use serde::Serialize;
use std::fmt;
use std::io::IsTerminal;

/// A source text with its name, in the numbering that diagnostics use.
#[derive(Clone, Debug)]
pub struct Source {
    /// The name that messages use: the path as given, or `std::models`.
    pub name: String,
    /// The text.
    pub text: String,
}

/// Draws diagnostics.
#[derive(Clone, Copy, Debug)]
pub struct Reporter {
    format: ErrorFormat,
    color: bool,
}

impl Reporter {
    /// A reporter for standard error.
    pub fn new(format: ErrorFormat, color: Color) -> Self {
        let color = match color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
        };
        Self { format, color }
    }

    /// Whether to use colour.
    pub fn color(self) -> bool {
        self.color
    }

    /// The text of all diagnostics of a compilation, in the order of their places.
    pub fn diagnostics(self, sources: &[Source], diagnostics: &[Diagnostic]) -> String {
        let mut sorted: Vec<&Diagnostic> = diagnostics.iter().collect();
        sorted.sort_by_key(|diagnostic| (diagnostic.source, diagnostic.span(), diagnostic.code));
        let mut text = String::new();
        for diagnostic in sorted {
            let source = source_of(sources, diagnostic.source);
            let source = source.as_ref();
            match self.format {
                ErrorFormat::Human => text.push_str(&self.human(source, diagnostic)),
                ErrorFormat::Short => text.push_str(&short(source, diagnostic)),
                ErrorFormat::Json => text.push_str(&json(source, diagnostic)),
                ErrorFormat::Github => text.push_str(&github(source, diagnostic)),
            }
            text.push('\n');
        }
        if self.format == ErrorFormat::Human {
            text.push_str(&summary(diagnostics));
        }
        text
    }

    /// The text of a plain error that has no place in a source: a file that cannot be read, a run that failed.
    pub fn plain(self, code: Option<&str>, message: &str) -> String {
        match self.format {
            ErrorFormat::Human | ErrorFormat::Short => match code {
                Some(code) => format!("error[{code}]: {message}\n"),
                None => format!("error: {message}\n"),
            },
            ErrorFormat::Json => {
                let view = PlainView { severity: "error", code, message, file: None, line: None };
                // A struct of strings always serialises.
                serde_json::to_string(&view).map(|line| line + "\n").unwrap_or_default()
            }
            ErrorFormat::Github => match code {
                Some(code) => annotation("error", &[("title", code)], message),
                None => annotation("error", &[], message),
            },
        }
    }

    /// The text of an error about a line of a file, whose message may have several lines.
    pub fn at_line(self, file: &str, line: usize, message: &str) -> String {
        match self.format {
            ErrorFormat::Human => format!("error: {file}: {message}\n"),
            ErrorFormat::Short => format!("{file}:{line}:1: error: {message}\n"),
            ErrorFormat::Json => {
                let view =
                    PlainView { severity: "error", code: None, message, file: Some(file), line: Some(line) };
                // A struct of strings and numbers always serialises.
                serde_json::to_string(&view).map(|line| line + "\n").unwrap_or_default()
            }
            ErrorFormat::Github => {
                annotation("error", &[("file", file), ("line", &line.to_string())], message)
            }
        }
    }

    /// The text of a fault of pipec itself.
    pub fn internal(self, message: &str) -> String {
        format!(
            "internal error: {message}\nthis is a bug in pipec, not in your file; please report it with the file and \
             the command\n"
        )
    }

    fn human(self, source: Option<&Source>, diagnostic: &Diagnostic) -> String {
        let theme = if self.color { GraphicalTheme::unicode() } else { GraphicalTheme::unicode_nocolor() };
        let handler = GraphicalReportHandler::new_themed(theme).with_width(100).with_context_lines(1);
        let drawn = Drawn {
            diagnostic,
            source: source.map(|source| NamedSource::new(&source.name, source.text.clone())),
        };
        let mut text = String::new();
        match handler.render_report(&mut text, &drawn) {
            Ok(()) => text,
            // Drawing can fail on a span outside its text only; the message must reach the user all the same.
            Err(fmt::Error) => short(source, diagnostic),
        }
    }
}

/// Own sources count up from 0; the shipped library has numbers of its own.
fn source_of(sources: &[Source], id: SourceId) -> Option<Source> {
    let own = usize::try_from(id.0).ok().and_then(|index| sources.get(index)).cloned();
    own.or_else(|| {
        let file = LIBRARY.iter().find(|file| file.source == id)?;
        Some(Source { name: file.path.to_owned(), text: file.text.to_owned() })
    })
}

fn summary(diagnostics: &[Diagnostic]) -> String {
    let count = |severity| diagnostics.iter().filter(|diagnostic| diagnostic.severity == severity).count();
    let word = |count: usize, word: &str| match count {
        1 => format!("1 {word}"),
        _ => format!("{count} {word}s"),
    };
    match (count(Severity::Error), count(Severity::Warning)) {
        (0, 0) => String::new(),
        (0, warnings) => word(warnings, "warning") + "\n",
        (errors, 0) => word(errors, "error") + "\n",
        (errors, warnings) => format!("{}, {}\n", word(errors, "error"), word(warnings, "warning")),
    }
}

/// Line and column from 1, the column in characters.
pub(crate) fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (line, before[start..].chars().count() + 1)
}

fn short(source: Option<&Source>, diagnostic: &Diagnostic) -> String {
    let (name, text) = source.map_or(("", ""), |source| (source.name.as_str(), source.text.as_str()));
    let (line, column) = position(text, diagnostic.span().start);
    let severity = diagnostic.severity.as_str();
    format!("{name}:{line}:{column}: {severity}[{}]: {}", diagnostic.code, diagnostic.message)
}

/// A diagnostic as an annotation, without the end of its line. The help stands behind the message.
fn github(source: Option<&Source>, diagnostic: &Diagnostic) -> String {
    let (name, text) = source.map_or(("", ""), |source| (source.name.as_str(), source.text.as_str()));
    let (line, column) = position(text, diagnostic.span().start);
    let message = match &diagnostic.help {
        Some(help) => format!("{}\nhelp: {help}", diagnostic.message),
        None => diagnostic.message.clone(),
    };
    let properties = [
        ("file", name),
        ("line", &line.to_string()),
        ("col", &column.to_string()),
        ("title", diagnostic.code.as_str()),
    ];
    annotation(diagnostic.severity.as_str(), &properties, &message).trim_end().to_owned()
}

/// A command of GitHub's actions: one line in which line ends and the signs of the form are escaped.
fn annotation(severity: &str, properties: &[(&str, &str)], message: &str) -> String {
    let escaped = |text: &str| text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A");
    let properties: Vec<String> = properties
        .iter()
        .map(|(key, value)| format!("{key}={}", escaped(value).replace(':', "%3A").replace(',', "%2C")))
        .collect();
    let separator = if properties.is_empty() { "" } else { " " };
    format!("::{severity}{separator}{}::{}\n", properties.join(","), escaped(message.trim_end()))
}

#[derive(Serialize)]
struct PlainView<'a> {
    severity: &'static str,
    code: Option<&'a str>,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
}

#[derive(Serialize)]
struct DiagnosticView<'a> {
    severity: &'static str,
    code: &'static str,
    message: &'a str,
    help: Option<&'a str>,
    file: &'a str,
    labels: Vec<LabelView<'a>>,
}

#[derive(Serialize)]
struct LabelView<'a> {
    primary: bool,
    text: &'a str,
    start: usize,
    end: usize,
    line: usize,
    column: usize,
}

fn json(source: Option<&Source>, diagnostic: &Diagnostic) -> String {
    let (name, text) = source.map_or(("", ""), |source| (source.name.as_str(), source.text.as_str()));
    let labels = diagnostic
        .labels
        .iter()
        .map(|label| {
            let (line, column) = position(text, label.span.start);
            LabelView {
                primary: label.primary,
                text: &label.text,
                start: label.span.start,
                end: label.span.end,
                line,
                column,
            }
        })
        .collect();
    let view = DiagnosticView {
        severity: diagnostic.severity.as_str(),
        code: diagnostic.code.as_str(),
        message: &diagnostic.message,
        help: diagnostic.help.as_deref(),
        file: name,
        labels,
    };
    // A struct of strings and numbers always serialises.
    serde_json::to_string(&view).unwrap_or_default()
}

/// A diagnostic in the form that miette draws.
struct Drawn<'a> {
    diagnostic: &'a Diagnostic,
    source: Option<NamedSource<String>>,
}

impl fmt::Debug for Drawn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.diagnostic.fmt(f)
    }
}

impl fmt::Display for Drawn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.diagnostic.message)
    }
}

impl std::error::Error for Drawn<'_> {}

impl miette::Diagnostic for Drawn<'_> {
    fn code<'b>(&'b self) -> Option<Box<dyn fmt::Display + 'b>> {
        Some(Box::new(format!("{}[{}]", self.diagnostic.severity.as_str(), self.diagnostic.code)))
    }

    fn severity(&self) -> Option<miette::Severity> {
        Some(match self.diagnostic.severity {
            Severity::Error => miette::Severity::Error,
            Severity::Warning => miette::Severity::Warning,
        })
    }

    fn help<'b>(&'b self) -> Option<Box<dyn fmt::Display + 'b>> {
        self.diagnostic.help.as_ref().map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.source.as_ref().map(|source| source as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        Some(Box::new(self.diagnostic.labels.iter().map(|label| {
            let text = (!label.text.is_empty()).then(|| label.text.clone());
            let range = (label.span.start, label.span.end.saturating_sub(label.span.start));
            if label.primary {
                LabeledSpan::new_primary_with_span(text, range)
            } else {
                LabeledSpan::new_with_span(text, range)
            }
        })))
    }
}
