//! Forward: for each block of queries, key blocks one after another with a running maximum and sum.

use super::{Part, Shape, add_rows, carve, copy_rows, mask_lanes, padded, within};
use crate::gemm::{pack_transposed, piece};
use crate::math::exp2;
use crate::matrix::{SharedMatrix, View};
use crate::microkernel::{Packed, Store, Strided, block_of_rows, block_rows};
use crate::parallel::Processor;
use crate::simd::{Simd, kernels};
use std::f32::consts::{LN_2, LOG2_E};
use std::ops::Range;

/// Queries of a block at most; the keys and values of a block are packed once for all of them.
const QUERIES: usize = 192;
/// Keys of a block; packed keys and values of 64 components take 32 KiB of the first-level cache.
const KEYS: usize = 64;
/// Rows of a strip at most.
const STRIP: usize = 12;

pub(super) fn scratch_elements(head_dim: usize) -> usize {
    let head = padded(head_dim);
    // Queries, outputs, keys, values, scores, maxima, sums.
    QUERIES * head * 2 + KEYS * head * 2 + STRIP * KEYS + QUERIES + QUERIES * 16
}

/// `q, (k, v).. -> o, lse`, see [`super`].
pub(crate) fn attention(
    processor: &Processor,
    shape: &Shape,
    q: &[f32],
    keys_and_values: &[(&[f32], &[f32])],
    o: &mut [f32],
    lse: &mut [f32],
) {
    let Shape { sequences, queries, heads, head_dim, .. } = *shape;
    if queries == 0 || sequences == 0 {
        return;
    }
    let q = View::new(q, (sequences * queries, heads * head_dim));
    let parts = Part::all(shape, keys_and_values);
    let o = SharedMatrix::new(o, sequences * queries, heads * head_dim);
    let lse = SharedMatrix::new(lse, sequences * heads, queries);
    let step = piece(queries, QUERIES, STRIP);
    let blocks = queries.div_ceil(step);
    processor.each(sequences * heads * blocks, |unit| {
        let (row, block) = (unit / blocks, unit % blocks);
        let (sequence, head) = (row / heads, row % heads);
        let block = block * step..queries.min((block + 1) * step);
        processor.with_scratch(|scratch| {
            query_block(processor.set, shape, q, &parts, &o, &lse, sequence, head, block, scratch)
        });
    });
}

