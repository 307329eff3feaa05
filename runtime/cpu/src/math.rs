//! Elementary functions on vectors, one polynomial each.
//!
//! Accuracy with fused multiply-add, over all finite f32 (measured by the tests against f64): [`exp`] 1 ulp, [`exp2`]
//! 1.5 ulp, [`sigmoid`] 2 ulp and [`tanh`], [`erf`] 2 ulp where the result is a normal number; portable code without
//! fused multiply-add may lose one more. What is not a number stays so; infinities give the limits.

use crate::simd::Simd;

/// Evaluates a polynomial by Horner's rule, highest coefficient first.
#[inline(always)]
fn polynomial<S: Simd, const N: usize>(simd: S, x: S::F, coefficients: [f32; N]) -> S::F {
    let mut result = simd.splat(coefficients[0]);
    for &coefficient in &coefficients[1..] {
        result = simd.mul_add(result, x, simd.splat(coefficient));
    }
    result
}

/// `e^x`; 0 below about -103.97, infinite above about 88.72.
///
/// `x = n ln 2 + f` with `|f| <= ln 2 / 2` by a two-part `ln 2`, and a minimax polynomial of degree 6 for `e^f`.
#[inline(always)]
pub(crate) fn exp<S: Simd>(simd: S, x: S::F) -> S::F {
    // In this order a value that is not a number survives the limits.
    let x = simd.min(simd.splat(89.0), simd.max(simd.splat(-105.0), x));
    let n = simd.round(simd.mul(x, simd.splat(std::f32::consts::LOG2_E)));
    let f = simd.neg_mul_add(n, simd.splat(0.693_145_75), x);
    let f = simd.neg_mul_add(n, simd.splat(1.428_606_8e-6), f);
    let power = polynomial(
        simd,
        f,
        [1.378_059_4e-3, 8.373_124_5e-3, 4.166_953_6e-2, 1.666_647_2e-1, 4.999_998_5e-1, 1.0, 1.0],
    );
    simd.scale(power, n)
}

/// `2^x`; 0 below -126 (results that are not normal are never made), infinite from 128 on.
#[inline(always)]
pub(crate) fn exp2<S: Simd>(simd: S, x: S::F) -> S::F {
    let tiny = simd.less(x, simd.splat(-126.0));
    let x = simd.min(simd.splat(128.0), simd.max(simd.splat(-126.0), x));
    let n = simd.round(x);
    let f = simd.sub(x, n);
    let power = polynomial(
        simd,
        f,
        [1.545_316_3e-4, 1.339_086_3e-3, 9.618_083e-3, 5.550_357e-2, 2.402_265e-1, 6.931_472e-1, 1.0],
    );
    simd.select(tiny, simd.splat(0.0), simd.scale(power, n))
}

/// `1 / (1 + e^-x)`
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(simd: S, x: S::F) -> S::F {
    let one = simd.splat(1.0);
    simd.div(one, simd.add(one, exp(simd, simd.sub(simd.splat(0.0), x))))
}

/// The hyperbolic tangent: an odd polynomial below 0.6, `1 - 2 / (e^2x + 1)` above.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(simd: S, x: S::F) -> S::F {
    let magnitude = simd.abs(x);
    let square = simd.mul(x, x);
    let tail = polynomial(simd, square, [1.573_944e-2, -5.230_256e-2, 1.331_524_7e-1, -3.333_276_8e-1, 0.0]);
    let small = simd.mul_add(tail, x, x);
    let one = simd.splat(1.0);
    let double = simd.add(magnitude, magnitude);
    let large = simd.sub(one, simd.div(simd.splat(2.0), simd.add(exp(simd, double), one)));
    let is_small = simd.less(magnitude, simd.splat(0.599_609_4));
    simd.select(is_small, small, simd.copy_sign(large, x))
}

/// The error function: an odd polynomial below 475/512, `1 - e^p(x)` above.
#[inline(always)]
pub(crate) fn erf<S: Simd>(simd: S, x: S::F) -> S::F {
    let magnitude = simd.abs(x);
    let square = simd.mul(x, x);
    let tail = polynomial(
        simd,
        square,
        [-5.967_617e-4, 4.991_194_2e-3, -2.676_813_5e-2, 1.128_199_25e-1, -3.761_253_4e-1, 1.283_791_7e-1],
    );
    let small = simd.mul_add(tail, x, x);

    // Beyond 4 the result is 1; the limit keeps the powers finite.
    let t = simd.min(simd.splat(4.0), magnitude);
    let s = simd.mul(t, t);
    let r = simd.mul_add(simd.splat(-1.728_534_7e-5), t, simd.splat(3.831_971_3e-4));
    let u = simd.mul_add(simd.splat(-3.883_964_4e-3), t, simd.splat(2.425_462_2e-2));
    let r = simd.mul_add(r, s, u);
    let r = simd.mul_add(r, t, simd.splat(-1.067_778_8e-1));
    let r = simd.mul_add(r, t, simd.splat(-6.348_467e-1));
    let r = simd.mul_add(r, t, simd.splat(-1.287_175_1e-1));
    let r = simd.mul_add(r, t, simd.sub(simd.splat(0.0), t));
    let large = simd.copy_sign(simd.sub(simd.splat(1.0), exp(simd, r)), x);
    let is_small = simd.less(magnitude, simd.splat(0.927_734_4));
    simd.select(is_small, small, large)
}
