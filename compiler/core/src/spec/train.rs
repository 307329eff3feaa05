//! The training run: batch, precision, optimizer, learning rate and data.

use super::constant::{Constant, Environment, Kind, Settings, settings, wrong_kind};
use super::report::Report;
use super::settings::Block;
use super::{Optimizer, OptimizerState, Origin, Sums, Train};
use pipe_grammar::ast;
use pipe_grammar::diagnostic::{Code, Diagnostic, SourceId, suggest};
use pipec_program::{DType, Data, LearningRate, TokenWidth, Tokenizer};

/// A training run and where its entries stand.
pub(super) struct Resolved {
    pub(super) train: Train,
    /// The number of token ids that its data has, and where it says so, if the data says it.
    pub(super) ids: Option<(u64, Origin)>,
    pub(super) micro_batch: Origin,
    pub(super) precision: Origin,
    /// `formula` without a number of ids: that of the model.
    pub(super) formula_of_model: bool,
    /// Where it says that the optimizer is sharded, if it is.
    pub(super) sharded: Option<Origin>,
}

const KEYS: &[&str] = &[
    "seq",
    "global_batch",
    "micro_batch",
    "precision",
    "gradients",
    "clip_norm",
    "optimizer",
    "steps",
    "seed",
    "data",
];

/// Things that other trainers have and pipec does not.
const UNAVAILABLE: &[&str] = &["loss_scale", "epochs", "grad_accumulation", "ema", "master_weights", "fp8"];

/// The most tokens of a sequence and sequences of a batch.
const MAX_BATCH: u64 = 1 << 24;

/// Resolves a training run.
pub(super) fn train(source: SourceId, declaration: &ast::Train, report: &mut Report) -> Option<Resolved> {
    let mut values = settings(&declaration.settings, source, &Environment::new(), report);
    // A complaint about the whole block points at its first word.
    values.origin.span = ast::Span::new(declaration.span.start, declaration.span.start + "train".len());
    let block = Block::new("a training run", &values, KEYS, UNAVAILABLE, report);
    let mut count = |key: &str, example: &str| {
        let value = block.require(key, example, report)?;
        bounded(value, report)
    };
    let (seq, global_batch) = (count("seq", "256"), count("global_batch", "16"));
    let micro_batch = count("micro_batch", "2");
    let precision = precision(&block, report);
    let gradients = gradients(&block, precision, report);
    let clip_norm = clip_norm(&block, report);
    let steps = match block.get("steps") {
        Some(value) => value.as_count(1, &Environment::new(), report).map(Some),
        None => Some(None),
    };
    let seed = match block.get("seed") {
        Some(value) => value.as_count(0, &Environment::new(), report),
        None => Some(0),
    };
    let optimizer = block.require("optimizer", "adamw { lr: 3e-4 }", report);
    let optimizer = optimizer.and_then(|value| optimizer_of(value, steps.flatten(), report));
    let data = match block.get("data") {
        Some(value) => data(value, report).map(Some),
        None => Some(None),
    };
    let formula_of_model = matches!(data, Some(Some((Data::Formula { vocab: 0 }, _))));
    let micro_batch = divides(&block, global_batch, micro_batch, report);
    let (optimizer, learning_rate, sharded) = optimizer?;
    let (data, ids) = match data? {
        Some((data, ids)) => (Some(data), ids),
        None => (None, None),
    };
    Some(Resolved {
        train: Train {
            seq: seq?,
            global_batch: global_batch?,
            micro_batch: micro_batch?,
            precision: precision?,
            gradients: gradients?,
            clip_norm: clip_norm?,
            optimizer,
            optimizer_state: match sharded {
                Some(_) => OptimizerState::Sharded,
                None => OptimizerState::Copied,
            },
            learning_rate,
            steps: steps?,
            seed: seed?,
            data,
        },
        ids,
        micro_batch: block.origin("micro_batch"),
        precision: block.origin("precision"),
        formula_of_model,
        sharded,
    })
}

fn bounded(value: &Constant, report: &mut Report) -> Option<u64> {
    let count = value.as_count(1, &Environment::new(), report)?;
    if count > MAX_BATCH {
        report.push(
            Diagnostic::error(value.origin.source, Code::OutOfRange, format!("{count} is too large"))
                .at(value.origin.span, format!("at most {MAX_BATCH}")),
        );
        return None;
    }
    Some(count)
}

