//! Where to cut: contiguous ranges of pieces whose slowest device is as fast as possible.
//!
//! Stage g runs on device `g mod devices`. With one stage per device the cut is exact. With several, the exact cut of
//! the stages is improved by moving single pieces, which changes the sums of two devices (or of those between, where
//! pieces differ), until no move helps.

use pipec_program::DeviceId;
use pipec_program::id::Id;
use std::ops::Range;

/// The bounds of every stage: stage g holds the pieces `bounds[g] .. bounds[g + 1]`, at least one.
///
/// `time` is the time of a range of pieces on a device; it must be additive over pieces.
pub(super) fn balanced(
    pieces: usize,
    stages: usize,
    devices: usize,
    time: impl Fn(Range<usize>, DeviceId) -> u64,
) -> Vec<usize> {
    let time = |stage: usize, range: Range<usize>| time(range, DeviceId::new(stage % devices));
    let (mut low, mut high) =
        (0, (0..devices.min(stages)).map(|stage| time(stage, 0..pieces)).max().unwrap_or(0));
    while low < high {
        let middle = low + (high - low) / 2;
        if feasible(pieces, stages, middle, &time) { high = middle } else { low = middle + 1 }
    }
    let bounds = least_squares(pieces, stages, low, &time);
    if stages > devices { improve(bounds, devices, &time) } else { bounds }
}

/// Whether a cut exists in which no stage takes longer than `limit`.
fn feasible(pieces: usize, stages: usize, limit: u64, time: &impl Fn(usize, Range<usize>) -> u64) -> bool {
    let mut reachable = vec![false; pieces + 1];
    reachable[0] = true;
    for stage in 0..stages {
        let mut next = vec![false; pieces + 1];
        // The furthest end grows with the start, so that the ends of all starts are covered by one sweep.
        let mut end = 0;
        for start in (0..pieces).filter(|&start| reachable[start]) {
            let covered = end.max(start);
            end = covered;
            while end < pieces && time(stage, start..end + 1) <= limit {
                end += 1;
            }
            next[covered + 1..=end].fill(true);
        }
        reachable = next;
    }
    reachable[pieces]
}

/// Among the cuts in which no stage takes longer than `limit`, the one with the least sum of squared times; the
/// shorter first stages on a tie. The limit must be feasible.
fn least_squares(
    pieces: usize,
    stages: usize,
    limit: u64,
    time: &impl Fn(usize, Range<usize>) -> u64,
) -> Vec<usize> {
    // The cost of stages g.. on pieces start.., from the last stage on, and where stage g then ends.
    let mut rest: Vec<Option<u128>> = vec![None; pieces + 1];
    rest[pieces] = Some(0);
    let mut ends = vec![vec![0; pieces + 1]; stages];
    for stage in (0..stages).rev() {
        let mut cost = vec![None; pieces + 1];
        for start in 0..pieces {
            for end in start + 1..=pieces {
                let own = time(stage, start..end);
                if own > limit {
                    break;
                }
                let sum = rest[end].map(|rest| rest.saturating_add(u128::from(own) * u128::from(own)));
                if sum.is_some_and(|sum| cost[start].is_none_or(|least| sum < least)) {
                    cost[start] = sum;
                    ends[stage][start] = end;
                }
            }
        }
        rest = cost;
    }
    let mut bounds = vec![0];
    for ends in &ends {
        bounds.push(ends[bounds[bounds.len() - 1]]);
    }
    bounds
}

/// Moves pieces away from the slowest devices while that makes the largest sum, or else the sum of squares, smaller.
fn improve(mut bounds: Vec<usize>, devices: usize, time: &impl Fn(usize, Range<usize>) -> u64) -> Vec<usize> {
    let stages = bounds.len() - 1;
    let mut sums = vec![0u64; devices];
    for stage in 0..stages {
        sums[stage % devices] += time(stage, bounds[stage]..bounds[stage + 1]);
    }
    loop {
        let now = weight(&sums);
        let mut best: Option<(Weight, Vec<usize>, Vec<u64>)> = None;
        for from in (0..stages).filter(|&stage| bounds[stage + 1] - bounds[stage] > 1) {
            if sums[from % devices] != now.largest {
                continue;
            }
            for to in (0..stages).filter(|&to| to != from) {
                let (moved, after) = shift(&bounds, &sums, from, to, time);
                let weight = weight(&after);
                if weight < now && best.as_ref().is_none_or(|(least, ..)| weight < *least) {
                    best = Some((weight, moved, after));
                }
            }
        }
        match best {
            Some((_, moved, after)) => (bounds, sums) = (moved, after),
            None => return bounds,
        }
    }
}

/// How bad the sums of all devices are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Weight {
    largest: u64,
    squares: u128,
}

fn weight(sums: &[u64]) -> Weight {
    let squares =
        sums.iter().fold(0u128, |sum, &each| sum.saturating_add(u128::from(each) * u128::from(each)));
    Weight { largest: sums.iter().copied().max().unwrap_or(0), squares }
}

