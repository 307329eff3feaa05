//! The spec stage: what examples, the library and faulty files mean.

mod examples;
mod support;
