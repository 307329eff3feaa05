//! `pipec show`: pictures of the simulated step, with a measured one laid over it if there is one.

use super::simulate::costs;
use super::{Failure, load};
use crate::arguments::{Picture, ShowArguments};
use crate::files;
use crate::report::Reporter;
use crate::show::{self, Named, Scale};
use pipec_program::Costs;
use pipec_program::simulate::simulate;

pub(super) fn execute(arguments: &ShowArguments, reporter: Reporter) -> Result<(), Failure> {
    let program = load::program(&arguments.input, reporter)?;
    if arguments.format == Picture::Units && (arguments.costs.is_some() || arguments.measured.is_some()) {
        return Err(Failure::usage(reporter, "a grid of units has no use for measured times"));
    }
    let costs = match arguments.format {
        Picture::Units => Costs::unit(&program),
        Picture::Grid | Picture::Svg | Picture::Trace | Picture::Table => {
            costs(&program, arguments.costs.as_deref(), reporter)?
        }
    };
    let simulated = simulate(&program, &costs);
    let measured = match &arguments.measured {
        None => None,
        Some(path) => {
            let bytes = files::read(path).map_err(|error| Failure::file(reporter, path, &error))?;
            let text = String::from_utf8_lossy(&bytes);
            let timeline = show::timeline_from_json(&program, &text).map_err(|error| {
                Failure::diagnostics(reporter.plain(None, &format!("{}: {error}", path.display())))
            })?;
            Some(timeline)
        }
    };
    let mut timelines = vec![Named { name: "simulated", timeline: &simulated }];
    timelines.extend(measured.iter().map(|timeline| Named { name: "measured", timeline }));
    let picture = match arguments.format {
        Picture::Grid => show::grid(&program, &timelines, Scale::Columns(arguments.width)),
        Picture::Units => show::grid(&program, &timelines, Scale::Unit),
        Picture::Svg => show::svg(&program, &timelines),
        Picture::Trace => show::trace(&program, &timelines),
        Picture::Table => match timelines.as_slice() {
            [simulated, measured] => show::differences(&program, *simulated, *measured),
            _ => show::tables(&program, &simulated),
        },
    };
    files::write(arguments.output.as_deref(), picture.as_bytes()).map_err(|error| {
        Failure::file(reporter, arguments.output.as_deref().unwrap_or("standard output".as_ref()), &error)
    })
}
