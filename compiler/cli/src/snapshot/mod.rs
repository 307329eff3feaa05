//! What a program comes to, small enough to keep and to read: the place of its stages, the order of its passes, the time
//! of a step and the memory of every device.
//!
//! A [`Snapshot`] is a pure function of a program; its text, its form in a file and what two of them differ in stand in
//! the modules below. Times are those of the roofline, all figures are whole numbers and nothing depends on the machine,
//! so that the same program gives the same bytes everywhere.
//!
//! What this module deliberately does not do: decide whether a difference is good, or look at figures of a run.

mod differences;
pub(crate) mod file;
mod keep;
mod pass;
mod text;

#[cfg(test)]
mod tests;

pub use differences::differences;
pub use file::{FileError, Golden};
pub use keep::assert_kept;
pub use pass::PassName;
pub use text::{TextError, parse, print};

use crate::show;
use pipec_program::memory::memory;
use pipec_program::simulate::{device_use, instruction_name};
use pipec_program::{
    Bytes, Category, Costs, DeviceId, Instruction, Nanos, QueueKind, Space, StageId, Verified, simulate,
};
use std::collections::{BTreeMap, BTreeSet};

/// The parts of a snapshot that can be left out. Makespan, bubble and use of devices are always there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Part {
    /// The place of the stages and the order of the passes.
    Schedule,
    /// The arenas.
    Memory,
    /// The text of the program.
    Program,
}

impl Part {
    /// What is kept unless something else is asked for.
    pub const DEFAULT: [Self; 2] = [Self::Schedule, Self::Memory];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Schedule => "schedule",
            Self::Memory => "memory",
            Self::Program => "program",
        }
    }
}

/// What a program comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its name and sizes: `tiny: 4 devices, 4 stages, 8 micro-batches`.
    pub title: String,
    /// The time of a step.
    pub makespan: Nanos,
    /// How long each device computes.
    pub busy: BTreeMap<DeviceId, Nanos>,
    /// Place and order, unless left out.
    pub schedule: Option<Order>,
    /// The arenas by device and space, unless left out.
    pub memory: Option<BTreeMap<(DeviceId, Space), Arena>>,
    /// The text of the program, without what says nothing about it: hash and version of what made it.
    pub program: Option<String>,
}

/// The place of the stages and the order of the passes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// The stages.
    pub stages: BTreeMap<StageId, Stage>,
    /// The passes of each device, each with the moment of its start where a forward pass takes one unit of time, a whole
    /// backward pass two, a part of one one, a pair both, and everything else nothing.
    pub passes: BTreeMap<DeviceId, Vec<(u64, PassName)>>,
}

/// A stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// The devices that run its passes.
    pub devices: BTreeSet<DeviceId>,
    /// Its first and last parameter, `embed .. layer.0.w_down`; `-` without any.
    pub parameters: String,
    /// The elements of its parameters.
    pub weights: u64,
}

/// An arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arena {
    /// What the program takes.
    pub size: Bytes,
    /// The most live bytes, in the order of [`Category::ALL`].
    pub live: [Bytes; Category::ALL.len()],
    /// The instruction that reaches them first; `-` where there is none.
    pub peak: String,
}

impl Snapshot {
    /// The snapshot of a program with some of its parts.
    pub fn of(program: &Verified, parts: &[Part]) -> Self {
        let timeline = simulate(program, &Costs::roofline(program));
        let uses = device_use(program, &timeline);
        Self {
            title: plain(&show::title(program)),
            makespan: timeline.makespan(),
            busy: uses.iter().map(|(device, each)| (device, each.busy)).collect(),
            schedule: parts.contains(&Part::Schedule).then(|| order(program)),
            memory: parts.contains(&Part::Memory).then(|| {
                let arenas = memory(program, &timeline).into_iter();
                arenas
                    .map(|arena| {
                        let live = Category::ALL.map(|category| arena.peak.live.get(category));
                        let instruction = arena.peak.instruction.and_then(|(queue, position)| {
                            program.queues.get(queue)?.instructions.get(position as usize)
                        });
                        let peak = instruction.map_or("-".to_owned(), instruction_name);
                        ((arena.device, arena.space), Arena { size: arena.size, live, peak })
                    })
                    .collect()
            }),
            program: parts.contains(&Part::Program).then(|| {
                let text = pipec_program::text::print(program);
                let says_nothing = |line: &str| line.starts_with("compiler ") || line.starts_with("inputs ");
                text.lines().filter(|line| !says_nothing(line)).map(|line| format!("{line}\n")).collect()
            }),
        }
    }

