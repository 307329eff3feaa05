//! What compiled expressions call: a function applied to a tile, in the instruction set of the processor.

use crate::math;
use crate::simd::{InstructionSet, kernels};
use pipec_program::{Part, UnaryOp};
use pipec_runtime::splitmix;

/// What the random numbers of a call depend on besides their site.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Random {
    pub(crate) seed: u64,
    /// Which elements of whole sequences the call has; none if it has all.
    pub(crate) runs: Option<Runs>,
}

/// Runs of elements that follow each other in whole sequences.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Runs {
    /// Elements of a run, at least 1.
    length: u64,
    /// The first element of the first run.
    first: u64,
    /// From the start of a run to that of the next.
    distance: u64,
}

impl Runs {
    /// The elements of a part in rows of so many columns.
    pub(crate) fn new(part: Part, columns: usize) -> Self {
        let elements = |rows: u64| rows * columns as u64;
        Self {
            length: elements(part.tokens).max(1),
            first: elements(part.first),
            distance: elements(part.whole),
        }
    }
}

/// What a compiled expression knows of its call.
#[repr(C)]
pub(super) struct Context {
    pub(super) set: InstructionSet,
    pub(super) random: Random,
    /// The flat index of the first element.
    pub(super) first: u64,
}

/// A function of a tile: context, result, operand, elements.
type Tile = unsafe extern "C" fn(*const Context, *mut f32, *const f32, usize);

/// The symbols that compiled code may call.
pub(super) fn symbols() -> [(&'static str, *const u8); 5] {
    [
        (name(UnaryOp::Exp), exp as Tile as *const u8),
        (name(UnaryOp::Tanh), tanh as Tile as *const u8),
        (name(UnaryOp::Erf), erf as Tile as *const u8),
        (name(UnaryOp::Sigmoid), sigmoid as Tile as *const u8),
        (RANDOM, random as unsafe extern "C" fn(*const Context, *mut f32, usize, usize, u64) as *const u8),
    ]
}

/// The symbol of a function.
pub(super) fn name(op: UnaryOp) -> &'static str {
    op.name()
}

/// The symbol of random numbers: context, result, offset of its first element in the call, elements, salt.
pub(super) const RANDOM: &str = "random";

macro_rules! tiles {
    ($($name:ident $kernel:ident)*) => {$(
        /// # Safety
        /// `context` is valid; `to` and `from` hold `len` elements and do not overlap.
        unsafe extern "C" fn $name(context: *const Context, to: *mut f32, from: *const f32, len: usize) {
            // SAFETY: the compiled code passes its own context, a tile of its stack frame to write, and another tile
            // or an input to read.
            let (set, to, from) = unsafe {
                ((*context).set, std::slice::from_raw_parts_mut(to, len), std::slice::from_raw_parts(from, len))
            };
            $kernel(set, to, from);
        }

        kernels! {
            fn $kernel<S>(simd, to: &mut [f32], from: &[f32]) {
                let whole = to.len().min(from.len()) / S::LANES * S::LANES;
                for (to, from) in to.chunks_exact_mut(S::LANES).zip(from.chunks_exact(S::LANES)) {
                    simd.store(math::$name(simd, simd.load(from)), to);
                }
                if whole < to.len() {
                    let rest = simd.load_partial(&from[whole..]);
                    simd.store_partial(math::$name(simd, rest), &mut to[whole..]);
                }
            }
        }
    )*};
}

tiles! {
    exp exp_tile
    tanh tanh_tile
    erf erf_tile
    sigmoid sigmoid_tile
}

/// # Safety
/// `context` is valid and `to` holds `len` elements.
unsafe extern "C" fn random(context: *const Context, to: *mut f32, offset: usize, len: usize, salt: u64) {
    // SAFETY: the compiled code passes its own context and a tile of its stack frame.
    let (context, to) = unsafe { (&*context, std::slice::from_raw_parts_mut(to, len)) };
    let state = splitmix::at(context.random.seed, salt);
    let mut first = context.first.wrapping_add(offset as u64);
    let Some(runs) = context.random.runs else {
        return random_tile(context.set, to, state, first);
    };
    let mut rest = to;
    while !rest.is_empty() {
        let (run, within) = (first / runs.length, first % runs.length);
        let here = rest.len().min(usize::try_from(runs.length - within).unwrap_or(usize::MAX));
        let (now, later) = rest.split_at_mut(here);
        random_tile(context.set, now, state, run * runs.distance + runs.first + within);
        first += here as u64;
        rest = later;
    }
}

