//! Problems and schedules in a form to exchange: what the JSON of `pipec schedule` holds.
//!
//! Times and memory are numbers of any unit; a problem gets integers of a unit small enough that nothing is lost which a
//! double can say. Optional entries have the defaults of a uniform pipeline whose passes take one unit of time and whose
//! activations of one micro-batch over the whole model are one unit of memory, A.

use super::{Channels, Cost, Execution, Problem, ProblemError, Schedule, Step, capacity, peaks};
use pipec_program::id::{Id, IdVec};
use pipec_program::{DeviceId, MicroBatch, Pass, Slice, StageId, Unit};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A problem, and a schedule for it if there are `ops`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleFile {
    /// Devices p.
    pub devices: u32,
    /// Chunks of each device: of both copies where the placement is `bidir`.
    #[serde(default = "one")]
    pub chunks: u32,
    /// Slices s of a sequence.
    #[serde(default = "one")]
    pub slices: u32,
    /// Micro-batches n of a step.
    #[serde(default = "one")]
    pub microbatches: u32,
    /// Where stages stand.
    #[serde(default)]
    pub placement: Place,
    /// Times.
    #[serde(default)]
    pub costs: Times,
    /// Memory.
    #[serde(default)]
    pub memory: Amounts,
    /// For each device its passes in order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ops: Option<Vec<Vec<Op>>>,
    /// For each device the positions in `ops` of forward passes that are one block with the backward pass after them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pairs: Option<Vec<Vec<usize>>>,
    /// What the schedule takes. Written, and not read back.
    #[serde(default, skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub report: Option<Report>,
}

/// Times and memory of a schedule, in the units of its file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The end of the last pass.
    pub makespan: f64,
    /// Idle share of the makespan of all devices.
    pub bubble: f64,
    /// Idle share of the longest window of a device.
    pub bubble_window: f64,
    /// The most memory of any device.
    pub peak_memory: f64,
    /// By device.
    pub peak_memory_per_device: Vec<f64>,
    /// Messages that every channel must hold, with one channel per ordered pair of devices; none if their order differs.
    pub min_send_buffers_per_pair: Option<u32>,
    /// The same with one channel per kind of message and receiving stage.
    pub min_send_buffers_per_kind: Option<u32>,
}

impl Report {
    /// The figures of a schedule and its execution.
    pub fn new(problem: &Problem, schedule: &Schedule, execution: &Execution, scale: Scale) -> Self {
        let peaks = peaks(problem, schedule);
        let peaks: Vec<f64> = peaks.values().map(|&peak| peak as f64 / scale.memory).collect();
        Self {
            makespan: execution.makespan() as f64 / scale.time,
            bubble: execution.bubble(),
            bubble_window: execution.window_bubble(),
            peak_memory: peaks.iter().copied().fold(0.0, f64::max),
            peak_memory_per_device: peaks,
            min_send_buffers_per_pair: capacity(problem, schedule, Channels::PerPair),
            min_send_buffers_per_kind: capacity(problem, schedule, Channels::PerStage),
        }
    }
}

/// Where stages stand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Place {
    /// A usual placement.
    Named(PlaceName),
    /// For each device the stage of each chunk.
    Stages(Vec<Vec<u32>>),
}

/// The usual placements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PlaceName {
    /// Stage g on device `g mod p`.
    Interleave,
    /// Forth and back.
    Vshape,
    /// Two copies in opposite directions; micro-batch m runs on copy `m mod 2`.
    Bidir,
}

impl Default for Place {
    fn default() -> Self {
        Self::Named(PlaceName::Interleave)
    }
}

/// A number for all units, one for each slice, or one for each stage of a copy and slice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Table {
    /// The same everywhere.
    Everywhere(f64),
    /// By slice.
    Slices(Vec<f64>),
    /// By stage, then slice.
    Stages(Vec<Vec<f64>>),
}

/// Times of passes: F, B and W 1 by default, BW as B and W, R as F, no overlap, no delay, W in one part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Times {
    /// F.
    #[serde(rename = "F", default, skip_serializing_if = "Option::is_none")]
    pub forward: Option<Table>,
    /// B.
    #[serde(rename = "B", default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Table>,
    /// W.
    #[serde(rename = "W", default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<Table>,
    /// BW.
    #[serde(rename = "BW", default, skip_serializing_if = "Option::is_none")]
    pub backward: Option<Table>,
    /// R.
    #[serde(rename = "R", default, skip_serializing_if = "Option::is_none")]
    pub recompute: Option<Table>,
    /// What a pair takes less than its passes one after the other, by the unit of its backward pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap: Option<Table>,
    /// The delay of a message between devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comm: Option<f64>,
    /// GEMMs of W.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wparts: Option<u16>,
}

