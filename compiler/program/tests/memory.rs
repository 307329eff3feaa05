//! Arena sizes, live bytes over time and the peak, on programs whose memory is known.

mod programs;

use pipec_program::memory::{ArenaUse, memory};
use pipec_program::*;
use programs::*;

fn uses(program: &Verified) -> Vec<ArenaUse> {
    memory(program, &simulate(program, &Costs::roofline(program)))
}

/// 1F1B keeps p - g micro-batches on stage g, GPipe all of them.
#[test]
fn activations_at_the_peak_are_the_units_in_flight() {
    for (name, pipeline, in_flight) in [
        ("one_f_one_b", one_f_one_b(4, 8), [4, 3, 2, 1]),
        ("gpipe", gpipe(4, 8), [8, 8, 8, 8]),
        ("fewer micro-batches than stages", one_f_one_b(4, 2), [2, 2, 2, 1]),
    ] {
        for (arena, units) in uses(&verified(&pipeline)).iter().zip(in_flight) {
            let live = arena.peak.live.get(Category::Activations);
            assert_eq!(live, Bytes(units * pipeline.activations), "{name} {}", arena.device);
        }
    }
}

#[test]
fn state_and_data_live_for_the_whole_step() {
    let pipeline = one_f_one_b(2, 3);
    for arena in uses(&verified(&pipeline)) {
        for sample in &arena.curve {
            assert_eq!(sample.live.get(Category::Weights), Bytes(pipeline.weights));
            assert_eq!(sample.live.get(Category::Optimizer), Bytes(2 * pipeline.weights));
        }
        assert_eq!(arena.curve[0].time, Nanos::ZERO);
        let last = arena.curve.last().unwrap();
        assert_eq!(last.live.get(Category::Activations), Bytes::ZERO);
        assert_eq!(last.live.get(Category::Communication), Bytes::ZERO);
    }
}

#[test]
fn the_peak_names_its_instruction() {
    let program = verified(&one_f_one_b(2, 3));
    let arenas = uses(&program);
    let (queue, position) = arenas[0].peak.instruction.unwrap();
    let name = simulate::instruction_name(&program.queues[queue].instructions[position as usize]);
    // Two micro-batches are in flight on the first device once the second forward pass has started.
    assert_eq!(name, "F g0.m1.i0");
    assert_eq!(arenas[0].peak.time, Nanos(11));
}

#[test]
fn live_bytes_are_a_lower_bound_of_the_arena() {
    for pipeline in [one_f_one_b(4, 8), gpipe(3, 5), zero_bubble(4, 6), interleaved(), recompute()] {
        for arena in uses(&verified(&pipeline)) {
            assert!(arena.peak.live.total() <= arena.size);
            assert_eq!(arena.loss() + arena.peak.live.total(), arena.size);
            assert_eq!(
                arena.curve.iter().map(|sample| sample.live.total()).max(),
                Some(arena.peak.live.total())
            );
            assert!(arena.curve.windows(2).all(|pair| pair[0].time < pair[1].time));
        }
    }
}

/// One device, one buffer, and accesses by hand.
fn by_hand(category: Category, accesses: &[(Access, u64, u64)]) -> ArenaUse {
    let mut program = build(&one_f_one_b(1, 1).without_parameters());
    let buffer = program.buffers.push(Buffer {
        name: "by_hand".into(),
        device: DeviceId(0),
        space: Space::Host,
        offset: Bytes(64),
        bytes: Bytes(100),
        category,
    });
    let mut instructions = Vec::new();
    for &(access, start, end) in accesses {
        let param = Param { name: "region".into(), bytes: Bytes(end - start), access };
        let function = program.functions.push(Function {
            name: format!("f{}", program.functions.len()),
            params: vec![param].into(),
            scalars: IdVec::new(),
            pair: None,
            body: Body::Abstract { flops: Flops(10), traffic: Bytes::ZERO },
        });
        let view = View { buffer, offset: Bytes(start), bytes: Bytes(end - start) };
        let work = Work::Step(StepWork::Norm);
        instructions.push(Instruction::Run { function, views: [view].into(), scalars: [].into(), work });
    }
    let queue =
        program.queues.push(Queue { device: DeviceId(0), kind: QueueKind::HostCompute, instructions });
    // Every access takes ten nanoseconds.
    let events = (0..accesses.len() as u32).map(|position| {
        let start = Nanos(10 * u64::from(position));
        Event { queue, position, start, end: start + Nanos(10) }
    });
    let timeline = Timeline::measured(&program, events.collect()).unwrap();
    let mut arenas = memory(&program, &timeline);
    assert_eq!(arenas.len(), 2);
    arenas.remove(1)
}

fn totals(arena: &ArenaUse) -> Vec<(u64, u64)> {
    arena.curve.iter().map(|sample| (sample.time.0, sample.live.total().0)).collect()
}

#[test]
fn bytes_live_from_their_first_write_to_their_last_read() {
    use Access::{Read, Write};
    let arena = by_hand(
        Category::Activations,
        &[(Write, 0, 40), (Read, 0, 40), (Read, 0, 40), (Write, 0, 40), (Read, 0, 40)],
    );
    assert_eq!(totals(&arena), [(0, 40), (50, 0)]);
    assert_eq!(arena.size, Bytes(164));
}

#[test]
fn a_gap_between_last_read_and_next_write_is_dead() {
    use Access::{Read, Write};
    let accesses =
        [(Write, 0, 40), (Read, 0, 40), (Write, 50, 60), (Read, 50, 60), (Write, 0, 40), (Read, 0, 40)];
    let arena = by_hand(Category::Communication, &accesses);
    assert_eq!(totals(&arena), [(0, 40), (20, 10), (40, 40), (60, 0)]);
}

#[test]
fn views_that_grow_cut_a_buffer_into_pieces() {
    use Access::{Read, Write};
    // Keys of two slices, written one after the other and read as a prefix, then the first slice alone again.
    let accesses =
        [(Write, 0, 50), (Read, 0, 50), (Write, 50, 100), (Read, 0, 100), (Write, 0, 50), (Read, 0, 50)];
    let arena = by_hand(Category::Activations, &accesses);
    assert_eq!(totals(&arena), [(0, 50), (20, 100), (40, 50), (60, 0)]);
}

#[test]
fn scratch_lives_for_its_call() {
    let accesses = [(Access::Workspace, 0, 30), (Access::Workspace, 40, 60), (Access::Workspace, 0, 30)];
    let arena = by_hand(Category::Workspace, &accesses);
    assert_eq!(totals(&arena), [(0, 30), (10, 20), (20, 30), (30, 0)]);
    assert_eq!(arena.peak.live.get(Category::Workspace), Bytes(30));
}
