//! Root-mean-square norm and layer norm with their gradients, row by row; sums of columns, rows ascending.
//!
//! A norm of a sum first adds up and stores a row, as the kernel that adds alone does, then reads it as any other: so its
//! bits are those of the two kernels.

use crate::lanes::{fold_row, map_row};
use crate::parallel::{Processor, Rows, RowsMut, Split};
use crate::simd::{InstructionSet, kernels};
use std::ops::Range;

/// Nanoseconds for one element of a row kernel, roughly, to decide about threads.
const ROW_COST: usize = 4;

fn cost(columns: usize) -> usize {
    columns / ROW_COST + 1
}

/// What a norm is of.
pub(crate) enum Normed<'a> {
    /// Rows as they are.
    Rows(Rows<'a>),
    /// `sum = x + residual`, stored row by row as the norm reads them; an operand that is none stands in `sum`.
    Sum {
        /// The first operand.
        x: Option<Rows<'a>>,
        /// The second operand.
        residual: Option<Rows<'a>>,
        /// Where the sum goes.
        sum: RowsMut<'a>,
    },
}

impl Normed<'_> {
    /// A row, added up if it is a sum: to be called once for every row.
    #[inline(always)]
    fn row(&mut self, set: InstructionSet, row: usize) -> &[f32] {
        match self {
            Self::Rows(x) => x.row(row),
            Self::Sum { x, residual, sum } => {
                let sum = &mut sum.data[row * sum.columns..][..sum.columns];
                add_row(set, x.map(|x| x.row(row)), residual.map(|residual| residual.row(row)), sum);
                sum
            }
        }
    }
}

impl Split for Normed<'_> {
    fn split(self, units: usize) -> (Self, Self) {
        match self {
            Self::Rows(x) => {
                let (first, rest) = x.split(units);
                (Self::Rows(first), Self::Rows(rest))
            }
            Self::Sum { x, residual, sum } => {
                let (first, rest) = (x, residual, sum).split(units);
                let part = |(x, residual, sum)| Self::Sum { x, residual, sum };
                (part(first), part(rest))
            }
        }
    }
}

/// `y = x inv_rms gain` with `inv_rms = 1 / sqrt(mean(x^2) + eps)` for each row.
pub(crate) fn rms_norm(
    processor: &Processor,
    eps: f32,
    x: Normed<'_>,
    gain: &[f32],
    y: RowsMut<'_>,
    inv_rms: &mut [f32],
) {
    let (rows, cost) = (inv_rms.len(), cost(y.columns));
    processor.split(rows, cost, (x, y, inv_rms), &|_, (mut x, mut y, inv_rms)| {
        for (row, (y, inv_rms)) in y.iter_mut().zip(inv_rms).enumerate() {
            *inv_rms = rms_norm_row(processor.set, eps, x.row(processor.set, row), gain, y);
        }
    });
}

/// `dx = inv_rms (dy gain - x inv_rms^2 mean(dy gain x))`, plus the residual, plus the old `dx` if it accumulates.
#[allow(clippy::too_many_arguments)]
pub(crate) fn rms_norm_grad(
    processor: &Processor,
    x: Rows<'_>,
    gain: &[f32],
    inv_rms: &[f32],
    dy: Rows<'_>,
    residual: Option<Rows<'_>>,
    dx: RowsMut<'_>,
    accumulate: bool,
) {
    let whole = (x, inv_rms, dy, residual, dx);
    processor.split(inv_rms.len(), cost(x.columns), whole, &|_, (x, inv_rms, dy, residual, mut dx)| {
        for (row, ((x, dy), dx)) in x.iter().zip(dy.iter()).zip(dx.iter_mut()).enumerate() {
            let residual = residual.map(|residual| residual.row(row));
            rms_norm_grad_row(processor.set, x, gain, inv_rms[row], dy, residual, dx, accumulate);
        }
    });
}

