//! What a file says about its own faults: `// error E0601: 9 stages, but ...` at the end of the line where the fault
//! is told, several one after the other; `//^ ` instead of `// ` on a line of its own speaks of the line above, where no
//! comment can stand on that itself. The whole message is written out.

use pipe_grammar::diagnostic::{Diagnostic, Severity};
use std::collections::BTreeSet;
use std::fmt;

/// A diagnostic as far as a file tells it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Said {
    /// The line of the fault itself, from 1.
    line: usize,
    /// `error E0601: message`.
    text: String,
}

impl Said {
    /// What is told about a text.
    pub(crate) fn new(diagnostic: &Diagnostic, text: &str) -> Self {
        let Diagnostic { severity, code, message, .. } = diagnostic;
        let before = &text[..diagnostic.span().start];
        Self {
            line: before.matches('\n').count() + 1,
            text: format!("{} {code}: {message}", severity.as_str()),
        }
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}  // {}", self.line, self.text)
    }
}

/// What a text expects to be said about it.
pub(crate) fn expected(text: &str) -> BTreeSet<Said> {
    let mut expected = BTreeSet::new();
    for (number, line) in (1..).zip(text.lines()) {
        for comment in line.split("//").skip(1) {
            let (line, comment) = match comment.strip_prefix('^') {
                Some(comment) => (number - 1, comment),
                None => (number, comment),
            };
            let comment = comment.trim();
            let is_expectation = [Severity::Error, Severity::Warning].into_iter().any(|severity| {
                comment.strip_prefix(severity.as_str()).is_some_and(|rest| rest.starts_with(" E"))
            });
            if is_expectation {
                expected.insert(Said { line, text: comment.to_owned() });
            }
        }
    }
    expected
}

#[test]
fn comments_are_read() {
    let said = |line, text: &str| Said { line, text: text.to_owned() };
    let text = "// error of a kind\nx  // error E0101: a // warning E0214: b\ny\n//^ error E0102: c\n";
    let expected_here = [said(2, "error E0101: a"), said(2, "warning E0214: b"), said(3, "error E0102: c")];
    assert_eq!(expected(text), expected_here.into());
}
