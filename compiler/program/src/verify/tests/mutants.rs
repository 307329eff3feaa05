//! Single instructions of good programs, changed: each mutant is refused, or computes the same.

use super::symbolic::outcome;
use super::{OFFLOAD, PAIR, TIED, TWO_CUTS, TWO_STAGES};
use crate::id::{MicroBatch, QueueId, StageId};
use crate::program::{Instruction, Pair, Pass, Program, Unit, View, Work};
use crate::text;
use crate::units::Bytes;
use crate::verify::verify;

/// A change of one place of a program.
#[derive(Clone, Debug)]
enum Mutation {
    /// The instruction is gone.
    Drop,
    /// It stands twice.
    Double,
    /// It changes places with the next.
    Swap,
    /// Another instruction stands there.
    Replace(Instruction),
}

/// All mutations of an instruction of a program.
fn mutations(program: &Program, queue: QueueId, position: usize) -> Vec<Mutation> {
    let instruction = &program.queues[queue].instructions[position];
    let mut all = vec![Mutation::Drop, Mutation::Double];
    if position + 1 < program.queues[queue].instructions.len() {
        all.push(Mutation::Swap);
    }
    let views = |view: View| -> Vec<View> {
        // The same bytes count in every other buffer of the device, and a part of this one.
        let buffer = &program.buffers[view.buffer];
        let others = program.buffers.iter().filter(|(id, other)| {
            *id != view.buffer && other.device == buffer.device && other.bytes.0 >= view.bytes.0
        });
        let mut all: Vec<View> =
            others.map(|(id, _)| View { buffer: id, offset: Bytes(0), ..view }).collect();
        let end = view.offset + view.bytes + view.bytes;
        if end <= buffer.bytes {
            all.push(View { offset: view.offset + view.bytes, ..view });
        }
        if view.offset >= view.bytes {
            all.push(View { offset: view.offset - view.bytes, ..view });
        }
        all.push(View { bytes: view.bytes - Bytes(4), ..view });
        all
    };
    let units = |unit: Unit| {
        let Unit { stage, micro_batch, .. } = unit;
        let other_batch = Unit { micro_batch: MicroBatch(micro_batch.0 ^ 1), ..unit };
        let other_stage = Unit { stage: StageId(1 - stage.0.min(1)), ..unit };
        [other_batch, other_stage]
    };
    let works = |work: &Work| -> Vec<Work> {
        match *work {
            Work::Pass(pass, unit) => {
                let others = Pass::ALL.into_iter().filter(|&other| other != pass);
                let mut all: Vec<Work> = others.map(|other| Work::Pass(other, unit)).collect();
                all.extend(units(unit).map(|other| Work::Pass(pass, other)));
                all.push(Work::Pair(Box::new(Pair {
                    forward: unit,
                    backward: units(unit)[0],
                    pass: Pass::BW,
                })));
                all
            }
            Work::Pair(ref pair) => {
                let Pair { forward, backward, pass } = **pair;
                let others = Pass::ALL.into_iter().filter(|&other| other != pass);
                let mut all: Vec<Pair> = others.map(|other| Pair { pass: other, ..**pair }).collect();
                all.extend(units(forward).map(|forward| Pair { forward, ..**pair }));
                all.extend(units(backward).map(|backward| Pair { backward, ..**pair }));
                all.push(Pair { forward: backward, backward: forward, pass });
                let mut all: Vec<Work> = all.into_iter().map(|pair| Work::Pair(Box::new(pair))).collect();
                all.extend([Work::Pass(Pass::F, forward), Work::Pass(pass, backward)]);
                all
            }
            Work::Stage(..) | Work::Step(_) => Vec::new(),
        }
    };
    match instruction {
        Instruction::Run { function, views: regions, scalars, work } => {
            for (index, &region) in regions.iter().enumerate() {
                for view in views(region) {
                    let mut regions = regions.clone();
                    regions[index] = view;
                    all.push(Mutation::Replace(Instruction::Run {
                        function: *function,
                        views: regions,
                        scalars: scalars.clone(),
                        work: work.clone(),
                    }));
                }
            }
            for other in program.functions.ids().filter(|other| other != function) {
                let run = Instruction::Run {
                    function: other,
                    views: regions.clone(),
                    scalars: scalars.clone(),
                    work: work.clone(),
                };
                all.push(Mutation::Replace(run));
            }
            for work in works(work) {
                all.push(Mutation::Replace(Instruction::Run {
                    function: *function,
                    views: regions.clone(),
                    scalars: scalars.clone(),
                    work,
                }));
            }
        }
        Instruction::Send { channel, view, work } => {
            all.extend(views(*view).into_iter().map(|view| {
                Mutation::Replace(Instruction::Send { channel: *channel, view, work: work.clone() })
            }));
            all.extend(
                works(work).into_iter().map(|work| {
                    Mutation::Replace(Instruction::Send { channel: *channel, view: *view, work })
                }),
            );
        }
        Instruction::Recv { channel, view, work } => {
            all.extend(views(*view).into_iter().map(|view| {
                Mutation::Replace(Instruction::Recv { channel: *channel, view, work: work.clone() })
            }));
            all.extend(
                works(work).into_iter().map(|work| {
                    Mutation::Replace(Instruction::Recv { channel: *channel, view: *view, work })
                }),
            );
        }
        Instruction::Copy { from, to } => {
            all.extend(
                views(*from).into_iter().map(|from| Mutation::Replace(Instruction::Copy { from, to: *to })),
            );
            all.extend(
                views(*to).into_iter().map(|to| Mutation::Replace(Instruction::Copy { from: *from, to })),
            );
        }
        Instruction::Fill { view } => {
            all.extend(views(*view).into_iter().map(|view| Mutation::Replace(Instruction::Fill { view })));
        }
        Instruction::Reduce { group, view, work } => {
            all.extend(views(*view).into_iter().map(|view| {
                Mutation::Replace(Instruction::Reduce { group: *group, view, work: work.clone() })
            }));
        }
        Instruction::Wait { queue, position } => {
            for other in [position.wrapping_sub(1), position + 1, 0, u32::MAX] {
                all.push(Mutation::Replace(Instruction::Wait { queue: *queue, position: other }));
            }
            for other in program.queues.ids().filter(|other| other != queue) {
                all.push(Mutation::Replace(Instruction::Wait { queue: other, position: *position }));
            }
        }
    }
    all
}

