//! The lines of tables: everything but functions and queues.

use super::cursor::{BYTES_PER_SECOND, Cursor, FLOPS_PER_SECOND, Parsed, TIME};
use super::{Parser, shortened};
use crate::id::Id;
use crate::id::{IdVec, Slice};
use crate::program::Shared;
use crate::program::{
    Batch, Buffer, Category, Channel, Data, Device, Feed, FeedKind, Group, Init, LearningRate, Link,
    Parameter, Placed, Reading, ReadingKind, Space, TokenWidth, Tokenizer, Training,
};
use crate::tensor::{DType, TensorType};
use crate::units::{BytesPerSecond, FlopsPerSecond, Nanos};

/// The id of a row, which must be the next of its table.
pub(super) fn next_id<I: Id>(c: &mut Cursor<'_>, letter: u8, what: &str, next: &mut u32) -> Parsed<I> {
    let at = c.here();
    let id: I = c.id(letter, what)?;
    let wanted = *next as usize;
    // Goes on from the id that stands here, so that one gap is one error.
    *next = u32::try_from(id.index()).unwrap_or(u32::MAX).saturating_add(1);
    if id.index() == wanted {
        return Ok(id);
    }
    c.fail_at(at, format!("ids count up from 0: expected {}{wanted}", char::from(letter)))
}

/// `, key` before a value; without the comma for the first.
fn key(c: &mut Cursor<'_>, first: bool, word: &str) -> Parsed<()> {
    if !first {
        c.expect(",")?;
    }
    c.expect_word(word)
}

/// The sizes of a step with the tokens of each slice.
pub(super) fn batch(c: &mut Cursor<'_>) -> Parsed<(Batch, IdVec<Slice, u32>)> {
    c.expect("{")?;
    key(c, true, "micro_batches")?;
    let micro_batches = c.number32()?;
    key(c, false, "sequences")?;
    let sequences = c.number32()?;
    key(c, false, "tokens")?;
    let tokens = c.number32()?;
    key(c, false, "slices")?;
    let lengths: IdVec<Slice, u32> = c.list(Cursor::number32)?.into();
    key(c, false, "stages")?;
    let stages = c.number32()?;
    c.expect(",")?;
    let forward = if c.eat_word("forward") {
        let forward = c.number32()?;
        c.expect(",")?;
        forward
    } else {
        0
    };
    key(c, true, "copies")?;
    let copies = c.number32()?;
    c.expect("}")?;
    let slices = u32::try_from(lengths.len()).unwrap_or(u32::MAX);
    Ok((Batch { micro_batches, sequences, tokens, slices, stages, forward, copies }, lengths))
}

pub(super) fn training(c: &mut Cursor<'_>, training: &mut Training) -> Parsed<()> {
    c.expect("{")?;
    if c.eat_word("steps") {
        training.steps = Some(c.number()?);
        c.expect(",")?;
    }
    c.expect_word("seed")?;
    training.seed = c.number()?;
    c.expect("}")
}

pub(super) fn learning_rate(c: &mut Cursor<'_>) -> Parsed<LearningRate> {
    let at = c.here();
    match c.word() {
        "constant" => {
            c.expect("{")?;
            key(c, true, "rate")?;
            let rate = c.real()?;
            c.expect("}")?;
            Ok(LearningRate::Constant { rate })
        }
        "cosine" => {
            c.expect("{")?;
            key(c, true, "peak")?;
            let peak = c.real()?;
            key(c, false, "warmup")?;
            let warmup = c.number()?;
            key(c, false, "steps")?;
            let steps = c.number()?;
            key(c, false, "floor")?;
            let floor = c.real()?;
            c.expect("}")?;
            Ok(LearningRate::Cosine { peak, warmup, steps, floor })
        }
        _ => c.fail_at(at, "expected a learning rate (constant, cosine)"),
    }
}

