//! The pipeline: how the model runs on the cluster, and whether the numbers of both fit.

use super::constant::{Constant, Kind, Settings, wrong_kind};
use super::given::{self, Given};
use super::report::Report;
use super::schedule::{self, Wish, small};
use super::settings::Block;
use super::train::Resolved;
use super::{Cluster, Cut, Level, Model, Offload, Origin, Pipeline, Recompute, Schedule, State};
use pipe_grammar::diagnostic::{Code, Diagnostic};
use pipec_program::{DType, Data};

/// The keys of a pipeline.
pub(super) const KEYS: &[&str] = &[
    "model",
    "cluster",
    "train",
    "devices",
    "stages",
    "layers",
    "schedule",
    "data_parallel",
    "recompute",
    "offload",
    "state",
];

/// Keys of the language for what pipec does not have, and of other systems.
pub(super) const UNAVAILABLE: &[&str] = &[
    "tensor_parallel",
    "context_parallel",
    "sequence_parallel",
    "expert_parallel",
    "slices",
    "zero",
    "fsdp",
    "weight_grads",
    "backward_layers",
    "placement",
    "memory_limit",
];

/// Keys of other systems and what they are called here.
const RENAMED: &[(&str, &str)] = &[
    ("pp", "stages"),
    ("pipeline_parallel", "stages"),
    ("dp", "data_parallel"),
    ("replicas", "data_parallel"),
    ("num_stages", "stages"),
    ("split", "layers"),
    ("cut", "layers"),
    ("micro_batches", "global_batch"),
];

/// What a pipeline says by itself, before model and cluster are known.
pub(super) struct Wished {
    stages: Option<u32>,
    devices: Option<u32>,
    replicas: u32,
    layers: Option<Vec<u32>>,
    recompute: Recompute,
    offload: Offload,
    state: Option<State>,
    schedule: Wish,
    given: Option<Given>,
    origins: Places,
}

impl Wished {
    /// The file of the schedule, and where its name stands.
    pub(super) fn file(&self) -> Option<(&str, Origin)> {
        self.schedule.file.as_ref().map(|(name, origin)| (name.as_str(), *origin))
    }

    /// The same with what the file of the schedule says.
    pub(super) fn with(mut self, given: Given) -> Self {
        self.schedule.schedule = given.schedule();
        self.given = Some(given);
        self
    }
}

/// Where the entries of a pipeline stand.
#[derive(Clone, Copy)]
struct Places {
    stages: Origin,
    devices: Origin,
    replicas: Origin,
    layers: Origin,
    recompute: Origin,
    offload: Origin,
    state: Origin,
    cluster: Origin,
}

/// Reads a pipeline. `None` where something is wrong with it.
pub(super) fn wished(settings: &Settings, report: &mut Report) -> Option<Wished> {
    let errors = report.errors();
    let mut settings = settings.clone();
    settings.entries.retain(|(key, origin, _)| {
        let renamed = RENAMED.iter().find(|(other, _)| other == key);
        if let Some((other, ours)) = renamed {
            let place = if *ours == "global_batch" { "of the training run" } else { "here" };
            report.push(
                Diagnostic::error(
                    origin.source,
                    Code::UnknownKey,
                    format!("a pipeline has no key `{other}`"),
                )
                .at(origin.span, "")
                .help(format!("it is `{ours}` {place}")),
            );
        }
        renamed.is_none()
    });
    let block = Block::new("a pipeline", &settings, KEYS, UNAVAILABLE, report);
    let count = |key: &str, report: &mut Report| match block.get(key) {
        Some(value) => small(value, 1, report).map(Some),
        None => Some(None),
    };
    let (stages, devices) = (count("stages", report), count("devices", report));
    let replicas = count("data_parallel", report);
    let schedule = match block.get("schedule") {
        Some(value) => schedule::read(value, report),
        None => Some(Wish::usual(settings.origin)),
    };
    let layers = match block.get("layers") {
        Some(value) => layers(value, report).map(Some),
        None => Some(None),
    };
    let recompute = match block.get("recompute") {
        Some(value) => recompute(value, report),
        None => Some(Recompute::default()),
    };
    let offload = match block.get("offload") {
        Some(value) => offload(value, report),
        None => Some(Offload::default()),
    };
    let state = match block.get("state") {
        Some(value) => state(value, report).map(Some),
        None => Some(None),
    };
    let origins = Places {
        stages: block.origin("stages"),
        devices: block.origin("devices"),
        replicas: block.origin("data_parallel"),
        layers: block.origin("layers"),
        recompute: block.origin("recompute"),
        offload: block.origin("offload"),
        state: block.origin("state"),
        cluster: block.origin("cluster"),
    };
    let (stages, devices, layers, schedule) = (stages?, devices?, layers?, schedule?);
    let (replicas, recompute, offload, state) = (replicas?.unwrap_or(1), recompute?, offload?, state?);
    let wished = Wished {
        stages,
        devices,
        replicas,
        layers,
        recompute,
        offload,
        state,
        schedule,
        given: None,
        origins,
    };
    (report.errors() == errors).then_some(wished)
}

