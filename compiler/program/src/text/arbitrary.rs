//! Programs of every form, most of them senseless: whatever the types can hold, the text must hold.

use crate::function::{Access, Body, Function, Halves, Param, Scalar, ScalarType, Value};
use crate::id::{
    BufferId, ChannelId, DeviceId, FunctionId, GroupId, LinkId, MicroBatch, ParamId, QueueId, ScalarId,
    Slice, StageId, ValueId,
};
use crate::kernel::{
    AttentionShape, BinaryOp, Kernel, Mask, Node, Op, Output, Pairing, Part, RopeScaling, Seed, UnaryOp,
};
use crate::program::Shared;
use crate::program::{
    Argument, Batch, Buffer, Category, Channel, Data, Device, Feed, FeedKind, Group, Init, Instruction,
    LearningRate, Link, Pair, Parameter, Pass, Placed, Program, Queue, QueueKind, Reading, ReadingKind,
    Space, StepInput, StepWork, TokenWidth, Tokenizer, Training, Unit, View, Work,
};
use crate::tensor::{DType, Shape, TensorType};
use crate::units::{Bytes, BytesPerSecond, Flops, FlopsPerSecond, Nanos};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

/// Small numbers mostly, round ones and extremes too.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..20, Just(1 << 30), Just(24_000_000_000), Just(u64::MAX), any::<u64>()]
}

fn real() -> impl Strategy<Value = f64> {
    prop_oneof![
        Just(0.0),
        Just(-0.0),
        Just(1e-5),
        Just(f64::MIN_POSITIVE),
        Just(f64::MAX),
        any::<f64>().prop_filter("finite", |number| number.is_finite())
    ]
}

fn real32() -> impl Strategy<Value = f32> {
    any::<f32>().prop_filter("finite", |number| number.is_finite())
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        "[a-z_.0-9]{1,8}",
        any::<String>(),
        Just("a; b \"c\"\r\n\t\\u{1}".to_owned())
    ]
}

fn dtype() -> impl Strategy<Value = DType> {
    select(&DType::ALL[..])
}

fn tensor() -> impl Strategy<Value = TensorType> {
    (dtype(), vec(number(), 0..3)).prop_map(|(dtype, extents)| TensorType { dtype, shape: Shape(extents) })
}

fn view() -> impl Strategy<Value = View> {
    (0u32..4, number(), number()).prop_map(|(buffer, a, b)| {
        let (start, end) = (a.min(b), a.max(b));
        View { buffer: BufferId(buffer), offset: Bytes(start), bytes: Bytes(end - start) }
    })
}

fn unit() -> impl Strategy<Value = Unit> {
    (any::<u32>(), 0u32..9, 0u32..9).prop_map(|(stage, micro_batch, slice)| Unit {
        stage: StageId(stage),
        micro_batch: MicroBatch(micro_batch),
        slice: Slice(slice),
    })
}

fn work() -> impl Strategy<Value = Work> {
    let step = || select(&StepWork::ALL[..]);
    let pass = || select(&Pass::ALL[..]);
    prop_oneof![
        (pass(), unit()).prop_map(|(pass, unit)| Work::Pass(pass, unit)),
        (unit(), unit(), pass()).prop_map(|(forward, backward, pass)| Work::Pair(Box::new(Pair {
            forward,
            backward,
            pass
        }))),
        (step(), 0u32..9).prop_map(|(work, stage)| Work::Stage(work, StageId(stage))),
        step().prop_map(Work::Step),
    ]
}

fn argument() -> impl Strategy<Value = Argument> {
    prop_oneof![
        number().prop_map(Argument::Integer),
        real().prop_map(Argument::Real),
        select(&StepInput::ALL[..]).prop_map(Argument::Step),
    ]
}

