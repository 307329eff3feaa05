//! The command line: arguments, files, diagnostics as text, commands, and pictures of programs and timelines.
#![forbid(unsafe_code)]

pub mod arguments;
pub mod commands;
pub mod files;
pub mod report;
pub mod show;
