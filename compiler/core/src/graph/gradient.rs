//! Reverse-mode differentiation of a layer.
//!
//! Forward kernels are taken in reverse. When a kernel's turn comes, all that reads its result has had its turn, so the
//! gradient of the result is complete; its weight kernels follow at once, then the kernel that passes the gradient on.
//!
//! A gradient with several contributions is the first that a kernel writes, plus those that later kernels add to it in
//! place. Contributions that exist already as another gradient (an addition passes its gradient on unchanged) are never
//! copied: a norm takes one as its residual, an element-wise kernel as an operand, and only what is left needs a sum of
//! its own.

use super::expression::Expression;
use super::{Extent, Graph, Kind, LOSS_SCALE, Phase, Value, accumulator_type};
use crate::spec::SlotId;
use pipec_program::id::Id;
use pipec_program::{BinaryOp, Kernel, Node, Op, Output, TensorType, ValueId};
use std::collections::BTreeMap;

/// Adds both backward passes to a graph that has a forward pass only.
pub(super) fn differentiate(mut graph: Graph, extent: Extent<'_>) -> Graph {
    let forward = graph.forward.clone();
    let mut reverse = Reverse {
        pending: graph.values.ids().map(|_| Pending::default()).collect(),
        weights: BTreeMap::new(),
        extent,
        graph: &mut graph,
    };
    reverse.begin();
    for kernel in forward.iter().rev() {
        reverse.kernel(kernel);
    }
    reverse.end();
    graph
}

/// What has been contributed to the gradient of a value so far. The gradient is the sum.
#[derive(Clone, Debug, Default)]
struct Pending {
    /// A value that only this gradient names, so that kernels may add to it.
    owned: Option<ValueId>,
    /// Complete values that others may name too.
    shared: Vec<ValueId>,
}

struct Reverse<'a> {
    extent: Extent<'a>,
    graph: &'a mut Graph,
    /// By forward value, for values that are no reshapes.
    pending: Vec<Pending>,
    weights: BTreeMap<SlotId, ValueId>,
}

