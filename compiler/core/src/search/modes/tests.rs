//! Picks of small devices against all choices that there are.

use super::*;
use proptest::prelude::*;

/// A mode: its time, workspace and offloaded bytes, and its loads at up to three moments.
type Drawn = (u64, u64, u64, [u64; 3]);

fn choice(position: usize, (time, workspace, offloaded, loads): Drawn, live: u64, moments: usize) -> Choice {
    Choice {
        mode: ModeId::new(position),
        time,
        forward: time / 3,
        workspace,
        offloaded,
        waiting: offloaded * live,
        loads: loads[..moments].to_vec(),
    }
}

/// The choices of a piece, how many of its units are alive on the host, and whether it is as the piece before it. Bytes come
/// in thousands: none is worth the dearest toll.
fn piece() -> impl Strategy<Value = (Vec<Drawn>, u64, bool)> {
    let bytes = || (0u64..40).prop_map(|bytes| bytes * 1000);
    let choice = (1u64..100, bytes(), bytes(), [bytes(), bytes(), bytes()]);
    (prop::collection::vec(choice, 1..6), 1u64..4, any::<bool>())
}

prop_compose! {
    /// Up to four pieces of up to five choices. What the device has comes in thousandths of the most that they take.
    fn device(offloads: bool)(
        pieces in prop::collection::vec(piece(), 1..5), moments in 1usize..4, workspaces in 1u64..40,
        limits in [0u64..1000, 0u64..1000, 0u64..1000], carried in 0u64..1000, host in 0u64..2000
    ) -> Device {
        let mut items: Vec<Vec<Choice>> = Vec::new();
        for (drawn, live, again) in pieces {
            let choice = |(position, (time, workspace, offloaded, loads)): (usize, Drawn)| {
                let offloaded = if offloads { offloaded } else { 0 };
                choice(position, (time, workspace % (workspaces * 1000), offloaded, loads), live, moments)
            };
            items.push(match items.last() {
                Some(before) if again => before.clone(),
                Some(_) | None => drawn.into_iter().enumerate().map(choice).collect(),
            });
        }
        let part = |part: u64, of: &dyn Fn(&Choice) -> u64| {
            let most = items.iter().map(|choices| choices.iter().map(of).max().unwrap_or(0));
            most.sum::<u64>() * part / 1000
        };
        let limit = |moment: usize| part(limits[moment], &|choice| choice.loads[moment] + choice.workspace);
        let limits = (0..moments).map(limit).collect();
        let carried = part(carried, &|choice| choice.offloaded);
        let host = part(host, &|choice| choice.waiting);
        Device { items, limits, carried, host }
    }
}

/// All ways to choose for every piece.
fn paths(device: &Device) -> Vec<Vec<usize>> {
    device.items.iter().fold(vec![Vec::new()], |paths, choices| {
        let longer = |path: Vec<usize>| {
            (0..choices.len()).map(move |position| path.iter().copied().chain([position]).collect())
        };
        paths.into_iter().flat_map(longer).collect()
    })
}

fn sum(device: &Device, path: &[usize], of: impl Fn(&Choice) -> u64) -> u64 {
    device.items.iter().zip(path).map(|(choices, &position)| of(&choices[position])).sum()
}

/// Whether the device holds some choices, with the workspace of the largest, and its host what waits there.
fn holds(device: &Device, path: &[usize]) -> bool {
    let workspaces = device.items.iter().zip(path).map(|(choices, &position)| choices[position].workspace);
    let workspace = workspaces.max().unwrap_or(0);
    let load = |moment: usize| sum(device, path, |choice| choice.loads[moment]);
    let mut limits = device.limits.iter().enumerate();
    let on_host = sum(device, path, |choice| choice.waiting);
    on_host <= device.host && limits.all(|(moment, limit)| load(moment) + workspace <= *limit)
}

