//! Published formulas of time and memory, exactly, over grids of sizes.

use super::super::svpp::{full_speed_units, group};
use super::*;

/// The grid of `p, v, s, n` that formulas are held to: every third of all, so that it takes seconds.
fn grid(mut check: impl FnMut(u32, u32, u32, u32)) {
    let mut index = 0;
    for p in [1, 2, 3, 4, 5, 7, 8, 12, 16] {
        for v in 1..=3 {
            for s in [1, 2, 3, 4, 6, 8, 16] {
                for n in [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64] {
                    index += 1;
                    let units = p * v * s * n;
                    if units <= 2048 || units <= 12_288 && index % 7 == 0 {
                        check(p, v, s, n);
                    }
                }
            }
        }
    }
}

fn time(problem: &Problem, schedule: &Schedule) -> u64 {
    assert_eq!(verify(problem, schedule), []);
    execute(problem, schedule, |step| problem.duration(step)).unwrap().makespan()
}

fn most(problem: &Problem, schedule: &Schedule) -> u64 {
    peaks(problem, schedule).values().copied().max().unwrap()
}

/// Work of a device and `idle` passes of F + B + W.
fn filled(problem: &Problem, idle: u32) -> u64 {
    let units = problem.chunks() * problem.micro_batches() * problem.slices() / problem.copies();
    u64::from(3 * (units + idle))
}

#[test]
fn svpp_at_full_speed() {
    grid(|p, v, s, n| {
        let problem = uniform(p, v, n, s);
        let full = p.div_ceil(s);
        if !n.is_multiple_of(full) {
            return;
        }
        for bias in [100, 150, 200] {
            let options = Svpp { bias, ..Svpp::FUSED };
            let schedule = ordered(Policy::Svpp(options), &problem);
            assert_eq!(
                time(&problem, &schedule),
                filled(&problem, p - 1),
                "p {p} v {v} s {s} n {n} bias {bias}"
            );
            let units = full_speed_units(&problem, options).min(v * s * n);
            assert_eq!(most(&problem, &schedule), u64::from(units), "p {p} v {v} s {s} n {n} bias {bias}");
        }
        if p.max(s).is_multiple_of(p.min(s)) && full_speed_units(&problem, Svpp::FUSED) < v * s * n {
            let published = v * p.max(s) + p.min(s) - 1;
            assert_eq!(full_speed_units(&problem, Svpp::FUSED), published);
        }
    });
}

#[test]
fn gpipe_and_terapipe() {
    grid(|p, v, s, n| {
        let problem = uniform(p, v, n, s);
        let schedule = ordered(Policy::GPipe, &problem);
        // A chunk of all micro-batches may be too short to fill the devices.
        if n * s >= p || v == 1 {
            assert_eq!(time(&problem, &schedule), filled(&problem, p - 1), "p {p} v {v} s {s} n {n}");
        }
        assert_eq!(most(&problem, &schedule), u64::from(v * s * n));
    });
}

#[test]
fn interleaved_by_groups() {
    grid(|p, v, s, n| {
        if s > 1 || !n.is_multiple_of(p) {
            return;
        }
        let problem = uniform(p, v, n, 1);
        for larger in 1..=2 {
            let group = larger * p;
            let schedule = ordered(interleaved(group), &problem);
            if n.is_multiple_of(group) {
                assert_eq!(time(&problem, &schedule), filled(&problem, p - 1));
                let units = ((v - 1) * group + 2 * p - 1).min(v * n);
                assert_eq!(most(&problem, &schedule), u64::from(units));
            }
        }
    });
}

#[test]
fn split_weight_gradients_meet_the_bound_of_svpp() {
    grid(|p, v, s, n| {
        let problem = uniform(p, v, n, s);
        let rounds = n / p.div_ceil(s);
        if n.is_multiple_of(p.div_ceil(s)) && p.max(s).is_multiple_of(p.min(s)) && rounds >= 2 {
            let options = Svpp { weight_grads: WeightGrads::Split, ..Svpp::FUSED };
            let schedule = ordered(Policy::Svpp(options), &problem);
            let units = u64::from(n * s * v);
            assert_eq!(time(&problem, &schedule), 3 * units + u64::from(p - 1), "p {p} v {v} s {s} n {n}");
            assert!(most(&problem, &schedule) <= u64::from(full_speed_units(&problem, options)));
        }
    });
}

