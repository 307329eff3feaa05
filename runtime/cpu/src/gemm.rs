//! Matrix products `c = op(a) op(b) + bias`, row-major, with either operand transposed in storage.
//!
//! The scheme is that of Goto and van de Geijn (2008): a strip of `b` is packed into panels that stay in the
//! second-level cache, a few rows of `a` stay in the first, and a register block ([`crate::microkernel`]) walks over
//! both. `a` is packed too where its elements would otherwise lie badly. It is our own because a library that packs
//! allocates in every call, and because a split over threads must not change a bit; `benches/` and
//! `docs/performance.md` compare its speed.
//!
//! Invariants: the depth is cut into chunks by its size alone, so every element of `c` is the same chain of
//! multiply-adds for any number of threads. Scratch is two fixed buffers per thread ([`scratch_elements`]).

use crate::matrix::{SharedMatrix, View};
use crate::microkernel::{BLOCK_VECTORS, Left, Packed, Store, Strided, block_columns, block_of_rows};
use crate::parallel::Processor;
use crate::simd::{Simd, kernels, transpose};
use std::ops::Range;

/// Depth of a chunk at most: 12 rows of `a` take 24 KiB of the first-level cache.
const DEPTH: usize = 512;
/// Rows of a chunk of `a` at most; divisible by the rows of every register block.
const ROWS: usize = 528;
/// Columns of `b` packed at once, a multiple of the columns of every register block: 256 × 512 f32 take half a MiB of
/// the second-level cache.
const COLUMNS: usize = 256;

/// The f32 of scratch that [`matmul`] uses per thread.
pub(crate) const fn scratch_elements() -> usize {
    ROWS * DEPTH + COLUMNS * DEPTH
}

/// The sizes of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Product {
    /// Rows of `c`.
    pub(crate) rows: usize,
    /// Columns of `c`.
    pub(crate) columns: usize,
    /// Columns of `op(a)`, rows of `op(b)`.
    pub(crate) depth: usize,
    /// `a` is stored `[depth, rows]`.
    pub(crate) transpose_a: bool,
    /// `b` is stored `[columns, depth]`.
    pub(crate) transpose_b: bool,
    /// Add to `c` instead of overwriting it.
    pub(crate) accumulate: bool,
}

/// `c [rows, columns] = op(a) op(b) + bias`, or `+=`.
pub(crate) fn matmul(
    processor: &Processor,
    product: Product,
    a: &[f32],
    b: &[f32],
    bias: Option<&[f32]>,
    c: &mut [f32],
) {
    let Product { rows, columns, depth, transpose_a, transpose_b, accumulate } = product;
    let a = View::new(a, if transpose_a { (depth, rows) } else { (rows, depth) });
    let b = View::new(b, if transpose_b { (columns, depth) } else { (depth, columns) });
    if rows == 0 || columns == 0 {
        return;
    }
    let store = match (accumulate, bias) {
        (true, None) => Store::Add,
        (false, None) => Store::Set,
        (true, Some(bias)) => {
            for row in c.chunks_exact_mut(columns) {
                row.iter_mut().zip(bias).for_each(|(c, bias)| *c += bias);
            }
            Store::Add
        }
        (false, Some(bias)) => {
            for row in c.chunks_exact_mut(columns) {
                row.copy_from_slice(bias);
            }
            Store::Add
        }
    };
    if depth == 0 {
        if store == Store::Set {
            c.fill(0.0);
        }
        return;
    }
    let c = SharedMatrix::new(c, rows, columns);
    let (down, across) = grid(processor.threads(), product);
    processor.each(down * across, |part| {
        let rows = share(rows, ROW_UNIT, down, part / across);
        let columns = share(columns, COLUMN_UNIT, across, part % across);
        processor.with_scratch(|scratch| {
            part_of_product(
                processor.set,
                a,
                transpose_a,
                b,
                transpose_b,
                &c,
                rows,
                columns,
                depth,
                store,
                scratch,
            );
        });
    });
}

/// Parts begin at multiples of these, which every register block divides.
const ROW_UNIT: usize = 12;
const COLUMN_UNIT: usize = 32;

/// How many parts down and across: all threads where every part is worth handing over, with the least packing.
fn grid(threads: usize, product: Product) -> (usize, usize) {
    /// About 10 us of one core.
    const WORTHWHILE: usize = 1 << 20;
    let work = product.rows.saturating_mul(product.columns).saturating_mul(product.depth);
    let parts = threads.min((work / WORTHWHILE).max(1));
    (1..=parts)
        .filter(|down| parts.is_multiple_of(*down))
        .map(|down| (down, parts / down))
        .min_by_key(|&(down, across)| product.rows.div_ceil(down) + product.columns.div_ceil(across))
        .unwrap_or((1, 1))
}

