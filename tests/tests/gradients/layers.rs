//! Layers, written as a model would be.

use pipec_compiler::spec::{
    Layer, Model, Op, Operation, Parameter, Piece, Slot, SlotId, Unary, Value, ValueId,
};
use pipec_program::id::{Id, IdVec};
use pipec_program::{Init, Mask, Pairing, ParameterId};

/// A layer under construction.
pub(crate) struct Sample {
    layer: Layer,
}

impl Sample {
    pub(crate) fn new() -> Self {
        let layer = Layer {
            name: "layer".to_owned(),
            slots: IdVec::new(),
            values: IdVec::new(),
            inputs: Vec::new(),
            operations: Vec::new(),
            outputs: Vec::new(),
        };
        Self { layer }
    }

    fn value(&mut self, heads: u64, width: u64) -> ValueId {
        self.layer.values.push(Value { name: "x".to_owned(), heads, width })
    }

    pub(crate) fn slot(&mut self, shape: &[u64]) -> SlotId {
        self.layer.slots.push(Slot { name: "w".to_owned(), shape: shape.to_vec() })
    }

    pub(crate) fn input(&mut self, width: u64) -> ValueId {
        let value = self.value(1, width);
        self.layer.inputs.push(value);
        value
    }

    fn op(&mut self, heads: u64, width: u64, op: Op) -> ValueId {
        let output = self.value(heads, width);
        self.layer.operations.push(Operation { op, output: Some(output) });
        output
    }

    /// An operation whose result has the type of `x`.
    pub(crate) fn like(&mut self, x: ValueId, op: Op) -> ValueId {
        let Value { heads, width, .. } = self.layer.values[x];
        self.op(heads, width, op)
    }

    pub(crate) fn embedding(&mut self, vocab: u64, width: u64) -> ValueId {
        let table = self.slot(&[vocab, width]);
        self.op(1, width, Op::Embedding { table })
    }

    pub(crate) fn linear(&mut self, x: ValueId, out: u64, bias: bool) -> ValueId {
        let Value { heads, width, .. } = self.layer.values[x];
        let weight = self.slot(&[out, heads * width]);
        let bias = bias.then(|| self.slot(&[out]));
        self.op(1, out, Op::Linear { x, weight, bias })
    }

    pub(crate) fn rms_norm(&mut self, x: ValueId) -> ValueId {
        let gain = self.slot(&[self.layer.values[x].width]);
        self.like(x, Op::RmsNorm { x, gain, eps: 1e-2 })
    }

    pub(crate) fn layer_norm(&mut self, x: ValueId) -> ValueId {
        let width = self.layer.values[x].width;
        let (gain, bias) = (self.slot(&[width]), self.slot(&[width]));
        self.like(x, Op::LayerNorm { x, gain, bias, eps: 1e-2 })
    }

    pub(crate) fn heads(&mut self, x: ValueId, heads: u64) -> ValueId {
        let Value { heads: before, width, .. } = self.layer.values[x];
        self.op(heads, before * width / heads, Op::Reshape { x })
    }

    pub(crate) fn attention(&mut self, q: ValueId, k: ValueId, v: ValueId, mask: Mask) -> ValueId {
        self.like(q, Op::Attention { q, k, v, mask, scale: 0.7 })
    }

    pub(crate) fn unary(&mut self, function: Unary, x: ValueId) -> ValueId {
        self.like(x, Op::Unary { function, x })
    }

    pub(crate) fn add(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.like(a, Op::Add { a, b })
    }

    pub(crate) fn mul(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.like(a, Op::Mul { a, b })
    }

    pub(crate) fn output(mut self, outputs: &[ValueId]) -> Layer {
        self.layer.outputs = outputs.to_vec();
        self.layer
    }

    pub(crate) fn loss(mut self, logits: ValueId, ignore: Option<u32>) -> Layer {
        self.layer.operations.push(Operation { op: Op::CrossEntropy { logits, ignore }, output: None });
        self.layer
    }
}

/// Norm, rotary grouped-query attention, norm, gated feed-forward.
pub(crate) fn llama(width: u64, heads: u64, kv_heads: u64, hidden: u64) -> Layer {
    let mut layer = Sample::new();
    let x = layer.input(width);
    let h = layer.rms_norm(x);
    let rotated = |layer: &mut Sample, heads: u64| {
        let y = layer.linear(h, width / 2 * heads, false);
        let y = layer.heads(y, heads);
        layer.like(y, Op::Rope { x: y, rotary: 2, base: 1e4, pairing: Pairing::Half, scaling: None })
    };
    let (q, k) = (rotated(&mut layer, heads), rotated(&mut layer, kv_heads));
    let v = layer.linear(h, width / 2 * kv_heads, false);
    let v = layer.heads(v, kv_heads);
    let o = layer.attention(q, k, v, Mask::Causal);
    let o = layer.linear(o, width, false);
    let x = layer.add(x, o);
    let h = layer.rms_norm(x);
    let (gate, up) = (layer.linear(h, hidden, false), layer.linear(h, hidden, false));
    let gate = layer.unary(Unary::Silu, gate);
    let product = layer.mul(gate, up);
    let down = layer.linear(product, width, false);
    let x = layer.add(x, down);
    layer.output(&[x])
}