/// `idle = (p - 1) + (ceil(n / g) - 1) (f_max - f)` passes for `g v s <= f <= f_max`.
#[test]
fn svpp_with_fewer_units_alive() {
    let mut cases = 0;
    for p in [2_u32, 4, 8] {
        for v in 1..=3 {
            for s in [1, 2, 4, 8, 16] {
                for rounds in 1..=4 {
                    let n = rounds * p.div_ceil(s);
                    if p * v * s * n > 1600 {
                        continue;
                    }
                    let problem = uniform(p, v, n, s);
                    let (most_units, g) =
                        (full_speed_units(&problem, Svpp::FUSED), group(&problem, Svpp::FUSED));
                    for f in g * v * s..=most_units {
                        let options = Svpp { in_flight: Some(f), group: Some(g), ..Svpp::FUSED };
                        let schedule = ordered(Policy::Svpp(options), &problem);
                        let idle = p - 1 + (rounds - 1) * (most_units - f);
                        assert_eq!(
                            time(&problem, &schedule),
                            filled(&problem, idle),
                            "p {p} v {v} s {s} n {n} f {f}"
                        );
                        assert!(most(&problem, &schedule) <= u64::from(f));
                        // Smaller rounds are now and then faster.
                        let any = ordered(Policy::Svpp(Svpp { group: None, ..options }), &problem);
                        assert!(time(&problem, &any) <= time(&problem, &schedule));
                        cases += 1;
                    }
                }
            }
        }
    }
    assert!(cases > 500, "{cases}");
}

#[test]
fn one_micro_batch_is_the_least_memory_of_svpp() {
    grid(|p, v, s, n| {
        let problem = uniform(p, v, n, s);
        for weight_grads in [WeightGrads::Fused, WeightGrads::Split] {
            let options = Svpp { in_flight: Some(v * s), weight_grads, ..Svpp::FUSED };
            let schedule = ordered(Policy::Svpp(options), &problem);
            time(&problem, &schedule);
            assert_eq!(most(&problem, &schedule), u64::from(v * s));
        }
        let options = Svpp { in_flight: Some(v * s - 1), ..Svpp::FUSED };
        let refusal = Refusal::InFlight { least: v * s, found: v * s - 1 };
        assert_eq!(order(Policy::Svpp(options), &problem), Err(refusal));
    });
}

#[test]
fn zero_bubble() {
    for p in 1..=16_u32 {
        for n in [2 * p, 2 * p + 1, 3 * p, 64.max(2 * p)] {
            let mut problem = uniform(p, 1, n, 1);
            let (h1, h2) = (ordered(Policy::ZbH1, &problem), ordered(Policy::ZbH2, &problem));
            assert_eq!(time(&problem, &h1), u64::from(3 * n + p - 1));
            assert_eq!(most(&problem, &h1), u64::from(p));
            assert_eq!(time(&problem, &h2), u64::from(3 * n + p - 1));
            assert_eq!(most(&problem, &h2), u64::from(2 * p - 1));
            let execution = execute(&problem, &h2, |step| problem.duration(step)).unwrap();
            assert!(execution.window_bubble().abs() < 1e-12, "p {p} n {n}");
            // F, B and W of 100, 125 and 85.
            problem.set_costs(|_, _| Cost {
                forward: 100,
                input: 125,
                weight: 85,
                backward: 210,
                ..Cost::UNIT
            });
            let idle = u64::from(p - 1) * (100 + 125 - 85);
            assert_eq!(time(&problem, &h1), 310 * u64::from(n) + idle, "p {p} n {n}");
        }
    }
}

#[test]
fn zero_bubble_forth_and_back() {
    for p in 1..=10 {
        for n in [2 * p, 3 * p, 2 * p + 3] {
            let problem = zigzag(p, 2, n);
            let schedule = ordered(Policy::ZbV, &problem);
            assert_eq!(time(&problem, &schedule), u64::from(6 * n + p - 1), "p {p} n {n}");
            assert!(most(&problem, &schedule) <= u64::from(2 * p));
        }
    }
}

#[test]
fn controllable_memory() {
    for p in 2..=16 {
        for n in [2 * p, 2 * p + 3, 4 * p] {
            let problem = zigzag(p, 2, n);
            let (half, least) = (ordered(Policy::VHalf, &problem), ordered(Policy::VMin, &problem));
            // In units of half a stage, so that 2 p are one micro-batch on p devices.
            assert_eq!(most(&problem, &half), u64::from(2 * ((p + 2) / 2)), "p {p} n {n}");
            assert_eq!(most(&problem, &least), u64::from(2 * ((p + 4) / 3)), "p {p} n {n}");
            time(&problem, &half);
            time(&problem, &least);
        }
    }
    let problem = zigzag(8, 2, 16);
    let bubble = |policy| {
        let schedule = ordered(policy, &problem);
        execute(&problem, &schedule, |step| problem.duration(step)).unwrap().bubble()
    };
    assert!((bubble(Policy::VHalf) - 0.2131).abs() < 1e-4);
    assert!((bubble(Policy::VMin) - 0.2195).abs() < 1e-4);
}