/// Memory of units: activations of `1 / (stages slices)` by default, and nothing else.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Amounts {
    /// Activations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub act: Option<Table>,
    /// The share of the activations that B frees, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub b_release: Option<f64>,
    /// What B makes for W.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grad_keep: Option<Table>,
    /// The accumulator of the gradients of keys and values of a slice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dkv: Option<Table>,
    /// What F keeps of a unit that is recomputed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ckpt: Option<Table>,
    /// The most of each device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<f64>,
}

/// A pass: its kind, micro-batch, slice and chunk, and the number of a GEMM of W.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Op {
    /// One GEMM of W.
    Part(Kind, u32, u32, u32, u16),
    /// A whole pass.
    Whole(Kind, u32, u32, u32),
}

/// The kinds of passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Kind {
    F,
    B,
    W,
    BW,
    R,
}

impl From<Kind> for Pass {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::F => Self::F,
            Kind::B => Self::B,
            Kind::W => Self::W,
            Kind::BW => Self::BW,
            Kind::R => Self::R,
        }
    }
}

impl From<Pass> for Kind {
    fn from(pass: Pass) -> Self {
        match pass {
            Pass::F => Self::F,
            Pass::B => Self::B,
            Pass::W => Self::W,
            Pass::BW => Self::BW,
            Pass::R => Self::R,
        }
    }
}

/// How many units of a problem are one of its file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// Of time.
    pub time: f64,
    /// Of memory.
    pub memory: f64,
}

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq)]
pub enum FileError {
    /// The problem cannot be.
    Problem(ProblemError),
    /// A table of another size than the stages and slices ask for, or a number that is negative or none.
    Table(&'static str),
    /// A share outside 0 to 1.
    Share(f64),
    /// A placement with another number of devices or chunks.
    Place,
    /// No GEMM of W.
    NoParts,
    /// Passes that name what the problem does not have, by device and position.
    Op(DeviceId, usize),
    /// Other numbers of devices with passes than there are devices.
    Devices(usize),
    /// No passes.
    NoOps,
    /// A pair that is no forward pass with a backward pass after it.
    Pair(DeviceId, usize),
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Problem(error) => error.fmt(f),
            Self::Table(name) => {
                write!(f, "`{name}` is no table of numbers of at least 0 by stage and slice")
            }
            Self::Share(share) => write!(f, "`b_release` is {share}, and must be between 0 and 1"),
            Self::Place => f.write_str("the placement does not match the numbers of devices and chunks"),
            Self::NoParts => f.write_str("`wparts` must be at least 1"),
            Self::Op(device, position) => {
                write!(f, "pass {position} of {device} is of nothing that the problem has")
            }
            Self::Devices(found) => write!(f, "passes for {found} devices"),
            Self::NoOps => f.write_str("there are no `ops`"),
            Self::Pair(device, position) => {
                write!(f, "pass {position} of {device} is no forward pass with a backward pass after it")
            }
        }
    }
}

impl std::error::Error for FileError {}

fn one() -> u32 {
    1
}

impl ScheduleFile {
    /// A uniform problem.
    pub fn uniform(devices: u32, chunks: u32, slices: u32, microbatches: u32, placement: PlaceName) -> Self {
        Self {
            devices,
            chunks,
            slices,
            microbatches,
            placement: Place::Named(placement),
            costs: Times::default(),
            memory: Amounts::default(),
            ops: None,
            pairs: None,
            report: None,
        }
    }

