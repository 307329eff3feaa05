//! Numbers and quantities of the language: exact while they are fractions of integers, real otherwise.
//!
//! Exactness is what lets `dim / heads` be refused when it does not come out, while `sqrt(3 / dim)` is simply a
//! number.

use pipe_grammar::ast;
use std::fmt;

/// A number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    /// A fraction in lowest terms; the denominator is positive.
    Exact {
        /// Above the line.
        numerator: i128,
        /// Below the line.
        denominator: i128,
    },
    /// Anything else.
    Real(f64),
}

impl Number {
    pub(super) const fn integer(value: i128) -> Self {
        Number::Exact { numerator: value, denominator: 1 }
    }

    /// A number as it was written.
    pub(super) fn written(number: &ast::Number) -> Self {
        match number.to_u64() {
            Some(value) => Number::integer(i128::from(value)),
            None => Number::Real(number.to_f64()),
        }
    }

    fn fraction(numerator: i128, denominator: i128) -> Option<Self> {
        let divisor = gcd(numerator.unsigned_abs(), denominator.unsigned_abs());
        let divisor = i128::try_from(divisor).ok().filter(|divisor| *divisor != 0)?;
        let sign = denominator.signum();
        Some(Number::Exact {
            numerator: (numerator / divisor).checked_mul(sign)?,
            denominator: (denominator / divisor).checked_mul(sign)?,
        })
    }

    /// The nearest real number.
    pub(super) fn to_f64(self) -> f64 {
        match self {
            Number::Exact { numerator, denominator } => numerator as f64 / denominator as f64,
            Number::Real(value) => value,
        }
    }

    /// The number as a count, if it is an integer that fits.
    pub(super) fn to_u64(self) -> Option<u64> {
        match self {
            Number::Exact { numerator, denominator: 1 } => u64::try_from(numerator).ok(),
            Number::Exact { .. } => None,
            Number::Real(value) => {
                // Below 2^53 every integer is a distinct `f64`, so nothing is rounded here.
                let exact = value.fract() == 0.0 && (0.0..9_007_199_254_740_992.0).contains(&value);
                exact.then_some(value as u64)
            }
        }
    }

    pub(super) fn add(self, other: Self) -> Self {
        self.combine(other, |a, b, c, d| a.checked_mul(d)?.checked_add(c.checked_mul(b)?), |a, b| a + b)
    }

    pub(super) fn subtract(self, other: Self) -> Self {
        self.combine(other, |a, b, c, d| a.checked_mul(d)?.checked_sub(c.checked_mul(b)?), |a, b| a - b)
    }

    pub(super) fn multiply(self, other: Self) -> Self {
        if let (
            Number::Exact { numerator: a, denominator: b },
            Number::Exact { numerator: c, denominator: d },
        ) = (self, other)
            && let (Some(numerator), Some(denominator)) = (a.checked_mul(c), b.checked_mul(d))
            && let Some(number) = Number::fraction(numerator, denominator)
        {
            return number;
        }
        Number::Real(self.to_f64() * other.to_f64())
    }

    /// `None` for a division by zero.
    pub(super) fn divide(self, other: Self) -> Option<Self> {
        match other {
            _ if other.to_f64() == 0.0 => None,
            Number::Exact { numerator, denominator } => Some(
                Number::fraction(denominator, numerator)
                    .map_or(Number::Real(self.to_f64() / other.to_f64()), |inverse| self.multiply(inverse)),
            ),
            Number::Real(value) => Some(Number::Real(self.to_f64() / value)),
        }
    }

    /// Sums over the common denominator `b d` of `a / b` and `c / d`.
    fn combine(
        self,
        other: Self,
        exact: impl Fn(i128, i128, i128, i128) -> Option<i128>,
        real: impl Fn(f64, f64) -> f64,
    ) -> Self {
        if let (
            Number::Exact { numerator: a, denominator: b },
            Number::Exact { numerator: c, denominator: d },
        ) = (self, other)
            && let (Some(numerator), Some(denominator)) = (exact(a, b, c, d), b.checked_mul(d))
            && let Some(number) = Number::fraction(numerator, denominator)
        {
            return number;
        }
        Number::Real(real(self.to_f64(), other.to_f64()))
    }
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// `256`, `128.5`, `1/3`, `0.00001`.
impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::Exact { numerator, denominator: 1 } => write!(f, "{numerator}"),
            Number::Exact { .. } | Number::Real(_) => write!(f, "{}", self.to_f64()),
        }
    }
}

/// What a unit measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dimension {
    /// Bytes.
    Memory,
    /// Bytes per second.
    Rate,
    /// Floating-point operations per second.
    Speed,
    /// Nanoseconds.
    Time,
}

