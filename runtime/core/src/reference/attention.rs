//! Attention with its log-sum-exp, and its gradients from it.

use super::size;
use pipec_program::{AttentionShape, Mask};
use std::ops::Range;

/// Rows of keys, or of values, that come in parts of every sequence.
pub(super) struct Parts {
    pub(super) sequences: usize,
    pub(super) parts: Vec<Vec<f64>>,
}

impl Parts {
    /// The rows of every sequence one after another.
    pub(super) fn joined(&self) -> Vec<f64> {
        let mut joined = Vec::new();
        for sequence in 0..self.sequences {
            for part in &self.parts {
                let length = part.len() / self.sequences;
                joined.extend(&part[sequence * length..][..length]);
            }
        }
        joined
    }

    /// What belongs to each part of something that is joined like this.
    pub(super) fn parted(&self, joined: &[f64]) -> Vec<Vec<f64>> {
        let mut parts: Vec<Vec<f64>> = self.parts.iter().map(|_| Vec::new()).collect();
        let mut rest = joined;
        for _ in 0..self.sequences {
            for (part, like) in parts.iter_mut().zip(&self.parts) {
                let (first, after) = rest.split_at(like.len() / self.sequences);
                part.extend(first);
                rest = after;
            }
        }
        parts
    }
}

/// The sizes that follow from the operands.
struct Sizes {
    queries: usize,
    keys: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl Sizes {
    fn new(shape: &AttentionShape, q: &[f64], k: &[f64]) -> Self {
        let (heads, kv_heads) = (size(shape.heads), size(shape.kv_heads));
        let (sequences, head_dim) = (size(shape.sequences), size(shape.head_dim));
        Self {
            queries: q.len() / (sequences * heads * head_dim),
            keys: k.len() / (sequences * kv_heads * head_dim),
            heads,
            kv_heads,
            head_dim,
        }
    }

    /// The elements of head `head` in row `row` of sequence `sequence` of the queries.
    fn query(&self, sequence: usize, row: usize, head: usize) -> Range<usize> {
        let start = ((sequence * self.queries + row) * self.heads + head) * self.head_dim;
        start..start + self.head_dim
    }

    /// The elements of the key head of query head `head` in row `row` of sequence `sequence` of the keys.
    fn key(&self, sequence: usize, row: usize, head: usize) -> Range<usize> {
        let head = head * self.kv_heads / self.heads;
        let start = ((sequence * self.keys + row) * self.kv_heads + head) * self.head_dim;
        start..start + self.head_dim
    }

    /// The keys that a query sees.
    fn visible(&self, mask: Mask, query: usize) -> Range<usize> {
        let end = (self.keys + query + 1).saturating_sub(self.queries);
        match mask {
            Mask::Full => 0..self.keys,
            Mask::Causal => 0..end,
            Mask::Window { size: window } => end.saturating_sub(size(window))..end,
        }
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The natural logarithm of the sum of exponentials.
pub(super) fn log_sum_exp(x: &[f64]) -> f64 {
    let largest = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    largest + x.iter().map(|x| (x - largest).exp()).sum::<f64>().ln()
}

/// `(o, lse)`.
pub(super) fn attention(q: &[f64], k: &[f64], v: &[f64], shape: &AttentionShape) -> (Vec<f64>, Vec<f64>) {
    let sizes = Sizes::new(shape, q, k);
    let (mut o, mut lse) = (vec![0.0; q.len()], Vec::new());
    for sequence in 0..size(shape.sequences) {
        for head in 0..sizes.heads {
            for row in 0..sizes.queries {
                let query = sizes.query(sequence, row, head);
                let visible = sizes.visible(shape.mask, row);
                let scores: Vec<f64> = visible
                    .clone()
                    .map(|key| shape.scale * dot(&q[query.clone()], &k[sizes.key(sequence, key, head)]))
                    .collect();
                let total = log_sum_exp(&scores);
                for (key, score) in visible.zip(&scores) {
                    let probability = (score - total).exp();
                    for (o, v) in o[query.clone()].iter_mut().zip(&v[sizes.key(sequence, key, head)]) {
                        *o += probability * v;
                    }
                }
                lse.push(total);
            }
        }
    }
    (o, lse)
}

/// What the forward pass read and wrote.
pub(super) struct Forward<'a> {
    pub(super) q: &'a [f64],
    pub(super) k: &'a [f64],
    pub(super) v: &'a [f64],
    pub(super) o: &'a [f64],
    pub(super) lse: &'a [f64],
}

/// `(dq, dk, dv)`. With the probability `p = exp(scale q k - lse)` of a query and a key: `dv += p do`,
/// `ds = scale p (do v - do o)`, `dq += ds k`, `dk += ds q` (Dao et al. 2022, appendix B).
pub(super) fn attention_grad(
    forward: &Forward<'_>,
    d_o: &[f64],
    shape: &AttentionShape,
) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let Forward { q, k, v, o, lse } = *forward;
    let sizes = Sizes::new(shape, q, k);
    let (mut dq, mut dk, mut dv) = (vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]);
    for sequence in 0..size(shape.sequences) {
        for head in 0..sizes.heads {
            for row in 0..sizes.queries {
                let query = sizes.query(sequence, row, head);
                let total = lse[(sequence * sizes.heads + head) * sizes.queries + row];
                let through_output = dot(&d_o[query.clone()], &o[query.clone()]);
                for key in sizes.visible(shape.mask, row) {
                    let key = sizes.key(sequence, key, head);
                    let probability = (shape.scale * dot(&q[query.clone()], &k[key.clone()]) - total).exp();
                    let ds = shape.scale
                        * probability
                        * (dot(&d_o[query.clone()], &v[key.clone()]) - through_output);
                    for (component, key) in key.enumerate() {
                        let query = query.start + component;
                        dv[key] += probability * d_o[query];
                        dq[query] += ds * k[key];
                        dk[key] += ds * q[query];
                    }
                }
            }
        }
    }
    (dq, dk, dv)
}

