//! Softmax, and cross-entropy straight from the logits: probabilities are never stored beside their gradients.

use crate::lanes::{fold_row, map_row};
use crate::math::exp;
use crate::parallel::{Processor, Rows, RowsMut};
use crate::simd::{Simd, kernels};

/// Softmax of each row of `x`.
pub(crate) fn softmax(processor: &Processor, x: Rows<'_>, y: RowsMut<'_>) {
    let rows = x.data.len() / x.columns.max(1);
    processor.split(rows, x.columns, (x, y), &|_, (x, mut y)| {
        for (x, y) in x.iter().zip(y.iter_mut()) {
            softmax_row(processor.set, x, y);
        }
    });
}

/// `dx = y (dy - sum(dy y))`, plus the old `dx` if it accumulates.
pub(crate) fn softmax_grad(
    processor: &Processor,
    y: Rows<'_>,
    dy: Rows<'_>,
    dx: RowsMut<'_>,
    accumulate: bool,
) {
    let rows = y.data.len() / y.columns.max(1);
    processor.split(rows, y.columns, (y, dy, dx), &|_, (y, dy, mut dx)| {
        for ((y, dy), dx) in y.iter().zip(dy.iter()).zip(dx.iter_mut()) {
            softmax_grad_row(processor.set, y, dy, dx, accumulate);
        }
    });
}

/// The log-sum-exp of each row; the result is the sum of `lse - logits[target]` over the rows that count, in f64, rows
/// ascending. Targets that count are less than the columns.
pub(crate) fn cross_entropy(
    processor: &Processor,
    ignore: Option<u32>,
    logits: Rows<'_>,
    targets: &[u32],
    lse: &mut [f32],
) -> f64 {
    processor.split(targets.len(), logits.columns, (logits, &mut *lse), &|_, (logits, lse)| {
        for (logits, lse) in logits.iter().zip(lse) {
            *lse = log_sum_exp(processor.set, logits);
        }
    });
    let mut loss = 0.0;
    for ((logits, &target), &lse) in logits.iter().zip(targets).zip(&*lse) {
        if Some(target) != ignore {
            loss += f64::from(lse) - f64::from(logits[target as usize]);
        }
    }
    loss
}

/// `dlogits = scale (softmax(logits) - onehot(target))`, zero in rows that do not count. Without `logits`, `dlogits`
/// holds them.
pub(crate) fn cross_entropy_grad(
    processor: &Processor,
    ignore: Option<u32>,
    scale: f32,
    logits: Option<Rows<'_>>,
    targets: &[u32],
    lse: &[f32],
    dlogits: RowsMut<'_>,
) {
    let columns = dlogits.columns;
    let whole = (logits, targets, lse, dlogits);
    processor.split(targets.len(), columns, whole, &|_, (logits, targets, lse, mut dlogits)| {
        for (row, dlogits) in dlogits.iter_mut().enumerate() {
            if Some(targets[row]) == ignore {
                dlogits.fill(0.0);
                continue;
            }
            if let Some(logits) = logits {
                dlogits.copy_from_slice(logits.row(row));
            }
            cross_entropy_grad_row(processor.set, scale, lse[row], dlogits);
            dlogits[targets[row] as usize] -= scale;
        }
    });
}

/// The largest element of a row.
#[inline(always)]
fn largest<S: Simd>(simd: S, x: &[f32]) -> f32 {
    let largest = fold_row!(
        simd,
        S,
        x.len(),
        simd.splat(f32::NEG_INFINITY),
        f32::NEG_INFINITY,
        (x = x) | sum | simd.max(x, sum),
        |a, b| simd.max(a, b)
    );
    simd.max_lane(largest)
}

kernels! {
    fn softmax_row<S>(simd, x: &[f32], y: &mut [f32]) {
        let largest = simd.splat(largest(simd, x));
        map_row!(simd, S, x.len(), (x = x) y => exp(simd, simd.sub(x, largest)));
        let sum = fold_row!(simd, S, x.len(), simd.splat(0.0), 0.0, (y = y)
            |sum| simd.add(y, sum), |a, b| simd.add(a, b));
        let factor = simd.splat(1.0 / simd.sum(sum));
        map_row!(simd, S, x.len(), (old = y) y => simd.mul(old, factor));
    }

    fn softmax_grad_row<S>(simd, y: &[f32], dy: &[f32], dx: &mut [f32], accumulate: bool) {
        let sum = fold_row!(simd, S, y.len(), simd.splat(0.0), 0.0, (y = y, dy = dy)
            |sum| simd.mul_add(y, dy, sum), |a, b| simd.add(a, b));
        let sum = simd.splat(simd.sum(sum));
        if accumulate {
            map_row!(simd, S, y.len(), (y = y, dy = dy, old = dx) dx => simd.mul_add(y, simd.sub(dy, sum), old));
        } else {
            map_row!(simd, S, y.len(), (y = y, dy = dy) dx => simd.mul(y, simd.sub(dy, sum)));
        }
    }

    fn log_sum_exp<S>(simd, x: &[f32]) -> f32 {
        let top = largest(simd, x);
        let center = simd.splat(top);
        let sum = fold_row!(simd, S, x.len(), simd.splat(0.0), f32::NEG_INFINITY, (x = x)
            |sum| simd.add(sum, exp(simd, simd.sub(x, center))), |a, b| simd.add(a, b));
        (f64::from(top) + f64::from(simd.sum(sum)).ln()) as f32
    }

    /// `scale exp(x - lse)` in place.
    fn cross_entropy_grad_row<S>(simd, scale: f32, lse: f32, x: &mut [f32]) {
        let (scale, lse) = (simd.splat(scale), simd.splat(lse));
        map_row!(simd, S, x.len(), (old = x) x => simd.mul(scale, exp(simd, simd.sub(old, lse))));
    }
}
