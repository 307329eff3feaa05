//! The tokens of one line.

use crate::id::Id;
use crate::tensor::{DType, Shape, TensorType};
use crate::units::Bytes;

/// What is wrong with a line, and at which byte.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) at: usize,
    pub(super) message: String,
}

pub(super) type Parsed<T> = Result<T, Problem>;

/// A line being read. Spaces between tokens are skipped; a `;` outside of a string ends the line.
pub(super) struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

/// Units that a quantity may have, with the factor of each; the first is the one that is meant when none is written.
pub(super) type Units = &'static [(&'static str, u64)];

pub(super) const BYTES: Units = &[
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];
pub(super) const BYTES_PER_SECOND: Units =
    &[("B/s", 1), ("kB/s", 1_000), ("MB/s", 1_000_000), ("GB/s", 1_000_000_000), ("TB/s", 1_000_000_000_000)];
pub(super) const FLOPS: Units = &[
    ("FLOP", 1),
    ("kFLOP", 1_000),
    ("MFLOP", 1_000_000),
    ("GFLOP", 1_000_000_000),
    ("TFLOP", 1_000_000_000_000),
    ("PFLOP", 1_000_000_000_000_000),
];
pub(super) const FLOPS_PER_SECOND: Units = &[
    ("FLOPS", 1),
    ("kFLOPS", 1_000),
    ("MFLOPS", 1_000_000),
    ("GFLOPS", 1_000_000_000),
    ("TFLOPS", 1_000_000_000_000),
    ("PFLOPS", 1_000_000_000_000_000),
];
pub(super) const TIME: Units = &[("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_spaces(&mut self) {
        while let Some(b' ' | b'\t' | b'\r') = self.byte() {
            self.at += 1;
        }
    }

    pub(super) fn fail<T>(&self, message: impl Into<String>) -> Parsed<T> {
        Err(Problem { at: self.at, message: message.into() })
    }

    /// An error about the token at an earlier place.
    pub(super) fn fail_at<T>(&self, at: usize, message: impl Into<String>) -> Parsed<T> {
        Err(Problem { at, message: message.into() })
    }

    /// The place of the next token.
    pub(super) fn here(&mut self) -> usize {
        self.skip_spaces();
        self.at
    }

    fn expected<T>(&mut self, what: &str) -> Parsed<T> {
        let found = self.found();
        self.fail(format!("expected {what}, found {found}"))
    }

    /// The next token as people would quote it, cut to a few characters.
    fn found(&mut self) -> String {
        self.skip_spaces();
        let rest = self.text.get(self.at..).unwrap_or("");
        match rest.chars().next() {
            None | Some(';') => "the end of the line".to_owned(),
            Some(c) if c.is_alphanumeric() || c == '_' => {
                let word: String =
                    rest.chars().take_while(|&c| c.is_alphanumeric() || c == '_').take(24).collect();
                format!("`{word}`")
            }
            Some(c) => format!("`{}`", c.escape_debug()),
        }
    }

    /// Whether nothing but a comment follows.
    pub(super) fn is_finished(&mut self) -> bool {
        self.skip_spaces();
        matches!(self.byte(), None | Some(b';'))
    }

    pub(super) fn finish(&mut self) -> Parsed<()> {
        if self.is_finished() {
            return Ok(());
        }
        let found = self.found();
        self.fail(format!("expected the end of the line, found {found}"))
    }

    /// Takes a punctuation mark if it is next.
    pub(super) fn eat(&mut self, mark: &str) -> bool {
        self.skip_spaces();
        let bytes = &self.text.as_bytes()[self.at..];
        let found = bytes.starts_with(mark.as_bytes());
        if found {
            self.at += mark.len();
        }
        found
    }

    pub(super) fn expect(&mut self, mark: &str) -> Parsed<()> {
        if self.eat(mark) { Ok(()) } else { self.expected(&format!("`{mark}`")) }
    }

    /// The next word without taking it; empty if none is next.
    pub(super) fn peek_word(&mut self) -> &'a str {
        self.skip_spaces();
        let bytes = &self.text.as_bytes()[self.at..];
        let length = bytes.iter().position(|&byte| !is_word(byte)).unwrap_or(bytes.len());
        self.text.get(self.at..self.at + length).unwrap_or("")
    }

    /// Whether a colon follows the word that is next.
    pub(super) fn colon_follows(&self, word: &str) -> bool {
        self.text[self.at + word.len()..].trim_start_matches([' ', '\t']).starts_with(':')
    }

    pub(super) fn word(&mut self) -> &'a str {
        let word = self.peek_word();
        self.at += word.len();
        word
    }

    /// Takes a word if it is next.
    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        let found = self.peek_word() == word;
        if found {
            self.at += word.len();
        }
        found
    }

    pub(super) fn expect_word(&mut self, word: &str) -> Parsed<()> {
        if self.eat_word(word) { Ok(()) } else { self.expected(&format!("`{word}`")) }
    }

    /// One of several words.
    pub(super) fn choice<T: Copy>(
        &mut self,
        what: &str,
        choices: &[T],
        name: impl Fn(T) -> &'static str,
    ) -> Parsed<T> {
        let word = self.peek_word();
        match choices.iter().find(|&&choice| name(choice) == word) {
            Some(&choice) => {
                self.at += word.len();
                Ok(choice)
            }
            None => {
                let names: Vec<&str> = choices.iter().map(|&choice| name(choice)).collect();
                self.expected(&format!("{what} ({})", names.join(", ")))
            }
        }
    }

    /// Digits, nothing else, that fit 64 bits.
    pub(super) fn number(&mut self) -> Parsed<u64> {
        self.skip_spaces();
        let start = self.at;
        let mut number = 0u64;
        while let Some(digit @ b'0'..=b'9') = self.byte() {
            number = match number.checked_mul(10).and_then(|tens| tens.checked_add(u64::from(digit - b'0'))) {
                Some(number) => number,
                None => return self.fail_at(start, "the number does not fit 64 bits"),
            };
            self.at += 1;
        }
        if self.at == start {
            return self.expected("a whole number");
        }
        Ok(number)
    }

    pub(super) fn number32(&mut self) -> Parsed<u32> {
        let start = self.here();
        let number = self.number()?;
        u32::try_from(number).or_else(|_| self.fail_at(start, "the number does not fit 32 bits"))
    }

    /// The characters of a real number, and whether it has a point or an exponent.
    fn real_text(&mut self) -> (&'a str, bool) {
        self.skip_spaces();
        let bytes = &self.text.as_bytes()[self.at..];
        let mut length = 0;
        let mut real = false;
        while let Some(&byte) = bytes.get(length) {
            match byte {
                b'0'..=b'9' => {}
                b'.' | b'e' | b'E' => real = true,
                b'-' | b'+' if length == 0 || matches!(bytes[length - 1], b'e' | b'E') => {}
                _ => break,
            }
            length += 1;
        }
        (self.text.get(self.at..self.at + length).unwrap_or(""), real)
    }

    pub(super) fn real(&mut self) -> Parsed<f64> {
        let (text, _) = self.real_text();
        match text.parse::<f64>() {
            Ok(number) if number.is_finite() => {
                self.at += text.len();
                Ok(number)
            }
            Ok(_) => self.fail("the number is too large"),
            Err(_) => self.expected("a finite number"),
        }
    }

    pub(super) fn real32(&mut self) -> Parsed<f32> {
        let (text, _) = self.real_text();
        match text.parse::<f32>() {
            Ok(number) if number.is_finite() => {
                self.at += text.len();
                Ok(number)
            }
            Ok(_) => self.fail("the number is too large for f32"),
            Err(_) => self.expected("a finite number"),
        }
    }

    /// Whether the number that is next has a point or an exponent.
    pub(super) fn real_is_next(&mut self) -> bool {
        self.real_text().1
    }

    /// An id: its letter and its digits, without a space between.
    pub(super) fn id<I: Id>(&mut self, letter: u8, what: &str) -> Parsed<I> {
        self.skip_spaces();
        let start = self.at;
        let next = self.text.as_bytes().get(start + 1);
        if self.byte() != Some(letter) || !next.is_some_and(u8::is_ascii_digit) {
            return self.expected(&format!("{what} such as `{}0`", char::from(letter)));
        }
        self.at += 1;
        let number = self.number32()?;
        if self.byte().is_some_and(is_word) {
            self.at = start;
            return self.expected(&format!("{what} such as `{}0`", char::from(letter)));
        }
        Ok(I::new(number as usize))
    }

    /// An amount with an optional unit; a decimal fraction must come out whole.
    pub(super) fn quantity(&mut self, units: Units) -> Parsed<u64> {
        let start = self.here();
        let whole = self.number()?;
        let mut fraction = 0u64;
        let mut scale = 1u64;
        // Two points are a range.
        if self.byte() == Some(b'.') && self.text.as_bytes().get(self.at + 1) != Some(&b'.') {
            self.at += 1;
            let digits = self.at;
            fraction = self.number()?;
            scale = match u32::try_from(self.at - digits).ok().and_then(|count| 10u64.checked_pow(count)) {
                Some(scale) => scale,
                None => return self.fail_at(start, "the fraction has too many digits"),
            };
        }
        self.skip_spaces();
        let mut factor = 1;
        if self.byte().is_some_and(|byte| byte.is_ascii_alphabetic()) {
            let at = self.at;
            let mut unit = self.word();
            if self.byte() == Some(b'/') {
                self.at += 1;
                self.word();
                unit = self.text.get(at..self.at).unwrap_or("");
            }
            factor = match units.iter().find(|(name, _)| *name == unit) {
                Some((_, factor)) => *factor,
                None => {
                    let names: Vec<&str> = units.iter().map(|(name, _)| *name).collect();
                    self.at = at;
                    return self.expected(&format!("a unit ({})", names.join(", ")));
                }
            };
        }
        let scaled = u128::from(whole) * u128::from(scale) + u128::from(fraction);
        let amount = scaled * u128::from(factor);
        if !amount.is_multiple_of(u128::from(scale)) {
            return self.fail_at(start, "the amount is not a whole number of the smallest unit");
        }
        u64::try_from(amount / u128::from(scale))
            .or_else(|_| self.fail_at(start, "the amount does not fit 64 bits"))
    }

    pub(super) fn bytes(&mut self) -> Parsed<Bytes> {
        Ok(Bytes(self.quantity(BYTES)?))
    }

    /// `[start..end]` as offset and length.
    pub(super) fn range(&mut self) -> Parsed<(Bytes, Bytes)> {
        self.expect("[")?;
        self.range_after_bracket()
    }

    pub(super) fn range_after_bracket(&mut self) -> Parsed<(Bytes, Bytes)> {
        let start = self.bytes()?;
        self.expect("..")?;
        let at = self.here();
        let end = self.bytes()?;
        self.expect("]")?;
        match end.0.checked_sub(start.0) {
            Some(length) => Ok((start, Bytes(length))),
            None => self.fail_at(at, format!("the range ends at {}, before it starts at {}", end.0, start.0)),
        }
    }

    pub(super) fn string(&mut self) -> Parsed<String> {
        self.skip_spaces();
        let start = self.at;
        if !self.eat("\"") {
            return self.expected("a string in double quotes");
        }
        let mut string = String::new();
        loop {
            let rest = self.text.get(self.at..).unwrap_or("");
            let mut chars = rest.chars();
            match chars.next() {
                None => return self.fail_at(start, "the string has no end"),
                Some('"') => {
                    self.at += 1;
                    return Ok(string);
                }
                Some('\\') => string.push(self.escape(chars.as_str())?),
                Some(c) if c.is_control() => {
                    return self.fail(format!("a string spells this character `{}`", c.escape_unicode()));
                }
                Some(c) => {
                    self.at += c.len_utf8();
                    string.push(c);
                }
            }
        }
    }

    /// The character of an escape whose backslash is next; `rest` is what follows the backslash.
    fn escape(&mut self, rest: &str) -> Parsed<char> {
        let simple = match rest.as_bytes().first() {
            Some(b'"') => Some('"'),
            Some(b'\\') => Some('\\'),
            Some(b'n') => Some('\n'),
            Some(b't') => Some('\t'),
            _ => None,
        };
        if let Some(c) = simple {
            self.at += 2;
            return Ok(c);
        }
        // At most six digits, so that the search for the end stays short.
        let digits = rest.strip_prefix("u{").and_then(|rest| {
            let end = rest.bytes().take(7).position(|byte| byte == b'}')?;
            rest.get(..end)
        });
        match digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()).and_then(char::from_u32) {
            Some(c) => {
                self.at += digits.map_or(0, str::len) + "\\u{}".len();
                Ok(c)
            }
            None => {
                self.fail("expected an escape: `\\\"`, `\\\\`, `\\n`, `\\t` or `\\u{..}` with a code point")
            }
        }
    }

    /// Items in brackets, separated by commas.
    pub(super) fn list<T>(&mut self, item: impl FnMut(&mut Self) -> Parsed<T>) -> Parsed<Vec<T>> {
        self.expect("[")?;
        self.items("]", item)
    }

    /// Items up to a closing mark, separated by commas; the opening mark has been taken.
    pub(super) fn items<T>(
        &mut self,
        close: &str,
        mut item: impl FnMut(&mut Self) -> Parsed<T>,
    ) -> Parsed<Vec<T>> {
        let mut items = Vec::new();
        if self.eat(close) {
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if self.eat(close) {
                return Ok(items);
            }
            if !self.eat(",") {
                return self.expected(&format!("`,` or `{close}`"));
            }
        }
    }

    pub(super) fn tensor(&mut self) -> Parsed<TensorType> {
        let dtype = self.choice("an element type", &DType::ALL, DType::name)?;
        Ok(TensorType { dtype, shape: Shape(self.list(Self::number)?) })
    }
}
