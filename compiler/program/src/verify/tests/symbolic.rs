//! Programs executed on symbols instead of numbers: every four bytes hold a hash of how they came to be. Two programs
//! that leave equal hashes in state and readings compute the same bits, whatever the kernels compute.

use crate::function::{Body, Function, Value};
use crate::id::{ChannelId, DeviceId, GroupId, Id, QueueId, ValueId};
use crate::program::{Argument, Instruction, Program, Space, View, Work};
use crate::signature;
use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

const WORD: u64 = 4;

fn hash(parts: impl Hash) -> u64 {
    // The default hasher has fixed keys.
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

struct Machine<'a> {
    program: &'a Program,
    memory: BTreeMap<(DeviceId, Space, u64), u64>,
    channels: BTreeMap<ChannelId, VecDeque<Vec<u64>>>,
    /// Who stands at a reduction.
    groups: BTreeMap<GroupId, Vec<(DeviceId, View, QueueId)>>,
}

impl Machine<'_> {
    fn words(&self, view: View) -> Vec<(DeviceId, Space, u64)> {
        let buffer = &self.program.buffers[view.buffer];
        let start = (buffer.offset + view.offset).0;
        (start..start + view.bytes.0)
            .step_by(WORD as usize)
            .map(|at| (buffer.device, buffer.space, at))
            .collect()
    }

    fn read(&self, view: View) -> Vec<u64> {
        let word = |key: &(DeviceId, Space, u64)| {
            self.memory.get(key).copied().unwrap_or_else(|| hash(("undefined", key)))
        };
        self.words(view).iter().map(word).collect()
    }

    fn write(&mut self, view: View, contents: impl IntoIterator<Item = u64>) {
        self.memory.extend(self.words(view).into_iter().zip(contents));
    }

    fn fill(&mut self, view: View, what: impl Hash) {
        let what = hash(what);
        let count = self.words(view).len() as u64;
        self.write(view, (0..count).map(|index| hash((what, index))));
    }

    fn call(&mut self, function: &Function, views: &[View], scalars: &[Argument], work: &Work) {
        let Body::Kernels { values, kernels } = &function.body else { return };
        let place = |id: ValueId| {
            let Value { param, offset, ty } = &values[id];
            let view = views[param.index()];
            View { offset: view.offset + *offset, bytes: ty.bytes(), ..view }
        };
        for kernel in kernels {
            let arguments: Vec<String> = signature::scalars(&kernel.op)
                .into_iter()
                .map(|(scalar, ..)| match scalars[scalar.index()] {
                    // A scalar of a pair is that of its half.
                    Argument::Step(input) => {
                        let mut passes = work.passes();
                        let own = match function.pair {
                            Some(halves) if scalar >= halves.scalar => passes.nth(1),
                            Some(_) | None => passes.next(),
                        };
                        format!("{input:?} {own:?}")
                    }
                    argument => format!("{argument:?}"),
                })
                .collect();
            let inputs: Vec<Vec<u64>> = kernel.inputs.iter().map(|&input| self.read(place(input))).collect();
            let call = hash((format!("{:?}", kernel.op), arguments, inputs));
            let in_place = signature::updates_in_place(&kernel.op);
            for (number, output) in kernel.outputs.iter().enumerate() {
                let view = place(output.value);
                let before = self.read(view);
                let keeps = output.accumulate || in_place;
                let after = before.iter().enumerate().map(|(index, &word)| {
                    hash((call, number, index, output.accumulate, if keeps { word } else { 0 }))
                });
                self.write(view, after.collect::<Vec<_>>());
            }
        }
    }

    /// Whether an instruction could run.
    fn step(&mut self, queue: QueueId, instruction: &Instruction, at: &[usize]) -> bool {
        let program = self.program;
        match instruction {
            Instruction::Run { function, views, scalars, work } => {
                self.call(&program.functions[*function], views, scalars, work);
            }
            Instruction::Send { channel, view, .. } => {
                let message = self.read(*view);
                self.channels.entry(*channel).or_default().push_back(message);
            }
            Instruction::Recv { channel, view, .. } => {
                match self.channels.entry(*channel).or_default().pop_front() {
                    Some(message) => self.write(*view, message),
                    None => return false,
                }
            }
            Instruction::Copy { from, to } => {
                let contents = self.read(*from);
                self.write(*to, contents);
            }
            Instruction::Fill { view } => self.fill(*view, "zero"),
            Instruction::Reduce { group, view, .. } => {
                let device = program.queues[queue].device;
                let mut members = self.groups.remove(group).unwrap_or_default();
                if !members.iter().any(|&(_, _, other)| other == queue) {
                    members.push((device, *view, queue));
                }
                if members.len() < program.groups[*group].members.len() {
                    self.groups.insert(*group, members);
                    return false;
                }
                members.sort_by_key(|&(device, ..)| device);
                let parts: Vec<Vec<u64>> = members.iter().map(|&(_, view, _)| self.read(view)).collect();
                let sum: Vec<u64> = (0..parts[0].len())
                    .map(|index| hash(parts.iter().map(|part| part[index]).collect::<Vec<_>>()))
                    .collect();
                for (_, view, _) in members {
                    self.write(view, sum.iter().copied());
                }
            }
            Instruction::Wait { queue, position } => return at[queue.index()] >= *position as usize,
        }
        true
    }
}

/// What a step leaves in state and in readings.
pub(super) fn outcome(program: &Program) -> Vec<u64> {
    let mut machine =
        Machine { program, memory: BTreeMap::new(), channels: BTreeMap::new(), groups: BTreeMap::new() };
    let state = program.parameters.values().flat_map(|parameter| {
        parameter.copies.iter().flat_map(|copy| {
            [
                Some(copy.weight),
                copy.moments.map(|moments| moments[0]),
                copy.moments.map(|moments| moments[1]),
                copy.master,
            ]
        })
    });
    let state: Vec<View> = state.flatten().collect();
    for (number, &view) in state.iter().enumerate() {
        machine.fill(view, ("state", number));
    }
    for feed in &program.feeds {
        machine.fill(feed.view, feed.kind);
    }
    let mut at = vec![0; program.queues.len()];
    let mut met: Vec<Option<GroupId>> = vec![None; program.queues.len()];
    loop {
        let before = at.clone();
        for (id, queue) in program.queues.iter() {
            while let Some(instruction) = queue.instructions.get(at[id.index()]) {
                // The last member of a reduction carries the others over it.
                if met[id.index()].take().is_none() && !machine.step(id, instruction, &at) {
                    break;
                }
                if let Instruction::Reduce { group, .. } = instruction {
                    for (other, row) in program.queues.iter() {
                        let here = row.instructions.get(at[other.index()]);
                        let waits =
                            matches!(here, Some(Instruction::Reduce { group: same, .. }) if same == group);
                        if other != id
                            && waits
                            && met[other.index()].is_none()
                            && !machine.groups.contains_key(group)
                        {
                            met[other.index()] = Some(*group);
                        }
                    }
                }
                at[id.index()] += 1;
            }
        }
        if at == before {
            break;
        }
    }
    let finished = program.queues.iter().all(|(id, queue)| at[id.index()] == queue.instructions.len());
    assert!(finished, "a verified program finishes, this one stands at {at:?}");
    let readings = program.readings.iter().map(|reading| reading.view);
    state.into_iter().chain(readings).flat_map(|view| machine.read(view)).collect()
}
