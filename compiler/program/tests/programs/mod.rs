//! Small abstract pipelines for tests and benchmarks: any order of passes on any placement of stages.
//!
//! Times are whole nanoseconds: devices compute one operation a nanosecond and functions state as many operations.

#![allow(dead_code, reason = "every test takes what it needs")]

use pipec_program::*;
use std::collections::BTreeMap;

/// A pipeline to build.
#[derive(Clone, Debug)]
pub(crate) struct Pipeline {
    /// The device of each stage.
    pub(crate) placement: Vec<u32>,
    /// Micro-batches.
    pub(crate) micro_batches: u32,
    /// The passes of each device in order, as (pass, stage, micro-batch).
    pub(crate) orders: Vec<Vec<(Pass, u32, u32)>>,
    /// Nanoseconds of F, B, W, BW, R, in the order of `Pass::ALL`.
    pub(crate) times: [u64; 5],
    /// Nanoseconds of the update of a stage.
    pub(crate) update: u64,
    /// Bytes of a message.
    pub(crate) message: u64,
    /// Bytes of the activations of a unit.
    pub(crate) activations: u64,
    /// Bytes of the weights of a stage; 0 for a model without parameters, gradients and updates.
    pub(crate) weights: u64,
    /// Places of every channel.
    pub(crate) capacity: u32,
    /// Bandwidth and latency of one link per direction between devices; none for free messages.
    pub(crate) link: Option<(u64, u64)>,
}

impl Pipeline {
    /// The same without parameters: nothing but passes takes time.
    pub(crate) fn without_parameters(self) -> Self {
        Self { weights: 0, ..self }
    }

    /// One stage per device, F and BW of equal cost and free messages.
    pub(crate) fn new(devices: u32, micro_batches: u32, orders: Vec<Vec<(Pass, u32, u32)>>) -> Self {
        Self {
            placement: (0..devices).collect(),
            micro_batches,
            orders,
            times: [10, 10, 10, 20, 10],
            update: 0,
            message: 256,
            activations: 1024,
            weights: 512,
            capacity: 0,
            link: None,
        }
    }
}

/// All forward passes, then all backward passes.
pub(crate) fn gpipe(devices: u32, micro_batches: u32) -> Pipeline {
    let order = |stage| {
        let forward = (0..micro_batches).map(move |m| (Pass::F, stage, m));
        forward.chain((0..micro_batches).map(move |m| (Pass::BW, stage, m))).collect()
    };
    Pipeline::new(devices, micro_batches, (0..devices).map(order).collect())
}

/// One forward, one backward.
pub(crate) fn one_f_one_b(devices: u32, micro_batches: u32) -> Pipeline {
    let order = |stage: u32| {
        let warmup = (devices - stage).min(micro_batches);
        let mut order: Vec<_> = (0..warmup).map(|m| (Pass::F, stage, m)).collect();
        for m in 0..micro_batches {
            order.push((Pass::BW, stage, m));
            if m + warmup < micro_batches {
                order.push((Pass::F, stage, m + warmup));
            }
        }
        order
    };
    Pipeline::new(devices, micro_batches, (0..devices).map(order).collect())
}

/// One forward, one backward with respect to inputs, weight gradients as late as the number of stages allows.
pub(crate) fn zero_bubble(devices: u32, micro_batches: u32) -> Pipeline {
    let mut pipeline = one_f_one_b(devices, micro_batches);
    for (stage, order) in (0..).zip(&mut pipeline.orders) {
        let mut split = Vec::new();
        let mut owed = 0;
        for (pass, g, m) in order.drain(..) {
            if pass == Pass::BW {
                split.push((Pass::B, g, m));
                if m >= stage {
                    split.push((Pass::W, g, owed));
                    owed += 1;
                }
            } else {
                split.push((pass, g, m));
            }
        }
        split.extend((owed..micro_batches).map(|m| (Pass::W, stage, m)));
        *order = split;
    }
    pipeline
}