/// `dgain = sum of dy x inv_rms` over the rows.
pub(crate) fn rms_norm_gain_grad(
    processor: &Processor,
    x: Rows<'_>,
    inv_rms: &[f32],
    dy: Rows<'_>,
    dgain: &mut [f32],
    accumulate: bool,
) {
    processor.split(x.columns, inv_rms.len() / ROW_COST + 1, dgain, &|columns, dgain| {
        gain_grad_columns(processor.set, x, None, inv_rms, dy, columns, dgain, accumulate);
    });
}

/// `y = (x - mean) inv_std gain + bias` with the mean and `inv_std = 1 / sqrt(variance + eps)` of each row.
#[allow(clippy::too_many_arguments)]
pub(crate) fn layer_norm(
    processor: &Processor,
    eps: f32,
    x: Normed<'_>,
    gain: &[f32],
    bias: &[f32],
    y: RowsMut<'_>,
    mean: &mut [f32],
    inv_std: &mut [f32],
) {
    let (rows, cost) = (inv_std.len(), cost(y.columns));
    processor.split(rows, cost, (x, y, mean, inv_std), &|_, (mut x, mut y, mean, inv_std)| {
        for (row, ((y, mean), inv_std)) in y.iter_mut().zip(mean).zip(inv_std).enumerate() {
            let x = x.row(processor.set, row);
            (*mean, *inv_std) = layer_norm_row(processor.set, eps, x, gain, bias, y);
        }
    });
}

/// `dx = inv_std (g - mean(g) - n mean(g n))` with `g = dy gain` and `n = (x - mean) inv_std`, plus the residual, plus
/// the old `dx` if it accumulates.
#[allow(clippy::too_many_arguments)]
pub(crate) fn layer_norm_grad(
    processor: &Processor,
    x: Rows<'_>,
    gain: &[f32],
    mean: &[f32],
    inv_std: &[f32],
    dy: Rows<'_>,
    residual: Option<Rows<'_>>,
    dx: RowsMut<'_>,
    accumulate: bool,
) {
    let whole = (x, mean, inv_std, dy, residual, dx);
    processor.split(mean.len(), cost(x.columns), whole, &|_, (x, mean, inv_std, dy, residual, mut dx)| {
        for (row, ((x, dy), dx)) in x.iter().zip(dy.iter()).zip(dx.iter_mut()).enumerate() {
            let residual = residual.map(|residual| residual.row(row));
            layer_norm_grad_row(
                processor.set,
                x,
                gain,
                mean[row],
                inv_std[row],
                dy,
                residual,
                dx,
                accumulate,
            );
        }
    });
}

/// `dgain = sum of dy (x - mean) inv_std`, `dbias = sum of dy` over the rows.
#[allow(clippy::too_many_arguments)]
pub(crate) fn layer_norm_param_grad(
    processor: &Processor,
    x: Rows<'_>,
    mean: &[f32],
    inv_std: &[f32],
    dy: Rows<'_>,
    dgain: &mut [f32],
    accumulate_gain: bool,
    dbias: &mut [f32],
    accumulate_bias: bool,
) {
    processor.split(x.columns, inv_std.len() / ROW_COST + 1, dgain, &|columns, dgain| {
        gain_grad_columns(processor.set, x, Some(mean), inv_std, dy, columns, dgain, accumulate_gain);
    });
    sum_rows(processor, dy, dbias, accumulate_bias);
}

/// `sum = sum of x` over the rows.
pub(crate) fn sum_rows(processor: &Processor, x: Rows<'_>, sum: &mut [f32], accumulate: bool) {
    let rows = x.data.len() / x.columns.max(1);
    processor.split(x.columns, rows / ROW_COST + 1, sum, &|columns, sum| {
        sum_columns(processor.set, x, columns, sum, accumulate);
    });
}

