//! Element types and shapes of tensors.

use crate::units::Bytes;
use std::fmt;

/// The type of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64: loss sums and squared norms.
    F64,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16.
    BF16,
    /// Token ids.
    U32,
}

impl DType {
    /// All element types, in the order of their names in the documentation.
    pub const ALL: [Self; 5] = [Self::F32, Self::F64, Self::F16, Self::BF16, Self::U32];

    /// The size of one element.
    pub fn bytes(self) -> Bytes {
        match self {
            Self::F16 | Self::BF16 => Bytes(2),
            Self::F32 | Self::U32 => Bytes(4),
            Self::F64 => Bytes(8),
        }
    }

    /// The spelling in `.pipe` and `.pprog` text.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::U32 => "u32",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The extents of a tensor, outermost first; row-major and contiguous. The empty shape is a single element.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shape(pub Vec<u64>);

impl Shape {
    /// The number of elements, saturating.
    pub fn elements(&self) -> u64 {
        self.0.iter().fold(1, |product, &extent| product.saturating_mul(extent))
    }

    /// The innermost extent; 1 for the empty shape.
    pub fn last(&self) -> u64 {
        self.0.last().copied().unwrap_or(1)
    }

    /// The product of all extents but the innermost, saturating: the rows of the tensor seen as a matrix.
    pub fn rows(&self) -> u64 {
        let outer = self.0.len().saturating_sub(1);
        self.0[..outer].iter().fold(1, |product, &extent| product.saturating_mul(extent))
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (position, extent) in self.0.iter().enumerate() {
            if position > 0 {
                f.write_str(",")?;
            }
            write!(f, "{extent}")?;
        }
        f.write_str("]")
    }
}

/// Element type and shape, printed `f32[512,256]`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TensorType {
    /// The type of one element.
    pub dtype: DType,
    /// The extents.
    pub shape: Shape,
}

impl TensorType {
    /// A tensor type from its parts.
    pub fn new(dtype: DType, extents: &[u64]) -> Self {
        Self { dtype, shape: Shape(extents.to_vec()) }
    }

    /// The size of the tensor, saturating.
    pub fn bytes(&self) -> Bytes {
        self.dtype.bytes() * self.shape.elements()
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}
