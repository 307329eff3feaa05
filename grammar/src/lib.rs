//! The `.pipe` language: text to a syntax tree and back.

pub mod ast;
pub mod diagnostic;
