//! The commands, one file each. A command prints its result to standard output or a file, and nothing else there;
//! progress and messages go to standard error.

mod build;
mod check;
mod diff;
mod explain;
mod fmt;
pub(crate) mod load;
mod modes;
mod profile;
mod run;
mod schedule;
mod show;
mod simulate;
mod snap;
mod verify;

use crate::arguments::Command;
use crate::report::Reporter;
use std::io;
use std::path::Path;

/// Why a command failed, ready to print.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What kind of failure.
    pub exit: Exit,
    /// The text for standard error.
    pub text: String,
}

/// The kinds of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The input has errors, or is not what it is compared with.
    Diagnostics,
    /// The command was used wrongly.
    Usage,
    /// A run failed.
    Run,
    /// A fault of pipec itself.
    Internal,
}

impl Exit {
    /// The exit code of the process.
    pub fn code(self) -> u8 {
        match self {
            Self::Diagnostics => 1,
            Self::Usage => 2,
            Self::Run => 3,
            Self::Internal => 70,
        }
    }
}

impl Failure {
    /// The input has errors, which the text tells.
    fn diagnostics(text: impl Into<String>) -> Self {
        Self { exit: Exit::Diagnostics, text: text.into() }
    }

    /// The command was used wrongly.
    fn usage(reporter: Reporter, message: impl AsRef<str>) -> Self {
        Self { exit: Exit::Usage, text: reporter.plain(None, message.as_ref()) }
    }

    /// A run failed.
    fn run(reporter: Reporter, message: impl AsRef<str>) -> Self {
        Self { exit: Exit::Run, text: reporter.plain(None, message.as_ref()) }
    }

    /// A fault of pipec itself.
    fn internal(reporter: Reporter, message: impl AsRef<str>) -> Self {
        Self { exit: Exit::Internal, text: reporter.internal(message.as_ref()) }
    }

    /// A file could not be read or written.
    fn file(reporter: Reporter, path: &Path, error: &io::Error) -> Self {
        Self { exit: Exit::Diagnostics, text: reporter.plain(None, &format!("{}: {error}", path.display())) }
    }
}

/// Carries out a command.
///
/// # Errors
/// A [`Failure`] with its text and exit code.
pub fn execute(command: &Command, reporter: Reporter) -> Result<(), Failure> {
    match command {
        Command::Check(arguments) => check::execute(arguments, reporter),
        Command::Build(arguments) => build::execute(arguments, reporter),
        Command::Simulate(arguments) => simulate::execute(arguments, reporter),
        Command::Snap(arguments) => snap::execute(arguments, reporter),
        Command::Diff(arguments) => diff::execute(arguments, reporter),
        Command::Modes(arguments) => modes::execute(arguments, reporter),
        Command::Show(arguments) => show::execute(arguments, reporter),
        Command::Run(arguments) => run::execute(arguments, reporter),
        Command::Profile(arguments) => profile::execute(arguments, reporter),
        Command::Verify(arguments) => verify::execute(arguments, reporter),
        Command::Fmt(arguments) => fmt::execute(arguments, reporter),
        Command::Schedule(arguments) => schedule::execute_policy(arguments, reporter),
        Command::Explain(arguments) => explain::execute(arguments, reporter),
    }
}
