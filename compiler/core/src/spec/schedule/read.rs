//! Reading a schedule and its options, or the name of the file that gives it.

use super::{InFlight, MemoryLimit, Placement, Schedule, Updates, WeightGrads};
use crate::spec::Origin;
use crate::spec::constant::{Constant, Environment, Kind, Settings, wrong_kind};
use crate::spec::number::Dimension;
use crate::spec::report::Report;
use crate::spec::settings::Block;
use pipe_grammar::diagnostic::{Code, Diagnostic, suggest};
use pipec_program::Bytes;

/// The schedules by their names.
const NAMES: [&str; 20] = [
    "gpipe",
    "one_f_one_b",
    "interleaved",
    "breadth_first",
    "terapipe",
    "seq1f1b",
    "slimpipe",
    "svpp",
    "zb_h1",
    "zb_h2",
    "zb_v",
    "v_half",
    "v_min",
    "dualpipe",
    "dualpipe_v",
    "chimera",
    "hanayo",
    "mobius",
    "spipe",
    "auto",
];

/// Other names of schedules.
const RENAMED: [(&str, &str); 6] = [
    ("mepipe", "svpp"),
    ("dapple", "one_f_one_b"),
    ("vpp", "interleaved"),
    ("zero_bubble", "zb_h1"),
    ("zbv", "zb_v"),
    ("dualpipev", "dualpipe_v"),
];

/// Schedules of the literature that pipec does not have.
const UNAVAILABLE: [&str; 2] = ["pipedream", "bitpipe"];

/// A schedule as written, and where its number of slices stands. The group of an interleaved one is the number of devices
/// where it is not given, which [`Wish::settle`] knows.
#[derive(Clone)]
pub(in crate::spec) struct Wish {
    pub(in crate::spec) schedule: Schedule,
    has_group: bool,
    /// The file of the schedule, and where its name stands.
    pub(in crate::spec) file: Option<(String, Origin)>,
    pub(in crate::spec) slices: Origin,
    /// Between slices of equal length (0) and of equal work (100).
    pub(in crate::spec) balance: u16,
}

impl Wish {
    /// What stands for a pipeline without a schedule.
    pub(in crate::spec) fn usual(origin: Origin) -> Self {
        Self { schedule: Schedule::OneFOneB, has_group: false, file: None, slices: origin, balance: 0 }
    }

    /// The schedule for a number of devices.
    pub(in crate::spec) fn settle(&self, devices: u32) -> Schedule {
        match self.schedule {
            Schedule::Interleaved { virtual_stages, group: _ } if !self.has_group => {
                Schedule::Interleaved { virtual_stages, group: devices }
            }
            known => known,
        }
    }
}

/// Reads a schedule. `None` where something is wrong with it.
pub(in crate::spec) fn read(value: &Constant, report: &mut Report) -> Option<Wish> {
    let origin = value.origin;
    let none = Settings { origin, entries: Vec::new() };
    let (name, settings) = match &value.kind {
        Kind::Word(name) => (name.as_str(), &none),
        Kind::Record(name, _, settings) => (name.as_str(), settings),
        Kind::Call(name, arguments) if name == "from" => return from_file(arguments, origin, report),
        Kind::Poison
        | Kind::Number(_)
        | Kind::Quantity(..)
        | Kind::Text(_)
        | Kind::List(_)
        | Kind::Call(..) => {
            wrong_kind(value, "a schedule such as `one_f_one_b` or `interleaved { virtual: 2 }`", report);
            return None;
        }
    };
    let Some(&name) = NAMES.iter().find(|&&known| known == name) else {
        report.push(unknown(name, origin));
        return None;
    };
    let errors = report.errors();
    let options = Options { block: Block::new(quoted(name), settings, keys(name), &[], report) };
    let wish = options.read(name, report)?;
    options.without_effect(wish.schedule, report);
    if report.errors() > errors {
        return None;
    }
    Some(wish)
}

