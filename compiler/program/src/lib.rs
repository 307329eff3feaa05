//! The contract between compiler and runtime: a program is one training step as one instruction list per queue of
//! each device, self-contained, textual and verified.
//!
//! Data flows one way: a [`Program`] is built (by the compiler) or parsed (from `.pprog` text), becomes [`Verified`],
//! and only then is simulated or run.
//!
//! Invariants: ids index the tables of their program and print as they are spelled in the text (`d0`, `f3`, `b12`,
//! `c2`, `q1`, `t7`, `l4`, `r0`); everything a runtime needs stands in the program; nothing stands only in a comment.
//!
//! What this crate deliberately does not know: `.pipe` files, layers, schedules, e-graphs, devices that compute, files,
//! clocks and threads.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types)]

pub mod cost;
pub mod entity;
pub mod function;
pub mod id;
pub mod kernel;
pub mod memory;
pub mod program;
pub mod signature;
pub mod simulate;
pub mod tensor;
pub mod text;
pub mod units;
pub mod verify;

pub use cost::{Cost, Costs, Profile, ProfileError};
pub use entity::Entity;
pub use function::{Access, Body, Function, Halves, Param, Scalar, ScalarType, Value};
pub use id::{
    BufferId, ChannelId, DeviceId, FunctionId, GroupId, IdVec, LinkId, MicroBatch, ParamId, ParameterId,
    QueueId, ScalarId, Slice, StageId, ValueId,
};
pub use kernel::{
    AttentionShape, BinaryOp, Kernel, Mask, Node, Op, Output, Pairing, Part, RopeScaling, Seed, UnaryOp,
};
pub use program::{
    Argument, Batch, Buffer, Category, Channel, Data, Device, Feed, FeedKind, Group, Init, Instruction,
    LearningRate, Link, Pair, Parameter, Pass, Placed, Position, Program, Queue, QueueKind, Reading,
    ReadingKind, Shared, Space, StepInput, StepWork, TokenWidth, Tokenizer, Training, Unit, View, Work,
};
pub use simulate::{Event, Timeline, simulate};
pub use tensor::{DType, Shape, TensorType};
pub use units::{Bytes, BytesPerSecond, Flops, FlopsPerSecond, Nanos};
pub use verify::{Rule, Verified, Violation, Violations, verify};