fn instruction() -> impl Strategy<Value = Instruction> {
    prop_oneof![
        (0u32..9, vec(view(), 0..4), vec(argument(), 0..3), work()).prop_map(
            |(function, views, scalars, work)| {
                Instruction::Run {
                    function: FunctionId(function),
                    views: views.into(),
                    scalars: scalars.into(),
                    work,
                }
            }
        ),
        (0u32..9, view(), work()).prop_map(|(channel, view, work)| Instruction::Send {
            channel: ChannelId(channel),
            view,
            work
        }),
        (0u32..9, view(), work()).prop_map(|(channel, view, work)| Instruction::Recv {
            channel: ChannelId(channel),
            view,
            work
        }),
        (view(), view()).prop_map(|(from, to)| Instruction::Copy { from, to }),
        view().prop_map(|view| Instruction::Fill { view }),
        (0u32..9, view(), work()).prop_map(|(group, view, work)| Instruction::Reduce {
            group: GroupId(group),
            view,
            work
        }),
        (any::<u32>(), any::<u32>())
            .prop_map(|(queue, position)| Instruction::Wait { queue: QueueId(queue), position }),
    ]
}

fn attention() -> impl Strategy<Value = AttentionShape> {
    let mask =
        prop_oneof![Just(Mask::Full), Just(Mask::Causal), number().prop_map(|size| Mask::Window { size })];
    (number(), number(), number(), number(), mask, real()).prop_map(
        |(sequences, heads, kv_heads, head_dim, mask, scale)| AttentionShape {
            sequences,
            heads,
            kv_heads,
            head_dim,
            mask,
            scale,
        },
    )
}

fn node() -> impl Strategy<Value = Node> {
    prop_oneof![
        (0u32..9).prop_map(Node::Input),
        real32().prop_map(Node::Constant),
        (select(&UnaryOp::ALL[..]), 0u32..9).prop_map(|(op, a)| Node::Unary(op, a)),
        (select(&BinaryOp::ALL[..]), 0u32..9, any::<u32>()).prop_map(|(op, a, b)| Node::Binary(op, a, b)),
        number().prop_map(|salt| Node::Random { salt }),
    ]
}

fn seed() -> impl Strategy<Value = Seed> {
    let part =
        (number(), number(), number()).prop_map(|(tokens, first, whole)| Part { tokens, first, whole });
    (0u32..5, option::of(part)).prop_map(|(scalar, part)| Seed { scalar: ScalarId(scalar), part })
}

fn rope() -> impl Strategy<Value = Op> {
    let scaling = (real(), real(), real(), number()).prop_map(|(factor, low, high, original)| RopeScaling {
        factor,
        low,
        high,
        original,
    });
    let pairing = select(vec![Pairing::Half, Pairing::Adjacent]);
    ((number(), number(), number(), number(), real()), pairing, option::of(scaling), any::<bool>()).prop_map(
        |((tokens, first, head_dim, rotary, base), pairing, scaling, inverse)| Op::Rope {
            tokens,
            first,
            head_dim,
            rotary,
            base,
            pairing,
            scaling,
            inverse,
        },
    )
}

fn op() -> impl Strategy<Value = Op> {
    let plain = select(vec![
        Op::SumRows,
        Op::Embedding,
        Op::EmbeddingGrad,
        Op::RmsNormGrad,
        Op::RmsNormGainGrad,
        Op::LayerNormGrad,
        Op::LayerNormParamGrad,
        Op::Softmax,
        Op::SoftmaxGrad,
        Op::SumSquares,
    ]);
    let scalar = || (0u32..5).prop_map(ScalarId);
    prop_oneof![
        plain,
        any::<(bool, bool)>().prop_map(|(transpose_a, transpose_b)| Op::Matmul { transpose_a, transpose_b }),
        (number(), number()).prop_map(|(tokens, first)| Op::Positions { tokens, first }),
        (number(), number()).prop_map(|(tokens, first)| Op::PositionsGrad { tokens, first }),
        real().prop_map(|eps| Op::RmsNorm { eps }),
        real().prop_map(|eps| Op::LayerNorm { eps }),
        rope(),
        attention().prop_map(Op::Attention),
        attention().prop_map(Op::AttentionGrad),
        option::of(any::<u32>()).prop_map(|ignore| Op::CrossEntropy { ignore }),
        (option::of(any::<u32>()), scalar())
            .prop_map(|(ignore, scale)| Op::CrossEntropyGrad { ignore, scale }),
        (vec(node(), 0..6), vec(0u32..9, 0..3), option::of(seed()))
            .prop_map(|(nodes, results, seed)| Op::Map { nodes, results, seed }),
        real().prop_map(|limit| Op::ClipFactor { limit }),
        (real(), real(), real(), real(), scalar(), scalar()).prop_map(
            |(beta1, beta2, eps, weight_decay, learning_rate, step)| Op::AdamW {
                beta1,
                beta2,
                eps,
                weight_decay,
                learning_rate,
                step,
            }
        ),
    ]
}