fn recompute(value: &Constant, report: &mut Report) -> Option<Recompute> {
    match &value.kind {
        Kind::Word(word) if word == "auto" => Some(Recompute::Auto),
        Kind::List(items) => {
            let runs: Vec<Option<Vec<Level>>> = items.iter().map(|item| run(item, report)).collect();
            let runs: Option<Vec<Vec<Level>>> = runs.into_iter().collect();
            Some(Recompute::Layers(runs?.concat()))
        }
        Kind::Word(_)
        | Kind::Poison
        | Kind::Number(_)
        | Kind::Quantity(..)
        | Kind::Text(_)
        | Kind::Call(..)
        | Kind::Record(..) => match level(value) {
            Some(level) => Some(Recompute::Every(level)),
            None => {
                let expected = "`none`, `selective`, `full`, `auto` or a list with one of the first three for each layer";
                wrong_kind(value, expected, report);
                None
            }
        },
    }
}

/// The level of one layer, or of several that follow each other: `full` or `full(10)`.
fn run(value: &Constant, report: &mut Report) -> Option<Vec<Level>> {
    if let Kind::Call(name, arguments) = &value.kind
        && let Some(level) = Level::ALL.into_iter().find(|level| level.name() == name)
        && let [(None, count)] = &arguments[..]
    {
        return small(count, 1, report).map(|count| vec![level; count as usize]);
    }
    let level = level(value);
    if level.is_none() {
        wrong_kind(
            value,
            "`none`, `selective` or `full`, or one of them with a number of layers such as `full(10)`",
            report,
        );
    }
    level.map(|level| vec![level])
}

fn offload(value: &Constant, report: &mut Report) -> Option<Offload> {
    match &value.kind {
        Kind::Word(word) if word == "none" => Some(Offload::None),
        Kind::Word(word) if word == "auto" => Some(Offload::Auto),
        Kind::Number(number) => {
            let part = number.to_f64();
            if part > 0.0 && part <= 1.0 {
                return Some(Offload::Part((part * 1000.0).ceil() as u16));
            }
            report.push(
                Diagnostic::error(
                    value.origin.source,
                    Code::OutOfRange,
                    format!("{part} is no part of what is kept"),
                )
                .at(value.origin.span, "more than 0 and at most 1")
                .help("write `offload: none` to move nothing, or a part such as 0.5"),
            );
            None
        }
        Kind::Word(_)
        | Kind::Poison
        | Kind::Quantity(..)
        | Kind::Text(_)
        | Kind::List(_)
        | Kind::Call(..)
        | Kind::Record(..) => {
            wrong_kind(value, "`none`, `auto` or a part such as 0.5", report);
            None
        }
    }
}

