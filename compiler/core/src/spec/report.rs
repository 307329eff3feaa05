//! The diagnostics of a resolution, gathered.

use pipe_grammar::MAX_DIAGNOSTICS;
use pipe_grammar::diagnostic::{Diagnostic, Severity};

/// What has been found so far.
#[derive(Debug, Default)]
pub(super) struct Report {
    diagnostics: Vec<Diagnostic>,
    errors: usize,
    warnings: usize,
}

impl Report {
    /// Adds a finding; beyond [`MAX_DIAGNOSTICS`] errors, and as many warnings, they are only counted.
    pub(super) fn push(&mut self, diagnostic: Diagnostic) {
        let number = match diagnostic.severity {
            Severity::Error => &mut self.errors,
            Severity::Warning => &mut self.warnings,
        };
        *number += 1;
        if *number <= MAX_DIAGNOSTICS {
            self.diagnostics.push(diagnostic);
        }
    }

    /// The number of errors so far.
    pub(super) fn errors(&self) -> usize {
        self.errors
    }

    /// Whether so much is wrong that more of it helps nobody; whoever loops over statements stops then.
    pub(super) fn is_full(&self) -> bool {
        self.errors >= MAX_DIAGNOSTICS
    }

    /// Everything found, by place. A finding that was made several times, since a shared declaration is looked at for
    /// each of its uses, is listed once.
    pub(super) fn into_sorted(mut self) -> Vec<Diagnostic> {
        self.diagnostics.sort_by_cached_key(|diagnostic| {
            (diagnostic.source, diagnostic.span(), diagnostic.code, diagnostic.message.clone())
        });
        self.diagnostics.dedup();
        self.diagnostics
    }
}
