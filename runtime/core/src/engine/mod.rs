//! The engine: executes a verified program on devices, step by step.
//!
//! Each device of the program is driven by one thread during a step, and what computes on its host by another; a step ends
//! when all queues have. Before it the
//! engine writes the feeds, after it it reads the readings, and between steps the state of the run can be read and
//! written. If a device fails or panics, all stop at their next instruction, the step returns the first failure, and
//! the engine takes no further step: the arenas hold the ruins of one.
//!
//! Invariants: arenas are allocated once, as large as the program says; nothing is allocated in a step but lists of a
//! few words.
//!
//! What it deliberately does not do: decide anything. The order of everything stands in the program.

mod exchange;
mod step;

use crate::arena::Touched;
use crate::device::{Compiled, Device, DeviceError};
use crate::shared::SharedArena;
use exchange::Exchange;
use pipec_program::id::Id;
use pipec_program::{
    Bytes, DType, Device as Description, DeviceId, Event, FeedKind, FunctionId, Instruction, Nanos, Position,
    Program, QueueId, ReadingKind, Space, Verified, View, Work,
};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;
use step::{Place, Step, space};

/// A program on its devices, with the state of a run.
pub struct Engine {
    program: Arc<Verified>,
    /// Those of the devices, in their order, then those of the hosts that compute.
    workers: Vec<Worker>,
    /// The worker of the host of each device.
    hosts: Vec<Option<usize>>,
    arenas: Vec<Arenas>,
    slots: Vec<Option<SharedArena>>,
    record: bool,
    failed: bool,
}

/// What computes in an arena, with the functions that it has compiled.
struct Worker {
    id: DeviceId,
    space: Space,
    device: Box<dyn Device>,
    /// By function; those that the device runs.
    functions: Vec<Option<Compiled>>,
}

/// The arenas of a device; none where no buffer lies.
#[derive(Debug, Default)]
struct Arenas {
    device: Option<SharedArena>,
    host: Option<SharedArena>,
}

impl Arenas {
    fn get(&self, space: Space) -> Option<&SharedArena> {
        match space {
            Space::Device => self.device.as_ref(),
            Space::Host => self.host.as_ref(),
        }
    }
}

/// How an engine is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Fill the arenas with a pattern, so that [`Engine::touched`] measures what a run writes. For debugging: it makes
    /// all memory resident and, since undefined bytes then are not zero, shows reads of them.
    pub paint: bool,
}

/// What the engine gives to a step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepInputs {
    /// The number of the step, from 1.
    pub step: u64,
    /// The learning rate.
    pub learning_rate: f64,
    /// One over the number of counted tokens of the global batch.
    pub loss_scale: f64,
    /// The seed of the run, of which the seeds of dropout are made.
    pub seed: u64,
    /// `[micro_batches, sequences, tokens]`.
    pub tokens: Vec<u32>,
    /// The token after each, in the same order.
    pub targets: Vec<u32>,
}

/// What a step returns.
#[derive(Clone, Debug, PartialEq)]
pub struct StepOutput {
    /// Sums of token losses, `[micro_batches, slices]` of every reading in the order of the readings.
    pub losses: Vec<f64>,
    /// The global norm of the gradients before clipping, where the program computes it.
    pub gradient_norm: Option<f64>,
    /// When each instruction but the waits ran, by queue and position; empty unless [`Engine::record`] asked for it.
    pub events: Vec<Event>,
    /// How long the step took.
    pub elapsed: Nanos,
}

/// Where a device failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct At {
    /// The device.
    pub device: DeviceId,
    /// Its name.
    pub name: String,
    /// The queue and position of the instruction; none outside instructions.
    pub instruction: Option<(QueueId, Position)>,
    /// The instruction in a few words.
    pub what: String,
    /// The work that the instruction does: pass and unit, or work of the step.
    pub work: Option<Work>,
}