    /// The parts that it has.
    pub fn parts(&self) -> Vec<Part> {
        let there = [
            (Part::Schedule, self.schedule.is_some()),
            (Part::Memory, self.memory.is_some()),
            (Part::Program, self.program.is_some()),
        ];
        there.into_iter().filter_map(|(part, there)| there.then_some(part)).collect()
    }

    /// The idle share of a device, in 0..=1; of all together without one.
    pub fn bubble(&self, device: Option<DeviceId>) -> f64 {
        let idle = |busy: Nanos| match self.makespan {
            Nanos::ZERO => 0.0,
            makespan => (makespan - busy).0 as f64 / makespan.0 as f64,
        };
        match device {
            Some(device) => self.busy.get(&device).map_or(0.0, |&busy| idle(busy)),
            None => self.busy.values().map(|&busy| idle(busy)).sum::<f64>() / self.busy.len().max(1) as f64,
        }
    }
}

/// The place of the stages and the order of the passes of a program.
fn order(program: &Verified) -> Order {
    let timeline = simulate(program, &Costs::unit(program));
    let mut order = Order::default();
    let mut devices: BTreeMap<StageId, BTreeSet<DeviceId>> = BTreeMap::new();
    for device in program.devices.ids() {
        order.passes.insert(device, Vec::new());
    }
    for (id, queue) in program.queues.iter() {
        if queue.kind != QueueKind::Compute {
            continue;
        }
        let passes = order.passes.entry(queue.device).or_default();
        for event in timeline.queue(id) {
            let instruction = queue.instructions.get(event.position as usize);
            let Some(Instruction::Run { work, .. }) = instruction else { continue };
            let mut of_work = work.passes();
            if let Some((pass, unit)) = of_work.next() {
                let name = PassName { pass, unit, with: of_work.next() };
                for (_, unit) in name.passes() {
                    devices.entry(unit.stage).or_default().insert(queue.device);
                }
                passes.push((event.start.0, name));
            }
        }
    }
    for stage in (0..program.batch.stages).map(StageId) {
        let placed = program
            .parameters
            .values()
            .filter(|parameter| parameter.copies.iter().any(|copy| copy.stages.contains(&stage)));
        let mut names: Option<(&str, &str)> = None;
        let mut weights = 0;
        for parameter in placed {
            weights += parameter.ty.shape.elements();
            names = Some((names.map_or(parameter.name.as_str(), |(first, _)| first), &parameter.name));
        }
        let parameters = match names {
            None => "-".to_owned(),
            Some((first, last)) if first == last => plain(first),
            Some((first, last)) => plain(&format!("{first} .. {last}")),
        };
        let devices = devices.remove(&stage).unwrap_or_default();
        order.stages.insert(stage, Stage { devices, parameters, weights });
    }
    order
}

/// A text on one line with single blanks, as a cell of a table must be.
fn plain(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The name of an arena: `d0 device`.
fn arena_name((device, space): (DeviceId, Space)) -> String {
    match space {
        Space::Device => format!("{device} device"),
        Space::Host => format!("{device} host"),
    }
}

/// The device of a name such as `d3`.
fn device(name: &str) -> Option<DeviceId> {
    name.strip_prefix('d')?.parse().ok().map(DeviceId)
}
