//! The `.pipe` language: text to a syntax tree and back.
//!
//! [`parse()`] reads a file and tells every fault of it at once; [`format()`] writes it in the one
//! canonical layout. The grammar is `pipe.pest` beside this crate's manifest, the reference for users
//! is `docs/language.md`. This crate knows the shape of a file, not what it means: which keys, ops and
//! units there are is the compiler's business. It is pure: no files, clock, environment, threads or printing.
#![deny(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types)]

pub mod ast;
mod build;
pub mod diagnostic;
mod expect;
mod format;
mod nest;
mod parse;
mod recover;
mod scan;

pub use format::format;
pub use parse::{MAX_DIAGNOSTICS, MAX_SIZE, Parsed, parse, parse_bytes};
