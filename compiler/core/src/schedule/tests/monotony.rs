//! Whether more memory, more stages and slices to choose from, and shorter passes make what `auto` finds slower. The numbers
//! stand in docs/schedules.md.

use super::*;
use crate::schedule::auto::random::Random;

/// Problems to look at.
const PROBLEMS: usize = 40;

/// A small problem with a cap that is up to two and a half times what one micro-batch needs.
fn drawn(random: &mut Random) -> Problem {
    let (p, v) = (2 + random.below(4) as u32, 1 + random.below(2) as u32);
    let (s, n) = ([1, 2, 4][random.below(3)], 2 + random.below(7) as u32);
    let mut problem = uniform(p, v, n, s);
    let (equal, prefix) = (random.below(3) == 0, random.below(2) as u64);
    let mut table = Vec::new();
    for _ in 0..p * v * s {
        let mut time = || if equal { 10 } else { 6 + random.below(10) as u64 };
        let (forward, input, weight) = (time(), time(), time());
        let backward = input + weight;
        table.push(Cost {
            forward,
            input,
            weight,
            backward,
            recompute: forward,
            pair: None,
            activations: 4,
            released: 1,
            gradients: 1,
            prefix,
            checkpoint: 0,
        });
    }
    problem.set_costs(|stage, slice| table[(stage.0 * s + slice.0) as usize]);
    problem.delay = random.below(6) as u64;
    let least = u64::from(v * s) * (5 + prefix);
    let cap = least + random.below(least as usize * 3 / 2) as u64;
    problem.caps = Some(problem.devices().values().map(|_| cap).collect());
    problem
}

/// The makespan of what is found with the least effort, with all stages and slices or with fewer too.
fn found(problem: &Problem, fewer_too: bool) -> u64 {
    let (problem, schedule) = match fewer_too {
        true => explore(problem, Effort::Least).unwrap(),
        false => (problem.clone(), ordered(Policy::Auto(Effort::Least), problem)),
    };
    execute(&problem, &schedule, |step| problem.duration(step)).unwrap().makespan()
}

#[test]
fn more_memory_is_not_slower() {
    let mut random = Random::new(77);
    for _ in 0..PROBLEMS {
        let problem = drawn(&mut random);
        let mut roomy = problem.clone();
        for cap in roomy.caps.as_mut().unwrap().values_mut() {
            *cap += 1 + random.below(*cap as usize / 2) as u64;
        }
        assert!(found(&roomy, false) <= found(&problem, false));
    }
}

/// All that fewer stages and slices allow is among what more of them allow.
#[test]
fn more_to_choose_from_is_not_slower() {
    let mut random = Random::new(78);
    for _ in 0..PROBLEMS {
        let problem = drawn(&mut random);
        let (v, s) = (problem.chunks(), problem.slices());
        let all = found(&problem, true);
        for (chunks, slices) in [(v.div_ceil(2), s), (v, s.div_ceil(2))] {
            let fewer = coarser(&problem, Placement::Loop, chunks, slices).unwrap();
            assert!(all <= found(&fewer, true));
        }
    }
}

/// Nothing makes a search find again what it found for longer passes; it comes near.
#[test]
fn shorter_passes_are_hardly_slower() {
    let mut random = Random::new(79);
    for _ in 0..PROBLEMS {
        let problem = drawn(&mut random);
        let (stages, slices) = (problem.stages().len(), problem.slices());
        let unit = (random.below(stages) as u32, random.below(slices as usize) as u32);
        let mut shorter = problem.clone();
        shorter.set_costs(|stage, slice| {
            let cost = *problem.cost(stage, slice);
            let less = if (stage.0, slice.0) == unit { 2 } else { 0 };
            let (forward, input) = (cost.forward - less, cost.input - less);
            Cost { forward, input, backward: cost.backward - less, ..cost }
        });
        let (before, after) = (found(&problem, false), found(&shorter, false));
        assert!(after as f64 <= before as f64 * 1.03, "{before} {after}");
    }
}
