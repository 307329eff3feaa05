//! The forward pass of a layer: the operations of the language as ops of the program, with concrete shapes.
//!
//! Heads are only a shape: every value of T tokens is stored `[T, heads * width]`, and a kernel that works on single
//! vectors reads it as `[T * heads, width]`. Element-wise operations that nothing else looks at become one kernel.

use super::expression::Expression;
use super::{Extent, Graph, Kind, Prefix, State, accumulator_type};
use crate::spec::{self, Layer, SlotId, Unary};
use pipec_program::id::{Id, IdVec};
use pipec_program::{
    AttentionShape, BinaryOp, DType, Kernel, Op, Output, Slice, TensorType, UnaryOp, ValueId,
};
use std::collections::BTreeMap;

/// The graph of a layer without its backward pass.
pub(super) fn forward(layer: &Layer, extent: Extent<'_>, precision: DType) -> Graph {
    let graph = Graph {
        name: match extent.part() {
            Some(_) => format!("{}.i{}", layer.name, extent.slice),
            None => layer.name.clone(),
        },
        precision,
        values: IdVec::new(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        output_gradients: Vec::new(),
        input_gradients: Vec::new(),
        forward: Vec::new(),
        backward: Vec::new(),
        state: Vec::new(),
        prefix: Vec::new(),
        random_sites: 0,
    };
    let mut builder = Builder {
        layer,
        extent,
        precision,
        states: 0,
        groups: groups(layer),
        graph,
        values: vec![None; layer.values.len()],
        weights: vec![None; layer.slots.len()],
        expressions: BTreeMap::new(),
        open: BTreeMap::new(),
    };
    builder.build();
    builder.graph
}

/// For each operation the last operation of the element-wise kernel that it becomes a part of; itself unless all that
/// read its result are parts of one later kernel. None for what is not element-wise.
fn groups(layer: &Layer) -> Vec<Option<usize>> {
    // A reshape is the same value.
    let mut origin: Vec<spec::ValueId> = layer.values.ids().collect();
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); layer.values.len()];
    for (position, operation) in layer.operations.iter().enumerate() {
        match (&operation.op, operation.output) {
            (spec::Op::Reshape { x }, Some(output)) => origin[output.index()] = origin[x.index()],
            (op, _) => {
                for x in op.operands() {
                    readers[origin[x.index()].index()].push(position);
                }
            }
        }
    }
    let mut leaves = vec![false; layer.values.len()];
    for output in &layer.outputs {
        leaves[origin[output.index()].index()] = true;
    }
    let mut groups: Vec<Option<usize>> = vec![None; layer.operations.len()];
    for (position, operation) in layer.operations.iter().enumerate().rev() {
        let Some(output) = operation.output else { continue };
        if !is_element_wise(&operation.op) {
            continue;
        }
        let mut reading = readers[output.index()].iter().map(|&reader| groups[reader]);
        groups[position] = match reading.next() {
            Some(Some(group)) if !leaves[output.index()] && reading.all(|other| other == Some(group)) => {
                Some(group)
            }
            _ => Some(position),
        };
    }
    groups
}

fn is_element_wise(op: &spec::Op) -> bool {
    match op {
        spec::Op::Unary { .. }
        | spec::Op::Add { .. }
        | spec::Op::Mul { .. }
        | spec::Op::Scale { .. }
        | spec::Op::Dropout { .. }
        | spec::Op::Positions { .. } => true,
        spec::Op::Embedding { .. }
        | spec::Op::Linear { .. }
        | spec::Op::RmsNorm { .. }
        | spec::Op::LayerNorm { .. }
        | spec::Op::Rope { .. }
        | spec::Op::Attention { .. }
        | spec::Op::Softmax { .. }
        | spec::Op::Reshape { .. }
        | spec::Op::CrossEntropy { .. } => false,
    }
}

struct Builder<'a> {
    layer: &'a Layer,
    extent: Extent<'a>,
    precision: DType,
    /// States of the attentions so far.
    states: usize,
    /// See [`groups`].
    groups: Vec<Option<usize>>,
    graph: Graph,
    /// The value of the graph for each value of the layer that is stored.
    values: Vec<Option<ValueId>>,
    /// The value of the graph for each slot, once it is used.
    weights: Vec<Option<ValueId>>,
    /// The expressions of element-wise kernels by their last operation.
    expressions: BTreeMap<usize, Expression>,
    /// The node of each value that is not stored in the expression of its kernel.
    open: BTreeMap<spec::ValueId, u32>,
}

