//! `pipec simulate`: step time, bubble and memory of a program under a table of costs.

use super::{Failure, load};
use crate::arguments::SimulateArguments;
use crate::files;
use crate::report::Reporter;
use crate::show;
use pipec_program::simulate::simulate;
use pipec_program::{Costs, Verified};
use std::path::Path;

pub(super) fn execute(arguments: &SimulateArguments, reporter: Reporter) -> Result<(), Failure> {
    let program = load::program(&arguments.input, reporter)?;
    let costs = costs(&program, arguments.costs.as_deref(), reporter)?;
    let timeline = simulate(&program, &costs);
    if arguments.json {
        print!("{}", show::json(&program, &timeline));
    } else {
        print!("{}", show::tables(&program, &timeline));
    }
    Ok(())
}

/// Measured costs from a file, or the least times that the rates of the cluster allow.
pub(super) fn costs(
    program: &Verified,
    profile: Option<&Path>,
    reporter: Reporter,
) -> Result<Costs, Failure> {
    let Some(path) = profile else { return Ok(Costs::roofline(program)) };
    let bytes = files::read(path).map_err(|error| Failure::file(reporter, path, &error))?;
    let told = |message: String| {
        Failure::diagnostics(reporter.plain(None, &format!("{}: {message}", path.display())))
    };
    let text = String::from_utf8(bytes).map_err(|error| told(error.to_string()))?;
    let profile = show::profile_from_json(&text).map_err(|error| told(error.to_string()))?;
    Costs::measured(program, &profile).map_err(|error| told(error.to_string()))
}
