//! Arenas: the one allocation that a device makes per space, and the regions of it that instructions name.
//!
//! Within a thread a [`Region`] behaves as a slice of [`Cell`]s: regions may overlap, nothing holds a reference to plain
//! bytes, and so every safe method is sound. An arena can move to another thread, but not be shared with one: that is
//! for the engine alone (`shared.rs`, the only other file of the crate with `unsafe` code).
//!
//! What it deliberately does not do: hand out parts of an arena. Places are fixed by the program.

#![allow(unsafe_code)]

use pipec_program::Bytes;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::NonNull;

/// The alignment of an arena and of the buffers in it, in bytes: a cache line, and a whole vector of AVX-512.
pub const ALIGNMENT: usize = 64;

/// One allocation of host memory, aligned to [`ALIGNMENT`], zero at first. Its pages become resident when touched.
#[derive(Debug)]
pub struct Arena {
    base: NonNull<u8>,
    layout: Layout,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: an arena owns its allocation; nothing in it belongs to the thread that made it.
unsafe impl Send for Arena {}

impl Arena {
    /// Allocates an arena; none if the system has no memory of that size.
    ///
    /// The alignment is made by hand, because the system allocator gives untouched zero pages only to small
    /// alignments and would clear (and so make resident) the others.
    pub fn new(bytes: Bytes) -> Option<Self> {
        let bytes = usize::try_from(bytes.align_up(ALIGNMENT as u64).0).ok()?;
        let layout = Layout::from_size_align(bytes.checked_add(ALIGNMENT)?, 16).ok()?;
        // SAFETY: the layout has a size of at least `ALIGNMENT`, so it is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let skip = base.as_ptr().align_offset(ALIGNMENT);
        if skip > ALIGNMENT {
            // SAFETY: `base` was allocated just above with this layout.
            unsafe { dealloc(base.as_ptr(), layout) };
            return None;
        }
        // SAFETY: `skip` is at most `ALIGNMENT`, so that `skip + bytes` stays within the allocation.
        let start = unsafe { base.add(skip) };
        Some(Self { base, layout, start, bytes })
    }

    /// The size, rounded up to [`ALIGNMENT`].
    pub fn bytes(&self) -> Bytes {
        Bytes(self.bytes as u64)
    }

    /// The region of `bytes` bytes from `offset` on; none if it does not lie in the arena.
    pub fn region(&self, offset: Bytes, bytes: Bytes) -> Option<Region<'_>> {
        self.whole().slice(offset, bytes)
    }

    /// The whole arena.
    pub fn whole(&self) -> Region<'_> {
        Region { start: self.start, bytes: self.bytes, arena: PhantomData }
    }

    /// Fills the arena with a pattern that no computation writes by chance, so that [`Arena::touched`] can tell later
    /// which bytes were written. Debugging only: it makes every page resident.
    pub fn paint(&mut self) {
        for (index, word) in self.whole().cells().chunks_exact(8).enumerate() {
            for (cell, byte) in word.iter().zip(pattern(index).to_le_bytes()) {
                cell.set(byte);
            }
        }
    }

    /// What was written since [`Arena::paint`], in lines of [`ALIGNMENT`] bytes.
    pub fn touched(&self) -> Touched {
        let mut touched = Touched { high_water: Bytes::ZERO, bytes: Bytes::ZERO };
        for (line, cells) in self.whole().cells().chunks_exact(ALIGNMENT).enumerate() {
            let written = cells.chunks_exact(8).enumerate().any(|(word, cells)| {
                let expected = pattern(line * (ALIGNMENT / 8) + word).to_le_bytes();
                cells.iter().zip(expected).any(|(cell, byte)| cell.get() != byte)
            });
            if written {
                touched.bytes += Bytes(ALIGNMENT as u64);
                touched.high_water = Bytes(((line + 1) * ALIGNMENT) as u64);
            }
        }
        touched
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: `base` was allocated with this layout and nothing else frees it.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// The word of the pattern at a position: a signalling value that differs from place to place.
fn pattern(index: usize) -> u64 {
    crate::splitmix::at(0x7061_696E_7465_6421, index as u64)
}

/// What was written to a painted arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touched {
    /// The end of the last line written.
    pub high_water: Bytes,
    /// All lines written.
    pub bytes: Bytes,
}

/// Some bytes of an arena. It stays in its thread; within it, regions may overlap and change under each other, as
/// [`Cell`]s do.
#[derive(Clone, Copy, Debug)]
pub struct Region<'a> {
    start: NonNull<u8>,
    bytes: usize,
    arena: PhantomData<&'a Cell<u8>>,
}

