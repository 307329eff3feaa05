//! Places in an arena for bytes that are needed for a while.
//!
//! The task is dynamic storage allocation with all lifetimes known, which is NP-hard; no arena can be smaller than the
//! most bytes alive at once. Several simple strategies are tried, cheapest first, until one comes within
//! [`CLOSE_ENOUGH`] of that bound; otherwise the best of all wins. Each is deterministic.
//!
//! - *Slots*: spans of one size share a row of slots. Exact where all sizes peak together, as in steady pipelines, and
//!   views then cut the arena into few pieces.
//! - *First fit* in the order of starts, with a list of free ranges.
//! - *Search*: spans take the lowest place that is free for their lifetime, in turn: the largest first, the earliest, the
//!   largest times longest, or the longest. Then those that reach too high, or one that lies below them, change their
//!   turn at random (a fixed sequence of numbers), as long as no more bytes are too high for longer. It is not linear,
//!   and stops after a fixed number of comparisons.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Every span starts at a multiple of this many bytes.
const ALIGNMENT: u64 = 64;

/// A packing that wastes at most 1/64 of the arena is taken at once.
const CLOSE_ENOUGH: u64 = 64;

/// A packing that wastes at most 1/20 of the arena is not searched for with all means.
const GOOD_ENOUGH: u64 = 20;

/// The comparisons of spans with places that searches may make: how long they take is fixed, not measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// To come close enough.
    close: u64,
    /// To be good enough, where that has failed.
    good: u64,
}

impl Effort {
    /// The effort for all arenas of a program with so many spans together: linear, and a fixed amount.
    pub(super) fn new(spans: usize) -> Self {
        Self { close: 2_000_000 + 100 * spans as u64, good: 60_000_000 }
    }

    /// Takes an equal share of `left` shares.
    pub(super) fn take(&mut self, left: u64) -> Self {
        let share = Self { close: self.close / left.max(1), good: self.good / left.max(1) };
        (self.close, self.good) = (self.close - share.close, self.good - share.good);
        share
    }

    /// Returns what was not needed.
    pub(super) fn give_back(&mut self, rest: Self) {
        (self.close, self.good) = (self.close + rest.close, self.good + rest.good);
    }
}

/// Bytes that are needed from position `start` to position `end` inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) bytes: u64,
    pub(super) start: u32,
    pub(super) end: u32,
}

/// The place of every span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Packing {
    /// Where each span starts, in the order of the spans.
    pub(super) offsets: Vec<u64>,
    /// The end of the highest.
    pub(super) height: u64,
    /// The most bytes that any position needs: no packing is lower.
    pub(super) least: u64,
}

/// Places spans so that those whose lifetimes meet share no byte, in an arena that holds `fixed` bytes besides. Strategies
/// that are not linear take comparisons from `effort` while there are any.
pub(super) fn pack(spans: &[Span], fixed: u64, effort: &mut Effort) -> Packing {
    let spans: Vec<Span> =
        spans.iter().map(|span| Span { bytes: span.bytes.next_multiple_of(ALIGNMENT), ..*span }).collect();
    let least = live(&spans).into_iter().max().unwrap_or(0);
    let [close, good] = [CLOSE_ENOUGH, GOOD_ENOUGH].map(|share| least + (fixed + least) / share);
    let mut by_start: Vec<usize> = (0..spans.len()).collect();
    by_start.sort_by_key(|&span| (spans[span].start, span));
    let height = |offsets: &[u64]| {
        offsets.iter().zip(&spans).map(|(offset, span)| offset + span.bytes).max().unwrap_or(0)
    };
    let mut offsets = slots(&spans, &by_start);
    let lower = |other: Vec<u64>, offsets: &mut Vec<u64>| {
        if height(&other) < height(offsets) {
            *offsets = other;
        }
    };
    if height(&offsets) > close {
        lower(first_fit(&spans, &by_start), &mut offsets);
    }
    for (enough, effort) in [(close, &mut effort.close), (good, &mut effort.good)] {
        if height(&offsets) > enough
            && let Some(found) = search(&spans, &by_start, close, enough, effort)
        {
            lower(found, &mut offsets);
        }
    }
    Packing { height: height(&offsets), offsets, least }
}

