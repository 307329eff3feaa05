//! A program to text.

mod instruction;
mod kernel;
mod writer;

use super::lines::{FunctionLines, Lines, ParameterLines, QueueLines};
use crate::function::{Body, Function, Halves};
use crate::id::{BufferId, IdVec};
use crate::kernel::Kernel;
use crate::program::{Buffer, Data, Init, LearningRate, Placed, Program, Space, TokenWidth, Tokenizer, View};
use writer::{Unit, Writer};

/// The text of a program.
pub fn print(program: &Program) -> String {
    print_with_lines(program).0
}

/// The text of a kernel, as it stands in a function.
pub fn print_kernel(kernel: &Kernel) -> String {
    let mut w = Writer::new();
    kernel::print(&mut w, kernel);
    w.finish()
}

/// The text of a program, and where everything stands in it.
pub fn print_with_lines(program: &Program) -> (String, Lines) {
    let mut w = Writer::new();
    let mut lines = Lines::default();
    w.put("pprog 1").end();
    lines.program = w.put("program ").string(&program.name).end();
    if !program.compiler.is_empty() {
        w.put("compiler ").string(&program.compiler).end();
    }
    if !program.inputs.is_empty() {
        w.put("inputs ").string(&program.inputs).end();
    }
    run(&mut w, program, &mut lines);
    tables(&mut w, program, &mut lines);
    for (id, function) in program.functions.iter() {
        w.end();
        w.put("function f").number(id.0).put(" ").string(&function.name);
        if let Some(Halves { region, scalar }) = function.pair {
            w.put(" pair p").number(region.0).put(", s").number(scalar.0);
        }
        w.put(" {");
        let header = w.end();
        let mut rows = FunctionLines { header, ..FunctionLines::default() };
        print_function(&mut w, function, &mut rows);
        lines.functions.push(rows);
        w.put("}").end();
    }
    for (id, queue) in program.queues.iter() {
        w.end();
        w.put("queue q")
            .number(id.0)
            .put(" d")
            .number(queue.device.0)
            .put(" ")
            .put(queue.kind.name())
            .put(" {");
        let header = w.end();
        let mut instructions = Vec::with_capacity(queue.instructions.len());
        for instruction in &queue.instructions {
            w.put("    ");
            instruction::print(&mut w, instruction, &program.buffers);
            instructions.push(w.end());
        }
        lines.queues.push(QueueLines { header, instructions });
        w.put("}").end();
    }
    (w.finish(), lines)
}

/// What a run of many steps needs.
fn run(w: &mut Writer, program: &Program, lines: &mut Lines) {
    let batch = &program.batch;
    w.put("batch { micro_batches ").number(batch.micro_batches).put(", sequences ").number(batch.sequences);
    w.put(", tokens ").number(batch.tokens).put(", slices ");
    let slices: Vec<u32> = program.slices.values().copied().collect();
    w.list(&slices, |w, &tokens| {
        w.number(tokens);
    });
    w.put(", stages ").number(batch.stages);
    if batch.forward > 0 {
        w.put(", forward ").number(batch.forward);
    }
    lines.batch = w.put(", copies ").number(batch.copies).put(" }").end();
    let training = &program.training;
    w.put("training { ");
    if let Some(steps) = training.steps {
        w.put("steps ").number(steps).put(", ");
    }
    lines.training = w.put("seed ").number(training.seed).put(" }").end();
    match training.learning_rate {
        LearningRate::Constant { rate } => w.put("learning_rate constant { rate ").real(rate),
        LearningRate::Cosine { peak, warmup, steps, floor } => {
            w.put("learning_rate cosine { peak ").real(peak).put(", warmup ").number(warmup);
            w.put(", steps ").number(steps).put(", floor ").real(floor)
        }
    };
    lines.learning_rate = w.put(" }").end();
    if let Some(data) = &training.data {
        print_data(w, data);
        lines.data = w.end();
    }
}

