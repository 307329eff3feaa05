//! AdamW, sums of squares, the clipping factor, and sums of tensors.

use crate::parallel::Processor;
use crate::simd::{Simd, kernels};

/// The attributes of the optimizer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdamRates {
    pub(crate) beta1: f64,
    pub(crate) beta2: f64,
    pub(crate) eps: f64,
    pub(crate) weight_decay: f64,
}

/// The numbers of a step, computed in f64 and rounded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdamW {
    beta1: f32,
    beta2: f32,
    rest1: f32,
    rest2: f32,
    eps: f32,
    keep: f32,
    rate: f32,
    inverse_root: f32,
}

impl AdamRates {
    /// The numbers of step `step`, counted from 1.
    pub(crate) fn at(&self, learning_rate: f64, step: u64) -> AdamW {
        let Self { beta1, beta2, eps, weight_decay } = *self;
        let step = step as f64;
        AdamW {
            beta1: beta1 as f32,
            beta2: beta2 as f32,
            rest1: (1.0 - beta1) as f32,
            rest2: (1.0 - beta2) as f32,
            eps: eps as f32,
            keep: (1.0 - learning_rate * weight_decay) as f32,
            rate: (learning_rate / (1.0 - beta1.powf(step))) as f32,
            inverse_root: (1.0 / (1.0 - beta2.powf(step)).sqrt()) as f32,
        }
    }
}

/// Updates weights, first and second moments from `factor * gradient`.
pub(crate) fn adamw(
    processor: &Processor,
    adam: AdamW,
    factor: f32,
    gradient: &[f32],
    weight: &mut [f32],
    moment: &mut [f32],
    variance: &mut [f32],
) {
    /// Memory-bound: 28 bytes an element.
    const COST: usize = 2;
    let whole = (gradient, weight, moment, variance);
    processor.split(gradient.len(), COST, whole, &|_, (gradient, weight, moment, variance)| {
        adamw_range(processor.set, adam, factor, gradient, weight, moment, variance);
    });
}

/// The sum of squares of each input, in f64.
pub(crate) fn sum_squares<'a>(
    processor: &Processor,
    inputs: usize,
    input: &(impl Fn(usize) -> &'a [f32] + Sync),
    squares: &mut [f64],
) {
    let elements: usize = (0..inputs).map(|index| input(index).len()).sum();
    processor.split(inputs, elements / inputs.max(1) / 8, squares, &|range, squares| {
        for (index, square) in range.zip(squares) {
            *square = squares_of(processor.set, input(index));
        }
    });
}

/// The root of the sum, ascending, and `min(1, limit / norm)`.
pub(crate) fn clip_factor(squares: &[f64], limit: f64) -> (f64, f32) {
    let norm = squares.iter().fold(0.0, |sum, square| sum + square).sqrt();
    (norm, if norm > limit { (limit / norm) as f32 } else { 1.0 })
}

/// `to += from`.
pub(crate) fn add(processor: &Processor, from: &[f32], to: &mut [f32]) {
    processor.split(from.len(), 1, (from, to), &|_, (from, to)| {
        to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
    });
}

/// The new weight, moment and variance.
#[inline(always)]
fn adamw_step<S: Simd>(
    simd: S,
    adam: &AdamW,
    factor: f32,
    gradient: S::F,
    [w, m, v]: [S::F; 3],
) -> [S::F; 3] {
    let g = simd.mul(gradient, simd.splat(factor));
    let m = simd.mul_add(simd.splat(adam.beta1), m, simd.mul(simd.splat(adam.rest1), g));
    let v = simd.mul_add(simd.splat(adam.beta2), v, simd.mul(simd.mul(simd.splat(adam.rest2), g), g));
    let divisor = simd.mul_add(simd.sqrt(v), simd.splat(adam.inverse_root), simd.splat(adam.eps));
    let step = simd.div(simd.mul(simd.splat(adam.rate), m), divisor);
    [simd.sub(simd.mul(w, simd.splat(adam.keep)), step), m, v]
}

kernels! {
    fn adamw_range<S>(
        simd, adam: AdamW, factor: f32, gradient: &[f32], weight: &mut [f32], moment: &mut [f32],
        variance: &mut [f32],
    ) {
        let len = gradient.len();
        let whole = len / S::LANES * S::LANES;
        for at in (0..whole).step_by(S::LANES) {
            let state = [simd.load(&weight[at..]), simd.load(&moment[at..]), simd.load(&variance[at..])];
            let [w, m, v] = adamw_step(simd, &adam, factor, simd.load(&gradient[at..]), state);
            simd.store(w, &mut weight[at..]);
            simd.store(m, &mut moment[at..]);
            simd.store(v, &mut variance[at..]);
        }
        if whole < len {
            let rest = whole..len;
            let state = [
                simd.load_partial(&weight[rest.clone()]),
                simd.load_partial(&moment[rest.clone()]),
                simd.load_partial(&variance[rest.clone()]),
            ];
            let [w, m, v] = adamw_step(simd, &adam, factor, simd.load_partial(&gradient[rest.clone()]), state);
            simd.store_partial(w, &mut weight[rest.clone()]);
            simd.store_partial(m, &mut moment[rest.clone()]);
            simd.store_partial(v, &mut variance[rest]);
        }
    }

    fn squares_of<S>(simd, x: &[f32]) -> f64 {
        let mut sums = [simd.wide_zero(); 4];
        let blocks = x.chunks_exact(4 * S::LANES);
        let rest = blocks.remainder();
        for block in blocks {
            for (turn, sum) in sums.iter_mut().enumerate() {
                *sum = simd.wide_add_square(*sum, simd.load(&block[turn * S::LANES..]));
            }
        }
        let [a, b, c, d] = sums;
        let sum = simd.wide_add(simd.wide_add(a, b), simd.wide_add(c, d));
        let tail = rest.iter().fold(0.0, |sum, &x| sum + f64::from(x) * f64::from(x));
        simd.wide_sum(sum) + tail
    }
}
