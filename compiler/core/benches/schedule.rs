//! Passes per second of ordering, executing and verifying large pipelines, and the time of `auto`.
//!
//!     cargo bench -p pipec-compiler --bench schedule
//!
//! One core; every figure is that of one run.

use pipec_compiler::schedule::{
    Effort, Placement, Policy, Problem, Svpp, WeightGrads, execute, order, peaks, verify,
};
use std::time::Instant;

fn main() {
    let full = !std::env::args().any(|argument| argument == "--test");
    println!("{:<34}{:>10}{:>9}{:>9}{:>9}{:>9}", "policy", "steps", "order", "execute", "verify", "memory");
    let (p, n, s) = if full { (64, 512, 16) } else { (4, 8, 2) };
    let split = Svpp { weight_grads: WeightGrads::Split, ..Svpp::FUSED };
    let tight = (s * 2 + s / 2).min(s * 2 + 1);
    for (name, options) in [
        ("svpp", Svpp::FUSED),
        ("svpp split", split),
        ("svpp in_flight", Svpp { in_flight: Some(tight), ..Svpp::FUSED }),
        ("svpp split in_flight", Svpp { in_flight: Some(tight), ..split }),
    ] {
        row(name, Policy::Svpp(options), Placement::Loop, [p, 2, n, s]);
    }
    row("one_f_one_b", Policy::OneFOneB, Placement::Loop, [p, 1, n * 8, 1]);
    row("zb_v", Policy::ZbV, Placement::Zigzag, [p, 2, n, 1]);
    let (p, n, s) = if full { (16, 64, 4) } else { (4, 4, 2) };
    for effort in [Effort::Least, Effort::Usual] {
        row(&format!("auto {effort:?}"), Policy::Auto(effort), Placement::Loop, [p, 2, n, s]);
    }
}

fn row(name: &str, policy: Policy, placement: Placement, [p, v, n, s]: [u32; 4]) {
    let mut problem = Problem::uniform(placement, p, v, n, s).unwrap_or_else(|error| panic!("{error}"));
    if let Policy::Auto(_) = policy {
        // A little more than one micro-batch, so that there is something to find.
        problem.caps = Some(problem.devices().values().map(|_| u64::from(v * s + p / 2)).collect());
    }
    let (ordering, schedule) =
        timed(|| order(policy, &problem).unwrap_or_else(|refusal| panic!("{name}: {refusal}")));
    let (executing, _) = timed(|| execute(&problem, &schedule, |step| problem.duration(step)));
    let (verifying, violations) = timed(|| verify(&problem, &schedule));
    assert_eq!(violations, []);
    let (counting, _) = timed(|| peaks(&problem, &schedule));
    let steps: usize = schedule.devices.values().map(Vec::len).sum();
    let name = format!("{name} p{p} v{v} s{s} n{n}");
    println!("{name:<34}{steps:>10}{ordering:>8.2}s{executing:>8.2}s{verifying:>8.2}s{counting:>8.2}s");
}

fn timed<T>(run: impl FnOnce() -> T) -> (f64, T) {
    let start = Instant::now();
    let result = run();
    (start.elapsed().as_secs_f64(), result)
}
