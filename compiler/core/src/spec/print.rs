//! A spec as text for people and snapshots (`--emit=spec`): everything it holds, in the order of its types.

use super::{
    Cluster, Cut, Layer, Level, Model, Offload, Op, Optimizer, Pipeline, Recompute, Spec, State, Sums, Train,
    Unary, Value, ValueId, Wire,
};
use pipec_program::id::IdVec;
use pipec_program::{Data, Init, LearningRate, Mask, Pairing, RopeScaling, TokenWidth, Tokenizer};
use std::fmt::{Display, Write as _};

/// The text of a spec. It ends with a line end.
pub fn print(spec: &Spec) -> String {
    let mut lines = Lines::default();
    model(&mut lines, &spec.model);
    cluster(&mut lines, &spec.cluster);
    train(&mut lines, &spec.train);
    pipeline(&mut lines, &spec.pipeline);
    lines.text
}

#[derive(Default)]
struct Lines {
    text: String,
}

impl Lines {
    fn add(&mut self, depth: usize, line: impl Display) {
        // Writing to a `String` cannot fail.
        let _ = writeln!(self.text, "{:indent$}{line}", "", indent = 2 * depth);
    }
}

fn list<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(" ")
}

fn extents(shape: &[u64]) -> String {
    format!("[{}]", shape.iter().map(u64::to_string).collect::<Vec<_>>().join(","))
}

fn model(lines: &mut Lines, model: &Model) {
    lines.add(
        0,
        format_args!("model {}: {} weights, vocabulary {}", model.name, model.weights(), model.vocab),
    );
    for (id, parameter) in model.parameters.iter() {
        let init = match parameter.init {
            Init::Constant { value } => format!("constant({value})"),
            Init::Uniform { bound } => format!("uniform({bound})"),
            Init::Normal { std } => format!("normal({std})"),
        };
        lines.add(1, format_args!("parameter {id} {} {} {init}", parameter.name, extents(&parameter.shape)));
    }
    for (id, layer) in model.layers.iter() {
        lines.add(1, format_args!("{id} {}", layer.name));
        print_layer(lines, layer);
    }
    for piece in &model.pieces {
        let filled = list(piece.parameters.values());
        lines.add(1, format_args!("piece {} = {}({filled})", piece.name, piece.layer));
    }
}

fn print_layer(lines: &mut Lines, layer: &Layer) {
    for (id, slot) in layer.slots.iter() {
        lines.add(2, format_args!("slot {id} {} {}", slot.name, extents(&slot.shape)));
    }
    if !layer.inputs.is_empty() {
        lines.add(2, format_args!("in {}", list(layer.inputs.iter().map(|id| typed(&layer.values, *id)))));
    }
    for operation in &layer.operations {
        let made = match operation.output {
            Some(output) => format!("{} = ", typed(&layer.values, output)),
            None => String::new(),
        };
        lines.add(2, format_args!("{made}{}", op(&operation.op)));
    }
    if !layer.outputs.is_empty() {
        lines.add(2, format_args!("out {}", list(&layer.outputs)));
    }
}

/// `x3:q[4x64]`: a value with its name in the text and its shape.
fn typed(values: &IdVec<ValueId, Value>, id: ValueId) -> String {
    let value = &values[id];
    if value.heads == 1 {
        format!("{id}:{}[{}]", value.name, value.width)
    } else {
        format!("{id}:{}[{}x{}]", value.name, value.heads, value.width)
    }
}

fn op(op: &Op) -> String {
    match op {
        Op::Embedding { table } => format!("embedding {table}"),
        Op::Positions { x, table, first } => format!("positions {x} {table} first {first}"),
        Op::Linear { x, weight, bias: None } => format!("linear {x} {weight}"),
        Op::Linear { x, weight, bias: Some(bias) } => format!("linear {x} {weight} bias {bias}"),
        Op::RmsNorm { x, gain, eps } => format!("rms_norm {x} {gain} eps {eps}"),
        Op::LayerNorm { x, gain, bias, eps } => format!("layer_norm {x} {gain} bias {bias} eps {eps}"),
        Op::Rope { x, rotary, base, pairing, scaling } => {
            let pairing = match pairing {
                Pairing::Half => "half",
                Pairing::Adjacent => "adjacent",
            };
            let scaling = scaling.map_or(String::new(), |RopeScaling { factor, low, high, original }| {
                format!(" llama3 factor {factor} low {low} high {high} original {original}")
            });
            format!("rope {x} rotary {rotary} base {base} {pairing}{scaling}")
        }
        Op::Attention { q, k, v, mask, scale } => {
            let mask = match mask {
                Mask::Full => "full".to_owned(),
                Mask::Causal => "causal".to_owned(),
                Mask::Window { size } => format!("window({size})"),
            };
            format!("attention {q} {k} {v} {mask} scale {scale}")
        }
        Op::Unary { function, x } => {
            let name = match function {
                Unary::Silu => "silu",
                Unary::Gelu => "gelu",
                Unary::GeluTanh => "gelu_tanh",
                Unary::Relu => "relu",
            };
            format!("{name} {x}")
        }
        Op::Add { a, b } => format!("add {a} {b}"),
        Op::Mul { a, b } => format!("mul {a} {b}"),
        Op::Scale { x, factor } => format!("scale {x} by {factor}"),
        Op::Softmax { x } => format!("softmax {x}"),
        Op::Dropout { x, p } => format!("dropout {x} p {p}"),
        Op::Reshape { x } => format!("reshape {x}"),
        Op::CrossEntropy { logits, ignore: None } => format!("cross_entropy {logits}"),
        Op::CrossEntropy { logits, ignore: Some(id) } => format!("cross_entropy {logits} ignore {id}"),
    }
}