    /// The file of a problem whose unit is known.
    pub fn of(problem: &Problem, scale: Scale) -> Self {
        let table = |of: fn(&Cost) -> u64, unit: f64| {
            let row = |stage| {
                (0..problem.slices())
                    .map(move |slice| of(problem.cost(StageId(stage), Slice(slice))) as f64 / unit)
            };
            let rows: Vec<Vec<f64>> = (0..problem.depth()).map(|stage| row(stage).collect()).collect();
            let first = rows.iter().flatten().next().copied().unwrap_or(0.0);
            let same = rows.iter().flatten().all(|&each| each == first);
            Some(if same { Table::Everywhere(first) } else { Table::Stages(rows) })
        };
        let time = |of| table(of, scale.time);
        let memory = |of| table(of, scale.memory).filter(|table| *table != Table::Everywhere(0.0));
        let stages = |stages: &Vec<StageId>| stages.iter().map(|stage| stage.0).collect();
        let placement = if problem.copies() == 2 {
            Place::Named(PlaceName::Bidir)
        } else {
            Place::Stages(problem.devices().values().map(stages).collect())
        };
        Self {
            devices: problem.devices().len() as u32,
            chunks: problem.chunks(),
            slices: problem.slices(),
            microbatches: problem.micro_batches(),
            placement,
            costs: Times {
                forward: time(|cost| cost.forward),
                input: time(|cost| cost.input),
                weight: time(|cost| cost.weight),
                backward: time(|cost| cost.backward),
                recompute: time(|cost| cost.recompute),
                overlap: time(|cost| cost.overlap).filter(|table| *table != Table::Everywhere(0.0)),
                comm: Some(problem.delay as f64 / scale.time),
                wparts: Some(problem.weight_parts),
            },
            memory: Amounts {
                act: table(|cost| cost.activations, scale.memory),
                b_release: released(problem),
                grad_keep: memory(|cost| cost.gradients),
                dkv: memory(|cost| cost.prefix),
                ckpt: memory(|cost| cost.checkpoint),
                limit: problem
                    .caps
                    .as_ref()
                    .and_then(|caps| caps.values().min().map(|&cap| cap as f64 / scale.memory)),
            },
            ops: None,
            pairs: None,
            report: None,
        }
    }

    /// The problem in integers, and their unit.
    ///
    /// # Errors
    /// Sizes, tables or a placement that do not fit each other.
    pub fn problem(&self) -> Result<(Problem, Scale), FileError> {
        let copies = if self.placement == Place::Named(PlaceName::Bidir) { 2 } else { 1 };
        let mut problem = self.placed(copies)?;
        let (depth, slices) = (problem.depth() as usize, self.slices as usize);
        let rows =
            |name, table: &Option<Table>, default: f64| rows(name, table.as_ref(), default, depth, slices);
        let sum = |a: &[f64], b: &[f64]| -> Vec<f64> { a.iter().zip(b).map(|(a, b)| a + b).collect() };
        let times = &self.costs;
        let (forward, input) = (rows("F", &times.forward, 1.0)?, rows("B", &times.input, 1.0)?);
        let weight = rows("W", &times.weight, 1.0)?;
        let or = |name, table: &Option<Table>, default: Vec<f64>| match table {
            Some(_) => rows(name, table, 0.0),
            None => Ok(default),
        };
        let backward = or("BW", &times.backward, sum(&input, &weight))?;
        let recompute = or("R", &times.recompute, forward.clone())?;
        let overlap = rows("overlap", &times.overlap, 0.0)?;
        let delay = number("comm", times.comm.unwrap_or(0.0))?;
        let parts = times.wparts.unwrap_or(1);
        if parts == 0 {
            return Err(FileError::NoParts);
        }
        let amounts = &self.memory;
        let share = amounts.b_release.unwrap_or(0.0);
        if !(0.0..=1.0).contains(&share) {
            return Err(FileError::Share(share));
        }
        let whole = 1.0 / (depth * slices) as f64;
        let activations = rows("act", &amounts.act, whole)?;
        let released: Vec<f64> = activations.iter().map(|all| all * share).collect();
        let gradients = rows("grad_keep", &amounts.grad_keep, 0.0)?;
        let prefix = rows("dkv", &amounts.dkv, 0.0)?;
        let checkpoint = rows("ckpt", &amounts.ckpt, 0.0)?;
        let limit = amounts.limit.map(|limit| number("limit", limit)).transpose()?;

        let units = problem.units() as f64;
        let all_times = [&forward, &input, &weight, &backward, &recompute, &overlap, &vec![delay]];
        let time = scale(all_times.into_iter().flatten().copied(), u64::from(parts), units * 8.0);
        let all_amounts = [&activations, &released, &gradients, &prefix, &checkpoint];
        let multiple = u64::from(parts) * (depth * slices) as u64;
        let memory = scale(all_amounts.into_iter().flatten().copied(), multiple, units * 8.0);
        problem.set_costs(|stage, slice| {
            let row = (stage.index() % depth) * slices + slice.index();
            let in_time = |table: &[f64]| (table[row] * time).round() as u64;
            let in_memory = |table: &[f64]| (table[row] * memory).round() as u64;
            Cost {
                forward: in_time(&forward),
                input: in_time(&input),
                weight: in_time(&weight),
                backward: in_time(&backward),
                recompute: in_time(&recompute),
                overlap: in_time(&overlap),
                activations: in_memory(&activations),
                released: in_memory(&released),
                gradients: in_memory(&gradients),
                prefix: in_memory(&prefix),
                checkpoint: in_memory(&checkpoint),
            }
        });
        problem.delay = (delay * time).round() as u64;
        problem.weight_parts = parts;
        // What is over by a rounding error still fits.
        problem.caps = limit.map(|limit| {
            let cap = (limit * memory * (1.0 + 1e-12) + 1e-9).floor() as u64;
            problem.devices().values().map(|_| cap).collect()
        });
        Ok((problem, Scale { time, memory }))
    }