impl Builder<'_> {
    fn build(&mut self) {
        let layer = self.layer;
        for &input in &layer.inputs {
            let value = self.stored(input, Kind::Boundary);
            self.graph.inputs.push(value);
        }
        for (position, operation) in layer.operations.iter().enumerate() {
            match self.groups[position] {
                Some(group) => self.element_wise(position, group, operation),
                None => self.kernel(operation),
            }
        }
        for &output in &layer.outputs {
            let value = self.value(output);
            self.graph.outputs.push(value);
        }
    }

    fn rows(&self) -> u64 {
        self.extent.sequences * self.extent.tokens()
    }

    /// The value of the graph for a stored value of the layer.
    fn value(&self, value: spec::ValueId) -> ValueId {
        self.values[value.index()].expect("an operation stands after those that it reads")
    }

    /// A new value of the graph for a value of the layer.
    fn stored(&mut self, value: spec::ValueId, kind: Kind) -> ValueId {
        let spec::Value { name, heads, width } = &self.layer.values[value];
        let ty = TensorType::new(self.precision, &[self.rows(), heads * width]);
        let id = self.graph.add(name.clone(), ty, kind);
        self.values[value.index()] = Some(id);
        id
    }

    /// The value of the graph for a slot.
    fn weight(&mut self, slot: SlotId) -> ValueId {
        if let Some(value) = self.weights[slot.index()] {
            return value;
        }
        let spec::Slot { name, shape } = &self.layer.slots[slot];
        let ty = TensorType::new(self.precision, shape);
        let value = self.graph.add(name.clone(), ty, Kind::Weight(slot));
        self.weights[slot.index()] = Some(value);
        value
    }

    /// The tokens or the targets.
    fn feed(&mut self, name: &str, kind: Kind) -> ValueId {
        if let Some((id, _)) = self.graph.values.iter().find(|(_, value)| value.kind == kind) {
            return id;
        }
        self.graph.add(name.to_owned(), TensorType::new(DType::U32, &[self.rows()]), kind)
    }

    /// A value seen as vectors of the width that the layer gives it.
    fn vectors(&mut self, stored: ValueId, value: spec::ValueId) -> ValueId {
        let spec::Value { heads, width, .. } = self.layer.values[value];
        self.graph.reshaped(stored, &[self.rows() * heads, width])
    }

    /// A number for every vector of a value: statistics of norms.
    fn statistic(&mut self, name: &str, value: spec::ValueId) -> ValueId {
        let spec::Value { name: of, heads, .. } = &self.layer.values[value];
        let ty = TensorType::new(accumulator_type(self.precision), &[self.rows() * heads]);
        self.graph.add(format!("{of}.{name}"), ty, Kind::Computed)
    }

    fn emit(&mut self, op: Op, inputs: Vec<ValueId>, outputs: &[ValueId]) {
        let outputs = outputs.iter().map(|&value| Output { value, accumulate: false }).collect();
        self.graph.forward.push(Kernel { op, inputs, outputs });
    }

    fn kernel(&mut self, operation: &spec::Operation) {
        let output = operation.output;
        let stored = |builder: &mut Self| {
            let output = output.expect("every operation but the cross entropy has a result");
            (output, builder.stored(output, Kind::Computed))
        };
        match operation.op {
            spec::Op::Embedding { table } => {
                let tokens = self.feed("tokens", Kind::Tokens);
                let table = self.weight(table);
                let (_, y) = stored(self);
                self.emit(Op::Embedding, vec![tokens, table], &[y]);
            }
            spec::Op::Linear { x, weight, bias } => {
                let mut inputs = vec![self.value(x), self.weight(weight)];
                inputs.extend(bias.map(|bias| self.weight(bias)));
                let (_, y) = stored(self);
                self.emit(Op::Matmul { transpose_a: false, transpose_b: true }, inputs, &[y]);
            }
            spec::Op::RmsNorm { x, gain, eps } => {
                let from = self.value(x);
                let inputs = vec![self.vectors(from, x), self.weight(gain)];
                let (output, y) = stored(self);
                let outputs = [self.vectors(y, output), self.statistic("inv_rms", output)];
                self.emit(Op::RmsNorm { eps }, inputs, &outputs);
            }
            spec::Op::LayerNorm { x, gain, bias, eps } => {
                let from = self.value(x);
                let inputs = vec![self.vectors(from, x), self.weight(gain), self.weight(bias)];
                let (output, y) = stored(self);
                let outputs = [
                    self.vectors(y, output),
                    self.statistic("mean", output),
                    self.statistic("inv_std", output),
                ];
                self.emit(Op::LayerNorm { eps }, inputs, &outputs);
            }
            spec::Op::Rope { x, rotary, base, pairing, scaling } => {
                let from = self.value(x);
                let (_, y) = stored(self);
                let op = Op::Rope {
                    tokens: self.extent.tokens(),
                    first: self.extent.first(self.extent.slice),
                    head_dim: self.layer.values[x].width,
                    rotary,
                    base,
                    pairing,
                    scaling,
                    inverse: false,
                };
                self.emit(op, vec![from], &[y]);
            }
            spec::Op::Attention { q, k, v, mask, scale } => {
                let heads = self.layer.values[q].heads;
                let shape = AttentionShape {
                    sequences: self.extent.sequences,
                    heads,
                    kv_heads: self.layer.values[k].heads,
                    head_dim: self.layer.values[q].width,
                    mask,
                    scale,
                };
                let mut inputs = vec![self.value(q)];
                self.keys_and_values(k, v, &mut inputs);
                let (output, o) = stored(self);
                let Extent { sequences, .. } = self.extent;
                let extents = [sequences * heads, self.extent.tokens()];
                let lse_type = TensorType::new(accumulator_type(self.precision), &extents);
                let name = format!("{}.lse", self.layer.values[output].name);
                let lse = self.graph.add(name, lse_type, Kind::Computed);
                self.emit(Op::Attention(shape), inputs, &[o, lse]);
            }
            spec::Op::Softmax { x } => {
                let from = self.value(x);
                let from = self.vectors(from, x);
                let (output, y) = stored(self);
                let y = self.vectors(y, output);
                self.emit(Op::Softmax, vec![from], &[y]);
            }
            spec::Op::Reshape { x } => {
                if let Some(output) = output {
                    self.values[output.index()] = self.values[x.index()];
                    // The operand may be a part of an element-wise kernel that goes on.
                    if let Some(&node) = self.open.get(&x) {
                        self.open.insert(output, node);
                    }
                }
            }
            spec::Op::CrossEntropy { logits, ignore } => {
                let from = self.value(logits);
                let targets = self.feed("targets", Kind::Targets);
                let loss = self.graph.add("loss".to_owned(), TensorType::new(DType::F64, &[1]), Kind::Loss);
                let lse_type = TensorType::new(accumulator_type(self.precision), &[self.rows()]);
                let name = format!("{}.lse", self.layer.values[logits].name);
                let lse = self.graph.add(name, lse_type, Kind::Computed);
                self.emit(Op::CrossEntropy { ignore }, vec![from, targets], &[loss, lse]);
            }
            spec::Op::Positions { .. }
            | spec::Op::Unary { .. }
            | spec::Op::Add { .. }
            | spec::Op::Mul { .. }
            | spec::Op::Scale { .. }
            | spec::Op::Dropout { .. } => unreachable!("an element-wise operation has a group"),
        }
    }

    /// The keys and values of an attention: those of earlier slices that some query sees, then those of the slice.
    fn keys_and_values(&mut self, k: spec::ValueId, v: spec::ValueId, inputs: &mut Vec<ValueId>) {
        let Extent { sequences, lengths, slice, .. } = self.extent;
        let first = self.states;
        self.states += 2;
        for earlier in (0..slice).filter(|&earlier| self.extent.sees(slice, earlier)) {
            for (state, of) in [(first, k), (first + 1, v)] {
                let spec::Value { name, heads, width } = &self.layer.values[of];
                let ty = TensorType::new(self.precision, &[sequences * lengths[earlier], heads * width]);
                let (name, slice) = (format!("{name}.i{earlier}"), Slice::new(earlier));
                let gradient = self.graph.add(format!("d{name}"), ty.clone(), Kind::PrefixGradient);
                let value = self.graph.add(name, ty, Kind::Prefix);
                inputs.push(value);
                self.graph.prefix.push(Prefix { slice, state, value, gradient });
            }
        }
        let seen = self.extent.sees(slice + 1, slice);
        for of in [k, v] {
            let mut value = self.value(of);
            if slice + 1 < lengths.len() {
                value = self.state(value);
                let gradient = seen.then(|| {
                    let super::Value { name, ty, .. } = self.graph.values[value].clone();
                    self.graph.add(format!("d{name}.later"), ty, Kind::StateGradient)
                });
                self.graph.state.push(State { value, gradient });
            }
            inputs.push(value);
        }
    }

    /// A value as a state: one that a kernel made and that is no other state, so that it has a place of its own.
    fn state(&mut self, value: ValueId) -> ValueId {
        let origin = self.graph.origin(value);
        let is_made = self.graph.values[origin].kind == Kind::Computed;
        if is_made && self.graph.state.iter().all(|state| self.graph.origin(state.value) != origin) {
            return value;
        }
        let super::Value { name, ty, .. } = self.graph.values[origin].clone();
        let copy = self.graph.add(format!("{name}.state"), ty, Kind::Computed);
        let mut e = Expression::default();
        let node = e.input(origin);
        let output = Output { value: copy, accumulate: false };
        self.graph.forward.push(e.kernel(&[node], vec![output], None));
        copy
    }

    /// Adds an operation to the expression of its kernel, and ends the kernel if the operation is its last.
    fn element_wise(&mut self, position: usize, group: usize, operation: &spec::Operation) {
        let output = operation.output.expect("every operation but the cross entropy has a result");
        // What stands in a register for each operand: a node of this kernel, or a stored value.
        let mut e = self.expressions.remove(&group).unwrap_or_default();
        let result = match operation.op {
            spec::Op::Positions { x, table, first } => {
                let table = self.weight(table);
                let spec::Value { name, heads, width } = &self.layer.values[output];
                let ty = TensorType::new(self.precision, &[self.rows(), heads * width]);
                let rows = self.graph.add(format!("{name}.positions"), ty, Kind::Computed);
                let first = first + self.extent.first(self.extent.slice);
                self.emit(Op::Positions { tokens: self.extent.tokens(), first }, vec![table], &[rows]);
                let (a, b) = (self.node(&mut e, x), e.input(rows));
                e.binary(BinaryOp::Add, a, b)
            }
            spec::Op::Unary { function, x } => {
                let x = self.node(&mut e, x);
                unary(&mut e, function, x)
            }
            spec::Op::Add { a, b } => {
                let (a, b) = (self.node(&mut e, a), self.node(&mut e, b));
                e.binary(BinaryOp::Add, a, b)
            }
            spec::Op::Mul { a, b } => {
                let (a, b) = (self.node(&mut e, a), self.node(&mut e, b));
                e.binary(BinaryOp::Mul, a, b)
            }
            spec::Op::Scale { x, factor } => {
                let (x, factor) = (self.node(&mut e, x), e.constant(factor));
                e.binary(BinaryOp::Mul, x, factor)
            }
            spec::Op::Dropout { x, p } => {
                let x = self.node(&mut e, x);
                let random = e.random(self.graph.random_sites);
                self.graph.random_sites += 1;
                // 1 / (1 - p) with probability 1 - p, else 0.
                let (bound, scale) = (e.constant(1.0 - p), e.constant(1.0 / (1.0 - p)));
                let kept = e.binary(BinaryOp::Less, random, bound);
                let factor = e.binary(BinaryOp::Mul, kept, scale);
                e.binary(BinaryOp::Mul, x, factor)
            }
            spec::Op::Embedding { .. }
            | spec::Op::Linear { .. }
            | spec::Op::RmsNorm { .. }
            | spec::Op::LayerNorm { .. }
            | spec::Op::Rope { .. }
            | spec::Op::Attention { .. }
            | spec::Op::Softmax { .. }
            | spec::Op::Reshape { .. }
            | spec::Op::CrossEntropy { .. } => unreachable!("only element-wise operations have a group"),
        };
        if position == group {
            let value = self.stored(output, Kind::Computed);
            let output = Output { value, accumulate: false };
            let kernel = e.kernel(&[result], vec![output], self.extent.part());
            self.graph.forward.push(kernel);
        } else {
            self.open.insert(output, result);
            self.expressions.insert(group, e);
        }
    }

    /// The node of an operand in an expression.
    fn node(&self, expression: &mut Expression, x: spec::ValueId) -> u32 {
        match self.open.get(&x) {
            Some(&node) => node,
            None => expression.input(self.value(x)),
        }
    }
}

