//! What things cost: operations and memory traffic of every op, kernel and function, and the time that follows from
//! them on a device.
//!
//! [`Cost`] is a fact of a function alone. [`Costs`] is a table of times for one program, either by the roofline of its
//! devices or from a [`Profile`] that was measured; the simulator reads nothing else.
//!
//! What this module deliberately does not do: measure, read files, or guess efficiencies. The roofline is a lower bound
//! of the time, and says so by its name.

mod op;
mod profile;
mod table;

pub use op::op;
pub use profile::{DeviceProfile, FunctionProfile, Profile, ProfileError};
pub use table::Costs;

use crate::function::{Body, Function, Value};
use crate::id::{IdVec, ValueId};
use crate::kernel::Kernel;
use crate::units::{Bytes, Flops};
use std::iter::Sum;
use std::ops::Add;

/// Operations and memory traffic of some work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Floating-point operations; a multiply-add counts two, a transcendental function one, a comparison none.
    pub flops: Flops,
    /// Bytes that move between memory and the processor when every operand is read once and every result is written
    /// once (and read once, where the op adds to it).
    pub traffic: Bytes,
}

impl Add for Cost {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self { flops: self.flops + other.flops, traffic: self.traffic + other.traffic }
    }
}

impl Sum for Cost {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::default(), Add::add)
    }
}

/// The cost of a kernel over the values of its function. Operands that the values lack cost nothing; the verifier
/// refuses such a kernel.
pub fn kernel(kernel: &Kernel, values: &IdVec<ValueId, Value>) -> Cost {
    let mut seen: Vec<ValueId> = Vec::new();
    let inputs: Vec<_> =
        kernel.inputs.iter().filter_map(|&id| values.get(id)).map(|value| &value.ty).collect();
    let outputs: Vec<_> = kernel
        .outputs
        .iter()
        .filter_map(|output| values.get(output.value).map(|value| (&value.ty, output.accumulate)))
        .collect();
    let mut cost = op(&kernel.op, &inputs, &outputs);
    // An operand that is named twice is read once.
    for &id in &kernel.inputs {
        if seen.contains(&id) {
            cost.traffic -= values.get(id).map(|value| value.ty.bytes()).unwrap_or_default();
        } else {
            seen.push(id);
        }
    }
    cost
}

/// The cost of one call of a function: the sum over its kernels, or what an abstract function states.
pub fn function(function: &Function) -> Cost {
    match &function.body {
        Body::Kernels { values, kernels } => kernels.iter().map(|each| kernel(each, values)).sum(),
        &Body::Abstract { flops, traffic } => Cost { flops, traffic },
    }
}