impl At {
    fn new(program: &Program, device: DeviceId, instruction: Option<(QueueId, Position)>) -> Self {
        let found = instruction.and_then(|(queue, position)| {
            program.queues.get(queue).and_then(|queue| queue.instructions.get(position as usize))
        });
        let (what, work) = match found {
            None => ("between instructions".to_owned(), None),
            Some(Instruction::Run { function, work, .. }) => {
                let name = program.functions.get(*function).map_or("", |function| function.name.as_str());
                (format!("run {function} `{name}`"), Some(work.clone()))
            }
            Some(Instruction::Send { channel, work, .. }) => (format!("send {channel}"), Some(work.clone())),
            Some(Instruction::Recv { channel, work, .. }) => (format!("recv {channel}"), Some(work.clone())),
            Some(Instruction::Reduce { group, work, .. }) => (format!("reduce {group}"), Some(work.clone())),
            Some(Instruction::Copy { .. }) => ("copy".to_owned(), None),
            Some(Instruction::Fill { .. }) => ("fill".to_owned(), None),
            Some(Instruction::Wait { queue, position }) => (format!("wait {queue}>={position}"), None),
        };
        let name = program.devices.get(device).map_or_else(String::new, |device| device.name.clone());
        Self { device, name, instruction, what, work }
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {} ({})", self.device, self.name)?;
        if let Some((queue, position)) = self.instruction {
            write!(f, " at {queue}:{position}")?;
        }
        write!(f, ", {}", self.what)?;
        match &self.work {
            Some(work) => write!(f, ", {work}"),
            None => Ok(()),
        }
    }
}

/// Why a program could not be set up or a step not be finished.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// A device could not be made, or not allocate its arenas.
    #[error("device {device} ({name}): {error}")]
    Setup {
        /// The device.
        device: DeviceId,
        /// Its name.
        name: String,
        /// What it said.
        error: DeviceError,
    },
    /// A device failed in a step.
    #[error("{at}: {error}")]
    Device {
        /// Where.
        at: Box<At>,
        /// What it said.
        error: DeviceError,
    },
    /// A device panicked in a step: an error of the device.
    #[error("{at}: internal error: {message}")]
    Panicked {
        /// Where.
        at: Box<At>,
        /// The message of the panic.
        message: String,
    },
    /// All devices wait for each other. A verified program cannot do that: an error of the engine.
    #[error("internal error: all devices wait for each other")]
    Stalled,
    /// A step failed before, and left the arenas in an unknown state.
    #[error("an earlier step failed; the engine has stopped")]
    Stopped,
    /// The tokens of a step have not the size of a feed.
    #[error("the program takes {expected} tokens a step, not {found}")]
    FeedSize {
        /// Tokens of the feed.
        expected: u64,
        /// Tokens that were given.
        found: u64,
    },
    /// A parameter has an element type that no initial value is rounded to.
    #[error("no initial values for parameter `{name}` of type {dtype}")]
    Initial {
        /// The parameter.
        name: String,
        /// Its element type.
        dtype: DType,
    },
    /// A view does not lie in an arena of the engine.
    #[error("no bytes at {0:?}")]
    View(View),
}

impl Engine {
    /// Makes the devices, allocates their arenas and compiles the functions that each of them runs.
    ///
    /// `make` returns what computes in an arena of a device: the device itself, or for [`Space::Host`] a device that computes in
    /// host memory, which is asked for where something runs on the host. Arenas are zero at first, or painted.
    pub fn new(
        program: Arc<Verified>,
        options: Options,
        mut make: impl FnMut(DeviceId, &Description, Space) -> Result<Box<dyn Device>, DeviceError>,
    ) -> Result<Self, EngineError> {
        let mut workers = Vec::with_capacity(program.devices.len());
        let mut arenas = Vec::with_capacity(program.devices.len());
        for (id, description) in program.devices.iter() {
            let failed = |error| EngineError::Setup { device: id, name: description.name.clone(), error };
            let space = Space::Device;
            let mut device = make(id, description, space).map_err(failed)?;
            arenas.push(allocate(&program, id, device.as_mut(), options).map_err(failed)?);
            let functions = compile(&program, id, space, device.as_mut()).map_err(failed)?;
            workers.push(Worker { id, space, device, functions });
        }
        let mut hosts = vec![None; workers.len()];
        for (id, description) in program.devices.iter() {
            let on_host =
                |queue: &pipec_program::Queue| queue.device == id && space(queue.kind) == Space::Host;
            if !program.queues.values().any(on_host) {
                continue;
            }
            let failed = |error| EngineError::Setup { device: id, name: description.name.clone(), error };
            let space = Space::Host;
            let mut device = make(id, description, space).map_err(failed)?;
            let functions = compile(&program, id, space, device.as_mut()).map_err(failed)?;
            hosts[id.index()] = Some(workers.len());
            workers.push(Worker { id, space, device, functions });
        }
        let mut slots = Vec::with_capacity(program.channels.len());
        for channel in program.channels.values() {
            slots.push(match (channel.capacity, workers.get_mut(channel.to.index())) {
                (0, _) | (_, None) => None,
                (capacity, Some(worker)) => {
                    let bytes = channel.bytes().align_up(64) * u64::from(capacity);
                    let arena = worker.device.allocate(Space::Device, bytes).map_err(|error| {
                        let name = program.devices[channel.to].name.clone();
                        EngineError::Setup { device: channel.to, name, error }
                    })?;
                    Some(SharedArena::new(arena, &program))
                }
            });
        }
        Ok(Self { program, workers, hosts, arenas, slots, record: false, failed: false })
    }

