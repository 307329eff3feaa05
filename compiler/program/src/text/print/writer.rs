//! Text built piece by piece: numbers without the cost of formatting machinery, lines counted.

use crate::tensor::TensorType;
use crate::units::Bytes;

/// The unit of a quantity that is written for people, exactly.
#[derive(Clone, Copy)]
pub(super) enum Unit {
    Bytes,
    BytesPerSecond,
    Flops,
    FlopsPerSecond,
    Time,
}

pub(super) struct Writer {
    text: String,
    line: u32,
}

impl Writer {
    pub(super) fn new() -> Self {
        Self { text: String::new(), line: 1 }
    }

    pub(super) fn finish(self) -> String {
        self.text
    }

    pub(super) fn put(&mut self, text: &str) -> &mut Self {
        self.text.push_str(text);
        self
    }

    /// Ends the line and returns its number.
    pub(super) fn end(&mut self) -> u32 {
        self.text.push('\n');
        self.line = self.line.saturating_add(1);
        self.line - 1
    }

    pub(super) fn number(&mut self, number: impl Into<u64>) -> &mut Self {
        let mut rest = number.into();
        let mut digits = [0u8; 20];
        let mut start = digits.len();
        loop {
            start -= 1;
            digits[start] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.text.extend(digits[start..].iter().map(|&digit| char::from(digit)));
        self
    }

    /// The shortest text that reads back as the same number, with a point or an exponent.
    pub(super) fn real(&mut self, number: f64) -> &mut Self {
        self.text.push_str(&format!("{number:?}"));
        self
    }

    /// The same for single precision.
    pub(super) fn real32(&mut self, number: f32) -> &mut Self {
        self.text.push_str(&format!("{number:?}"));
        self
    }

    pub(super) fn string(&mut self, text: &str) -> &mut Self {
        self.text.push('"');
        for c in text.chars() {
            match c {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                '\t' => self.text.push_str("\\t"),
                c if c.is_control() => self.text.push_str(&format!("\\u{{{:x}}}", u32::from(c))),
                c => self.text.push(c),
            }
        }
        self.text.push('"');
        self
    }

    pub(super) fn list<T>(&mut self, items: &[T], mut item: impl FnMut(&mut Self, &T)) -> &mut Self {
        self.text.push('[');
        self.items(items, &mut item);
        self.text.push(']');
        self
    }

    pub(super) fn items<T>(&mut self, items: &[T], mut item: impl FnMut(&mut Self, &T)) {
        for (position, one) in items.iter().enumerate() {
            if position > 0 {
                self.text.push_str(", ");
            }
            item(self, one);
        }
    }

    pub(super) fn tensor(&mut self, ty: &TensorType) -> &mut Self {
        self.put(ty.dtype.name()).put("[");
        for (position, &extent) in ty.shape.0.iter().enumerate() {
            if position > 0 {
                self.put(",");
            }
            self.number(extent);
        }
        self.put("]")
    }

    /// `[start..end]`; an end beyond 64 bits is written in full and refused when read.
    pub(super) fn range(&mut self, offset: Bytes, bytes: Bytes) -> &mut Self {
        self.put("[").number(offset.0).put("..");
        match offset.0.checked_add(bytes.0) {
            Some(end) => self.number(end),
            None => self.put(&(u128::from(offset.0) + u128::from(bytes.0)).to_string()),
        };
        self.put("]")
    }

    /// A whole number of the largest unit that needs no fraction.
    pub(super) fn quantity(&mut self, amount: u64, unit: Unit) -> &mut Self {
        let mut rest = amount;
        let mut chosen = unit.names()[0];
        for name in &unit.names()[1..] {
            if rest == 0 || !rest.is_multiple_of(unit.step()) {
                break;
            }
            rest /= unit.step();
            chosen = name;
        }
        self.number(rest).put(" ").put(chosen)
    }
}

impl Unit {
    fn step(self) -> u64 {
        match self {
            Self::Bytes => 1024,
            Self::BytesPerSecond | Self::Flops | Self::FlopsPerSecond | Self::Time => 1000,
        }
    }

    fn names(self) -> &'static [&'static str] {
        match self {
            Self::Bytes => &["B", "KiB", "MiB", "GiB", "TiB"],
            Self::BytesPerSecond => &["B/s", "kB/s", "MB/s", "GB/s", "TB/s"],
            Self::Flops => &["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"],
            Self::FlopsPerSecond => &["FLOPS", "kFLOPS", "MFLOPS", "GFLOPS", "TFLOPS", "PFLOPS"],
            Self::Time => &["ns", "us", "ms", "s"],
        }
    }
}
