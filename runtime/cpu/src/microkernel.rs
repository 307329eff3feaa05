//! The inner loop of every matrix product: a small block of `c` held in registers while the sum runs.
//!
//! The sum over `depth` is one chain per element, ascending, so the bits of an element depend on its row of `a`, its
//! column of `b` and the depth alone: never on where it lies in a block, nor on how blocks are spread over threads.

use crate::simd::Simd;

/// What to do with the old elements of `c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    /// Overwrite them.
    Set,
    /// Add to them.
    Add,
}

/// Rows of a full block.
pub(crate) const fn block_rows<S: Simd>() -> usize {
    if S::MANY_REGISTERS { 12 } else { 6 }
}

/// Vectors side by side in a full block.
pub(crate) const BLOCK_VECTORS: usize = 2;

/// Columns of a full block.
pub(crate) const fn block_columns<S: Simd>() -> usize {
    BLOCK_VECTORS * S::LANES
}

/// How a block finds the elements of `a`.
pub(crate) trait Left: Copy {
    /// Element (row, 0) of a block; `row` is known when the code is compiled.
    ///
    /// # Safety
    /// The row is one of the block.
    unsafe fn row(self, row: usize) -> *const f32;
    /// The same block, `steps` steps of the sum further.
    fn advance(self, steps: usize) -> Self;
    /// Distance of one step of the sum, in elements.
    const STEP: usize;
}

/// Element (row, k) at `row * ROW + k * STEP`: packed panels and blocks of scores.
#[derive(Clone, Copy)]
pub(crate) struct Packed<const ROW: usize, const STEP: usize>(pub(crate) *const f32);

impl<const ROW: usize, const STEP: usize> Left for Packed<ROW, STEP> {
    const STEP: usize = STEP;
    #[inline(always)]
    unsafe fn row(self, row: usize) -> *const f32 {
        self.0.wrapping_add(row * ROW)
    }
    #[inline(always)]
    fn advance(self, steps: usize) -> Self {
        Self(self.0.wrapping_add(steps * STEP))
    }
}

/// Rows of a row-major matrix as they lie in memory: no packing.
#[derive(Clone, Copy)]
pub(crate) struct Strided {
    /// Rows 0, 3, 6 and 9; three rows each are reached by the addressing modes of the processor.
    groups: [*const f32; 4],
    stride: usize,
}

impl Strided {
    /// Rows from `first` on, `stride` elements apart.
    #[inline(always)]
    pub(crate) fn new(first: *const f32, stride: usize) -> Self {
        let group = |index: usize| first.wrapping_add(3 * index * stride);
        Self { groups: [group(0), group(1), group(2), group(3)], stride }
    }
}

impl Left for Strided {
    const STEP: usize = 1;
    #[inline(always)]
    unsafe fn row(self, row: usize) -> *const f32 {
        self.groups[row / 3].wrapping_add(row % 3 * self.stride)
    }
    #[inline(always)]
    fn advance(self, steps: usize) -> Self {
        let [a, b, c, d] = self.groups;
        let groups =
            [a.wrapping_add(steps), b.wrapping_add(steps), c.wrapping_add(steps), d.wrapping_add(steps)];
        Self { groups, stride: self.stride }
    }
}

/// `c [ROWS, VECTORS * LANES] = a b`, or `+=`, with row k of `b` at `b + k * b_stride`.
///
/// # Safety
/// All elements of `a` and `b` are readable, and those of `c` writable and not shared with another thread.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub(crate) unsafe fn block<S: Simd, A: Left, const ROWS: usize, const VECTORS: usize>(
    simd: S,
    depth: usize,
    mut a: A,
    mut b: *const f32,
    b_stride: usize,
    c: *mut f32,
    c_stride: usize,
    store: Store,
) {
    /// Steps of the sum in one turn of the loop.
    const UNROLL: usize = 4;
    let mut sums = [[simd.splat(0.0); VECTORS]; ROWS];
    // Past the last step the pointers are not read.
    for _ in 0..depth / UNROLL {
        for k in 0..UNROLL {
            // SAFETY: the caller promises these steps of `a` and `b`.
            unsafe { step(simd, &mut sums, a, k, b.wrapping_add(k * b_stride)) };
        }
        a = a.advance(UNROLL);
        b = b.wrapping_add(UNROLL * b_stride);
    }
    for _ in 0..depth % UNROLL {
        // SAFETY: the caller promises these steps of `a` and `b`.
        unsafe { step(simd, &mut sums, a, 0, b) };
        a = a.advance(1);
        b = b.wrapping_add(b_stride);
    }
    // SAFETY: the caller promises that the block of `c` is readable and writable.
    unsafe {
        match store {
            Store::Set => {
                for (row, sums) in sums.iter().enumerate() {
                    for (vector, &sum) in sums.iter().enumerate() {
                        simd.store_at(sum, c.add(row * c_stride + vector * S::LANES));
                    }
                }
            }
            Store::Add => {
                for (row, sums) in sums.iter().enumerate() {
                    for (vector, &sum) in sums.iter().enumerate() {
                        let element = c.add(row * c_stride + vector * S::LANES);
                        simd.store_at(simd.add(simd.load_at(element), sum), element);
                    }
                }
            }
        }
    }
}

/// One step of the sum of all elements of a block, `k` steps after `a`, with that row of `b`.
///
/// # Safety
/// The elements of `a` and `b` are readable.
#[inline(always)]
unsafe fn step<S: Simd, A: Left, const ROWS: usize, const VECTORS: usize>(
    simd: S,
    sums: &mut [[S::F; VECTORS]; ROWS],
    a: A,
    k: usize,
    b: *const f32,
) {
    let mut row_of_b = [simd.splat(0.0); VECTORS];
    for (vector, element) in row_of_b.iter_mut().enumerate() {
        // SAFETY: the caller promises that the row of `b` is readable.
        *element = unsafe { simd.load_at(b.add(vector * S::LANES)) };
    }
    for (row, sums) in sums.iter_mut().enumerate() {
        // SAFETY: the caller promises that element (row, k) of `a` is readable.
        let element = simd.splat(unsafe { *a.row(row).add(k * A::STEP) });
        for (sum, &column) in sums.iter_mut().zip(&row_of_b) {
            *sum = simd.mul_add(element, column, *sum);
        }
    }
}

/// Calls [`block`] with a number of rows known only now, at most 12.
///
/// # Safety
/// As for [`block`], with `1 <= rows <= 12`.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub(crate) unsafe fn block_of_rows<S: Simd, A: Left, const VECTORS: usize>(
    simd: S,
    rows: usize,
    depth: usize,
    a: A,
    b: *const f32,
    b_stride: usize,
    c: *mut f32,
    c_stride: usize,
    store: Store,
) {
    macro_rules! rows {
        ($($rows:literal)*) => {
            match rows {
                // SAFETY: the caller's promise is that of `block`.
                $($rows => unsafe {
                    block::<S, A, $rows, VECTORS>(simd, depth, a, b, b_stride, c, c_stride, store)
                },)*
                _ => unreachable!("a block has 1 to 12 rows"),
            }
        };
    }
    if S::MANY_REGISTERS { rows!(1 2 3 4 5 6 7 8 9 10 11 12) } else { rows!(1 2 3 4 5 6) }
}