    /// The program.
    pub fn program(&self) -> &Arc<Verified> {
        &self.program
    }

    /// Whether the steps from now on return their events.
    pub fn record(&mut self, record: bool) {
        self.record = record;
    }

    /// Executes one step on all devices.
    pub fn run_step(&mut self, inputs: &StepInputs) -> Result<StepOutput, EngineError> {
        if self.failed {
            return Err(EngineError::Stopped);
        }
        let program = self.program.clone();
        for feed in &program.feeds {
            let tokens = match feed.kind {
                FeedKind::Tokens => &inputs.tokens,
                FeedKind::Targets => &inputs.targets,
            };
            let (expected, found) = (feed.view.bytes.0 / 4, tokens.len() as u64);
            if expected != found {
                return Err(EngineError::FeedSize { expected, found });
            }
            let bytes: Vec<u8> = sliced(&program, tokens).flat_map(u32::to_le_bytes).collect();
            self.write(feed.view, &bytes)?;
        }
        let exchange = Exchange::new(&program, self.workers.len());
        let step = Step {
            program: &program,
            arenas: &self.arenas,
            slots: &self.slots,
            exchange: &exchange,
            hosts: &self.hosts,
            inputs,
            clock: Instant::now(),
            record: self.record,
        };
        let mut events = Vec::new();
        if let Some((last, others)) = self.workers.split_last_mut() {
            // The thread of the caller drives the last worker itself.
            std::thread::scope(|scope| {
                let step = &step;
                let threads: Vec<_> =
                    others.iter_mut().map(|worker| scope.spawn(move || step.drive(worker))).collect();
                let of_last = step.drive(last);
                // A thread catches its own panics, so that joining cannot fail.
                events.extend(threads.into_iter().filter_map(|thread| thread.join().ok()).flatten());
                events.extend(of_last);
            });
        }
        let elapsed = Nanos(u64::try_from(step.clock.elapsed().as_nanos()).unwrap_or(u64::MAX));
        if let Some(failure) = exchange.into_failure() {
            self.failed = true;
            return Err(failure);
        }
        events.sort_unstable();
        let mut output = StepOutput { losses: Vec::new(), gradient_norm: None, events, elapsed };
        for reading in &program.readings {
            let bytes = self.read(reading.view)?;
            let values = bytes.chunks_exact(8).map(|bytes| {
                let mut word = [0; 8];
                word.copy_from_slice(bytes);
                f64::from_le_bytes(word)
            });
            match reading.kind {
                ReadingKind::Loss => output.losses.extend(values),
                ReadingKind::GradientNorm => output.gradient_norm = values.into_iter().next_back(),
            }
        }
        Ok(output)
    }

    /// The bytes of a view, between steps.
    pub fn read(&mut self, view: View) -> Result<Vec<u8>, EngineError> {
        let place = self.place(view)?;
        let region = place.region(&self.arenas).map_err(|_| EngineError::View(view))?;
        let mut bytes = vec![0; region.len()];
        let worker = self.workers.get_mut(place.device().index()).ok_or(EngineError::View(view))?;
        worker
            .device
            .read(region, &mut bytes)
            .map_err(|error| setup_error(&self.program, place.device(), error))?;
        Ok(bytes)
    }