fn print_data(w: &mut Writer, data: &Data) {
    let shuffled = |w: &mut Writer, shuffle: bool| {
        if shuffle {
            w.put(", shuffle");
        }
    };
    match data {
        Data::Text { paths, tokenizer, shuffle } => {
            w.put("data text { paths ").list(paths, |w, path| {
                w.string(path);
            });
            w.put(", tokenizer ");
            match tokenizer {
                Tokenizer::Bytes => w.put("bytes"),
                Tokenizer::File(path) => w.string(path),
            };
            shuffled(w, *shuffle);
        }
        Data::Tokens { path, width, shuffle } => {
            w.put("data tokens { path ").string(path).put(", width ").put(match width {
                TokenWidth::U16 => "u16",
                TokenWidth::U32 => "u32",
            });
            shuffled(w, *shuffle);
        }
        Data::Formula { vocab } => {
            w.put("data formula { vocab ").number(*vocab);
        }
    }
    w.put(" }");
}

/// Every table but functions and queues; a blank line before each that is not empty.
fn tables(w: &mut Writer, program: &Program, lines: &mut Lines) {
    let blank = |w: &mut Writer, empty: bool| {
        if !empty {
            w.end();
        }
    };
    blank(w, program.devices.is_empty());
    for (id, device) in program.devices.iter() {
        w.put("device d").number(id.0).put(" ").string(&device.name);
        w.put(" { memory ").quantity(device.memory.0, Unit::Bytes);
        w.put(", host_memory ").quantity(device.host_memory.0, Unit::Bytes);
        w.put(", bandwidth ").quantity(device.bandwidth.0, Unit::BytesPerSecond);
        w.put(", host_bandwidth ").quantity(device.host_bandwidth.0, Unit::BytesPerSecond);
        w.put(", upload ").list(&device.upload, |w, link| {
            w.put("l").number(link.0);
        });
        w.put(", download ").list(&device.download, |w, link| {
            w.put("l").number(link.0);
        });
        w.put(", threads ").number(device.threads).put(", host_threads ").number(device.host_threads);
        for (dtype, rate) in &device.rates {
            w.put(", ").put(dtype.name()).put(" ").quantity(rate.0, Unit::FlopsPerSecond);
        }
        lines.devices.push(w.put(" }").end());
    }
    blank(w, program.links.is_empty());
    for (id, link) in program.links.iter() {
        w.put("link l").number(id.0).put(" ").string(&link.name);
        w.put(" { bandwidth ").quantity(link.bandwidth.0, Unit::BytesPerSecond);
        lines.links.push(w.put(", latency ").quantity(link.latency.0, Unit::Time).put(" }").end());
    }
    blank(w, program.buffers.is_empty());
    for (id, buffer) in program.buffers.iter() {
        w.put("buffer b").number(id.0).put(" ").string(&buffer.name).put(" ").put(buffer.category.name());
        w.put(" d").number(buffer.device.0).put(match buffer.space {
            Space::Device => ".device",
            Space::Host => ".host",
        });
        lines.buffers.push(w.range(buffer.offset, buffer.bytes).end());
    }
    blank(w, program.parameters.is_empty());
    for (id, parameter) in program.parameters.iter() {
        w.put("parameter t").number(id.0).put(" ").string(&parameter.name).put(" ").tensor(&parameter.ty);
        match parameter.init {
            Init::Constant { value } => w.put(" constant(").real32(value),
            Init::Uniform { bound } => w.put(" uniform(").real(bound),
            Init::Normal { std } => w.put(" normal(").real(std),
        };
        let header = w.put(") {").end();
        let mut copies = Vec::with_capacity(parameter.copies.len());
        for copy in &parameter.copies {
            print_copy(w, copy, &program.buffers);
            copies.push(w.end());
        }
        lines.parameters.push(ParameterLines { header, copies });
        w.put("}").end();
    }
    blank(w, program.channels.is_empty());
    for (id, channel) in program.channels.iter() {
        w.put("channel c")
            .number(id.0)
            .put(" d")
            .number(channel.from.0)
            .put(" -> d")
            .number(channel.to.0)
            .put(" ");
        w.list(&channel.message, |w, ty| {
            w.tensor(ty);
        });
        w.put(" { capacity ").number(channel.capacity).put(", route ");
        w.list(&channel.route, |w, link| {
            w.put("l").number(link.0);
        });
        lines.channels.push(w.put(" }").end());
    }
    blank(w, program.groups.is_empty());
    for (id, group) in program.groups.iter() {
        w.put("group r").number(id.0).put(" ").put(group.result.name()).put(" ").list(
            &group.members,
            |w, device| {
                w.put("d").number(device.0);
            },
        );
        w.put(" ").tensor(&group.ty).put(" { route ");
        w.list(&group.route, |w, link| {
            w.put("l").number(link.0);
        });
        lines.groups.push(w.put(" }").end());
    }
    blank(w, program.feeds.is_empty() && program.readings.is_empty());
    for feed in &program.feeds {
        w.put("feed ").put(feed.kind.name()).put(" ");
        print_view(w, feed.view, &program.buffers);
        lines.feeds.push(w.end());
    }
    for reading in &program.readings {
        w.put("reading ").put(reading.kind.name()).put(" ");
        print_view(w, reading.view, &program.buffers);
        lines.readings.push(w.end());
    }
}