/// The bytes that every position needs.
pub(super) fn live(spans: &[Span]) -> Vec<u64> {
    let positions = spans.iter().map(|span| span.end as usize + 1).max().unwrap_or(0);
    let mut changes = vec![0i128; positions + 1];
    for span in spans {
        changes[span.start as usize] += i128::from(span.bytes);
        changes[span.end as usize + 1] -= i128::from(span.bytes);
    }
    let mut now = 0;
    changes[..positions]
        .iter()
        .map(|change| {
            now += change;
            u64::try_from(now).unwrap_or(u64::MAX)
        })
        .collect()
}

/// A row of slots for every size, the largest size lowest; a span takes the lowest slot that is free.
fn slots(spans: &[Span], by_start: &[usize]) -> Vec<u64> {
    #[derive(Default)]
    struct Row {
        slots: u64,
        free: BinaryHeap<Reverse<u64>>,
        taken: BinaryHeap<Reverse<(u32, u64)>>,
    }
    let mut rows: BTreeMap<Reverse<u64>, Row> = BTreeMap::new();
    let mut slots = vec![0; spans.len()];
    for &span in by_start {
        let Span { bytes, start, end } = spans[span];
        let row = rows.entry(Reverse(bytes)).or_default();
        while let Some(&Reverse((last, slot))) = row.taken.peek()
            && last < start
        {
            row.taken.pop();
            row.free.push(Reverse(slot));
        }
        let slot = row.free.pop().map_or_else(
            || {
                row.slots += 1;
                row.slots - 1
            },
            |Reverse(slot)| slot,
        );
        row.taken.push(Reverse((end, slot)));
        slots[span] = slot;
    }
    let mut base = 0;
    let mut bases = BTreeMap::new();
    for (&Reverse(bytes), row) in &rows {
        bases.insert(bytes, base);
        base += bytes * row.slots;
    }
    spans.iter().zip(slots).map(|(span, slot)| bases[&span.bytes] + span.bytes * slot).collect()
}

/// Takes spans as they start and gives each the lowest free range that is long enough.
fn first_fit(spans: &[Span], by_start: &[usize]) -> Vec<u64> {
    let mut offsets = vec![0; spans.len()];
    let mut ends: BinaryHeap<Reverse<(u32, usize)>> = BinaryHeap::new();
    // Free ranges ascending, none touching another; above `top` all is free.
    let mut free: Vec<(u64, u64)> = Vec::new();
    let mut top = 0;
    for &span in by_start {
        let Span { bytes, start, end } = spans[span];
        while let Some(&Reverse((last, dead))) = ends.peek()
            && last < start
        {
            ends.pop();
            release(&mut free, offsets[dead], offsets[dead] + spans[dead].bytes);
        }
        offsets[span] = match free.iter().position(|range| range.1 - range.0 >= bytes) {
            Some(position) => {
                let range = &mut free[position];
                let offset = range.0;
                range.0 += bytes;
                if range.0 == range.1 {
                    free.remove(position);
                }
                offset
            }
            None => {
                // A free range that ends at the top is used in part.
                let offset = free.pop_if(|range| range.1 == top).map_or(top, |range| range.0);
                top = offset + bytes;
                offset
            }
        };
        ends.push(Reverse((end, span)));
    }
    offsets
}

fn release(free: &mut Vec<(u64, u64)>, start: u64, end: u64) {
    if start == end {
        return;
    }
    let position = free.partition_point(|range| range.1 < start);
    let touching = free[position..].iter().take_while(|range| range.0 <= end).count();
    let merged = free[position..position + touching]
        .iter()
        .fold((start, end), |merged, range| (merged.0.min(range.0), merged.1.max(range.1)));
    free.splice(position..position + touching, [merged]);
}

