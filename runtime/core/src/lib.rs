//! The runtime: executes verified programs on devices, feeds them data, and keeps their state.
//!
//! Data flows one way: a [`Verified`](pipec_program::Verified) program and a way to make devices become an [`Engine`];
//! [`Batches`] are opened from the program's data; [`train`](train::train) runs step after step, tells an
//! [`train::Observer`] and writes [`checkpoint`]s.
//!
//! What this crate deliberately does not know: models, schedules, plans; printing, signals, colours.
#![deny(unsafe_code)]

pub mod arena;
pub mod checkpoint;
#[cfg(any(test, feature = "corpus"))]
pub mod corpus;
pub mod data;
pub mod device;
pub mod engine;
pub mod reference;
mod shared;
pub mod splitmix;
pub mod state;
#[cfg(test)]
mod testing;
pub mod train;

pub use arena::{ALIGNMENT, Arena, Region, Touched};
pub use checkpoint::{CheckpointError, Progress};
pub use data::{Batches, DataError, Fed};
pub use device::{Compiled, Device, DeviceError, ScalarValue};
pub use engine::{At, Engine, EngineError, Options, StepInputs, StepOutput};
pub use reference::ReferenceDevice;
pub use train::{Checkpoints, Ending, Metrics, NotFinite, Observer, Run, TrainError, train};
