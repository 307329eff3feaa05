//! The forward pass of a layer: one node for each operation of the language.
//!
//! Heads are only a shape: a value has all its numbers per token in one row, and an operation that works on single
//! vectors knows how many there are.

use super::{Attention, Expression, Graph, NodeId, Op, Precision, Real, Rope, Type, accumulator_type};
use crate::spec::{self, Layer, SlotId, Unary};
use pipec_program::id::{Id, IdVec};
use pipec_program::{BinaryOp, DType, UnaryOp};
use std::collections::BTreeMap;

/// The graph of a layer without its backward pass.
pub(super) fn forward(layer: &Layer, precision: Precision) -> Graph {
    let graph = Graph {
        name: layer.name.clone(),
        precision: precision.values,
        gradients: precision.gradients,
        nodes: IdVec::new(),
        forward: 0,
        inputs: Vec::new(),
        outputs: Vec::new(),
        output_gradients: Vec::new(),
        input_gradients: Vec::new(),
        loss: None,
        contributions: Vec::new(),
        slots: layer.slots.values().map(|slot| slot.name.clone()).collect(),
        random_sites: 0,
    };
    let values = vec![None; layer.values.len()];
    let mut builder = Builder { layer, graph, values, leaves: BTreeMap::new() };
    builder.build();
    builder.graph
}

struct Builder<'a> {
    layer: &'a Layer,
    graph: Graph,
    /// The node of each value of the layer.
    values: Vec<Option<NodeId>>,
    /// The nodes of parameters and of the tokens.
    leaves: BTreeMap<Op, NodeId>,
}