/// Layer norm, attention with biases, layer norm, gelu feed-forward, dropout on both branches.
pub(crate) fn gpt(width: u64, heads: u64) -> Layer {
    let mut layer = Sample::new();
    let x = layer.input(width);
    let h = layer.layer_norm(x);
    let [q, k, v] = [0, 1, 2].map(|_| {
        let y = layer.linear(h, width, true);
        layer.heads(y, heads)
    });
    let o = layer.attention(q, k, v, Mask::Causal);
    let o = layer.linear(o, width, true);
    let o = layer.like(x, Op::Dropout { x: o, p: 0.25 });
    let x = layer.add(x, o);
    let h = layer.layer_norm(x);
    let h = layer.linear(h, 2 * width, true);
    let h = layer.unary(Unary::GeluTanh, h);
    let h = layer.linear(h, width, true);
    let h = layer.like(x, Op::Dropout { x: h, p: 0.25 });
    let x = layer.add(x, h);
    layer.output(&[x])
}

/// Attention and feed-forward side by side on one norm, norms of queries and keys, a norm at the end.
pub(crate) fn parallel(width: u64, heads: u64) -> Layer {
    let mut layer = Sample::new();
    let x = layer.input(width);
    let h = layer.layer_norm(x);
    let [q, k, v] = [0, 1, 2].map(|_| {
        let y = layer.linear(h, width, false);
        layer.heads(y, heads)
    });
    let (q, k) = (layer.rms_norm(q), layer.rms_norm(k));
    let o = layer.attention(q, k, v, Mask::Window { size: 2 });
    let o = layer.linear(o, width, false);
    let f = layer.linear(h, 2 * width, false);
    let f = layer.unary(Unary::Silu, f);
    let f = layer.linear(f, width, false);
    let sum = layer.add(o, f);
    let x = layer.add(x, sum);
    let x = layer.rms_norm(x);
    layer.output(&[x])
}

/// A model of one piece.
pub(crate) fn single(layer: Layer) -> Model {
    let mut model = empty();
    let id = model.layers.push(layer);
    push_piece(&mut model, id.index(), &[]);
    model
}

/// Embedding, `depth` times the layer, and a head that is tied to the embedding.
pub(crate) fn model(layer: Layer, depth: usize, vocab: u64) -> Model {
    let width = layer.values[layer.inputs[0]].width;
    let mut embedding = Sample::new();
    let x = embedding.embedding(vocab, width);
    let table = embedding.slot(&[4, width]);
    let x = embedding.like(x, Op::Positions { x, table, first: 1 });
    let x = embedding.like(x, Op::Dropout { x, p: 0.25 });
    let mut head = Sample::new();
    let y = head.input(width);
    let h = head.rms_norm(y);
    let logits = head.linear(h, vocab, false);
    let mut model = empty();
    model.layers = IdVec::from(vec![embedding.output(&[x]), layer, head.loss(logits, Some(1))]);
    push_piece(&mut model, 0, &[]);
    for _ in 0..depth {
        push_piece(&mut model, 1, &[]);
    }
    push_piece(&mut model, 2, &[(SlotId(1), ParameterId(0))]);
    model
}

fn empty() -> Model {
    Model {
        name: "model".to_owned(),
        parameters: IdVec::new(),
        layers: IdVec::new(),
        pieces: Vec::new(),
        vocab: 5,
    }
}

fn push_piece(model: &mut Model, layer: usize, tied: &[(SlotId, ParameterId)]) {
    let layer = Id::new(layer);
    let mut parameters = IdVec::new();
    for (slot, Slot { shape, .. }) in model.layers[layer].slots.iter() {
        let parameter = match tied.iter().find(|(tied, _)| *tied == slot) {
            Some(&(_, parameter)) => parameter,
            None => model.parameters.push(Parameter {
                name: format!("{}.{slot}", model.pieces.len()),
                shape: shape.clone(),
                init: Init::Constant { value: 0.0 },
            }),
        };
        parameters.push(parameter);
    }
    model.pieces.push(Piece { name: model.pieces.len().to_string(), layer, parameters });
}
