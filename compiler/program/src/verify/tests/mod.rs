//! Good programs pass; each broken one is refused for what is broken, at its line.

mod cases;
mod mutants;
mod symbolic;

use crate::text;
use crate::verify::verify;

pub(super) const TWO_STAGES: &str = include_str!("../../../../../tests/programs/two_stages.pprog");

pub(super) const TIED: &str = include_str!("../../../../../tests/programs/tied.pprog");

/// What is wrong with a text: lines, counted from 1, with messages.
pub(super) fn problems(text: &str) -> Vec<(u32, String)> {
    let (program, lines) = match text::parse(text) {
        Ok(parsed) => parsed,
        Err(errors) => return errors.into_iter().map(|error| (error.line, error.message)).collect(),
    };
    match verify(program) {
        Ok(_) => Vec::new(),
        Err(violations) => violations
            .at_lines(&lines)
            .into_iter()
            .map(|(line, violation)| (line.unwrap_or(0), violation.message.clone()))
            .collect(),
    }
}

#[test]
fn good_programs_pass() {
    assert_eq!(problems(TWO_STAGES), []);
    assert_eq!(problems(TIED), []);
}