kernels! {
    /// `sum = x + residual`, where an operand that is none stands in `sum`.
    fn add_row<S>(simd, x: Option<&[f32]>, residual: Option<&[f32]>, sum: &mut [f32]) {
        let len = sum.len();
        match (x, residual) {
            (Some(x), Some(residual)) =>
                map_row!(simd, S, len, (x = x, residual = residual) sum => simd.add(x, residual)),
            (Some(x), None) => map_row!(simd, S, len, (x = x, old = sum) sum => simd.add(x, old)),
            (None, Some(residual)) =>
                map_row!(simd, S, len, (old = sum, residual = residual) sum => simd.add(old, residual)),
            (None, None) => map_row!(simd, S, len, (old = sum) sum => simd.add(old, old)),
        }
    }

    fn rms_norm_row<S>(simd, eps: f32, x: &[f32], gain: &[f32], y: &mut [f32]) -> f32 {
        let squares = fold_row!(simd, S, x.len(), simd.splat(0.0), 0.0, (x = x)
            |sum| simd.mul_add(x, x, sum), |a, b| simd.add(a, b));
        let inverse = 1.0 / (simd.sum(squares) / x.len() as f32 + eps).sqrt();
        let factor = simd.splat(inverse);
        map_row!(simd, S, x.len(), (x = x, gain = gain) y => simd.mul(simd.mul(x, factor), gain));
        inverse
    }

    fn rms_norm_grad_row<S>(
        simd, x: &[f32], gain: &[f32], inverse: f32, dy: &[f32], residual: Option<&[f32]>, dx: &mut [f32],
        accumulate: bool,
    ) {
        let len = x.len();
        let products = fold_row!(simd, S, len, simd.splat(0.0), 0.0, (x = x, gain = gain, dy = dy)
            |sum| simd.mul_add(simd.mul(dy, gain), x, sum), |a, b| simd.add(a, b));
        let share = simd.splat(simd.sum(products) * inverse * inverse * inverse / len as f32);
        let inverse = simd.splat(inverse);
        match (residual, accumulate) {
            (None, false) => map_row!(simd, S, len, (x = x, gain = gain, dy = dy)
                dx => simd.neg_mul_add(x, share, simd.mul(simd.mul(dy, gain), inverse))),
            (Some(residual), false) => map_row!(simd, S, len, (x = x, gain = gain, dy = dy, residual = residual)
                dx => simd.neg_mul_add(x, share, simd.mul_add(simd.mul(dy, gain), inverse, residual))),
            (None, true) => map_row!(simd, S, len, (x = x, gain = gain, dy = dy, old = dx)
                dx => simd.neg_mul_add(x, share, simd.mul_add(simd.mul(dy, gain), inverse, old))),
            (Some(residual), true) => map_row!(
                simd, S, len, (x = x, gain = gain, dy = dy, residual = residual, old = dx)
                dx => simd.neg_mul_add(
                    x, share, simd.mul_add(simd.mul(dy, gain), inverse, simd.add(old, residual)))),
        }
    }

    fn layer_norm_row<S>(simd, eps: f32, x: &[f32], gain: &[f32], bias: &[f32], y: &mut [f32]) -> (f32, f32) {
        let len = x.len();
        let sum = fold_row!(simd, S, len, simd.splat(0.0), 0.0, (x = x) |sum| simd.add(x, sum), |a, b| simd.add(a, b));
        let mean = simd.sum(sum) / len as f32;
        let center = simd.splat(mean);
        // Lanes beyond the row hold the mean, so that they add nothing.
        let squares = fold_row!(simd, S, len, simd.splat(0.0), mean, (x = x)
            |sum| { let d = simd.sub(x, center); simd.mul_add(d, d, sum) }, |a, b| simd.add(a, b));
        let inverse = 1.0 / (simd.sum(squares) / len as f32 + eps).sqrt();
        let factor = simd.splat(inverse);
        map_row!(simd, S, len, (x = x, gain = gain, bias = bias)
            y => simd.mul_add(simd.mul(simd.sub(x, center), factor), gain, bias));
        (mean, inverse)
    }

    fn layer_norm_grad_row<S>(
        simd, x: &[f32], gain: &[f32], mean: f32, inverse: f32, dy: &[f32], residual: Option<&[f32]>,
        dx: &mut [f32], accumulate: bool,
    ) {
        let len = x.len();
        let (center, factor) = (simd.splat(mean), simd.splat(inverse));
        let sums = fold_row!(simd, S, len, simd.splat(0.0), 0.0, (gain = gain, dy = dy)
            |sum| simd.mul_add(dy, gain, sum), |a, b| simd.add(a, b));
        let products = fold_row!(simd, S, len, simd.splat(0.0), 0.0, (x = x, gain = gain, dy = dy)
            |sum| simd.mul_add(simd.mul(dy, gain), simd.mul(simd.sub(x, center), factor), sum),
            |a, b| simd.add(a, b));
        let first = simd.splat(simd.sum(sums) / len as f32);
        let second = simd.splat(simd.sum(products) / len as f32);
        if !accumulate {
            match residual {
                Some(residual) => dx.copy_from_slice(residual),
                None => dx.fill(0.0),
            }
        } else if let Some(residual) = residual {
            map_row!(simd, S, len, (old = dx, residual = residual) dx => simd.add(old, residual));
        }
        map_row!(simd, S, len, (x = x, gain = gain, dy = dy, old = dx) dx => {
            let normal = simd.mul(simd.sub(x, center), factor);
            let change = simd.sub(simd.mul_add(dy, gain, simd.splat(0.0)), first);
            simd.mul_add(simd.neg_mul_add(normal, second, change), factor, old)
        });
    }

    /// Some columns of `sum of dy (x - mean) inverse`.
    fn gain_grad_columns<S>(
        simd, x: Rows<'_>, mean: Option<&[f32]>, inverse: &[f32], dy: Rows<'_>, columns: Range<usize>,
        sum: &mut [f32], accumulate: bool,
    ) {
        if !accumulate {
            sum.fill(0.0);
        }
        // Four vectors of sums stay in registers while the rows go by.
        let mut at = 0;
        while at + 4 * S::LANES <= sum.len() {
            let mut sums = [simd.splat(0.0); 4];
            for (row, inverse) in inverse.iter().enumerate() {
                let (factor, center) = (simd.splat(*inverse), simd.splat(mean.map_or(0.0, |mean| mean[row])));
                let from = columns.start + at;
                let (x, dy) = (&x.row(row)[from..from + 4 * S::LANES], &dy.row(row)[from..from + 4 * S::LANES]);
                for (turn, sum) in sums.iter_mut().enumerate() {
                    let x = simd.mul(simd.sub(simd.load(&x[turn * S::LANES..]), center), factor);
                    *sum = simd.mul_add(simd.load(&dy[turn * S::LANES..]), x, *sum);
                }
            }
            for (turn, part) in sums.iter().enumerate() {
                let target = &mut sum[at + turn * S::LANES..];
                simd.store(simd.add(simd.load(target), *part), target);
            }
            at += 4 * S::LANES;
        }
        for (column, sum) in sum.iter_mut().enumerate().skip(at) {
            let column = columns.start + column;
            let mut total = 0.0;
            for (row, inverse) in inverse.iter().enumerate() {
                let x = (x.row(row)[column] - mean.map_or(0.0, |mean| mean[row])) * inverse;
                total += dy.row(row)[column] * x;
            }
            *sum += total;
        }
    }

    /// Some columns of the sum over rows.
    fn sum_columns<S>(simd, x: Rows<'_>, columns: Range<usize>, sum: &mut [f32], accumulate: bool) {
        if !accumulate {
            sum.fill(0.0);
        }
        let mut at = 0;
        while at + 4 * S::LANES <= sum.len() {
            let mut sums = [simd.splat(0.0); 4];
            for x in x.iter() {
                let x = &x[columns.start + at..columns.start + at + 4 * S::LANES];
                for (turn, sum) in sums.iter_mut().enumerate() {
                    *sum = simd.add(*sum, simd.load(&x[turn * S::LANES..]));
                }
            }
            for (turn, part) in sums.iter().enumerate() {
                let target = &mut sum[at + turn * S::LANES..];
                simd.store(simd.add(simd.load(target), *part), target);
            }
            at += 4 * S::LANES;
        }
        for (column, sum) in sum.iter_mut().enumerate().skip(at) {
            *sum += x.iter().map(|x| x[columns.start + column]).sum::<f32>();
        }
    }
}