pub(super) fn data(c: &mut Cursor<'_>) -> Parsed<Data> {
    let at = c.here();
    let kind = c.word();
    if !matches!(kind, "text" | "tokens" | "formula") {
        return c.fail_at(at, "expected a source of tokens (text, tokens, formula)");
    }
    c.expect("{")?;
    let shuffled = |c: &mut Cursor<'_>| -> Parsed<bool> {
        let shuffle = c.eat(",");
        if shuffle {
            c.expect_word("shuffle")?;
        }
        Ok(shuffle)
    };
    let data = if kind == "text" {
        key(c, true, "paths")?;
        let paths = c.list(Cursor::string)?;
        key(c, false, "tokenizer")?;
        let tokenizer = if c.eat_word("bytes") { Tokenizer::Bytes } else { Tokenizer::File(c.string()?) };
        Data::Text { paths, tokenizer, shuffle: shuffled(c)? }
    } else if kind == "tokens" {
        key(c, true, "path")?;
        let path = c.string()?;
        key(c, false, "width")?;
        let width = c.choice("a width", &[TokenWidth::U16, TokenWidth::U32], |width| match width {
            TokenWidth::U16 => "u16",
            TokenWidth::U32 => "u32",
        })?;
        Data::Tokens { path, width, shuffle: shuffled(c)? }
    } else {
        key(c, true, "vocab")?;
        Data::Formula { vocab: c.number32()? }
    };
    c.expect("}")?;
    Ok(data)
}

fn device(c: &mut Cursor<'_>) -> Parsed<Device> {
    let name = c.string()?;
    c.expect("{")?;
    key(c, true, "memory")?;
    let memory = c.bytes()?;
    key(c, false, "host_memory")?;
    let host_memory = c.bytes()?;
    key(c, false, "bandwidth")?;
    let bandwidth = BytesPerSecond(c.quantity(BYTES_PER_SECOND)?);
    key(c, false, "host_bandwidth")?;
    let host_bandwidth = BytesPerSecond(c.quantity(BYTES_PER_SECOND)?);
    key(c, false, "upload")?;
    let upload = c.list(|c| c.id(b'l', "a link"))?;
    key(c, false, "download")?;
    let download = c.list(|c| c.id(b'l', "a link"))?;
    key(c, false, "threads")?;
    let threads = c.number32()?;
    key(c, false, "host_threads")?;
    let host_threads = c.number32()?;
    let mut rates = Vec::new();
    while c.eat(",") {
        let dtype = c.choice("an element type", &DType::ALL, DType::name)?;
        rates.push((dtype, FlopsPerSecond(c.quantity(FLOPS_PER_SECOND)?)));
    }
    c.expect("}")?;
    Ok(Device {
        name,
        memory,
        host_memory,
        bandwidth,
        host_bandwidth,
        upload,
        download,
        rates,
        threads,
        host_threads,
    })
}

fn link(c: &mut Cursor<'_>) -> Parsed<Link> {
    let name = c.string()?;
    c.expect("{")?;
    key(c, true, "bandwidth")?;
    let bandwidth = BytesPerSecond(c.quantity(BYTES_PER_SECOND)?);
    key(c, false, "latency")?;
    let latency = Nanos(c.quantity(TIME)?);
    c.expect("}")?;
    Ok(Link { name, bandwidth, latency })
}

fn buffer(c: &mut Cursor<'_>) -> Parsed<Buffer> {
    let name = c.string()?;
    let category = c.choice("a category", &Category::ALL, Category::name)?;
    let device = c.id(b'd', "a device")?;
    c.expect(".")?;
    let space = c.choice("an arena", &[Space::Device, Space::Host], |space| match space {
        Space::Device => "device",
        Space::Host => "host",
    })?;
    let (offset, bytes) = c.range()?;
    Ok(Buffer { name, device, space, offset, bytes, category })
}

fn init(c: &mut Cursor<'_>) -> Parsed<Init> {
    let at = c.here();
    let kind = c.word();
    if !matches!(kind, "constant" | "uniform" | "normal") {
        return c.fail_at(at, "expected an initial value (constant, uniform, normal)");
    }
    c.expect("(")?;
    let init = if kind == "constant" {
        Init::Constant { value: c.real32()? }
    } else if kind == "uniform" {
        Init::Uniform { bound: c.real()? }
    } else {
        Init::Normal { std: c.real()? }
    };
    c.expect(")")?;
    Ok(init)
}

fn channel(c: &mut Cursor<'_>) -> Parsed<Channel> {
    let from = c.id(b'd', "a device")?;
    c.expect("->")?;
    let to = c.id(b'd', "a device")?;
    let message = c.list(Cursor::tensor)?;
    c.expect("{")?;
    key(c, true, "capacity")?;
    let capacity = c.number32()?;
    key(c, false, "route")?;
    let route = c.list(|c| c.id(b'l', "a link"))?;
    c.expect("}")?;
    Ok(Channel { from, to, message, capacity, route })
}