impl Reverse<'_> {
    fn begin(&mut self) {
        for state in self.graph.state.clone() {
            self.pending(state.value).owned = state.gradient;
        }
        for output in self.graph.outputs.clone() {
            let Value { name, ty, .. } = self.graph.values[output].clone();
            let gradient = self.graph.add(format!("d{name}"), ty, Kind::Boundary);
            self.graph.output_gradients.push(gradient);
            self.share(output, gradient);
        }
    }

    fn end(&mut self) {
        for input in self.graph.inputs.clone() {
            let gradient = match self.gradient(input) {
                Some(gradient) => gradient,
                None => {
                    // Nothing reads the input: its gradient is zero.
                    let output = self.target(input);
                    let mut zero = Expression::default();
                    let node = zero.constant(0.0);
                    self.graph.backward.push((Phase::B, zero.kernel(&[node], vec![output], None)));
                    output.value
                }
            };
            self.graph.input_gradients.push(gradient);
        }
    }

    fn pending(&mut self, x: ValueId) -> &mut Pending {
        let origin = self.graph.origin(x);
        &mut self.pending[origin.index()]
    }

    /// A new value for (a part of) the gradient of a value.
    fn new_gradient(&mut self, x: ValueId) -> ValueId {
        let origin = self.graph.origin(x);
        let Value { name, ty, .. } = self.graph.values[origin].clone();
        self.graph.add(format!("d{name}"), ty, Kind::Computed)
    }

    /// A gradient under the shape of the value that it belongs to.
    fn shaped(&mut self, gradient: ValueId, like: ValueId) -> ValueId {
        let shape = self.graph.values[like].ty.shape.clone();
        self.graph.reshaped(gradient, &shape.0)
    }

    /// Where a kernel that may accumulate puts its contribution to the gradient of `x`.
    fn target(&mut self, x: ValueId) -> Output {
        let (gradient, accumulate) = match self.pending(x).owned {
            Some(gradient) => (gradient, true),
            None => {
                let gradient = self.new_gradient(x);
                self.pending(x).owned = Some(gradient);
                (gradient, false)
            }
        };
        Output { value: self.shaped(gradient, x), accumulate }
    }

    /// Where a kernel that only writes puts its contribution to the gradient of `x`.
    fn fresh(&mut self, x: ValueId) -> Output {
        if self.pending(x).owned.is_none() {
            return self.target(x);
        }
        let gradient = self.new_gradient(x);
        self.share(x, gradient);
        Output { value: self.shaped(gradient, x), accumulate: false }
    }

    /// Contributes a complete value.
    fn share(&mut self, x: ValueId, gradient: ValueId) {
        let gradient = self.graph.origin(gradient);
        self.pending(x).shared.push(gradient);
    }

    /// Takes a complete contribution to the gradient of `x`, for a kernel that adds it to its own.
    fn residual(&mut self, x: ValueId) -> Option<ValueId> {
        let shared = &mut self.pending(x).shared;
        let first = (!shared.is_empty()).then(|| shared.remove(0))?;
        Some(self.shaped(first, x))
    }

    /// The complete gradient of a value under the shape of the value; none if nothing depends on it.
    fn gradient(&mut self, x: ValueId) -> Option<ValueId> {
        let Pending { owned, shared } = self.pending(x).clone();
        let gradient = match (owned, &shared[..]) {
            (None, []) => return None,
            (None, &[single]) | (Some(single), []) => single,
            (None, [_, _, ..]) | (Some(_), [_, ..]) => {
                let mut sum = Expression::default();
                let mut node = sum.input(shared[0]);
                for &other in &shared[1..] {
                    let other = sum.input(other);
                    node = sum.binary(BinaryOp::Add, node, other);
                }
                self.pending(x).shared.clear();
                let origin = self.graph.origin(x);
                let output = self.target(origin);
                self.graph.backward.push((Phase::B, sum.kernel(&[node], vec![output], None)));
                output.value
            }
        };
        *self.pending(x) = Pending { owned: None, shared: vec![gradient] };
        Some(self.shaped(gradient, x))
    }

    /// The gradient of a parameter: only ever added to.
    fn weight(&mut self, weight: ValueId) -> Output {
        let Value { name, ty, kind } = self.graph.values[weight].clone();
        let Kind::Weight(slot) = kind else { unreachable!("kernels take parameters from slots") };
        let dtype = accumulator_type(ty.dtype);
        let graph = &mut *self.graph;
        let value = *self.weights.entry(slot).or_insert_with(|| {
            let ty = TensorType { dtype, shape: ty.shape };
            graph.add(format!("d{name}"), ty, Kind::WeightGradient(slot))
        });
        Output { value, accumulate: true }
    }

    fn emit(&mut self, phase: Phase, op: Op, inputs: Vec<ValueId>, outputs: Vec<Output>) {
        self.graph.backward.push((phase, Kernel { op, inputs, outputs }));
    }

    fn kernel(&mut self, kernel: &Kernel) {
        let [x, ..] = kernel.inputs[..] else {
            unreachable!("every forward kernel reads something");
        };
        let y = kernel.outputs[0].value;
        if let Op::CrossEntropy { ignore } = kernel.op {
            let (targets, lse) = (kernel.inputs[1], kernel.outputs[1].value);
            let dx = self.fresh(x);
            let op = Op::CrossEntropyGrad { ignore, scale: LOSS_SCALE };
            return self.emit(Phase::B, op, vec![x, targets, lse], vec![dx]);
        }
        let Some(dy) = self.gradient(y) else {
            // Nothing depends on the result.
            return self.no_gradients(kernel);
        };
        match &kernel.op {
            Op::Embedding => {
                let dtable = self.weight(kernel.inputs[1]);
                self.emit(Phase::W, Op::EmbeddingGrad, vec![x, dy], vec![dtable]);
            }
            &Op::Positions { tokens, first } => {
                let dtable = self.weight(x);
                self.emit(Phase::B, Op::PositionsGrad { tokens, first }, vec![dy], vec![dtable]);
            }
            Op::Matmul { .. } => {
                let weight = kernel.inputs[1];
                let dweight = self.weight(weight);
                let product = Op::Matmul { transpose_a: true, transpose_b: false };
                self.emit(Phase::W, product, vec![dy, x], vec![dweight]);
                if let Some(&bias) = kernel.inputs.get(2) {
                    let dbias = self.weight(bias);
                    self.emit(Phase::W, Op::SumRows, vec![dy], vec![dbias]);
                }
                let dx = self.target(x);
                let product = Op::Matmul { transpose_a: false, transpose_b: false };
                self.emit(Phase::B, product, vec![dy, weight], vec![dx]);
            }
            Op::RmsNorm { .. } => {
                let (gain, inv_rms) = (kernel.inputs[1], kernel.outputs[1].value);
                let dgain = self.weight(gain);
                self.emit(Phase::B, Op::RmsNormGainGrad, vec![x, inv_rms, dy], vec![dgain]);
                let mut inputs = vec![x, gain, inv_rms, dy];
                inputs.extend(self.residual(x));
                let dx = self.target(x);
                self.emit(Phase::B, Op::RmsNormGrad, inputs, vec![dx]);
            }
            Op::LayerNorm { .. } => {
                let (gain, bias) = (kernel.inputs[1], kernel.inputs[2]);
                let (mean, inv_std) = (kernel.outputs[1].value, kernel.outputs[2].value);
                let outputs = vec![self.weight(gain), self.weight(bias)];
                self.emit(Phase::B, Op::LayerNormParamGrad, vec![x, mean, inv_std, dy], outputs);
                let mut inputs = vec![x, gain, mean, inv_std, dy];
                inputs.extend(self.residual(x));
                let dx = self.target(x);
                self.emit(Phase::B, Op::LayerNormGrad, inputs, vec![dx]);
            }
            &Op::Rope { tokens, first, head_dim, rotary, base, pairing, scaling, inverse } => {
                let inverse = !inverse;
                let op = Op::Rope { tokens, first, head_dim, rotary, base, pairing, scaling, inverse };
                let dx = self.fresh(x);
                self.emit(Phase::B, op, vec![dy], vec![dx]);
            }
            &Op::Attention(shape) => {
                let lse = kernel.outputs[1].value;
                // One kernel writes all of them, so no two may be added up in one place.
                let mut outputs: Vec<Output> = Vec::new();
                for &operand in &kernel.inputs {
                    if let Some(output) = self.prefix(operand) {
                        outputs.push(output);
                        continue;
                    }
                    let mut output = self.target(operand);
                    if outputs.iter().any(|other| other.value == output.value) {
                        output = self.fresh(operand);
                    }
                    outputs.push(output);
                }
                let mut inputs = kernel.inputs.clone();
                inputs.extend([y, lse, dy]);
                self.emit(Phase::B, Op::AttentionGrad(shape), inputs, outputs);
            }
            Op::Softmax => {
                let dx = self.target(x);
                self.emit(Phase::B, Op::SoftmaxGrad, vec![y, dy], vec![dx]);
            }
            Op::Map { nodes, results, .. } => self.map(&kernel.inputs, nodes, results, dy),
            Op::SumRows
            | Op::EmbeddingGrad
            | Op::PositionsGrad { .. }
            | Op::RmsNormGrad
            | Op::RmsNormGainGrad
            | Op::LayerNormGrad
            | Op::LayerNormParamGrad
            | Op::AttentionGrad(_)
            | Op::SoftmaxGrad
            | Op::CrossEntropy { .. }
            | Op::CrossEntropyGrad { .. }
            | Op::SumSquares
            | Op::ClipFactor { .. }
            | Op::AdamW { .. } => unreachable!("a forward pass has no such kernel"),
        }
    }

    /// Where the gradient of a state of an earlier slice goes, if the operand is one: the last slice that sees it is the
    /// first to write it.
    fn prefix(&self, operand: ValueId) -> Option<Output> {
        let prefix = self.graph.prefix.iter().find(|prefix| prefix.value == operand)?;
        let accumulate = self.extent.sees(self.extent.slice + 1, prefix.slice.index());
        Some(Output { value: prefix.gradient, accumulate })
    }

    /// The gradients of a kernel on whose result nothing depends: earlier slices wait for those of their states.
    fn no_gradients(&mut self, kernel: &Kernel) {
        let Op::Attention(_) = kernel.op else { return };
        for &operand in &kernel.inputs {
            if let Some(output) = self.prefix(operand)
                && !output.accumulate
            {
                let mut zero = Expression::default();
                let node = zero.constant(0.0);
                self.graph.backward.push((Phase::B, zero.kernel(&[node], vec![output], None)));
            }
        }
    }

    /// The gradients of an element-wise kernel in one kernel. Operands whose gradient is that of the result get no
    /// output, and operands whose gradients are equal get one: they share it.
    fn map(&mut self, inputs: &[ValueId], nodes: &[Node], results: &[u32], dy: ValueId) {
        let mut e = Expression::of(inputs, nodes);
        let weight = e.input(dy);
        let results: Vec<(u32, u32)> = results.iter().map(|&result| (result, weight)).collect();
        let contributions = e.differentiate(&results);
        let (mut gradients, mut outputs) = (Vec::new(), Vec::new());
        for (position, &(x, mut gradient)) in contributions.iter().enumerate() {
            if gradient == weight {
                self.share(x, dy);
                continue;
            }
            let equal = |&&(_, other): &&(ValueId, u32)| other == gradient;
            if contributions[..position].iter().any(|other| equal(&other)) {
                // Written for an operand before.
                continue;
            }
            if contributions.iter().filter(equal).count() > 1 {
                let value = self.new_gradient(x);
                gradients.push(gradient);
                outputs.push(Output { value, accumulate: false });
                for &(x, _) in contributions.iter().filter(equal) {
                    self.share(x, value);
                }
                continue;
            }
            while let Some(before) = self.residual(x) {
                let before = e.input(before);
                gradient = e.binary(BinaryOp::Add, before, gradient);
            }
            gradients.push(gradient);
            outputs.push(self.target(x));
        }
        if !outputs.is_empty() {
            self.graph.backward.push((Phase::B, e.kernel(&gradients, outputs, self.extent.part())));
        }
    }
}
