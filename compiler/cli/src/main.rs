//! `pipec`: compiles, shows, simulates and runs `.pipe` files.
//!
//! Exit codes: 0 done, 1 the input has errors or differs from what it is compared with, 2 wrong use, 3 a run failed, 70 a
//! fault of pipec itself.

use clap::Parser;
use pipec::arguments::Arguments;
use pipec::commands;
use pipec::report::Reporter;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let reporter = Reporter::new(arguments.error_format, arguments.color);
    match commands::execute(&arguments.command, reporter) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprint!("{}", failure.text);
            ExitCode::from(failure.exit.code())
        }
    }
}