/// Starts from several orders, each with an equal share of the effort, until the height is `enough`; the lowest offsets
/// found, if there was any effort.
fn search(spans: &[Span], by_start: &[usize], line: u64, enough: u64, effort: &mut u64) -> Option<Vec<u64>> {
    let length = |span: usize| u64::from(spans[span].end - spans[span].start) + 1;
    let area = |span: usize| spans[span].bytes.saturating_mul(length(span));
    let mut starts: [Vec<usize>; 4] = std::array::from_fn(|_| by_start.to_vec());
    starts[0].sort_by_key(|&span| (Reverse(spans[span].bytes), Reverse(length(span))));
    starts[2].sort_by_key(|&span| Reverse(area(span)));
    starts[3].sort_by_key(|&span| Reverse(length(span)));
    let mut best: Option<Placement> = None;
    for (left, order) in (1..=starts.len() as u64).rev().zip(starts) {
        let mut share = *effort / left;
        *effort -= share;
        if let Some(found) = improve(spans, order, line, enough, left, &mut share)
            && best.as_ref().is_none_or(|best| found.height < best.height)
        {
            best = Some(found);
        }
        *effort += share;
        if best.as_ref().is_some_and(|best| best.height <= enough) {
            break;
        }
    }
    best.map(|best| best.offsets)
}

/// Places in an order, then in changed orders, so that spans reach less and less above `line`, until the height is
/// `enough` or no effort is left; none if there never was any.
fn improve(
    spans: &[Span],
    mut order: Vec<usize>,
    line: u64,
    enough: u64,
    seed: u64,
    effort: &mut u64,
) -> Option<Placement> {
    let mut numbers = Numbers(seed);
    let mut now = lowest(spans, &order, line, u64::MAX, effort)?;
    let mut best = now.clone();
    while best.height > enough && *effort > 0 {
        let too_high = |turn: &usize| now.offsets[order[*turn]] + spans[order[*turn]].bytes > line;
        let high: Vec<usize> = (0..order.len()).filter(too_high).collect();
        let turn = high[numbers.below(high.len())];
        let mut changed = order.clone();
        if turn > 0 && numbers.below(2) == 0 {
            // It chooses earlier,
            let span = changed.remove(turn);
            changed.insert(numbers.below(turn), span);
        } else {
            // or changes its turn with one that chose before it, or that one goes anywhere.
            let Span { start, end, .. } = spans[order[turn]];
            let meets = |&other: &usize| spans[order[other]].start <= end && start <= spans[order[other]].end;
            let below: Vec<usize> = (0..turn).filter(meets).collect();
            *effort = effort.saturating_sub(order.len() as u64);
            if below.is_empty() {
                continue;
            }
            let other = below[numbers.below(below.len())];
            if numbers.below(2) == 0 {
                changed.swap(turn, other);
            } else {
                let span = changed.remove(other);
                changed.insert(numbers.below(order.len()), span);
            }
        }
        // A worse order now and then leads out of a dead end.
        let most = if numbers.below(50) == 0 { u64::MAX } else { now.excess };
        if let Some(other) = lowest(spans, &changed, line, most, effort) {
            if other.height < best.height {
                best = other.clone();
            }
            (order, now) = (changed, other);
        }
    }
    Some(best)
}

/// Offsets, the end of the highest span, and the bytes of all spans above a line, times how long they are there.
#[derive(Clone)]
struct Placement {
    offsets: Vec<u64>,
    height: u64,
    excess: u64,
}

/// Gives each span in turn the lowest place that is free for its lifetime; none if the excess comes to more than `most`,
/// or if there is no effort left.
fn lowest(spans: &[Span], order: &[usize], line: u64, most: u64, effort: &mut u64) -> Option<Placement> {
    /// The spans that were placed at one place, with disjoint lifetimes, ascending.
    struct Place {
        low: u64,
        high: u64,
        lifetimes: Vec<(u32, u32)>,
    }
    let mut places: Vec<Place> = Vec::new();
    let mut placement = Placement { offsets: vec![0; spans.len()], height: 0, excess: 0 };
    for &span in order {
        *effort = effort.saturating_sub(places.len() as u64 + 1);
        let Span { bytes, start, end } = spans[span];
        let mut offset = 0;
        for place in &places {
            if place.low >= offset + bytes {
                break;
            }
            if place.high > offset {
                let after = place.lifetimes.partition_point(|lifetime| lifetime.1 < start);
                if place.lifetimes.get(after).is_some_and(|lifetime| lifetime.0 <= end) {
                    offset = place.high;
                }
            }
        }
        placement.offsets[span] = offset;
        placement.height = placement.height.max(offset + bytes);
        let above = (offset + bytes).saturating_sub(line).min(bytes);
        placement.excess = placement.excess.saturating_add(above.saturating_mul(u64::from(end - start) + 1));
        if placement.excess > most || *effort == 0 {
            return None;
        }
        let (low, high) = (offset, offset + bytes);
        match places.binary_search_by_key(&(low, high), |place| (place.low, place.high)) {
            Ok(known) => {
                let lifetimes = &mut places[known].lifetimes;
                let position = lifetimes.partition_point(|lifetime| lifetime.1 < start);
                lifetimes.insert(position, (start, end));
            }
            Err(position) => places.insert(position, Place { low, high, lifetimes: vec![(start, end)] }),
        }
    }
    Some(placement)
}

