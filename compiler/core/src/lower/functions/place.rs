//! Places of temporaries in a workspace: blocks that live at the same time share no byte.
//!
//! Blocks are placed one by one, each in the smallest gap that holds it between the blocks placed before it that live
//! at the same time. Which block comes first decides how well that goes, so a few orders are tried and the best is
//! taken; for the functions of a stage it is nearly always the bound itself, because pieces repeat.

use super::layout::ALIGNMENT;
use pipec_program::Bytes;

/// Bytes that are needed from one kernel to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// The size.
    pub(super) bytes: Bytes,
    /// The kernel that writes it first.
    pub(super) first: usize,
    /// The last kernel that uses it, not before the first.
    pub(super) last: usize,
}

impl Block {
    fn size(&self) -> u64 {
        self.bytes.align_up(ALIGNMENT).0
    }
}

/// The place of each block, and the size of all.
pub(super) fn pack(blocks: &[Block]) -> (Vec<Bytes>, Bytes) {
    let live = live_bytes(blocks);
    let bound = live.iter().copied().max().unwrap_or(0);
    // The most bytes that are live together with a block.
    let pressure = |block: &Block| live[block.first..=block.last].iter().copied().max().unwrap_or(0);
    let span = |block: &Block| block.last - block.first;
    let orders: [&dyn Fn(&Block) -> (u64, u64); 4] = [
        &|block| (block.size(), span(block) as u64),
        &|block| (span(block) as u64, block.size()),
        &|block| (pressure(block), block.size()),
        &|block| (u64::MAX - block.first as u64, block.size()),
    ];
    let mut best: Option<(Vec<Bytes>, Bytes)> = None;
    for order in orders {
        let mut sequence: Vec<usize> = (0..blocks.len()).collect();
        sequence.sort_by_cached_key(|&block| (std::cmp::Reverse(order(&blocks[block])), block));
        let packed = pack_in_order(blocks, &sequence, live.len());
        if best.as_ref().is_none_or(|best| packed.1 < best.1) {
            best = Some(packed);
        }
        if best.as_ref().is_some_and(|best| best.1.0 <= bound) {
            break;
        }
    }
    best.unwrap_or_default()
}

/// The bytes that are live at each kernel.
pub(super) fn live_bytes(blocks: &[Block]) -> Vec<u64> {
    let end = blocks.iter().map(|block| block.last + 1).max().unwrap_or(0);
    let mut changes = vec![(0u64, 0u64); end + 1];
    for block in blocks {
        changes[block.first].0 += block.size();
        changes[block.last + 1].1 += block.size();
    }
    let mut live = 0;
    changes[..end]
        .iter()
        .map(|(begins, ends)| {
            live = live + begins - ends;
            live
        })
        .collect()
}

fn pack_in_order(blocks: &[Block], sequence: &[usize], kernels: usize) -> (Vec<Bytes>, Bytes) {
    let mut places: Vec<u64> = vec![0; blocks.len()];
    // The placed blocks that live at each kernel.
    let mut living: Vec<Vec<usize>> = vec![Vec::new(); kernels];
    let mut end = 0;
    for &index in sequence {
        let block = &blocks[index];
        let mut taken: Vec<(u64, u64)> = living[block.first..=block.last]
            .iter()
            .flatten()
            .map(|&other| (places[other], places[other] + blocks[other].size()))
            .collect();
        taken.sort_unstable();
        taken.dedup();
        // The smallest gap that is large enough; after the last block if there is none.
        let (mut free_from, mut smallest): (u64, Option<(u64, u64)>) = (0, None);
        for (from, to) in taken {
            if from >= free_from + block.size() {
                let gap = from - free_from;
                if smallest.is_none_or(|(size, _)| gap < size) {
                    smallest = Some((gap, free_from));
                }
            }
            free_from = free_from.max(to);
        }
        let place = smallest.map_or(free_from, |(_, place)| place);
        places[index] = place;
        end = end.max(place + block.size());
        for kernel in &mut living[block.first..=block.last] {
            kernel.push(index);
        }
    }
    (places.into_iter().map(Bytes).collect(), Bytes(end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn block(bytes: u64, first: usize, last: usize) -> Block {
        Block { bytes: Bytes(bytes), first, last }
    }

    #[test]
    fn nothing_needs_nothing() {
        assert_eq!(pack(&[]), (vec![], Bytes::ZERO));
    }

    #[test]
    fn bytes_are_used_again() {
        // The second block takes the place of the first, the third stands beside both.
        let (places, end) = pack(&[block(64, 0, 1), block(64, 2, 3), block(100, 0, 3)]);
        assert_eq!(end, Bytes(192));
        assert_eq!(places[0], places[1]);
    }

    proptest! {
        #[test]
        fn living_blocks_share_no_byte(
            blocks in prop::collection::vec((1u64..1000, 0usize..40, 0usize..6), 0..60)
        ) {
            let blocks: Vec<Block> =
                blocks.into_iter().map(|(bytes, first, span)| block(bytes, first, first + span)).collect();
            let (places, end) = pack(&blocks);
            for (a, block) in blocks.iter().enumerate() {
                prop_assert_eq!(places[a].0 % ALIGNMENT, 0);
                prop_assert!(places[a] + block.bytes <= end);
                for (b, other) in blocks.iter().enumerate().skip(a + 1) {
                    let together = block.first <= other.last && other.first <= block.last;
                    let apart = places[a].0 + block.size() <= places[b].0
                        || places[b].0 + other.size() <= places[a].0;
                    prop_assert!(!together || apart, "blocks {} and {}", a, b);
                }
            }
            prop_assert!(end.0 >= live_bytes(&blocks).into_iter().max().unwrap_or(0));
        }
    }
}
