//! Devices: what the engine asks of anything that computes.
//!
//! A device makes arenas, compiles functions once, and then runs them on regions of those arenas. It is driven by one
//! thread (it may use more of its own), never sees a program, a queue or another device, and allocates no tensor
//! after [`Device::compile`].
//!
//! Invariants that the engine keeps: every region lies in an arena that [`Device::allocate`] of this or (as the source
//! of a copy or an addition) of another device of the run returned; the regions of a [`Device::run`] have the sizes of
//! the function's parameters, are aligned for the elements of the values in them (and start at multiples of 64 unless the
//! program cuts a buffer elsewhere) and, where the call writes, share no byte with another region of the call; scalars have the types of the function's scalars; no other thread touches the bytes meanwhile.

use crate::arena::{Arena, Region};
use pipec_program::{Bytes, DType, Function, Space};

/// A function that a device has compiled: valid for the device that returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Compiled(pub u32);

/// The value of a scalar argument.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScalarValue {
    /// A real number.
    Real(f64),
    /// A counter or seed.
    Integer(u64),
}

impl ScalarValue {
    /// As a real number; an integer is converted.
    pub fn real(self) -> f64 {
        match self {
            Self::Real(value) => value,
            Self::Integer(value) => value as f64,
        }
    }

    /// As an integer; a real number is truncated, and saturates.
    pub fn integer(self) -> u64 {
        match self {
            Self::Real(value) => value as u64,
            Self::Integer(value) => value,
        }
    }
}

/// Something that computes.
pub trait Device: Send {
    /// The kind of device, for messages and traces: `reference`, `cpu`.
    fn kind(&self) -> &'static str;

    /// Makes the arena of a space; called once per space that the program uses, before all else.
    fn allocate(&mut self, _space: Space, bytes: Bytes) -> Result<Arena, DeviceError> {
        Arena::new(bytes).ok_or(DeviceError::OutOfMemory { bytes })
    }

    /// Compiles a function; called once for each function that the device runs, before the first step.
    fn compile(&mut self, function: &Function) -> Result<Compiled, DeviceError>;

    /// Runs a compiled function: `regions` and `scalars` are the arguments in the order of the function's parameters.
    fn run(
        &mut self,
        function: Compiled,
        regions: &[Region<'_>],
        scalars: &[ScalarValue],
    ) -> Result<(), DeviceError>;

    /// Copies bytes; both regions have the same length. `from` may belong to another device of the run.
    fn copy(&mut self, from: Region<'_>, to: Region<'_>) -> Result<(), DeviceError> {
        from.copy_to(to);
        Ok(())
    }

    /// Sets every byte to zero.
    fn fill(&mut self, to: Region<'_>) -> Result<(), DeviceError> {
        to.set(0);
        Ok(())
    }

    /// Adds the elements of `from` to those of `to`, each sum rounded to the element type. `from` may belong to another
    /// device of the run.
    fn add(&mut self, dtype: DType, from: Region<'_>, to: Region<'_>) -> Result<(), DeviceError>;

    /// Copies bytes of an arena out, after all that was asked before has finished.
    fn read(&mut self, from: Region<'_>, to: &mut [u8]) -> Result<(), DeviceError> {
        from.load(to);
        Ok(())
    }

    /// Copies bytes into an arena.
    fn write(&mut self, from: &[u8], to: Region<'_>) -> Result<(), DeviceError> {
        to.store(from);
        Ok(())
    }

    /// The most bytes that the device holds at any time beyond the arenas: packing buffers of a matrix library, tiles.
    /// Known once all functions are compiled.
    fn scratch(&self) -> Bytes;
}

/// Why a device could not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The device has no way to run a kernel; known when the function is compiled.
    #[error("a {device} device does not support {what} (function `{function}`{})", at_kernel(*kernel))]
    Unsupported {
        /// The kind of the device.
        device: &'static str,
        /// The name of the function.
        function: String,
        /// The position of the kernel in it; none if it is the function as a whole.
        kernel: Option<usize>,
        /// What is not supported: `elements of type bf16`, `a function without kernels`.
        what: String,
    },
    /// An arena could not be allocated.
    #[error("no memory for an arena of {bytes}")]
    OutOfMemory {
        /// Its size.
        bytes: Bytes,
    },
    /// A token id has no row in a table: the data do not fit the model.
    #[error("token {token} is outside a table of {rows} rows (function `{function}`{})", at_kernel(Some(*kernel)))]
    TokenOutOfRange {
        /// The name of the function.
        function: String,
        /// The position of the kernel in it.
        kernel: usize,
        /// The token id.
        token: u32,
        /// The rows of the table.
        rows: u64,
    },
    /// The machinery beneath the device failed.
    #[error("{0}")]
    Failed(String),
}

fn at_kernel(kernel: Option<usize>) -> String {
    kernel.map(|kernel| format!(", kernel {kernel}")).unwrap_or_default()
}
