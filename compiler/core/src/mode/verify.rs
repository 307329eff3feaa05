//! The internal check of a form. What it finds is a fault of the compiler, never of the user.

use super::{Form, Kind, Phase};
use pipec_program::id::{Id, IdVec};
use pipec_program::signature::{self, Accumulation};
use pipec_program::{Kernel, Node, Op, ValueId};

/// Every invariant of [`Form`] that does not hold, as a sentence; empty for a good form.
pub fn verify(form: &Form) -> Vec<String> {
    let mut check =
        Check { form, states: form.values.values().map(|_| State::default()).collect(), faults: Vec::new() };
    check.boundaries();
    for (id, value) in form.values.iter() {
        if let Kind::Reshaped(origin) = value.kind {
            let of = &form.values[origin];
            if matches!(of.kind, Kind::Reshaped(_)) {
                check.fault(format!("{id} reshapes {origin}, which is a reshape itself"));
            }
            if of.ty.dtype != value.ty.dtype || of.ty.shape.elements() != value.ty.shape.elements() {
                check.fault(format!("{id} of type {} reshapes {origin} of type {}", value.ty, of.ty));
            }
        }
        check.states[id].written = match value.kind {
            Kind::Boundary
            | Kind::Weight(_)
            | Kind::WeightGradient(_)
            | Kind::Tokens
            | Kind::Targets
            | Kind::Prefix
            | Kind::StateGradient => true,
            Kind::Fetched(of) => {
                check.fetched(id, of);
                true
            }
            Kind::PrefixGradient => {
                let waits = |(_, kernel): &(Phase, Kernel)| {
                    kernel.outputs.iter().all(|output| output.value != id || output.accumulate)
                };
                form.backward.iter().all(waits)
            }
            Kind::Loss | Kind::Computed | Kind::Reshaped(_) => false,
        };
    }
    for kernel in &form.forward {
        check.kernel(Pass::Forward, kernel);
    }
    for (id, value) in form.values.iter() {
        if value.kind == Kind::Loss && !check.states[id].written {
            check.fault(format!("{id}, the loss, is never written"));
        }
    }
    for &output in &form.outputs {
        if !check.states[form.origin(output)].written {
            check.fault(format!("{output} goes out and is never written"));
        }
    }
    for (phase, kernel) in &form.backward {
        check.kernel(Pass::Backward(*phase), kernel);
    }
    for &gradient in &form.input_gradients {
        let state = check.states[form.origin(gradient)];
        if !state.written || state.by_weights {
            check.fault(format!("{gradient} goes out and is not written by the B pass"));
        }
    }
    check.faults
}

#[derive(Clone, Copy, PartialEq)]
enum Pass {
    Forward,
    Backward(Phase),
}

/// What the kernels so far have done with a value.
#[derive(Clone, Copy, Default)]
struct State {
    written: bool,
    read: bool,
    /// Written in the forward pass.
    forward: bool,
    /// Written by a weight kernel.
    by_weights: bool,
}

struct Check<'a> {
    form: &'a Form,
    states: IdVec<ValueId, State>,
    faults: Vec<String>,
}

