//! `pipec verify`: checks a `.pprog` file; every violation is told at its line.

use super::Failure;
use super::load;
use crate::arguments::VerifyArguments;
use crate::report::Reporter;

pub(super) fn execute(arguments: &VerifyArguments, reporter: Reporter) -> Result<(), Failure> {
    let program = load::program_text(&arguments.file, reporter)?;
    let instructions: usize = program.queues.values().map(|queue| queue.instructions.len()).sum();
    println!(
        "{}: verified: {} devices, {} functions, {} buffers, {instructions} instructions",
        arguments.file.display(),
        program.devices.len(),
        program.functions.len(),
        program.buffers.len(),
    );
    Ok(())
}