fn mutate(program: &Program, queue: QueueId, position: usize, mutation: &Mutation) -> Program {
    let mut mutant = program.clone();
    let instructions = &mut mutant.queues[queue].instructions;
    match mutation {
        Mutation::Drop => {
            instructions.remove(position);
        }
        Mutation::Double => instructions.insert(position, instructions[position].clone()),
        Mutation::Swap => instructions.swap(position, position + 1),
        Mutation::Replace(other) => instructions[position] = other.clone(),
    }
    mutant
}

#[test]
fn mutants_are_refused_or_equivalent() {
    for text in [TWO_STAGES, TIED, OFFLOAD, PAIR, TWO_CUTS] {
        let (program, _) = text::parse(text).expect("the text is right");
        let expected = outcome(&program);
        let mut different = Vec::new();
        let (mut refused, mut equal) = (0, 0);
        for queue in program.queues.ids() {
            for position in 0..program.queues[queue].instructions.len() {
                for mutation in mutations(&program, queue, position) {
                    match verify(mutate(&program, queue, position, &mutation)) {
                        Err(_) => refused += 1,
                        Ok(mutant) if outcome(&mutant) == expected => equal += 1,
                        Ok(_) => different.push(format!("{queue} {position}: {mutation:?}")),
                    }
                }
            }
        }
        assert!(refused > 10 * equal, "{refused} mutants are refused, {equal} equal");
        assert!(
            different.is_empty(),
            "{refused} refused, {equal} equal, different:\n{}",
            different.join("\n")
        );
    }
}