impl<'a> Region<'a> {
    /// The size in bytes.
    pub fn len(self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(self) -> bool {
        self.bytes == 0
    }

    /// The address of the first byte, for devices that compute in place. It is valid for reads and writes of
    /// [`Region::len`] bytes during `'a`.
    pub fn as_ptr(self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// A part of it; none if it does not lie inside.
    pub fn slice(self, offset: Bytes, bytes: Bytes) -> Option<Self> {
        let offset = usize::try_from(offset.0).ok()?;
        let bytes = usize::try_from(bytes.0).ok()?;
        if offset.checked_add(bytes)? > self.bytes {
            return None;
        }
        // SAFETY: `offset` is at most the length, so the result points into the allocation or to its end.
        Some(Self { start: unsafe { self.start.add(offset) }, bytes, arena: PhantomData })
    }

    /// The bytes as cells.
    pub fn cells(self) -> &'a [Cell<u8>] {
        // SAFETY: the region lies in an arena that lives for `'a`; `Cell<u8>` has the layout of `u8`; all bytes are
        // initialised (arenas start as zero) and only ever accessed as cells or raw memory within this thread.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast::<Cell<u8>>(), self.bytes) }
    }

    /// Copies all bytes out. Whatever of `to` is longer than the region stays as it is, and the other way round.
    pub fn load(self, to: &mut [u8]) {
        let bytes = self.bytes.min(to.len());
        // SAFETY: both ranges hold `bytes` bytes; `to` is exclusively borrowed, so that it is not part of an arena.
        unsafe { self.start.as_ptr().cast_const().copy_to_nonoverlapping(to.as_mut_ptr(), bytes) };
    }

    /// Copies bytes in. Whatever of `from` is longer than the region is left out, and the other way round.
    pub fn store(self, from: &[u8]) {
        let bytes = self.bytes.min(from.len());
        // SAFETY: both ranges hold `bytes` bytes; `from` is borrowed as plain bytes, so that it is not part of an arena.
        unsafe { self.start.as_ptr().copy_from_nonoverlapping(from.as_ptr(), bytes) };
    }

    /// Copies the bytes to another region of the same length, which may overlap; the shorter length counts.
    pub fn copy_to(self, to: Region<'_>) {
        let bytes = self.bytes.min(to.bytes);
        // SAFETY: both regions are valid for `bytes` bytes and `copy` permits overlap.
        unsafe { to.start.as_ptr().copy_from(self.start.as_ptr(), bytes) };
    }

    /// Sets every byte.
    pub fn set(self, byte: u8) {
        // SAFETY: the region is valid for writes of its length.
        unsafe { self.start.as_ptr().write_bytes(byte, self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arenas_are_aligned_zero_and_bounded() {
        let arena = Arena::new(Bytes(100)).expect("memory");
        assert_eq!(arena.bytes(), Bytes(128));
        assert_eq!(arena.whole().as_ptr().align_offset(ALIGNMENT), 0);
        assert!(arena.whole().cells().iter().all(|cell| cell.get() == 0));
        assert!(arena.region(Bytes(64), Bytes(64)).is_some());
        assert!(arena.region(Bytes(64), Bytes(65)).is_none());
        assert!(arena.region(Bytes(u64::MAX), Bytes(2)).is_none());
        assert!(Arena::new(Bytes(u64::MAX)).is_none());
        assert_eq!(Arena::new(Bytes(0)).expect("memory").whole().len(), 0);
    }

    #[test]
    fn regions_load_store_and_overlap() {
        let arena = Arena::new(Bytes(64)).expect("memory");
        let whole = arena.whole();
        whole.store(&[1, 2, 3, 4]);
        let (from, to) = (arena.region(Bytes(0), Bytes(4)), arena.region(Bytes(1), Bytes(4)));
        from.expect("inside").copy_to(to.expect("inside"));
        let mut bytes = [9; 6];
        arena.region(Bytes(0), Bytes(6)).expect("inside").load(&mut bytes);
        assert_eq!(bytes, [1, 1, 2, 3, 4, 0]);
    }

    #[test]
    fn painted_arenas_tell_what_was_written() {
        let mut arena = Arena::new(Bytes(256)).expect("memory");
        arena.paint();
        assert_eq!(arena.touched(), Touched { high_water: Bytes(0), bytes: Bytes(0) });
        arena.region(Bytes(130), Bytes(4)).expect("inside").set(0);
        assert_eq!(arena.touched(), Touched { high_water: Bytes(192), bytes: Bytes(64) });
    }
}
