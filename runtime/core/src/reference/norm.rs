//! Normalisation of rows and its gradients.

/// `(y, inv_rms)`.
pub(super) fn rms_norm(x: &[f64], gain: &[f64], eps: f64) -> (Vec<f64>, Vec<f64>) {
    let columns = gain.len();
    let (mut y, mut inverses) = (Vec::new(), Vec::new());
    for x in x.chunks_exact(columns) {
        let mean_square = x.iter().map(|x| x * x).sum::<f64>() / columns as f64;
        let inverse = 1.0 / (mean_square + eps).sqrt();
        y.extend(x.iter().zip(gain).map(|(x, gain)| x * inverse * gain));
        inverses.push(inverse);
    }
    (y, inverses)
}

/// With `h = gain dy`: `dx = inv_rms (h - x inv_rms^2 mean(h x))`.
pub(super) fn rms_norm_grad(x: &[f64], gain: &[f64], inv_rms: &[f64], dy: &[f64]) -> Vec<f64> {
    let columns = gain.len();
    let mut dx = Vec::new();
    for ((x, dy), &inverse) in x.chunks_exact(columns).zip(dy.chunks_exact(columns)).zip(inv_rms) {
        let h: Vec<f64> = gain.iter().zip(dy).map(|(gain, dy)| gain * dy).collect();
        let mean = h.iter().zip(x).map(|(h, x)| h * x).sum::<f64>() / columns as f64;
        dx.extend(h.iter().zip(x).map(|(h, x)| inverse * (h - x * inverse * inverse * mean)));
    }
    dx
}

/// `dgain = sum over rows of dy x inv_rms`.
pub(super) fn rms_norm_gain_grad(x: &[f64], inv_rms: &[f64], dy: &[f64], columns: usize) -> Vec<f64> {
    let mut dgain = vec![0.0; columns];
    for ((x, dy), inverse) in x.chunks_exact(columns).zip(dy.chunks_exact(columns)).zip(inv_rms) {
        for ((sum, x), dy) in dgain.iter_mut().zip(x).zip(dy) {
            *sum += dy * x * inverse;
        }
    }
    dgain
}

/// `(y, mean, inv_std)`.
pub(super) fn layer_norm(x: &[f64], gain: &[f64], bias: &[f64], eps: f64) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let columns = gain.len();
    let (mut y, mut means, mut inverses) = (Vec::new(), Vec::new(), Vec::new());
    for x in x.chunks_exact(columns) {
        let mean = x.iter().sum::<f64>() / columns as f64;
        let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / columns as f64;
        let inverse = 1.0 / (variance + eps).sqrt();
        y.extend(x.iter().zip(gain).zip(bias).map(|((x, gain), bias)| (x - mean) * inverse * gain + bias));
        means.push(mean);
        inverses.push(inverse);
    }
    (y, means, inverses)
}

/// With `n = (x - mean) inv_std` and `h = gain dy`: `dx = inv_std (h - mean(h) - n mean(h n))`.
pub(super) fn layer_norm_grad(
    x: &[f64],
    gain: &[f64],
    mean: &[f64],
    inv_std: &[f64],
    dy: &[f64],
) -> Vec<f64> {
    let columns = gain.len();
    let mut dx = Vec::new();
    let rows = x.chunks_exact(columns).zip(dy.chunks_exact(columns)).zip(mean.iter().zip(inv_std));
    for ((x, dy), (&mean, &inverse)) in rows {
        let normal: Vec<f64> = x.iter().map(|x| (x - mean) * inverse).collect();
        let h: Vec<f64> = gain.iter().zip(dy).map(|(gain, dy)| gain * dy).collect();
        let mean_h = h.iter().sum::<f64>() / columns as f64;
        let mean_hn = h.iter().zip(&normal).map(|(h, n)| h * n).sum::<f64>() / columns as f64;
        dx.extend(h.iter().zip(&normal).map(|(h, n)| inverse * (h - mean_h - n * mean_hn)));
    }
    dx
}

/// `(dgain, dbias)`: sums over rows of `dy (x - mean) inv_std` and of `dy`.
pub(super) fn layer_norm_param_grad(
    x: &[f64],
    mean: &[f64],
    inv_std: &[f64],
    dy: &[f64],
    columns: usize,
) -> (Vec<f64>, Vec<f64>) {
    let (mut dgain, mut dbias) = (vec![0.0; columns], vec![0.0; columns]);
    let rows = x.chunks_exact(columns).zip(dy.chunks_exact(columns)).zip(mean.iter().zip(inv_std));
    for ((x, dy), (mean, inverse)) in rows {
        for column in 0..columns {
            dgain[column] += dy[column] * (x[column] - mean) * inverse;
            dbias[column] += dy[column];
        }
    }
    (dgain, dbias)
}

#[cfg(test)]
mod tests {
    use super::super::gradient_check::{check, dot, numbers};
    use super::*;

    #[test]
    fn norms_by_hand() {
        // The mean square of (3, 4) is 12.5; its mean is 3.5 and its variance 0.25.
        let (y, inverse) = rms_norm(&[3., 4.], &[1., 2.], 0.0);
        assert!((inverse[0] - 1.0 / 12.5_f64.sqrt()).abs() < 1e-15);
        assert!((y[0] - 3.0 * inverse[0]).abs() < 1e-15 && (y[1] - 8.0 * inverse[0]).abs() < 1e-15);
        let (y, mean, inverse) = layer_norm(&[3., 4.], &[1., 2.], &[10., 20.], 0.0);
        assert_eq!((y, mean, inverse), (vec![9., 22.], vec![3.5], vec![2.0]));
    }

    #[test]
    fn rms_norm_gradients() {
        let (x, gain, dy) = (numbers(1, 15), numbers(2, 5), numbers(3, 15));
        let (_, inverse) = rms_norm(&x, &gain, 1e-3);
        let dx = rms_norm_grad(&x, &gain, &inverse, &dy);
        check("dx", &x, &dx, |x| dot(&rms_norm(x, &gain, 1e-3).0, &dy));
        let dgain = rms_norm_gain_grad(&x, &inverse, &dy, 5);
        check("dgain", &gain, &dgain, |gain| dot(&rms_norm(&x, gain, 1e-3).0, &dy));
    }

    #[test]
    fn layer_norm_gradients() {
        let (x, gain, bias, dy) = (numbers(1, 15), numbers(2, 5), numbers(4, 5), numbers(3, 15));
        let (_, mean, inverse) = layer_norm(&x, &gain, &bias, 1e-3);
        let dx = layer_norm_grad(&x, &gain, &mean, &inverse, &dy);
        check("dx", &x, &dx, |x| dot(&layer_norm(x, &gain, &bias, 1e-3).0, &dy));
        let (dgain, dbias) = layer_norm_param_grad(&x, &mean, &inverse, &dy, 5);
        check("dgain", &gain, &dgain, |gain| dot(&layer_norm(&x, gain, &bias, 1e-3).0, &dy));
        check("dbias", &bias, &dbias, |bias| dot(&layer_norm(&x, &gain, bias, 1e-3).0, &dy));
    }
}