/// The micro-batch, if it divides the global one.
fn divides(
    block: &Block<'_>,
    global_batch: Option<u64>,
    micro_batch: Option<u64>,
    report: &mut Report,
) -> Option<u64> {
    let (global, micro) = (global_batch?, micro_batch?);
    if global % micro == 0 {
        return Some(micro);
    }
    let (place, other) = (block.origin("global_batch"), block.origin("micro_batch"));
    let (below, above) = (global / micro * micro, global.div_ceil(micro) * micro);
    let help = if below == 0 {
        format!("`global_batch: {above}` is the least for this micro-batch")
    } else {
        format!("`global_batch: {below}` or `{above}` is a multiple")
    };
    report.push(
        Diagnostic::error(
            place.source,
            Code::BatchMismatch,
            format!("a global batch of {global} is no multiple of the micro-batch {micro}"),
        )
        .at(place.span, format!("{global} a step"))
        .with(other.span, format!("{micro} a micro-batch"))
        .help(help),
    );
    None
}

fn precision(block: &Block<'_>, report: &mut Report) -> Option<DType> {
    let Some(value) = block.get("precision") else { return Some(DType::F32) };
    let choices = [DType::F32, DType::BF16, DType::F16, DType::F64];
    if let Kind::Word(word) = &value.kind {
        if let Some(dtype) = choices.into_iter().find(|dtype| dtype.name() == word) {
            return Some(dtype);
        }
        let meant = match word.as_str() {
            "fp32" | "float32" | "single" => Some("f32"),
            "fp16" | "float16" | "half" => Some("f16"),
            "bfloat16" => Some("bf16"),
            "fp64" | "float64" | "double" => Some("f64"),
            _ => suggest(word, choices.map(DType::name)),
        };
        let names = choices.map(DType::name).join(", ");
        report.push(
            Diagnostic::error(
                value.origin.source,
                if word.contains('8') { Code::Unsupported } else { Code::UnknownName },
                format!("there is no precision `{word}`"),
            )
            .at(value.origin.span, "")
            .help(meant.map_or(format!("it is one of {names}"), |near| format!("did you mean `{near}`?"))),
        );
        return None;
    }
    wrong_kind(value, "a precision such as `f32`", report);
    None
}

/// f32, or f64 where the run is; a run in a shorter type may add up in it.
fn gradients(block: &Block<'_>, precision: Option<DType>, report: &mut Report) -> Option<Sums> {
    let usual = if precision? == DType::F64 { DType::F64 } else { DType::F32 };
    let Some(value) = block.get("gradients") else { return Some(Sums::Wide) };
    let choices: Vec<DType> = [usual, precision?].into_iter().collect();
    if let Kind::Word(word) = &value.kind
        && let Some(dtype) = choices.iter().find(|dtype| dtype.name() == word)
    {
        return Some(if *dtype == usual { Sums::Wide } else { Sums::Own });
    }
    let expected = match choices[..] {
        [usual, own] if usual != own => format!("`{usual}` or `{own}`"),
        _ => format!("`{usual}`"),
    };
    wrong_kind(value, &expected, report);
    None
}

fn clip_norm(block: &Block<'_>, report: &mut Report) -> Option<Option<f64>> {
    let Some(value) = block.get("clip_norm") else { return Some(None) };
    let infinite = match &value.kind {
        Kind::Word(word) => matches!(word.as_str(), "inf" | "none"),
        Kind::Number(number) => number.to_f64() == f64::INFINITY,
        Kind::Poison
        | Kind::Quantity(..)
        | Kind::Text(_)
        | Kind::List(_)
        | Kind::Call(..)
        | Kind::Record(..) => false,
    };
    if infinite {
        report.push(
            Diagnostic::error(value.origin.source, Code::NoEffect, "a limit that no gradient reaches")
                .at(value.origin.span, "clips nothing")
                .help("leave `clip_norm` out to train without clipping"),
        );
        return None;
    }
    value.as_real("above 0", |norm| norm > 0.0, &Environment::new(), report).map(Some)
}

