//! Row-major matrices over f32: read by anybody, written by several threads in parts that do not meet.

use std::marker::PhantomData;
use std::ops::Range;

/// A matrix to read.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    data: &'a [f32],
    columns: usize,
}

impl<'a> View<'a> {
    /// All of `data` as a matrix of an extent; panics when the sizes differ.
    pub(crate) fn new(data: &'a [f32], (rows, columns): (usize, usize)) -> Self {
        assert_eq!(data.len(), rows * columns, "a matrix has rows × columns elements");
        Self { data, columns }
    }

    /// Elements of a row.
    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// Some columns of a row.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize, columns: Range<usize>) -> &'a [f32] {
        debug_assert!(columns.end <= self.columns);
        &self.data[row * self.columns + columns.start..row * self.columns + columns.end]
    }

    /// The first element of a block and the distance of its rows; panics when the block is not inside.
    #[inline(always)]
    pub(crate) fn block(&self, rows: Range<usize>, columns: Range<usize>) -> (*const f32, usize) {
        assert!(
            rows.start < rows.end
                && columns.end <= self.columns
                && rows.end * self.columns <= self.data.len()
        );
        (self.data[rows.start * self.columns + columns.start..].as_ptr(), self.columns)
    }
}

/// A matrix that several threads write at once, each its own rows and columns.
pub(crate) struct SharedMatrix<'a> {
    data: *mut f32,
    rows: usize,
    columns: usize,
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: it is an exclusive borrow of plain numbers; the methods that give access are unsafe or give raw pointers, and
// their callers promise that parts do not meet.
unsafe impl Sync for SharedMatrix<'_> {}
// SAFETY: as above.
unsafe impl Send for SharedMatrix<'_> {}

impl<'a> SharedMatrix<'a> {
    /// All of `data` as a matrix; panics when the sizes differ.
    pub(crate) fn new(data: &'a mut [f32], rows: usize, columns: usize) -> Self {
        assert_eq!(data.len(), rows * columns, "a matrix has rows × columns elements");
        Self { data: data.as_mut_ptr(), rows, columns, borrow: PhantomData }
    }

    /// The first element of a block and the distance of its rows; panics when the block is not inside.
    #[inline(always)]
    pub(crate) fn block(&self, rows: Range<usize>, columns: Range<usize>) -> (*mut f32, usize) {
        assert!(rows.end <= self.rows && columns.end <= self.columns);
        // SAFETY: just checked.
        (unsafe { self.data.add(rows.start * self.columns + columns.start) }, self.columns)
    }

    /// Some columns of a row; panics when they are not inside.
    ///
    /// # Safety
    /// Nobody else accesses them as long as the slice lives.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    pub(crate) unsafe fn row_mut(&self, row: usize, columns: Range<usize>) -> &mut [f32] {
        assert!(row < self.rows && columns.start <= columns.end && columns.end <= self.columns);
        // SAFETY: inside the matrix, and the caller promises that nobody else accesses it.
        unsafe {
            std::slice::from_raw_parts_mut(self.data.add(row * self.columns + columns.start), columns.len())
        }
    }
}
