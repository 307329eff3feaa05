//! The textual form of a program, `.pprog`: [`print()`] and [`parse()`] are inverses.
//!
//! - `parse(print(p)) == p` for every program whose numbers are finite and whose byte ranges end below 2^64;
//! - `print(parse(t)) == t` for every text that [`print()`] wrote (comments and free spacing are not kept).
//!
//! One line is one thing: a row of a table, a kernel or an instruction, so a line number names it and a changed
//! decision is a changed line. `docs/program.md` describes the form.
//!
//! What the text deliberately does not promise: that ids are in range or that the program makes sense, which is what
//! [`mod@crate::verify`] is for.

mod lines;
mod parse;
mod print;

pub use lines::Lines;
pub use parse::{TextError, parse};
pub use print::{print, print_kernel, print_with_lines};

#[cfg(test)]
pub(crate) mod arbitrary;
#[cfg(test)]
mod tests;
