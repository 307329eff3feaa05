//! Quantities as newtypes: bytes, floating-point operations, time, and their rates.
//!
//! Arithmetic saturates: a size that does not fit 64 bits cannot fit a device either, and every capacity check then
//! fails with the largest number instead of wrapping to a small one.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul, Sub, SubAssign};

macro_rules! quantity {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl $name {
            /// Nothing of it.
            pub const ZERO: Self = Self(0);
        }
        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }
        }
        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }
        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
        }
        impl SubAssign for $name {
            fn sub_assign(&mut self, other: Self) {
                *self = *self - other;
            }
        }
        impl Mul<u64> for $name {
            type Output = Self;
            fn mul(self, factor: u64) -> Self {
                Self(self.0.saturating_mul(factor))
            }
        }
        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
                iter.fold(Self::ZERO, Add::add)
            }
        }
    )*};
}

quantity! {
    /// A number of bytes.
    Bytes;
    /// A number of floating-point operations; a multiply-add counts two.
    Flops;
    /// A span of time in nanoseconds.
    Nanos;
    /// A rate of computing, operations per second.
    FlopsPerSecond;
    /// A rate of moving data, bytes per second.
    BytesPerSecond;
}

/// Rounds up to a whole nanosecond; a rate of zero takes forever.
fn time_at_rate(amount: u64, rate: u64) -> Nanos {
    if amount == 0 {
        return Nanos::ZERO;
    }
    let nanos = (u128::from(amount) * 1_000_000_000)
        .checked_div(u128::from(rate))
        .map(|whole| whole + u128::from((u128::from(amount) * 1_000_000_000) % u128::from(rate) != 0));
    Nanos(nanos.and_then(|nanos| u64::try_from(nanos).ok()).unwrap_or(u64::MAX))
}

impl Bytes {
    /// The least multiple of `alignment` that is not below.
    pub fn align_up(self, alignment: u64) -> Self {
        Self(self.0.checked_next_multiple_of(alignment.max(1)).unwrap_or(u64::MAX))
    }

    /// The time to move this much at a rate, rounded up; a rate of zero takes forever.
    pub fn at(self, rate: BytesPerSecond) -> Nanos {
        time_at_rate(self.0, rate.0)
    }
}

impl Flops {
    /// The time to compute this much at a rate, rounded up; a rate of zero takes forever.
    pub fn at(self, rate: FlopsPerSecond) -> Nanos {
        time_at_rate(self.0, rate.0)
    }
}

/// Binary units with three significant digits, exact below one KiB: `512 B`, `1.50 KiB`, `24.0 GiB`.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        significant(f, self.0, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"])
    }
}

/// Decimal units with three significant digits: `12.5 GFLOP`.
impl fmt::Display for Flops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        significant(f, self.0, 1000.0, &["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"])
    }
}

/// `812 ns`, `1.50 us`, `12.5 ms`, `3.00 s`.
impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        significant(f, self.0, 1000.0, &["ns", "us", "ms", "s"])
    }
}

/// Decimal units with three significant digits: `165 TFLOPS`.
impl fmt::Display for FlopsPerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        significant(f, self.0, 1000.0, &["FLOPS", "kFLOPS", "MFLOPS", "GFLOPS", "TFLOPS", "PFLOPS"])
    }
}

/// Decimal units with three significant digits: `12.5 GB/s`.
impl fmt::Display for BytesPerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        significant(f, self.0, 1000.0, &["B/s", "kB/s", "MB/s", "GB/s", "TB/s"])
    }
}

fn significant(f: &mut fmt::Formatter<'_>, value: u64, step: f64, units: &[&str]) -> fmt::Result {
    let mut scaled = value as f64;
    let mut unit = 0;
    while scaled >= step && unit + 1 < units.len() {
        scaled /= step;
        unit += 1;
    }
    let text = if unit == 0 {
        format!("{value} {}", units[0])
    } else if scaled < 9.995 {
        format!("{scaled:.2} {}", units[unit])
    } else if scaled < 99.95 {
        format!("{scaled:.1} {}", units[unit])
    } else {
        format!("{scaled:.0} {}", units[unit])
    };
    f.pad(&text)
}
