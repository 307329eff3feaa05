//! A random order of any number of things, computed place by place.

use crate::splitmix;

/// Rounds of the network; four suffice for a permutation that looks random (Luby and Rackoff 1988).
const ROUNDS: u64 = 4;

/// A permutation of `0 .. count`: a Feistel network on the least even number of bits that holds `count`, walked along
/// its cycle until it returns into the range (Black and Rogaway 2002).
pub(super) struct Permutation {
    count: u64,
    half: u32,
    key: u64,
}

impl Permutation {
    pub(super) fn new(count: u64, key: u64) -> Self {
        let bits = u64::BITS - count.saturating_sub(1).leading_zeros();
        Self { count, half: bits.div_ceil(2).max(1), key }
    }

    /// Where `place` goes; `place` must be below the count.
    pub(super) fn apply(&self, place: u64) -> u64 {
        let mut value = place;
        loop {
            value = self.network(value);
            if value < self.count || place >= self.count {
                return value;
            }
        }
    }

    fn network(&self, value: u64) -> u64 {
        let mask = (1u64 << self.half) - 1;
        let (mut left, mut right) = (value >> self.half, value & mask);
        for round in 0..ROUNDS {
            let mixed = splitmix::at(splitmix::at(self.key, round), right) & mask;
            (left, right) = (right, left ^ mixed);
        }
        (left << self.half) | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn every_number_occurs_once(count in 1u64..600, key: u64) {
            let permutation = Permutation::new(count, key);
            let images: BTreeSet<u64> = (0..count).map(|place| permutation.apply(place)).collect();
            prop_assert_eq!(images.len() as u64, count);
            prop_assert!(images.iter().all(|&image| image < count));
        }
    }

    #[test]
    fn orders_differ_by_key_and_from_the_identity() {
        let order = |key| (0..100).map(|place| Permutation::new(100, key).apply(place)).collect::<Vec<_>>();
        assert_ne!(order(1), order(2));
        assert_eq!(order(1), order(1));
        assert!(order(1).iter().enumerate().filter(|(place, image)| *place as u64 == **image).count() < 10);
    }
}