/// Two devices, two chunks each: stages 0 and 2 on the first, 1 and 3 on the second; two micro-batches.
pub(crate) fn interleaved() -> Pipeline {
    use Pass::{BW, F};
    let first =
        vec![(F, 0, 0), (F, 0, 1), (F, 2, 0), (F, 2, 1), (BW, 2, 0), (BW, 2, 1), (BW, 0, 0), (BW, 0, 1)];
    let second =
        vec![(F, 1, 0), (F, 1, 1), (F, 3, 0), (BW, 3, 0), (F, 3, 1), (BW, 3, 1), (BW, 1, 0), (BW, 1, 1)];
    Pipeline { placement: vec![0, 1, 0, 1], ..Pipeline::new(2, 2, vec![first, second]) }
}

/// Full recomputation on two devices.
pub(crate) fn recompute() -> Pipeline {
    let mut pipeline = one_f_one_b(2, 3);
    for order in &mut pipeline.orders {
        *order = order
            .drain(..)
            .flat_map(|(pass, g, m)| {
                let again = (pass == Pass::BW).then_some((Pass::R, g, m));
                again.into_iter().chain([(pass, g, m)])
            })
            .collect();
    }
    pipeline
}

const SLOTS: u32 = 2;

/// Builds the program of a pipeline and proves it.
pub(crate) fn verified(pipeline: &Pipeline) -> Verified {
    prove(build(pipeline))
}

/// Proves a program.
pub(crate) fn prove(program: Program) -> Verified {
    verify(program).unwrap_or_else(|violations| panic!("{violations}"))
}

/// Builds the program of a pipeline.
pub(crate) fn build(pipeline: &Pipeline) -> Program {
    Builder::new(pipeline).build()
}

struct Builder<'a> {
    pipeline: &'a Pipeline,
    program: Program,
    arena: Vec<u64>,
    functions: BTreeMap<(Pass, u32), FunctionId>,
    /// Forward channel out of a stage, and backward channel out of a stage.
    forward: BTreeMap<u32, ChannelId>,
    backward: BTreeMap<u32, ChannelId>,
    stages: Vec<Stage>,
    tokens: View,
    targets: View,
    loss: View,
}

struct Stage {
    /// Weights, gradient, two moments; nothing in a model without parameters.
    state: Option<[View; 4]>,
    free: Vec<View>,
    saved: BTreeMap<u32, View>,
}

/// One side of a channel on a device: its queue under construction.
#[derive(Default)]
struct Side {
    instructions: Vec<Instruction>,
    /// The buffer of each slot and the compute position (receive) or queue position (send) that frees it.
    slots: Vec<(View, Option<u32>)>,
}

impl<'a> Builder<'a> {
    fn new(pipeline: &'a Pipeline) -> Self {
        let count = pipeline.orders.len();
        let stages = pipeline.placement.len() as u32;
        let mut program = Program {
            name: "pipeline".into(),
            compiler: String::new(),
            inputs: String::new(),
            batch: Batch {
                micro_batches: pipeline.micro_batches,
                sequences: 1,
                tokens: 16,
                slices: 1,
                stages,
                forward: 0,
                copies: 1,
            },
            slices: vec![16].into(),
            training: Training {
                steps: None,
                seed: 0,
                learning_rate: LearningRate::Constant { rate: 0.0 },
                data: None,
            },
            devices: IdVec::new(),
            links: IdVec::new(),
            parameters: IdVec::new(),
            functions: IdVec::new(),
            buffers: IdVec::new(),
            channels: IdVec::new(),
            groups: IdVec::new(),
            feeds: Vec::new(),
            readings: Vec::new(),
            queues: IdVec::new(),
        };
        for _ in 0..count {
            program.devices.push(Device {
                name: "unit".into(),
                memory: Bytes(1 << 40),
                host_memory: Bytes(1 << 40),
                bandwidth: BytesPerSecond(1 << 50),
                host_bandwidth: BytesPerSecond(1 << 50),
                upload: Vec::new(),
                download: Vec::new(),
                rates: vec![(DType::F32, FlopsPerSecond(1_000_000_000))],
                threads: 1,
                host_threads: 1,
            });
        }
        let none = View { buffer: BufferId(0), offset: Bytes::ZERO, bytes: Bytes::ZERO };
        Self {
            pipeline,
            program,
            arena: vec![0; count],
            functions: BTreeMap::new(),
            forward: BTreeMap::new(),
            backward: BTreeMap::new(),
            stages: Vec::new(),
            tokens: none,
            targets: none,
            loss: none,
        }
    }

