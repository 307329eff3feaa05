//! The processor as a device sees it: an instruction set, and threads with scratch. Work is split into as many
//! contiguous parts as there are threads, by position alone.
//!
//! Kernels split only over what is independent (rows, columns, heads), never over a sum, so the number of threads
//! changes no bit of any result. With one thread everything runs inline.

use crate::simd::InstructionSet;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// The instruction set and the threads that the kernels of a device use, each thread with scratch of its own.
pub(crate) struct Processor {
    /// The instruction set.
    pub(crate) set: InstructionSet,
    pool: Option<rayon::ThreadPool>,
    scratch: Vec<Mutex<Scratch>>,
}

/// Scratch of one thread.
#[derive(Default)]
struct Scratch {
    /// What is used starts at the first multiple of 64 bytes.
    data: Vec<f32>,
    elements: usize,
}

/// f32 of a cache line.
const LINE: usize = 16;

impl Scratch {
    fn aligned(&mut self) -> &mut [f32] {
        let start = self.data.as_ptr().align_offset(64);
        self.data.get_mut(start..start + self.elements).unwrap_or_default()
    }
}

impl Processor {
    /// `count` threads; none is started when it is 1 (or 0, which counts as 1).
    ///
    /// # Errors
    /// When the operating system gives no thread.
    pub(crate) fn new(set: InstructionSet, count: usize) -> Result<Self, rayon::ThreadPoolBuildError> {
        let count = count.max(1);
        let pool =
            if count == 1 { None } else { Some(rayon::ThreadPoolBuilder::new().num_threads(count).build()?) };
        let scratch = (0..count).map(|_| Mutex::default()).collect();
        Ok(Self { set, pool, scratch })
    }

    /// The number of threads.
    pub(crate) fn threads(&self) -> usize {
        self.scratch.len()
    }

    /// Makes room for `elements` f32 of scratch per thread, once for all kernels that are compiled.
    pub(crate) fn reserve(&mut self, elements: usize) {
        for scratch in &mut self.scratch {
            let scratch = scratch.get_mut().unwrap_or_else(PoisonError::into_inner);
            if elements > scratch.elements {
                *scratch = Scratch { data: vec![0.0; elements + LINE], elements };
            }
        }
    }

    /// The bytes of scratch of all threads.
    pub(crate) fn scratch_bytes(&self) -> usize {
        let bytes =
            |scratch: &Mutex<Scratch>| 4 * scratch.lock().unwrap_or_else(PoisonError::into_inner).data.len();
        self.scratch.iter().map(bytes).sum()
    }

    /// Lends the scratch of this thread, which starts at a multiple of 64 bytes. Not to be nested.
    pub(crate) fn with_scratch<R>(&self, work: impl FnOnce(&mut [f32]) -> R) -> R {
        let thread = rayon::current_thread_index().unwrap_or(0).min(self.threads() - 1);
        // Each thread locks its own, so nobody waits; contents of a broken-off kernel are as good as any.
        let mut scratch = self.scratch[thread].lock().unwrap_or_else(PoisonError::into_inner);
        work(scratch.aligned())
    }

    /// Calls `work` for the parts `0..parts` on all threads.
    pub(crate) fn each(&self, parts: usize, work: impl Fn(usize) + Sync) {
        run_parts(parts.min(self.threads()), 0..parts, (), &|range: Range<usize>, ()| range.for_each(&work));
    }

    /// Runs work on one of the threads, so that kernels inside it hand over to threads that are awake.
    pub(crate) fn enter<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        match &self.pool {
            None => work(),
            Some(pool) => pool.install(work),
        }
    }

    /// Splits what `whole` holds into parts of whole units and works on all of them at once.
    ///
    /// There are `units` of it, each costing about `cost` nanoseconds of one thread: too little work stays together.
    pub(crate) fn split<W: Split>(
        &self,
        units: usize,
        cost: usize,
        whole: W,
        work: &(impl Fn(Range<usize>, W) + Sync),
    ) {
        /// Handing a part to another thread costs about 5 us; a part should be worth several times that.
        const WORTHWHILE: usize = 20_000;
        let worthwhile = (units.saturating_mul(cost) / WORTHWHILE).max(1);
        let parts = self.threads().min(units.max(1)).min(worthwhile);
        run_parts(parts, 0..units, whole, work);
    }
}

