//! Reverse-mode differentiation of a layer.
//!
//! Forward nodes are taken in reverse. When a node's turn comes, all that reads its result has had its turn, so the
//! gradient of the result is complete; its contributions to the gradients of parameters follow at once, then the gradients
//! of its operands. A gradient with several contributions is their sum in the order in which they arise.

use super::{Added, Expression, Formula, Graph, NodeId, Op, Rope, Type};
use crate::spec::SlotId;
use pipec_program::BinaryOp;
use pipec_program::id::Id;

/// Adds both backward passes to a graph that has a forward pass only.
pub(super) fn differentiate(mut graph: Graph) -> Graph {
    let count = graph.nodes.len();
    let mut reverse = Reverse { contributions: vec![Vec::new(); count], graph: &mut graph };
    reverse.begin();
    for node in (0..count).rev() {
        reverse.node(NodeId::new(node));
    }
    reverse.end();
    graph
}

struct Reverse<'a> {
    graph: &'a mut Graph,
    /// What has been contributed to the gradient of each forward node so far.
    contributions: Vec<Vec<NodeId>>,
}

impl Reverse<'_> {
    fn begin(&mut self) {
        for (position, output) in self.graph.outputs.clone().into_iter().enumerate() {
            let gradient = self.like(output, Op::OutputGradient(position), Vec::new());
            self.graph.output_gradients.push(gradient);
            self.contribute(output, gradient);
        }
    }

    fn end(&mut self) {
        for input in self.graph.inputs.clone() {
            let gradient = self.gradient(input).unwrap_or_else(|| {
                // Nothing reads the input: its gradient is zero.
                let mut zero = Expression::<NodeId>::default();
                let node = zero.constant(0.0);
                let (formula, inputs) = zero.finish(&[node]);
                self.like(input, Op::Map(formula), inputs)
            });
            self.graph.input_gradients.push(gradient);
        }
    }

    /// A node with the type of another, named as its gradient.
    fn like(&mut self, other: NodeId, op: Op, inputs: Vec<NodeId>) -> NodeId {
        let (name, ty) = (format!("d{}", self.graph.nodes[other].name), self.graph.nodes[other].ty.clone());
        self.graph.add(name, op, inputs, ty)
    }

    fn contribute(&mut self, x: NodeId, gradient: NodeId) {
        self.contributions[x.index()].push(gradient);
    }

    /// The complete gradient of a node; none if nothing depends on it.
    fn gradient(&mut self, x: NodeId) -> Option<NodeId> {
        let contributions = std::mem::take(&mut self.contributions[x.index()]);
        contributions.into_iter().reduce(|sum, next| {
            let mut e = Expression::default();
            let (a, b) = (e.input(sum), e.input(next));
            let node = e.binary(BinaryOp::Add, a, b);
            let (formula, inputs) = e.finish(&[node]);
            self.like(x, Op::Map(formula), inputs)
        })
    }

    /// A contribution to the gradients of parameters.
    fn parameters(&mut self, op: Op, inputs: Vec<NodeId>, weights: &[NodeId]) {
        let mut slots: Vec<SlotId> = Vec::new();
        let mut types: Vec<Type> = Vec::new();
        let mut name = String::new();
        for &weight in weights {
            let node = &self.graph.nodes[weight];
            let (Op::Weight(slot), Type::Whole { dtype: _, shape }) = (&node.op, &node.ty) else {
                unreachable!("an operand for parameters is one")
            };
            slots.push(*slot);
            types.push(Type::Whole { dtype: self.graph.gradients, shape: shape.clone() });
            if name.is_empty() {
                name = format!("d{}", node.name);
            }
        }
        let ty = match types.len() {
            1 => types.remove(0),
            _ => Type::Tuple(types),
        };
        let node = self.graph.add(name, op, inputs, ty);
        self.graph.contributions.push((node, slots));
    }

    /// A part of a tuple that a forward node is.
    fn part(&self, tuple: NodeId, part: usize) -> NodeId {
        let after = self.graph.nodes.iter().skip(tuple.index());
        let mut parts = after.filter(|(_, node)| node.op == Op::Part(part) && node.inputs == [tuple]);
        parts.next().expect("every part of a forward tuple is a node").0
    }

    fn node(&mut self, id: NodeId) {
        let node = self.graph.nodes[id].clone();
        let inputs = node.inputs;
        match node.op {
            Op::Input(_) | Op::Weight(_) | Op::Tokens | Op::Targets | Op::Places => {}
            Op::Embedding => {
                let Some(dy) = self.gradient(id) else { return };
                self.parameters(Op::EmbeddingGrad, vec![inputs[0], dy], &inputs[1..]);
            }
            Op::Positions { first } => {
                let Some(dy) = self.gradient(id) else { return };
                self.parameters(Op::PositionsGrad { first }, vec![dy], &inputs[..1]);
            }
            Op::Linear => {
                let Some(dy) = self.gradient(id) else { return };
                let (x, weight) = (inputs[0], inputs[1]);
                self.parameters(Op::WeightProduct, vec![dy, x], &[weight]);
                if inputs.len() > 2 {
                    self.parameters(Op::SumRows, vec![dy], &inputs[2..]);
                }
                let dx = self.like(x, Op::Product(Added::No), vec![dy, weight]);
                self.contribute(x, dx);
            }
            Op::Rope(rope) => {
                let Some(dy) = self.gradient(id) else { return };
                let back = Rope { inverse: !rope.inverse, ..rope };
                let dx = self.like(inputs[0], Op::Rope(back), vec![dy]);
                self.contribute(inputs[0], dx);
            }
            Op::Softmax { heads } => {
                let Some(dy) = self.gradient(id) else { return };
                let dx = self.like(inputs[0], Op::SoftmaxGrad { heads }, vec![id, dy]);
                self.contribute(inputs[0], dx);
            }
            Op::Map(formula) => {
                let Some(dy) = self.gradient(id) else { return };
                self.map(&inputs, &formula, dy);
            }
            // The gradient of a tuple is that of its first part; the others are statistics.
            Op::Part(0) => {
                let Some(dy) = self.gradient(id) else { return };
                self.tuple(inputs[0], id, dy);
            }
            Op::Part(_) => {}
            // Taken with their parts.
            Op::RmsNorm { .. } | Op::LayerNorm { .. } | Op::Attention(_) => {}
            Op::CrossEntropy { ignore } => {
                let lse = self.part(id, 1);
                let op = Op::CrossEntropyGrad { ignore };
                let dx = self.like(inputs[0], op, vec![inputs[0], inputs[1], lse]);
                self.contribute(inputs[0], dx);
            }
            Op::OutputGradient(_)
            | Op::Product(_)
            | Op::WeightProduct
            | Op::SumRows
            | Op::EmbeddingGrad
            | Op::PositionsGrad { .. }
            | Op::RmsNormGrad { .. }
            | Op::RmsNormGainGrad { .. }
            | Op::LayerNormGrad { .. }
            | Op::LayerNormParamGrad { .. }
            | Op::AttentionGrad { .. }
            | Op::SoftmaxGrad { .. }
            | Op::CrossEntropyGrad { .. } => unreachable!("a forward pass has no such node"),
        }
    }

    /// The gradients of an operation with several results, from that of its first, `y`.
    fn tuple(&mut self, id: NodeId, y: NodeId, dy: NodeId) {
        let node = self.graph.nodes[id].clone();
        let inputs = node.inputs;
        match node.op {
            Op::RmsNorm { heads, .. } => {
                let (x, gain, inv_rms) = (inputs[0], inputs[1], self.part(id, 1));
                self.parameters(Op::RmsNormGainGrad { heads }, vec![x, inv_rms, dy], &[gain]);
                let dx = self.like(x, Op::RmsNormGrad { heads }, vec![x, gain, inv_rms, dy]);
                self.contribute(x, dx);
            }
            Op::LayerNorm { heads, .. } => {
                let (x, gain, mean, inv_std) = (inputs[0], inputs[1], self.part(id, 1), self.part(id, 2));
                let op = Op::LayerNormParamGrad { heads };
                self.parameters(op, vec![x, mean, inv_std, dy], &inputs[1..3]);
                let dx = self.like(x, Op::LayerNormGrad { heads }, vec![x, gain, mean, inv_std, dy]);
                self.contribute(x, dx);
            }
            Op::Attention(of) => {
                let types = inputs.iter().map(|&input| self.graph.nodes[input].ty.clone()).collect();
                let mut operands = inputs.clone();
                operands.extend([y, self.part(id, 1), dy]);
                let name = format!("d{}.all", self.graph.nodes[y].name);
                let op = Op::AttentionGrad { of, added: 0 };
                let tuple = self.graph.add(name, op, operands, Type::Tuple(types));
                for (part, &operand) in inputs.iter().enumerate() {
                    let name = format!("d{}", self.graph.nodes[operand].name);
                    let gradient = self.graph.part(name, tuple, part);
                    self.contribute(operand, gradient);
                }
            }
            Op::CrossEntropy { .. } => {}
            Op::Input(_)
            | Op::Weight(_)
            | Op::Tokens
            | Op::Targets
            | Op::Places
            | Op::OutputGradient(_)
            | Op::Part(_)
            | Op::Embedding
            | Op::Positions { .. }
            | Op::Linear
            | Op::Rope(_)
            | Op::Softmax { .. }
            | Op::Map(_)
            | Op::Product(_)
            | Op::WeightProduct
            | Op::SumRows
            | Op::EmbeddingGrad
            | Op::PositionsGrad { .. }
            | Op::RmsNormGrad { .. }
            | Op::RmsNormGainGrad { .. }
            | Op::LayerNormGrad { .. }
            | Op::LayerNormParamGrad { .. }
            | Op::AttentionGrad { .. }
            | Op::SoftmaxGrad { .. }
            | Op::CrossEntropyGrad { .. } => unreachable!("no tuple"),
        }
    }

    /// The gradients of the operands of an element-wise formula; one that is the gradient of the result is that.
    fn map(&mut self, inputs: &[NodeId], formula: &Formula, dy: NodeId) {
        let mut e = Expression::default();
        let results = e.formula(formula, inputs);
        let weight = e.input(dy);
        let results: Vec<(u32, u32)> = results.into_iter().map(|result| (result, weight)).collect();
        for (x, gradient) in e.differentiate(&results) {
            let dx = match gradient == weight {
                true => dy,
                false => {
                    let (formula, operands) = e.finish(&[gradient]);
                    self.like(x, Op::Map(formula), operands)
                }
            };
            self.contribute(x, dx);
        }
    }
}
