//! `pipec profile`: measures every function of a program as it runs, and writes the costs that `simulate` reads.
//!
//! Functions are measured inside real steps, all devices at work, since that is what a prediction is about: cores that
//! share caches and memory slow each other down.

use super::run::{cpu_engine, steps_of};
use super::{Failure, load};
use crate::arguments::ProfileArguments;
use crate::files;
use crate::report::Reporter;
use crate::show;
use pipec_program::cost::{DeviceProfile, FunctionProfile, Profile, function};
use pipec_program::{Bytes, BytesPerSecond, Event, Instruction, Nanos, Verified};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) fn execute(arguments: &ProfileArguments, reporter: Reporter) -> Result<(), Failure> {
    if arguments.steps == 0 {
        return Err(Failure::usage(reporter, "at least one step must be measured"));
    }
    let program = Arc::new(load::program(&arguments.input, reporter)?);
    let mut engine = cpu_engine(&program, false, reporter)?;
    engine.record(true);
    let mut events = Vec::new();
    steps_of(&mut engine, arguments.steps + 1, reporter, |step, output| {
        if step > 1 {
            events.extend(output);
        }
    })?;
    let text = show::profile_json(&measured(&program, &events));
    files::write(arguments.output.as_deref(), text.as_bytes()).map_err(|error| {
        Failure::file(reporter, arguments.output.as_deref().unwrap_or("standard output".as_ref()), &error)
    })
}

/// What was measured of one kind of device.
#[derive(Default)]
struct Samples {
    functions: BTreeMap<String, (Vec<Nanos>, FunctionProfile)>,
    /// Size and time.
    messages: Vec<(Bytes, Nanos)>,
    fills: Vec<(Bytes, Nanos)>,
}

fn measured(program: &Verified, events: &[Event]) -> Profile {
    let mut samples: BTreeMap<String, Samples> = BTreeMap::new();
    for event in events {
        let Some(queue) = program.queues.get(event.queue) else { continue };
        let Some(instruction) = queue.instructions.get(event.position as usize) else { continue };
        let of = samples.entry(program.devices[queue.device].name.clone()).or_default();
        let time = event.duration();
        match instruction {
            Instruction::Run { function: id, .. } => {
                let called = &program.functions[*id];
                let cost = function(called);
                let profile = FunctionProfile { time, flops: cost.flops, traffic: cost.traffic };
                of.functions.entry(called.name.clone()).or_insert_with(|| (Vec::new(), profile)).0.push(time);
            }
            Instruction::Recv { view, .. } => of.messages.push((view.bytes, time)),
            Instruction::Fill { view } => of.fills.push((view.bytes, time)),
            Instruction::Send { .. }
            | Instruction::Copy { .. }
            | Instruction::Reduce { .. }
            | Instruction::Wait { .. } => {}
        }
    }
    let devices = samples.into_iter().map(|(name, samples)| {
        let functions = samples
            .functions
            .into_iter()
            .map(|(name, (times, profile))| (name, FunctionProfile { time: typical(times), ..profile }))
            .collect();
        let profile = DeviceProfile {
            functions,
            overhead: Nanos::ZERO,
            message_latency: Nanos::ZERO,
            message_bandwidth: rate(&samples.messages),
            memory_bandwidth: rate(&samples.fills),
        };
        (name, profile)
    });
    Profile { devices: devices.collect() }
}

/// The mean of the middle half: a mean, since times add up, without what an interruption did to a few calls.
fn typical(mut times: Vec<Nanos>) -> Nanos {
    times.sort_unstable();
    let quarter = times.len() / 4;
    let middle = &times[quarter..times.len() - quarter];
    Nanos(middle.iter().copied().sum::<Nanos>().0 / middle.len().max(1) as u64)
}

/// The median rate; the largest one where nothing was measured, which then costs nothing.
fn rate(samples: &[(Bytes, Nanos)]) -> BytesPerSecond {
    let mut rates: Vec<u64> =
        samples.iter().map(|(bytes, time)| (bytes.0 as f64 * 1e9 / time.0.max(1) as f64) as u64).collect();
    rates.sort_unstable();
    BytesPerSecond(rates.get(rates.len() / 2).copied().unwrap_or(u64::MAX).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typical_ignores_interruptions() {
        assert_eq!(typical([5, 6, 7, 1000].map(Nanos).to_vec()), Nanos(6));
        assert_eq!(typical(vec![Nanos(5)]), Nanos(5));
    }

    #[test]
    fn rate_is_the_median() {
        let samples = [(Bytes(10), Nanos(10)), (Bytes(10), Nanos(1)), (Bytes(10), Nanos(100))];
        assert_eq!(rate(&samples), BytesPerSecond(1_000_000_000));
        assert_eq!(rate(&[]), BytesPerSecond(u64::MAX));
    }
}