/// `device`, `host`, or `host { weights: device }`.
fn state(value: &Constant, report: &mut Report) -> Option<State> {
    match &value.kind {
        Kind::Word(word) if word == "device" => Some(State::Device),
        Kind::Word(word) if word == "host" => Some(State::Host),
        Kind::Record(word, _, settings) if word == "host" => {
            let block =
                Block::new("state on the host", settings, &["weights"], &["optimizer", "gradients"], report);
            match block.get("weights") {
                Some(value) => on_host(value, report).map(|weights| match weights {
                    true => State::Host,
                    false => State::HostOptimizer,
                }),
                None => Some(State::Host),
            }
        }
        Kind::Word(_)
        | Kind::Poison
        | Kind::Number(_)
        | Kind::Quantity(..)
        | Kind::Text(_)
        | Kind::List(_)
        | Kind::Call(..)
        | Kind::Record(..) => {
            wrong_kind(value, "`device`, `host` or `host { weights: device }`", report);
            None
        }
    }
}

/// Whether something lives on the host.
fn on_host(value: &Constant, report: &mut Report) -> Option<bool> {
    match &value.kind {
        Kind::Word(word) if word == "device" => Some(false),
        Kind::Word(word) if word == "host" => Some(true),
        Kind::Word(_)
        | Kind::Poison
        | Kind::Number(_)
        | Kind::Quantity(..)
        | Kind::Text(_)
        | Kind::List(_)
        | Kind::Call(..)
        | Kind::Record(..) => {
            wrong_kind(value, "`device` or `host`", report);
            None
        }
    }
}

fn level(value: &Constant) -> Option<Level> {
    match &value.kind {
        Kind::Word(word) => Level::ALL.into_iter().find(|level| level.name() == word),
        Kind::Poison
        | Kind::Number(_)
        | Kind::Quantity(..)
        | Kind::Text(_)
        | Kind::List(_)
        | Kind::Call(..)
        | Kind::Record(..) => None,
    }
}

fn layers(value: &Constant, report: &mut Report) -> Option<Vec<u32>> {
    let Kind::List(items) = &value.kind else {
        wrong_kind(value, "a list with the number of layers of each stage, such as `[3, 1]`", report);
        return None;
    };
    let layers: Vec<_> = items.iter().map(|item| small(item, 0, report)).collect();
    layers.into_iter().collect()
}

/// Joins what the pipeline says with its model, cluster and training run.
pub(super) fn pipeline(
    wished: &Wished,
    model: &Model,
    cluster: &Cluster,
    train: &mut Resolved,
    report: &mut Report,
) -> Option<Pipeline> {
    let errors = report.errors();
    check_precision(wished, cluster, train, report);
    check_data(model, train, report);
    let (devices, stages) = stages(wished, cluster, report)?;
    let layers = model.pieces.iter().filter(|piece| piece.is_repeated()).count();
    let pieces = model.pieces.len();
    if stages as usize > pieces {
        let place = wished.origins.stages;
        report.push(
            Diagnostic::error(
                place.source,
                Code::TooManyStages,
                format!("{stages} stages, but the model has {pieces} pieces to place"),
            )
            .at(place.span, format!("{stages} stages"))
            .help(format!(
                "its pieces are {layers} layers and what stands before and after them; {pieces} stages are the most"
            )),
        );
        return None;
    }
    let cut = cut(wished, model, stages, layers, report)?;
    let schedule = wished.schedule.settle(devices);
    check_slices(wished, schedule, train, report);
    let micro_batches = micro_batches(wished, train, report)?;
    let copies = u64::from(schedule.placement().copies()) * u64::from(wished.replicas);
    if let Some(place) = train.sharded.filter(|_| copies < 2) {
        report.push(
            Diagnostic::error(
                place.source,
                Code::NoEffect,
                "one copy of the pipeline leaves nothing to share",
            )
            .at(place.span, "")
            .help("leave out `sharded: true`, or write `data_parallel` in the pipeline"),
        );
    }
    let on_host = wished.state.map_or(schedule.is_of_host(), State::is_on_host);
    if let Some(place) = train.sharded.filter(|_| on_host && copies > 1) {
        let error =
            Diagnostic::error(place.source, Code::Conflict, "an optimizer on the host is not sharded")
                .at(place.span, "")
                .help("leave out `sharded: true`: every host updates the weights of its devices");
        report.push(if wished.origins.state.source == place.source {
            error.with(wished.origins.state.span, "on the host")
        } else {
            error
        });
    }
    // Schedules that are made for it take the host as home.
    let state = match wished.state {
        Some(state) => state,
        None if schedule.is_of_host() => State::Host,
        None => State::Device,
    };
    check_home(wished, schedule, state, report);
    let (balance, replicas, given) = (wished.schedule.balance, wished.replicas, wished.given.clone());
    if let Some(given) = &given {
        let each = micro_batches / replicas.max(1);
        let sizes = given::Sizes { devices, micro_batches: each, replicas, seq: train.train.seq };
        given::check(given, wished.schedule.slices, sizes, report);
    }
    check_recompute(wished, layers, &model.name, report);
    let recompute = wished.recompute.clone();
    let pipeline = Pipeline {
        stages,
        devices,
        replicas,
        micro_batches,
        cut,
        schedule,
        given,
        balance,
        recompute,
        offload: wished.offload,
        state,
    };
    (report.errors() == errors).then_some(pipeline)
}