fn kernel() -> impl Strategy<Value = Kernel> {
    let output =
        (0u32..9, any::<bool>()).prop_map(|(value, accumulate)| Output { value: ValueId(value), accumulate });
    (op(), vec((0u32..9).prop_map(ValueId), 0..4), vec(output, 0..4))
        .prop_map(|(op, inputs, outputs)| Kernel { op, inputs, outputs })
}

fn function() -> impl Strategy<Value = Function> {
    let param = (name(), number(), select(&Access::ALL[..])).prop_map(|(name, bytes, access)| Param {
        name,
        bytes: Bytes(bytes),
        access,
    });
    let scalar = (name(), select(vec![ScalarType::Real, ScalarType::Integer]))
        .prop_map(|(name, ty)| Scalar { name, ty });
    let value = (0u32..4, number(), tensor()).prop_map(|(param, offset, ty)| Value {
        param: ParamId(param),
        offset: Bytes(offset),
        ty,
    });
    let body = prop_oneof![
        (vec(value, 0..3), vec(kernel(), 0..4))
            .prop_map(|(values, kernels)| Body::Kernels { values: values.into(), kernels }),
        (number(), number())
            .prop_map(|(flops, traffic)| Body::Abstract { flops: Flops(flops), traffic: Bytes(traffic) }),
    ];
    let pair = option::of((any::<u32>(), 0u32..4)).prop_map(|halves| {
        halves.map(|(region, scalar)| Halves { region: ParamId(region), scalar: ScalarId(scalar) })
    });
    (name(), vec(param, 0..3), vec(scalar, 0..3), pair, body).prop_map(
        |(name, params, scalars, pair, body)| Function {
            name,
            params: params.into(),
            scalars: scalars.into(),
            pair,
            body,
        },
    )
}

fn training() -> impl Strategy<Value = Training> {
    let learning_rate =
        prop_oneof![
            real().prop_map(|rate| LearningRate::Constant { rate }),
            (real(), number(), number(), real())
                .prop_map(|(peak, warmup, steps, floor)| LearningRate::Cosine { peak, warmup, steps, floor }),
        ];
    let tokenizer = prop_oneof![Just(Tokenizer::Bytes), name().prop_map(Tokenizer::File)];
    let data =
        prop_oneof![
            (vec(name(), 0..3), tokenizer, any::<bool>())
                .prop_map(|(paths, tokenizer, shuffle)| Data::Text { paths, tokenizer, shuffle }),
            (name(), select(vec![TokenWidth::U16, TokenWidth::U32]), any::<bool>())
                .prop_map(|(path, width, shuffle)| Data::Tokens { path, width, shuffle }),
            any::<u32>().prop_map(|vocab| Data::Formula { vocab }),
        ];
    (option::of(number()), number(), learning_rate, option::of(data))
        .prop_map(|(steps, seed, learning_rate, data)| Training { steps, seed, learning_rate, data })
}

fn links() -> impl Strategy<Value = Vec<LinkId>> {
    vec((0u32..9).prop_map(LinkId), 0..3)
}

fn device() -> impl Strategy<Value = Device> {
    let rates = vec((dtype(), number().prop_map(FlopsPerSecond)), 0..3);
    let rates_of_memory = (number(), number());
    (name(), (number(), number()), rates_of_memory, (links(), links()), rates, (any::<u32>(), any::<u32>()))
        .prop_map(
            |(
                name,
                (memory, host_memory),
                (bandwidth, host_bandwidth),
                (upload, download),
                rates,
                (threads, host_threads),
            )| Device {
                name,
                memory: Bytes(memory),
                host_memory: Bytes(host_memory),
                bandwidth: BytesPerSecond(bandwidth),
                host_bandwidth: BytesPerSecond(host_bandwidth),
                upload,
                download,
                rates,
                threads,
                host_threads,
            },
        )
}

fn buffer() -> impl Strategy<Value = Buffer> {
    let space = select(vec![Space::Device, Space::Host]);
    (name(), 0u32..4, space, view(), select(&Category::ALL[..])).prop_map(
        |(name, device, space, range, category)| Buffer {
            name,
            device: DeviceId(device),
            space,
            offset: range.offset,
            bytes: range.bytes,
            category,
        },
    )
}

