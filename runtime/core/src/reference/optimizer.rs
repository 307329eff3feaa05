//! Norms of gradients and the optimizer.

/// The sum of squares.
pub(super) fn sum_squares(x: &[f64]) -> f64 {
    x.iter().fold(0.0, |sum, x| sum + x * x)
}

/// `(norm, factor)`.
pub(super) fn clip_factor(squares: &[f64], limit: f64) -> (f64, f64) {
    let norm = squares.iter().fold(0.0, |sum, square| sum + square).sqrt();
    (norm, if norm > limit { limit / norm } else { 1.0 })
}

/// The attributes and scalars of a call.
pub(super) struct AdamW {
    pub(super) beta1: f64,
    pub(super) beta2: f64,
    pub(super) eps: f64,
    pub(super) weight_decay: f64,
    pub(super) learning_rate: f64,
    pub(super) step: u64,
}

/// The new `[weight, moment, variance]`.
pub(super) fn adamw(adam: &AdamW, gradient: &[f64], factor: f64, state: [Vec<f64>; 3]) -> [Vec<f64>; 3] {
    let [mut weight, mut moment, mut variance] = state;
    let step = adam.step as f64;
    let rate = adam.learning_rate / (1.0 - adam.beta1.powf(step));
    let root = (1.0 - adam.beta2.powf(step)).sqrt();
    let state = weight.iter_mut().zip(&mut moment).zip(&mut variance);
    for (((w, m), v), gradient) in state.zip(gradient) {
        let g = factor * gradient;
        *m = adam.beta1 * *m + (1.0 - adam.beta1) * g;
        *v = adam.beta2 * *v + (1.0 - adam.beta2) * g * g;
        *w = *w * (1.0 - adam.learning_rate * adam.weight_decay) - rate * *m / (v.sqrt() / root + adam.eps);
    }
    [weight, moment, variance]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clipping() {
        assert_eq!(sum_squares(&[3.0, -4.0]), 25.0);
        assert_eq!(clip_factor(&[9.0, 16.0], 10.0), (5.0, 1.0));
        assert_eq!(clip_factor(&[9.0, 16.0], 2.5), (5.0, 0.5));
        assert_eq!(clip_factor(&[0.0], 2.5), (0.0, 1.0));
    }

    #[test]
    fn first_step_by_hand() {
        // m = 0.1 * 2, v = 0.01 * 4; both corrections undo the factors: the step is rate * 2 / (2 + eps).
        let adam =
            AdamW { beta1: 0.9, beta2: 0.99, eps: 0.5, weight_decay: 0.1, learning_rate: 0.01, step: 1 };
        let [w, m, v] = adamw(&adam, &[4.0], 0.5, [vec![1.0], vec![0.0], vec![0.0]]);
        assert!((m[0] - 0.2).abs() < 1e-15 && (v[0] - 0.04).abs() < 1e-15);
        assert!((w[0] - (1.0 * (1.0 - 0.001) - 0.01 * 2.0 / 2.5)).abs() < 1e-15, "{}", w[0]);
    }
}