/// Something made of units of which a first few can be parted from the rest.
pub(crate) trait Split: Send {
    /// The first `units` units and the rest.
    fn split(self, units: usize) -> (Self, Self)
    where
        Self: Sized;
}

fn run_parts<W: Split>(
    parts: usize,
    units: Range<usize>,
    whole: W,
    work: &(impl Fn(Range<usize>, W) + Sync),
) {
    if parts <= 1 {
        return work(units, whole);
    }
    let left = parts / 2;
    let middle = units.start + units.len() * left / parts;
    let (first, rest) = whole.split(middle - units.start);
    rayon::join(
        || run_parts(left, units.start..middle, first, work),
        || run_parts(parts - left, middle..units.end, rest, work),
    );
}

/// Rows of a matrix, to read.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    /// The elements, row-major.
    pub(crate) data: &'a [f32],
    /// Elements of a row.
    pub(crate) columns: usize,
}

/// Rows of a matrix, to write.
pub(crate) struct RowsMut<'a> {
    /// The elements, row-major.
    pub(crate) data: &'a mut [f32],
    /// Elements of a row.
    pub(crate) columns: usize,
}

impl<'a> Rows<'a> {
    /// Rows of `columns` elements, at least 1.
    pub(crate) fn new(data: &'a [f32], columns: usize) -> Self {
        Self { data, columns }
    }

    /// All rows, ascending.
    pub(crate) fn iter(&self) -> std::slice::ChunksExact<'a, f32> {
        self.data.chunks_exact(self.columns)
    }

    /// A row; panics when it is not there.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> &'a [f32] {
        &self.data[row * self.columns..][..self.columns]
    }
}

impl<'a> RowsMut<'a> {
    /// Rows of `columns` elements, at least 1.
    pub(crate) fn new(data: &'a mut [f32], columns: usize) -> Self {
        Self { data, columns }
    }

    /// All rows, ascending.
    pub(crate) fn iter_mut(&mut self) -> std::slice::ChunksExactMut<'_, f32> {
        self.data.chunks_exact_mut(self.columns)
    }
}

impl Split for () {
    fn split(self, _: usize) -> (Self, Self) {
        ((), ())
    }
}

impl<T: Split> Split for Option<T> {
    fn split(self, units: usize) -> (Self, Self) {
        self.map(|whole| whole.split(units)).unzip()
    }
}

impl Split for Rows<'_> {
    fn split(self, units: usize) -> (Self, Self) {
        let (first, rest) = self.data.split_at(units * self.columns);
        (Self::new(first, self.columns), Self::new(rest, self.columns))
    }
}

impl Split for RowsMut<'_> {
    fn split(self, units: usize) -> (Self, Self) {
        let (first, rest) = self.data.split_at_mut(units * self.columns);
        (Self::new(first, self.columns), Self::new(rest, self.columns))
    }
}

impl<T: Sync> Split for &[T] {
    fn split(self, units: usize) -> (Self, Self) {
        self.split_at(units)
    }
}

impl<T: Send> Split for &mut [T] {
    fn split(self, units: usize) -> (Self, Self) {
        self.split_at_mut(units)
    }
}

macro_rules! split_tuples {
    ($(($($part:ident $first:ident $rest:ident)*))*) => {$(
        #[allow(non_snake_case)]
        impl<$($part: Split),*> Split for ($($part,)*) {
            fn split(self, units: usize) -> (Self, Self) {
                let ($($part,)*) = self;
                $(let ($first, $rest) = $part.split(units);)*
                (($($first,)*), ($($rest,)*))
            }
        }
    )*};
}

split_tuples! {
    (A a1 a2 B b1 b2)
    (A a1 a2 B b1 b2 C c1 c2)
    (A a1 a2 B b1 b2 C c1 c2 D d1 d2)
    (A a1 a2 B b1 b2 C c1 c2 D d1 d2 E e1 e2)
    (A a1 a2 B b1 b2 C c1 c2 D d1 d2 E e1 e2 F f1 f2)
}