impl Check<'_> {
    fn fault(&mut self, fault: String) {
        self.faults.push(format!("form {}: {fault}", self.form.name));
    }

    /// What comes back is a value that the forward pass has.
    fn fetched(&mut self, id: ValueId, of: ValueId) {
        let forward = self.form.forward.iter().flat_map(|kernel| &kernel.outputs);
        let is_made = forward.clone().any(|output| self.form.origin(output.value) == of);
        if !is_made && !self.form.inputs.contains(&of) {
            self.fault(format!("{id} fetches {of}, which the forward pass does not have"));
        }
        if self.form.values[of].ty != self.form.values[id].ty {
            self.fault(format!("{id} fetches {of} of another type"));
        }
    }

    fn boundaries(&mut self) {
        let form = self.form;
        let pairs = [
            (&form.outputs, &form.output_gradients, "output"),
            (&form.inputs, &form.input_gradients, "input"),
        ];
        for (values, gradients, what) in pairs {
            if values.len() != gradients.len() {
                let (values, gradients) = (values.len(), gradients.len());
                self.fault(format!("{values} {what} values have {gradients} gradients"));
            }
            for (&value, &gradient) in values.iter().zip(gradients) {
                let (a, b) = (&form.values[value].ty, &form.values[gradient].ty);
                if a != b {
                    self.fault(format!("{what} {value} of type {a} has a gradient {gradient} of type {b}"));
                }
            }
        }
        for &input in form.inputs.iter().chain(&form.output_gradients) {
            if form.values[input].kind != Kind::Boundary {
                self.fault(format!("{input} comes in but is no boundary"));
            }
        }
    }

    fn kernel(&mut self, pass: Pass, kernel: &Kernel) {
        let name = kernel.op.name();
        for &input in &kernel.inputs {
            if input.index() >= self.form.values.len() {
                self.fault(format!("{name} reads {input}, which does not exist"));
                continue;
            }
            let origin = self.form.origin(input);
            let state = self.states[origin];
            if !state.written {
                self.fault(format!("{name} reads {input} before it is written"));
            }
            if state.by_weights {
                self.fault(format!("{name} reads {input}, which a weight kernel writes"));
            }
            let forbidden = match self.form.values[origin].kind {
                Kind::WeightGradient(_) | Kind::Loss | Kind::PrefixGradient => true,
                Kind::Boundary => pass == Pass::Forward && self.form.output_gradients.contains(&origin),
                Kind::StateGradient | Kind::Fetched(_) => pass == Pass::Forward,
                Kind::Prefix
                | Kind::Weight(_)
                | Kind::Tokens
                | Kind::Targets
                | Kind::Computed
                | Kind::Reshaped(_) => false,
            };
            if forbidden {
                self.fault(format!("{name} may not read {input}"));
            }
            self.states[origin].read = true;
        }
        for (position, output) in kernel.outputs.iter().enumerate() {
            let value = output.value;
            if value.index() >= self.form.values.len() {
                self.fault(format!("{name} writes {value}, which does not exist"));
                continue;
            }
            let origin = self.form.origin(value);
            let kind = self.form.values[origin].kind;
            let state = self.states[origin];
            let again = |other: &pipec_program::Output| self.form.origin(other.value) == origin;
            if kernel.outputs[..position].iter().any(again) && kind == Kind::Computed {
                self.fault(format!("{name} writes {value} twice"));
            }
            match kind {
                Kind::Computed | Kind::Loss => {
                    if state.written && !output.accumulate {
                        self.fault(format!("{name} writes {value}, which is written already"));
                    }
                    if !state.written && output.accumulate {
                        self.fault(format!("{name} adds to {value} before it is written"));
                    }
                    if state.read {
                        self.fault(format!("{name} changes {value} after it was read"));
                    }
                    if state.forward && pass != Pass::Forward {
                        self.fault(format!(
                            "{name} of the backward pass changes {value} of the forward pass"
                        ));
                    }
                }
                Kind::StateGradient => {
                    if pass != Pass::Backward(Phase::B) || !output.accumulate || state.read {
                        self.fault(format!("{name} changes {value}, which B adds to before it reads it"));
                    }
                }
                Kind::PrefixGradient => {
                    if pass != Pass::Backward(Phase::B) || state.written != output.accumulate {
                        self.fault(format!("{name} writes {value}, which B writes or adds to"));
                    }
                }
                Kind::WeightGradient(_) => {
                    if pass == Pass::Forward || !output.accumulate {
                        self.fault(format!("{name} writes {value}, which backward kernels add to"));
                    }
                }
                Kind::Boundary
                | Kind::Weight(_)
                | Kind::Tokens
                | Kind::Targets
                | Kind::Prefix
                | Kind::Fetched(_)
                | Kind::Reshaped(_) => {
                    self.fault(format!("{name} may not write {value}"));
                }
            }
            if pass == Pass::Backward(Phase::W) && !matches!(kind, Kind::WeightGradient(_)) {
                self.states[origin].by_weights = true;
            }
            self.states[origin].written = true;
            self.states[origin].forward |= pass == Pass::Forward;
        }
        self.types(kernel);
        if let Op::Map { nodes, .. } = &kernel.op {
            for node in nodes {
                match node {
                    Node::Random { salt } if *salt >= self.form.random_sites => {
                        self.fault(format!("{name} draws at site {salt} of {}", self.form.random_sites));
                    }
                    Node::Random { .. }
                    | Node::Input(_)
                    | Node::Constant(_)
                    | Node::Unary(..)
                    | Node::Binary(..) => {}
                }
            }
        }
    }

    /// The signature of the op.
    fn types(&mut self, kernel: &Kernel) {
        let form = self.form;
        let ty = |value: ValueId| form.values.get(value).map(|value| &value.ty);
        let inputs: Option<Vec<_>> = kernel.inputs.iter().map(|&input| ty(input)).collect();
        let outputs: Option<Vec<_>> = kernel.outputs.iter().map(|output| ty(output.value)).collect();
        let (Some(inputs), Some(outputs)) = (inputs, outputs) else { return };
        let name = kernel.op.name();
        if let Err(fault) = signature::check(&kernel.op, &inputs, &outputs) {
            self.fault(format!("{name}: {fault}"));
        }
        let added = kernel.outputs.iter().filter(|output| output.accumulate).count();
        let wrong = match signature::accumulation(&kernel.op) {
            Accumulation::Never => added > 0,
            Accumulation::Allowed => false,
            Accumulation::Always => added < kernel.outputs.len(),
        };
        if wrong {
            self.fault(format!("{name} adds to {added} of its {} results", kernel.outputs.len()));
        }
    }
}
