//! The proof that a program means what it says: [`verify`] takes a [`Program`] and returns [`Verified`] or every
//! violation that it finds, each at its place.
//!
//! What is proved, rule by rule ([`Rule`]):
//!
//! - **table**: ids are in range, views lie in their buffers, names are unique, sizes agree with types; arguments of a
//!   call agree with its function, messages with their channel, tensors with their group; every instruction suits its
//!   queue and touches only its own device and the arena that its queue works in.
//! - **memory**: buffers lie in their arena, start at multiples of 64 bytes, and state shares bytes with no other state.
//! - **function**: kernels obey the signature of their op; values lie in their regions; a kernel reads only what was
//!   written and not overwritten since; `write` regions are written in full; nothing writes a `read` region; a kernel of a
//!   pair takes regions, scalars and results of one half only.
//! - **message**: the sends and the receives of a channel stand in one queue each and meet in order, with equal size and
//!   equal work; so do the members of a group.
//! - **order**: all queues finish, with the channel capacities that the program states; if not, the cycle is named.
//! - **unwritten**: every byte that is read was written: it is state, was fed, or an earlier instruction wrote it through
//!   the same buffer; it was not overwritten through another buffer that shares the bytes; state holds its own bytes at
//!   the end of the step, so that the next step finds them (a device starts a step when all its queues finished the last).
//! - **race**: a read is ordered after the write that it needs, a write after the previous write and all reads since, by
//!   the order of queues and by waits alone; the views of one instruction share no byte that it writes.
//! - **unit**: every stage, micro-batch and slice runs F once, and BW once or B once and W at least once; backward runs
//!   after forward, slices ascend forward and descend backward, recomputation stands between the two; a pass reads
//!   activations of its own micro-batch and of its own or a neighbouring stage, tokens of its own micro-batch and weights
//!   of its own stage; losses go to the place of their micro-batch and slice. A pair is both of its passes, each with the
//!   regions of its half; neither finds what the other makes. Where backward has a cut of its own, F runs on the stages of the
//!   forward cut and R and backward passes on the others, each of which takes its input from one place of the forward cut.
//! - **gradient**: per parameter, every stage that uses it adds one contribution for every micro-batch and slice, all of
//!   them before a tie, norm or update reads it; copies are reduced over exactly their devices before norm and update;
//!   the norm counts every parameter once.
//! - **update**: every copy of a parameter is updated exactly once, from its own gradient and with its own moments. Where state is
//!   on the host: loaded weights are copies of weights that the stage uses, as they were before their update; a gradient lands
//!   when it is complete, and the update finds it there.
//!
//! Method: one pass over the tables; one over each function; then one replay of all queues in an order that respects
//! waits and messages, which drives vector clocks per device and the state of every distinct byte range of every arena.
//! Time is linear in the number of instructions times the byte ranges that each touches; a program whose views cut its
//! arenas so finely that this is not bounded is refused.
//!
//! What it deliberately does not prove: that the numbers are right. It knows no layers, so a program may multiply the
//! wrong matrices in perfect order; equality tests are for that. Orders that follow only through another device are not
//! used: a device waits for its own queues explicitly.

mod account;
mod function;
mod gradient;
mod instruction;
mod memory;
mod order;
mod replay;
mod table;
mod touch;
mod unit;

use crate::entity::Entity;
use crate::program::Program;
use crate::text::Lines;
use std::fmt;
use std::ops::Deref;

/// After this many violations the rest is not reported.
const MOST_VIOLATIONS: usize = 1000;

/// A program that [`verify`] has proved.
#[derive(Clone, Debug, PartialEq)]
pub struct Verified(Program);

impl Deref for Verified {
    type Target = Program;
    fn deref(&self) -> &Program {
        &self.0
    }
}

impl Verified {
    /// The program, unproved again.
    pub fn into_program(self) -> Program {
        self.0
    }
}