fn print_copy(w: &mut Writer, copy: &Placed, buffers: &IdVec<BufferId, Buffer>) {
    let Placed { weight, gradient, landed, moments, master, stages } = copy;
    w.put("    copy ");
    print_view(w, *weight, buffers);
    w.put(" gradient ");
    print_view(w, *gradient, buffers);
    if let Some(landed) = landed {
        w.put(" landed ");
        print_view(w, *landed, buffers);
    }
    if let Some([first, second]) = moments {
        w.put(" moments ");
        print_view(w, *first, buffers);
        w.put(", ");
        print_view(w, *second, buffers);
    }
    if let Some(master) = master {
        w.put(" master ");
        print_view(w, *master, buffers);
    }
    w.put(" stages ").list(stages, |w, stage| {
        w.put("g").number(stage.0);
    });
}

/// `b12[0..4096]`, or `b12` when it is all of them.
fn print_view(w: &mut Writer, view: View, buffers: &IdVec<BufferId, Buffer>) {
    w.put("b").number(view.buffer.0);
    let whole =
        buffers.get(view.buffer).is_some_and(|buffer| view.offset.0 == 0 && view.bytes == buffer.bytes);
    if !whole {
        w.range(view.offset, view.bytes);
    }
}

fn print_function(w: &mut Writer, function: &Function, lines: &mut FunctionLines) {
    for (id, param) in function.params.iter() {
        w.put("    p").number(id.0).put(" ").string(&param.name).put(": ").put(param.access.name()).put(" ");
        lines.params.push(w.number(param.bytes.0).end());
    }
    for (id, scalar) in function.scalars.iter() {
        w.put("    s").number(id.0).put(" ").string(&scalar.name).put(": ");
        lines.scalars.push(w.put(scalar.ty.name()).end());
    }
    match &function.body {
        Body::Kernels { values, kernels } => {
            for (id, value) in values.iter() {
                w.put("    v").number(id.0).put(": ").tensor(&value.ty).put(" at p").number(value.param.0);
                lines.values.push(w.put("+").number(value.offset.0).end());
            }
            for kernel in kernels {
                w.put("    ");
                kernel::print(w, kernel);
                lines.kernels.push(w.end());
            }
        }
        Body::Abstract { flops, traffic } => {
            w.put("    abstract { flops ").quantity(flops.0, Unit::Flops);
            w.put(", traffic ").quantity(traffic.0, Unit::Bytes).put(" }").end();
        }
    }
}