/// The optimizer, its rate, and where it says that its state is sharded.
fn optimizer_of(
    value: &Constant,
    steps: Option<u64>,
    report: &mut Report,
) -> Option<(Optimizer, LearningRate, Option<Origin>)> {
    let origin = value.origin;
    let (name, settings) = match &value.kind {
        Kind::Record(name, _, settings) => (name, settings.clone()),
        Kind::Word(name) => (name, Settings { origin, entries: Vec::new() }),
        Kind::Poison
        | Kind::Number(_)
        | Kind::Quantity(..)
        | Kind::Text(_)
        | Kind::List(_)
        | Kind::Call(..) => {
            wrong_kind(value, "an optimizer such as `adamw { lr: 3e-4 }`", report);
            return None;
        }
    };
    if name != "adamw" {
        let other = ["sgd", "adam", "lion", "muon", "adafactor", "lamb", "adagrad"].contains(&name.as_str());
        let (code, message) = if other {
            (Code::Unsupported, format!("the optimizer `{name}` is not available"))
        } else {
            (Code::UnknownName, format!("there is no optimizer `{name}`"))
        };
        let error = Diagnostic::error(origin.source, code, message);
        report.push(error.at(origin.span, "").help("write `adamw { lr: 3e-4 }`"));
        return None;
    }
    let keys = ["lr", "betas", "eps", "weight_decay", "sharded"];
    let unavailable = ["amsgrad", "fused", "maximize"];
    let block = Block::new("`adamw`", &settings, &keys, &unavailable, report);
    let rate = block.require("lr", "3e-4", report);
    let rate = rate.and_then(|value| learning_rate(value, steps, report));
    let betas = betas(&block, report);
    let mut real = |key: &str, default: f64, range: &str| match block.get(key) {
        Some(value) => value.as_real(range, |value| value >= 0.0, &Environment::new(), report),
        None => Some(default),
    };
    let (eps, weight_decay) = (real("eps", 1e-8, "from 0 on"), real("weight_decay", 0.0, "from 0 on"));
    let (beta1, beta2) = betas?;
    let sharded = match block.get("sharded") {
        None => Some(None),
        Some(Constant { kind: Kind::Word(word), .. }) if word == "false" => Some(None),
        Some(Constant { kind: Kind::Word(word), .. }) if word == "true" => {
            Some(Some(block.origin("sharded")))
        }
        Some(value) => {
            wrong_kind(value, "`true` or `false`", report);
            None
        }
    };
    Some((Optimizer::AdamW { beta1, beta2, eps: eps?, weight_decay: weight_decay? }, rate?, sharded?))
}

fn betas(block: &Block<'_>, report: &mut Report) -> Option<(f64, f64)> {
    let Some(value) = block.get("betas") else { return Some((0.9, 0.95)) };
    let Kind::List(items) = &value.kind else {
        wrong_kind(value, "two numbers such as `(0.9, 0.95)`", report);
        return None;
    };
    let [beta1, beta2] = items.as_slice() else {
        report.push(
            Diagnostic::error(
                value.origin.source,
                Code::WrongKind,
                format!("two betas are needed, found {}", items.len()),
            )
            .at(value.origin.span, "")
            .help("write `(0.9, 0.95)`"),
        );
        return None;
    };
    let mut decay = |value: &Constant| {
        value.as_real("from 0 and below 1", |beta| (0.0..1.0).contains(&beta), &Environment::new(), report)
    };
    let (beta1, beta2) = (decay(beta1), decay(beta2));
    Some((beta1?, beta2?))
}

