//! Draws diagnostics as plain text: source line, carets, message. Only for reading in snapshots.

use pipe_grammar::diagnostic::{Diagnostic, Label};

/// All diagnostics of a text, with a blank line between them.
pub(crate) fn render(text: &str, diagnostics: &[Diagnostic]) -> String {
    let drawn: Vec<String> = diagnostics.iter().map(|diagnostic| draw(text, diagnostic)).collect();
    drawn.join("\n")
}

fn draw(text: &str, diagnostic: &Diagnostic) -> String {
    let mut out =
        format!("{} {}: {}\n", diagnostic.severity.as_str(), diagnostic.code.as_str(), diagnostic.message);
    for label in &diagnostic.labels {
        mark(text, label, &mut out);
    }
    if let Some(help) = &diagnostic.help {
        out.push_str(&format!("     = help: {help}\n"));
    }
    out
}

fn mark(text: &str, label: &Label, out: &mut String) {
    let start = label.span.start;
    let line_start = text[..start].rfind('\n').map_or(0, |end| end + 1);
    let line = text[line_start..].lines().next().unwrap_or("");
    let number = text[..start].matches('\n').count() + 1;
    let column = text[line_start..start].chars().count();
    let marked = &text[start..label.span.end.min(line_start + line.len()).max(start)];
    let width = marked.chars().count().max(1);
    let sign = if label.primary { "^" } else { "-" };
    let indent: String = line.chars().take(column).map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
    out.push_str(&format!("{number:>4} | {line}\n     | {indent}{} {}\n", sign.repeat(width), label.text));
    while out.ends_with(" \n") {
        out.truncate(out.len() - 2);
        out.push('\n');
    }
}