    fn last(&self) -> u32 {
        self.pipeline.placement.len() as u32 - 1
    }

    fn buffer(&mut self, name: String, device: u32, bytes: u64, category: Category) -> View {
        let offset = self.arena[device as usize];
        self.arena[device as usize] = (offset + bytes).next_multiple_of(64);
        let buffer = self.program.buffers.push(Buffer {
            name,
            device: DeviceId(device),
            space: Space::Device,
            offset: Bytes(offset),
            bytes: Bytes(bytes),
            category,
        });
        View { buffer, offset: Bytes::ZERO, bytes: Bytes(bytes) }
    }

    fn build(mut self) -> Program {
        let p = self.pipeline;
        let n = u64::from(p.micro_batches);
        let (first, last) = (p.placement[0], p.placement[self.last() as usize]);
        self.tokens = self.buffer("tokens".into(), first, n * 64, Category::Data);
        self.targets = self.buffer("targets".into(), last, n * 64, Category::Data);
        self.loss = self.buffer("loss".into(), last, n * 8, Category::Data);
        self.program.feeds.push(Feed { kind: FeedKind::Tokens, view: self.tokens });
        self.program.feeds.push(Feed { kind: FeedKind::Targets, view: self.targets });
        self.program.readings.push(Reading { kind: ReadingKind::Loss, view: self.loss });
        for g in 0..=self.last() {
            self.stage(g);
        }
        self.channels();
        for device in 0..p.orders.len() as u32 {
            self.device(device);
        }
        self.program
    }

    fn stage(&mut self, g: u32) {
        let device = self.pipeline.placement[g as usize];
        let bytes = self.pipeline.weights;
        let state = (bytes > 0).then(|| {
            let mut state =
                |name: &str, category| self.buffer(format!("{name}_g{g}"), device, bytes, category);
            let weight = state("weights", Category::Weights);
            let gradient = state("gradients", Category::Gradients);
            let moments = [state("moment0", Category::Optimizer), state("moment1", Category::Optimizer)];
            self.program.parameters.push(Parameter {
                name: format!("stage.{g}"),
                ty: TensorType::new(DType::F32, &[bytes / 4]),
                init: Init::Constant { value: 0.0 },
                copies: vec![Placed {
                    weight,
                    gradient,
                    landed: None,
                    moments: Some(moments),
                    master: None,
                    stages: vec![StageId(g)],
                }],
            });
            [weight, gradient, moments[0], moments[1]]
        });
        self.stages.push(Stage { state, free: Vec::new(), saved: BTreeMap::new() });
    }

    fn channels(&mut self) {
        let p = self.pipeline;
        let mut links = BTreeMap::new();
        for g in 0..self.last() {
            let (from, to) = (p.placement[g as usize], p.placement[g as usize + 1]);
            for (from, to, backward) in [(from, to, false), (to, from, true)] {
                if from == to {
                    continue;
                }
                let route = p.link.map(|(bandwidth, latency)| {
                    *links.entry((from, to)).or_insert_with(|| {
                        self.program.links.push(Link {
                            name: format!("d{from}->d{to}"),
                            bandwidth: BytesPerSecond(bandwidth),
                            latency: Nanos(latency),
                        })
                    })
                });
                let channel = self.program.channels.push(Channel {
                    from: DeviceId(from),
                    to: DeviceId(to),
                    message: vec![TensorType::new(DType::F32, &[p.message / 4])],
                    capacity: p.capacity,
                    route: route.into_iter().collect(),
                });
                if backward {
                    self.backward.insert(g + 1, channel);
                } else {
                    self.forward.insert(g, channel);
                }
            }
        }
    }

