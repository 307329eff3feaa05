//! Printing, parsing and verifying 1F1B programs, in instructions per second:
//! `cargo bench -p pipec-program --bench verify`.
//!
//! The floor is a million instructions per second on one core, and growth must be linear: the last column stays level.

#[path = "../tests/programs/mod.rs"]
mod programs;

use divan::{Bencher, counter::ItemsCount};
use pipec_program::{Program, text, verify};

fn main() {
    divan::main();
}

/// Devices and micro-batches; the last is the size that every stage of the compiler is held to.
const SIZES: [(u32, u32); 4] = [(8, 64), (16, 128), (32, 256), (64, 512)];

fn program((devices, micro_batches): (u32, u32)) -> Program {
    programs::build(&programs::one_f_one_b(devices, micro_batches))
}

fn instructions(program: &Program) -> ItemsCount {
    ItemsCount::new(program.queues.values().map(|queue| queue.instructions.len()).sum::<usize>())
}

#[divan::bench(args = SIZES)]
fn print(bencher: Bencher, size: (u32, u32)) {
    let program = program(size);
    bencher.counter(instructions(&program)).bench(|| text::print(&program));
}

#[divan::bench(args = SIZES)]
fn parse(bencher: Bencher, size: (u32, u32)) {
    let program = program(size);
    let text = text::print(&program);
    bencher.counter(instructions(&program)).bench(|| text::parse(&text));
}

#[divan::bench(args = SIZES)]
fn prove(bencher: Bencher, size: (u32, u32)) {
    let program = program(size);
    let count = instructions(&program);
    bencher.counter(count).with_inputs(|| program.clone()).bench_values(verify);
}