/// SplitMix64 (Steele, Lea and Flood 2014).
struct Numbers(u64);

impl Numbers {
    /// The next number below a bound that is not zero.
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn disjoint(spans: &[Span], packing: &Packing) -> bool {
        spans.iter().zip(&packing.offsets).enumerate().all(|(index, (a, &at))| {
            spans.iter().zip(&packing.offsets).skip(index + 1).all(|(b, &bt)| {
                let meet = a.start <= b.end && b.start <= a.end;
                !meet || at + a.bytes <= bt || bt + b.bytes <= at
            })
        })
    }

    proptest! {
        #[test]
        fn spans_that_meet_share_no_byte(
            spans in prop::collection::vec((1u64..2000, 0u32..30, 0u32..12), 0..40)
        ) {
            let spans: Vec<Span> =
                spans.into_iter().map(|(bytes, start, length)| Span { bytes, start, end: start + length }).collect();
            let mut by_start: Vec<usize> = (0..spans.len()).collect();
            by_start.sort_by_key(|&span| (spans[span].start, span));
            let packing = pack(&spans, 0, &mut Effort::new(0));
            prop_assert!(disjoint(&spans, &packing));
            prop_assert!(packing.height >= packing.least);
            prop_assert!(packing.offsets.iter().all(|offset| offset.is_multiple_of(ALIGNMENT)));
            // Every strategy on its own, whether or not it won.
            let aligned: Vec<Span> =
                spans.iter().map(|span| Span { bytes: span.bytes.next_multiple_of(64), ..*span }).collect();
            let searched = search(&aligned, &by_start, 0, 0, &mut 10_000).unwrap_or(packing.offsets);
            for offsets in [slots(&aligned, &by_start), first_fit(&aligned, &by_start), searched] {
                let packing = Packing { offsets, height: 0, least: 0 };
                prop_assert!(disjoint(&aligned, &packing));
            }
        }
    }

    #[test]
    fn a_steady_pipeline_is_packed_without_a_gap() {
        // Four units alive, each with saved activations and an input; the input is a third of their size.
        let spans: Vec<Span> = (0..100)
            .flat_map(|unit| {
                [3 << 20, 1 << 20].map(|bytes| Span { bytes, start: 2 * unit, end: 2 * unit + 7 })
            })
            .collect();
        let packing = pack(&spans, 0, &mut Effort { close: 0, good: 0 });
        assert_eq!((packing.height, packing.least), (16 << 20, 16 << 20));
    }

    #[test]
    fn the_search_finds_what_simple_orders_miss() {
        // Two micro-batches through two unequal stages of one device.
        let spans = [
            (1000, 0, 9),
            (700, 1, 2),
            (1000, 3, 8),
            (700, 4, 5),
            (600, 6, 12),
            (1100, 10, 12),
            (400, 9, 10),
        ]
        .map(|(units, start, end)| Span { bytes: 64 * units, start, end });
        let packing = pack(&spans, 0, &mut Effort::new(0));
        assert_eq!(packing.height, packing.least);
    }

    #[test]
    fn sizes_that_peak_at_different_times_share_bytes() {
        let spans = [
            Span { bytes: 640, start: 0, end: 1 },
            Span { bytes: 320, start: 2, end: 3 },
            Span { bytes: 320, start: 2, end: 2 },
        ];
        assert_eq!(pack(&spans, 0, &mut Effort { close: 0, good: 0 }).height, 640);
    }
}
