//! Simulating 1F1B programs, in instructions per second: `cargo bench -p pipec-program --bench simulate`.
//!
//! The floor is a million instructions per second on one core, and growth must be linear: the last column stays level.

#[path = "../tests/programs/mod.rs"]
mod programs;

use divan::{Bencher, counter::ItemsCount};
use pipec_program::{Costs, Program, Verified, memory, simulate};

fn main() {
    divan::main();
}

/// Devices and micro-batches; the last is the size that every stage of the compiler is held to.
const SIZES: [(u32, u32); 4] = [(8, 64), (16, 128), (32, 256), (64, 512)];

fn program((devices, micro_batches): (u32, u32)) -> Verified {
    let pipeline = programs::one_f_one_b(devices, micro_batches);
    // Both directions between two neighbours share a wire, so that every message competes for it.
    let mut program = programs::build(&programs::Pipeline { link: Some((1 << 34, 5)), ..pipeline });
    for (id, channel) in program.channels.iter_mut() {
        channel.route = vec![pipec_program::LinkId(id.0 / 2)];
    }
    programs::prove(program)
}

fn instructions(program: &Program) -> ItemsCount {
    ItemsCount::new(program.queues.values().map(|queue| queue.instructions.len()).sum::<usize>())
}

#[divan::bench(args = SIZES)]
fn timeline(bencher: Bencher, size: (u32, u32)) {
    let program = program(size);
    let costs = Costs::roofline(&program);
    bencher.counter(instructions(&program)).bench(|| simulate(&program, &costs));
}

#[divan::bench(args = SIZES)]
fn memory_curve(bencher: Bencher, size: (u32, u32)) {
    let program = program(size);
    let timeline = simulate(&program, &Costs::roofline(&program));
    bencher.counter(instructions(&program)).bench(|| memory::memory(&program, &timeline));
}
