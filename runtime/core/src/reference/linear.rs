//! Matrix products and tables of rows.

/// `op(a) op(b) + bias` with `rows` and `columns` of the result; the inner extent follows from the length of `a`.
pub(super) fn matmul(
    a: &[f64],
    b: &[f64],
    bias: Option<&[f64]>,
    rows: usize,
    columns: usize,
    transpose_a: bool,
    transpose_b: bool,
) -> Vec<f64> {
    let inner = a.len().checked_div(rows).unwrap_or(0);
    let mut c = Vec::with_capacity(rows * columns);
    for row in 0..rows {
        for column in 0..columns {
            let mut sum = 0.0;
            for k in 0..inner {
                let left = if transpose_a { a[k * rows + row] } else { a[row * inner + k] };
                let right = if transpose_b { b[column * inner + k] } else { b[k * columns + column] };
                sum += left * right;
            }
            c.push(sum + bias.map_or(0.0, |bias| bias[column]));
        }
    }
    c
}

/// The sum over rows.
pub(super) fn sum_rows(x: &[f64], columns: usize) -> Vec<f64> {
    let mut sum = vec![0.0; columns];
    for row in x.chunks_exact(columns) {
        for (sum, value) in sum.iter_mut().zip(row) {
            *sum += value;
        }
    }
    sum
}

/// Rows of a table.
pub(super) fn embedding(tokens: &[u32], table: &[f64], columns: usize) -> Vec<f64> {
    tokens.iter().flat_map(|&token| &table[token as usize * columns..][..columns]).copied().collect()
}

/// The sum of the rows of `dy` by token.
pub(super) fn embedding_grad(tokens: &[u32], dy: &[f64], rows: usize, columns: usize) -> Vec<f64> {
    let mut dtable = vec![0.0; rows * columns];
    for (&token, dy) in tokens.iter().zip(dy.chunks_exact(columns)) {
        for (sum, value) in dtable[token as usize * columns..][..columns].iter_mut().zip(dy) {
            *sum += value;
        }
    }
    dtable
}

/// The row of the position table for each of `count` tokens; a row that no table can have becomes the largest number.
pub(super) fn position_rows(count: usize, tokens: u64, first: u64) -> Vec<u32> {
    (0..count as u64)
        .map(|token| u32::try_from(first.saturating_add(token % tokens.max(1))).unwrap_or(u32::MAX))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_all_layouts() {
        // [1 2 3; 4 5 6] times [1 2; 3 4; 5 6] is [22 28; 49 64].
        let (a, a_t) = ([1., 2., 3., 4., 5., 6.], [1., 4., 2., 5., 3., 6.]);
        let (b, b_t) = ([1., 2., 3., 4., 5., 6.], [1., 3., 5., 2., 4., 6.]);
        let c = vec![22., 28., 49., 64.];
        assert_eq!(matmul(&a, &b, None, 2, 2, false, false), c);
        assert_eq!(matmul(&a, &b_t, None, 2, 2, false, true), c);
        assert_eq!(matmul(&a_t, &b, None, 2, 2, true, false), c);
        assert_eq!(matmul(&a_t, &b_t, None, 2, 2, true, true), c);
        assert_eq!(matmul(&a, &b, Some(&[10., 100.]), 2, 2, false, false), [32., 128., 59., 164.]);
    }

    #[test]
    fn rows_and_their_sums() {
        let table = [1., 2., 3., 4., 5., 6.];
        assert_eq!(embedding(&[2, 0, 2], &table, 2), [5., 6., 1., 2., 5., 6.]);
        assert_eq!(embedding_grad(&[2, 0, 2], &table, 3, 2), [3., 4., 0., 0., 6., 8.]);
        assert_eq!(sum_rows(&table, 2), [9., 12.]);
        assert_eq!(position_rows(5, 3, 2), [2, 3, 4, 2, 3]);
    }
}
