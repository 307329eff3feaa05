//! The cut of a sequence into slices.

use crate::spec::{Model, Op, Spec};
use pipec_program::Mask;

/// The tokens of each slice of a sequence: those that the file of the schedule gives, or between equal lengths and equal
/// work, as the pipeline says; each at least 1.
///
/// Work is that of the products of a forward pass: a token costs twice the elements of the weights that it passes, and
/// four times the width of the heads for every key that it sees. The bounds of the slices are interpolated between the two
/// cuts and rounded.
pub fn slice_lengths(spec: &Spec) -> Vec<u64> {
    if let Some(lengths) = spec.pipeline.given.as_ref().and_then(|given| given.lengths.clone()) {
        return lengths;
    }
    let slices = u64::from(spec.pipeline.schedule.slices()).clamp(1, spec.train.seq.max(1));
    let seq = spec.train.seq;
    let work = Work::new(&spec.model);
    let balance = f64::from(spec.pipeline.balance) / 100.0;
    let total = work.until(seq as f64);
    let mut bounds = vec![0];
    for slice in 1..slices {
        let even = seq as f64 * slice as f64 / slices as f64;
        let balanced = work.reaching(total * slice as f64 / slices as f64, seq as f64);
        let bound = (even + balance * (balanced - even)).round() as u64;
        // Every slice before and after has a token.
        bounds.push(bound.clamp(bounds[bounds.len() - 1] + 1, seq - (slices - slice)));
    }
    bounds.push(seq);
    bounds.windows(2).map(|bound| bound[1] - bound[0]).collect()
}

/// The work of a model over the tokens of a sequence.
struct Work {
    /// Of a token without attention.
    token: f64,
    /// Of every pair of query and key, by how many keys up to itself a query sees.
    pairs: Vec<(f64, f64)>,
}

impl Work {
    fn new(model: &Model) -> Self {
        let mut work = Self { token: 0.0, pairs: Vec::new() };
        for piece in &model.pieces {
            let layer = &model.layers[piece.layer];
            for operation in &layer.operations {
                match operation.op {
                    Op::Linear { weight, .. } => {
                        let elements: f64 =
                            layer.slots[weight].shape.iter().map(|&extent| extent as f64).product();
                        work.token += 2.0 * elements;
                    }
                    Op::Attention { q, mask, .. } => {
                        let value = &layer.values[q];
                        let reach = match mask {
                            Mask::Full | Mask::Causal => f64::INFINITY,
                            Mask::Window { size } => size as f64,
                        };
                        work.pairs.push((reach, 4.0 * (value.heads * value.width) as f64));
                    }
                    Op::Embedding { .. }
                    | Op::Positions { .. }
                    | Op::RmsNorm { .. }
                    | Op::LayerNorm { .. }
                    | Op::Rope { .. }
                    | Op::Softmax { .. }
                    | Op::Unary { .. }
                    | Op::Add { .. }
                    | Op::Mul { .. }
                    | Op::Scale { .. }
                    | Op::Dropout { .. }
                    | Op::Reshape { .. }
                    | Op::CrossEntropy { .. } => {}
                }
            }
        }
        work
    }

    /// Of the first tokens of a sequence: a query at position t sees `min(t, reach)` keys.
    fn until(&self, tokens: f64) -> f64 {
        let keys = |reach: f64| {
            let growing = tokens.min(reach);
            growing * growing / 2.0 + (tokens - growing) * if reach.is_finite() { reach } else { 0.0 }
        };
        self.token * tokens + self.pairs.iter().map(|&(reach, each)| each * keys(reach)).sum::<f64>()
    }

    /// How many tokens make so much work, by bisection: work grows with the tokens.
    fn reaching(&self, work: f64, most: f64) -> f64 {
        let (mut low, mut high) = (0.0, most);
        for _ in 0..60 {
            let middle = (low + high) / 2.0;
            if self.until(middle) < work {
                low = middle;
            } else {
                high = middle;
            }
        }
        high
    }
}
