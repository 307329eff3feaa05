//! A small model for tests, as programs written by hand: stage 0 looks tokens up in a table, stage 1 multiplies with a
//! head and has the loss; two micro-batches, clipping, AdamW. Once with a device for each stage, once with one device.

use pipec_program::{
    Access, Argument, Batch, Body, Buffer, Bytes, BytesPerSecond, Category, Channel, ChannelId, DType, Data,
    Device, DeviceId, Feed, FeedKind, Function, FunctionId, Group, IdVec, Init, Instruction, Kernel,
    LearningRate, MicroBatch, Op, Output, Param, ParamId, Parameter, Pass, Placed, Position, Program, Queue,
    QueueId, QueueKind, Reading, ReadingKind, Scalar, ScalarId, ScalarType, Shared, Slice, Space, StageId,
    StepInput, StepWork, TensorType, Training, Unit, Value, ValueId, Verified, View, Work,
};
use std::sync::Arc;

/// Sizes: vocabulary, hidden, rows of a micro-batch (2 sequences of 3 tokens).
const V: u64 = 11;
const H: u64 = 6;
const T: u64 = 6;
const MICRO_BATCHES: u32 = 2;

/// The program, proved.
pub(crate) fn verified(program: Program) -> Arc<Verified> {
    match pipec_program::verify(program) {
        Ok(program) => Arc::new(program),
        Err(violations) => panic!("{violations:?}"),
    }
}

/// A device for each stage; the channels hold so many messages.
pub(crate) fn two_devices(capacity: u32) -> Arc<Verified> {
    verified(build(2, capacity))
}

/// Both stages on one device.
pub(crate) fn one_device() -> Arc<Verified> {
    verified(build(1, 0))
}

/// The queues of a device.
#[derive(Clone, Copy)]
struct Queues {
    compute: QueueId,
    send: QueueId,
    receive: QueueId,
    collective: QueueId,
}

/// A kernel: op, inputs, and outputs with whether they accumulate.
type Call = (Op, Vec<u32>, Vec<(u32, bool)>);

struct Builder {
    program: Program,
    ends: Vec<Bytes>,
}

impl Builder {
    fn buffer(&mut self, device: u32, name: &str, ty: &TensorType, category: Category) -> View {
        let end = &mut self.ends[device as usize];
        let offset = end.align_up(64);
        *end = offset + ty.bytes();
        let buffer = self.program.buffers.push(Buffer {
            name: name.to_owned(),
            device: DeviceId(device),
            space: Space::Device,
            offset,
            bytes: ty.bytes(),
            category,
        });
        View { buffer, offset: Bytes::ZERO, bytes: ty.bytes() }
    }

    fn function(
        &mut self,
        name: &str,
        params: &[(&str, Access, TensorType)],
        scalars: &[(&str, ScalarType)],
        kernels: Vec<Call>,
    ) -> FunctionId {
        let mut function = Function {
            name: name.to_owned(),
            params: IdVec::new(),
            scalars: scalars.iter().map(|&(name, ty)| Scalar { name: name.to_owned(), ty }).collect(),
            pair: None,
            body: Body::Kernels { values: IdVec::new(), kernels: Vec::new() },
        };
        let mut values = IdVec::new();
        for (name, access, ty) in params {
            let param: ParamId =
                function.params.push(Param { name: (*name).to_owned(), bytes: ty.bytes(), access: *access });
            values.push(Value { param, offset: Bytes::ZERO, ty: ty.clone() });
        }
        let kernels = kernels
            .into_iter()
            .map(|(op, inputs, outputs)| Kernel {
                op,
                inputs: inputs.into_iter().map(ValueId).collect(),
                outputs: outputs
                    .into_iter()
                    .map(|(value, accumulate)| Output { value: ValueId(value), accumulate })
                    .collect(),
            })
            .collect();
        function.body = Body::Kernels { values, kernels };
        self.program.functions.push(function)
    }

    /// Appends an instruction and returns the position after it.
    fn push(&mut self, queue: QueueId, instruction: Instruction) -> Position {
        let instructions = &mut self.program.queues[queue].instructions;
        instructions.push(instruction);
        instructions.len() as Position
    }

    fn run(
        &mut self,
        queue: QueueId,
        function: FunctionId,
        views: &[View],
        scalars: &[StepInput],
        work: Work,
    ) -> Position {
        let scalars = scalars.iter().map(|&input| Argument::Step(input)).collect();
        self.push(queue, Instruction::Run { function, views: views.into(), scalars, work })
    }

    fn wait(&mut self, queue: QueueId, other: QueueId, position: Position) {
        self.push(queue, Instruction::Wait { queue: other, position });
    }

