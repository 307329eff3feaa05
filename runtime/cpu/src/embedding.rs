//! Tables: rows by token or position, and their gradients, tokens ascending.

use crate::matrix::{SharedMatrix, View};
use crate::parallel::{Processor, Rows, RowsMut};
use std::ops::Range;

/// Row `index(t)` of the table for every row t of `out`; indices are less than the rows of the table.
pub(crate) fn gather(
    processor: &Processor,
    table: Rows<'_>,
    index: &(impl Fn(usize) -> usize + Sync),
    out: RowsMut<'_>,
) {
    let (rows, columns) = (out.data.len() / out.columns.max(1), out.columns);
    processor.split(rows, columns / 8 + 1, out, &|tokens: Range<usize>, mut out: RowsMut<'_>| {
        for (token, out) in tokens.zip(out.iter_mut()) {
            out.copy_from_slice(table.row(index(token)));
        }
    });
}

/// Adds row t of `dy` to row `index(t)` of `dtable` (which are less than `rows`), t ascending. Threads share columns.
pub(crate) fn scatter_add(
    processor: &Processor,
    dy: Rows<'_>,
    index: &(impl Fn(usize) -> usize + Sync),
    dtable: &mut [f32],
    rows: usize,
) {
    let columns = dy.columns;
    let tokens = dy.data.len() / columns.max(1);
    let dy = View::new(dy.data, (tokens, columns));
    let dtable = SharedMatrix::new(dtable, rows, columns);
    processor.split(columns, tokens / 4 + 1, (), &|columns: Range<usize>, ()| {
        for token in 0..tokens {
            // SAFETY: this part alone has these columns.
            let target = unsafe { dtable.row_mut(index(token), columns.clone()) };
            target.iter_mut().zip(dy.row(token, columns.clone())).for_each(|(sum, dy)| *sum += dy);
        }
    });
}
