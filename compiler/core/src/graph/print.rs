//! A graph as text, for people and for tests: one line per node.

use super::{Graph, Node, NodeId, Op, Type};
use std::fmt::{self, Write};

/// The text of a graph.
pub fn print(graph: &Graph) -> String {
    let mut text = String::new();
    write(&mut text, graph).expect("a string takes all text");
    text
}

fn write(text: &mut String, graph: &Graph) -> fmt::Result {
    writeln!(text, "graph {} {{", graph.name)?;
    for (name, nodes) in [
        ("inputs", &graph.inputs),
        ("outputs", &graph.outputs),
        ("output_gradients", &graph.output_gradients),
        ("input_gradients", &graph.input_gradients),
    ] {
        writeln!(text, "    {name} {}", list(nodes))?;
    }
    for (id, node) in graph.nodes.iter() {
        let phase = if graph.is_forward(id) { "F" } else { "B" };
        write!(text, "    {phase} {id} {} {} = {}", node.name, node.ty, call(node))?;
        match graph.contributions.iter().find(|(contribution, _)| *contribution == id) {
            Some((_, slots)) => {
                let slots: Vec<String> = slots.iter().map(|slot| slot.to_string()).collect();
                writeln!(text, " -> gradient of {}", slots.join(", "))?;
            }
            None => writeln!(text)?,
        }
    }
    writeln!(text, "}}")
}

/// An operation with its operands.
fn call(node: &Node) -> String {
    let operands = list(&node.inputs);
    let operands = operands.trim_start_matches('[').trim_end_matches(']');
    let name = node.op.name();
    match &node.op {
        Op::Input(position) | Op::OutputGradient(position) => format!("{name} {position}"),
        Op::Weight(slot) => format!("{name} {slot}"),
        Op::Tokens | Op::Targets | Op::Places => name.to_owned(),
        Op::Part(part) => format!("{operands}.{part}"),
        Op::Map(formula) => format!("{name}({operands}) {formula}"),
        Op::Positions { first } | Op::PositionsGrad { first } => format!("{name}({operands}) first={first}"),
        Op::RmsNorm { heads, eps } | Op::LayerNorm { heads, eps } => {
            format!("{name}({operands}) heads={heads} eps={eps:?}")
        }
        Op::RmsNormGrad { heads }
        | Op::RmsNormGainGrad { heads }
        | Op::LayerNormGrad { heads }
        | Op::LayerNormParamGrad { heads }
        | Op::Softmax { heads }
        | Op::SoftmaxGrad { heads } => format!("{name}({operands}) heads={heads}"),
        Op::Rope(rope) => {
            let inverse = if rope.inverse { " inverse" } else { "" };
            format!("{name}({operands}) head_dim={} rotary={}{inverse}", rope.head_dim, rope.rotary)
        }
        Op::Attention(of) | Op::AttentionGrad { of, .. } => format!(
            "{name}({operands}) heads={} kv_heads={} head_dim={} mask={:?}",
            of.heads, of.kv_heads, of.head_dim, of.mask
        ),
        Op::Embedding
        | Op::Linear
        | Op::CrossEntropy { .. }
        | Op::Product(_)
        | Op::WeightProduct
        | Op::SumRows
        | Op::EmbeddingGrad
        | Op::CrossEntropyGrad { .. } => format!("{name}({operands})"),
    }
}

fn list(nodes: &[NodeId]) -> String {
    let names: Vec<String> = nodes.iter().map(|node| node.to_string()).collect();
    format!("[{}]", names.join(", "))
}

/// `f32[T,16]` for 16 numbers per token.
impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PerToken { dtype, columns } => write!(f, "{}[T,{columns}]", dtype.name()),
            Self::Statistic { dtype, heads } => write!(f, "{}[T*{heads}]", dtype.name()),
            Self::Whole { dtype, shape } => {
                let extents: Vec<String> = shape.iter().map(|extent| extent.to_string()).collect();
                write!(f, "{}[{}]", dtype.name(), extents.join(","))
            }
            Self::Tuple(types) => {
                let types: Vec<String> = types.iter().map(|ty| ty.to_string()).collect();
                write!(f, "({})", types.join(", "))
            }
        }
    }
}
