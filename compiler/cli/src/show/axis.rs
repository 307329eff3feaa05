//! Ticks of a time axis.

use pipec_program::Nanos;

/// The least step of the form 1, 2 or 5 times a power of ten that is not below.
pub(super) fn step(least: u64) -> u64 {
    let mut power = 1u64;
    loop {
        for digit in [1, 2, 5] {
            let step = power.saturating_mul(digit);
            if step >= least {
                return step;
            }
        }
        power = power.saturating_mul(10);
    }
}

/// Ticks from zero to the makespan, at most `count` and a first one.
pub(super) fn ticks(makespan: Nanos, count: u64) -> impl Iterator<Item = Nanos> {
    let step = step(makespan.0.div_ceil(count.max(1)).max(1));
    (0..=makespan.0 / step).map(move |index| Nanos(index * step))
}

/// The label of a tick, without digits that say nothing: `150 us`, `1.5 ms`.
pub(super) fn label(time: Nanos) -> String {
    let (unit, name) = match time.0 {
        0..1_000 => (1, "ns"),
        1_000..1_000_000 => (1_000, "us"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    if time.0.is_multiple_of(unit) {
        format!("{} {name}", time.0 / unit)
    } else {
        let text = format!("{:.3}", time.0 as f64 / unit as f64);
        format!("{} {name}", text.trim_end_matches('0'))
    }
}

/// A share in per cent with one decimal: `27.3 %`.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}
