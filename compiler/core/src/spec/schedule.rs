//! The schedule of a pipeline: its name and options.

use super::Origin;
use super::constant::{Constant, Environment, Kind, Settings, wrong_kind};
use super::report::Report;
use super::settings::Block;
use pipe_grammar::diagnostic::{Code, Diagnostic, suggest};

/// The order of passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// All forward passes, then all backward passes.
    GPipe,
    /// One forward, one backward.
    OneFOneB,
    /// Several stages per device in rounds.
    Interleaved {
        /// Stages per device v.
        virtual_stages: u32,
        /// Micro-batches that pass a stage in a row; the number of devices unless the file says otherwise.
        group: u32,
    },
    /// GPipe on several stages per device.
    BreadthFirst {
        /// Stages per device v.
        virtual_stages: u32,
    },
    /// GPipe on slices.
    TeraPipe {
        /// Slices of a sequence s.
        slices: u32,
    },
    /// One forward, one backward, on slices.
    Seq1F1B {
        /// Stages per device v.
        virtual_stages: u32,
        /// Slices of a sequence s.
        slices: u32,
    },
    /// As many slices as devices, or a multiple.
    SlimPipe {
        /// Stages per device v.
        virtual_stages: u32,
        /// Slices of a sequence s.
        slices: u32,
    },
    /// Slices, several stages per device and a limit of memory: MEPipe.
    Svpp {
        /// Stages per device v.
        virtual_stages: u32,
        /// Slices of a sequence s.
        slices: u32,
        /// The most units alive on a device; as many as full speed takes without it.
        in_flight: Option<u32>,
        /// Forward passes of the warm-up per hop to the last device, in hundredths from 100 to 200.
        bias: u16,
        /// How weight gradients are computed.
        weight_grads: WeightGrads,
    },
    /// Split backward passes in the memory of 1F1B.
    ZbH1,
    /// Split backward passes in twice the memory.
    ZbH2,
    /// Split backward passes, two stages per device forth and back.
    ZbV,
    /// The same in half the memory.
    VHalf,
    /// The same in a third of the memory.
    VMin,
    /// Two copies in opposite directions, forward and backward passes in pairs.
    DualPipe,
    /// One copy forth and back, forward and backward passes in pairs.
    DualPipeV,
    /// Two copies in opposite directions.
    Chimera,
    /// Waves over the devices.
    Hanayo {
        /// Waves w, of two stages per device each.
        waves: u32,
    },
    /// The fastest order that is found.
    Auto {
        /// Stages per device v.
        virtual_stages: u32,
        /// Slices of a sequence s.
        slices: u32,
        /// How long to search, 0 to 3.
        effort: u8,
    },
}

/// How weight gradients are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightGrads {
    /// With the input gradients, in one pass.
    Fused,
    /// In a pass of their own.
    Split,
    /// GEMM by GEMM.
    PerGemm,
}

/// Where the stages of a pipeline stand on `p` devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Stage g on device `g mod p`.
    Loop,
    /// As a loop that turns round after every `p` stages: chunk c of device r is stage `c p + r`, for odd c
    /// `c p + p - 1 - r`.
    Zigzag,
    /// Two copies of a loop, the second on the devices in reverse order.
    Bidirectional,
}

impl Placement {
    /// Copies of the pipeline.
    pub fn copies(self) -> u32 {
        match self {
            Self::Loop | Self::Zigzag => 1,
            Self::Bidirectional => 2,
        }
    }
}

