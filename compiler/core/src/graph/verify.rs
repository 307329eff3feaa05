//! The internal check of a graph. What it finds is a fault of the compiler, never of the user.

use super::{Graph, NodeId, Op, Type};
use pipec_program::id::Id;

/// Every invariant of [`Graph`] that does not hold, as a sentence; empty for a good graph.
pub fn verify(graph: &Graph) -> Vec<String> {
    let mut faults = Vec::new();
    let mut fault = |text: String| faults.push(format!("graph {}: {text}", graph.name));
    for (id, node) in graph.nodes.iter() {
        for &input in &node.inputs {
            if input >= id {
                fault(format!("{id} reads {input}, which does not stand before it"));
            }
            let backward = !graph.is_forward(input);
            if graph.is_forward(id) && backward {
                fault(format!("{id} of the forward pass reads {input} of the backward pass"));
            }
        }
        if let Op::Part(part) = node.op {
            let tuple = node.inputs.first().and_then(|&tuple| graph.nodes.get(tuple));
            match tuple.map(|tuple| &tuple.ty) {
                Some(Type::Tuple(types)) if types.get(part) == Some(&node.ty) => {}
                _ => fault(format!("{id} of type {} is no part {part}", node.ty)),
            }
        }
    }
    let ty = |id: NodeId| graph.nodes.get(id).map(|node| &node.ty);
    let pairs = [
        (&graph.outputs, &graph.output_gradients, "output"),
        (&graph.inputs, &graph.input_gradients, "input"),
    ];
    for (values, gradients, what) in pairs {
        if values.len() != gradients.len() {
            fault(format!("{} {what} values have {} gradients", values.len(), gradients.len()));
        }
        for (&value, &gradient) in values.iter().zip(gradients) {
            if ty(value).is_none() || ty(value) != ty(gradient) {
                fault(format!("{what} {value} has a gradient {gradient} of another type"));
            }
        }
    }
    for (contribution, slots) in &graph.contributions {
        let results = match ty(*contribution) {
            Some(Type::Tuple(types)) => types.len(),
            Some(Type::Whole { .. }) => 1,
            Some(Type::PerToken { .. } | Type::Statistic { .. }) | None => 0,
        };
        if results != slots.len() || slots.iter().any(|slot| slot.index() >= graph.slots.len()) {
            fault(format!("{contribution} of {results} results adds to {} parameters", slots.len()));
        }
    }
    faults
}