kernels! {
    fn random_tile<S>(_simd, to: &mut [f32], state: u64, first: u64) {
        for (index, x) in to.iter_mut().enumerate() {
            let bits = (splitmix::at(state, first.wrapping_add(index as u64)) >> 40) as u32;
            // 24 bits convert exactly, also as a signed number, which vectors convert faster.
            *x = bits as i32 as f32 * (1.0 / 16_777_216.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error of a tile function against f64 in units in the last place of the result, over a range.
    fn worst(
        kernel: impl Fn(InstructionSet, &mut [f32], &[f32]),
        set: InstructionSet,
        exact: impl Fn(f64) -> f64,
        range: std::ops::Range<f32>,
    ) -> f64 {
        let count = 200_001;
        let step = (f64::from(range.end) - f64::from(range.start)) / f64::from(count - 1);
        let from: Vec<f32> =
            (0..count).map(|i| (f64::from(range.start) + step * f64::from(i)) as f32).collect();
        let mut to = vec![0.0; from.len()];
        kernel(set, &mut to, &from);
        let error = |(&x, &y): (&f32, &f32)| {
            let exact = exact(f64::from(x));
            let exponent = exact.abs().max(f64::from(f32::MIN_POSITIVE)).log2().floor();
            (f64::from(y) - exact).abs() / (exponent - 23.0).exp2()
        };
        from.iter().zip(&to).map(error).fold(0.0, f64::max)
    }

    fn erf_f64(x: f64) -> f64 {
        // The series of Abramowitz and Stegun 7.1.6.
        let size = x.abs().min(6.5);
        let (mut term, mut sum, mut n) = (size, size, 0.0);
        while term > sum * 1e-18 {
            n += 1.0;
            term *= 2.0 * size * size / (2.0 * n + 1.0);
            sum += term;
        }
        (2.0 / std::f64::consts::PI.sqrt() * (-size * size).exp() * sum).copysign(x)
    }

    #[test]
    fn functions_are_as_exact_as_stated() {
        for set in InstructionSet::available() {
            // Without fused multiply-add each step of a polynomial rounds twice.
            let slack = if matches!(set, InstructionSet::Portable(_)) { 1.0 } else { 0.0 };
            for range in [-87.0..88.7, -1.0..1.0, -1e-4..1e-4] {
                let error = worst(exp_tile, set, f64::exp, range.clone());
                assert!(error <= 1.0 + slack, "exp {} {range:?}: {error} ulp", set.name());
            }
            for range in [-87.0..88.0, -1.0..1.0] {
                let error = worst(sigmoid_tile, set, |x| 1.0 / (1.0 + (-x).exp()), range.clone());
                assert!(error <= 2.5 + slack, "sigmoid {} {range:?}: {error} ulp", set.name());
            }
            for range in [-10.0..10.0, -0.7..0.7, -1e-3..1e-3] {
                let error = worst(tanh_tile, set, f64::tanh, range.clone());
                assert!(error <= 2.0 + slack, "tanh {} {range:?}: {error} ulp", set.name());
                let error = worst(erf_tile, set, erf_f64, range.clone());
                assert!(error <= 2.0 + slack, "erf {} {range:?}: {error} ulp", set.name());
            }
        }
    }

    #[test]
    fn limits_and_what_is_not_a_number() {
        let from = [f32::NEG_INFINITY, f32::INFINITY, f32::NAN, 200.0, -200.0, 0.0];
        for set in InstructionSet::available() {
            let run = |kernel: fn(InstructionSet, &mut [f32], &[f32])| {
                let mut to = [0.0; 6];
                kernel(set, &mut to, &from);
                assert!(to[2].is_nan());
                [to[0], to[1], to[3], to[4], to[5]]
            };
            assert_eq!(run(exp_tile), [0.0, f32::INFINITY, f32::INFINITY, 0.0, 1.0]);
            assert_eq!(run(sigmoid_tile), [0.0, 1.0, 1.0, 0.0, 0.5]);
            assert_eq!(run(tanh_tile), [-1.0, 1.0, 1.0, -1.0, 0.0]);
            assert_eq!(run(erf_tile), [-1.0, 1.0, 1.0, -1.0, 0.0]);
        }
    }
}
