//! SplitMix64 (Steele, Lea and Flood 2014) as a counter: every output can be computed alone.
//!
//! All random numbers of a run are drawn by it: initial weights, dropout, shuffling and the data of the reference
//! formula. So a number depends on what it is for and never on the order in which devices ask.

/// The increment of the state, 2^64 divided by the golden ratio.
pub const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// The finaliser: a bijection of 64 bits.
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Output number `n`, from 0, of the generator that starts at `seed`.
pub fn at(seed: u64, n: u64) -> u64 {
    mix(seed.wrapping_add(n.wrapping_add(1).wrapping_mul(GOLDEN)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published outputs for the seed 0, as the reference framework's run lists them.
    #[test]
    fn outputs_of_seed_0() {
        let outputs = [0, 1, 2, 3].map(|n| at(0, n));
        assert_eq!(
            outputs,
            [16294208416658607535, 7960286522194355700, 487617019471545679, 17909611376780542444]
        );
    }
}
