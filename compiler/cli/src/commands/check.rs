//! `pipec check`: compiles a file, reports every error in it and says what it compiles to.

use super::{Failure, load};
use crate::arguments::CheckArguments;
use crate::report::Reporter;
use pipec_program::memory::memory;
use pipec_program::simulate::{bubble, device_use, simulate};
use pipec_program::{Costs, Space};

pub(super) fn execute(arguments: &CheckArguments, reporter: Reporter) -> Result<(), Failure> {
    if load::check_library(&arguments.input, reporter)? {
        println!("{}: no errors", arguments.input.file.display());
        return Ok(());
    }
    let program = load::program(&arguments.input, reporter)?;
    let timeline = simulate(&program, &Costs::roofline(&program));
    let weights: u64 = program.parameters.values().map(|parameter| parameter.ty.shape.elements()).sum();
    let peak = memory(&program, &timeline)
        .iter()
        .filter(|arena| arena.space == Space::Device)
        .map(|arena| arena.size)
        .max()
        .unwrap_or_default();
    println!(
        "{}: {} parameters on {} devices, {} stages, {} micro-batches; at most {peak} per device, bubble {:.1} %",
        arguments.input.file.display(),
        weights,
        program.devices.len(),
        program.batch.stages,
        program.batch.micro_batches,
        100.0 * bubble(&device_use(&program, &timeline)),
    );
    Ok(())
}