fn learning_rate(value: &Constant, steps: Option<u64>, report: &mut Report) -> Option<LearningRate> {
    let none = Environment::new();
    let positive = |rate: f64| rate > 0.0;
    let (name, settings) = match &value.kind {
        Kind::Number(_) => {
            return value
                .as_real("above 0", positive, &none, report)
                .map(|rate| LearningRate::Constant { rate });
        }
        Kind::Record(name, _, settings) if name == "cosine" => (name, settings),
        Kind::Record(name, origin, _) => {
            let error = Diagnostic::error(
                origin.source,
                Code::Unsupported,
                format!("the learning rate `{name}` is not available"),
            )
            .at(origin.span, "");
            report.push(error.help("write a number or `cosine { peak: 3e-4, warmup: 100 }`"));
            return None;
        }
        Kind::Poison
        | Kind::Quantity(..)
        | Kind::Word(_)
        | Kind::Text(_)
        | Kind::List(_)
        | Kind::Call(..) => {
            wrong_kind(value, "a number or `cosine { peak: 3e-4, warmup: 100 }`", report);
            return None;
        }
    };
    debug_assert_eq!(name, "cosine");
    let block = Block::new("`cosine`", settings, &["peak", "warmup", "floor", "steps"], &[], report);
    let peak = block.require("peak", "3e-4", report);
    let peak = peak.and_then(|value| value.as_real("above 0", positive, &none, report));
    let warmup = match block.get("warmup") {
        Some(value) => value.as_count(0, &none, report),
        None => Some(0),
    };
    let floor = match block.get("floor") {
        Some(value) => value.as_real("from 0 on", |floor| floor >= 0.0, &none, report),
        None => Some(0.0),
    };
    let steps = match (block.get("steps"), steps) {
        (Some(value), _) => value.as_count(1, &none, report),
        (None, Some(steps)) => Some(steps),
        (None, None) => {
            report.push(
                Diagnostic::error(
                    value.origin.source,
                    Code::MissingKey,
                    "a cosine needs the number of steps after which it ends",
                )
                .at(value.origin.span, "")
                .help("add `steps: 1000` to the training run"),
            );
            None
        }
    };
    let (peak, warmup, floor, steps) = (peak?, warmup?, floor?, steps?);
    if warmup >= steps {
        let origin = block.origin("warmup");
        report.push(
            Diagnostic::error(
                origin.source,
                Code::OutOfRange,
                format!("a warm-up of {warmup} steps leaves nothing of {steps} for the cosine"),
            )
            .at(origin.span, format!("must be below {steps}")),
        );
        return None;
    }
    if floor >= peak {
        let origin = block.origin("floor");
        report.push(
            Diagnostic::error(
                origin.source,
                Code::OutOfRange,
                format!("the floor {floor} is not below the peak {peak}"),
            )
            .at(origin.span, "")
            .with(block.origin("peak").span, "the peak")
            .help("a constant rate is written as a number: `lr: 3e-4`"),
        );
        return None;
    }
    Some(LearningRate::Cosine { peak, warmup, steps, floor })
}

