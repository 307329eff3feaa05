//! Backward: probabilities are computed again from the log-sum-exp of each row.
//!
//! With `p = exp(scale q k^T - lse)` and `d_i = sum_j do_ij o_ij`: `dv = p^T do`, `ds = p (do v^T - d)`,
//! `dq = scale ds k`, `dk = scale ds^T q`.

use super::{Part, Shape, add_rows, carve, copy_rows, mask_lanes, padded, within};
use crate::gemm::pack_transposed;
use crate::math::exp2;
use crate::matrix::{SharedMatrix, View};
use crate::microkernel::{Packed, Store, Strided, block_of_rows, block_rows};
use crate::parallel::Processor;
use crate::simd::{Simd, kernels};
use std::f32::consts::LOG2_E;
use std::ops::Range;

/// Queries of a block; a multiple of the rows of every register block.
const QUERIES: usize = 48;
/// Keys of a block; a multiple of the rows and of the columns of every register block.
const KEYS: usize = 96;
/// Blocks of keys whose gradients are summed in scratch at once.
const BLOCKS: usize = 3;

pub(super) fn scratch_elements(head_dim: usize) -> usize {
    let head = padded(head_dim);
    // Keys in rows, keys and values in columns, their gradients; queries, output gradients, query gradients;
    // probabilities and score gradients; two numbers a query.
    5 * BLOCKS * KEYS * head + 3 * QUERIES * head + 2 * QUERIES * KEYS + 2 * QUERIES
}

/// The gradients of an attention: where they go, and whether they are added there.
pub(crate) struct Gradients<'a> {
    pub(crate) dq: &'a mut [f32],
    pub(crate) accumulate: bool,
    /// Of each part of the keys and values.
    pub(crate) parts: Vec<PartGradients<'a>>,
}

/// The gradients of the keys and values of a part.
pub(crate) struct PartGradients<'a> {
    pub(crate) dk: &'a mut [f32],
    pub(crate) dv: &'a mut [f32],
    /// For `dk`, `dv`.
    pub(crate) accumulate: [bool; 2],
}

/// The operands of an attention gradient.
#[derive(Clone, Copy)]
pub(crate) struct Operands<'a> {
    pub(crate) q: &'a [f32],
    pub(crate) keys_and_values: &'a [(&'a [f32], &'a [f32])],
    pub(crate) o: &'a [f32],
    pub(crate) lse: &'a [f32],
    pub(crate) d_o: &'a [f32],
}

/// The operands and results of one call as matrices.
struct Matrices<'a> {
    q: View<'a>,
    o: View<'a>,
    lse: View<'a>,
    d_o: View<'a>,
    dq: SharedMatrix<'a>,
    accumulate: bool,
    parts: Vec<PartMatrices<'a>>,
}

struct PartMatrices<'a> {
    part: Part<'a>,
    dk: SharedMatrix<'a>,
    dv: SharedMatrix<'a>,
    accumulate: [bool; 2],
}

/// `q, (k, v).., o, lse, do -> dq, (dk, dv)..`, see [`super`].
pub(crate) fn attention_grad(
    processor: &Processor,
    shape: &Shape,
    operands: Operands<'_>,
    gradients: Gradients<'_>,
) {
    let Shape { sequences, queries, heads, kv_heads, head_dim, .. } = *shape;
    let query_extent = (sequences * queries, heads * head_dim);
    let parts = Part::all(shape, operands.keys_and_values).into_iter().zip(gradients.parts);
    let parts = parts.map(|(part, PartGradients { dk, dv, accumulate })| {
        let (rows, columns) = (sequences * part.keys.len(), kv_heads * head_dim);
        let (dk, dv) = (SharedMatrix::new(dk, rows, columns), SharedMatrix::new(dv, rows, columns));
        PartMatrices { part, dk, dv, accumulate }
    });
    let matrices = Matrices {
        q: View::new(operands.q, query_extent),
        o: View::new(operands.o, query_extent),
        lse: View::new(operands.lse, (sequences * heads, queries)),
        d_o: View::new(operands.d_o, query_extent),
        dq: SharedMatrix::new(gradients.dq, query_extent.0, query_extent.1),
        accumulate: gradients.accumulate,
        parts: parts.collect(),
    };
    processor.each(sequences * kv_heads, |unit| {
        let (sequence, kv_head) = (unit / kv_heads, unit % kv_heads);
        processor
            .with_scratch(|scratch| key_head(processor.set, shape, &matrices, sequence, kv_head, scratch));
    });
}

/// Adds `factor * source` to a row, or overwrites it.
#[inline(always)]
fn write_row(target: &mut [f32], source: &[f32], factor: f32, add: bool) {
    if add {
        target.iter_mut().zip(source).for_each(|(target, source)| *target += factor * source);
    } else {
        target.iter_mut().zip(source).for_each(|(target, source)| *target = factor * source);
    }
}

