//! The kernels of a mode for a slice.
//!
//! What a step adds to is changed in place where no other step reads it, and copied where one does.

use super::shape::{heads, kernel, results, tensor};
use super::{Extent, Form, Kind, Layer, Make, Mode, Phase, Prefix, State, Step, StepId};
use crate::graph::{Added, Attention, Op, Type};
use pipec_program::id::{Id, IdVec};
use pipec_program::{self as program, Kernel, Node, Output, Slice, TensorType, ValueId};
use std::collections::BTreeMap;

/// The form of a mode of a layer for a slice. The mode must be one for slices, or the slice the only one.
pub fn form(layer: &Layer, mode: &Mode, extent: Extent<'_>) -> Form {
    let form = Form {
        name: match extent.part() {
            Some(_) => format!("{}.i{}", layer.name, extent.slice),
            None => layer.name.clone(),
        },
        precision: layer.precision,
        gradients: layer.gradients,
        values: IdVec::new(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        output_gradients: Vec::new(),
        input_gradients: Vec::new(),
        forward: Vec::new(),
        backward: Vec::new(),
        state: Vec::new(),
        prefix: Vec::new(),
        random_sites: layer.random_sites,
    };
    let mut readers = vec![0u32; mode.steps.len()];
    let ends = mode.outputs.iter().chain(&mode.input_gradients);
    for step in mode.steps.values().flat_map(|step| &step.inputs).chain(ends) {
        readers[step.index()] += 1;
    }
    let values = vec![Vec::new(); mode.steps.len()];
    let mut emitter = Emitter { mode, extent, form, readers, values, attentions: BTreeMap::new() };
    emitter.emit();
    emitter.form
}

struct Emitter<'a> {
    mode: &'a Mode,
    extent: Extent<'a>,
    form: Form,
    /// How many steps read each step, and how often it goes out.
    readers: Vec<u32>,
    /// The values of each step, one for each of its results.
    values: Vec<Vec<ValueId>>,
    /// What each attention reads of earlier slices and gives later ones, by the position of its operation.
    attentions: BTreeMap<usize, Parts>,
}

/// The keys and values of an attention.
#[derive(Clone, Debug)]
struct Parts {
    /// The keys and values of earlier slices that some query sees, slices ascending.
    earlier: Vec<[Prefix; 2]>,
    /// Those of the slice itself as later slices see them.
    own: [ValueId; 2],
}

