//! A form as text, for people and for tests: one line per value and per kernel, kernels as in a program; and the modes of a
//! layer as a table.

use super::{Form, Had, Kind, Layer, Phase, Summary};
use crate::spec::Level;
use pipec_program::text::print_kernel;
use pipec_program::{Bytes, Kernel, ValueId};
use std::fmt::Write;

/// The text of a form.
pub fn print(form: &Form) -> String {
    let mut text = String::new();
    write(&mut text, form).expect("a string takes all text");
    text
}

fn write(text: &mut String, form: &Form) -> std::fmt::Result {
    writeln!(text, "form {} {{", form.name)?;
    for (name, values) in [
        ("inputs", &form.inputs),
        ("outputs", &form.outputs),
        ("output_gradients", &form.output_gradients),
        ("input_gradients", &form.input_gradients),
    ] {
        writeln!(text, "    {name} {}", list(values))?;
    }
    if !form.state.is_empty() {
        let state: Vec<ValueId> = form.state.iter().map(|state| state.value).collect();
        writeln!(text, "    state {}", list(&state))?;
    }
    for (id, value) in form.values.iter() {
        write!(text, "    {id} {} {}", value.name, value.ty)?;
        match value.kind {
            Kind::Boundary => writeln!(text, " boundary")?,
            Kind::Weight(slot) => writeln!(text, " weight {slot}")?,
            Kind::WeightGradient(slot) => writeln!(text, " gradient of {slot}")?,
            Kind::Tokens => writeln!(text, " tokens")?,
            Kind::Targets => writeln!(text, " targets")?,
            Kind::Loss => writeln!(text, " loss")?,
            Kind::Prefix => writeln!(text, " prefix")?,
            Kind::PrefixGradient => writeln!(text, " gradient of a prefix")?,
            Kind::StateGradient => writeln!(text, " gradient from later slices")?,
            Kind::Fetched(of) => writeln!(text, " fetched {of}")?,
            Kind::Computed => writeln!(text)?,
            Kind::Reshaped(origin) => writeln!(text, " = {origin}")?,
        }
    }
    let line = |text: &mut String, pass: &str, kernel: &Kernel| {
        // Accumulation marks of a kernel stand before its results.
        writeln!(text, "    {pass} {}", print_kernel(kernel))
    };
    for kernel in &form.forward {
        line(text, "F", kernel)?;
    }
    for (phase, kernel) in &form.backward {
        let pass = match phase {
            Phase::R => "R",
            Phase::B => "B",
            Phase::W => "W",
        };
        line(text, pass, kernel)?;
    }
    writeln!(text, "}}")
}

fn list(values: &[ValueId]) -> String {
    let names: Vec<String> = values.iter().map(|value| value.to_string()).collect();
    format!("[{}]", names.join(", "))
}

/// The modes of a layer as a table: time and bytes kept of a micro-batch, what is kept, what is computed again, and which
/// options take it.
pub fn print_modes(layer: &Layer) -> String {
    let Summary { terms_before, terms, classes, rounds } = layer.summary;
    let mut text = format!(
        "layer {}: {terms_before} terms, {terms} in {classes} classes after {rounds} rounds, {} modes\n",
        layer.name,
        layer.modes.len()
    );
    for (id, mode) in layer.modes.iter() {
        let takes: Vec<&str> =
            Level::ALL.into_iter().filter(|&level| layer.at(level) == id).map(Level::name).collect();
        let named = |how: Had| -> String {
            let names: Vec<&str> = mode.had(how).map(|step| &*step.name).collect();
            if names.is_empty() { "nothing".to_owned() } else { names.join(" ") }
        };
        let takes = if takes.is_empty() { String::new() } else { format!("  <- {}", takes.join(", ")) };
        text += &format!("  {id:<3} {:>10} {:>10}{takes}\n", mode.time.to_string(), mode.kept.to_string());
        text += &format!("    keeps {}\n    computes again {}\n", named(Had::Kept), named(Had::Again));
        if mode.offloaded > Bytes::ZERO {
            text += &format!("    fetches {} of {}\n", named(Had::Fetched), mode.offloaded);
        }
    }
    text
}