kernels! {
    /// All query heads that read one key head, in ascending order.
    fn key_head<S>(
        simd, shape: &Shape, matrices: &Matrices<'_>, sequence: usize, kv_head: usize, scratch: &mut [f32],
    ) {
        let Shape { queries, heads, kv_heads, head_dim, scale, .. } = *shape;
        let all_keys = shape.keys();
        let padded = padded(head_dim);
        let mut scratch = scratch;
        let key_rows = carve(&mut scratch, BLOCKS * KEYS * padded);
        let key_columns = carve(&mut scratch, BLOCKS * KEYS * padded);
        let value_columns = carve(&mut scratch, BLOCKS * KEYS * padded);
        let key_gradients = carve(&mut scratch, BLOCKS * KEYS * padded);
        let value_gradients = carve(&mut scratch, BLOCKS * KEYS * padded);
        let query_rows = carve(&mut scratch, QUERIES * padded);
        let output_gradients = carve(&mut scratch, QUERIES * padded);
        let query_gradients = carve(&mut scratch, QUERIES * padded);
        let probabilities = carve(&mut scratch, QUERIES * KEYS);
        let score_gradients = carve(&mut scratch, QUERIES * KEYS);
        let log_sums = carve(&mut scratch, QUERIES);
        let products = carve(&mut scratch, QUERIES);

        let group = heads / kv_heads;
        let kv_columns = shape.columns(kv_head);
        let first_query = sequence * queries;
        let blocks = matrices.parts.iter().flat_map(|matrices| {
            let keys = matrices.part.keys.clone();
            // Without keys the gradients of queries are still written.
            let starts = (keys.start..keys.end.max(keys.start + 1)).step_by(BLOCKS * KEYS);
            starts.map(move |start| (matrices, start..keys.end.min(start + BLOCKS * KEYS)))
        });
        for (number, (PartMatrices { part, dk, dv, accumulate }, keys)) in blocks.enumerate() {
            let rows = part.rows(sequence, &keys);
            copy_rows(part.k, rows.clone(), kv_columns.clone(), padded, key_rows);
            pack_transposed::<KEYS>(part.k, rows.clone(), kv_columns.clone(), key_columns);
            pack_transposed::<KEYS>(part.v, rows.clone(), kv_columns.clone(), value_columns);
            key_gradients.fill(0.0);
            value_gradients.fill(0.0);
            for head in kv_head * group..(kv_head + 1) * group {
                let columns = shape.columns(head);
                for first in (0..queries).step_by(QUERIES) {
                    let block = first..queries.min(first + QUERIES);
                    let rows = first_query + block.start..first_query + block.end;
                    let seen = shape.visible_to_any(&block, all_keys);
                    let seen = seen.start.max(keys.start)..seen.end.min(keys.end);
                    query_gradients.fill(0.0);
                    if !seen.is_empty() {
                        copy_rows(matrices.q, rows.clone(), columns.clone(), padded, query_rows);
                        copy_rows(matrices.d_o, rows.clone(), columns.clone(), padded, output_gradients);
                        let lse = matrices.lse.row(sequence * heads + head, block.clone());
                        for (row, lse) in lse.iter().enumerate() {
                            log_sums[row] = lse * LOG2_E;
                            let o = matrices.o.row(rows.start + row, columns.clone());
                            products[row] = dot(simd, o, &output_gradients[row * padded..]);
                        }
                    }
                    for start in (seen.start.saturating_sub(keys.start) / KEYS * KEYS + keys.start..seen.end).step_by(KEYS)
                    {
                        let keys_here = start..keys.end.min(start + KEYS);
                        let offset = start - keys.start;
                        let at = offset * padded;
                        // The queries that see some of these keys: one after another, as both bounds grow.
                        let sees = |query: &usize| {
                            let visible = shape.visible(block.start + query, all_keys);
                            visible.start < keys_here.end && visible.end > keys_here.start
                        };
                        let Some(last) = (0..block.len()).rev().find(sees) else { continue };
                        let seeing = (0..last).find(sees).unwrap_or(last)..last + 1;
                        for row in seeing.clone().step_by(block_rows::<S>()) {
                            let rows = row..seeing.end.min(row + block_rows::<S>());
                            // Keys that no query of the strip sees any more are left out, in whole register blocks.
                            let end = shape.visible(block.start + rows.end - 1, all_keys).end.min(keys_here.end);
                            let width = (end - keys_here.start).next_multiple_of(2 * S::LANES);
                            let q = Strided::new(query_rows[row * padded..].as_ptr(), padded);
                            let d_o = Strided::new(output_gradients[row * padded..].as_ptr(), padded);
                            for column in (0..width).step_by(2 * S::LANES) {
                                let k = key_columns[offset * head_dim + column..].as_ptr();
                                let v = value_columns[offset * head_dim + column..].as_ptr();
                                let s = probabilities[row * KEYS + column..].as_mut_ptr();
                                let dp = score_gradients[row * KEYS + column..].as_mut_ptr();
                                // SAFETY: all operands and results are whole blocks of scratch.
                                unsafe {
                                    block_of_rows::<S, _, 2>(
                                        simd, rows.len(), head_dim, q, k, KEYS, s, KEYS, Store::Set,
                                    );
                                    block_of_rows::<S, _, 2>(
                                        simd, rows.len(), head_dim, d_o, v, KEYS, dp, KEYS, Store::Set,
                                    );
                                }
                            }
                            for row in rows.clone() {
                                let visible = within(shape.visible(block.start + row, all_keys), &keys_here);
                                let (p, rest_p) = probabilities[row * KEYS..][..KEYS].split_at_mut(width);
                                let (ds, rest_ds) = score_gradients[row * KEYS..][..KEYS].split_at_mut(width);
                                score_gradient(simd, p, ds, visible, scale * LOG2_E, log_sums[row], products[row]);
                                rest_p.fill(0.0);
                                rest_ds.fill(0.0);
                            }
                            let ds = Packed::<KEYS, 1>(score_gradients[row * KEYS..].as_ptr());
                            let target = &mut query_gradients[row * padded..];
                            let depth = end - keys_here.start;
                            // SAFETY: the score gradients hold these rows, the keys in rows all keys.
                            unsafe { add_rows(simd, rows.len(), depth, ds, &key_rows[at..], padded, target) };
                        }
                        for key in (0..keys_here.len()).step_by(block_rows::<S>()) {
                            let height = block_rows::<S>().min(keys_here.len() - key);
                            // Queries before the first that sees the strip, or after the last, add nothing.
                            let first_key = keys_here.start + key;
                            let sees = |query: &usize| {
                                let visible = shape.visible(block.start + query, all_keys);
                                visible.start < first_key + height && visible.end > first_key
                            };
                            let Some(last) = seeing.clone().rev().find(sees) else { continue };
                            let first = seeing.clone().find(sees).unwrap_or(last);
                            let p = Packed::<1, KEYS>(probabilities[first * KEYS + key..].as_ptr());
                            let ds = Packed::<1, KEYS>(score_gradients[first * KEYS + key..].as_ptr());
                            let d_o = &output_gradients[first * padded..];
                            let q = &query_rows[first * padded..];
                            let (depth, target) = (last + 1 - first, at + key * padded);
                            // SAFETY: both hold these queries and this strip of keys; the scratch has all of them.
                            unsafe {
                                add_rows(simd, height, depth, p, d_o, padded, &mut value_gradients[target..]);
                                add_rows(simd, height, depth, ds, q, padded, &mut key_gradients[target..]);
                            }
                        }
                    }
                    let add = matrices.accumulate || number > 0;
                    for (row, source) in rows.zip(query_gradients.chunks_exact(padded)) {
                        // SAFETY: this thread alone has the query heads of this key head.
                        let target = unsafe { matrices.dq.row_mut(row, columns.clone()) };
                        write_row(target, source, scale, add);
                    }
                }
            }
            for (index, row) in rows.enumerate() {
                // SAFETY: this thread alone has this key head.
                let (dk, dv) =
                    unsafe { (dk.row_mut(row, kv_columns.clone()), dv.row_mut(row, kv_columns.clone())) };
                write_row(dk, &key_gradients[index * padded..], scale, accumulate[0]);
                write_row(dv, &value_gradients[index * padded..], 1.0, accumulate[1]);
            }
        }
    }
}

