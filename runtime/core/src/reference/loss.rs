//! Softmax and cross-entropy.

use super::attention::log_sum_exp;

/// Softmax of each row.
pub(super) fn softmax(x: &[f64], columns: usize) -> Vec<f64> {
    let mut y = Vec::with_capacity(x.len());
    for row in x.chunks_exact(columns) {
        let total = log_sum_exp(row);
        y.extend(row.iter().map(|x| (x - total).exp()));
    }
    y
}

/// `dx = y (dy - sum(dy y))`.
pub(super) fn softmax_grad(y: &[f64], dy: &[f64], columns: usize) -> Vec<f64> {
    let mut dx = Vec::with_capacity(y.len());
    for (y, dy) in y.chunks_exact(columns).zip(dy.chunks_exact(columns)) {
        let sum: f64 = y.iter().zip(dy).map(|(y, dy)| y * dy).sum();
        dx.extend(y.iter().zip(dy).map(|(y, dy)| y * (dy - sum)));
    }
    dx
}

/// `(loss, lse)`.
pub(super) fn cross_entropy(
    logits: &[f64],
    targets: &[u32],
    columns: usize,
    ignore: Option<u32>,
) -> (f64, Vec<f64>) {
    let (mut loss, mut lse) = (0.0, Vec::new());
    for (logits, &target) in logits.chunks_exact(columns).zip(targets) {
        let total = log_sum_exp(logits);
        if Some(target) != ignore {
            loss += total - logits[target as usize];
        }
        lse.push(total);
    }
    (loss, lse)
}

/// `scale (softmax(logits) - onehot(target))`, zero where the target is ignored.
pub(super) fn cross_entropy_grad(
    logits: &[f64],
    targets: &[u32],
    lse: &[f64],
    columns: usize,
    ignore: Option<u32>,
    scale: f64,
) -> Vec<f64> {
    let mut dlogits = Vec::with_capacity(logits.len());
    for ((logits, &target), total) in logits.chunks_exact(columns).zip(targets).zip(lse) {
        if Some(target) == ignore {
            dlogits.extend(std::iter::repeat_n(0.0, columns));
        } else {
            dlogits.extend(logits.iter().enumerate().map(|(column, logit)| {
                let one_hot = f64::from(u8::from(column == target as usize));
                scale * ((logit - total).exp() - one_hot)
            }));
        }
    }
    dlogits
}

#[cfg(test)]
mod tests {
    use super::super::gradient_check::{check, dot, numbers};
    use super::*;

    #[test]
    fn losses_by_hand() {
        // Probabilities 1/4 and 3/4; the second row counts for nothing.
        let logits = [0.0, 3.0_f64.ln(), 5.0, 6.0];
        let (loss, lse) = cross_entropy(&logits, &[1, 0], 2, Some(0));
        assert!((loss - (4.0_f64 / 3.0).ln()).abs() < 1e-12);
        assert!((lse[0] - 4.0_f64.ln()).abs() < 1e-12);
        let gradient = cross_entropy_grad(&logits, &[1, 0], &lse, 2, Some(0), 8.0);
        assert!((gradient[0] - 2.0).abs() < 1e-12 && (gradient[1] + 2.0).abs() < 1e-12);
        assert_eq!(gradient[2..], [0.0, 0.0]);
        let y = softmax(&logits[..2], 2);
        assert!((y[0] - 0.25).abs() < 1e-12 && (y[1] - 0.75).abs() < 1e-12);
    }

    #[test]
    fn gradients() {
        let (x, dy, targets) = (numbers(1, 21), numbers(2, 21), [3, 6, 0]);
        let dx = softmax_grad(&softmax(&x, 7), &dy, 7);
        check("softmax", &x, &dx, |x| dot(&softmax(x, 7), &dy));
        let (_, lse) = cross_entropy(&x, &targets, 7, Some(6));
        let dx = cross_entropy_grad(&x, &targets, &lse, 7, Some(6), 1.0);
        check("cross_entropy", &x, &dx, |x| cross_entropy(x, &targets, 7, Some(6)).0);
    }
}