fn check(device: &Device) -> Result<(), TestCaseError> {
    let time = |path: &[usize]| sum(device, path, |choice| choice.time);
    let is_carried = |path: &[usize]| sum(device, path, |choice| choice.offloaded) <= device.carried;
    let held: Vec<Vec<usize>> = paths(device).into_iter().filter(|path| holds(device, path)).collect();
    let best = held.iter().filter(|path| is_carried(path)).map(|path| time(path)).min();
    let workspaces: BTreeSet<u64> = device.items.iter().flatten().map(|choice| choice.workspace).collect();
    let whole: u64 = device.items.iter().flatten().map(|choice| choice.waiting).sum();
    let is_simple = device.limits.len() == 1 && workspaces.len() <= MOST_LEVELS && whole <= device.host;
    let pick = device.pick();
    if let Some(pick) = &pick {
        let path: Vec<usize> = pick.modes.iter().map(|mode| mode.index()).collect();
        prop_assert!(held.contains(&path), "{pick:?} does not fit");
        prop_assert_eq!(pick.time, time(&path));
        prop_assert!(pick.bound <= pick.time, "{pick:?}");
        if let Some(best) = best {
            prop_assert!(pick.bound <= best, "{pick:?}, best {best}");
            prop_assert!(!is_carried(&path) || best <= pick.time, "{pick:?}, best {best}");
            prop_assert!(!is_simple || is_carried(&path), "{pick:?}, best {best}");
        }
    }
    if is_simple {
        prop_assert_eq!(pick.is_some(), !held.is_empty());
    }
    if device.limits.len() == 1 && whole == 0 {
        prop_assert_eq!(pick.is_some(), best.is_some());
        if workspaces.len() <= MOST_LEVELS {
            prop_assert_eq!(pick.as_ref().map(|pick| pick.time), best);
        }
        if workspaces.len() == 1 {
            prop_assert_eq!(pick.map(|pick| pick.bound), best);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5000))]

    #[test]
    fn a_pick_is_within_its_bound_of_the_best(device in any::<bool>().prop_flat_map(device)) {
        check(&device)?;
    }
}

/// A device with one piece and room on its host.
fn single(choices: &[Drawn], limits: &[u64]) -> Device {
    let choices = choices.iter().enumerate();
    let choices = choices.map(|(position, &drawn)| choice(position, drawn, 1, limits.len())).collect();
    Device { items: vec![choices], limits: limits.to_vec(), carried: 0, host: 1 << 20 }
}

/// Each of two moments alone asks for a choice that does not fit the other; what fits both does not fit the host.
#[test]
fn nothing_is_picked_that_the_host_cannot_hold() {
    let choices = [(1, 0, 1000, [8, 3, 0]), (9, 0, 0, [0, 7, 0]), (9, 0, 0, [11, 0, 0])];
    let device = single(&choices, &[10, 4]);
    assert_eq!(device.pick().map(|pick| pick.modes), Some(vec![ModeId(0)]));
    assert_eq!(Device { host: 999, ..device }.pick(), None);
}

/// What is faster within less workspace, but whose copies do not keep up.
#[test]
fn copies_that_keep_up_come_first() {
    let choices = [(1, 0, 2000, [0; 3]), (5, 10, 0, [0; 3])];
    let device = single(&choices, &[100]);
    assert_eq!(device.pick().map(|pick| pick.modes), Some(vec![ModeId(1)]));
    assert_eq!(Device { carried: 2000, ..device }.pick().map(|pick| pick.modes), Some(vec![ModeId(0)]));
}

/// The one of five workspaces that is not among the first that are tried.
#[test]
fn what_fits_is_found_at_any_workspace() {
    let choices: Vec<Drawn> =
        (0..5).map(|workspace| (1, workspace, 0, [if workspace < 3 { 100 } else { 0 }; 3])).collect();
    assert_eq!(single(&choices, &[3]).pick().map(|pick| pick.modes), Some(vec![ModeId(3)]));
    assert_eq!(single(&choices, &[2]).pick(), None);
}