/// The scalar product of a head with the start of a padded row.
#[inline(always)]
fn dot<S: Simd>(simd: S, a: &[f32], b: &[f32]) -> f32 {
    let mut sum = simd.splat(0.0);
    let whole = a.len() / S::LANES * S::LANES;
    for (a, b) in a.chunks_exact(S::LANES).zip(b.chunks_exact(S::LANES)) {
        sum = simd.mul_add(simd.load(a), simd.load(b), sum);
    }
    if whole < a.len() {
        sum = simd.mul_add(simd.load_partial(&a[whole..]), simd.load_partial(&b[whole..a.len()]), sum);
    }
    simd.sum(sum)
}

/// Turns a row of scores into probabilities and their gradients into gradients of scores.
#[inline(always)]
fn score_gradient<S: Simd>(
    simd: S,
    scores: &mut [f32],
    gradients: &mut [f32],
    visible: Range<usize>,
    factor: f32,
    log_sum: f32,
    product: f32,
) {
    let (factor, log_sum) = (simd.splat(factor), simd.splat(log_sum));
    let product = simd.splat(product);
    let all = visible.len() == scores.len();
    for ((lane, score), gradient) in (0..)
        .step_by(S::LANES)
        .zip(scores.chunks_exact_mut(S::LANES))
        .zip(gradients.chunks_exact_mut(S::LANES))
    {
        let mut probability = exp2(simd, simd.sub(simd.mul(simd.load(score), factor), log_sum));
        let mut change = simd.sub(simd.load(gradient), product);
        if !all {
            probability = mask_lanes(simd, probability, lane, &visible, 0.0);
            change = mask_lanes(simd, change, lane, &visible, 0.0);
        }
        simd.store(probability, score);
        simd.store(simd.mul(probability, change), gradient);
    }
}
