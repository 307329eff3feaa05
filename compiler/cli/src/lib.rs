//! The command line: arguments, files, diagnostics as text, commands, pictures of programs and timelines, and snapshots of
//! what a file compiles to.
#![forbid(unsafe_code)]

pub mod arguments;
pub mod commands;
pub mod files;
pub mod report;
pub mod show;
pub mod snapshot;

/// The small pipelines that the tests of this crate share with those of programs.
#[cfg(test)]
#[path = "../../program/tests/programs/mod.rs"]
mod programs;
