//! What policies ask of a problem.

use super::{Problem, Refusal};
use pipec_program::id::Id;
use pipec_program::{DeviceId, StageId};

/// One copy, stage g on device `g mod p`, as many stages on each device.
pub(super) fn loop_of_one_copy(problem: &Problem) -> Result<(), Refusal> {
    copies(problem, 1)?;
    let (p, v) = (problem.devices().len(), problem.chunks() as usize);
    let is_loop = |device: DeviceId, chunks: &[StageId]| {
        let stages = (0..v).map(|chunk| StageId::new(chunk * p + device.index()));
        stages.eq(chunks.iter().copied())
    };
    let all = problem.devices().iter().all(|(device, chunks)| is_loop(device, chunks));
    if all { Ok(()) } else { Err(Refusal::NotALoop) }
}

/// One copy in a zigzag: stage g of each p on device `g mod p`, or counted from the last.
pub(super) fn zigzag(problem: &Problem) -> Result<(), Refusal> {
    copies(problem, 1)?;
    let (p, v) = (problem.devices().len(), problem.chunks() as usize);
    let is_zigzag = |device: DeviceId, chunks: &[StageId]| {
        let place =
            |chunk: usize| if chunk.is_multiple_of(2) { device.index() } else { p - 1 - device.index() };
        (0..v).map(|chunk| StageId::new(chunk * p + place(chunk))).eq(chunks.iter().copied())
    };
    let all = problem.devices().iter().all(|(device, chunks)| is_zigzag(device, chunks));
    if all { Ok(()) } else { Err(Refusal::NotAZigzag) }
}

/// Two copies of one stage per device, the second in reverse order.
pub(super) fn bidirectional(problem: &Problem) -> Result<(), Refusal> {
    copies(problem, 2)?;
    let p = problem.devices().len();
    let is_both = |device: DeviceId, chunks: &[StageId]| {
        chunks == [StageId::new(device.index()), StageId::new(2 * p - 1 - device.index())]
    };
    let all = problem.devices().iter().all(|(device, chunks)| is_both(device, chunks));
    if all { Ok(()) } else { Err(Refusal::NotBidirectional) }
}

/// So many copies of the pipeline.
pub(super) fn copies(problem: &Problem, needed: u32) -> Result<(), Refusal> {
    let found = problem.copies();
    if found == needed { Ok(()) } else { Err(Refusal::Copies { needed, found }) }
}

/// So many chunks on each device.
pub(super) fn chunks(problem: &Problem, needed: u32) -> Result<(), Refusal> {
    let found = problem.chunks();
    if found == needed { Ok(()) } else { Err(Refusal::Chunks { needed, found }) }
}

/// More than one chunk on each device.
pub(super) fn several_chunks(problem: &Problem) -> Result<(), Refusal> {
    let found = problem.chunks();
    if found > 1 { Ok(()) } else { Err(Refusal::Chunks { needed: 2, found }) }
}

/// So many slices.
pub(super) fn slices(problem: &Problem, needed: u32) -> Result<(), Refusal> {
    let found = problem.slices();
    if found == needed { Ok(()) } else { Err(Refusal::Slices { needed, found }) }
}

/// At least so many micro-batches.
pub(super) fn micro_batches(problem: &Problem, least: u32) -> Result<(), Refusal> {
    let found = problem.micro_batches();
    if found >= least { Ok(()) } else { Err(Refusal::MicroBatches { least, found }) }
}
