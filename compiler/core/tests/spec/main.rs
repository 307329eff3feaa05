//! The spec stage: what examples, the library and faulty files mean.

mod codes;
mod documents;
mod examples;
mod faults;
mod library;
mod memory;
mod models;
mod rules;
mod support;