/// What a violation violates; the module says what each rule proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// Ids, views, sizes, arguments, queues.
    Table,
    /// Buffers in arenas.
    Memory,
    /// Kernels of a function.
    Function,
    /// Pairing of messages and reductions.
    Message,
    /// Progress of all queues.
    Order,
    /// Bytes read were written and are still there.
    Unwritten,
    /// Reads and writes are ordered.
    Race,
    /// Passes of units.
    Unit,
    /// Contributions to gradients.
    Gradient,
    /// Updates of parameters.
    Update,
}

impl Rule {
    /// All rules.
    pub const ALL: [Self; 10] = [
        Self::Table,
        Self::Memory,
        Self::Function,
        Self::Message,
        Self::Order,
        Self::Unwritten,
        Self::Race,
        Self::Unit,
        Self::Gradient,
        Self::Update,
    ];

    /// The name in messages and documentation.
    pub fn name(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::Memory => "memory",
            Self::Function => "function",
            Self::Message => "message",
            Self::Order => "order",
            Self::Unwritten => "unwritten",
            Self::Race => "race",
            Self::Unit => "unit",
            Self::Gradient => "gradient",
            Self::Update => "update",
        }
    }
}

/// Something that a program does wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Where.
    pub place: Entity,
    /// Which rule.
    pub rule: Rule,
    /// What: lower case, with the names and numbers.
    pub message: String,
    /// Other places that the message names.
    pub related: Vec<Entity>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

/// All violations of a program, in the order of their places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violations {
    /// At least one.
    pub list: Vec<Violation>,
    /// How many more there are beyond the limit of the list.
    pub more: usize,
}

impl Violations {
    /// The violations with the lines of their places in a text, in the order of lines.
    pub fn at_lines(&self, lines: &Lines) -> Vec<(Option<u32>, &Violation)> {
        let mut list: Vec<_> =
            self.list.iter().map(|violation| (lines.line(violation.place), violation)).collect();
        list.sort_by_key(|(line, _)| *line);
        list
    }
}

impl fmt::Display for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, violation) in self.list.iter().enumerate() {
            if position > 0 {
                f.write_str("\n")?;
            }
            violation.fmt(f)?;
        }
        if self.more > 0 {
            write!(f, "\nand {} more", self.more)?;
        }
        Ok(())
    }
}

impl std::error::Error for Violations {}

/// Proves a program.
///
/// # Errors
/// Everything that is wrong with it; if the tables are wrong, only that.
pub fn verify(program: Program) -> Result<Verified, Violations> {
    let mut report = Report::default();
    table::check(&program, &mut report);
    let summaries = function::check(&program, &mut report);
    if report.blocked {
        return Err(report.finish());
    }
    match touch::Touches::collect(&program, &summaries) {
        Ok(touches) => {
            let ends = order::check_pairs(&program, &mut report);
            let gradients = gradient::Gradients::collect(&program, &touches, &mut report);
            replay::replay(&program, &touches, &gradients, &ends, &mut report);
        }
        Err(message) => report.add(Entity::Program, Rule::Memory, message),
    }
    if report.list.is_empty() { Ok(Verified(program)) } else { Err(report.finish()) }
}

/// The violations so far.
#[derive(Default)]
struct Report {
    list: Vec<Violation>,
    more: usize,
    /// Whether something is wrong that later checks rely on.
    blocked: bool,
}

impl Report {
    fn add(&mut self, place: Entity, rule: Rule, message: impl Into<String>) {
        self.add_related(place, rule, message, Vec::new());
    }

    fn add_related(&mut self, place: Entity, rule: Rule, message: impl Into<String>, related: Vec<Entity>) {
        if self.list.len() < MOST_VIOLATIONS {
            self.list.push(Violation { place, rule, message: message.into(), related });
        } else {
            self.more += 1;
        }
    }

    /// A violation after which ids and ranges cannot be trusted.
    fn block(&mut self, place: Entity, rule: Rule, message: impl Into<String>) {
        self.blocked = true;
        self.add(place, rule, message);
    }

    fn finish(mut self) -> Violations {
        self.list.sort_by_key(|violation| violation.place);
        Violations { list: self.list, more: self.more }
    }
}

#[cfg(test)]
mod tests;
