//! The compiler: from the syntax tree of a `.pipe` file to a verified program.
//!
//! The modules stand in the order of the data flow, and each uses only those before it:
//! `spec < graph < mode < rewrite < plan < schedule < lower < search < pipeline`. Every stage has a type of its own and is a plain function from
//! the type before it; `pipeline` is the one place where they stand in order.
//!
//! This crate is pure: no files, clock, environment, threads or printing. It never sees a device that computes.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types)]

pub mod graph;
pub mod lower;
pub mod mode;
pub mod pipeline;
pub mod plan;
pub mod rewrite;
pub mod schedule;
mod search;
pub mod spec;
