//! A graph as text, for people and for tests: one line per value and per kernel, kernels as in a program.

use super::{Graph, Kind, Phase};
use pipec_program::text::print_kernel;
use pipec_program::{Kernel, ValueId};
use std::fmt::Write;

/// The text of a graph.
pub fn print(graph: &Graph) -> String {
    let mut text = String::new();
    write(&mut text, graph).expect("a string takes all text");
    text
}

fn write(text: &mut String, graph: &Graph) -> std::fmt::Result {
    writeln!(text, "graph {} {{", graph.name)?;
    for (name, values) in [
        ("inputs", &graph.inputs),
        ("outputs", &graph.outputs),
        ("output_gradients", &graph.output_gradients),
        ("input_gradients", &graph.input_gradients),
    ] {
        writeln!(text, "    {name} {}", list(values))?;
    }
    if !graph.state.is_empty() {
        let state: Vec<ValueId> = graph.state.iter().map(|state| state.value).collect();
        writeln!(text, "    state {}", list(&state))?;
    }
    for (id, value) in graph.values.iter() {
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
            Kind::Computed => writeln!(text)?,
            Kind::Reshaped(origin) => writeln!(text, " = {origin}")?,
        }
    }
    let line = |text: &mut String, pass: &str, kernel: &Kernel| {
        // Accumulation marks of a kernel stand before its results.
        writeln!(text, "    {pass} {}", print_kernel(kernel))
    };
    for kernel in &graph.forward {
        line(text, "F", kernel)?;
    }
    for (phase, kernel) in &graph.backward {
        let pass = match phase {
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
