//! Functions: straight-line kernel lists over byte regions, one per distinct (stage shape, pass, slice shape), or two of
//! these in a pair, called many times.
//!
//! A function sees a few *regions* (its [`Param`]s: the weights of a stage, the saved activations of a unit, a message,
//! a workspace) and names typed [`Value`]s inside them. So a call carries a handful of views however many layers a
//! stage has, and what one call reads and writes is known from the function alone.
//!
//! Invariants (checked by the verifier): values lie inside their region and are aligned; a value is read only after it
//! was written by an earlier kernel, or lies in a region that is readable on entry; every byte of a `Write` region that
//! a value covers is written; kernels obey the signature of their op.

use crate::id::{IdVec, ParamId, ScalarId, ValueId};
use crate::kernel::Kernel;
use crate::tensor::TensorType;
use crate::units::{Bytes, Flops};

/// A function.
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    /// A name for people: `forward_g0`, `backward_g3`, `update_g1`. Unique in its program.
    pub name: String,
    /// The byte regions of a call, in argument order.
    pub params: IdVec<ParamId, Param>,
    /// The scalars of a call, in argument order.
    pub scalars: IdVec<ScalarId, Scalar>,
    /// Where the backward half begins, in a function of a pair; none in all others.
    pub pair: Option<Halves>,
    /// What it does.
    pub body: Body,
}

/// How the regions and scalars of a function of a pair are divided: those before belong to the forward pass, these and
/// those after to the backward pass. Only workspace may serve both; no kernel takes anything of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Halves {
    /// The first region of the backward pass.
    pub region: ParamId,
    /// The first scalar of the backward pass.
    pub scalar: ScalarId,
}

/// What a function does.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// Kernels, executed in order.
    Kernels {
        /// The tensors in the regions.
        values: IdVec<ValueId, Value>,
        /// The kernels in order of execution.
        kernels: Vec<Kernel>,
    },
    /// Costs without kernels: such a program verifies and simulates but does not run.
    Abstract {
        /// The operations of one call.
        flops: Flops,
        /// The bytes that one call moves between memory and the processor.
        traffic: Bytes,
    },
}

/// A region parameter: some bytes of a buffer, given by a view at each call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// A name for people: `weights`, `saved`, `input`.
    pub name: String,
    /// The size of the region.
    pub bytes: Bytes,
    /// What a call does with it.
    pub access: Access,
}

/// What a call does with the bytes of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// Reads bytes that were written before; writes nothing.
    Read,
    /// Writes every byte; what was there before is not read.
    Write,
    /// Reads bytes that were written before and writes them.
    Update,
    /// Adds one gradient contribution to every byte range that its values cover: reads, adds, writes.
    Accumulate,
    /// Contents are undefined before and after: scratch of one call.
    Workspace,
}

impl Access {
    /// All accesses.
    pub const ALL: [Self; 5] = [Self::Read, Self::Write, Self::Update, Self::Accumulate, Self::Workspace];

    /// The spelling in `.pprog` text.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Update => "update",
            Self::Accumulate => "accumulate",
            Self::Workspace => "workspace",
        }
    }

    /// Whether a call reads what was in the region before.
    pub fn reads(self) -> bool {
        match self {
            Self::Read | Self::Update | Self::Accumulate => true,
            Self::Write | Self::Workspace => false,
        }
    }

    /// Whether a call changes the region.
    pub fn writes(self) -> bool {
        match self {
            Self::Write | Self::Update | Self::Accumulate | Self::Workspace => true,
            Self::Read => false,
        }
    }
}

/// A scalar parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scalar {
    /// A name for people: `learning_rate`, `step`, `loss_scale`, `seed`.
    pub name: String,
    /// The type of the argument.
    pub ty: ScalarType,
}

/// The type of a scalar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ScalarType {
    /// A real number, computed in f64 and rounded by the kernel that uses it.
    Real,
    /// A counter or seed.
    Integer,
}

impl ScalarType {
    /// The spelling in `.pprog` text.
    pub fn name(self) -> &'static str {
        match self {
            Self::Real => "real",
            Self::Integer => "integer",
        }
    }
}

/// A typed tensor inside a region. Two values may name the same bytes (a reshape, or an in-place kernel); bytes of a
/// workspace may serve several values one after another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// The region.
    pub param: ParamId,
    /// Where the tensor starts in the region; a multiple of the element size.
    pub offset: Bytes,
    /// Its type.
    pub ty: TensorType,
}
