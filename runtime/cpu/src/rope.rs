//! Rotary positions (Su et al. 2021): pairs of components of a head turn by an angle that grows with the position.
//!
//! Cosines and sines come from a [`Table`], made once when a function is compiled.

use crate::parallel::{Processor, Rows, RowsMut};
use crate::simd::kernels;
use pipec_program::{Pairing, RopeScaling};
use std::f64::consts::PI;

/// What a rotation depends on; two kernels with equal keys share a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rotation {
    /// Positions.
    pub(crate) tokens: usize,
    /// The first of them.
    pub(crate) first: usize,
    /// Components of a head that rotate, even.
    pub(crate) rotary: usize,
    pub(crate) base: f64,
    pub(crate) pairing: Pairing,
    pub(crate) scaling: Option<RopeScaling>,
}

/// Cosines and sines for every position of a call and component, in f64 rounded to f32: `[tokens, rotary]` each. The sine has
/// the sign with which the partner of a component enters it.
#[derive(Debug)]
pub(crate) struct Table {
    cosines: Vec<f32>,
    sines: Vec<f32>,
    rotary: usize,
    pairing: Pairing,
}

impl Rotation {
    /// The angle per position of pair `pair`.
    fn frequency(&self, pair: usize) -> f64 {
        let frequency = self.base.powf(-2.0 * pair as f64 / self.rotary as f64);
        let Some(RopeScaling { factor, low, high, original }) = self.scaling else {
            return frequency;
        };
        let wavelength = 2.0 * PI / frequency;
        let original = original as f64;
        if wavelength < original / high {
            frequency
        } else if wavelength > original / low {
            frequency / factor
        } else {
            let share = (original / wavelength - low) / (high - low);
            (1.0 - share) * frequency / factor + share * frequency
        }
    }

    /// The table of all positions.
    pub(crate) fn table(&self) -> Table {
        let half = self.rotary / 2;
        let frequencies: Vec<f64> = (0..half).map(|pair| self.frequency(pair)).collect();
        let mut cosines = Vec::with_capacity(self.tokens * self.rotary);
        let mut sines = Vec::with_capacity(self.tokens * self.rotary);
        for position in self.first..self.first + self.tokens {
            for component in 0..self.rotary {
                let (pair, is_first) = match self.pairing {
                    Pairing::Half => (component % half, component < half),
                    Pairing::Adjacent => (component / 2, component % 2 == 0),
                };
                let (sine, cosine) = (position as f64 * frequencies[pair]).sin_cos();
                cosines.push(cosine as f32);
                sines.push(if is_first { -sine } else { sine } as f32);
            }
        }
        Table { cosines, sines, rotary: self.rotary, pairing: self.pairing }
    }
}

impl Table {
    /// The memory it takes.
    pub(crate) fn bytes(&self) -> usize {
        4 * (self.cosines.len() + self.sines.len())
    }
}

/// Rotates every head of every row, forwards or, if `inverse`, backwards. Without `x`, `y` holds it.
pub(crate) fn rope(
    processor: &Processor,
    table: &Table,
    head_dim: usize,
    inverse: bool,
    x: Option<Rows<'_>>,
    y: RowsMut<'_>,
) {
    let (rows, columns, rotary) = (y.data.len() / y.columns.max(1), y.columns, table.rotary);
    let tokens = table.cosines.len() / rotary.max(1);
    processor.split(rows, columns / 4 + 1, (x, y), &|range, (x, mut y)| {
        for ((offset, y), row) in y.iter_mut().enumerate().zip(range) {
            if let Some(x) = x {
                y.copy_from_slice(x.row(offset));
            }
            if tokens > 0 {
                let at = row % tokens * rotary;
                let (cosines, sines) = (&table.cosines[at..at + rotary], &table.sines[at..at + rotary]);
                rotate_row(processor.set, table.pairing, cosines, sines, head_dim, inverse, y);
            }
        }
    });
}

kernels! {
    /// All heads of a row, in place.
    fn rotate_row<S>(
        simd, pairing: Pairing, cosines: &[f32], sines: &[f32], head_dim: usize, inverse: bool, row: &mut [f32],
    ) {
        let rotary = cosines.len();
        let sign = if inverse { -1.0 } else { 1.0 };
        let signs = simd.splat(sign);
        for head in row.chunks_exact_mut(head_dim) {
            match pairing {
                Pairing::Half => {
                    let half = rotary / 2;
                    let (first, rest) = head.split_at_mut(half);
                    let second = &mut rest[..half];
                    // The sines of second components have the positive sign.
                    let (cosines, sines) = (&cosines[half..], &sines[half..]);
                    let whole = half / S::LANES * S::LANES;
                    for at in (0..whole).step_by(S::LANES) {
                        let (a, b) = (simd.load(&first[at..]), simd.load(&second[at..]));
                        let cosine = simd.load(&cosines[at..]);
                        let sine = simd.mul(simd.load(&sines[at..]), signs);
                        simd.store(simd.neg_mul_add(b, sine, simd.mul(a, cosine)), &mut first[at..]);
                        simd.store(simd.mul_add(a, sine, simd.mul(b, cosine)), &mut second[at..]);
                    }
                    for at in whole..half {
                        let (a, b, cosine, sine) = (first[at], second[at], cosines[at], sines[at] * sign);
                        first[at] = a * cosine - b * sine;
                        second[at] = b * cosine + a * sine;
                    }
                }
                Pairing::Adjacent => {
                    let whole = rotary / S::LANES * S::LANES;
                    for at in (0..whole).step_by(S::LANES) {
                        let x = simd.load(&head[at..]);
                        let sine = simd.mul(simd.load(&sines[at..]), signs);
                        let turned = simd.mul_add(simd.swap_pairs(x), sine, simd.mul(x, simd.load(&cosines[at..])));
                        simd.store(turned, &mut head[at..]);
                    }
                    for at in (whole..rotary).step_by(2) {
                        let (a, b, sine) = (head[at], head[at + 1], sines[at + 1] * sign);
                        head[at] = a * cosines[at] - b * sine;
                        head[at + 1] = b * cosines[at] + a * sine;
                    }
                }
            }
        }
    }
}
