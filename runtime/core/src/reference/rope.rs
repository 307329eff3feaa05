//! Rotary positions (Su et al. 2021), with both pairings in use and the frequency change of Llama 3.1.

use pipec_program::{Pairing, RopeScaling};

/// The attributes of the op.
pub(super) struct Rope {
    pub(super) tokens: u64,
    pub(super) first: u64,
    pub(super) head_dim: usize,
    pub(super) rotary: usize,
    pub(super) base: f64,
    pub(super) pairing: Pairing,
    pub(super) scaling: Option<RopeScaling>,
}

/// The frequency of a pair.
fn frequency(rope: &Rope, pair: usize) -> f64 {
    let frequency = rope.base.powf(-2.0 * pair as f64 / rope.rotary as f64);
    let Some(scaling) = rope.scaling else { return frequency };
    let original = scaling.original as f64;
    let wavelength = 2.0 * std::f64::consts::PI / frequency;
    if wavelength > original / scaling.low {
        frequency / scaling.factor
    } else if wavelength < original / scaling.high {
        frequency
    } else {
        let share = (original / wavelength - scaling.low) / (scaling.high - scaling.low);
        (1.0 - share) * frequency / scaling.factor + share * frequency
    }
}

/// Rotates the rows of `x`. Cosine and sine are rounded to f32 if `rounded`.
pub(super) fn rope(x: &[f64], columns: usize, rope: &Rope, inverse: bool, rounded: bool) -> Vec<f64> {
    let round = |value: f64| if rounded { f64::from(value as f32) } else { value };
    let mut y = x.to_vec();
    for (token, row) in y.chunks_exact_mut(columns).enumerate() {
        let position = rope.first + token as u64 % rope.tokens.max(1);
        for head in row.chunks_exact_mut(rope.head_dim) {
            for pair in 0..rope.rotary / 2 {
                let (first, second) = match rope.pairing {
                    Pairing::Half => (pair, pair + rope.rotary / 2),
                    Pairing::Adjacent => (2 * pair, 2 * pair + 1),
                };
                let angle = position as f64 * frequency(rope, pair);
                let (cos, sin) = (round(angle.cos()), round(angle.sin()));
                let sin = if inverse { -sin } else { sin };
                let (a, b) = (head[first], head[second]);
                head[first] = a * cos - b * sin;
                head[second] = b * cos + a * sin;
            }
        }
    }
    y
}

#[cfg(test)]
mod tests {
    use super::super::gradient_check::{check, dot, numbers};
    use super::*;

    fn attributes(pairing: Pairing) -> Rope {
        Rope { tokens: 3, first: 0, head_dim: 6, rotary: 4, base: 100.0, pairing, scaling: None }
    }

    #[test]
    fn rotations_by_hand() {
        // One head; the token at position 1 rotates by 1 and by 100^(-1/2) = 0.1; components 4 and 5 stay.
        let x: Vec<f64> = [[0.0; 6], [1., 2., 3., 4., 5., 6.]].concat();
        let turn = |a: f64, b: f64, angle: f64| {
            [a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()]
        };
        let (p, q) = (turn(1., 3., 1.0), turn(2., 4., 0.1));
        assert_eq!(
            rope(&x, 6, &attributes(Pairing::Half), false, false)[6..],
            [p[0], q[0], p[1], q[1], 5., 6.]
        );
        let (p, q) = (turn(1., 2., 1.0), turn(3., 4., 0.1));
        assert_eq!(
            rope(&x, 6, &attributes(Pairing::Adjacent), false, false)[6..],
            [p[0], p[1], q[0], q[1], 5., 6.]
        );
    }

    #[test]
    fn the_inverse_is_the_gradient() {
        let (x, dy) = (numbers(1, 72), numbers(2, 72));
        for pairing in [Pairing::Half, Pairing::Adjacent] {
            let dx = rope(&dy, 12, &attributes(pairing), true, false);
            check("dx", &x, &dx, |x| dot(&rope(x, 12, &attributes(pairing), false, false), &dy));
        }
    }

    #[test]
    fn scaling_divides_low_frequencies_and_blends_between() {
        let scaling = Some(RopeScaling { factor: 8.0, low: 1.0, high: 4.0, original: 8192 });
        let scaled = Rope {
            tokens: 1,
            first: 0,
            head_dim: 128,
            rotary: 128,
            base: 500000.0,
            pairing: Pairing::Half,
            scaling,
        };
        let plain = Rope { scaling: None, ..scaled };
        assert_eq!(frequency(&scaled, 0), 1.0);
        assert_eq!(frequency(&scaled, 63), frequency(&plain, 63) / 8.0);
        // Pair 33 has a wavelength of 5457 tokens, between 8192 / 4 and 8192 / 1.
        let (frequency, plain) = (frequency(&scaled, 33), frequency(&plain, 33));
        assert!(plain / 8.0 < frequency && frequency < plain);
    }
}