/// `from("order.json")`: what is in the file is read where all files are known.
fn from_file(
    arguments: &[(Option<(String, Origin)>, Constant)],
    origin: Origin,
    report: &mut Report,
) -> Option<Wish> {
    let [(None, path)] = arguments else {
        let error = Diagnostic::error(origin.source, Code::WrongKind, "a schedule comes from one file");
        report.push(error.at(origin.span, "").help("write `from(\"order.json\")` or `from(\"order.csv\")`"));
        return None;
    };
    let text = path.as_text(report)?;
    let schedule = Schedule::From { virtual_stages: 1, slices: 1, placement: Placement::Loop };
    let file = Some((text.to_owned(), path.origin));
    Some(Wish { schedule, has_group: false, file, slices: path.origin, balance: 0 })
}

fn unknown(name: &str, origin: Origin) -> Diagnostic {
    let error = |code, message: String| Diagnostic::error(origin.source, code, message).at(origin.span, "");
    let list = || format!("the schedules are {}", NAMES.join(", "));
    if UNAVAILABLE.contains(&name) {
        return error(Code::Unsupported, format!("the schedule `{name}` is not available")).help(list());
    }
    let error = error(Code::UnknownName, format!("there is no schedule `{name}`"));
    let renamed = RENAMED.iter().find(|(other, _)| *other == name);
    match (renamed, suggest(name, NAMES)) {
        (Some((_, ours)), _) => error.help(format!("it is `{ours}` here")),
        (None, Some(near)) => error.help(format!("did you mean `{near}`?")),
        (None, None) => error.help(list()),
    }
}

/// The options of a schedule.
fn keys(name: &str) -> &'static [&'static str] {
    match name {
        "interleaved" => &["virtual", "group"],
        "breadth_first" => &["virtual"],
        "terapipe" => &["slices", "cut"],
        "seq1f1b" => &["virtual", "slices", "cut"],
        "slimpipe" => &["virtual", "slices"],
        "svpp" => &["virtual", "slices", "cut", "in_flight", "bias", "weight_grads"],
        "hanayo" => &["waves"],
        "mobius" => &["virtual", "optimizer"],
        "spipe" => &["forward", "backward", "optimizer"],
        "auto" => &["virtual", "slices", "cut", "memory", "effort"],
        _ => &[],
    }
}

/// The name of a schedule as messages say it.
fn quoted(name: &'static str) -> &'static str {
    match name {
        "gpipe" => "`gpipe`",
        "one_f_one_b" => "`one_f_one_b`",
        "interleaved" => "`interleaved`",
        "breadth_first" => "`breadth_first`",
        "terapipe" => "`terapipe`",
        "seq1f1b" => "`seq1f1b`",
        "slimpipe" => "`slimpipe`",
        "svpp" => "`svpp`",
        "hanayo" => "`hanayo`",
        "mobius" => "`mobius`",
        "spipe" => "`spipe`",
        "auto" => "`auto`",
        _ => "the schedule",
    }
}

/// The options as written.
struct Options<'a> {
    block: Block<'a>,
}

