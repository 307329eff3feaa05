//! Attention in blocks, without a matrix of scores in memory (Dao et al. 2022, FlashAttention).
//!
//! Matrices come straight out of the projections, heads side by side: `q`, `o` are `[sequences * queries, heads *
//! head_dim]`, `k`, `v` are `[sequences * keys, kv_heads * head_dim]`, in one or more parts by position. Query s of a
//! sequence stands at position `keys - queries + s`, all parts counted. Blocks of keys that a strip of queries does not
//! see are skipped; no block has keys of two parts.
//!
//! Invariants: a head is computed by one thread, key blocks ascending (forward), query heads and then queries ascending
//! (gradients of keys and values), so bits do not depend on the number of threads. Scratch is sized by the head
//! dimension alone.

mod backward;
mod forward;

pub(crate) use backward::{Gradients, Operands, PartGradients, attention_grad};
pub(crate) use forward::attention;

use crate::matrix::View;
use crate::microkernel::{Left, Store, block_of_rows};
use crate::simd::Simd;
use pipec_program::Mask;
use std::ops::Range;

/// The sizes of a call.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) sequences: usize,
    /// Queries of a sequence.
    pub(crate) queries: usize,
    /// Keys of a sequence in each part.
    pub(crate) parts: Vec<usize>,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) mask: Mask,
    pub(crate) scale: f32,
}

/// A part of the keys and values of all sequences.
struct Part<'a> {
    /// The positions of its keys in a sequence.
    keys: Range<usize>,
    k: View<'a>,
    v: View<'a>,
}

impl<'a> Part<'a> {
    /// The parts of a call from their keys and values.
    fn all(shape: &Shape, operands: &[(&'a [f32], &'a [f32])]) -> Vec<Self> {
        let mut start = 0;
        let parts = shape.parts.iter().zip(operands).map(|(&keys, &(k, v))| {
            let extent = (shape.sequences * keys, shape.kv_heads * shape.head_dim);
            let keys = start..start + keys;
            start = keys.end;
            Part { keys, k: View::new(k, extent), v: View::new(v, extent) }
        });
        parts.collect()
    }

    /// The rows of some keys of a sequence.
    fn rows(&self, sequence: usize, keys: &Range<usize>) -> Range<usize> {
        let first = sequence * self.keys.len() + keys.start - self.keys.start;
        first..first + keys.len()
    }
}

impl Shape {
    /// Keys of a sequence in all parts.
    fn keys(&self) -> usize {
        self.parts.iter().sum()
    }

    /// Elements of an operand that holds keys or values: the operands from 1 on are pairs of both.
    pub(crate) fn key_elements(&self, operand: usize) -> usize {
        let keys = operand.checked_sub(1).and_then(|pair| self.parts.get(pair / 2)).copied().unwrap_or(0);
        self.sequences * keys * self.kv_heads * self.head_dim
    }

    /// The keys that query `query` sees.
    #[inline(always)]
    fn visible(&self, query: usize, keys: usize) -> Range<usize> {
        let end = (keys + query + 1).saturating_sub(self.queries).min(keys);
        match self.mask {
            Mask::Full => 0..keys,
            Mask::Causal => 0..end,
            Mask::Window { size } => end.saturating_sub(usize::try_from(size).unwrap_or(usize::MAX))..end,
        }
    }

    /// The keys that some of these queries see: bounds grow with the query, so the first and last decide.
    #[inline(always)]
    fn visible_to_any(&self, queries: &Range<usize>, keys: usize) -> Range<usize> {
        self.visible(queries.start, keys).start..self.visible(queries.end - 1, keys).end
    }

    /// Columns of a head in a matrix with heads side by side.
    fn columns(&self, head: usize) -> Range<usize> {
        head * self.head_dim..(head + 1) * self.head_dim
    }

    /// The f32 of scratch that forward and backward use per thread.
    pub(crate) fn scratch_elements(&self) -> usize {
        forward::scratch_elements(self.head_dim).max(backward::scratch_elements(self.head_dim))
    }
}

/// A head as it lies in scratch: rows padded to whole vectors of the widest instruction set.
const fn padded(head_dim: usize) -> usize {
    head_dim.next_multiple_of(16)
}

/// Takes the first elements of a scratch.
fn carve<'a>(scratch: &mut &'a mut [f32], elements: usize) -> &'a mut [f32] {
    let (first, rest) = std::mem::take(scratch).split_at_mut(elements);
    *scratch = rest;
    first
}

/// Copies rows of a head, padded with zeros.
#[inline(always)]
fn copy_rows(source: View<'_>, rows: Range<usize>, columns: Range<usize>, stride: usize, target: &mut [f32]) {
    for (row, target) in rows.zip(target.chunks_exact_mut(stride)) {
        let (head, padding) = target.split_at_mut(columns.len());
        head.copy_from_slice(source.row(row, columns.clone()));
        padding.fill(0.0);
    }
}

/// The numbers of the lanes of a row of scores, to compare with the bounds of what is visible.
const LANE_NUMBERS: [f32; 96] = {
    let mut numbers = [0.0; 96];
    let mut lane = 0;
    while lane < 96 {
        numbers[lane] = lane as f32;
        lane += 1;
    }
    numbers
};

/// `x` in lanes within `visible`, `hidden` elsewhere; `lane` is the number of the first lane.
#[inline(always)]
fn mask_lanes<S: Simd>(simd: S, x: S::F, lane: usize, visible: &Range<usize>, hidden: f32) -> S::F {
    let lanes = simd.load(&LANE_NUMBERS[lane..]);
    let hidden = simd.splat(hidden);
    let x = simd.select(simd.less(lanes, simd.splat(visible.end as f32)), x, hidden);
    simd.select(simd.less(lanes, simd.splat(visible.start as f32)), hidden, x)
}

/// What of `visible` lies in a block of keys, counted from its start.
#[inline(always)]
fn within(visible: Range<usize>, keys: &Range<usize>) -> Range<usize> {
    let bound = |key: usize| key.clamp(keys.start, keys.end) - keys.start;
    bound(visible.start)..bound(visible.end)
}

/// `target [height, padded] += a b` with `b [depth, padded]`.
///
/// # Safety
/// `a` holds `height` rows and `depth` steps; `b` and `target` are long enough.
#[inline(always)]
unsafe fn add_rows<S: Simd, A: Left>(
    simd: S,
    height: usize,
    depth: usize,
    a: A,
    b: &[f32],
    padded: usize,
    target: &mut [f32],
) {
    let pairs = padded / (2 * S::LANES) * (2 * S::LANES);
    for column in (0..padded).step_by(2 * S::LANES) {
        let (b, target) = (b[column..].as_ptr(), target[column..].as_mut_ptr());
        // SAFETY: the caller promises the operands; the columns end at the padding.
        unsafe {
            if column < pairs {
                block_of_rows::<S, A, 2>(simd, height, depth, a, b, padded, target, padded, Store::Add);
            } else {
                block_of_rows::<S, A, 1>(simd, height, depth, a, b, padded, target, padded, Store::Add);
            }
        }
    }
}
