//! Fused element-wise kernels: an expression becomes one pass over memory.
//!
//! [`expression`] decides what is computed when, [`compile`] turns it into machine code with Cranelift, and [`tiles`]
//! holds what that code calls for 512 elements at a time: elementary functions and random numbers.

mod compile;
mod expression;
mod tiles;

pub(crate) use compile::{Compiler, MOST_POINTERS, MapKernel};
pub(crate) use expression::{Expression, Reach};
pub(crate) use tiles::{Random, Runs};