impl Emitter<'_> {
    fn emit(&mut self) {
        let mode = self.mode;
        for (name, ty) in &mode.boundaries.inputs {
            let value = self.form.add(name.clone(), tensor(ty, 1, self.extent), Kind::Boundary);
            self.form.inputs.push(value);
        }
        for (id, step) in mode.steps.iter() {
            if id.index() == mode.forward {
                self.boundary_gradients();
            }
            self.step(id, step);
        }
        if mode.forward == mode.steps.len() {
            self.boundary_gradients();
        }
        self.form.outputs = mode.outputs.iter().map(|&output| self.value(output)).collect();
        self.form.input_gradients =
            mode.input_gradients.iter().map(|&gradient| self.value(gradient)).collect();
    }

    fn boundary_gradients(&mut self) {
        for (name, ty) in &self.mode.boundaries.output_gradients {
            let value = self.form.add(name.clone(), tensor(ty, 1, self.extent), Kind::Boundary);
            self.form.output_gradients.push(value);
        }
    }

    /// The value of a step with one result.
    fn value(&self, step: StepId) -> ValueId {
        self.values[step.index()][0]
    }

    fn step(&mut self, id: StepId, step: &Step) {
        let values = match &step.make {
            Make::Keep => vec![self.value(step.inputs[0])],
            Make::Fetch => vec![self.fetched(step)],
            // Made with the attention that reads it.
            Make::Earlier | Make::Later => Vec::new(),
            Make::Op(op) => match op {
                Op::Input(position) => vec![self.form.inputs[*position]],
                Op::OutputGradient(position) => vec![self.form.output_gradients[*position]],
                Op::Weight(slot) => vec![self.leaf(step, Kind::Weight(*slot))],
                Op::Tokens => vec![self.leaf(step, Kind::Tokens)],
                Op::Targets => vec![self.leaf(step, Kind::Targets)],
                Op::Places => Vec::new(),
                Op::Part(part) => vec![self.values[step.inputs[0].index()][*part]],
                Op::Attention(of) => self.attention(id, step, of),
                Op::AttentionGrad { of, added } => self.attention_grad(id, step, of, *added),
                Op::Product(Added::Yes) => self.product_added(id, step),
                Op::Embedding
                | Op::Positions { .. }
                | Op::Linear
                | Op::RmsNorm { .. }
                | Op::LayerNorm { .. }
                | Op::Rope(_)
                | Op::Softmax { .. }
                | Op::Map(_)
                | Op::CrossEntropy { .. }
                | Op::Product(Added::No)
                | Op::WeightProduct
                | Op::SumRows
                | Op::EmbeddingGrad
                | Op::PositionsGrad { .. }
                | Op::RmsNormGrad { .. }
                | Op::RmsNormGainGrad { .. }
                | Op::LayerNormGrad { .. }
                | Op::LayerNormParamGrad { .. }
                | Op::SoftmaxGrad { .. }
                | Op::CrossEntropyGrad { .. } => self.plain(id, step, op),
            },
        };
        self.values[id.index()] = values;
    }

    /// A value that no kernel makes: each stands once, however many steps name it.
    fn leaf(&mut self, step: &Step, kind: Kind) -> ValueId {
        if let Some((id, _)) = self.form.values.iter().find(|(_, value)| value.kind == kind) {
            return id;
        }
        self.form.add(step.name.clone(), tensor(&step.ty, 1, self.extent), kind)
    }

    /// A value of the forward pass as it comes back from the host.
    fn fetched(&mut self, step: &Step) -> ValueId {
        let value = self.value(step.inputs[0]);
        let origin = self.form.origin(value);
        let known = self.form.values.iter().find(|(_, other)| other.kind == Kind::Fetched(origin));
        let fetched = known.map(|(id, _)| id).unwrap_or_else(|| {
            let super::Value { name, ty, .. } = self.form.values[origin].clone();
            self.form.add(format!("{name}.fetched"), ty, Kind::Fetched(origin))
        });
        let extents = self.form.values[value].ty.shape.0.clone();
        self.form.reshaped(fetched, &extents)
    }

    /// New values for the results of a step, or the gradients of the parameters to which it contributes.
    fn outputs(&mut self, id: StepId, step: &Step, op: &Op) -> Vec<Output> {
        let mode = self.mode;
        let types = results(op, &step.ty, self.extent);
        if let Some((_, slots)) = mode.contributions.iter().find(|(contribution, _)| *contribution == id) {
            let gradient = |(&slot, ty): (_, TensorType)| {
                let kind = Kind::WeightGradient(slot);
                let known = self.form.values.iter().find(|(_, value)| value.kind == kind).map(|(id, _)| id);
                let value = match known {
                    Some(value) => value,
                    None => self.form.add(format!("d{}", mode.slots[slot]), ty, kind),
                };
                Output { value, accumulate: true }
            };
            return slots.iter().zip(types).map(gradient).collect();
        }
        let names = self.names(id, step, types.len());
        let output = |(name, ty): (String, TensorType)| {
            // The loss is the one result in f64 of a model that is not.
            let is_loss = matches!(op, Op::CrossEntropy { .. }) && name == "loss";
            let kind = if is_loss { Kind::Loss } else { Kind::Computed };
            Output { value: self.form.add(name, ty, kind), accumulate: false }
        };
        names.into_iter().zip(types).map(output).collect()
    }

    /// The names of the results of a step: those of the steps that take its parts.
    fn names(&self, id: StepId, step: &Step, count: usize) -> Vec<String> {
        let Type::Tuple(_) = step.ty else { return vec![step.name.clone()] };
        let name = |part: usize| {
            let takes = |other: &&Step| other.make == Make::Op(Op::Part(part)) && other.inputs == [id];
            let taken = self.mode.steps.values().find(takes);
            taken.map_or_else(|| format!("{}.{part}", step.name), |taken| taken.name.clone())
        };
        (0..count).map(name).collect()
    }

    /// The operands of a step under the shapes that its op takes.
    fn operands(&mut self, step: &Step, op: &Op) -> Vec<ValueId> {
        let heads = heads(op);
        let mut operands = Vec::with_capacity(step.inputs.len());
        for &input in &step.inputs {
            let Some(&value) = self.values[input.index()].first() else { continue };
            operands.push(self.vectors(value, heads));
        }
        operands
    }

    /// A value per token as vectors.
    fn vectors(&mut self, value: ValueId, heads: u64) -> ValueId {
        let extents = &self.form.values[value].ty.shape.0;
        match extents[..] {
            [rows, columns] if heads > 1 && rows == self.extent.rows() => {
                self.form.reshaped(value, &[rows * heads, columns / heads])
            }
            _ => value,
        }
    }

    fn push(&mut self, id: StepId, op: &Op, inputs: Vec<ValueId>, outputs: Vec<Output>) {
        let Some(kernel_op) = kernel(op, self.extent) else { return };
        let kernel = Kernel { op: kernel_op, inputs, outputs };
        if id.index() < self.mode.forward {
            self.form.forward.push(kernel);
        } else {
            let phase = if self.mode.steps[id].again { Phase::R } else { phase(op) };
            self.form.backward.push((phase, kernel));
        }
    }

    fn plain(&mut self, id: StepId, step: &Step, op: &Op) -> Vec<ValueId> {
        let inputs = self.operands(step, op);
        let outputs = self.outputs(id, step, op);
        let values = outputs.iter().map(|output| output.value).collect();
        let heads = heads(op);
        let shaped = |output: Output| Output { value: self.vectors(output.value, heads), ..output };
        let outputs = outputs.into_iter().map(shaped).collect();
        self.push(id, op, inputs, outputs);
        values
    }

    /// The value to which a step adds: its own if no other step reads it.
    fn changed(&mut self, before: StepId) -> ValueId {
        let value = self.value(before);
        let step = &self.mode.steps[before];
        let made_here = matches!(step.make, Make::Op(_)) && before.index() >= self.mode.forward;
        let origin = self.form.origin(value);
        if made_here && self.readers[before.index()] == 1 && self.form.values[origin].kind == Kind::Computed {
            return value;
        }
        let ty = self.form.values[origin].ty.clone();
        let copy = self.form.add(step.name.clone(), ty, Kind::Computed);
        self.form.backward.push((Phase::B, copied(origin, copy)));
        copy
    }

    fn product_added(&mut self, id: StepId, step: &Step) -> Vec<ValueId> {
        let value = self.changed(step.inputs[0]);
        let inputs = step.inputs[1..].iter().map(|&input| self.value(input)).collect();
        self.push(id, &Op::Product(Added::Yes), inputs, vec![Output { value, accumulate: true }]);
        vec![value]
    }

    fn attention(&mut self, id: StepId, step: &Step, of: &Attention) -> Vec<ValueId> {
        let (q, k, v) = (self.value(step.inputs[0]), self.value(step.inputs[1]), self.value(step.inputs[2]));
        if id.index() < self.mode.forward {
            let parts = self.keys_and_values([k, v], of.operation);
            self.attentions.insert(of.operation, parts);
        }
        let mut inputs = vec![q];
        inputs.extend(self.earlier(of).into_iter().map(|prefix| prefix.value));
        inputs.extend(self.own(of, [k, v]));
        let outputs = self.outputs(id, step, &Op::Attention(*of));
        let values = outputs.iter().map(|output| output.value).collect();
        self.push(id, &Op::Attention(*of), inputs, outputs);
        values
    }

    /// The keys and values of earlier slices that an attention reads.
    fn earlier(&self, of: &Attention) -> Vec<Prefix> {
        let parts = self.attentions.get(&of.operation);
        parts.map(|parts| parts.earlier.iter().flatten().copied().collect()).unwrap_or_default()
    }

    /// The keys and values of the slice: the state, where they are one, which may be a copy.
    fn own(&self, of: &Attention, values: [ValueId; 2]) -> [ValueId; 2] {
        let Some(parts) = self.attentions.get(&of.operation) else { return values };
        let is_state = |value: ValueId| self.form.state.iter().any(|state| state.value == value);
        [0, 1].map(|side| if is_state(parts.own[side]) { parts.own[side] } else { values[side] })
    }

    /// The keys and values of an attention: those of earlier slices that some query sees, then those of the slice.
    fn keys_and_values(&mut self, own: [ValueId; 2], operation: usize) -> Parts {
        let Extent { lengths, slice, sequences, .. } = self.extent;
        let first = 2 * self.attentions.len();
        let mut parts = Parts { earlier: Vec::new(), own };
        for earlier in (0..slice).filter(|&earlier| self.extent.sees(slice, earlier)) {
            let pair = [0, 1].map(|of| {
                let super::Value { name, ty, .. } = self.form.values[self.form.origin(own[of])].clone();
                let columns = ty.shape.elements() / self.extent.rows();
                let ty = TensorType::new(ty.dtype, &[sequences * lengths[earlier], columns]);
                let (name, slice) = (format!("{name}.i{earlier}"), Slice::new(earlier));
                let gradient = self.form.add(format!("d{name}"), ty.clone(), Kind::PrefixGradient);
                let value = self.form.add(name, ty, Kind::Prefix);
                let prefix = Prefix { slice, state: first + of, value, gradient };
                self.form.prefix.push(prefix);
                prefix
            });
            parts.earlier.push(pair);
        }
        let has_gradient = |step: &Step| match &step.make {
            Make::Op(Op::AttentionGrad { of, .. }) => of.operation == operation,
            Make::Op(_) | Make::Keep | Make::Fetch | Make::Earlier | Make::Later => false,
        };
        let seen = self.extent.sees(slice + 1, slice) && self.mode.steps.values().any(has_gradient);
        if slice + 1 < lengths.len() {
            for value in &mut parts.own {
                *value = self.state(*value);
                let gradient = seen.then(|| {
                    let super::Value { name, ty, .. } = self.form.values[*value].clone();
                    self.form.add(format!("d{name}.later"), ty, Kind::StateGradient)
                });
                self.form.state.push(State { value: *value, gradient });
            }
        }
        parts
    }

    /// A value as a state: one that a kernel made and that is no other state, so that it has a place of its own.
    fn state(&mut self, value: ValueId) -> ValueId {
        let origin = self.form.origin(value);
        let is_made = self.form.values[origin].kind == Kind::Computed;
        if is_made && self.form.state.iter().all(|state| self.form.origin(state.value) != origin) {
            return value;
        }
        let super::Value { name, ty, .. } = self.form.values[origin].clone();
        let copy = self.form.add(format!("{name}.state"), ty, Kind::Computed);
        self.form.forward.push(copied(origin, copy));
        copy
    }

    fn attention_grad(&mut self, id: StepId, step: &Step, of: &Attention, added: u8) -> Vec<ValueId> {
        let earlier = self.earlier(of);
        let sliced = matches!(self.mode.steps[step.inputs[3]].make, Make::Earlier);
        let rest = if sliced { 5 } else { 3 };
        let mut inputs = vec![self.value(step.inputs[0])];
        inputs.extend(earlier.iter().map(|prefix| prefix.value));
        let own = self.own(of, [self.value(step.inputs[1]), self.value(step.inputs[2])]);
        inputs.extend(own);
        inputs.extend(step.inputs[rest..rest + 3].iter().map(|&input| self.value(input)));
        let types = results(&Op::AttentionGrad { of: *of, added }, &step.ty, self.extent);
        let names = self.names(id, step, types.len());
        let mut before = step.inputs[rest + 3..].iter();
        let mut own_outputs: Vec<Output> = Vec::new();
        for (part, (name, ty)) in names.into_iter().zip(types).enumerate() {
            let adds_to = (added >> part & 1 == 1).then(|| before.next().copied()).flatten();
            let value = match adds_to {
                Some(step) if self.mode.steps[step].make == Make::Later => {
                    let state = self.form.state.iter().find(|state| state.value == own[part - 1]);
                    state.and_then(|state| state.gradient)
                }
                Some(step) => Some(self.changed(step)),
                None => None,
            };
            own_outputs.push(match value {
                Some(value) => Output { value, accumulate: true },
                None => Output { value: self.form.add(name, ty, Kind::Computed), accumulate: false },
            });
        }
        let values = own_outputs.iter().map(|output| output.value).collect();
        let mut outputs = vec![own_outputs[0]];
        for prefix in &earlier {
            // The last slice that sees a state is the first to write its gradient.
            let accumulate = self.extent.sees(self.extent.slice + 1, prefix.slice.index());
            outputs.push(Output { value: prefix.gradient, accumulate });
        }
        outputs.extend(&own_outputs[1..]);
        self.push(id, &Op::AttentionGrad { of: *of, added }, inputs, outputs);
        values
    }
}

/// A kernel that copies a value.
fn copied(from: ValueId, to: ValueId) -> Kernel {
    Kernel {
        op: program::Op::Map { nodes: vec![Node::Input(0)], results: vec![0], seed: None },
        inputs: vec![from],
        outputs: vec![Output { value: to, accumulate: false }],
    }
}

/// The backward pass that a kernel belongs to: products, the gradients of biases and of tables are weight gradients.
fn phase(op: &Op) -> Phase {
    match op {
        Op::WeightProduct | Op::SumRows | Op::EmbeddingGrad => Phase::W,
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
        | Op::RmsNorm { .. }
        | Op::LayerNorm { .. }
        | Op::Rope(_)
        | Op::Attention(_)
        | Op::Softmax { .. }
        | Op::Map(_)
        | Op::CrossEntropy { .. }
        | Op::Product(_)
        | Op::PositionsGrad { .. }
        | Op::RmsNormGrad { .. }
        | Op::RmsNormGainGrad { .. }
        | Op::LayerNormGrad { .. }
        | Op::LayerNormParamGrad { .. }
        | Op::AttentionGrad { .. }
        | Op::SoftmaxGrad { .. }
        | Op::CrossEntropyGrad { .. } => Phase::B,
    }
}