    /// Sends `from` after position `made` of the sender's compute queue and receives it; returns the position of the
    /// receive.
    fn message(
        &mut self,
        channel: ChannelId,
        made: (Queues, Position, View),
        to: (Queues, View),
        work: Work,
    ) -> Position {
        let (sender, position, view) = made;
        self.wait(sender.send, sender.compute, position);
        self.push(sender.send, Instruction::Send { channel, view, work: work.clone() });
        self.push(to.0.receive, Instruction::Recv { channel, view: to.1, work })
    }
}

fn part(view: View, index: u64, bytes: u64) -> View {
    View { buffer: view.buffer, offset: Bytes(index * bytes), bytes: Bytes(bytes) }
}

fn f32s(extents: &[u64]) -> TensorType {
    TensorType::new(DType::F32, extents)
}

fn build(devices: u32, capacity: u32) -> Program {
    let description = |_| Device {
        name: "cpu".to_owned(),
        memory: Bytes(1 << 20),
        host_memory: Bytes(1 << 20),
        bandwidth: BytesPerSecond(1_000_000_000),
        host_bandwidth: BytesPerSecond(1_000_000_000),
        rates: Vec::new(),
        threads: 1,
        host_threads: 1,
        upload: Vec::new(),
        download: Vec::new(),
    };
    let mut b = Builder {
        program: Program {
            name: "bigram".to_owned(),
            compiler: String::new(),
            inputs: String::new(),
            batch: Batch {
                micro_batches: MICRO_BATCHES,
                sequences: 2,
                tokens: 3,
                slices: 1,
                stages: 2,
                forward: 0,
                copies: 1,
            },
            slices: vec![3].into(),
            training: Training {
                steps: Some(20),
                seed: 5,
                learning_rate: LearningRate::Constant { rate: 0.05 },
                data: Some(Data::Formula { vocab: V as u32 }),
            },
            devices: (0..devices).map(description).collect(),
            links: IdVec::new(),
            parameters: IdVec::new(),
            functions: IdVec::new(),
            buffers: IdVec::new(),
            channels: IdVec::new(),
            groups: IdVec::new(),
            feeds: Vec::new(),
            readings: Vec::new(),
            queues: IdVec::new(),
        },
        ends: vec![Bytes::ZERO; devices as usize],
    };
    let first = 0;
    let last = devices - 1;
    let kinds = [QueueKind::Compute, QueueKind::Send, QueueKind::Receive, QueueKind::Collective];
    let mut queues = Vec::new();
    for device in 0..devices {
        let ids = kinds.map(|kind| {
            b.program.queues.push(Queue { device: DeviceId(device), kind, instructions: Vec::new() })
        });
        queues.push(Queues { compute: ids[0], send: ids[1], receive: ids[2], collective: ids[3] });
    }
    let (q0, q1) = (queues[first as usize], queues[last as usize]);

    // Buffers.
    let tokens_ty = TensorType::new(DType::U32, &[u64::from(MICRO_BATCHES), 2, 3]);
    let tokens = b.buffer(first, "tokens", &tokens_ty, Category::Data);
    let targets = b.buffer(last, "targets", &tokens_ty, Category::Data);
    let placed = |b: &mut Builder, device, name: &str, stage, extents: &[u64]| {
        let ty = f32s(extents);
        let copy = Placed {
            weight: b.buffer(device, name, &ty, Category::Weights),
            gradient: b.buffer(device, &format!("{name}_gradient"), &ty, Category::Gradients),
            landed: None,
            moments: Some(
                [0, 1].map(|n| b.buffer(device, &format!("{name}_moment{n}"), &ty, Category::Optimizer)),
            ),
            master: None,
            stages: vec![StageId(stage)],
        };
        let (init, name) = (Init::Uniform { bound: 0.5 }, name.to_owned());
        b.program.parameters.push(Parameter { name, ty, init, copies: vec![copy.clone()] });
        copy
    };
    let table = placed(&mut b, first, "embed", 0, &[V, H]);
    let head = placed(&mut b, last, "head", 1, &[V, H]);
    let x_ty = f32s(&[T, H]);
    let per_micro_batch = |b: &mut Builder, device, name: &str, ty: &TensorType, category| {
        (0..MICRO_BATCHES).map(|m| b.buffer(device, &format!("{name}{m}"), ty, category)).collect::<Vec<_>>()
    };
    let x_made = per_micro_batch(&mut b, first, "x", &x_ty, Category::Communication);
    let dx_made = per_micro_batch(&mut b, last, "dx", &x_ty, Category::Communication);
    let (x, dx) = if devices == 1 {
        (x_made.clone(), dx_made.clone())
    } else {
        (
            per_micro_batch(&mut b, last, "x_received", &x_ty, Category::Communication),
            per_micro_batch(&mut b, first, "dx_received", &x_ty, Category::Communication),
        )
    };
    let logits_ty = f32s(&[T, V]);
    let logits = per_micro_batch(&mut b, last, "logits", &logits_ty, Category::Activations);
    let lse = per_micro_batch(&mut b, last, "lse", &f32s(&[T]), Category::Activations);
    let scratch = b.buffer(last, "dlogits", &logits_ty, Category::Workspace);
    let f64s = |count| TensorType::new(DType::F64, &[count]);
    let loss = b.buffer(last, "loss", &f64s(u64::from(MICRO_BATCHES)), Category::Data);
    let squares: Vec<View> =
        (0..devices).map(|device| b.buffer(device, "squares", &f64s(2), Category::Data)).collect();
    let norm: Vec<View> =
        (0..devices).map(|device| b.buffer(device, "norm", &f64s(1), Category::Data)).collect();
    let factor: Vec<View> =
        (0..devices).map(|device| b.buffer(device, "factor", &f32s(&[1]), Category::Data)).collect();
    b.program.feeds =
        vec![Feed { kind: FeedKind::Tokens, view: tokens }, Feed { kind: FeedKind::Targets, view: targets }];
    b.program.readings = vec![
        Reading { kind: ReadingKind::Loss, view: loss },
        Reading { kind: ReadingKind::GradientNorm, view: norm[last as usize] },
    ];

    // Functions.
    let ids = TensorType::new(DType::U32, &[T]);
    let (weight_ty, one) = (f32s(&[V, H]), f32s(&[1]));
    let matmul = |transpose_a, transpose_b| Op::Matmul { transpose_a, transpose_b };
    let forward0 = b.function(
        "forward_g0",
        &[
            ("tokens", Access::Read, ids.clone()),
            ("embed", Access::Read, weight_ty.clone()),
            ("x", Access::Write, x_ty.clone()),
        ],
        &[],
        vec![(Op::Embedding, vec![0, 1], vec![(2, false)])],
    );
    let forward1 = b.function(
        "forward_g1",
        &[
            ("x", Access::Read, x_ty.clone()),
            ("head", Access::Read, weight_ty.clone()),
            ("targets", Access::Read, ids.clone()),
            ("logits", Access::Write, logits_ty.clone()),
            ("loss", Access::Write, f64s(1)),
            ("lse", Access::Write, f32s(&[T])),
        ],
        &[],
        vec![
            (matmul(false, true), vec![0, 1], vec![(3, false)]),
            (Op::CrossEntropy { ignore: None }, vec![3, 2], vec![(4, false), (5, false)]),
        ],
    );
    let backward1 = b.function(
        "backward_g1",
        &[
            ("logits", Access::Read, logits_ty.clone()),
            ("targets", Access::Read, ids.clone()),
            ("lse", Access::Read, f32s(&[T])),
            ("x", Access::Read, x_ty.clone()),
            ("head", Access::Read, weight_ty.clone()),
            ("dlogits", Access::Workspace, logits_ty.clone()),
            ("dx", Access::Write, x_ty.clone()),
            ("dhead", Access::Accumulate, weight_ty.clone()),
        ],
        &[("loss_scale", ScalarType::Real)],
        vec![
            (Op::CrossEntropyGrad { ignore: None, scale: ScalarId(0) }, vec![0, 1, 2], vec![(5, false)]),
            (matmul(false, false), vec![5, 4], vec![(6, false)]),
            (matmul(true, false), vec![5, 3], vec![(7, true)]),
        ],
    );
    let backward0 = b.function(
        "backward_g0",
        &[
            ("tokens", Access::Read, ids),
            ("dx", Access::Read, x_ty.clone()),
            ("dembed", Access::Accumulate, weight_ty.clone()),
        ],
        &[],
        vec![(Op::EmbeddingGrad, vec![0, 1], vec![(2, true)])],
    );
    let squares_of = b.function(
        "norm",
        &[("gradient", Access::Read, weight_ty.clone()), ("squares", Access::Write, f64s(1))],
        &[],
        vec![(Op::SumSquares, vec![0], vec![(1, false)])],
    );
    let clip = b.function(
        "clip",
        &[
            ("squares", Access::Read, f64s(2)),
            ("norm", Access::Write, f64s(1)),
            ("factor", Access::Write, one.clone()),
        ],
        &[],
        vec![(Op::ClipFactor { limit: 0.5 }, vec![0], vec![(1, false), (2, false)])],
    );
    let (learning_rate, step) = (ScalarId(0), ScalarId(1));
    let adamw = Op::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, learning_rate, step };
    let update = b.function(
        "update",
        &[
            ("gradient", Access::Read, weight_ty.clone()),
            ("factor", Access::Read, one),
            ("weight", Access::Update, weight_ty.clone()),
            ("moment", Access::Update, weight_ty.clone()),
            ("variance", Access::Update, weight_ty),
        ],
        &[("learning_rate", ScalarType::Real), ("step", ScalarType::Integer)],
        vec![(adamw, vec![0, 1], vec![(2, false), (3, false), (4, false)])],
    );

    // One step: all forward passes of stage 0, then stage 1 alternates, then stage 0 goes back.
    let unit = |stage, m| Unit { stage: StageId(stage), micro_batch: MicroBatch(m), slice: Slice(0) };
    let channels = (devices == 2).then(|| {
        let mut channel = |from, to| {
            let (from, to) = (DeviceId(from), DeviceId(to));
            b.program.channels.push(Channel {
                from,
                to,
                message: vec![x_ty.clone()],
                capacity,
                route: Vec::new(),
            })
        };
        (channel(0, 1), channel(1, 0))
    });
    let tokens_of = |view, m| part(view, u64::from(m), T * 4);
    b.push(q0.compute, Instruction::Fill { view: table.gradient });
    let mut arrived = Vec::new();
    for m in 0..MICRO_BATCHES {
        let work = Work::Pass(Pass::F, unit(0, m));
        let views = [tokens_of(tokens, m), table.weight, x_made[m as usize]];
        let made = b.run(q0.compute, forward0, &views, &[], work.clone());
        if let Some((forth, _)) = channels {
            arrived.push(b.message(forth, (q0, made, x_made[m as usize]), (q1, x[m as usize]), work));
        }
    }
    b.push(q1.compute, Instruction::Fill { view: head.gradient });
    let mut returned = Vec::new();
    for m in 0..MICRO_BATCHES {
        let i = m as usize;
        if let Some(&position) = arrived.get(i) {
            b.wait(q1.compute, q1.receive, position);
        }
        let loss = part(loss, u64::from(m), 8);
        let views = [x[i], head.weight, tokens_of(targets, m), logits[i], loss, lse[i]];
        b.run(q1.compute, forward1, &views, &[], Work::Pass(Pass::F, unit(1, m)));
        let work = Work::Pass(Pass::BW, unit(1, m));
        let views =
            [logits[i], tokens_of(targets, m), lse[i], x[i], head.weight, scratch, dx_made[i], head.gradient];
        let made = b.run(q1.compute, backward1, &views, &[StepInput::LossScale], work.clone());
        if let Some((_, back)) = channels {
            returned.push(b.message(back, (q1, made, dx_made[i]), (q0, dx[i]), work));
        }
    }
    for m in 0..MICRO_BATCHES {
        let i = m as usize;
        if let Some(&position) = returned.get(i) {
            b.wait(q0.compute, q0.receive, position);
        }
        let views = [tokens_of(tokens, m), dx[i], table.gradient];
        b.run(q0.compute, backward0, &views, &[], Work::Pass(Pass::BW, unit(0, m)));
    }

    // Norm, clipping and update.
    let group = (devices == 2).then(|| {
        let members = vec![DeviceId(0), DeviceId(1)];
        b.program.groups.push(Group { result: Shared::Sum, members, ty: f64s(2), route: Vec::new() })
    });
    let stages = [(first, q0, &table, 0), (last, q1, &head, 1)];
    let filled: Vec<(u32, Queues)> = if devices == 2 { vec![(0, q0), (1, q1)] } else { vec![(0, q0)] };
    for &(device, queues) in &filled {
        b.push(queues.compute, Instruction::Fill { view: squares[device as usize] });
    }
    for (device, queues, placed, stage) in stages {
        let views = [placed.gradient, part(squares[device as usize], u64::from(stage), 8)];
        let work = Work::Stage(StepWork::Norm, StageId(stage));
        let made = b.run(queues.compute, squares_of, &views, &[], work);
        if let Some(group) = group {
            b.wait(queues.collective, queues.compute, made);
            let view = squares[device as usize];
            let work = Work::Step(StepWork::Norm);
            let reduced = b.push(queues.collective, Instruction::Reduce { group, view, work });
            b.wait(queues.compute, queues.collective, reduced);
        }
    }
    for &(device, queues) in &filled {
        let i = device as usize;
        let views = [squares[i], norm[i], factor[i]];
        b.run(queues.compute, clip, &views, &[], Work::Step(StepWork::Clip));
    }
    for (device, queues, placed, stage) in stages {
        let Some([moment, variance]) = placed.moments else { continue };
        let views = [placed.gradient, factor[device as usize], placed.weight, moment, variance];
        let work = Work::Stage(StepWork::Update, StageId(stage));
        b.run(queues.compute, update, &views, &[StepInput::LearningRate, StepInput::Step], work);
    }
    b.program
}
