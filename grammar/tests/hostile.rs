//! Files made to break the parser: whatever comes in, an answer comes out, soon.

#[path = "support/generate.rs"]
mod generate;

use std::time::{Duration, Instant};

use pipe_grammar::diagnostic::{Diagnostic, SourceId};
use pipe_grammar::{MAX_DIAGNOSTICS, MAX_SIZE, format, parse, parse_bytes};

use generate::generate;

const EXAMPLES: [&str; 3] =
    [include_str!("files/tiny.pipe"), include_str!("files/rtx4090.pipe"), include_str!("files/untidy.pipe")];

/// What must hold for every text at all.
fn check(text: &str) {
    let parsed = parse(SourceId::default(), text);
    assert!(parsed.diagnostics.len() <= MAX_DIAGNOSTICS);
    for diagnostic in &parsed.diagnostics {
        check_diagnostic(text, diagnostic);
    }
    match format(text) {
        Ok(once) => {
            assert!(parsed.diagnostics.is_empty());
            assert_eq!(format(&once).as_ref(), Ok(&once), "{text}");
        }
        Err(diagnostics) => assert_eq!(diagnostics, parsed.diagnostics),
    }
}

fn check_diagnostic(text: &str, diagnostic: &Diagnostic) {
    assert!(!diagnostic.message.is_empty() && !diagnostic.message.ends_with('.'), "{diagnostic:?}");
    assert!(diagnostic.labels.first().is_some_and(|label| label.primary), "{diagnostic:?}");
    for label in &diagnostic.labels {
        assert!(text.get(label.span.range()).is_some(), "{diagnostic:?}\n{text}");
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 33) as usize % bound.max(1)
    }

    /// The text with a few characters removed, doubled, moved or replaced.
    fn mutate(&mut self, text: &str) -> String {
        const PIECES: [&str; 28] = [
            "{",
            "}",
            "(",
            ")",
            "[",
            "]",
            ",",
            ":",
            "::",
            "=",
            "\"",
            "//",
            "\n",
            " ",
            "-",
            "<->",
            "1",
            "e",
            "_",
            ".",
            "é",
            "\u{FEFF}",
            "\0",
            "model x {",
            "train {",
            "repeat 3 {",
            "link a <-> b {",
            "/*",
        ];
        let mut characters: Vec<char> = text.chars().collect();
        for _ in 0..=self.below(4) {
            let at = self.below(characters.len());
            let end = (at + self.below(20)).min(characters.len());
            match self.below(4) {
                0 => drop(characters.drain(at..end)),
                1 => {
                    let copy: Vec<char> = characters[at..end].to_vec();
                    let to = self.below(characters.len());
                    characters.splice(to..to, copy);
                }
                2 => {
                    let piece = PIECES[self.below(PIECES.len())];
                    characters.splice(at..at, piece.chars());
                }
                _ => {
                    let piece = PIECES[self.below(PIECES.len())];
                    characters.splice(at..(at + 1).min(characters.len()), piece.chars());
                }
            }
        }
        characters.into_iter().collect()
    }
}

#[test]
fn mutated_files_are_survived() {
    let mut random = Random(1);
    for round in 0..600 {
        let mut text = EXAMPLES[round % EXAMPLES.len()].to_owned();
        if round % 4 == 3 {
            text = generate(round as u64, 3).text;
        }
        check(&random.mutate(&text));
    }
}

#[test]
fn truncated_files_are_survived() {
    for text in EXAMPLES {
        let ends = text.char_indices().map(|(at, _)| at);
        for end in ends.step_by(7) {
            check(&text[..end]);
        }
    }
}

#[test]
fn bytes_are_survived() {
    let mut random = Random(2);
    for _ in 0..200 {
        let bytes: Vec<u8> = (0..random.below(200)).map(|_| random.below(256) as u8).collect();
        parse_bytes(SourceId::default(), &bytes);
        let ascii: String = bytes.iter().map(|byte| char::from(byte % 128)).collect();
        check(&ascii);
    }
}

/// Long enough that growth with the square would take minutes, short enough for every test run.
const LARGE: usize = MAX_SIZE / 8;

/// Large texts, each the worst of its kind.
#[test]
fn huge_files_take_bounded_time() {
    let fill = |piece: &str| piece.repeat(LARGE / piece.len());
    let inside = |piece: &str| format!("model m {{\n{}\n}}\n", piece.repeat((LARGE - 20) / piece.len()));
    let settings = |piece: &str| format!("train {{\n{}\n}}\n", piece.repeat((LARGE - 20) / piece.len()));
    let texts = [
        fill("("),
        fill("{"),
        fill("x {"),
        fill("}"),
        fill("model m { x = f(\n"),
        fill("train { a: 1 }\n"),
        fill("\n"),
        fill("\""),
        fill(";"),
        fill("// comment\n"),
        fill("é"),
        inside("x = f(\n"),
        inside("x = f(a, b\n"),
        inside("x = 1 +\n"),
        inside("repeat 2 {"),
        inside("x = a { b: "),
        inside("x = [1, 2, 3]\n"),
        inside("x y\n"),
        format!("model m {{ x = {}1 }}", "1 + ".repeat(LARGE / 5)),
        format!("model m {{ x = {}1 }}", "-".repeat(LARGE - 100)),
        format!("model m {{ x = {}1 }}", "a::".repeat(LARGE / 4)),
        format!("model m {{ x = f({}) }}", "a b, ".repeat(LARGE / 6)),
        settings("a: 1\n"),
        settings("a: 1 b: 2\n"),
        settings("a: [1, "),
        settings("a: \"text\n"),
    ];
    for text in texts {
        let start = Instant::now();
        let parsed = parse(SourceId::default(), &text);
        let taken = start.elapsed();
        let shown: String = text.chars().take(40).collect();
        for diagnostic in &parsed.diagnostics {
            check_diagnostic(&text, diagnostic);
        }
        // A generous bound for a loaded machine; what it must catch is growth with the square.
        assert!(taken < Duration::from_secs(60), "{shown:?} took {taken:?}");
    }
}

/// The deepest file that is accepted, on the smallest stack that a thread usually has.
#[test]
fn depth_has_a_limit_that_fits_the_stack() {
    let nested = |depth: usize| format!("model m {{ x = {}1{} }}", "f(".repeat(depth), ")".repeat(depth));
    let records = |depth: usize| format!("train {{ x: {}1{} }}", "r { k: ".repeat(depth), " }".repeat(depth));
    let blocks = |depth: usize| format!("model m {{ {}{} }}", "repeat 2 {".repeat(depth), "}".repeat(depth));
    let codes = |text: &str| -> Vec<&str> {
        parse(SourceId::default(), text)
            .diagnostics
            .iter()
            .map(|diagnostic| diagnostic.code.as_str())
            .collect()
    };
    let run = move || {
        for build in [&nested as &dyn Fn(usize) -> String, &records, &blocks] {
            assert_eq!(codes(&build(63)), Vec::<&str>::new());
            check(&build(63));
            assert_eq!(codes(&build(64)), ["E0108"]);
            assert_eq!(codes(&build(10_000)), ["E0108"]);
        }
    };
    std::thread::Builder::new().stack_size(2 << 20).spawn(run).unwrap().join().unwrap();
}
