//! A schedule that a file gives, in place of a policy.
//!
//! The specification knows the sizes and the placement of such a file, which a pipeline must match; what its passes say is
//! read where schedules are made. Whoever reads the files makes a [`Given`] of each (`schedule::given`) and adds it to
//! the [`Sources`].

use super::pipeline::Wished;
use super::report::Report;
use super::{Origin, Placement, Schedule, Sources};
use pipe_grammar::ast::{ExprKind, File, Text};
use pipe_grammar::diagnostic::{Code, Diagnostic};

/// A schedule in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// How the file is written.
    pub form: GivenForm,
    /// What stands in it.
    pub text: String,
    /// Devices p.
    pub devices: u32,
    /// Stages of a copy on each device v.
    pub virtual_stages: u32,
    /// Slices s of a sequence.
    pub slices: u32,
    /// The tokens of each slice, at least 1; equal parts of a sequence without it.
    pub lengths: Option<Vec<u64>>,
    /// Micro-batches n of a step.
    pub micro_batches: u32,
    /// Where stages stand.
    pub placement: Placement,
}

/// The forms of schedules in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenForm {
    /// PyTorch's pipeline CSV, of either dialect.
    Csv,
    /// The JSON of `pipec schedule` and `pipec build --emit=schedule-json`.
    Json,
}

impl Given {
    /// The entry of a pipeline.
    pub fn schedule(&self) -> Schedule {
        let &Self { virtual_stages, slices, placement, .. } = self;
        Schedule::From { virtual_stages, slices, placement }
    }
}

/// The texts of `schedule: from("...")` in a file, in order; each names a file relative to this one.
pub fn schedules(file: &File) -> impl Iterator<Item = &Text> {
    let entries = file.pipelines.iter().flat_map(|pipeline| &pipeline.settings.entries);
    let from = entries.filter(|entry| entry.key.text == "schedule").filter_map(|entry| {
        let ExprKind::Call(call) = &entry.value.kind else { return None };
        (call.callee.to_string() == "from").then_some(&call.arguments)
    });
    from.flatten().filter_map(|argument| {
        let ExprKind::Text(text) = &argument.value.kind else { return None };
        Some(text)
    })
}

/// Finds the file of a schedule. `None` where it is missing or cannot be read as one, which is reported.
pub(super) fn find(wished: Wished, sources: &Sources, report: &mut Report) -> Option<Wished> {
    let Some((name, origin)) = wished.file() else { return Some(wished) };
    let error = |code, message: String| Diagnostic::error(origin.source, code, message).at(origin.span, "");
    match sources.schedule(origin.source, name) {
        None => {
            let help = "the path is relative to the folder of this file";
            report.push(error(Code::UseNotFound, format!("there is no file `{name}`")).help(help));
            None
        }
        Some(Err(message)) => {
            report.push(error(Code::GivenSchedule, format!("`{name}` is no schedule: {message}")));
            None
        }
        Some(Ok(given)) => Some(wished.with(given.clone())),
    }
}

/// What a schedule in a file must be made for.
pub(super) struct Sizes {
    /// Devices of each replica.
    pub(super) devices: u32,
    /// Micro-batches of each replica.
    pub(super) micro_batches: u32,
    /// Replicas.
    pub(super) replicas: u32,
    /// Tokens of a sequence.
    pub(super) seq: u64,
}

/// A schedule in a file is one of a pipeline of these sizes.
pub(super) fn check(given: &Given, origin: Origin, sizes: Sizes, report: &mut Report) {
    let Sizes { devices, micro_batches, replicas, seq } = sizes;
    if let Some(lengths) = &given.lengths {
        let tokens = lengths.iter().fold(0, |sum: u64, length| sum.saturating_add(*length));
        if tokens != seq {
            let message = format!("the slices of the schedule have {tokens} tokens, a sequence has {seq}");
            let error = Diagnostic::error(origin.source, Code::GivenSchedule, message);
            let help = format!("write `seq: {tokens}`, or `lengths` in the file that add up to {seq}");
            report.push(error.at(origin.span, format!("{tokens} tokens")).help(help));
        }
    }
    let mut differ = |[one, many]: [&str; 2], theirs: u32, ours: u32, help: String| {
        if theirs != ours {
            let theirs = format!("{theirs} {}", if theirs == 1 { one } else { many });
            let whose = if replicas > 1 { "each replica" } else { "the pipeline" };
            let message = format!("the schedule is of {theirs}, {whose} of {ours}");
            let error = Diagnostic::error(origin.source, Code::GivenSchedule, message);
            report.push(error.at(origin.span, theirs).help(help));
        }
    };
    let all = u64::from(given.devices) * u64::from(replicas);
    let help = format!("write `devices: {all}`, or take a schedule of {devices}");
    differ(["device", "devices"], given.devices, devices, help);
    let batch = "change `global_batch`, which is the micro-batches of a step times `micro_batch`".to_owned();
    differ(["micro-batch", "micro-batches"], given.micro_batches, micro_batches, batch);
}