    /// Sets the bytes of a view, between steps; `bytes` must have the length of the view.
    pub fn write(&mut self, view: View, bytes: &[u8]) -> Result<(), EngineError> {
        let place = self.place(view)?;
        let region = place.region(&self.arenas).map_err(|_| EngineError::View(view))?;
        if region.len() != bytes.len() {
            return Err(EngineError::View(view));
        }
        let worker = self.workers.get_mut(place.device().index()).ok_or(EngineError::View(view))?;
        worker.device.write(bytes, region).map_err(|error| setup_error(&self.program, place.device(), error))
    }

    fn place(&self, view: View) -> Result<Place, EngineError> {
        self.program.buffers.get(view.buffer).ok_or(EngineError::View(view))?;
        Ok(Place::of(&self.program, view))
    }

    /// The sizes of all arenas, which are the peak memory that the program states.
    pub fn arena_bytes(&self) -> BTreeMap<(DeviceId, Space), Bytes> {
        self.spaces().map(|(key, arena)| (key, arena.bytes())).collect()
    }

    /// What was written to the arenas so far, if they were painted ([`Options::paint`]).
    pub fn touched(&self) -> BTreeMap<(DeviceId, Space), Touched> {
        self.spaces().map(|(key, arena)| (key, arena.touched())).collect()
    }

    fn spaces(&self) -> impl Iterator<Item = ((DeviceId, Space), &SharedArena)> {
        self.arenas.iter().enumerate().flat_map(|(index, arenas)| {
            [Space::Device, Space::Host]
                .into_iter()
                .filter_map(move |space| Some(((DeviceId::new(index), space), arenas.get(space)?)))
        })
    }

    /// Bytes beyond the arenas: scratch of the devices and slots of the channels.
    pub fn scratch(&self) -> Bytes {
        let devices: Bytes = self.workers.iter().map(|worker| worker.device.scratch()).sum();
        devices + self.slots.iter().flatten().map(|arena| arena.bytes()).sum()
    }
}

fn setup_error(program: &Program, device: DeviceId, error: DeviceError) -> EngineError {
    EngineError::Setup { device, name: program.devices[device].name.clone(), error }
}

fn allocate(
    program: &Verified,
    id: DeviceId,
    device: &mut dyn Device,
    options: Options,
) -> Result<Arenas, DeviceError> {
    let mut arena = |space| {
        let end = program
            .buffers
            .values()
            .filter(|buffer| buffer.device == id && buffer.space == space)
            .map(|buffer| buffer.offset + buffer.bytes)
            .max();
        let Some(end) = end else { return Ok(None) };
        let mut arena = device.allocate(space, end)?;
        if options.paint {
            arena.paint();
        }
        Ok(Some(SharedArena::new(arena, program)))
    };
    Ok(Arenas { device: arena(Space::Device)?, host: arena(Space::Host)? })
}

fn compile(
    program: &Program,
    id: DeviceId,
    of: Space,
    device: &mut dyn Device,
) -> Result<Vec<Option<Compiled>>, DeviceError> {
    let mut functions = vec![None; program.functions.len()];
    let queues = program.queues.values().filter(|queue| queue.device == id && space(queue.kind) == of);
    let instructions = queues.flat_map(|queue| &queue.instructions);
    for instruction in instructions {
        let function: FunctionId = match instruction {
            Instruction::Run { function, .. } => *function,
            Instruction::Send { .. }
            | Instruction::Recv { .. }
            | Instruction::Copy { .. }
            | Instruction::Fill { .. }
            | Instruction::Reduce { .. }
            | Instruction::Wait { .. } => continue,
        };
        if functions[function.index()].is_none() {
            functions[function.index()] = Some(device.compile(&program.functions[function])?);
        }
    }
    Ok(functions)
}

/// The tokens `[micro_batches, sequences, tokens]` of a step in the order in which feeds hold them.
fn sliced<'a>(program: &'a Program, tokens: &'a [u32]) -> impl Iterator<Item = u32> + 'a {
    let (sequences, length) = (program.batch.sequences as usize, program.batch.tokens as usize);
    tokens.chunks((sequences * length).max(1)).flat_map(move |micro_batch| {
        let mut first = 0;
        program.slices.values().flat_map(move |&tokens| {
            let slice = first..first + tokens as usize;
            first = slice.end;
            let rows = micro_batch.chunks(length.max(1));
            rows.flat_map(move |row| row.get(slice.clone()).unwrap_or_default().iter().copied())
        })
    })
}

#[cfg(test)]
mod tests;
