//! The CPU device: f32 training kernels on one or more threads.
//!
//! A function is compiled once into a list of bound kernels; running it allocates nothing. Matrix products and
//! attention share one register block ([`microkernel`]); norms, softmax, loss, rotary positions and the optimizer are
//! loops over vectors ([`simd`]); element-wise expressions become machine code ([`elementwise`]).
//!
//! Invariants: results depend on the program and on the instruction set, never on the number of threads, the time or
//! the addresses. Memory beyond the arenas is bounded when functions are compiled ([`pipec_runtime::Device::scratch`]).
//!
//! What it deliberately does not do: f16 and bf16 (refused when a function is compiled), ordering of kernels, transfers.

mod attention;
mod bind;
mod device;
mod elementwise;
mod embedding;
mod gemm;
mod lanes;
mod math;
mod matrix;
mod microkernel;
mod norm;
mod optimizer;
mod parallel;
mod rope;
mod simd;
mod softmax;

pub use device::CpuDevice;
pub use simd::InstructionSet;
