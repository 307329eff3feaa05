//! Random files that are right, with blanks, line ends and comments wherever they may stand.

/// A right file, and the comments in it.
pub(crate) struct Generated {
    pub(crate) text: String,
    pub(crate) comments: Vec<String>,
}

/// The file with this number; `size` bounds its parts.
pub(crate) fn generate(seed: u64, size: u64) -> Generated {
    let mut generator = Generator { state: seed, size, pieces: Vec::new() };
    for _ in 0..generator.below(size + 1) {
        generator.declaration();
    }
    generator.lay_out()
}

enum Piece {
    Token(String),
    /// Blanks only: what follows must stay on the line.
    Blank,
    /// A comma or a line end.
    Separator,
}

struct Generator {
    state: u64,
    size: u64,
    pieces: Vec<Piece>,
}

const WORDS: [&str; 12] = [
    "x",
    "h",
    "layer",
    "model",
    "repeat",
    "as",
    "use",
    "link",
    "train",
    "dim",
    "a_long_name_of_something",
    "GiB",
];

impl Generator {
    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 33) % bound.max(1)
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        let at = self.below(from.len() as u64);
        from[at as usize]
    }

    fn token(&mut self, token: &str) {
        self.pieces.push(Piece::Token(token.to_owned()));
    }

    fn word(&mut self) {
        let word = self.pick(&WORDS);
        self.token(word);
    }

    /// A name that differs from its siblings.
    fn distinct(&mut self, index: u64) {
        let word = self.pick(&WORDS);
        self.token(&format!("{word}{index}"));
    }

    fn path(&mut self) {
        let mut path = self.pick(&WORDS).to_owned();
        while self.chance(20) {
            path = format!("{path}::{}", self.pick(&WORDS));
        }
        self.token(&path);
    }

    fn declaration(&mut self) {
        match self.below(6) {
            0 => {
                self.token("use");
                match self.below(3) {
                    0 => self.token("\"shared // not a comment.pipe\""),
                    1 => self.token("std::models::*"),
                    _ => self.path(),
                }
            }
            1 | 2 => {
                self.token("model");
                self.word();
                self.parameters();
                if self.chance(20) {
                    self.specialised();
                } else {
                    self.statements(3);
                }
            }
            3 => {
                self.token("cluster");
                self.word();
                self.parameters();
                if self.chance(20) {
                    self.specialised();
                } else {
                    self.items(3);
                }
            }
            other => {
                self.token(if other == 4 { "train" } else { "pipeline" });
                if self.chance(30) {
                    self.word();
                }
                self.settings(3);
            }
        }
    }

    fn parameters(&mut self) {
        if self.chance(50) {
            return;
        }
        self.token("(");
        let count = self.below(self.size + 1);
        for index in 0..count {
            self.distinct(index);
            if self.chance(50) {
                self.token(":");
                self.value(2);
            }
            self.comma(index + 1 < count);
        }
        self.token(")");
    }

    /// A comma that is needed, or may be.
    fn comma(&mut self, needed: bool) {
        if needed || self.chance(20) {
            self.token(",");
        }
    }

    fn specialised(&mut self) {
        self.token("=");
        self.path();
        self.settings(2);
    }

    fn statements(&mut self, depth: u64) {
        self.token("{");
        for _ in 0..self.below(self.size + 1) {
            if depth > 0 && self.chance(20) {
                self.token("repeat");
                self.count();
                if self.chance(50) {
                    self.token("as");
                    self.word();
                }
                self.statements(depth - 1);
            } else {
                self.word();
                self.token("=");
                self.value(3);
            }
        }
        self.token("}");
    }

    fn count(&mut self) {
        for _ in 0..self.below(3) {
            self.count_operand();
            let operator = self.pick(&["+", "-", "*", " / "]);
            self.token(operator);
        }
        self.count_operand();
    }

    fn count_operand(&mut self) {
        match self.below(5) {
            0 => {
                self.token("(");
                self.value(2);
                self.token(")");
            }
            1 => self.token("devices"),
            2 => {
                self.token("-");
                self.token("n");
            }
            _ => self.token("8"),
        }
    }

    fn items(&mut self, depth: u64) {
        self.token("{");
        let count = self.below(self.size + 1);
        for index in 0..count {
            match self.below(4) {
                0 if depth > 0 => {
                    self.word();
                    if self.chance(50) {
                        self.token("*");
                        self.count();
                    }
                    self.items(depth - 1);
                }
                1 => {
                    self.token("link");
                    self.word();
                    self.token("<->");
                    self.word();
                    self.settings(1);
                }
                _ => {
                    self.distinct(index);
                    self.token(":");
                    self.value(2);
                }
            }
            self.separator(index + 1 < count);
        }
        self.token("}");
    }

    fn separator(&mut self, needed: bool) {
        if needed || self.chance(20) {
            self.pieces.push(Piece::Separator);
        }
    }

    fn settings(&mut self, depth: u64) {
        self.token("{");
        let count = self.below(self.size + 1);
        for index in 0..count {
            self.distinct(index);
            self.token(":");
            self.value(depth);
            self.separator(index + 1 < count);
        }
        self.token("}");
    }

    fn value(&mut self, depth: u64) {
        self.operand(depth);
        while depth > 0 && self.chance(25) {
            let operator = self.pick(&["+", "-", "*", " / "]);
            self.token(operator);
            self.operand(depth - 1);
        }
    }

    fn operand(&mut self, depth: u64) {
        if self.chance(8) {
            self.token("-");
        }
        let leaves = 4;
        match self.below(if depth == 0 { leaves } else { leaves + 5 }) {
            0 => {
                let number = self.pick(&["0", "256", "1_000_000", "1e-5", "3.5E+4", "0.1"]);
                self.token(number);
            }
            1 => {
                let number = self.pick(&["24", "12.5", "1e3"]);
                self.token(number);
                self.pieces.push(Piece::Blank);
                let unit = self.pick(&["GiB", "TFLOPS", "GB/s", "us"]);
                self.token(unit);
            }
            2 => {
                let text = self.pick(&["\"docs/**/*.md\"", "\"a \\\"b\\\" \\\\ é // no\"", "\"\""]);
                self.token(text);
            }
            3 => self.path(),
            4 => {
                self.token("[");
                self.elements(depth, 0);
                self.token("]");
            }
            5 => {
                self.token("(");
                self.elements(depth, 1);
                self.token(")");
            }
            6 => {
                self.path();
                self.settings(depth - 1);
            }
            _ => {
                self.path();
                self.token("(");
                let (positional, named) = (self.below(3), self.below(3));
                for index in 0..positional + named {
                    if index >= positional {
                        self.distinct(index);
                        self.token(":");
                    }
                    self.value(depth - 1);
                    self.comma(index + 1 < positional + named);
                }
                self.token(")");
            }
        }
    }

    fn elements(&mut self, depth: u64, least: u64) {
        let most = if self.chance(5) { 60 } else { 3 };
        let count = least + self.below(most);
        for index in 0..count {
            self.value(depth - 1);
            self.comma(index + 1 < count);
        }
    }

    fn lay_out(mut self) -> Generated {
        let mut generated = Generated { text: String::new(), comments: Vec::new() };
        let wild = self.chance(50);
        for piece in std::mem::take(&mut self.pieces) {
            match piece {
                Piece::Token(token) => {
                    let before = generated.text.chars().next_back().unwrap_or('\n');
                    let first = token.chars().next().unwrap_or(' ');
                    let wordlike = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
                    let after_blank = generated.text.ends_with('\u{1}');
                    if after_blank {
                        generated.text.pop();
                        generated.text.push_str(if self.chance(50) { "" } else { "  " });
                    } else if wild || before.is_whitespace() || (wordlike(before) && wordlike(first)) {
                        self.gap(&mut generated, wordlike(before) && wordlike(first));
                    }
                    generated.text.push_str(&token);
                }
                Piece::Blank => generated.text.push('\u{1}'),
                Piece::Separator => match self.below(3) {
                    0 => generated.text.push(','),
                    1 => generated.text.push('\n'),
                    _ => self.comment(&mut generated),
                },
            }
        }
        generated
    }

    fn gap(&mut self, generated: &mut Generated, needed: bool) {
        match self.below(12) {
            0 | 1 => generated.text.push('\n'),
            2 => generated.text.push_str("\r\n\t\n\n  "),
            3 => self.comment(generated),
            4 | 5 if !needed => {}
            _ => generated.text.push(' '),
        }
    }

    fn comment(&mut self, generated: &mut Generated) {
        let comment = format!("// comment {} \"{{(", generated.comments.len());
        generated.text.push_str(&comment);
        generated.text.push_str("  \n");
        generated.comments.push(comment);
    }
}
