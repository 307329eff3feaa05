//! From drafts to the chain of pieces: what crosses each boundary, distinct layers, and one parameter per repetition.
//!
//! Invariants of what comes out: the inputs of a piece are the outputs of the piece before it, in order; every output
//! is made by an operation of its layer and no two are the same value; every operation reaches an output or the loss.

use super::super::{
    Layer, LayerId, Model, Op, Operation, Origin, Origins, Parameter, Piece, Slot, SlotId, Value, ValueId,
};
use super::{Builder, Draft, DraftKind};
use pipe_grammar::diagnostic::Code;
use pipec_program::ParameterId;
use pipec_program::id::{Id, IdVec};
use std::collections::{BTreeMap, BTreeSet};

/// The most values that may cross a boundary between pieces; published models have one or two.
const MAX_CROSSING: usize = 256;

/// The distinct layers so far.
#[derive(Default)]
struct Layers {
    layers: IdVec<LayerId, Layer>,
    origins: IdVec<LayerId, Vec<Origin>>,
}

/// A layer and the parameter that fills each of its slots.
struct Built {
    layer: LayerId,
    slots: Vec<usize>,
}

impl Builder<'_> {
    /// The finished model. To be called when nothing is wrong with it.
    pub(super) fn finish(mut self, name: &str, origins: &mut Origins) -> Option<Model> {
        let vocab = self.vocab?.0;
        let drafts: Vec<Draft> =
            std::mem::take(&mut self.drafts).into_iter().filter(|draft| !draft.is_empty()).collect();
        let crossings = match crossings(&drafts) {
            Ok(crossings) => crossings,
            Err(name) => {
                let origin =
                    self.names.get(&name).map_or(Origin::default(), |index| self.bounds[*index].origin);
                let error = self.error(Code::OutOfRange, "too many values are carried from piece to piece");
                self.report
                    .push(error.at(origin.span, format!("at most {MAX_CROSSING}; this is one of them")));
                return None;
            }
        };
        let mut layers = Layers::default();
        let mut model = Model {
            name: name.to_owned(),
            parameters: IdVec::new(),
            layers: IdVec::new(),
            pieces: Vec::new(),
            vocab,
        };
        let mut shared = BTreeMap::new();
        let mut numbers: BTreeMap<String, u64> = BTreeMap::new();
        // The shapes of names at the present boundary.
        let mut shapes: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        let names = names(&drafts);
        for ((draft, name), (incoming, outgoing)) in drafts.iter().zip(&names).zip(&crossings) {
            let incoming = self.sorted(incoming);
            let outgoing = self.sorted(outgoing);
            let (between, count, label) = match &draft.kind {
                DraftKind::Plain => (&outgoing, 1, None),
                DraftKind::Repeat { label, count } => (&incoming, *count, Some(label)),
            };
            let mut last = None;
            for repetition in 0..count {
                let outputs = if repetition + 1 == count { &outgoing } else { between };
                // Only the last of several repetitions can differ, in what goes on behind it.
                let fresh = repetition == 0 || outputs != between;
                if fresh {
                    let variant = if repetition > 0 { format!("{name}_last") } else { name.clone() };
                    last = Some(self.layer(draft, variant, [&incoming, outputs], &shapes, &mut layers)?);
                }
                let built = last.as_ref()?;
                let piece = match label {
                    None => name.clone(),
                    Some(label) => {
                        let number = numbers.entry(label.clone()).or_insert(0);
                        *number += 1;
                        format!("{label}.{}", *number - 1)
                    }
                };
                let parameters = self.parameters_of(&piece, &built.slots, &mut shared, &mut model.parameters);
                model.pieces.push(Piece { name: piece, layer: built.layer, parameters });
            }
            for (name, value) in &draft.bound {
                let value = &draft.values[*value];
                shapes.insert(name.clone(), (value.heads, value.width));
            }
        }
        model.layers = layers.layers;
        origins.operations = layers.origins;
        Some(model)
    }

    /// Names in the order in which the text binds them first.
    fn sorted(&self, names: &BTreeSet<String>) -> Vec<String> {
        let mut names: Vec<String> = names.iter().cloned().collect();
        names.sort_by_key(|name| self.order.get(name));
        names
    }

    /// The parameters of one piece, those that are its own made anew.
    fn parameters_of(
        &self,
        piece: &str,
        slots: &[usize],
        shared: &mut BTreeMap<usize, ParameterId>,
        table: &mut IdVec<ParameterId, Parameter>,
    ) -> IdVec<SlotId, ParameterId> {
        let mut add = |name: String, declared: &super::Declared| {
            table.push(Parameter { name, shape: declared.shape.clone(), init: declared.init })
        };
        let fill = slots.iter().map(|&slot| {
            let declared = &self.parameters[slot];
            if declared.local {
                return add(format!("{piece}.{}", declared.name), declared);
            }
            *shared.entry(slot).or_insert_with(|| add(declared.name.clone(), declared))
        });
        fill.collect()
    }

    /// The layer of a draft with these inputs and outputs: a known one if it computes the same.
    fn layer(
        &mut self,
        draft: &Draft,
        name: String,
        [incoming, outgoing]: [&[String]; 2],
        shapes: &BTreeMap<String, (u64, u64)>,
        layers: &mut Layers,
    ) -> Option<Built> {
        let mut values = draft.values.clone();
        let mut operations: Vec<(Operation, Origin)> =
            draft.operations.iter().cloned().zip(draft.origins.iter().copied()).collect();
        let inputs: BTreeMap<&String, ValueId> = incoming
            .iter()
            .map(|name| {
                let known = draft.incoming.get(name).copied();
                let value = known.unwrap_or_else(|| {
                    let (heads, width) = shapes.get(name).copied().unwrap_or((1, 1));
                    values.push(Value { name: name.clone(), heads, width })
                });
                (name, value)
            })
            .collect();
        // What operations of the layer made and no output is yet.
        let mut free: BTreeSet<ValueId> =
            operations.iter().filter_map(|(operation, _)| operation.output).collect();
        let mut outputs: Vec<ValueId> = Vec::new();
        for name in outgoing {
            let value = draft.bound.get(name).or_else(|| inputs.get(name)).copied()?;
            if free.remove(&value) {
                outputs.push(value);
                continue;
            }
            // What only passes through, or goes out under two names, goes out as a copy.
            let copy = values.push(Value { name: name.clone(), ..values[value].clone() });
            let operation = Operation { op: Op::Scale { x: value, factor: 1.0 }, output: Some(copy) };
            let origin = self.names.get(name).map_or(Origin::default(), |index| self.bounds[*index].origin);
            operations.push((operation, origin));
            outputs.push(copy);
        }
        let mut live: BTreeSet<ValueId> = outputs.iter().copied().collect();
        let mut kept: Vec<(Operation, Origin)> = Vec::new();
        for (operation, origin) in operations.into_iter().rev() {
            if operation.output.is_none_or(|output| live.contains(&output)) {
                live.extend(operation.op.operands());
                kept.push((operation, origin));
            }
        }
        kept.reverse();
        for name in incoming {
            if !inputs.get(name).is_some_and(|value| live.contains(value)) {
                let origin =
                    self.names.get(name).map_or(Origin::default(), |index| self.bounds[*index].origin);
                let error = self
                    .error(
                        Code::Unused,
                        format!("`{name}` is carried through the repeat but never reaches the loss"),
                    )
                    .at(origin.span, "")
                    .help("use it or leave it out");
                self.report.push(error);
                return None;
            }
        }
        let input_ids: Vec<ValueId> = incoming.iter().filter_map(|name| inputs.get(name).copied()).collect();
        let (layer, origins, slots) = self.renumber(draft, name, &values, input_ids, outputs, kept);
        let known = layers.layers.iter().find(|(_, known)| same(known, &layer)).map(|(id, _)| id);
        let id = known.unwrap_or_else(|| {
            layers.origins.push(origins);
            layers.layers.push(layer)
        });
        Some(Built { layer: id, slots })
    }

    /// Numbers values and slots in the order of their use, so that equal layers are equal in every id.
    fn renumber(
        &self,
        draft: &Draft,
        name: String,
        values: &IdVec<ValueId, Value>,
        inputs: Vec<ValueId>,
        outputs: Vec<ValueId>,
        operations: Vec<(Operation, Origin)>,
    ) -> (Layer, Vec<Origin>, Vec<usize>) {
        let mut layer = Layer {
            name,
            slots: IdVec::new(),
            values: IdVec::new(),
            inputs: Vec::new(),
            operations: Vec::new(),
            outputs: Vec::new(),
        };
        let mut new_values: BTreeMap<ValueId, ValueId> = BTreeMap::new();
        let mut new_slots: BTreeMap<SlotId, SlotId> = BTreeMap::new();
        let mut filled = Vec::new();
        let mut origins = Vec::new();
        for input in inputs {
            let id = layer.values.push(values[input].clone());
            new_values.insert(input, id);
            layer.inputs.push(id);
        }
        for (mut operation, origin) in operations {
            operation.op.rename(&mut |value| new_values.get(&value).copied().unwrap_or(value), &mut |slot| {
                *new_slots.entry(slot).or_insert_with(|| {
                    let declared = draft.slots[slot.index()];
                    filled.push(declared);
                    let declared = &self.parameters[declared];
                    layer.slots.push(Slot { name: declared.name.clone(), shape: declared.shape.clone() })
                })
            });
            if let Some(output) = operation.output {
                let id = layer.values.push(values[output].clone());
                new_values.insert(output, id);
                operation.output = Some(id);
            }
            layer.operations.push(operation);
            origins.push(origin);
        }
        layer.outputs = outputs.iter().filter_map(|output| new_values.get(output).copied()).collect();
        (layer, origins, filled)
    }
}

