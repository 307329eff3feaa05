//! Arenas that the threads of all devices use in a step.

#![allow(unsafe_code)]

use crate::arena::Arena;
use pipec_program::Verified;

/// An arena that the threads of all devices use.
#[derive(Debug)]
pub(crate) struct SharedArena(Arena);

// SAFETY: two threads use one arena only inside a step of the engine, which executes a `Verified` program (the
// constructor asks for it). Verification proves that any two instructions that access a common byte, one of them
// writing, are ordered by queue order, waits, messages or reductions; the engine realises each of these orders by
// releasing and acquiring the mutex of its exchange. So no two threads ever race for a byte.
unsafe impl Sync for SharedArena {}

impl SharedArena {
    /// Shares an arena among the threads that execute `_program`, which must be the one that places its buffers.
    pub(crate) fn new(arena: Arena, _program: &Verified) -> Self {
        Self(arena)
    }
}

impl std::ops::Deref for SharedArena {
    type Target = Arena;
    fn deref(&self) -> &Arena {
        &self.0
    }
}

impl std::ops::DerefMut for SharedArena {
    fn deref_mut(&mut self) -> &mut Arena {
        &mut self.0
    }
}