/// The share of part `part` of `parts` of `0..len`, in whole units.
fn share(len: usize, unit: usize, parts: usize, part: usize) -> Range<usize> {
    let units = len.div_ceil(unit);
    let bound = |part: usize| (units * part / parts * unit).min(len);
    bound(part)..bound(part + 1)
}

/// `len` cut into the fewest equal pieces of at most `limit`, each a multiple of `unit`: the size of a piece.
pub(crate) fn piece(len: usize, limit: usize, unit: usize) -> usize {
    len.div_ceil(len.div_ceil(limit)).next_multiple_of(unit)
}

kernels! {
    /// The rows and columns of `c` that one thread computes.
    fn part_of_product<S>(
        simd, a: View<'_>, transpose_a: bool, b: View<'_>, transpose_b: bool, c: &SharedMatrix<'_>,
        rows: Range<usize>, columns: Range<usize>, depth: usize, store: Store, scratch: &mut [f32],
    ) {
        if S::MANY_REGISTERS {
            part::<S, 12, 32>(simd, a, transpose_a, b, transpose_b, c, rows, columns, depth, store, scratch);
        } else {
            part::<S, 6, 16>(simd, a, transpose_a, b, transpose_b, c, rows, columns, depth, store, scratch);
        }
    }
}

/// The loops around the register block of `HEIGHT` rows and `WIDTH` columns.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn part<S: Simd, const HEIGHT: usize, const WIDTH: usize>(
    simd: S,
    a: View<'_>,
    transpose_a: bool,
    b: View<'_>,
    transpose_b: bool,
    c: &SharedMatrix<'_>,
    rows: Range<usize>,
    columns: Range<usize>,
    depth: usize,
    store: Store,
    scratch: &mut [f32],
) {
    let (packed_a, packed_b) = scratch.split_at_mut(ROWS * DEPTH);
    // Rows of `a` are read where they lie, unless their distance of whole pages would put all of a block into one set
    // of the first-level cache.
    let pack_a = transpose_a || a.columns().is_multiple_of(1024);
    let depth_step = piece(depth, DEPTH, 8);
    let row_step = piece(rows.len().max(1), ROWS, HEIGHT);
    for first in (0..depth).step_by(depth_step) {
        let steps = first..depth.min(first + depth_step);
        let store = if first == 0 { store } else { Store::Add };
        for first_row in rows.clone().step_by(row_step) {
            let chunk = first_row..rows.end.min(first_row + row_step);
            if transpose_a {
                pack_across::<HEIGHT>(a, chunk.clone(), steps.clone(), packed_a);
            } else if pack_a {
                pack_transposed::<HEIGHT>(a, chunk.clone(), steps.clone(), packed_a);
            }
            for first_column in columns.clone().step_by(COLUMNS) {
                let strip = first_column..columns.end.min(first_column + COLUMNS);
                if transpose_b {
                    pack_transposed::<WIDTH>(b, strip.clone(), steps.clone(), packed_b);
                } else {
                    pack_across::<WIDTH>(b, strip.clone(), steps.clone(), packed_b);
                }
                for (index, row) in chunk.clone().step_by(HEIGHT).enumerate() {
                    let rows = row..chunk.end.min(row + HEIGHT);
                    let panels = packed_b.chunks_exact(WIDTH * steps.len()).zip(strip.clone().step_by(WIDTH));
                    for (panel, column) in panels {
                        let columns = column..strip.end.min(column + WIDTH);
                        if pack_a {
                            let a = &packed_a[index * HEIGHT * steps.len()..][..HEIGHT * steps.len()];
                            let a = Packed::<1, HEIGHT>(a.as_ptr());
                            // SAFETY: the panels hold the steps of a whole block, and this part alone has these
                            // rows and columns.
                            unsafe { multiply(simd, a, panel, c, rows.clone(), columns, steps.len(), store) };
                        } else {
                            let (first, stride) = a.block(rows.clone(), steps.clone());
                            let a = Strided::new(first, stride);
                            // SAFETY: as above, and the rows and steps are those of `a`.
                            unsafe { multiply(simd, a, panel, c, rows.clone(), columns, steps.len(), store) };
                        }
                    }
                }
            }
        }
    }
}