kernels! {
    /// One block of queries of one head.
    fn query_block<S>(
        simd, shape: &Shape, q: View<'_>, parts: &[Part<'_>], o: &SharedMatrix<'_>, lse: &SharedMatrix<'_>,
        sequence: usize, head: usize, block: Range<usize>, scratch: &mut [f32],
    ) {
        let Shape { queries, heads, kv_heads, head_dim, .. } = *shape;
        let all_keys = shape.keys();
        let padded = padded(head_dim);
        let mut scratch = scratch;
        let packed_q = carve(&mut scratch, QUERIES * padded);
        let outputs = &mut carve(&mut scratch, QUERIES * padded)[..block.len() * padded];
        let packed_k = carve(&mut scratch, KEYS * padded);
        let packed_v = carve(&mut scratch, KEYS * padded);
        let scores = carve(&mut scratch, STRIP * KEYS);
        let maxima = &mut carve(&mut scratch, QUERIES)[..block.len()];
        let sums = &mut carve(&mut scratch, QUERIES * S::LANES)[..block.len() * S::LANES];

        // Scores come out in units of log2, so that the exponential needs no factor.
        let columns = shape.columns(head);
        let first_query = sequence * queries;
        copy_rows(q, first_query + block.start..first_query + block.end, columns.clone(), padded, packed_q);
        let factor = simd.splat(shape.scale * LOG2_E);
        for part in packed_q[..block.len() * padded].chunks_exact_mut(S::LANES) {
            simd.store(simd.mul(simd.load(part), factor), part);
        }
        outputs.fill(0.0);
        maxima.fill(f32::NEG_INFINITY);
        sums.fill(0.0);

        let kv_columns = shape.columns(head * kv_heads / heads);
        let visible = shape.visible_to_any(&block, all_keys);
        let blocks = parts.iter().flat_map(|part| {
            let first = visible.start.max(part.keys.start) - part.keys.start;
            let blocks = part.keys.start + first / KEYS * KEYS..visible.end.min(part.keys.end);
            blocks.step_by(KEYS).map(move |start| (part, start..part.keys.end.min(start + KEYS)))
        });
        for (part, keys) in blocks {
            let rows = part.rows(sequence, &keys);
            pack_transposed::<KEYS>(part.k, rows.clone(), kv_columns.clone(), packed_k);
            copy_rows(part.v, rows, kv_columns.clone(), padded, packed_v);
            for strip in (0..block.len()).step_by(block_rows::<S>()) {
                let rows = strip..block.len().min(strip + block_rows::<S>());
                let seen = shape.visible_to_any(&(block.start + rows.start..block.start + rows.end), all_keys);
                if seen.start >= keys.end || seen.end <= keys.start {
                    continue;
                }
                // Keys that no query of the strip sees any more are left out, in whole register blocks.
                let width = keys.len().min(seen.end - keys.start);
                let columns = width.next_multiple_of(2 * S::LANES);
                let left = Strided::new(packed_q[rows.start * padded..].as_ptr(), padded);
                for column in (0..columns).step_by(2 * S::LANES) {
                    // SAFETY: the packed queries hold these rows, the packed keys all columns, the scores a strip.
                    unsafe {
                        block_of_rows::<S, _, 2>(
                            simd,
                            rows.len(),
                            head_dim,
                            left,
                            packed_k[column..].as_ptr(),
                            KEYS,
                            scores[column..].as_mut_ptr(),
                            KEYS,
                            Store::Set,
                        );
                    }
                }
                for (row, scores) in rows.clone().zip(scores.chunks_exact_mut(KEYS)) {
                    let visible = within(shape.visible(block.start + row, all_keys), &keys);
                    let sums = &mut sums[row * S::LANES..][..S::LANES];
                    let outputs = &mut outputs[row * padded..][..padded];
                    exponentials(simd, &mut scores[..columns], visible, &mut maxima[row], sums, outputs);
                }
                // SAFETY: the scores hold a strip, the packed values all keys, the outputs these rows.
                unsafe {
                    let left = Packed::<KEYS, 1>(scores.as_ptr());
                    let target = &mut outputs[rows.start * padded..];
                    add_rows(simd, rows.len(), width, left, packed_v, padded, target);
                }
            }
        }

        // SAFETY: this block alone has these rows and columns.
        let lse = unsafe { lse.row_mut(sequence * heads + head, block.clone()) };
        for (row, lse) in lse.iter_mut().enumerate() {
            let sum = simd.sum(simd.load(&sums[row * S::LANES..]));
            let inverse = if sum > 0.0 { 1.0 / sum } else { 0.0 };
            *lse = (maxima[row] + sum.log2()) * LN_2;
            // SAFETY: as above.
            let target = unsafe { o.row_mut(first_query + block.start + row, columns.clone()) };
            for (o, sum) in target.iter_mut().zip(&outputs[row * padded..]) {
                *o = sum * inverse;
            }
        }
    }
}

/// Turns a row of scores into exponentials relative to the running maximum, hidden ones into 0, and brings what was
/// summed before to the same maximum.
#[inline(always)]
fn exponentials<S: Simd>(
    simd: S,
    scores: &mut [f32],
    visible: Range<usize>,
    maximum: &mut f32,
    sums: &mut [f32],
    outputs: &mut [f32],
) {
    let old = *maximum;
    let mut largest = simd.splat(old);
    if visible.len() == scores.len() {
        for part in scores.chunks_exact(S::LANES) {
            largest = simd.max(simd.load(part), largest);
        }
    } else {
        for (lane, part) in (0..).step_by(S::LANES).zip(scores.chunks_exact_mut(S::LANES)) {
            let score = mask_lanes(simd, simd.load(part), lane, &visible, f32::NEG_INFINITY);
            simd.store(score, part);
            largest = simd.max(score, largest);
        }
    }
    let new = simd.max_lane(largest);
    if new == f32::NEG_INFINITY {
        scores.fill(0.0);
        return;
    }
    let maximum_lanes = simd.splat(new);
    let mut sum = simd.splat(0.0);
    for part in scores.chunks_exact_mut(S::LANES) {
        let power = exp2(simd, simd.sub(simd.load(part), maximum_lanes));
        simd.store(power, part);
        sum = simd.add(sum, power);
    }
    if new > old {
        let correction = exp2(simd, simd.splat(old - new));
        simd.store(simd.mul_add(simd.load(sums), correction, sum), sums);
        for part in outputs.chunks_exact_mut(S::LANES) {
            simd.store(simd.mul(simd.load(part), correction), part);
        }
        *maximum = new;
    } else {
        simd.store(simd.add(simd.load(sums), sum), sums);
    }
}