impl Builder<'_> {
    fn build(&mut self) {
        let layer = self.layer;
        for (position, &input) in layer.inputs.iter().enumerate() {
            let node = self.named(input, Op::Input(position), Vec::new());
            self.graph.inputs.push(node);
        }
        for (position, operation) in layer.operations.iter().enumerate() {
            self.operation(position, operation);
        }
        self.graph.outputs = layer.outputs.iter().map(|&output| self.value(output)).collect();
        self.graph.forward = self.graph.nodes.len();
    }

    /// The node of a value of the layer.
    fn value(&self, value: spec::ValueId) -> NodeId {
        self.values[value.index()].expect("an operation stands after those that it reads")
    }

    /// The type of a value of the layer.
    fn ty(&self, value: spec::ValueId) -> Type {
        let spec::Value { heads, width, .. } = self.layer.values[value];
        Type::PerToken { dtype: self.graph.precision, columns: heads * width }
    }

    /// The node of a value that an operation makes alone.
    fn named(&mut self, value: spec::ValueId, op: Op, inputs: Vec<NodeId>) -> NodeId {
        let (name, ty) = (self.layer.values[value].name.clone(), self.ty(value));
        let node = self.graph.add(name, op, inputs, ty);
        self.values[value.index()] = Some(node);
        node
    }

    /// The node of a value that an operation makes together with statistics of so many vectors per token, which are named
    /// after it.
    fn tuple(&mut self, value: spec::ValueId, op: Op, inputs: Vec<NodeId>, others: &[(&str, u64)]) {
        let name = self.layer.values[value].name.clone();
        let dtype = accumulator_type(self.graph.precision);
        let mut types = vec![self.ty(value)];
        types.extend(others.iter().map(|&(_, heads)| Type::Statistic { dtype, heads }));
        let tuple = self.graph.add(format!("{name}.all"), op, inputs, Type::Tuple(types));
        self.values[value.index()] = Some(self.graph.part(name.clone(), tuple, 0));
        for (part, (other, _)) in others.iter().enumerate() {
            self.graph.part(format!("{name}.{other}"), tuple, part + 1);
        }
    }

    fn leaf(&mut self, name: &str, op: Op, ty: Type) -> NodeId {
        if let Some(&node) = self.leaves.get(&op) {
            return node;
        }
        let node = self.graph.add(name, op.clone(), Vec::new(), ty);
        self.leaves.insert(op, node);
        node
    }

    fn weight(&mut self, slot: SlotId) -> NodeId {
        let spec::Slot { name, shape } = &self.layer.slots[slot];
        let ty = Type::Whole { dtype: self.graph.precision, shape: shape.clone() };
        self.leaf(name, Op::Weight(slot), ty)
    }

    /// Token ids.
    fn feed(&mut self, name: &str, op: Op) -> NodeId {
        self.leaf(name, op, Type::PerToken { dtype: DType::U32, columns: 1 })
    }

    fn operation(&mut self, position: usize, operation: &spec::Operation) {
        let result = || operation.output.expect("every operation but the cross entropy has a result");
        let heads_of = |value: spec::ValueId| self.layer.values[value].heads;
        match operation.op {
            spec::Op::Embedding { table } => {
                let inputs = vec![self.feed("tokens", Op::Tokens), self.weight(table)];
                self.named(result(), Op::Embedding, inputs);
            }
            spec::Op::Positions { x, table, first } => {
                let table = self.weight(table);
                let ty = self.ty(result());
                let rows = format!("{}.positions", self.layer.values[result()].name);
                let places = self.feed("places", Op::Places);
                let rows = self.graph.add(rows, Op::Positions { first }, vec![table, places], ty);
                let mut e = Expression::default();
                let (a, b) = (e.input(self.value(x)), e.input(rows));
                let sum = e.binary(BinaryOp::Add, a, b);
                self.map(result(), &e, sum);
            }
            spec::Op::Linear { x, weight, bias } => {
                let mut inputs = vec![self.value(x), self.weight(weight)];
                inputs.extend(bias.map(|bias| self.weight(bias)));
                self.named(result(), Op::Linear, inputs);
            }
            spec::Op::RmsNorm { x, gain, eps } => {
                let heads = heads_of(x);
                let inputs = vec![self.value(x), self.weight(gain)];
                let op = Op::RmsNorm { heads, eps: Real::new(eps) };
                self.tuple(result(), op, inputs, &[("inv_rms", heads)]);
            }
            spec::Op::LayerNorm { x, gain, bias, eps } => {
                let heads = heads_of(x);
                let inputs = vec![self.value(x), self.weight(gain), self.weight(bias)];
                let op = Op::LayerNorm { heads, eps: Real::new(eps) };
                self.tuple(result(), op, inputs, &[("mean", heads), ("inv_std", heads)]);
            }
            spec::Op::Rope { x, rotary, base, pairing, scaling } => {
                let head_dim = self.layer.values[x].width;
                let rope = Rope { head_dim, rotary, base, pairing, scaling, inverse: false };
                let inputs = vec![self.value(x)];
                self.named(result(), Op::Rope(rope), inputs);
            }
            spec::Op::Attention { q, k, v, mask, scale } => {
                let heads = heads_of(q);
                let attention = Attention {
                    heads,
                    kv_heads: heads_of(k),
                    head_dim: self.layer.values[q].width,
                    mask,
                    scale: Real::new(scale),
                    operation: position,
                };
                let inputs = vec![self.value(q), self.value(k), self.value(v)];
                self.tuple(result(), Op::Attention(attention), inputs, &[("lse", heads)]);
            }
            spec::Op::Unary { function, x } => {
                let mut e = Expression::default();
                let x = e.input(self.value(x));
                let y = unary(&mut e, function, x);
                self.map(result(), &e, y);
            }
            spec::Op::Add { a, b } => self.binary(result(), BinaryOp::Add, a, b),
            spec::Op::Mul { a, b } => self.binary(result(), BinaryOp::Mul, a, b),
            spec::Op::Scale { x, factor } => {
                let mut e = Expression::default();
                let (x, factor) = (e.input(self.value(x)), e.constant(factor));
                let y = e.binary(BinaryOp::Mul, x, factor);
                self.map(result(), &e, y);
            }
            spec::Op::Dropout { x, p } => {
                let mut e = Expression::default();
                let (x, random) = (e.input(self.value(x)), e.random(self.graph.random_sites));
                self.graph.random_sites += 1;
                // 1 / (1 - p) with probability 1 - p, else 0.
                let (bound, scale) = (e.constant(1.0 - p), e.constant(1.0 / (1.0 - p)));
                let kept = e.binary(BinaryOp::Less, random, bound);
                let factor = e.binary(BinaryOp::Mul, kept, scale);
                let y = e.binary(BinaryOp::Mul, x, factor);
                self.map(result(), &e, y);
            }
            spec::Op::Softmax { x } => {
                let (heads, inputs) = (heads_of(x), vec![self.value(x)]);
                self.named(result(), Op::Softmax { heads }, inputs);
            }
            spec::Op::Reshape { x } => self.values[result().index()] = self.values[x.index()],
            spec::Op::CrossEntropy { logits, ignore } => {
                let inputs = vec![self.value(logits), self.feed("targets", Op::Targets)];
                let dtype = accumulator_type(self.graph.precision);
                let types = vec![
                    Type::Whole { dtype: DType::F64, shape: vec![1] },
                    Type::Statistic { dtype, heads: 1 },
                ];
                let op = Op::CrossEntropy { ignore };
                let tuple = self.graph.add("loss.all", op, inputs, Type::Tuple(types));
                self.graph.loss = Some(self.graph.part("loss", tuple, 0));
                self.graph.part(format!("{}.lse", self.layer.values[logits].name), tuple, 1);
            }
        }
    }

    fn binary(&mut self, result: spec::ValueId, op: BinaryOp, a: spec::ValueId, b: spec::ValueId) {
        let mut e = Expression::default();
        let (a, b) = (e.input(self.value(a)), e.input(self.value(b)));
        let y = e.binary(op, a, b);
        self.map(result, &e, y);
    }

    fn map(&mut self, result: spec::ValueId, e: &Expression<NodeId>, node: u32) {
        let (formula, inputs) = e.finish(&[node]);
        self.named(result, Op::Map(formula), inputs);
    }
}

fn unary(e: &mut Expression<NodeId>, function: Unary, x: u32) -> u32 {
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