#[test]
fn dualpipe_in_pairs() {
    for p in 1..=8_u32 {
        for n in [2 * p, 2 * p + 1, 4 * p + 2] {
            let problem = zigzag(p, 2, n);
            let schedule = ordered(Policy::DualPipeV, &problem);
            // PP = 2 p stages: an idle time of (PP / 2 - 1) (F&B + B - 3 W), here of 3, 2 and 1.
            assert_eq!(time(&problem, &schedule), u64::from(6 * n + 2 * (p - 1)), "p {p} n {n}");
            assert_eq!(most(&problem, &schedule), u64::from(2 * p + 1));
        }
    }
    for p in [2_u32, 4, 6, 8, 16] {
        for n in [2 * p, 2 * p + 2, 4 * p] {
            let problem = Problem::uniform(Placement::Bidirectional, p, 1, n, 1).unwrap();
            let schedule = ordered(Policy::DualPipe, &problem);
            assert_eq!(time(&problem, &schedule), u64::from(3 * n + 2 * (p / 2 - 1)), "p {p} n {n}");
            assert_eq!(most(&problem, &schedule), u64::from(p + 1));
        }
    }
}

#[test]
fn chimera_with_passes_of_equal_time() {
    for p in [2, 4, 6, 8, 12, 16] {
        let mut problem = Problem::uniform(Placement::Bidirectional, p, 1, p, 1).unwrap();
        problem.set_costs(|_, _| Cost { backward: 1, ..Cost::UNIT });
        let schedule = ordered(Policy::Chimera, &problem);
        assert_eq!(time(&problem, &schedule), u64::from(2 * p + p - 2), "p {p}");
        assert!(most(&problem, &schedule) <= u64::from(p));
    }
}

/// The times of DualPipe with pairs of any time, by what is known of it: on the devices where the directions meet all but
/// `2 half + 1` of `units` backward passes are halves of pairs, and these devices idle for `idle`.
#[test]
fn dualpipe_with_pairs_of_any_time() {
    let cost = |f, b, w, pair| Cost {
        forward: f,
        input: b,
        weight: w,
        backward: b + w,
        pair: Some(pair),
        ..Cost::UNIT
    };
    let mut published = 0;
    for (f, b, w) in times_of(&[2, 4, 7, 10], &[2, 4, 8, 9], &[1, 4, 7, 10]) {
        for pair in [f.max(b + w), f + b + w - f.min(b + w) / 2, f + b + w - 1, f + b + w, f + b + w + 3] {
            for half in 1..=4_u32 {
                for n in [2 * half, 2 * half + 1, 3 * half + 2] {
                    // One copy forth and back on `half` devices, or two copies on twice as many.
                    let forth = (zigzag(half, 2, n), Policy::DualPipeV, 2 * n);
                    let both = Problem::uniform(Placement::Bidirectional, 2 * half, 1, 2 * n, 1).unwrap();
                    for (mut problem, policy, units) in [forth, (both, Policy::DualPipe, 2 * n)] {
                        problem.set_costs(|_, _| cost(f, b, w, pair));
                        let found = time(&problem, &ordered(policy, &problem)) as i64;
                        let [f, b, w, pair] = [f, b, w, pair].map(|time| time as i64);
                        let [half, units] = [half, units].map(i64::from);
                        let work = units * (f + b + w) - (units - 2 * half - 1) * (f + b + w - pair);
                        let idle =
                            (half - 1) * (pair + f - w - w.min(b)) + ((half - 1) * b - half * f).max(0);
                        assert_eq!(found, work + idle, "{policy:?} {half} {n}: {f} {b} {w} {pair}");
                        // As published, (PP / 2 - 1)(F&B + B - 3 W) with B for BW, where F = B and W is no longer.
                        if f == b && w <= b {
                            assert_eq!(idle, (half - 1) * (pair + (b + w) - 3 * w));
                            published += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(published > 300, "{published}");
}

/// All combinations of times of F, B and W.
fn times_of(f: &[u64], b: &[u64], w: &[u64]) -> Vec<(u64, u64, u64)> {
    let pairs = f.iter().flat_map(|&f| b.iter().map(move |&b| (f, b)));
    pairs.flat_map(|(f, b)| w.iter().map(move |&w| (f, b, w))).collect()
}