fn wire(wire: Wire) -> String {
    format!("{} after {}", wire.bandwidth, wire.latency)
}

fn cluster(lines: &mut Lines, cluster: &Cluster) {
    lines.add(0, format_args!("cluster {}: {} devices", cluster.name, cluster.devices()));
    let mut rest = cluster.nodes.as_slice();
    while let Some(node) = rest.first() {
        let alike = rest.iter().take_while(|other| *other == node).count();
        rest = &rest[alike..];
        let device = &node.device;
        lines.add(1, format_args!("{alike} nodes with {} {} each", node.devices, device.name));
        let rates: Vec<_> = device.rates.iter().map(|(dtype, rate)| format!("{dtype} {rate}")).collect();
        lines.add(
            2,
            format_args!(
                "{} memory {} at {}, {}, threads {}",
                device.name,
                device.memory,
                device.bandwidth,
                rates.join(", "),
                device.threads
            ),
        );
        lines.add(
            2,
            format_args!(
                "host memory {}, cores {}, bandwidth {}",
                node.host_memory, node.host_cores, node.host_bandwidth
            ),
        );
        if let Some(host) = node.host_wire {
            lines.add(2, format_args!("{} <-> host {}", device.name, wire(host)));
        }
        if let Some(direct) = node.device_wire {
            lines.add(2, format_args!("{0} <-> {0} {1}", device.name, wire(direct)));
        }
    }
    if let Some(between) = cluster.node_wire {
        lines.add(1, format_args!("node <-> node {}", wire(between)));
    }
}

fn train(lines: &mut Lines, train: &Train) {
    lines.add(0, format_args!("train: {}", train.precision));
    if train.gradients == Sums::Own {
        lines.add(1, format_args!("gradients {}", train.precision));
    }
    lines.add(
        1,
        format_args!(
            "{} tokens, {} sequences a step, {} a micro-batch",
            train.seq, train.global_batch, train.micro_batch
        ),
    );
    let Optimizer::AdamW { beta1, beta2, eps, weight_decay } = train.optimizer;
    lines.add(1, format_args!("adamw betas {beta1} {beta2} eps {eps} weight_decay {weight_decay}"));
    match train.learning_rate {
        LearningRate::Constant { rate } => lines.add(1, format_args!("lr {rate}")),
        LearningRate::Cosine { peak, warmup, steps, floor } => {
            lines.add(1, format_args!("lr cosine peak {peak} warmup {warmup} steps {steps} floor {floor}"));
        }
    }
    if let Some(limit) = train.clip_norm {
        lines.add(1, format_args!("clip_norm {limit}"));
    }
    if let Some(steps) = train.steps {
        lines.add(1, format_args!("steps {steps}"));
    }
    lines.add(1, format_args!("seed {}", train.seed));
    if let Some(data) = &train.data {
        lines.add(1, format_args!("data {}", print_data(data)));
    }
}

fn print_data(data: &Data) -> String {
    let shuffled = |shuffle: bool| if shuffle { " shuffled" } else { "" };
    match data {
        Data::Text { paths, tokenizer, shuffle } => {
            let tokenizer = match tokenizer {
                Tokenizer::Bytes => "bytes".to_owned(),
                Tokenizer::File(path) => format!("{path:?}"),
            };
            let paths: Vec<_> = paths.iter().map(|path| format!("{path:?}")).collect();
            format!("text {} tokenizer {tokenizer}{}", paths.join(" "), shuffled(*shuffle))
        }
        Data::Tokens { path, width, shuffle } => {
            let width = match width {
                TokenWidth::U16 => "u16",
                TokenWidth::U32 => "u32",
            };
            format!("tokens {path:?} {width}{}", shuffled(*shuffle))
        }
        Data::Formula { vocab } => format!("formula over {vocab} ids"),
    }
}

fn pipeline(lines: &mut Lines, pipeline: &Pipeline) {
    let replicas = match pipeline.replicas {
        1 => String::new(),
        replicas => format!("{replicas} replicas of "),
    };
    lines.add(
        0,
        format_args!(
            "pipeline: {replicas}{} stages on {} devices, {} micro-batches",
            pipeline.stages, pipeline.devices, pipeline.micro_batches
        ),
    );
    match &pipeline.recompute {
        Recompute::Every(Level::None) => {}
        Recompute::Every(level) => lines.add(1, format_args!("recompute {}", level.name())),
        Recompute::Layers(levels) => {
            let names: Vec<&str> = levels.iter().map(|level| level.name()).collect();
            lines.add(1, format_args!("recompute [{}]", names.join(", ")));
        }
        Recompute::Auto => lines.add(1, "recompute auto"),
    }
    match pipeline.offload {
        Offload::None => {}
        Offload::Auto => lines.add(1, "offload auto"),
        Offload::Part(part) => lines.add(1, format_args!("offload {}", f64::from(part) / 1000.0)),
    }
    match pipeline.state {
        State::Device => {}
        State::HostOptimizer => lines.add(1, "state: weights on the device, optimizer on the host"),
        State::Host => lines.add(1, "state on the host"),
    }
    match &pipeline.cut {
        Cut::Balanced => lines.add(1, "cut balanced"),
        Cut::Layers(layers) => lines.add(1, format_args!("cut layers {}", list(layers))),
    }
    let schedule = pipeline.schedule.print();
    if let Some(lengths) = pipeline.given.as_ref().and_then(|given| given.lengths.as_ref()) {
        lines.add(1, format_args!("schedule {schedule} of {} tokens", list(lengths)));
        return;
    }
    match pipeline.balance {
        0 => lines.add(1, format_args!("schedule {schedule}")),
        balance => {
            lines.add(1, format_args!("schedule {schedule} cut {}.{:02}", balance / 100, balance % 100))
        }
    }
}