/// A register block: straight into `c`, or at its right edge through a block of full width.
///
/// # Safety
/// `a` and `panel` hold `depth` steps of `rows` and of a block's width; nobody else accesses these rows and columns
/// of `c`.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn multiply<S: Simd, A: Left>(
    simd: S,
    a: A,
    panel: &[f32],
    c: &SharedMatrix<'_>,
    rows: Range<usize>,
    columns: Range<usize>,
    depth: usize,
    store: Store,
) {
    let width = block_columns::<S>();
    let b = panel.as_ptr();
    if columns.len() == width {
        let (c, stride) = c.block(rows.clone(), columns);
        // SAFETY: the caller's promise; the block of `c` lies inside.
        unsafe {
            block_of_rows::<S, A, BLOCK_VECTORS>(simd, rows.len(), depth, a, b, width, c, stride, store)
        };
        return;
    }
    let mut edge = [0.0f32; 12 * 32];
    let temporary = edge.as_mut_ptr();
    // SAFETY: the caller's promise; the temporary block has room for all columns of 12 rows.
    unsafe {
        block_of_rows::<S, A, BLOCK_VECTORS>(
            simd,
            rows.len(),
            depth,
            a,
            b,
            width,
            temporary,
            width,
            Store::Set,
        )
    };
    for (row, sums) in rows.zip(edge.chunks_exact(width)) {
        // SAFETY: the caller promises that nobody else accesses these elements.
        let target = unsafe { c.row_mut(row, columns.clone()) };
        match store {
            Store::Set => target.copy_from_slice(&sums[..columns.len()]),
            Store::Add => target.iter_mut().zip(sums).for_each(|(c, sum)| *c += sum),
        }
    }
}

/// Steps that are packed at once for all lanes: reads stay in a few rows of storage, writes in a few cache lines.
const TOGETHER: usize = 16;

/// Packs lanes that lie side by side in storage, a row of it per step: `[panel][step][WIDTH]`, with zeros in the lanes
/// that the last panel lacks.
#[inline(always)]
fn pack_across<const WIDTH: usize>(
    source: View<'_>,
    lanes: Range<usize>,
    steps: Range<usize>,
    packed: &mut [f32],
) {
    for block in (0..steps.len()).step_by(TOGETHER) {
        let block = block..steps.len().min(block + TOGETHER);
        for (first, panel) in lanes.clone().step_by(WIDTH).zip(packed.chunks_exact_mut(WIDTH * steps.len())) {
            let targets = &mut panel.as_chunks_mut::<WIDTH>().0[block.clone()];
            let lanes = first..lanes.end.min(first + WIDTH);
            for (step, target) in block.clone().zip(targets) {
                let row = source.row(steps.start + step, lanes.clone());
                match row.first_chunk::<WIDTH>() {
                    Some(row) => *target = *row,
                    None => {
                        target[..row.len()].copy_from_slice(row);
                        target[row.len()..].fill(0.0);
                    }
                }
            }
        }
    }
}

/// Packs lanes that are rows of storage: 4 × 4 blocks are transposed in registers.
#[inline(always)]
pub(crate) fn pack_transposed<const WIDTH: usize>(
    source: View<'_>,
    lanes: Range<usize>,
    steps: Range<usize>,
    packed: &mut [f32],
) {
    for (first, panel) in lanes.clone().step_by(WIDTH).zip(packed.chunks_exact_mut(WIDTH * steps.len())) {
        let (panel, _) = panel.as_chunks_mut::<WIDTH>();
        for block in (0..steps.len()).step_by(TOGETHER) {
            let block = block..steps.len().min(block + TOGETHER);
            let from = steps.start + block.start..steps.start + block.end;
            for group in (0..WIDTH).step_by(4) {
                let targets = &mut panel[block.clone()];
                let row = |offset: usize| {
                    let lane = first + group + offset;
                    if lane < lanes.end { source.row(lane, from.clone()) } else { &[] }
                };
                let rows = [row(0), row(1), row(2), row(3)];
                let [(a, _), (b, _), (c, _), (d, _)] = rows.map(|row| row.as_chunks::<4>());
                let mut done = 0;
                if group + 4 <= WIDTH && first + group + 4 <= lanes.end {
                    let quads = targets.as_chunks_mut::<4>().0;
                    done = 4 * quads.len();
                    for ((((a, b), c), d), quad) in a.iter().zip(b).zip(c).zip(d).zip(quads) {
                        let columns = transpose([*a, *b, *c, *d]);
                        for (target, column) in quad.iter_mut().zip(&columns) {
                            target[group..group + 4].copy_from_slice(column);
                        }
                    }
                }
                for (step, target) in targets.iter_mut().enumerate().skip(done) {
                    for (target, row) in target[group..].iter_mut().zip(&rows) {
                        *target = row.get(step).copied().unwrap_or(0.0);
                    }
                }
            }
        }
    }
}
