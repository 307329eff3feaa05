//! What is told to the user about a source text, as plain data.
//!
//! Every stage that can reject a file speaks in [`Diagnostic`]s; drawing them belongs to the command
//! line. A message is one lower-case sentence without a final dot, the primary label is the smallest
//! wrong span, and the help names a legal way out.

use std::fmt;

use crate::ast::Span;

/// Which source text a diagnostic or a file belongs to; whoever reads the texts numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SourceId(pub u32);

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The file is accepted, but probably not what was meant.
    Warning,
    /// The file is rejected.
    Error,
}

impl Severity {
    /// The word that stands before the code in a report.
    pub const fn as_str(self) -> &'static str {
        match self {
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// A marked piece of the source text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// What is marked. An empty span marks the place before its byte.
    pub span: Span,
    /// What to say about it; may be empty for a primary label whose message says all.
    pub text: String,
    /// Whether this is where the fault is, rather than something that explains it.
    pub primary: bool,
}

/// One thing that is wrong, where, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Stable, for scripts, searching and `pipec explain`.
    pub code: Code,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong, in one lower-case sentence without a final dot.
    pub message: String,
    /// Where; the first one is primary.
    pub labels: Vec<Label>,
    /// A legal way out.
    pub help: Option<String>,
    /// The text that the labels point into.
    pub source: SourceId,
}

impl Diagnostic {
    /// An error without labels.
    pub fn error(source: SourceId, code: Code, message: impl Into<String>) -> Self {
        Diagnostic {
            code,
            severity: Severity::Error,
            message: message.into(),
            labels: Vec::new(),
            help: None,
            source,
        }
    }

    /// A warning without labels.
    pub fn warning(source: SourceId, code: Code, message: impl Into<String>) -> Self {
        Diagnostic { severity: Severity::Warning, ..Diagnostic::error(source, code, message) }
    }

    /// Marks the fault itself.
    #[must_use]
    pub fn at(mut self, span: Span, text: impl Into<String>) -> Self {
        self.labels.push(Label { span, text: text.into(), primary: true });
        self
    }

    /// Marks something that explains the fault.
    #[must_use]
    pub fn with(mut self, span: Span, text: impl Into<String>) -> Self {
        self.labels.push(Label { span, text: text.into(), primary: false });
        self
    }

    /// Names a legal way out.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// The primary span, for sorting and for editors; the start of the text if there is no label.
    pub fn span(&self) -> Span {
        let primary = self.labels.iter().find(|label| label.primary).or(self.labels.first());
        primary.map_or(Span::default(), |label| label.span)
    }
}

/// Declares [`Code`]: one line a code, which is all that a new one needs here.
macro_rules! codes {
    ($($name:ident $code:literal $title:literal,)*) => {
        /// The stable name of a kind of fault: `E` and four digits, of which the first two are the
        /// group: 01 syntax, 02 names and keys, 03 units and numbers, 04 shapes, 05 options and batch
        /// arithmetic, 06 cut, placement and schedule, 07 memory, 08 data and running. A code is never
        /// reused for another fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $(#[doc = concat!("`", $code, "`: ", $title)] $name,)*
        }

        impl Code {
            /// Every code, ascending.
            pub const ALL: &'static [Code] = &[$(Code::$name,)*];

            /// The code as users see it.
            pub const fn as_str(self) -> &'static str {
                match self { $(Code::$name => $code,)* }
            }

            /// The fault in a few words, as a heading.
            pub const fn title(self) -> &'static str {
                match self { $(Code::$name => $title,)* }
            }
        }
    };
}