/// The bounds and sums after stage `from` has given one piece towards stage `to`: every stage between passes one on.
fn shift(
    bounds: &[usize],
    sums: &[u64],
    from: usize,
    to: usize,
    time: &impl Fn(usize, Range<usize>) -> u64,
) -> (Vec<usize>, Vec<u64>) {
    let (mut moved, mut after) = (bounds.to_vec(), sums.to_vec());
    if from < to {
        moved[from + 1..=to].iter_mut().for_each(|bound| *bound -= 1);
    } else {
        moved[to + 1..=from].iter_mut().for_each(|bound| *bound += 1);
    }
    for stage in from.min(to)..=from.max(to) {
        let device = stage % sums.len();
        after[device] -= time(stage, bounds[stage]..bounds[stage + 1]);
        after[device] += time(stage, moved[stage]..moved[stage + 1]);
    }
    (moved, after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sums(times: &[u64], bounds: &[usize], devices: usize) -> Vec<u64> {
        let mut sums = vec![0; devices];
        for (stage, bound) in bounds.windows(2).enumerate() {
            sums[stage % devices] += times[bound[0]..bound[1]].iter().sum::<u64>();
        }
        sums
    }

    fn cut(times: &[u64], stages: usize, devices: usize) -> Vec<usize> {
        balanced(times.len(), stages, devices, |range, _| times[range].iter().sum())
    }

    /// The least possible largest sum, by trying every cut.
    fn brute_force(times: &[u64], stages: usize, devices: usize) -> u64 {
        fn go(times: &[u64], bounds: &mut Vec<usize>, stages: usize, devices: usize, best: &mut u64) {
            let start = bounds[bounds.len() - 1];
            if bounds.len() == stages {
                bounds.push(times.len());
                *best = (*best).min(sums(times, bounds, devices).into_iter().max().unwrap_or(0));
                bounds.pop();
                return;
            }
            for end in start + 1..=times.len() - (stages - bounds.len()) {
                bounds.push(end);
                go(times, bounds, stages, devices, best);
                bounds.pop();
            }
        }
        let mut best = u64::MAX;
        go(times, &mut vec![0], stages, devices, &mut best);
        best
    }

    proptest! {
        #[test]
        fn one_stage_per_device_is_exact(times in prop::collection::vec(0u64..20, 1..9), stages in 1usize..9) {
            prop_assume!(stages <= times.len());
            let bounds = cut(&times, stages, stages);
            prop_assert!(bounds.windows(2).all(|bound| bound[0] < bound[1]));
            prop_assert_eq!(bounds.len(), stages + 1);
            prop_assert_eq!(bounds[stages], times.len());
            let largest = sums(&times, &bounds, stages).into_iter().max();
            prop_assert_eq!(largest, Some(brute_force(&times, stages, stages)));
        }

        /// Equal layers between an embedding and a head of any cost: the shape of every language model.
        #[test]
        fn several_stages_per_device_are_exact_for_equal_layers(
            layers in 2usize..9, layer in 1u64..20, ends in (0u64..40, 0u64..40), devices in 2usize..4
        ) {
            let mut times = vec![layer; layers + 2];
            (times[0], times[layers + 1]) = ends;
            let stages = 2 * devices;
            prop_assume!(stages <= times.len());
            let bounds = cut(&times, stages, devices);
            prop_assert!(bounds.windows(2).all(|bound| bound[0] < bound[1]));
            let largest = sums(&times, &bounds, devices).into_iter().max();
            prop_assert_eq!(largest, Some(brute_force(&times, stages, devices)));
        }

        /// A piece too slow for one device goes to another, however far the first could reach.
        #[test]
        fn unequal_devices_are_exact(times in prop::collection::vec(0u64..20, 3..8), speed in (1u64..9, 1u64..9, 1u64..9)) {
            let speed = [speed.0, speed.1, speed.2];
            let time = |stage: usize, range: Range<usize>| times[range].iter().sum::<u64>() * speed[stage];
            let bounds = balanced(times.len(), 3, 3, |range, device| time(device.index(), range));
            let slowest = |bounds: &[usize]| (0..3).map(|stage| time(stage, bounds[stage]..bounds[stage + 1])).max();
            let mut best = None;
            for first in 1..times.len() - 1 {
                for second in first + 1..times.len() {
                    let other = slowest(&[0, first, second, times.len()]);
                    best = best.min(other).or(other);
                }
            }
            prop_assert_eq!(slowest(&bounds), best);
        }
    }

    #[test]
    fn ties_go_to_the_most_equal_cut() {
        // The head alone takes 9; the four layers spread over the two other stages evenly.
        assert_eq!(cut(&[1, 1, 1, 1, 9], 3, 3), [0, 2, 4, 5]);
        assert_eq!(cut(&[1; 7], 3, 3), [0, 2, 4, 7]);
    }
}
