//! Vectors of f32 in the widest registers the processor has, chosen once when a device starts.
//!
//! A kernel is written once, generic over [`Simd`], and compiled for AVX-512, AVX2 with FMA and plain code by the
//! [`kernels!`](crate::simd::kernels) macro. The value of a `Simd` type is a proof that its instructions exist: only
//! [`InstructionSet`] makes one, after asking the processor. That is what makes the methods safe to call.
//!
//! Invariants: every instruction set computes the same sequence of operations on other lane counts, so results of one
//! machine repeat bit for bit, but results of two instruction sets may differ in the last place. Lane sums add in a
//! fixed order.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// An instruction set that this processor has.
#[derive(Clone, Copy, Debug)]
pub enum InstructionSet {
    /// 16 lanes, 32 registers.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    /// 8 lanes with fused multiply-add, 16 registers.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// 8 lanes of whatever the target of the build has.
    Portable(Portable),
}

impl InstructionSet {
    /// The best one of this processor.
    pub fn detect() -> Self {
        Self::available()[0]
    }

    /// All of this processor, best first.
    pub fn available() -> Vec<Self> {
        let mut sets = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            let fma = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            if fma && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512dq") {
                sets.push(Self::Avx512(Avx512(())));
            }
            if fma {
                sets.push(Self::Avx2(Avx2(())));
            }
        }
        sets.push(Self::Portable(Portable(())));
        sets
    }

    /// Its name for reports.
    pub fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => "avx512",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "avx2",
            Self::Portable(_) => "portable",
        }
    }
}

/// AVX-512F and DQ, with AVX2 and FMA. A value exists only where the processor has them.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub struct Avx512(());

/// AVX2 with FMA. A value exists only where the processor has them.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

/// Plain code; the compiler vectorises it for the target of the build.
#[derive(Clone, Copy, Debug)]
pub struct Portable(());

/// The operations that kernels use. `a`, `b`, `c` are vectors of [`Simd::LANES`] f32.
pub(crate) trait Simd: Copy + Send + Sync {
    /// A vector of f32.
    type F: Copy;
    /// One truth value per lane.
    type M: Copy;
    /// As many f64 as `F` has f32.
    type D: Copy;
    /// Lanes of a vector; a power of two, at most 16.
    const LANES: usize;
    /// Whether there are 32 vector registers (16 otherwise).
    const MANY_REGISTERS: bool;

    /// The same number in every lane.
    fn splat(self, x: f32) -> Self::F;
    /// The first lanes of a slice; panics when it is shorter.
    fn load(self, from: &[f32]) -> Self::F;
    /// A slice of fewer than `LANES` elements, zero in the lanes beyond it.
    fn load_partial(self, from: &[f32]) -> Self::F;
    /// Stores all lanes at the start of a slice; panics when it is shorter.
    fn store(self, a: Self::F, to: &mut [f32]);
    /// Stores the first lanes into a slice of fewer than `LANES` elements.
    fn store_partial(self, a: Self::F, to: &mut [f32]);
    /// Loads from a pointer.
    ///
    /// # Safety
    /// `LANES` elements from `from` on are readable.
    unsafe fn load_at(self, from: *const f32) -> Self::F;
    /// Stores to a pointer.
    ///
    /// # Safety
    /// `LANES` elements from `to` on are writable.
    unsafe fn store_at(self, a: Self::F, to: *mut f32);