codes! {
    UnexpectedCharacter "E0101" "a character that the language does not use",
    Expected            "E0102" "something else was expected here",
    UnclosedText        "E0103" "a text without its closing quote",
    BadEscape           "E0104" "an unknown escape in a text",
    BadNumber           "E0105" "a number that is not well formed",
    UnclosedBracket     "E0106" "a bracket that is never closed",
    StrayBracket        "E0107" "a bracket that closes nothing",
    TooDeep             "E0108" "nesting that is too deep",
    TooLarge            "E0109" "a file that is too large",
    NotUtf8             "E0110" "a file that is not UTF-8",
    UnknownDeclaration  "E0111" "an unknown kind of declaration",
    MissingSeparator    "E0112" "two entries without a comma or new line between them",
    ArgumentOrder       "E0113" "a positional argument after a named one",

    DuplicateKey        "E0201" "a key that is written twice",
    DuplicateName       "E0202" "a name that is declared twice",
    UnknownName         "E0203" "a name that nothing declares",
    UnknownKey          "E0204" "a key that has no meaning here",
    MissingKey          "E0205" "a key that is required",
    UnknownOp           "E0206" "an op that does not exist",
    UnknownArgument     "E0207" "an argument that the op does not take",
    MissingArgument     "E0208" "an argument that the op requires",
    WrongKind           "E0209" "a value of the wrong kind",
    AmbiguousChoice     "E0210" "several declarations and no choice among them",
    NothingToChoose     "E0211" "no declaration of a kind that is required",
    UseNotFound         "E0212" "a used file or declaration that does not exist",
    CyclicUse           "E0213" "declarations that need each other in a circle",
    Unused              "E0214" "a name that nothing uses",

    UnknownUnit         "E0301" "an unknown unit",
    WrongUnit           "E0302" "a unit of the wrong dimension",
    MissingUnit         "E0303" "a number without its unit",
    OutOfRange          "E0304" "a number outside its range",
    NotAnInteger        "E0305" "a number that must be an integer",
    InexactDivision     "E0306" "a division that does not come out",
    BrokenUnit          "E0307" "a unit that is torn apart",

    ShapeMismatch       "E0401" "shapes that do not fit",
    NoLoss              "E0402" "a model without exactly one loss",
    Misplaced           "E0403" "something that cannot stand here",

    NoEffect            "E0501" "an option that would do nothing",
    BatchMismatch       "E0502" "batch sizes that do not multiply",
    Conflict            "E0503" "options that exclude each other",
    Unsupported         "E0504" "something pipec does not have",

    TooManyStages       "E0601" "more stages than pieces of the model",
    EmptyStage          "E0602" "a stage without layers",
    DeviceMismatch      "E0603" "a number of devices that does not match",
    CutMismatch         "E0604" "a list that does not cover the model",
    NotSliceable        "E0605" "a layer that cannot be sliced",
    GivenSchedule       "E0606" "a file that is no schedule of the pipeline",

    OutOfMemory         "E0701" "a device whose memory does not suffice",

    DataNotFound        "E0801" "data that cannot be read",
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text that is no code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownCode(pub String);

impl fmt::Display for UnknownCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no code `{}`", self.0)
    }
}

impl std::error::Error for UnknownCode {}

impl std::str::FromStr for Code {
    type Err = UnknownCode;

    /// Reads a code as users write it, in either case.
    fn from_str(text: &str) -> Result<Self, UnknownCode> {
        let found = Code::ALL.iter().find(|code| code.as_str().eq_ignore_ascii_case(text));
        found.copied().ok_or_else(|| UnknownCode(text.to_owned()))
    }
}

/// The candidate that `name` is most probably a misspelling of, for "did you mean".
///
/// Distance is the number of letters inserted, deleted, replaced or swapped with their neighbour;
/// more than a third of the name (at least one letter) is no misspelling. Case alone costs nothing,
/// and among equals the first candidate wins.
pub fn suggest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A word this long is no typing mistake, and the table below would be large.
    const LONGEST: usize = 64;
    let word: Vec<char> = name.to_lowercase().chars().take(LONGEST + 1).collect();
    if word.len() > LONGEST {
        return None;
    }
    let limit = (word.len() / 3).max(1);
    let mut best: Option<(usize, &str)> = None;
    for candidate in candidates {
        let other: Vec<char> = candidate.to_lowercase().chars().take(LONGEST + 1).collect();
        if other.len().abs_diff(word.len()) > limit || candidate == name {
            continue;
        }
        let distance = edit_distance(&word, &other);
        if distance <= limit && best.is_none_or(|(least, _)| distance < least) {
            best = Some((distance, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// Optimal string alignment distance, by rows of the usual table.
fn edit_distance(from: &[char], to: &[char]) -> usize {
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in to.iter().enumerate() {
            let replaced = last[j] + usize::from(a != b);
            let mut least = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == to[j - 1] && from[i - 1] == *b {
                least = least.min(before_last[j - 1] + 1);
            }
            row.push(least);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_ascend_and_read_back() {
        assert!(Code::ALL.windows(2).all(|pair| pair[0].as_str() < pair[1].as_str()));
        for code in Code::ALL {
            assert_eq!(code.as_str().to_lowercase().parse(), Ok(*code));
        }
        assert_eq!("E9999".parse::<Code>(), Err(UnknownCode("E9999".to_owned())));
    }

    #[test]
    fn suggest_finds_small_mistakes_only() {
        let ops = ["linear", "rms_norm", "rope", "silu", "gelu"];
        assert_eq!(suggest("liner", ops), Some("linear"));
        assert_eq!(suggest("rmsnorm", ops), Some("rms_norm"));
        assert_eq!(suggest("ropé", ops), Some("rope"));
        assert_eq!(suggest("isl", ops), None);
        assert_eq!(suggest("gleu", ops), Some("gelu"));
        assert_eq!(suggest("Linear", ops), Some("linear"));
        assert_eq!(suggest("", ops), None);
        assert_eq!(suggest(&"x".repeat(1 << 20), ops), None);
    }
}