impl Dimension {
    /// The dimension in words with an example, for messages.
    pub(super) const fn describe(self) -> &'static str {
        match self {
            Dimension::Memory => "an amount of memory such as `24 GiB`",
            Dimension::Rate => "a rate of data such as `12.5 GB/s`",
            Dimension::Speed => "a rate of computing such as `165 TFLOPS`",
            Dimension::Time => "a time such as `5 us`",
        }
    }

    /// The dimension as a noun, for messages.
    pub(super) const fn noun(self) -> &'static str {
        match self {
            Dimension::Memory => "memory",
            Dimension::Rate => "a rate of data",
            Dimension::Speed => "a rate of computing",
            Dimension::Time => "time",
        }
    }
}

/// Every unit: its spelling, what it measures, and its size in bytes, bytes per second, operations per second or
/// nanoseconds. Decimal and binary multiples are different units. Rates of bits say `bit`, since `Gb` and `GB` differ
/// by a factor of eight and one letter.
pub(super) const UNITS: &[(&str, Dimension, Number)] = &[
    ("B", Dimension::Memory, Number::integer(1)),
    ("kB", Dimension::Memory, Number::integer(1_000)),
    ("MB", Dimension::Memory, Number::integer(1_000_000)),
    ("GB", Dimension::Memory, Number::integer(1_000_000_000)),
    ("TB", Dimension::Memory, Number::integer(1_000_000_000_000)),
    ("KiB", Dimension::Memory, Number::integer(1 << 10)),
    ("MiB", Dimension::Memory, Number::integer(1 << 20)),
    ("GiB", Dimension::Memory, Number::integer(1 << 30)),
    ("TiB", Dimension::Memory, Number::integer(1 << 40)),
    ("B/s", Dimension::Rate, Number::integer(1)),
    ("kB/s", Dimension::Rate, Number::integer(1_000)),
    ("MB/s", Dimension::Rate, Number::integer(1_000_000)),
    ("GB/s", Dimension::Rate, Number::integer(1_000_000_000)),
    ("TB/s", Dimension::Rate, Number::integer(1_000_000_000_000)),
    ("KiB/s", Dimension::Rate, Number::integer(1 << 10)),
    ("MiB/s", Dimension::Rate, Number::integer(1 << 20)),
    ("GiB/s", Dimension::Rate, Number::integer(1 << 30)),
    ("Mbit/s", Dimension::Rate, Number::integer(125_000)),
    ("Gbit/s", Dimension::Rate, Number::integer(125_000_000)),
    ("FLOPS", Dimension::Speed, Number::integer(1)),
    ("MFLOPS", Dimension::Speed, Number::integer(1_000_000)),
    ("GFLOPS", Dimension::Speed, Number::integer(1_000_000_000)),
    ("TFLOPS", Dimension::Speed, Number::integer(1_000_000_000_000)),
    ("PFLOPS", Dimension::Speed, Number::integer(1_000_000_000_000_000)),
    ("ns", Dimension::Time, Number::integer(1)),
    ("us", Dimension::Time, Number::integer(1_000)),
    ("ms", Dimension::Time, Number::integer(1_000_000)),
    ("s", Dimension::Time, Number::integer(1_000_000_000)),
];

/// What a unit measures and how much it is.
pub(super) fn unit(spelling: &str) -> Option<(Dimension, Number)> {
    let found = UNITS.iter().find(|(name, _, _)| *name == spelling);
    found.map(|(_, dimension, size)| (*dimension, *size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fractions_stay_exact_until_they_overflow() {
        let three = Number::integer(3);
        assert_eq!(three.divide(Number::integer(6)).map(Number::to_f64), Some(0.5));
        assert_eq!(three.divide(Number::integer(6)).and_then(Number::to_u64), None);
        assert_eq!(Number::integer(6).divide(three).and_then(Number::to_u64), Some(2));
        assert_eq!(three.divide(Number::integer(0)), None);
        assert_eq!(three.subtract(Number::integer(4)).to_u64(), None);
        let huge = Number::integer(i128::MAX);
        assert_eq!(huge.multiply(huge), Number::Real(i128::MAX as f64 * i128::MAX as f64));
    }

    proptest! {
        #[test]
        fn a_product_divided_by_a_factor_is_the_other(a in 0u64..1 << 40, b in 1u64..1 << 40) {
            let product = Number::integer(a.into()).multiply(Number::integer(b.into()));
            prop_assert_eq!(product.divide(Number::integer(b.into())).and_then(Number::to_u64), Some(a));
        }
    }
}
