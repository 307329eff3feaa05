//! Good programs pass; each broken one is refused for what is broken, at its line.

mod cases;
mod mutants;
mod symbolic;

use crate::text;
use crate::text::arbitrary;
use crate::verify::verify;
use proptest::prelude::*;

pub(super) const TWO_STAGES: &str = include_str!("../../../../../tests/programs/two_stages.pprog");

pub(super) const TIED: &str = include_str!("../../../../../tests/programs/tied.pprog");

pub(super) const OFFLOAD: &str = include_str!("../../../../../tests/programs/offload.pprog");

pub(super) const TWO_CUTS: &str = include_str!("../../../../../tests/programs/two_cuts.pprog");

pub(super) const PAIR: &str = include_str!("../../../../../tests/programs/pair.pprog");

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
    assert_eq!(problems(OFFLOAD), []);
    assert_eq!(problems(PAIR), []);
    assert_eq!(problems(TWO_CUTS), []);
}

proptest! {
    #[test]
    fn any_program_is_verified_without_panic(program in arbitrary::program()) {
        let _ = verify(program);
    }

    #[test]
    fn damaged_programs_are_verified_without_panic(
        which in 0..5usize,
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0u32..40), 1..6),
    ) {
        let text = [TWO_STAGES, TIED, OFFLOAD, PAIR, TWO_CUTS][which];
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        for (place, digit, number) in damage {
            // Another number in some line, mostly one that still is an id or a size.
            let line = &mut lines[place.index(text.lines().count())];
            let digits: Vec<usize> = line.char_indices().filter(|(_, c)| c.is_ascii_digit()).map(|(at, _)| at).collect();
            if !digits.is_empty() {
                let at = digits[digit.index(digits.len())];
                line.replace_range(at..=at, &number.to_string());
            }
        }
        if let Ok((program, lines)) = text::parse(&lines.join("\n"))
            && let Err(violations) = verify(program)
        {
            for (line, violation) in violations.at_lines(&lines) {
                prop_assert!(line.is_some() || matches!(violation.place, crate::Entity::Program), "{}", violation);
            }
        }
    }
}
