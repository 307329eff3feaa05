//! Layers for tests, written as a model would be.

use crate::spec::{self, Layer, Op, Operation, Slot, SlotId, Unary, Value, ValueId};
use pipec_program::id::IdVec;
use pipec_program::{Mask, Pairing};

/// A layer under construction.
pub(crate) struct Sample {
    layer: Layer,
}

impl Sample {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            layer: Layer {
                name: name.to_owned(),
                slots: IdVec::new(),
                values: IdVec::new(),
                inputs: Vec::new(),
                operations: Vec::new(),
                outputs: Vec::new(),
            },
        }
    }

    fn value(&mut self, name: &str, heads: u64, width: u64) -> ValueId {
        self.layer.values.push(Value { name: name.to_owned(), heads, width })
    }

    pub(crate) fn slot(&mut self, name: &str, shape: &[u64]) -> SlotId {
        self.layer.slots.push(Slot { name: name.to_owned(), shape: shape.to_vec() })
    }

    pub(crate) fn input(&mut self, name: &str, width: u64) -> ValueId {
        let value = self.value(name, 1, width);
        self.layer.inputs.push(value);
        value
    }

    pub(crate) fn op(&mut self, name: &str, heads: u64, width: u64, op: Op) -> ValueId {
        let output = self.value(name, heads, width);
        self.layer.operations.push(Operation { op, output: Some(output) });
        output
    }

    pub(crate) fn like(&mut self, name: &str, x: ValueId, op: Op) -> ValueId {
        let spec::Value { heads, width, .. } = self.layer.values[x];
        self.op(name, heads, width, op)
    }

    fn width(&self, x: ValueId) -> u64 {
        self.layer.values[x].width
    }

    pub(crate) fn embedding(&mut self, table: SlotId) -> ValueId {
        let width = self.layer.slots[table].shape[1];
        self.op("x", 1, width, Op::Embedding { table })
    }

    pub(crate) fn linear(&mut self, name: &str, x: ValueId, out: u64, bias: bool) -> ValueId {
        let spec::Value { heads, width, .. } = self.layer.values[x];
        let weight = self.slot(&format!("w{name}"), &[out, heads * width]);
        let bias = bias.then(|| self.slot(&format!("b{name}"), &[out]));
        self.op(name, 1, out, Op::Linear { x, weight, bias })
    }

    pub(crate) fn rms_norm(&mut self, name: &str, x: ValueId) -> ValueId {
        let gain = self.slot(&format!("{name}_gain"), &[self.width(x)]);
        self.like(name, x, Op::RmsNorm { x, gain, eps: 1e-5 })
    }

    pub(crate) fn layer_norm(&mut self, name: &str, x: ValueId) -> ValueId {
        let gain = self.slot(&format!("{name}_gain"), &[self.width(x)]);
        let bias = self.slot(&format!("{name}_bias"), &[self.width(x)]);
        self.like(name, x, Op::LayerNorm { x, gain, bias, eps: 1e-5 })
    }

    pub(crate) fn heads(&mut self, name: &str, x: ValueId, heads: u64) -> ValueId {
        let width = self.layer.values[x].heads * self.width(x) / heads;
        self.op(name, heads, width, Op::Reshape { x })
    }

    pub(crate) fn rope(&mut self, name: &str, x: ValueId) -> ValueId {
        let rotary = self.width(x);
        let op = Op::Rope { x, rotary, base: 1e4, pairing: Pairing::Half, scaling: None };
        self.like(name, x, op)
    }

    pub(crate) fn attention(&mut self, q: ValueId, k: ValueId, v: ValueId, mask: Mask) -> ValueId {
        let scale = 1.0 / (self.width(q) as f64).sqrt();
        self.like("o", q, Op::Attention { q, k, v, mask, scale })
    }

    pub(crate) fn unary(&mut self, name: &str, function: Unary, x: ValueId) -> ValueId {
        self.like(name, x, Op::Unary { function, x })
    }

    pub(crate) fn add(&mut self, name: &str, a: ValueId, b: ValueId) -> ValueId {
        self.like(name, a, Op::Add { a, b })
    }

    pub(crate) fn mul(&mut self, name: &str, a: ValueId, b: ValueId) -> ValueId {
        self.like(name, a, Op::Mul { a, b })
    }

    pub(crate) fn dropout(&mut self, name: &str, x: ValueId, p: f64) -> ValueId {
        self.like(name, x, Op::Dropout { x, p })
    }

    pub(crate) fn output(mut self, outputs: &[ValueId]) -> Layer {
        self.layer.outputs = outputs.to_vec();
        self.layer
    }

    pub(crate) fn loss(mut self, logits: ValueId) -> Layer {
        let op = Op::CrossEntropy { logits, ignore: None };
        self.layer.operations.push(Operation { op, output: None });
        self.layer
    }
}

/// Token embedding.
pub(crate) fn llama_embedding(vocab: u64, width: u64) -> Layer {
    let mut layer = Sample::new("embedding");
    let table = layer.slot("embed", &[vocab, width]);
    let x = layer.embedding(table);
    layer.output(&[x])
}

