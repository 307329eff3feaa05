//! From the numbers of a file to the integers of a problem, and back.

use super::{Amounts, FileError, Place, PlaceName, Scale, ScheduleFile, Table, Times};
use crate::schedule::{Cost, Problem, ProblemError};
use pipec_program::id::{Id, IdVec};
use pipec_program::{DeviceId, Slice, StageId};

impl ScheduleFile {
    /// A uniform problem.
    pub fn uniform(devices: u32, chunks: u32, slices: u32, microbatches: u32, placement: PlaceName) -> Self {
        Self {
            devices,
            chunks,
            slices,
            lengths: None,
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
        let paired = costs(problem).any(|cost| cost.pair.is_some());
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
            lengths: None,
            microbatches: problem.micro_batches(),
            placement,
            costs: Times {
                forward: time(|cost| cost.forward),
                input: time(|cost| cost.input),
                weight: time(|cost| cost.weight),
                backward: time(|cost| cost.backward),
                recompute: time(|cost| cost.recompute),
                pair: paired.then(|| time(|cost| cost.pair.unwrap_or(cost.apart()))).flatten(),
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
        if let Some(lengths) = &self.lengths
            && (lengths.len() != self.slices as usize || lengths.contains(&0))
        {
            return Err(FileError::Lengths);
        }
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
        let pair = or("FB", &times.pair, sum(&forward, &backward))?;
        let halves = forward.iter().zip(&backward);
        if times.pair.is_some() && halves.zip(&pair).any(|((f, b), pair)| *pair < f.max(*b)) {
            return Err(FileError::Short);
        }
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
        let all_times = [&forward, &input, &weight, &backward, &recompute, &pair, &vec![delay]];
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
                pair: times.pair.is_some().then(|| in_time(&pair)),
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
}

/// The costs of all units of a micro-batch.
fn costs(problem: &Problem) -> impl Iterator<Item = &Cost> {
    let slices = problem.slices();
    problem.stages().flat_map(move |stage| (0..slices).map(move |slice| problem.cost(stage, Slice(slice))))
}

/// The share of the activations that B frees, over all units; none where it frees nothing.
fn released(problem: &Problem) -> Option<f64> {
    let sum = |of: fn(&Cost) -> u64| costs(problem).map(|cost| of(cost) as f64).sum::<f64>();
    let released = sum(|cost| cost.released);
    (released > 0.0).then(|| released / sum(|cost| cost.activations))
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
