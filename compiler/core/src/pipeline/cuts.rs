//! `spipe` with `forward: auto`: how many stages each direction has, so that the step is shortest.
//!
//! Every number of forward and backward stages up to a bound is ordered with the times of the plan, with what the last update takes
//! added; the programs of those that come out shortest are simulated. What does not fit the memory of the devices is passed over.

use super::{Error, Fitted, Lack, Laid, Task, fit, lay, ordered, proved};
use crate::lower::hosts;
use crate::mode::ModeId;
use crate::schedule::execute;
use crate::spec::{Schedule, Spec};
use pipec_program::simulate::simulate;
use pipec_program::{Bytes, Costs, DeviceId, Nanos, StageId};

/// The most forward stages of a device that are tried.
const MOST_FORWARD: u32 = 6;

/// Backward stages of a device that are tried for every forward stage.
const MOST_BACKWARD: u32 = 5;

/// Programs that are simulated.
const MOST_SIMULATED: usize = 8;

/// The same spec with the numbers of stages that were found; none where it leaves nothing open, or where nothing fits.
///
/// # Errors
/// Faults of the compiler.
pub(super) fn settled(task: Task<'_>, modes: &[ModeId]) -> Result<Option<Spec>, Error> {
    let Schedule::SPipe { forward: None, backward, updates } = task.spec.pipeline.schedule else {
        return Ok(None);
    };
    let devices = task.spec.pipeline.devices.max(1);
    let each = task.spec.model.pieces.len() as u32 / devices;
    let mut found: Vec<(u64, Spec)> = Vec::new();
    for forward in 1..=MOST_FORWARD.min(each) {
        let backwards = match backward {
            Some(backward) => backward..=backward,
            None => 1..=(forward * MOST_BACKWARD).min(each),
        };
        for backward in backwards {
            let mut spec = task.spec.clone();
            spec.pipeline.schedule =
                Schedule::SPipe { forward: Some(forward), backward: Some(backward), updates };
            spec.pipeline.stages = devices * forward;
            let of = Task { spec: &spec, advise: false, ..task };
            // A cut that the pieces do not allow is none.
            let Ok(laid) = lay(of, modes, None, &mut ()) else { continue };
            let mut within = laid.replica.clone();
            within.caps = None;
            let Ok(order) = ordered(of, &mut within) else { continue };
            let Ok(execution) = execute(&within, &order, |step| within.duration(step)) else { continue };
            found.push((execution.makespan().saturating_add(tail(&spec, &laid)), spec));
        }
    }
    found.sort_by_key(|(makespan, _)| *makespan);
    let mut best: Option<(Nanos, Spec)> = None;
    let mut simulated = 0;
    for (_, spec) in found {
        let of = Task { spec: &spec, advise: false, ..task };
        match fit(of, lay(of, modes, None, &mut ())?, &mut ()) {
            Ok(Fitted { lowered, .. }) => {
                let program = proved(lowered.program)?;
                let time = simulate(&program, &Costs::roofline(&program)).makespan();
                if best.as_ref().is_none_or(|(least, _)| time < *least) {
                    best = Some((time, spec));
                }
                simulated += 1;
                if simulated == MOST_SIMULATED {
                    break;
                }
            }
            Err(Lack::Memory(..)) => {}
            Err(Lack::Other(error)) => return Err(error),
        }
    }
    Ok(best.map(|(_, spec)| spec))
}

/// What is left when the last backward pass has ended, on the device where that is most: the gradients of its last stage go to the host,
/// which updates it. Adam reads and writes weights, moments and perhaps a copy of the weights, and reads the gradients.
fn tail(spec: &Spec, laid: &Laid) -> u64 {
    let hosts = hosts(&spec.cluster, laid.plan.devices.len());
    let of = |(device, chunks): (DeviceId, &Vec<StageId>)| {
        // Backward stages stand after forward stages, and the first of them comes last.
        let last = chunks.iter().copied().find(|&stage| laid.replica.is_backward(stage))?;
        let functions = laid.stages.of(last);
        let master = if functions.weights < functions.moments { functions.moments * 2 } else { Bytes::ZERO };
        let traffic = functions.weights + functions.gradients + functions.moments * 4 + master;
        let host = hosts[device];
        Some(host.down.time(functions.gradients.0).saturating_add(traffic.at(host.bandwidth).0))
    };
    laid.plan.devices.iter().filter_map(of).max().unwrap_or(0)
}