/// Norm, rotary grouped-query attention, norm, gated feed-forward.
pub(crate) fn llama_layer(width: u64, heads: u64, kv_heads: u64, hidden: u64, mask: Mask) -> Layer {
    let kv_width = width / heads * kv_heads;
    let mut layer = Sample::new("layer");
    let x = layer.input("x", width);
    let h = layer.rms_norm("h", x);
    let q = layer.linear("q", h, width, false);
    let q = layer.heads("q", q, heads);
    let q = layer.rope("q_rope", q);
    let k = layer.linear("k", h, kv_width, false);
    let k = layer.heads("k", k, kv_heads);
    let k = layer.rope("k_rope", k);
    let v = layer.linear("v", h, kv_width, false);
    let v = layer.heads("v", v, kv_heads);
    let o = layer.attention(q, k, v, mask);
    let o = layer.heads("o", o, 1);
    let o = layer.linear("proj", o, width, false);
    let x = layer.add("x1", x, o);
    let h = layer.rms_norm("h1", x);
    let gate = layer.linear("gate", h, hidden, false);
    let up = layer.linear("up", h, hidden, false);
    let gate = layer.unary("silu", Unary::Silu, gate);
    let product = layer.mul("act", gate, up);
    let down = layer.linear("down", product, width, false);
    let x = layer.add("x2", x, down);
    layer.output(&[x])
}

/// Norm, head and loss.
pub(crate) fn llama_head(vocab: u64, width: u64) -> Layer {
    let mut layer = Sample::new("head");
    let x = layer.input("x", width);
    let h = layer.rms_norm("h", x);
    let logits = layer.linear("logits", h, vocab, false);
    layer.loss(logits)
}

/// Token and position embedding with dropout.
pub(crate) fn gpt_embedding(vocab: u64, positions: u64, width: u64) -> Layer {
    let mut layer = Sample::new("embedding");
    let table = layer.slot("embed", &[vocab, width]);
    let x = layer.embedding(table);
    let table = layer.slot("positions", &[positions, width]);
    let x = layer.like("x", x, Op::Positions { x, table, first: 0 });
    let x = layer.dropout("x", x, 0.1);
    layer.output(&[x])
}

/// Layer norm, attention with biases, layer norm, gelu feed-forward, dropout on both residual branches.
pub(crate) fn gpt_layer(width: u64, heads: u64) -> Layer {
    let mut layer = Sample::new("layer");
    let x = layer.input("x", width);
    let h = layer.layer_norm("h", x);
    let q = layer.linear("q", h, width, true);
    let q = layer.heads("q", q, heads);
    let k = layer.linear("k", h, width, true);
    let k = layer.heads("k", k, heads);
    let v = layer.linear("v", h, width, true);
    let v = layer.heads("v", v, heads);
    let o = layer.attention(q, k, v, Mask::Causal);
    let o = layer.heads("o", o, 1);
    let o = layer.linear("proj", o, width, true);
    let o = layer.dropout("drop", o, 0.1);
    let x = layer.add("x1", x, o);
    let h = layer.layer_norm("h1", x);
    let h = layer.linear("fc", h, 4 * width, true);
    let h = layer.unary("gelu", Unary::GeluTanh, h);
    let h = layer.linear("out", h, width, true);
    let h = layer.dropout("drop1", h, 0.1);
    let x = layer.add("x2", x, h);
    layer.output(&[x])
}

/// Layer norm, head and loss.
pub(crate) fn gpt_head(vocab: u64, width: u64) -> Layer {
    let mut layer = Sample::new("head");
    let x = layer.input("x", width);
    let h = layer.layer_norm("h", x);
    let logits = layer.linear("logits", h, vocab, false);
    layer.loss(logits)
}

/// A whole model: as many slots, so many parameters; slots named `embed` and `logits`' weight are tied if `tied` is set.
pub(crate) fn model(embedding: Layer, layer: Layer, depth: usize, head: Layer, tied: bool) -> spec::Model {
    let mut model = spec::Model {
        name: "sample".to_owned(),
        parameters: IdVec::new(),
        layers: IdVec::from(vec![embedding, layer, head]),
        pieces: Vec::new(),
        vocab: 0,
    };
    let ids: Vec<spec::LayerId> = model.layers.ids().collect();
    let mut piece = |name: String, layer: spec::LayerId| {
        let parameters = model.layers[layer]
            .slots
            .values()
            .map(|slot| {
                if tied && slot.name == "wlogits" {
                    return pipec_program::ParameterId(0);
                }
                model.parameters.push(spec::Parameter {
                    name: format!("{name}.{}", slot.name),
                    shape: slot.shape.clone(),
                    init: pipec_program::Init::Constant { value: 0.0 },
                })
            })
            .collect();
        model.pieces.push(spec::Piece { name, layer, parameters });
    };
    piece("embedding".to_owned(), ids[0]);
    for number in 0..depth {
        piece(format!("layer.{number}"), ids[1]);
    }
    piece("head".to_owned(), ids[2]);
    model.vocab = model.parameters[pipec_program::ParameterId(0)].shape[0];
    model
}
