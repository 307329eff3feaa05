//! From a plan and a schedule to a program: functions, buffers with their places, messages, waits and the optimizer.
//!
//! Communication is inserted here and nowhere else.

pub mod functions;