fn parameter() -> impl Strategy<Value = Parameter> {
    let init = prop_oneof![
        real32().prop_map(|value| Init::Constant { value }),
        real().prop_map(|bound| Init::Uniform { bound }),
        real().prop_map(|std| Init::Normal { std }),
    ];
    let stages = vec((0u32..9).prop_map(StageId), 0..3);
    let gradient = (view(), option::of(view()));
    let copy = (view(), gradient, option::of((view(), view())), option::of(view()), stages).prop_map(
        |(weight, (gradient, landed), moments, master, stages)| Placed {
            weight,
            gradient,
            landed,
            moments: moments.map(|(first, second)| [first, second]),
            master,
            stages,
        },
    );
    (name(), tensor(), init, vec(copy, 0..3)).prop_map(|(name, ty, init, copies)| Parameter {
        name,
        ty,
        init,
        copies,
    })
}

fn channel() -> impl Strategy<Value = Channel> {
    (any::<u32>(), any::<u32>(), vec(tensor(), 0..3), any::<u32>(), links()).prop_map(
        |(from, to, message, capacity, route)| Channel {
            from: DeviceId(from),
            to: DeviceId(to),
            message,
            capacity,
            route,
        },
    )
}

fn group() -> impl Strategy<Value = Group> {
    (select(&Shared::ALL[..]), vec((0u32..9).prop_map(DeviceId), 0..3), tensor(), links())
        .prop_map(|(result, members, ty, route)| Group { result, members, ty, route })
}

fn queue() -> impl Strategy<Value = Queue> {
    (0u32..9, select(&QueueKind::ALL[..]), vec(instruction(), 0..8))
        .prop_map(|(device, kind, instructions)| Queue { device: DeviceId(device), kind, instructions })
}

/// Any program that the text can hold.
pub(crate) fn program() -> impl Strategy<Value = Program> {
    let link = (name(), number(), number()).prop_map(|(name, bandwidth, latency)| Link {
        name,
        bandwidth: BytesPerSecond(bandwidth),
        latency: Nanos(latency),
    });
    let feed = (select(&FeedKind::ALL[..]), 0u32..4).prop_map(|(kind, buffer)| (kind, BufferId(buffer)));
    let reading = (select(&ReadingKind::ALL[..]), view()).prop_map(|(kind, view)| Reading { kind, view });
    let head =
        (name(), name(), name(), (any::<(u32, u32, u32, u32, u32)>(), vec(any::<u32>(), 0..4)), training());
    let tables = (
        vec(device(), 0..3),
        vec(link, 0..3),
        vec(buffer(), 0..4),
        vec(parameter(), 0..3),
        vec(channel(), 0..3),
        vec(group(), 0..3),
    );
    let rest = (vec(feed, 0..3), vec(reading, 0..3), vec(function(), 0..3), vec(queue(), 0..3));
    (head, tables, rest).prop_map(|(head, tables, rest)| {
        let (name, compiler, inputs, (counts, lengths), training) = head;
        let (micro_batches, sequences, tokens, stages, copies) = counts;
        let forward = copies / 2;
        let slices = lengths.len() as u32;
        let (devices, links, buffers, parameters, channels, groups) = tables;
        let (feeds, readings, functions, queues) = rest;
        // A feed takes all of its buffer where there is one.
        let whole = |buffer: BufferId| View {
            buffer,
            offset: Bytes(0),
            bytes: buffers.get(buffer.0 as usize).map_or(Bytes(7), |row: &Buffer| row.bytes),
        };
        let feeds = feeds.into_iter().map(|(kind, buffer)| Feed { kind, view: whole(buffer) }).collect();
        Program {
            name,
            compiler,
            inputs,
            batch: Batch { micro_batches, sequences, tokens, slices, stages, forward, copies },
            slices: lengths.into(),
            training,
            devices: devices.into(),
            links: links.into(),
            parameters: parameters.into(),
            functions: functions.into(),
            channels: channels.into(),
            groups: groups.into(),
            feeds,
            readings,
            queues: queues.into(),
            buffers: buffers.into(),
        }
    })
}