fn unary(e: &mut Expression, function: Unary, x: u32) -> u32 {
    use BinaryOp::{Add, Max, Mul};
    match function {
        Unary::Silu => {
            let sigmoid = e.unary(UnaryOp::Sigmoid, x);
            e.binary(Mul, x, sigmoid)
        }
        Unary::Gelu => {
            // (x / 2) (1 + erf(x / sqrt 2))
            let (half, one) = (e.constant(0.5), e.constant(1.0));
            let scale = e.constant(std::f64::consts::FRAC_1_SQRT_2);
            let scaled = e.binary(Mul, x, scale);
            let erf = e.unary(UnaryOp::Erf, scaled);
            let sum = e.binary(Add, one, erf);
            let halved = e.binary(Mul, x, half);
            e.binary(Mul, halved, sum)
        }
        Unary::GeluTanh => {
            // (x / 2) (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
            let (half, one, cubic) = (e.constant(0.5), e.constant(1.0), e.constant(0.044715));
            let scale = e.constant((2.0 / std::f64::consts::PI).sqrt());
            let square = e.binary(Mul, x, x);
            let cube = e.binary(Mul, square, x);
            let term = e.binary(Mul, cubic, cube);
            let inner = e.binary(Add, x, term);
            let scaled = e.binary(Mul, scale, inner);
            let tanh = e.unary(UnaryOp::Tanh, scaled);
            let sum = e.binary(Add, one, tanh);
            let halved = e.binary(Mul, x, half);
            e.binary(Mul, halved, sum)
        }
        Unary::Relu => {
            let zero = e.constant(0.0);
            e.binary(Max, x, zero)
        }
    }
}