/// The data, and the number of token ids it is known to have. A formula over the ids of the model has a vocabulary of
/// 0 until the model is known.
fn data(value: &Constant, report: &mut Report) -> Option<(Data, Option<(u64, Origin)>)> {
    const CHOICES: &str =
        "`text(\"docs/**/*.md\", tokenizer: bytes)`, `tokens(\"ids.bin\", width: u16)` or `formula`";
    let (name, arguments) = match &value.kind {
        Kind::Call(name, arguments) => (name.as_str(), arguments.as_slice()),
        Kind::Word(name) => (name.as_str(), &[][..]),
        Kind::Poison
        | Kind::Number(_)
        | Kind::Quantity(..)
        | Kind::Text(_)
        | Kind::List(_)
        | Kind::Record(..) => {
            wrong_kind(value, CHOICES, report);
            return None;
        }
    };
    let known: &[&str] = match name {
        "text" => &["tokenizer", "shuffle"],
        "tokens" => &["width", "shuffle"],
        "formula" => &["vocab"],
        _ => {
            let error = Diagnostic::error(
                value.origin.source,
                Code::UnknownName,
                format!("there is no data `{name}`"),
            )
            .at(value.origin.span, "");
            report.push(match suggest(name, ["text", "tokens", "formula"]) {
                Some(near) => error.help(format!("did you mean `{near}`?")),
                None => error.help(format!("data is {CHOICES}")),
            });
            return None;
        }
    };
    let mut paths = Vec::new();
    let mut named = Vec::new();
    let mut clean = true;
    for (key, argument) in arguments {
        match key {
            None if name != "formula" => match argument.as_text(report) {
                Some(text) => paths.push((text.to_owned(), argument.origin)),
                None => clean = false,
            },
            Some((key, _)) if known.contains(&key.as_str()) => named.push((key.as_str(), argument)),
            Some((_, origin)) => {
                let listed = known.join(", ");
                report.push(
                    Diagnostic::error(
                        origin.source,
                        Code::UnknownArgument,
                        format!("`{name}` takes no such argument"),
                    )
                    .at(origin.span, "")
                    .help(format!("its arguments are {listed}")),
                );
                clean = false;
            }
            None => {
                report.push(
                    Diagnostic::error(
                        argument.origin.source,
                        Code::UnknownArgument,
                        "`formula` takes no files",
                    )
                    .at(argument.origin.span, ""),
                );
                clean = false;
            }
        }
    }
    let find = |key: &str| named.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
    let shuffle = find("shuffle").map_or(Some(false), |value| value.as_flag(report));
    let missing = |what: &str, help: &str| {
        Diagnostic::error(value.origin.source, Code::MissingArgument, format!("`{name}` needs {what}"))
            .at(value.origin.span, "")
            .help(help.to_owned())
    };
    match name {
        "text" => {
            let tokenizer = match find("tokenizer") {
                Some(value) => tokenizer(value, report),
                None => {
                    report.push(missing(
                        "a tokenizer",
                        "add `tokenizer: bytes` or the path of a `tokenizer.json`",
                    ));
                    None
                }
            };
            if paths.is_empty() && clean {
                report.push(missing("a file, a folder or a pattern", "write `text(\"docs/**/*.md\", ..)`"));
                return None;
            }
            let paths = paths.into_iter().map(|(path, _)| path).collect();
            let (tokenizer, ids) = tokenizer?;
            let data = Data::Text { paths, tokenizer, shuffle: shuffle? };
            clean.then_some((data, ids.zip(Some(value.origin))))
        }
        "tokens" => {
            let width = match find("width") {
                Some(value) => width(value, report),
                None => {
                    report.push(missing("the width of an id", "add `width: u16` or `width: u32`"));
                    None
                }
            };
            if let [_, (_, second), ..] = paths.as_slice() {
                report.push(
                    Diagnostic::error(second.source, Code::UnknownArgument, "`tokens` takes one file")
                        .at(second.span, ""),
                );
                return None;
            }
            let Some((path, _)) = paths.pop() else {
                if clean {
                    report.push(missing("a file", "write `tokens(\"ids.bin\", width: u16)`"));
                }
                return None;
            };
            let data = Data::Tokens { path, width: width?, shuffle: shuffle? };
            clean.then_some((data, None))
        }
        _ => {
            let vocab = match find("vocab") {
                Some(value) => value.as_count(1, &Environment::new(), report).and_then(|vocab| {
                    let fits = u32::try_from(vocab).ok();
                    if fits.is_none() {
                        wrong_kind(value, "a number of token ids below 2^32", report);
                    }
                    fits.map(|fits| (fits, Some((vocab, value.origin))))
                }),
                None => Some((0, None)),
            };
            let (vocab, ids) = vocab?;
            clean.then_some((Data::Formula { vocab }, ids))
        }
    }
}

fn tokenizer(value: &Constant, report: &mut Report) -> Option<(Tokenizer, Option<u64>)> {
    match &value.kind {
        Kind::Word(word) if word == "bytes" => Some((Tokenizer::Bytes, Some(256))),
        Kind::Text(path) => Some((Tokenizer::File(path.clone()), None)),
        Kind::Poison
        | Kind::Word(_)
        | Kind::Number(_)
        | Kind::Quantity(..)
        | Kind::List(_)
        | Kind::Call(..)
        | Kind::Record(..) => {
            wrong_kind(value, "`bytes` or the path of a `tokenizer.json` in quotes", report);
            None
        }
    }
}

fn width(value: &Constant, report: &mut Report) -> Option<TokenWidth> {
    match &value.kind {
        Kind::Word(word) if word == "u16" => Some(TokenWidth::U16),
        Kind::Word(word) if word == "u32" => Some(TokenWidth::U32),
        Kind::Poison
        | Kind::Word(_)
        | Kind::Text(_)
        | Kind::Number(_)
        | Kind::Quantity(..)
        | Kind::List(_)
        | Kind::Call(..)
        | Kind::Record(..) => {
            wrong_kind(value, "`u16` or `u32`", report);
            None
        }
    }
}
