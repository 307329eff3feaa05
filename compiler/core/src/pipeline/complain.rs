//! What is said to the user where there is no program.

use super::{Error, Means, Task, compiled};
use crate::rewrite::NotSliceable;
use crate::search;
use crate::spec::{Origins, Recompute, Spec};
use pipe_grammar::diagnostic::{Code, Diagnostic};
use pipec_program::id::IdVec;
use pipec_program::{Bytes, DeviceId};
use std::fmt;

/// Operations that need whole sequences in a pipeline of slices.
pub(super) fn not_sliceable(error: &NotSliceable, spec: &Spec, origins: &Origins) -> Error {
    let slices = spec.pipeline.schedule.slices();
    let message =
        format!("layer `{}` cannot be cut into {slices} slices", spec.model.layers[error.layer].name);
    let places = origins.operations.get(error.layer);
    let diagnostic = |&operation: &usize| {
        let place = places.and_then(|places| places.get(operation)).copied().unwrap_or(origins.schedule);
        Diagnostic::error(place.source, Code::NotSliceable, message.clone())
            .at(place.span, "every token of this attention sees all later ones")
            .help("write `mask: causal`, or a schedule without `slices`")
    };
    Error::Diagnostics(error.operations.iter().map(diagnostic).collect())
}

/// A device that does not hold the units of one micro-batch.
pub(super) fn too_little(task: Task<'_>, device: DeviceId, needed: u64, cap: u64) -> Error {
    let origin = task.origins.schedule;
    let message = format!(
        "device {device} needs {} for the activations of one micro-batch and has {} left for them",
        Bytes(needed),
        Bytes(cap)
    );
    let error = Diagnostic::error(origin.source, Code::OutOfMemory, message)
        .at(origin.span, "no order takes less")
        .help(if search::is_limited(task.spec.pipeline.schedule) {
            "raise `memory`, or use more stages, a smaller micro-batch or shorter sequences"
        } else {
            "use more stages, a smaller micro-batch, shorter sequences, or devices with more memory"
        });
    Error::Diagnostics(vec![advised(task, error)])
}

/// A schedule that takes more than it may.
pub(super) fn over_limit(origins: &Origins, lacking: &IdVec<DeviceId, Bytes>) -> Diagnostic {
    let origin = origins.schedule;
    let most = lacking.values().copied().max().unwrap_or_default();
    let message = format!("no order is found that keeps to `memory`: {most} too little");
    Diagnostic::error(origin.source, Code::OutOfMemory, message).at(origin.span, "")
}

/// The diagnostic with what would fit instead, if that is found: other modes, another schedule, or both.
pub(super) fn advised(task: Task<'_>, diagnostic: Diagnostic) -> Diagnostic {
    if !task.advise {
        return diagnostic;
    }
    let compiles = |spec: &Spec| {
        compiled(spec, task.origins, task.inputs, Means { advise: false, modes: None }, &mut ()).is_ok()
    };
    let schedule = |spec: &Spec| {
        let free = !search::is_limited(spec.pipeline.schedule);
        free.then(|| search::fitting(spec, compiles))
            .flatten()
            .map(|schedule| format!("`schedule: {schedule}`"))
    };
    let mut auto = task.spec.clone();
    let is_auto = std::mem::replace(&mut auto.pipeline.recompute, Recompute::Auto) == Recompute::Auto;
    let modes = (!is_auto && compiles(&auto)).then(|| "`recompute: auto`".to_owned());
    let help = match (modes, schedule(task.spec)) {
        (Some(modes), Some(schedule)) => Some(format!("{modes} or {schedule} would fit")),
        (Some(one), None) | (None, Some(one)) => Some(format!("{one} would fit")),
        (None, None) if is_auto => None,
        (None, None) => {
            schedule(&auto).map(|schedule| format!("`recompute: auto` with {schedule} would fit"))
        }
    };
    match help {
        Some(help) => diagnostic.help(help),
        None => diagnostic,
    }
}

/// A schedule that is not made for a pipeline like this.
pub(super) fn refused(reason: &dyn fmt::Display, origins: &Origins) -> Error {
    let origin = origins.schedule;
    let error = Diagnostic::error(origin.source, Code::Conflict, "the schedule does not fit the pipeline");
    Error::Diagnostics(vec![error.at(origin.span, reason.to_string())])
}