#[cfg(test)]
mod tests {
    use super::super::gradient_check::{check, dot, numbers};
    use super::*;

    fn shape(mask: Mask) -> AttentionShape {
        AttentionShape { sequences: 2, heads: 4, kv_heads: 2, head_dim: 3, mask, scale: 0.5 }
    }

    #[test]
    fn probabilities_by_hand() {
        // One component, scores 0 and ln 3 for the second query: probabilities 1/4 and 3/4.
        let shape = AttentionShape {
            sequences: 1,
            heads: 1,
            kv_heads: 1,
            head_dim: 1,
            mask: Mask::Causal,
            scale: 2.0,
        };
        let (o, lse) = attention(&[7.0, 0.5], &[0.0, 3.0_f64.ln()], &[4.0, 8.0], &shape);
        assert!((o[0] - 4.0).abs() < 1e-12 && (o[1] - 7.0).abs() < 1e-12, "{o:?}");
        assert!(lse[0].abs() < 1e-12 && (lse[1] - 4.0_f64.ln()).abs() < 1e-12, "{lse:?}");
    }

    #[test]
    fn masks() {
        let sizes = Sizes { queries: 2, keys: 5, heads: 1, kv_heads: 1, head_dim: 1 };
        assert_eq!(sizes.visible(Mask::Full, 0), 0..5);
        assert_eq!(sizes.visible(Mask::Causal, 0), 0..4);
        assert_eq!(sizes.visible(Mask::Causal, 1), 0..5);
        assert_eq!(sizes.visible(Mask::Window { size: 2 }, 0), 2..4);
        assert_eq!(sizes.visible(Mask::Window { size: 9 }, 1), 0..5);
    }

    #[test]
    fn gradients() {
        // Three queries with a prefix of two keys, two query heads for each key head.
        let (q, k, v) = (numbers(1, 2 * 3 * 12), numbers(2, 2 * 5 * 6), numbers(3, 2 * 5 * 6));
        let d_o = numbers(4, q.len());
        for mask in [Mask::Full, Mask::Causal, Mask::Window { size: 2 }] {
            let shape = shape(mask);
            let (o, lse) = attention(&q, &k, &v, &shape);
            let forward = Forward { q: &q, k: &k, v: &v, o: &o, lse: &lse };
            let (dq, dk, dv) = attention_grad(&forward, &d_o, &shape);
            check("dq", &q, &dq, |q| dot(&attention(q, &k, &v, &shape).0, &d_o));
            check("dk", &k, &dk, |k| dot(&attention(&q, k, &v, &shape).0, &d_o));
            check("dv", &v, &dv, |v| dot(&attention(&q, &k, v, &shape).0, &d_o));
        }
    }
}