    fn placed(&self, copies: u32) -> Result<Problem, FileError> {
        let (p, v) = (self.devices, self.chunks);
        let count = u64::from(p).saturating_mul(u64::from(v)).saturating_mul(u64::from(self.slices));
        if count > 1 << 24 {
            return Err(FileError::Problem(ProblemError::TooLarge));
        }
        let devices: IdVec<DeviceId, Vec<StageId>> = match &self.placement {
            Place::Stages(stages) => {
                if stages.len() != p as usize || stages.iter().any(|row| row.len() != v as usize) {
                    return Err(FileError::Place);
                }
                stages.iter().map(|row| row.iter().copied().map(StageId).collect()).collect()
            }
            Place::Named(PlaceName::Bidir) if v != 2 => return Err(FileError::Place),
            Place::Named(name) => {
                let backwards = |chunk: u32| match name {
                    PlaceName::Interleave => false,
                    PlaceName::Vshape | PlaceName::Bidir => chunk % 2 == 1,
                };
                let stage = |r: u32, chunk: u32| chunk * p + if backwards(chunk) { p - 1 - r } else { r };
                (0..p).map(|r| (0..v).map(|chunk| StageId(stage(r, chunk))).collect()).collect()
            }
        };
        let costs = vec![Cost::UNIT; count as usize];
        Problem::new(copies, devices, self.microbatches, self.slices, costs).map_err(FileError::Problem)
    }

    /// The same problem with a schedule and what it takes.
    pub fn with(mut self, problem: &Problem, schedule: &Schedule, report: Report) -> Self {
        let chunk = |device: DeviceId, stage: StageId| {
            let chunks = problem.devices().get(device).map_or(&[][..], Vec::as_slice);
            chunks.iter().position(|&each| each == stage).unwrap_or(0) as u32
        };
        let (mut ops, mut pairs) = (Vec::new(), Vec::new());
        for (device, steps) in schedule.devices.iter() {
            let (mut of_device, mut paired) = (Vec::new(), Vec::new());
            for &step in steps {
                if matches!(step, Step::Pair { .. }) {
                    paired.push(of_device.len());
                }
                of_device.extend(step.passes().map(|(pass, unit)| {
                    let (m, i, c) = (unit.micro_batch.0, unit.slice.0, chunk(device, unit.stage));
                    match step {
                        Step::Product(_, part) => Op::Part(pass.into(), m, i, c, part),
                        Step::Pass(..) | Step::Pair { .. } => Op::Whole(pass.into(), m, i, c),
                    }
                }));
            }
            ops.push(of_device);
            pairs.push(paired);
        }
        self.ops = Some(ops);
        self.report = Some(report);
        self.pairs = pairs.iter().any(|paired| !paired.is_empty()).then_some(pairs);
        self
    }