    /// The function of a pass: its regions in the order in which `views` names them.
    fn function(&mut self, pass: Pass, g: u32, params: Vec<(&str, u64, Access)>) -> FunctionId {
        let time = self.pipeline.times[Pass::ALL.iter().position(|&each| each == pass).unwrap()];
        if let Some(&known) = self.functions.get(&(pass, g)) {
            return known;
        }
        let name = match pass {
            Pass::F => "forward",
            Pass::B => "backward",
            Pass::W => "weight_gradient",
            Pass::BW => "backward_full",
            Pass::R => "recompute",
        };
        let id = self.abstract_function(format!("{name}_g{g}"), time, params);
        self.functions.insert((pass, g), id);
        id
    }

    fn abstract_function(&mut self, name: String, time: u64, params: Vec<(&str, u64, Access)>) -> FunctionId {
        let param = |(name, bytes, access): (&str, u64, Access)| Param {
            name: name.into(),
            bytes: Bytes(bytes),
            access,
        };
        self.program.functions.push(Function {
            name,
            params: params.into_iter().map(param).collect(),
            scalars: IdVec::new(),
            pair: None,
            body: Body::Abstract { flops: Flops(time), traffic: Bytes::ZERO },
        })
    }

    fn device(&mut self, device: u32) {
        let p = self.pipeline;
        let here: Vec<u32> = (0..=self.last()).filter(|&g| p.placement[g as usize] == device).collect();
        // Queues: compute first, then one per side of every channel of the device.
        let compute = QueueId(self.program.queues.len() as u32);
        let sides: Vec<(ChannelId, bool)> = self
            .program
            .channels
            .iter()
            .flat_map(|(id, channel)| {
                let send = (channel.from == DeviceId(device)).then_some((id, true));
                let recv = (channel.to == DeviceId(device)).then_some((id, false));
                send.into_iter().chain(recv)
            })
            .collect();
        let queue_of = |key: (ChannelId, bool)| {
            QueueId(compute.0 + 1 + sides.iter().position(|&side| side == key).unwrap() as u32)
        };
        let mut side: BTreeMap<(ChannelId, bool), Side> = BTreeMap::new();
        for &(channel, send) in &sides {
            let slots = (0..SLOTS)
                .map(|slot| {
                    let name = format!("{}_{channel}.{slot}", if send { "out" } else { "in" });
                    (self.buffer(name, device, p.message, Category::Communication), None)
                })
                .collect();
            side.insert((channel, send), Side { instructions: Vec::new(), slots });
        }
        // Messages between two stages of one device stay where they were written.
        let mut local: BTreeMap<(u32, u32), View> = BTreeMap::new();
        let mut list: Vec<Instruction> = Vec::new();
        for [_, gradient, ..] in here.iter().filter_map(|&g| self.stages[g as usize].state) {
            list.push(Instruction::Fill { view: gradient });
        }
        for &(pass, g, m) in &p.orders[device as usize] {
            let work =
                Work::Pass(pass, Unit { stage: StageId(g), micro_batch: MicroBatch(m), slice: Slice(0) });
            let state = self.stages[g as usize].state;
            let mut views: Vec<View> = state.iter().map(|state| state[0]).collect();
            let mut params: Vec<_> = state.iter().map(|_| ("weights", p.weights, Access::Read)).collect();
            let mut consumed = None;
            let mut produced = None;
            if pass == Pass::F || pass == Pass::B || pass == Pass::BW {
                let forward = pass == Pass::F;
                // What comes in.
                if forward && g == 0 {
                    views.push(View { offset: Bytes(u64::from(m) * 64), bytes: Bytes(64), ..self.tokens });
                    params.push(("tokens", 64, Access::Read));
                } else if !forward && g == self.last() {
                    views.push(View { offset: Bytes(u64::from(m) * 64), bytes: Bytes(64), ..self.targets });
                    params.push(("targets", 64, Access::Read));
                } else {
                    let origin = if forward { g - 1 } else { g + 1 };
                    let channel = if forward { &self.forward } else { &self.backward }.get(&origin).copied();
                    let view = if let Some(channel) = channel {
                        let key = (channel, false);
                        let recv = side.get_mut(&key).unwrap();
                        let slot = (m % SLOTS) as usize;
                        if let Some(position) = recv.slots[slot].1 {
                            recv.instructions.push(Instruction::Wait { queue: compute, position });
                        }
                        let from =
                            Unit { stage: StageId(origin), micro_batch: MicroBatch(m), slice: Slice(0) };
                        let view = recv.slots[slot].0;
                        let made_by = Work::Pass(pass, from);
                        recv.instructions.push(Instruction::Recv { channel, view, work: made_by });
                        let position = recv.instructions.len() as u32;
                        list.push(Instruction::Wait { queue: queue_of(key), position });
                        consumed = Some((key, slot));
                        view
                    } else {
                        local[&(origin, m)]
                    };
                    views.push(view);
                    params.push(("input", p.message, Access::Read));
                }
                // What goes out.
                if (forward && g < self.last()) || (!forward && g > 0) {
                    let channel = if forward { &self.forward } else { &self.backward }.get(&g).copied();
                    let view = if let Some(channel) = channel {
                        let key = (channel, true);
                        let send = &side[&key];
                        let slot = (m % SLOTS) as usize;
                        if let Some(position) = send.slots[slot].1 {
                            list.push(Instruction::Wait { queue: queue_of(key), position });
                        }
                        produced = Some((key, channel, slot));
                        send.slots[slot].0
                    } else {
                        let name = format!("between_g{g}.m{m}");
                        let view = self.buffer(name, device, p.message, Category::Communication);
                        local.insert((g, m), view);
                        view
                    };
                    views.push(view);
                    params.push(("output", p.message, Access::Write));
                } else if forward {
                    views.push(View { offset: Bytes(u64::from(m) * 8), bytes: Bytes(8), ..self.loss });
                    params.push(("loss", 8, Access::Write));
                }
            }
            // What is kept.
            let done = pass == Pass::W || pass == Pass::BW;
            let saved = match self.stages[g as usize].saved.get(&m) {
                Some(&view) => view,
                None => {
                    let view = self.stages[g as usize].free.pop();
                    let view = view.unwrap_or_else(|| {
                        let name = format!("saved_g{g}.{}", self.stages[g as usize].saved.len());
                        self.buffer(name, device, p.activations, Category::Activations)
                    });
                    self.stages[g as usize].saved.insert(m, view);
                    view
                }
            };
            views.push(saved);
            params.push((
                "saved",
                p.activations,
                match pass {
                    Pass::F => Access::Write,
                    Pass::R => Access::Update,
                    Pass::B | Pass::W | Pass::BW => Access::Read,
                },
            ));
            if done {
                let view = self.stages[g as usize].saved.remove(&m).unwrap();
                self.stages[g as usize].free.push(view);
                views.extend(state.map(|state| state[1]));
                params.extend(state.map(|_| ("gradient", p.weights, Access::Accumulate)));
            }
            let function = self.function(pass, g, params);
            list.push(Instruction::Run {
                function,
                views: views.into(),
                scalars: Box::new([]),
                work: work.clone(),
            });
            let position = list.len() as u32;
            if let Some((key, slot)) = consumed {
                side.get_mut(&key).unwrap().slots[slot].1 = Some(position);
            }
            if let Some((key, channel, slot)) = produced {
                let send = side.get_mut(&key).unwrap();
                send.instructions.push(Instruction::Wait { queue: compute, position });
                let view = send.slots[slot].0;
                send.instructions.push(Instruction::Send { channel, view, work });
                send.slots[slot].1 = Some(send.instructions.len() as u32);
            }
        }
        for g in here {
            let Some(state) = self.stages[g as usize].state else { continue };
            let views = Box::new(state);
            let params = vec![
                ("weights", p.weights, Access::Update),
                ("gradient", p.weights, Access::Read),
                ("moment0", p.weights, Access::Update),
                ("moment1", p.weights, Access::Update),
            ];
            let function = self.abstract_function(format!("update_g{g}"), p.update, params);
            let work = Work::Stage(StepWork::Update, StageId(g));
            list.push(Instruction::Run { function, views, scalars: Box::new([]), work });
        }
        let device = DeviceId(device);
        self.program.queues.push(Queue { device, kind: QueueKind::Compute, instructions: list });
        for key in sides {
            let kind = if key.1 { QueueKind::Send } else { QueueKind::Receive };
            let instructions = side.remove(&key).unwrap().instructions;
            self.program.queues.push(Queue { device, kind, instructions });
        }
    }
}