impl Options<'_> {
    fn read(&self, name: &str, report: &mut Report) -> Option<Wish> {
        let mut has_group = false;
        // Each option is read before any is missed, so that all faults are told at once.
        let schedule = match name {
            "gpipe" => Schedule::GPipe,
            "one_f_one_b" => Schedule::OneFOneB,
            "interleaved" => {
                let (chunks, group) = (self.required("virtual", "2", report), self.count("group", 1, report));
                has_group = self.block.get("group").is_some();
                Schedule::Interleaved { virtual_stages: chunks?, group: group? }
            }
            "breadth_first" => {
                Schedule::BreadthFirst { virtual_stages: self.required("virtual", "2", report)? }
            }
            "terapipe" => Schedule::TeraPipe { slices: self.required("slices", "4", report)? },
            "seq1f1b" | "slimpipe" => {
                let (chunks, slices) =
                    (self.count("virtual", 1, report), self.required("slices", "4", report));
                let (virtual_stages, slices) = (chunks?, slices?);
                if name == "seq1f1b" {
                    Schedule::Seq1F1B { virtual_stages, slices }
                } else {
                    Schedule::SlimPipe { virtual_stages, slices }
                }
            }
            "svpp" => {
                let (chunks, slices) =
                    (self.count("virtual", 1, report), self.required("slices", "4", report));
                let (in_flight, bias) = (self.in_flight(report), self.bias(report));
                let weight_grads = self.weight_grads(report);
                Schedule::Svpp {
                    virtual_stages: chunks?,
                    slices: slices?,
                    in_flight: in_flight?,
                    bias: bias?,
                    weight_grads: weight_grads?,
                }
            }
            "zb_h1" => Schedule::ZbH1,
            "zb_h2" => Schedule::ZbH2,
            "zb_v" => Schedule::ZbV,
            "v_half" => Schedule::VHalf,
            "v_min" => Schedule::VMin,
            "dualpipe" => Schedule::DualPipe,
            "dualpipe_v" => Schedule::DualPipeV,
            "chimera" => Schedule::Chimera,
            "hanayo" => Schedule::Hanayo { waves: self.count("waves", 1, report)? },
            "mobius" => {
                let (chunks, updates) = (self.required("virtual", "2", report), self.updates(report));
                Schedule::Mobius { virtual_stages: chunks?, updates: updates? }
            }
            "spipe" => {
                let (forward, backward) = (self.stages("forward", report), self.stages("backward", report));
                let updates = self.updates(report);
                Schedule::SPipe { forward: forward?, backward: backward?, updates: updates? }
            }
            "auto" => {
                let (chunks, slices) = (self.count("virtual", 1, report), self.count("slices", 1, report));
                let effort = match self.block.get("effort") {
                    Some(value) => value.as_real(
                        "from 0 to 3",
                        |level| (0.0..=3.0).contains(&level),
                        &Environment::new(),
                        report,
                    ),
                    None => Some(1.0),
                };
                let memory = self.memory(report);
                Schedule::Auto {
                    virtual_stages: chunks?,
                    slices: slices?,
                    memory: memory?,
                    effort: effort? as u8,
                }
            }
            _ => return None,
        };
        Some(Wish {
            schedule,
            has_group,
            file: None,
            slices: self.block.origin("slices"),
            balance: self.balance(report)?,
        })
    }

    /// A number of at least 1 that must be there.
    fn required(&self, key: &str, example: &str, report: &mut Report) -> Option<u32> {
        self.block.require(key, example, report).and_then(|value| small(value, 1, report))
    }

    /// A number of at least 1, or the usual one.
    fn count(&self, key: &str, usual: u32, report: &mut Report) -> Option<u32> {
        self.block.get(key).map_or(Some(usual), |value| small(value, 1, report))
    }

    /// The stages of a cut on a device; none for `auto`.
    fn stages(&self, key: &str, report: &mut Report) -> Option<Option<u32>> {
        match self.block.get(key) {
            None => Some(None),
            Some(Constant { kind: Kind::Word(word), .. }) if word == "auto" => Some(None),
            Some(value) => small(value, 1, report).map(Some),
        }
    }

    fn updates(&self, report: &mut Report) -> Option<Updates> {
        match self.block.get("optimizer") {
            None => Some(Updates::Async),
            Some(Constant { kind: Kind::Word(word), .. }) if word == "async" => Some(Updates::Async),
            Some(Constant { kind: Kind::Word(word), .. }) if word == "sync" => Some(Updates::Sync),
            Some(value) => {
                wrong_kind(value, "`async` or `sync`", report);
                None
            }
        }
    }

    fn in_flight(&self, report: &mut Report) -> Option<InFlight> {
        match self.block.get("in_flight") {
            None => Some(InFlight::Max),
            Some(Constant { kind: Kind::Word(word), .. }) if word == "max" => Some(InFlight::Max),
            Some(Constant { kind: Kind::Word(word), .. }) if word == "auto" => Some(InFlight::Auto),
            Some(value) => small(value, 1, report).map(InFlight::Units),
        }
    }

    /// An amount of memory, or a part of A.
    fn memory(&self, report: &mut Report) -> Option<Option<MemoryLimit>> {
        let Some(value) = self.block.get("memory") else { return Some(None) };
        let limit = match value.kind {
            Kind::Number(_) => {
                let range = |part: f64| (0.001..=1000.0).contains(&part);
                let what = "a part of A, from 0.001 to 1000, or an amount such as `24 GiB`";
                let part = value.as_real(what, range, &Environment::new(), report)?;
                MemoryLimit::Activations((part * 1000.0).round() as u32)
            }
            Kind::Poison
            | Kind::Quantity(..)
            | Kind::Word(_)
            | Kind::Text(_)
            | Kind::List(_)
            | Kind::Call(..)
            | Kind::Record(..) => MemoryLimit::Device(Bytes(value.as_quantity(Dimension::Memory, report)?)),
        };
        Some(Some(limit))
    }

    fn bias(&self, report: &mut Report) -> Option<u16> {
        let Some(value) = self.block.get("bias") else { return Some(100) };
        let bias =
            value.as_real("from 1 to 2", |bias| (1.0..=2.0).contains(&bias), &Environment::new(), report)?;
        Some((bias * 100.0).round() as u16)
    }

    fn balance(&self, report: &mut Report) -> Option<u16> {
        match self.block.get("cut") {
            None => Some(0),
            Some(Constant { kind: Kind::Word(word), .. }) if word == "uniform" => Some(0),
            Some(Constant { kind: Kind::Word(word), .. }) if word == "balanced" => Some(100),
            Some(value) => {
                let range = |balance: f64| (0.0..=1.0).contains(&balance);
                let what = "`uniform`, `balanced` or a number from 0 to 1";
                let balance = value.as_real(what, range, &Environment::new(), report)?;
                Some((balance * 100.0).round() as u16)
            }
        }
    }

    fn weight_grads(&self, report: &mut Report) -> Option<WeightGrads> {
        let Some(value) = self.block.get("weight_grads") else { return Some(WeightGrads::Fused) };
        match &value.kind {
            Kind::Word(word) if word == "fused" => Some(WeightGrads::Fused),
            Kind::Word(word) if word == "split" => Some(WeightGrads::Split),
            Kind::Word(word) if word == "per_gemm" => Some(WeightGrads::PerGemm),
            Kind::Word(_)
            | Kind::Poison
            | Kind::Number(_)
            | Kind::Quantity(..)
            | Kind::Text(_)
            | Kind::List(_)
            | Kind::Call(..)
            | Kind::Record(..) => {
                wrong_kind(value, "`fused`, `split` or `per_gemm`", report);
                None
            }
        }
    }

    /// Options whose value makes a schedule another one.
    fn without_effect(&self, schedule: Schedule, report: &mut Report) {
        let (key, message, same) = match schedule {
            Schedule::Interleaved { virtual_stages: 1, .. } => {
                ("virtual", "one stage on each device leaves nothing to interleave", "one_f_one_b")
            }
            Schedule::BreadthFirst { virtual_stages: 1 } => {
                ("virtual", "one stage on each device leaves no breadth", "gpipe")
            }
            Schedule::TeraPipe { slices: 1 } => ("slices", "one slice is the whole sequence", "gpipe"),
            Schedule::Seq1F1B { slices: 1, virtual_stages: 1 } => {
                ("slices", "one slice is the whole sequence", "one_f_one_b")
            }
            Schedule::GPipe
            | Schedule::OneFOneB
            | Schedule::Interleaved { .. }
            | Schedule::BreadthFirst { .. }
            | Schedule::TeraPipe { .. }
            | Schedule::Seq1F1B { .. }
            | Schedule::SlimPipe { .. }
            | Schedule::Svpp { .. }
            | Schedule::ZbH1
            | Schedule::ZbH2
            | Schedule::ZbV
            | Schedule::VHalf
            | Schedule::VMin
            | Schedule::DualPipe
            | Schedule::DualPipeV
            | Schedule::Chimera
            | Schedule::Hanayo { .. }
            | Schedule::Mobius { .. }
            | Schedule::SPipe { .. }
            | Schedule::Auto { .. }
            | Schedule::From { .. } => return,
        };
        let place = self.block.origin(key);
        report.push(
            Diagnostic::error(place.source, Code::NoEffect, message)
                .at(place.span, "must be at least 2")
                .help(format!("write `schedule: {same}`, which is the same")),
        );
    }
}

/// A count that is no more than any pipeline has.
pub(in crate::spec) fn small(value: &Constant, least: u64, report: &mut Report) -> Option<u32> {
    const MOST: u64 = 1 << 16;
    let count = value.as_count(least, &Environment::new(), report)?;
    let small = u32::try_from(count).ok().filter(|_| count <= MOST);
    if small.is_none() {
        report.push(
            Diagnostic::error(value.origin.source, Code::OutOfRange, format!("{count} is too large"))
                .at(value.origin.span, format!("at most {MOST}")),
        );
    }
    small
}