/// The names that come in and those that go out.
type Crossing = (BTreeSet<String>, BTreeSet<String>);

/// What crosses the borders of each draft; or one of them where they are too many.
fn crossings(drafts: &[Draft]) -> Result<Vec<Crossing>, String> {
    let mut needed: BTreeSet<String> = BTreeSet::new();
    let mut crossings = Vec::new();
    for draft in drafts.iter().rev() {
        let outgoing = needed;
        let passing = outgoing.iter().filter(|name| !draft.bound.contains_key(*name)).cloned();
        let incoming: BTreeSet<String> = draft.incoming.keys().cloned().chain(passing).collect();
        if incoming.len() > MAX_CROSSING {
            return Err(incoming.into_iter().next().unwrap_or_default());
        }
        needed = incoming.clone();
        crossings.push((incoming, outgoing));
    }
    crossings.reverse();
    Ok(crossings)
}

/// What the layer of each draft is called: `embedding` before the first repeat, `head` after the last, the label of a
/// repeat, `after_layer` between two repeats, and `model` where nothing repeats.
fn names(drafts: &[Draft]) -> Vec<String> {
    let repeats = |drafts: &[Draft]| {
        drafts.iter().rev().find_map(|draft| match &draft.kind {
            DraftKind::Repeat { label, .. } => Some(label.clone()),
            DraftKind::Plain => None,
        })
    };
    let name = |(position, draft): (usize, &Draft)| match &draft.kind {
        DraftKind::Repeat { label, .. } => label.clone(),
        DraftKind::Plain => match (repeats(&drafts[..position]), repeats(&drafts[position + 1..])) {
            (None, None) => "model".to_owned(),
            (None, Some(_)) => "embedding".to_owned(),
            (Some(_), None) => "head".to_owned(),
            (Some(label), Some(_)) => format!("after_{label}"),
        },
    };
    drafts.iter().enumerate().map(name).collect()
}

/// Whether two layers compute the same, whatever things are called.
fn same(a: &Layer, b: &Layer) -> bool {
    let shapes = |layer: &Layer| -> Vec<(u64, u64)> {
        layer.values.values().map(|value| (value.heads, value.width)).collect()
    };
    a.inputs == b.inputs
        && a.outputs == b.outputs
        && a.operations == b.operations
        && a.slots.values().map(|slot| &slot.shape).eq(b.slots.values().map(|slot| &slot.shape))
        && shapes(a) == shapes(b)
}
