//! What a picture shows of a program and a timeline: the events of every device by lane, with what they are.

use super::Named;
use pipec_program::id::Id;
use pipec_program::{
    DeviceId, Event, Instruction, Nanos, Pass, Program, QueueKind, StageId, StepWork, Timeline, Unit, Work,
};

/// What a mark is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Pass(Pass),
    /// A forward pass with this one.
    Pair(Pass),
    Step(StepWork),
    Fill,
    Copy,
    Send,
    Recv,
    Reduce,
}

impl Kind {
    /// Its letter. Both backward passes in one read `B`, as everywhere in the field.
    pub(super) fn letter(self) -> &'static str {
        match self {
            Self::Pass(Pass::F) => "F",
            Self::Pass(Pass::B | Pass::BW) => "B",
            Self::Pass(Pass::W) => "W",
            Self::Pass(Pass::R) => "R",
            Self::Pair(_) => "F+B",
            Self::Step(StepWork::Tie) => "T",
            Self::Step(StepWork::Norm) => "N",
            Self::Step(StepWork::Clip) => "C",
            Self::Step(StepWork::Update) => "U",
            Self::Step(StepWork::Load) => "L",
            Self::Fill => "z",
            Self::Copy => "c",
            Self::Send => "s",
            Self::Recv => "r",
            Self::Reduce => "A",
        }
    }

    /// What the legend says.
    pub(super) fn meaning(self) -> &'static str {
        match self {
            Self::Pass(Pass::F) => "forward",
            Self::Pass(Pass::B) => "backward, inputs",
            Self::Pass(Pass::BW) => "backward",
            Self::Pass(Pass::W) => "backward, weights",
            Self::Pass(Pass::R) => "recompute",
            Self::Pair(Pass::B) => "forward + backward, inputs",
            Self::Pair(Pass::BW | Pass::F | Pass::W | Pass::R) => "forward + backward",
            Self::Step(StepWork::Tie) => "tie",
            Self::Step(StepWork::Norm) => "norm",
            Self::Step(StepWork::Clip) => "clip",
            Self::Step(StepWork::Update) => "update",
            Self::Step(StepWork::Load) => "load",
            Self::Fill => "fill",
            Self::Copy => "copy",
            Self::Send => "send",
            Self::Recv => "receive",
            Self::Reduce => "reduce",
        }
    }
}

/// An event that is drawn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark<'a> {
    pub(super) event: Event,
    pub(super) kind: Kind,
    /// What a pass belongs to, or what a message carries.
    pub(super) work: Option<&'a Work>,
}

/// A lane of a device: a queue.
#[derive(Clone, Debug)]
pub(super) struct Lane<'a> {
    pub(super) kind: QueueKind,
    pub(super) marks: Vec<Mark<'a>>,
}

/// A device.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) device: DeviceId,
    /// The stages whose passes it runs, ascending: its chunks.
    pub(super) stages: Vec<StageId>,
}

impl Row {
    /// The chunk of a stage.
    pub(super) fn chunk(&self, stage: StageId) -> usize {
        self.stages.binary_search(&stage).unwrap_or(0)
    }

    /// The letter of a chunk, empty where the device has a single one.
    pub(super) fn letter(&self, stage: StageId) -> String {
        if self.stages.len() < 2 {
            return String::new();
        }
        let chunk = self.chunk(stage);
        let letter = char::from(b'a' + (chunk % 26) as u8);
        if chunk < 26 { letter.to_string() } else { format!("{letter}{}", chunk / 26) }
    }

    /// Its name with its stages: `d0 g0`, or `d0 a=g0 b=g2`.
    pub(super) fn name(&self) -> String {
        let mut name = self.device.to_string();
        for &stage in &self.stages {
            let letter = self.letter(stage);
            name += &if letter.is_empty() { format!(" {stage}") } else { format!(" {letter}={stage}") };
        }
        name
    }
}

/// The devices of a program, whatever the timeline.
pub(super) fn rows(program: &Program) -> Vec<Row> {
    let mut rows: Vec<Row> = program.devices.ids().map(|device| Row { device, stages: Vec::new() }).collect();
    for queue in program.queues.values() {
        for instruction in &queue.instructions {
            if let Instruction::Run { work, .. } = instruction {
                rows[queue.device.index()].stages.extend(work.passes().map(|(_, unit)| unit.stage));
            }
        }
    }
    for row in &mut rows {
        row.stages.sort_unstable();
        row.stages.dedup();
    }
    rows
}