/// The schedules by their names.
const NAMES: [&str; 18] = [
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
const UNAVAILABLE: [&str; 3] = ["spipe", "pipedream", "bitpipe"];

impl Schedule {
    /// The name in the language.
    pub fn name(self) -> &'static str {
        match self {
            Self::GPipe => "gpipe",
            Self::OneFOneB => "one_f_one_b",
            Self::Interleaved { .. } => "interleaved",
            Self::BreadthFirst { .. } => "breadth_first",
            Self::TeraPipe { .. } => "terapipe",
            Self::Seq1F1B { .. } => "seq1f1b",
            Self::SlimPipe { .. } => "slimpipe",
            Self::Svpp { .. } => "svpp",
            Self::ZbH1 => "zb_h1",
            Self::ZbH2 => "zb_h2",
            Self::ZbV => "zb_v",
            Self::VHalf => "v_half",
            Self::VMin => "v_min",
            Self::DualPipe => "dualpipe",
            Self::DualPipeV => "dualpipe_v",
            Self::Chimera => "chimera",
            Self::Hanayo { .. } => "hanayo",
            Self::Auto { .. } => "auto",
        }
    }

    /// Stages of each copy on each device.
    pub fn virtual_stages(self) -> u32 {
        match self {
            Self::GPipe
            | Self::OneFOneB
            | Self::TeraPipe { .. }
            | Self::ZbH1
            | Self::ZbH2
            | Self::DualPipe
            | Self::Chimera => 1,
            Self::ZbV | Self::VHalf | Self::VMin | Self::DualPipeV => 2,
            Self::Interleaved { virtual_stages, .. }
            | Self::BreadthFirst { virtual_stages }
            | Self::Seq1F1B { virtual_stages, .. }
            | Self::SlimPipe { virtual_stages, .. }
            | Self::Svpp { virtual_stages, .. }
            | Self::Auto { virtual_stages, .. } => virtual_stages,
            Self::Hanayo { waves } => waves.saturating_mul(2),
        }
    }

    /// Slices of a sequence.
    pub fn slices(self) -> u32 {
        match self {
            Self::TeraPipe { slices }
            | Self::Seq1F1B { slices, .. }
            | Self::SlimPipe { slices, .. }
            | Self::Svpp { slices, .. }
            | Self::Auto { slices, .. } => slices,
            Self::GPipe
            | Self::OneFOneB
            | Self::Interleaved { .. }
            | Self::BreadthFirst { .. }
            | Self::ZbH1
            | Self::ZbH2
            | Self::ZbV
            | Self::VHalf
            | Self::VMin
            | Self::DualPipe
            | Self::DualPipeV
            | Self::Chimera
            | Self::Hanayo { .. } => 1,
        }
    }

    /// Where stages stand.
    pub fn placement(self) -> Placement {
        match self {
            Self::ZbV | Self::VHalf | Self::VMin | Self::DualPipeV | Self::Hanayo { .. } => Placement::Zigzag,
            Self::DualPipe | Self::Chimera => Placement::Bidirectional,
            Self::GPipe
            | Self::OneFOneB
            | Self::Interleaved { .. }
            | Self::BreadthFirst { .. }
            | Self::TeraPipe { .. }
            | Self::Seq1F1B { .. }
            | Self::SlimPipe { .. }
            | Self::Svpp { .. }
            | Self::ZbH1
            | Self::ZbH2
            | Self::Auto { .. } => Placement::Loop,
        }
    }

    /// The schedule as printed: its name and options.
    pub(super) fn print(self) -> String {
        let name = self.name();
        match self {
            Self::Interleaved { virtual_stages, group } => {
                format!("{name} virtual {virtual_stages} group {group}")
            }
            Self::BreadthFirst { virtual_stages } => format!("{name} virtual {virtual_stages}"),
            Self::TeraPipe { slices } => format!("{name} slices {slices}"),
            Self::Seq1F1B { virtual_stages, slices } | Self::SlimPipe { virtual_stages, slices } => {
                format!("{name} virtual {virtual_stages} slices {slices}")
            }
            Self::Svpp { virtual_stages, slices, in_flight, bias, weight_grads } => {
                let in_flight = in_flight.map_or("max".to_owned(), |units| units.to_string());
                let (whole, hundredths) = (bias / 100, bias % 100);
                let weight_grads = match weight_grads {
                    WeightGrads::Fused => "fused",
                    WeightGrads::Split => "split",
                    WeightGrads::PerGemm => "per_gemm",
                };
                format!(
                    "{name} virtual {virtual_stages} slices {slices} in_flight {in_flight} bias {whole}.{hundredths:02} weight_grads {weight_grads}"
                )
            }
            Self::Hanayo { waves } => format!("{name} waves {waves}"),
            Self::Auto { virtual_stages, slices, effort } => {
                format!("{name} virtual {virtual_stages} slices {slices} effort {effort}")
            }
            Self::GPipe
            | Self::OneFOneB
            | Self::ZbH1
            | Self::ZbH2
            | Self::ZbV
            | Self::VHalf
            | Self::VMin
            | Self::DualPipe
            | Self::DualPipeV
            | Self::Chimera => name.to_owned(),
        }
    }
}

/// A schedule as written, and where its number of slices stands. The group of an interleaved one is the number of devices
/// where it is not given, which [`Wish::settle`] knows.
#[derive(Clone, Copy)]
pub(super) struct Wish {
    schedule: Schedule,
    has_group: bool,
    pub(super) slices: Origin,
    /// Between slices of equal length (0) and of equal work (100).
    pub(super) balance: u16,
}

impl Wish {
    /// What stands for a pipeline without a schedule.
    pub(super) fn usual(origin: Origin) -> Self {
        Self { schedule: Schedule::OneFOneB, has_group: false, slices: origin, balance: 0 }
    }

    /// The schedule for a number of devices.
    pub(super) fn settle(self, devices: u32) -> Schedule {
        match self.schedule {
            Schedule::Interleaved { virtual_stages, group: _ } if !self.has_group => {
                Schedule::Interleaved { virtual_stages, group: devices }
            }
            known => known,
        }
    }
}

/// Reads a schedule. `None` where something is wrong with it.
pub(super) fn read(value: &Constant, report: &mut Report) -> Option<Wish> {
    let origin = value.origin;
    let none = Settings { origin, entries: Vec::new() };
    let (name, settings) = match &value.kind {
        Kind::Word(name) => (name.as_str(), &none),
        Kind::Record(name, _, settings) => (name.as_str(), settings),
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
        "auto" => &["virtual", "slices", "cut", "effort"],
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
                Schedule::Auto { virtual_stages: chunks?, slices: slices?, effort: effort? as u8 }
            }
            _ => return None,
        };
        Some(Wish {
            schedule,
            has_group,
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

    fn in_flight(&self, report: &mut Report) -> Option<Option<u32>> {
        match self.block.get("in_flight") {
            None => Some(None),
            Some(Constant { kind: Kind::Word(word), .. }) if word == "max" => Some(None),
            Some(value) => small(value, 1, report).map(Some),
        }
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
            | Schedule::Auto { .. } => return,
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
pub(super) fn small(value: &Constant, least: u64, report: &mut Report) -> Option<u32> {
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
