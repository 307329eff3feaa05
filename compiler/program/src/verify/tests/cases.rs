//! Broken programs, described in `cases.txt` by what they change in a good one.

use super::{OFFLOAD, PAIR, TIED, TWO_CUTS, TWO_STAGES, problems};

const CASES: &str = include_str!("cases.txt");

const MARK: &str = " ; error: ";

/// The text of a case with its expectations at the ends of lines.
fn edit(name: &str, edits: &[&str]) -> Vec<String> {
    let base = match name.split_once(": ") {
        Some(("tied", _)) => TIED,
        Some(("offload", _)) => OFFLOAD,
        Some(("pair", _)) => PAIR,
        Some(("two_cuts", _)) => TWO_CUTS,
        Some(_) | None => TWO_STAGES,
    };
    // A line that an edit has put there is no longer a line of the good program.
    let mut lines: Vec<(String, bool)> = base.lines().map(|line| (line.to_owned(), true)).collect();
    let mut at = None;
    for edit in edits {
        let (kind, rest) = edit.split_at(2);
        let (line, _) = rest.split_once(MARK).unwrap_or((rest, ""));
        if kind == "+ " {
            let place = at.unwrap_or_else(|| panic!("{name}: nothing stands before {rest}"));
            lines.insert(place, (rest.to_owned(), false));
            at = Some(place + 1);
            continue;
        }
        let places: Vec<usize> =
            (0..lines.len()).filter(|&place| lines[place].1 && lines[place].0.trim() == line).collect();
        assert_eq!(places.len(), 1, "{name}: {line} stands once");
        if kind == "- " {
            lines.remove(places[0]);
            at = Some(places[0]);
        } else {
            lines[places[0]].0 = rest.to_owned();
            at = Some(places[0] + 1);
        }
    }
    lines.into_iter().map(|(line, _)| line).collect()
}

#[test]
fn every_broken_program_is_refused_at_its_line() {
    let mut failures = Vec::new();
    for case in CASES.split("\n== ").skip(1) {
        let (name, edits) = case.split_once('\n').unwrap_or((case, ""));
        let edits: Vec<&str> = edits.lines().filter(|line| !line.is_empty()).collect();
        let lines = edit(name, &edits);
        let mut expected = Vec::new();
        let mut plain = String::new();
        for (number, line) in (1u32..).zip(&lines) {
            let mut parts = line.split(MARK);
            plain.push_str(parts.next().unwrap_or(""));
            plain.push('\n');
            expected.extend(parts.map(|message| (number, message.to_owned())));
        }
        let mut found = problems(&plain);
        found.sort();
        expected.sort();
        if found != expected {
            let show = |list: &[(u32, String)]| {
                list.iter()
                    .map(|(line, message)| {
                        let text = plain.lines().nth(*line as usize - 1).unwrap_or("");
                        format!("    {text}{MARK}{message}\n")
                    })
                    .collect::<String>()
            };
            failures.push(format!("== {name}\n  expected\n{}  found\n{}", show(&expected), show(&found)));
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}