/// Schedules for state on the host are for nothing else, and compute every stage again.
fn check_home(wished: &Wished, schedule: Schedule, state: State, report: &mut Report) {
    let name = schedule.name();
    let error = |place: Origin, code: Code, message: String, help: String| {
        Diagnostic::error(place.source, code, message).at(place.span, "").help(help)
    };
    if !schedule.is_of_host() {
        return;
    }
    let of_layer = if matches!(schedule, Schedule::SPipe { .. }) { "interleaved" } else { "breadth_first" };
    if state != State::Host {
        let message = format!("`{name}` is for state that lives on the host");
        let help = format!("leave out `state`, or write `schedule: {of_layer} {{ virtual: 2 }}`");
        report.push(error(wished.origins.state, Code::Conflict, message, help));
    }
    if wished.recompute != Recompute::default() {
        let message = format!("`{name}` computes every stage again from its input");
        let help = "leave out `recompute`".to_owned();
        report.push(error(wished.origins.recompute, Code::NoEffect, message, help));
    }
    if wished.offload != Offload::None {
        let message = format!("under `{name}` nothing is kept from the forward to the backward pass");
        let help = "leave out `offload`".to_owned();
        report.push(error(wished.origins.offload, Code::NoEffect, message, help));
    }
    if wished.replicas > 1 {
        let message = format!("`{name}` runs one replica of the pipeline, not {}", wished.replicas);
        let help = format!(
            "leave out `data_parallel`, or take `schedule: {of_layer} {{ virtual: 2 }}, state: host`"
        );
        report.push(error(wished.origins.replicas, Code::Unsupported, message, help));
    }
    if wished.layers.is_some() {
        let message = format!("the stages of `{name}` are cut by time");
        let help = "leave out `layers`".to_owned();
        report.push(error(wished.origins.layers, Code::Unsupported, message, help));
    }
}

/// A list has a level for every layer.
fn check_recompute(wished: &Wished, layers: usize, model: &str, report: &mut Report) {
    let Recompute::Layers(levels) = &wished.recompute else { return };
    if levels.len() == layers {
        return;
    }
    let place = wished.origins.recompute;
    let message = format!("`recompute` is given for {} layers, model `{model}` has {layers}", levels.len());
    report.push(
        Diagnostic::error(place.source, Code::CutMismatch, message)
            .at(place.span, format!("{} layers", levels.len()))
            .help("give one for each layer; what stands before and after the layers is not counted"),
    );
}

/// The micro-batches of a step over all replicas, which share them evenly. That the micro-batch divides the global batch
/// has been checked.
fn micro_batches(wished: &Wished, train: &Resolved, report: &mut Report) -> Option<u32> {
    let (global, micro) = (train.train.global_batch, train.train.micro_batch.max(1));
    let replicas = u64::from(wished.replicas);
    let micro_batches = global / micro;
    if !micro_batches.is_multiple_of(replicas) {
        let place = wished.origins.replicas;
        let each = micro_batches.div_ceil(replicas);
        let product = each * replicas * micro;
        let message = format!(
            "a global batch of {global} makes {micro_batches} micro-batches of {micro}, which {replicas} replicas do not share evenly"
        );
        report.push(
            Diagnostic::error(place.source, Code::BatchMismatch, message)
                .at(place.span, format!("{replicas} replicas"))
                .help(format!("`global_batch: {product}` is {micro} × {each} × {replicas}")),
        );
        return None;
    }
    u32::try_from(micro_batches).ok()
}