    /// The schedule for a problem of this file.
    ///
    /// # Errors
    /// No `ops`, or passes of what the problem does not have.
    pub fn schedule(&self, problem: &Problem) -> Result<Schedule, FileError> {
        let ops = self.ops.as_ref().ok_or(FileError::NoOps)?;
        if ops.len() != problem.devices().len() {
            return Err(FileError::Devices(ops.len()));
        }
        let none = Vec::new();
        let mut devices = IdVec::new();
        for ((device, stages), ops) in problem.devices().iter().zip(ops) {
            let mut steps = Vec::new();
            for (position, &op) in ops.iter().enumerate() {
                let wrong = FileError::Op(device, position);
                let (kind, m, i, c, part) = match op {
                    Op::Whole(kind, m, i, c) => (kind, m, i, c, None),
                    Op::Part(kind, m, i, c, part) => (kind, m, i, c, Some(part)),
                };
                let stage = *stages.get(c as usize).ok_or(wrong.clone())?;
                let unit = Unit { stage, micro_batch: MicroBatch(m), slice: Slice(i) };
                steps.push(match (kind, part) {
                    (Kind::W, Some(part)) => Step::Product(unit, part),
                    (Kind::F | Kind::B | Kind::BW | Kind::R, Some(_)) => return Err(wrong),
                    (kind, None) => Step::Pass(kind.into(), unit),
                });
            }
            let paired = self.pairs.as_ref().and_then(|pairs| pairs.get(device.index())).unwrap_or(&none);
            devices.push(joined(device, steps, paired)?);
        }
        Ok(Schedule { devices })
    }
}

/// The share of the activations that B frees, over all units; none where it frees nothing.
fn released(problem: &Problem) -> Option<f64> {
    let costs = || {
        problem
            .stages()
            .flat_map(|stage| (0..problem.slices()).map(move |slice| problem.cost(stage, Slice(slice))))
    };
    let sum = |of: fn(&Cost) -> u64| costs().map(|cost| of(cost) as f64).sum::<f64>();
    let released = sum(|cost| cost.released);
    (released > 0.0).then(|| released / sum(|cost| cost.activations))
}

/// Steps with those at some positions joined with the next.
fn joined(device: DeviceId, steps: Vec<Step>, paired: &[usize]) -> Result<Vec<Step>, FileError> {
    if paired.is_empty() {
        return Ok(steps);
    }
    let mut joined = Vec::with_capacity(steps.len());
    let mut paired = paired.iter().peekable();
    let mut position = 0;
    while let Some(&step) = steps.get(position) {
        if paired.peek().is_some_and(|&&next| next == position) {
            paired.next();
            match (step, steps.get(position + 1)) {
                (Step::Pass(Pass::F, forward), Some(&Step::Pass(pass @ (Pass::B | Pass::BW), backward))) => {
                    joined.push(Step::Pair { forward, backward, pass });
                    position += 2;
                }
                _ => return Err(FileError::Pair(device, position)),
            }
        } else {
            joined.push(step);
            position += 1;
        }
    }
    match paired.next() {
        Some(&position) => Err(FileError::Pair(device, position)),
        None => Ok(joined),
    }
}

fn number(name: &'static str, number: f64) -> Result<f64, FileError> {
    if number.is_finite() && number >= 0.0 { Ok(number) } else { Err(FileError::Table(name)) }
}

/// A table by stage and slice.
fn rows(
    name: &'static str,
    table: Option<&Table>,
    default: f64,
    depth: usize,
    slices: usize,
) -> Result<Vec<f64>, FileError> {
    let rows: Vec<f64> = match table {
        None => vec![default; depth * slices],
        Some(Table::Everywhere(all)) => vec![*all; depth * slices],
        Some(Table::Slices(row)) if row.len() == slices => {
            row.iter().copied().cycle().take(depth * slices).collect()
        }
        Some(Table::Stages(rows)) if rows.len() == depth && rows.iter().all(|row| row.len() == slices) => {
            rows.iter().flatten().copied().collect()
        }
        Some(Table::Slices(_) | Table::Stages(_)) => return Err(FileError::Table(name)),
    };
    rows.into_iter().map(|each| number(name, each)).collect()
}

/// How many integers one is: a decimal power times `multiple` by which all numbers are integers, or as many as sums of
/// `count` of the largest number leave room for.
fn scale(numbers: impl Iterator<Item = f64> + Clone, multiple: u64, count: f64) -> f64 {
    const MOST_DIGITS: i32 = 9;
    let largest = numbers.clone().fold(0.0, f64::max);
    if largest == 0.0 {
        return multiple as f64;
    }
    let room = 2_f64.powi(61) / (largest * count.max(1.0));
    let exact = |scale: f64| {
        numbers.clone().all(|number| {
            let scaled = number * scale;
            (scaled - scaled.round()).abs() <= scaled * 4.0 * f64::EPSILON
        })
    };
    let decimal = (0..=MOST_DIGITS).map(|digits| 10_f64.powi(digits) * multiple as f64);
    let found = decimal.take_while(|&scale| scale <= room).find(|&scale| exact(scale));
    found.unwrap_or_else(|| 2_f64.powi(room.log2().floor() as i32))
}