fn group(c: &mut Cursor<'_>) -> Parsed<Group> {
    let result = c.choice("what a group shares", &Shared::ALL, |result| result.name())?;
    let members = c.list(|c| c.id(b'd', "a device"))?;
    let ty = c.tensor()?;
    c.expect("{")?;
    key(c, true, "route")?;
    let route = c.list(|c| c.id(b'l', "a link"))?;
    c.expect("}")?;
    Ok(Group { result, members, ty, route })
}

impl Parser {
    pub(super) fn device(&mut self, c: &mut Cursor<'_>) -> Parsed<()> {
        next_id::<crate::DeviceId>(c, b'd', "a device", &mut self.next.device)?;
        self.program.devices.push(device(c)?);
        self.lines.devices.push(self.number);
        Ok(())
    }

    pub(super) fn link(&mut self, c: &mut Cursor<'_>) -> Parsed<()> {
        next_id::<crate::LinkId>(c, b'l', "a link", &mut self.next.link)?;
        self.program.links.push(link(c)?);
        self.lines.links.push(self.number);
        Ok(())
    }

    pub(super) fn buffer(&mut self, c: &mut Cursor<'_>) -> Parsed<()> {
        next_id::<crate::BufferId>(c, b'b', "a buffer", &mut self.next.buffer)?;
        self.program.buffers.push(buffer(c)?);
        self.lines.buffers.push(self.number);
        Ok(())
    }

    pub(super) fn parameter(&mut self, c: &mut Cursor<'_>) -> Parsed<()> {
        let ty = TensorType { dtype: DType::F32, shape: crate::Shape::default() };
        let empty =
            Parameter { name: String::new(), ty, init: Init::Constant { value: 0.0 }, copies: Vec::new() };
        let row = self.program.parameters.push(empty);
        next_id::<crate::ParameterId>(c, b't', "a parameter", &mut self.next.parameter)?;
        let parameter = &mut self.program.parameters[row];
        parameter.name = c.string()?;
        parameter.ty = c.tensor()?;
        parameter.init = init(c)?;
        c.expect("{")
    }

    /// A line in the block of a parameter.
    pub(super) fn copy(&mut self, c: &mut Cursor<'_>) -> Parsed<()> {
        if !c.eat_word("copy") {
            let word = shortened(c.peek_word());
            return c.fail(format!("a parameter has lines `copy` up to `}}`, found `{word}`"));
        }
        let weight = self.view(c)?;
        c.expect_word("gradient")?;
        let gradient = self.view(c)?;
        let landed = if c.eat_word("landed") { Some(self.view(c)?) } else { None };
        let moments = if c.eat_word("moments") {
            let first = self.view(c)?;
            c.expect(",")?;
            Some([first, self.view(c)?])
        } else {
            None
        };
        let master = if c.eat_word("master") { Some(self.view(c)?) } else { None };
        c.expect_word("stages")?;
        let stages = c.list(|c| c.id(b'g', "a stage"))?;
        if let Some((_, parameter)) = self.program.parameters.iter_mut().next_back() {
            parameter.copies.push(Placed { weight, gradient, landed, moments, master, stages });
        }
        if let Some((_, lines)) = self.lines.parameters.iter_mut().next_back() {
            lines.copies.push(self.number);
        }
        c.finish()
    }

    pub(super) fn channel(&mut self, c: &mut Cursor<'_>) -> Parsed<()> {
        next_id::<crate::ChannelId>(c, b'c', "a channel", &mut self.next.channel)?;
        self.program.channels.push(channel(c)?);
        self.lines.channels.push(self.number);
        Ok(())
    }

    pub(super) fn group(&mut self, c: &mut Cursor<'_>) -> Parsed<()> {
        next_id::<crate::GroupId>(c, b'r', "a group", &mut self.next.group)?;
        self.program.groups.push(group(c)?);
        self.lines.groups.push(self.number);
        Ok(())
    }

    pub(super) fn feed(&mut self, c: &mut Cursor<'_>) -> Parsed<()> {
        let kind = c.choice("a feed", &FeedKind::ALL, FeedKind::name)?;
        let view = self.view(c)?;
        self.program.feeds.push(Feed { kind, view });
        self.lines.feeds.push(self.number);
        Ok(())
    }

    pub(super) fn reading(&mut self, c: &mut Cursor<'_>) -> Parsed<()> {
        let kind = c.choice("a reading", &ReadingKind::ALL, ReadingKind::name)?;
        let view = self.view(c)?;
        self.program.readings.push(Reading { kind, view });
        self.lines.readings.push(self.number);
        Ok(())
    }
}