/// Uniform slices are equal parts of a sequence.
fn check_slices(wished: &Wished, schedule: Schedule, train: &Resolved, report: &mut Report) {
    let (seq, slices) = (train.train.seq, u64::from(schedule.slices()));
    let has_lengths = wished.given.as_ref().is_some_and(|given| given.lengths.is_some());
    let unequal = has_lengths || wished.schedule.balance > 0 && slices < seq;
    if slices == 0 || seq.is_multiple_of(slices) || unequal {
        return;
    }
    let place = wished.schedule.slices;
    let fewer = (1..slices).rev().find(|&fewer| seq.is_multiple_of(fewer)).unwrap_or(1);
    report.push(
        Diagnostic::error(
            place.source,
            Code::InexactDivision,
            format!("{seq} tokens do not make {slices} equal slices"),
        )
        .at(place.span, format!("{slices} slices"))
        .help(match wished.given {
            Some(_) => format!("take a schedule of {fewer} slices, or one with `lengths`"),
            None => format!("write `slices: {fewer}` or change `seq`"),
        }),
    );
}

/// The number of devices and of stages.
fn stages(wished: &Wished, cluster: &Cluster, report: &mut Report) -> Option<(u32, u32)> {
    let places = wished.origins;
    let there = cluster.devices();
    let chunks = wished.schedule.settle(1).virtual_stages();
    let devices = match wished.devices {
        Some(devices) if u64::from(devices) > there => {
            report.push(
                Diagnostic::error(
                    places.devices.source,
                    Code::DeviceMismatch,
                    format!("{devices} devices, but cluster `{}` has {there}", cluster.name),
                )
                .at(places.devices.span, "")
                .help(format!("write `devices: {there}` or take a larger cluster")),
            );
            return None;
        }
        Some(devices) => devices,
        None => u32::try_from(there).ok()?,
    };
    // Of one replica.
    if !devices.is_multiple_of(wished.replicas) {
        let replicas = wished.replicas;
        let error = Diagnostic::error(
            places.replicas.source,
            Code::DeviceMismatch,
            format!("{replicas} replicas do not share {devices} devices evenly"),
        )
        .at(places.replicas.span, format!("{replicas} replicas"));
        let fewer = devices / replicas * replicas;
        report.push(match fewer {
            0 => error.help(format!("there are {devices} devices, so at most {devices} replicas")),
            _ => error.help(format!("write `devices: {fewer}` to leave {} idle", devices - fewer)),
        });
        return None;
    }
    let all = devices;
    let devices = devices / wished.replicas;
    let there = there / u64::from(wished.replicas);
    let product = u64::from(devices) * u64::from(chunks);
    match wished.stages {
        Some(stages) if u64::from(stages) != product => {
            let each = match chunks {
                1 => "one stage each".to_owned(),
                _ => format!("{chunks} stages each"),
            };
            let wanted = u64::from(stages) / u64::from(chunks);
            let fits = u64::from(stages).is_multiple_of(u64::from(chunks)) && (1..=there).contains(&wanted);
            let help = if fits && wished.devices.is_none() {
                format!(
                    "write `devices: {}` to leave {} idle, or `stages: {product}`",
                    wanted * u64::from(wished.replicas),
                    (there - wanted) * u64::from(wished.replicas)
                )
            } else if fits {
                format!("write `stages: {product}` or `devices: {}`", wanted * u64::from(wished.replicas))
            } else {
                format!("write `stages: {product}`")
            };
            let error = Diagnostic::error(
                places.stages.source,
                Code::DeviceMismatch,
                match wished.replicas {
                    1 => format!(
                        "{stages} stages do not go onto {devices} devices with {each}: that makes {product}"
                    ),
                    replicas => format!(
                        "{stages} stages do not go onto the {devices} devices of each of {replicas} replicas with {each}: that makes {product}"
                    ),
                },
            )
            .at(places.stages.span, format!("{stages} stages"))
            .help(help);
            let from = if wished.devices.is_some() { places.devices } else { places.cluster };
            report.push(error.with(from.span, format!("{all} devices")));
            None
        }
        Some(stages) => Some((devices, stages)),
        None => u32::try_from(product).ok().map(|stages| (devices, stages)),
    }
}

