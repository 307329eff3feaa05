//! The runtime: executes verified programs on devices, feeds them data, and keeps their state.
#![deny(unsafe_code)]

pub mod arena;
#[cfg(any(test, feature = "corpus"))]
pub mod corpus;
pub mod data;
pub mod device;
pub mod reference;
pub mod splitmix;

pub use arena::{ALIGNMENT, Arena, Region, Touched};
pub use data::{Batches, DataError, Fed};
pub use device::{Compiled, Device, DeviceError, ScalarValue};
pub use reference::ReferenceDevice;