/// The lanes of a device in the order of its queues.
pub(super) fn lanes<'a>(program: &'a Program, timeline: &Timeline, device: DeviceId) -> Vec<Lane<'a>> {
    let queues = program.queues.iter().filter(|(_, queue)| queue.device == device);
    queues
        .map(|(id, queue)| {
            let marks = timeline.queue(id).iter().filter_map(|&event| {
                let instruction = queue.instructions.get(event.position as usize)?;
                mark(event, instruction)
            });
            Lane { kind: queue.kind, marks: marks.collect() }
        })
        .collect()
}

fn mark(event: Event, instruction: &Instruction) -> Option<Mark<'_>> {
    let (kind, work) = match instruction {
        Instruction::Run { work, .. } => match work {
            Work::Pass(pass, _) => (Kind::Pass(*pass), Some(work)),
            Work::Pair(pair) => (Kind::Pair(pair.pass), Some(work)),
            Work::Stage(step, _) | Work::Step(step) => (Kind::Step(*step), Some(work)),
        },
        Instruction::Send { work, .. } => (Kind::Send, Some(work)),
        Instruction::Recv { work, .. } => (Kind::Recv, Some(work)),
        Instruction::Reduce { work, .. } => (Kind::Reduce, Some(work)),
        Instruction::Copy { .. } => (Kind::Copy, None),
        Instruction::Fill { .. } => (Kind::Fill, None),
        Instruction::Wait { .. } => return None,
    };
    Some(Mark { event, kind, work })
}

impl Mark<'_> {
    /// The passes that it is, or that made a message.
    pub(super) fn passes(&self) -> impl Iterator<Item = (Pass, Unit)> {
        self.work.into_iter().flat_map(Work::passes)
    }

    /// Whether it belongs to a backward pass.
    pub(super) fn is_backward(&self) -> bool {
        self.passes().any(|(pass, _)| match pass {
            Pass::B | Pass::BW | Pass::W => true,
            Pass::F | Pass::R => false,
        })
    }

    /// The label of its box: `F3`, with slices `F3.1`, on a device of several chunks `F3b`; `F3+B1b` for a pair, `U` for
    /// an update.
    pub(super) fn label(&self, row: &Row, sliced: bool) -> String {
        let of = |kind: Kind, unit: Unit| {
            let slice = if sliced { format!(".{}", unit.slice.0) } else { String::new() };
            format!("{}{}{slice}{}", kind.letter(), unit.micro_batch.0, row.letter(unit.stage))
        };
        let mut labels = self.passes().map(|(pass, unit)| match self.kind {
            Kind::Pair(_) => of(Kind::Pass(pass), unit),
            Kind::Pass(_)
            | Kind::Step(_)
            | Kind::Fill
            | Kind::Copy
            | Kind::Send
            | Kind::Recv
            | Kind::Reduce => of(self.kind, unit),
        });
        match (labels.next(), labels.next()) {
            (None, _) => self.kind.letter().to_owned(),
            (Some(label), None) => label,
            (Some(first), Some(second)) => format!("{first}+{second}"),
        }
    }
}

/// The longest makespan.
pub(super) fn makespan(timelines: &[Named<'_>]) -> Nanos {
    timelines.iter().map(|named| named.timeline.makespan()).max().unwrap_or_default()
}

/// What stands above every picture: `tiny: 4 devices, 4 stages, 8 micro-batches`.
pub(crate) fn title(program: &Program) -> String {
    let count = |number: u64, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
    let mut parts = vec![
        count(program.devices.len() as u64, "device"),
        count(program.batch.stages.into(), "stage"),
        format!(
            "{} micro-batch{}",
            program.batch.micro_batches,
            if program.batch.micro_batches == 1 { "" } else { "es" }
        ),
    ];
    if program.batch.slices > 1 {
        parts.push(count(program.batch.slices.into(), "slice"));
    }
    format!("{}: {}", program.name, parts.join(", "))
}