fn cut(wished: &Wished, model: &Model, stages: u32, layers: usize, report: &mut Report) -> Option<Cut> {
    let Some(counts) = &wished.layers else { return Some(Cut::Balanced) };
    let place = wished.origins.layers;
    let error = |code: Code, message: String| Diagnostic::error(place.source, code, message);
    if counts.len() != stages as usize {
        report.push(
            error(Code::CutMismatch, format!("the cut has {} stages, the pipeline {stages}", counts.len()))
                .at(place.span, format!("{} stages", counts.len()))
                .with(wished.origins.stages.span, format!("{stages} stages"))
                .help("give one number for each stage"),
        );
        return None;
    }
    let total: u64 = counts.iter().map(|count| u64::from(*count)).sum();
    if total != layers as u64 {
        report.push(
            error(
                Code::CutMismatch,
                format!("the cut has {total} layers, model `{}` has {layers}", model.name),
            )
            .at(place.span, format!("{total} layers"))
            .help("the numbers must add up to the layers of the model"),
        );
        return None;
    }
    let empty = counts.iter().enumerate().find(|(stage, count)| {
        let outer = *stage == 0 && has_front(model) || *stage + 1 == counts.len() && has_back(model);
        **count == 0 && !outer
    });
    if let Some((stage, _)) = empty {
        report.push(
            error(Code::EmptyStage, format!("stage {stage} has no layer"))
                .at(place.span, format!("the number at position {stage}, from 0, is 0"))
                .help("only the first stage, with the embedding, and the last, with the head, may have no layer"),
        );
        return None;
    }
    Some(Cut::Layers(counts.clone()))
}

fn has_front(model: &Model) -> bool {
    model.pieces.first().is_some_and(|piece| !piece.is_repeated())
}

fn has_back(model: &Model) -> bool {
    model.pieces.last().is_some_and(|piece| !piece.is_repeated())
}

fn check_precision(wished: &Wished, cluster: &Cluster, train: &Resolved, report: &mut Report) {
    let precision = train.train.precision;
    let lacking = cluster
        .nodes
        .iter()
        .map(|node| &node.device)
        .find(|device| device.rates.iter().all(|(dtype, _)| *dtype != precision));
    if let Some(device) = lacking {
        let names: Vec<_> = device.rates.iter().map(|(dtype, _)| dtype.name()).collect();
        let hint =
            if precision == DType::BF16 && names.contains(&"f16") { ", or take another cluster" } else { "" };
        let place = train.precision;
        let error = Diagnostic::error(
            place.source,
            Code::Unsupported,
            format!("`{}` of cluster `{}` does not compute in {precision}", device.name, cluster.name),
        )
        .at(place.span, "")
        .help(format!("it computes in {}{hint}", names.join(", ")));
        // Labels of one diagnostic lie in one text.
        report.push(if wished.origins.cluster.source == place.source {
            error.with(wished.origins.cluster.span, "the cluster")
        } else {
            error
        });
    }
}

/// Token ids must be ids of the model. A formula without a number of ids takes that of the model.
fn check_data(model: &Model, train: &mut Resolved, report: &mut Report) {
    if train.formula_of_model
        && let Some(Data::Formula { vocab }) = &mut train.train.data
    {
        *vocab = u32::try_from(model.vocab).unwrap_or(u32::MAX);
        return;
    }
    if let Some((ids, place)) = train.ids
        && ids > model.vocab
    {
        report.push(
            Diagnostic::error(
                place.source,
                Code::ShapeMismatch,
                format!("the data has {ids} token ids, model `{}` has {}", model.name, model.vocab),
            )
            .at(place.span, format!("{ids} ids"))
            .help(format!("give the embedding and the head of the model {ids} ids")),
        );
    }
}