    /// `a + b`
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a b`
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a b + c`, with one rounding where the processor has it.
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `c - a b`, with one rounding where the processor has it.
    fn neg_mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `a > b ? a : b`, so `b` when either is not a number.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a < b ? a : b`, so `b` when either is not a number.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// The square root.
    fn sqrt(self, a: Self::F) -> Self::F;
    /// The nearest whole number, ties to even.
    fn round(self, a: Self::F) -> Self::F;
    /// `a 2^n` for whole `n` in [-150, 128] and `|a|` in [0.5, 2]; results below the normal range may be zero.
    fn scale(self, a: Self::F, n: Self::F) -> Self::F;
    /// `|a|`
    fn abs(self, a: Self::F) -> Self::F;
    /// The magnitude of `a` with the sign of `sign`.
    fn copy_sign(self, a: Self::F, sign: Self::F) -> Self::F;
    /// `a < b`
    fn less(self, a: Self::F, b: Self::F) -> Self::M;
    /// `mask ? a : b`
    fn select(self, mask: Self::M, a: Self::F, b: Self::F) -> Self::F;
    /// The sum of the lanes: halves are added until one lane is left.
    fn sum(self, a: Self::F) -> f32;
    /// The largest lane, by halves.
    fn max_lane(self, a: Self::F) -> f32;
    /// Exchanges neighbours: lane 2 i with lane 2 i + 1.
    fn swap_pairs(self, a: Self::F) -> Self::F;

    /// Zero in every f64 lane.
    fn wide_zero(self) -> Self::D;
    /// `sum + a a` in f64; the product of two f32 is exact in f64.
    fn wide_add_square(self, sum: Self::D, a: Self::F) -> Self::D;
    /// `sum + other` in f64.
    fn wide_add(self, sum: Self::D, other: Self::D) -> Self::D;
    /// The sum of the f64 lanes, by halves.
    fn wide_sum(self, a: Self::D) -> f64;
}

#[cfg(target_arch = "x86_64")]
impl Simd for Avx512 {
    type F = __m512;
    type M = __mmask16;
    type D = [__m512d; 2];
    const LANES: usize = 16;
    const MANY_REGISTERS: bool = true;

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        // SAFETY: `self` proves AVX-512F; the instruction touches no memory. The same holds for every block below
        // without a reason of its own.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    fn load(self, from: &[f32]) -> __m512 {
        let from = &from[..16];
        // SAFETY: the slice holds 16 elements.
        unsafe { _mm512_loadu_ps(from.as_ptr()) }
    }
    #[inline(always)]
    fn load_partial(self, from: &[f32]) -> __m512 {
        debug_assert!(from.len() < 16);
        let mask = (1u32 << from.len().min(16)).wrapping_sub(1) as __mmask16;
        // SAFETY: lanes beyond the slice are masked off and not accessed.
        unsafe { _mm512_maskz_loadu_ps(mask, from.as_ptr()) }
    }
    #[inline(always)]
    fn store(self, a: __m512, to: &mut [f32]) {
        let to = &mut to[..16];
        // SAFETY: the slice holds 16 elements.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), a) }
    }
    #[inline(always)]
    fn store_partial(self, a: __m512, to: &mut [f32]) {
        debug_assert!(to.len() < 16);
        let mask = (1u32 << to.len().min(16)).wrapping_sub(1) as __mmask16;
        // SAFETY: lanes beyond the slice are masked off and not accessed.
        unsafe { _mm512_mask_storeu_ps(to.as_mut_ptr(), mask, a) }
    }
    #[inline(always)]
    unsafe fn load_at(self, from: *const f32) -> __m512 {
        // SAFETY: the caller promises 16 readable elements.
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store_at(self, a: __m512, to: *mut f32) {
        // SAFETY: the caller promises 16 writable elements.
        unsafe { _mm512_storeu_ps(to, a) }
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see `splat`.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see `splat`.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see `splat`.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see `splat`.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: see `splat`.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn neg_mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: see `splat`.
        unsafe { _mm512_fnmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see `splat`.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see `splat`.
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn sqrt(self, a: __m512) -> __m512 {
        // SAFETY: see `splat`.
        unsafe { _mm512_sqrt_ps(a) }
    }
    #[inline(always)]
    fn round(self, a: __m512) -> __m512 {
        // SAFETY: see `splat`.
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    fn scale(self, a: __m512, n: __m512) -> __m512 {
        // SAFETY: see `splat`.
        unsafe { _mm512_scalef_ps(a, n) }
    }
    #[inline(always)]
    fn abs(self, a: __m512) -> __m512 {
        // SAFETY: see `splat`.
        unsafe { _mm512_abs_ps(a) }
    }
    #[inline(always)]
    fn copy_sign(self, a: __m512, sign: __m512) -> __m512 {
        // SAFETY: see `splat`.
        unsafe {
            let mask = _mm512_set1_epi32(i32::MIN);
            // Bitwise `mask ? sign : a`.
            let bits =
                _mm512_ternarylogic_epi32::<0xCA>(mask, _mm512_castps_si512(sign), _mm512_castps_si512(a));
            _mm512_castsi512_ps(bits)
        }
    }
    #[inline(always)]
    fn less(self, a: __m512, b: __m512) -> __mmask16 {
        // SAFETY: see `splat`.
        unsafe { _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b) }
    }
    #[inline(always)]
    fn select(self, mask: __mmask16, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see `splat`.
        unsafe { _mm512_mask_blend_ps(mask, b, a) }
    }
    #[inline(always)]
    fn sum(self, a: __m512) -> f32 {
        // SAFETY: see `splat`; AVX2 is part of the proof.
        unsafe {
            let half = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            Avx2(()).sum(half)
        }
    }
    #[inline(always)]
    fn max_lane(self, a: __m512) -> f32 {
        // SAFETY: see `splat`; AVX2 is part of the proof.
        unsafe {
            let half = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            Avx2(()).max_lane(half)
        }
    }
    #[inline(always)]
    fn swap_pairs(self, a: __m512) -> __m512 {
        // SAFETY: see `splat`.
        unsafe { _mm512_permute_ps::<0b10_11_00_01>(a) }
    }
    #[inline(always)]
    fn wide_zero(self) -> [__m512d; 2] {
        // SAFETY: see `splat`.
        unsafe { [_mm512_setzero_pd(); 2] }
    }
    #[inline(always)]
    fn wide_add_square(self, sum: [__m512d; 2], a: __m512) -> [__m512d; 2] {
        // SAFETY: see `splat`.
        unsafe {
            let low = _mm512_cvtps_pd(_mm512_castps512_ps256(a));
            let high = _mm512_cvtps_pd(_mm512_extractf32x8_ps::<1>(a));
            [_mm512_fmadd_pd(low, low, sum[0]), _mm512_fmadd_pd(high, high, sum[1])]
        }
    }
    #[inline(always)]
    fn wide_add(self, sum: [__m512d; 2], other: [__m512d; 2]) -> [__m512d; 2] {
        // SAFETY: see `splat`.
        unsafe { [_mm512_add_pd(sum[0], other[0]), _mm512_add_pd(sum[1], other[1])] }
    }
    #[inline(always)]
    fn wide_sum(self, a: [__m512d; 2]) -> f64 {
        // SAFETY: see `splat`; the array holds 8 elements.
        unsafe {
            let mut lanes = [0.0f64; 8];
            _mm512_storeu_pd(lanes.as_mut_ptr(), _mm512_add_pd(a[0], a[1]));
            sum_by_halves(lanes)
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Simd for Avx2 {
    type F = __m256;
    type M = __m256;
    type D = [__m256d; 2];
    const LANES: usize = 8;
    const MANY_REGISTERS: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        // SAFETY: `self` proves AVX2 and FMA; the instruction touches no memory. The same holds for every block below
        // without a reason of its own.
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    fn load(self, from: &[f32]) -> __m256 {
        let from = &from[..8];
        // SAFETY: the slice holds 8 elements.
        unsafe { _mm256_loadu_ps(from.as_ptr()) }
    }
    #[inline(always)]
    fn load_partial(self, from: &[f32]) -> __m256 {
        let mut lanes = [0.0; 8];
        for (lane, &x) in lanes.iter_mut().zip(from) {
            *lane = x;
        }
        self.load(&lanes)
    }
    #[inline(always)]
    fn store(self, a: __m256, to: &mut [f32]) {
        let to = &mut to[..8];
        // SAFETY: the slice holds 8 elements.
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), a) }
    }
    #[inline(always)]
    fn store_partial(self, a: __m256, to: &mut [f32]) {
        let mut lanes = [0.0; 8];
        self.store(a, &mut lanes);
        for (x, &lane) in to.iter_mut().zip(&lanes) {
            *x = lane;
        }
    }
    #[inline(always)]
    unsafe fn load_at(self, from: *const f32) -> __m256 {
        // SAFETY: the caller promises 8 readable elements.
        unsafe { _mm256_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store_at(self, a: __m256, to: *mut f32) {
        // SAFETY: the caller promises 8 writable elements.
        unsafe { _mm256_storeu_ps(to, a) }
    }
    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: see `splat`.
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: see `splat`.
        unsafe { _mm256_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: see `splat`.
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: see `splat`.
        unsafe { _mm256_div_ps(a, b) }
    }
    #[inline(always)]
    fn mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: see `splat`.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn neg_mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: see `splat`.
        unsafe { _mm256_fnmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: see `splat`.
        unsafe { _mm256_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: see `splat`.
        unsafe { _mm256_min_ps(a, b) }
    }
    #[inline(always)]
    fn sqrt(self, a: __m256) -> __m256 {
        // SAFETY: see `splat`.
        unsafe { _mm256_sqrt_ps(a) }
    }
    #[inline(always)]
    fn round(self, a: __m256) -> __m256 {
        // SAFETY: see `splat`.
        unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    fn scale(self, a: __m256, n: __m256) -> __m256 {
        // SAFETY: see `splat`.
        unsafe {
            // Two factors, because 2^128 and 2^-150 are no normal numbers but their halves are.
            let n = _mm256_cvtps_epi32(n);
            let half = _mm256_srai_epi32::<1>(n);
            let rest = _mm256_sub_epi32(n, half);
            let bias = _mm256_set1_epi32(127);
            let power = |n| _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n, bias)));
            _mm256_mul_ps(_mm256_mul_ps(a, power(half)), power(rest))
        }
    }
    #[inline(always)]
    fn abs(self, a: __m256) -> __m256 {
        // SAFETY: see `splat`.
        unsafe { _mm256_andnot_ps(_mm256_set1_ps(-0.0), a) }
    }
    #[inline(always)]
    fn copy_sign(self, a: __m256, sign: __m256) -> __m256 {
        // SAFETY: see `splat`.
        unsafe {
            let mask = _mm256_set1_ps(-0.0);
            _mm256_or_ps(_mm256_and_ps(mask, sign), _mm256_andnot_ps(mask, a))
        }
    }
    #[inline(always)]
    fn less(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: see `splat`.
        unsafe { _mm256_cmp_ps::<_CMP_LT_OQ>(a, b) }
    }
    #[inline(always)]
    fn select(self, mask: __m256, a: __m256, b: __m256) -> __m256 {
        // SAFETY: see `splat`.
        unsafe { _mm256_blendv_ps(b, a, mask) }
    }
    #[inline(always)]
    fn sum(self, a: __m256) -> f32 {
        // SAFETY: see `splat`.
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
    #[inline(always)]
    fn max_lane(self, a: __m256) -> f32 {
        // SAFETY: see `splat`.
        unsafe {
            let four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
    #[inline(always)]
    fn swap_pairs(self, a: __m256) -> __m256 {
        // SAFETY: see `splat`.
        unsafe { _mm256_permute_ps::<0b10_11_00_01>(a) }
    }
    #[inline(always)]
    fn wide_zero(self) -> [__m256d; 2] {
        // SAFETY: see `splat`.
        unsafe { [_mm256_setzero_pd(); 2] }
    }
    #[inline(always)]
    fn wide_add_square(self, sum: [__m256d; 2], a: __m256) -> [__m256d; 2] {
        // SAFETY: see `splat`.
        unsafe {
            let low = _mm256_cvtps_pd(_mm256_castps256_ps128(a));
            let high = _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(a));
            [_mm256_fmadd_pd(low, low, sum[0]), _mm256_fmadd_pd(high, high, sum[1])]
        }
    }
    #[inline(always)]
    fn wide_add(self, sum: [__m256d; 2], other: [__m256d; 2]) -> [__m256d; 2] {
        // SAFETY: see `splat`.
        unsafe { [_mm256_add_pd(sum[0], other[0]), _mm256_add_pd(sum[1], other[1])] }
    }
    #[inline(always)]
    fn wide_sum(self, a: [__m256d; 2]) -> f64 {
        // SAFETY: see `splat`; the array holds 4 elements.
        unsafe {
            let mut lanes = [0.0f64; 4];
            _mm256_storeu_pd(lanes.as_mut_ptr(), _mm256_add_pd(a[0], a[1]));
            sum_by_halves(lanes)
        }
    }
}

/// Applies `f` to every lane.
#[inline(always)]
fn each(a: [f32; 8], f: impl Fn(f32) -> f32) -> [f32; 8] {
    a.map(f)
}

/// Applies `f` to every pair of lanes.
#[inline(always)]
fn pairs(a: [f32; 8], b: [f32; 8], f: impl Fn(f32, f32) -> f32) -> [f32; 8] {
    std::array::from_fn(|lane| f(a[lane], b[lane]))
}

/// Adds the upper half to the lower until one element is left; the length is a power of two.
#[inline(always)]
fn sum_by_halves<const N: usize>(mut lanes: [f64; N]) -> f64 {
    let mut half = N / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
        half /= 2;
    }
    lanes[0]
}

impl Simd for Portable {
    type F = [f32; 8];
    type M = [bool; 8];
    type D = [f64; 8];
    const LANES: usize = 8;
    const MANY_REGISTERS: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> [f32; 8] {
        [x; 8]
    }
    #[inline(always)]
    fn load(self, from: &[f32]) -> [f32; 8] {
        let from = &from[..8];
        std::array::from_fn(|lane| from[lane])
    }
    #[inline(always)]
    fn load_partial(self, from: &[f32]) -> [f32; 8] {
        let mut lanes = [0.0; 8];
        for (lane, &x) in lanes.iter_mut().zip(from) {
            *lane = x;
        }
        lanes
    }
    #[inline(always)]
    fn store(self, a: [f32; 8], to: &mut [f32]) {
        to[..8].copy_from_slice(&a);
    }
    #[inline(always)]
    fn store_partial(self, a: [f32; 8], to: &mut [f32]) {
        for (x, &lane) in to.iter_mut().zip(&a) {
            *x = lane;
        }
    }
    #[inline(always)]
    unsafe fn load_at(self, from: *const f32) -> [f32; 8] {
        // SAFETY: the caller promises 8 readable elements; f32 and [f32; 8] have the same alignment.
        unsafe { *from.cast::<[f32; 8]>() }
    }
    #[inline(always)]
    unsafe fn store_at(self, a: [f32; 8], to: *mut f32) {
        // SAFETY: the caller promises 8 writable elements; f32 and [f32; 8] have the same alignment.
        unsafe { *to.cast::<[f32; 8]>() = a }
    }
    #[inline(always)]
    fn add(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        pairs(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        pairs(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        pairs(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        pairs(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn mul_add(self, a: [f32; 8], b: [f32; 8], c: [f32; 8]) -> [f32; 8] {
        // Two roundings: `f32::mul_add` is a slow library call where the target has no such instruction.
        std::array::from_fn(|lane| a[lane] * b[lane] + c[lane])
    }
    #[inline(always)]
    fn neg_mul_add(self, a: [f32; 8], b: [f32; 8], c: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|lane| c[lane] - a[lane] * b[lane])
    }
    #[inline(always)]
    fn max(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        pairs(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        pairs(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn sqrt(self, a: [f32; 8]) -> [f32; 8] {
        each(a, f32::sqrt)
    }
    #[inline(always)]
    fn round(self, a: [f32; 8]) -> [f32; 8] {
        // Adding 1.5 * 2^23 leaves no fraction bits; `f32::round_ties_even` may be a library call. Larger numbers and
        // those that are not numbers stay as they are.
        const MAGIC: f32 = 12_582_912.0;
        each(a, |a| if a.abs() < 4_194_304.0 { (a + MAGIC) - MAGIC } else { a })
    }
    #[inline(always)]
    fn scale(self, a: [f32; 8], n: [f32; 8]) -> [f32; 8] {
        let power = |n: i32| f32::from_bits((n.wrapping_add(127) as u32) << 23);
        pairs(a, n, |a, n| {
            let n = n as i32;
            let half = n >> 1;
            a * power(half) * power(n - half)
        })
    }
    #[inline(always)]
    fn abs(self, a: [f32; 8]) -> [f32; 8] {
        each(a, f32::abs)
    }
    #[inline(always)]
    fn copy_sign(self, a: [f32; 8], sign: [f32; 8]) -> [f32; 8] {
        pairs(a, sign, f32::copysign)
    }
    #[inline(always)]
    fn less(self, a: [f32; 8], b: [f32; 8]) -> [bool; 8] {
        std::array::from_fn(|lane| a[lane] < b[lane])
    }
    #[inline(always)]
    fn select(self, mask: [bool; 8], a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|lane| if mask[lane] { a[lane] } else { b[lane] })
    }
    #[inline(always)]
    fn sum(self, a: [f32; 8]) -> f32 {
        let four: [f32; 4] = std::array::from_fn(|lane| a[lane] + a[lane + 4]);
        (four[0] + four[2]) + (four[1] + four[3])
    }
    #[inline(always)]
    fn max_lane(self, a: [f32; 8]) -> f32 {
        a.into_iter().fold(f32::NEG_INFINITY, |largest, x| if x > largest { x } else { largest })
    }
    #[inline(always)]
    fn swap_pairs(self, a: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|lane| a[lane ^ 1])
    }
    #[inline(always)]
    fn wide_zero(self) -> [f64; 8] {
        [0.0; 8]
    }
    #[inline(always)]
    fn wide_add_square(self, sum: [f64; 8], a: [f32; 8]) -> [f64; 8] {
        std::array::from_fn(|lane| sum[lane] + f64::from(a[lane]) * f64::from(a[lane]))
    }
    #[inline(always)]
    fn wide_add(self, sum: [f64; 8], other: [f64; 8]) -> [f64; 8] {
        std::array::from_fn(|lane| sum[lane] + other[lane])
    }
    #[inline(always)]
    fn wide_sum(self, a: [f64; 8]) -> f64 {
        sum_by_halves(a)
    }
}

/// The transpose of a 4 × 4 block, in registers.
#[inline(always)]
pub(crate) fn transpose(rows: [[f32; 4]; 4]) -> [[f32; 4]; 4] {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has SSE; loads and stores are of whole arrays.
    unsafe {
        let [mut a, mut b, mut c, mut d] = rows.map(|row| _mm_loadu_ps(row.as_ptr()));
        _MM_TRANSPOSE4_PS(&mut a, &mut b, &mut c, &mut d);
        [a, b, c, d].map(|column| {
            let mut lanes = [0.0; 4];
            _mm_storeu_ps(lanes.as_mut_ptr(), column);
            lanes
        })
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::array::from_fn(|column| std::array::from_fn(|row| rows[row][column]))
}

/// Defines functions once for all instruction sets: `fn name<S>(simd, ...)` becomes `fn name(set, ...)`, which calls
/// the body compiled for the instruction set at hand.
macro_rules! kernels {
    ($(
        $(#[$attribute:meta])*
        $visibility:vis fn $name:ident<$S:ident $(, const $C:ident: $C_type:ty)*>(
            $simd:ident $(, $argument:ident: $type:ty)* $(,)?
        ) $(-> $result:ty)? $body:block
    )*) => {$(
        $(#[$attribute])*
        #[allow(clippy::too_many_arguments)]
        $visibility fn $name<$(const $C: $C_type),*>(
            set: $crate::simd::InstructionSet $(, $argument: $type)*
        ) $(-> $result)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments)]
            fn body<$S: $crate::simd::Simd $(, const $C: $C_type)*>(
                $simd: $S $(, $argument: $type)*
            ) $(-> $result)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512dq,avx2,fma")]
            #[allow(clippy::too_many_arguments)]
            fn avx512<$(const $C: $C_type),*>(
                simd: $crate::simd::Avx512 $(, $argument: $type)*
            ) $(-> $result)? {
                body::<_ $(, $C)*>(simd $(, $argument)*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            #[allow(clippy::too_many_arguments)]
            fn avx2<$(const $C: $C_type),*>(
                simd: $crate::simd::Avx2 $(, $argument: $type)*
            ) $(-> $result)? {
                body::<_ $(, $C)*>(simd $(, $argument)*)
            }

            match set {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the value proves that the processor has the features.
                $crate::simd::InstructionSet::Avx512(simd) => unsafe {
                    avx512::<$($C),*>(simd $(, $argument)*)
                },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the value proves that the processor has the features.
                $crate::simd::InstructionSet::Avx2(simd) => unsafe { avx2::<$($C),*>(simd $(, $argument)*) },
                $crate::simd::InstructionSet::Portable(simd) => body::<_ $(, $C)*>(simd $(, $argument)*),
            }
        }
    )*};
}
pub(crate) use kernels;
