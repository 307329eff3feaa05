//! `pipec modes`: the modes of every layer, which stages take which, and what stands against faster ones.

use super::{Failure, load};
use crate::arguments::ModesArguments;
use crate::report::Reporter;
use crate::show::Table;
use pipec_compiler::mode::{self, Layers};
use pipec_compiler::pipeline::{Better, Reason};
use pipec_program::{Bytes, Nanos};

pub(super) fn execute(arguments: &ModesArguments, reporter: Reporter) -> Result<(), Failure> {
    let loaded = load::spec(&arguments.input, reporter)?;
    let compiled = load::compile(&loaded, &mut (), reporter)?;
    for layer in compiled.layers.values() {
        println!("{}", mode::print_modes(layer));
    }
    let reasons = compiled.reasons(&loaded.resolution.spec.model);
    print!("{}", table(&compiled.layers, &reasons));
    if compiled.gap > Nanos::ZERO {
        println!("other choices could save a device at most {} of a micro-batch", compiled.gap);
    }
    Ok(())
}

/// A row for every stage of one replica.
fn table(layers: &Layers, reasons: &[Reason]) -> String {
    let mut table = Table::new(&["stage", "device", "modes", "live", "left", "next better"]);
    table.left.extend([2, 5]);
    for Reason { stage, device, modes, live, left, better } in reasons {
        let mode = |((layer, mode), count): (&(_, _), &usize)| match count {
            1 => format!("{} {mode}", layers[*layer].name),
            _ => format!("{count} {} {mode}", layers[*layer].name),
        };
        let modes: Vec<String> = modes.iter().map(mode).collect();
        let next = better.map_or("none".to_owned(), |better| next(layers, better, *left));
        let live = if live.fract() == 0.0 { format!("{live}") } else { format!("{live:.2}") };
        table.row([stage.to_string(), device.to_string(), modes.join(", "), live, left.to_string(), next]);
    }
    table.text()
}

/// What a faster mode would need, against what is left.
fn next(layers: &Layers, better: Better, left: Bytes) -> String {
    let Better { layer, from, to, gain, needs } = better;
    let name = &layers[layer].name;
    let verdict = match needs > left {
        true => format!("{} too little", needs - left),
        false => "which would fit".to_owned(),
    };
    format!("{name} {from} -> {to}: {gain} less for {needs} more, {verdict}")
}
