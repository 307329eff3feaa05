//! The forward and backward functions of a stage.
//!
//! The forms of the pieces are laid one after the other; what goes out of a piece is what comes into the next. Every
//! value then has bytes in one region: what a backward pass reads lies in `saved`, what a later pass over weights reads in
//! `held` or `pending`, what goes to the host in `stored` and then in `fetched`, what goes to another stage in its message, the rest in the workspace. Kernels that may work in
//! place do, where nothing reads their operand later.
//!
//! `saved` starts with the state of the slice, at places that follow from the lengths of slices alone, so that the
//! functions of later slices know them.

use super::layout::{place_parameters, place_tensors};
use super::pass::{Pass, StorageId, Tensor};
use super::{Backward, Region, SliceFunctions, StageFunction, StageFunctions, StageParameter, Wanted};
use crate::mode::{Form, Forms, Kind, Phase};
use crate::spec::{Model, Piece};
use pipec_program as program;
use pipec_program::id::IdVec;
use pipec_program::{Bytes, Kernel, Node, Op, Output, ParameterId, Slice, TensorType, ValueId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The functions of the consecutive `pieces` of a model for every slice, named after the stage. The scalars `loss_scale`
/// and `seed` are there only if they are used. Takes time linear in the number of pieces times the number of pairs of
/// slices that see each other.
pub fn stage_functions(
    model: &Model,
    forms: &Forms,
    pieces: Range<usize>,
    name: &str,
    wanted: Wanted,
) -> StageFunctions {
    let states: IdVec<Slice, States> =
        forms.slices.ids().map(|slice| States::new(forms, slice, pieces.clone())).collect();
    let stage = Stage::new(model, forms, pieces.clone());
    let mut slices: IdVec<Slice, SliceFunctions> = IdVec::new();
    for slice in forms.slices.ids() {
        let passes = Passes::new(&stage, model, forms, pieces.clone(), &states, slice, wanted);
        let suffix = if states.len() > 1 { format!("{name}_{slice}") } else { name.to_owned() };
        let functions = passes.functions(&suffix, wanted);
        // The last of the slices that see a state stays.
        for earlier in passes.prefix() {
            slices[earlier].seen_until = slice;
        }
        slices.push(functions);
    }
    StageFunctions {
        precision: stage.precision,
        gradient: stage.gradient,
        weights: stage.weights,
        gradients: stage.gradients,
        moments: stage.moments,
        parameters: stage.parameters,
        slices,
    }
}

/// The functions of consecutive pieces that run forward alone: nothing is kept for a backward pass. What goes out of the piece before each
/// of `boundaries`, counted in the stage, leaves as a checkpoint; what goes out of the last piece leaves for the stage after
/// if there `is_followed`.
pub fn forward_functions(
    model: &Model,
    forms: &Forms,
    pieces: Range<usize>,
    name: &str,
    boundaries: &[usize],
    is_followed: bool,
) -> StageFunctions {
    let states: IdVec<Slice, States> =
        forms.slices.ids().map(|slice| States::new(forms, slice, pieces.clone())).collect();
    let stage = Stage::new(model, forms, pieces.clone());
    let of_slice = |slice: Slice| {
        let passes = Passes::within(&stage, model, forms, pieces.clone(), &states, slice);
        let mut exits: Vec<Exit> = (0..)
            .zip(boundaries)
            .map(|(number, &boundary)| passes.exit(boundary, Region::Checkpoint(number)))
            .collect();
        if is_followed {
            exits.push(passes.exit(passes.pieces.len(), Region::Output));
        }
        let message = |values: &[(TensorType, Bytes)]| values.iter().map(|(ty, _)| ty.clone()).collect();
        SliceFunctions {
            input: message(&passes.input),
            output: if is_followed { message(&passes.output) } else { Vec::new() },
            state: Bytes::ZERO,
            seen_until: slice,
            forward: passes.forward(&exits).finish(&format!("forward_{name}")),
            backward: Backward::default(),
        }
    };
    let slices = forms.slices.ids().map(of_slice).collect();
    StageFunctions {
        precision: stage.precision,
        gradient: stage.gradient,
        weights: stage.weights,
        gradients: Bytes::ZERO,
        moments: Bytes::ZERO,
        parameters: stage.parameters,
        slices,
    }
}

/// What leaves a forward pass in a region: values with their types and places.
struct Exit {
    region: Region,
    values: Vec<(Home, TensorType, Bytes)>,
}

/// The parameters of a stage, which all slices share.
struct Stage {
    precision: program::DType,
    gradient: program::DType,
    parameters: Vec<StageParameter>,
    /// The position of each parameter in `parameters`.
    positions: BTreeMap<ParameterId, usize>,
    weights: Bytes,
    gradients: Bytes,
    moments: Bytes,
}

impl Stage {
    /// Parameters in the order of their first use, each once.
    fn new(model: &Model, forms: &Forms, pieces: Range<usize>) -> Self {
        let precision =
            pieces.clone().next().map_or(program::DType::F32, |piece| forms.first(piece).precision);
        let gradient =
            pieces.clone().next().map_or(program::DType::F32, |piece| forms.first(piece).gradients);
        let pieces = &model.pieces[pieces];
        let mut positions = BTreeMap::new();
        let mut parameters: Vec<(ParameterId, u64)> = Vec::new();
        for &parameter in pieces.iter().flat_map(|piece| piece.parameters.values()) {
            positions.entry(parameter).or_insert_with(|| {
                parameters.push((parameter, model.parameters[parameter].shape.iter().product()));
                parameters.len() - 1
            });
        }
        let (parameters, elements) = place_parameters(parameters, precision, gradient);
        let gradients = gradient.bytes() * elements;
        let moments = crate::graph::accumulator_type(precision).bytes() * elements;
        Self {
            precision,
            gradient,
            parameters,
            positions,
            weights: precision.bytes() * elements,
            gradients,
            moments,
        }
    }
}

/// Where the state of a slice lies: for each piece the places of its states, and the end of the last.
struct States {
    places: Vec<Vec<Bytes>>,
    end: Bytes,
}

impl States {
    fn new(forms: &Forms, slice: Slice, pieces: Range<usize>) -> Self {
        let of_piece = |piece: usize| {
            let form = forms.of(slice, piece);
            form.state.iter().map(|state| &form.values[form.origin(state.value)].ty)
        };
        let (places, end) = place_tensors(pieces.clone().flat_map(of_piece));
        let mut places = places.into_iter();
        let of_piece = |piece| places.by_ref().take(forms.of(slice, piece).state.len()).collect();
        Self { places: pieces.map(of_piece).collect(), end }
    }
}

/// A piece of the stage.
struct Part<'a> {
    piece: &'a Piece,
    form: &'a Form,
    /// Where each input comes from.
    inputs: Vec<Home>,
    /// Random sites of the pieces of the model before it.
    sites: u64,
}

/// Where a value is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Home {
    /// In the stage before: a tensor of the input.
    Input(usize),
    /// In the stage after: the gradient of a tensor of the output.
    OutputGradient(usize),
    /// By a kernel of a piece of this stage.
    Made(usize, ValueId),
}

/// The passes of a stage over one slice.
struct Passes<'a> {
    stage: &'a Stage,
    states: &'a IdVec<Slice, States>,
    slice: Slice,
    pieces: Vec<Part<'a>>,
    /// The tensors of the input with their places.
    input: Vec<(TensorType, Bytes)>,
    /// The tensors of the output with their places.
    output: Vec<(TensorType, Bytes)>,
    /// The places of the values that later passes read, in `saved` and `held`.
    saved: BTreeMap<Home, (Region, Bytes)>,
    saved_end: Bytes,
    held_end: Bytes,
    /// The places of the values that go to the host and come back.
    stored: BTreeMap<Home, Bytes>,
    stored_end: Bytes,
    /// The first piece whose values are computed again in a pass of their own; all later ones are such.
    apart: usize,
    /// The places of these values.
    recomputed: BTreeMap<Home, Bytes>,
    recomputed_end: Bytes,
    /// The places of the gradients that the pass over weights reads, in `pending`.
    pending: BTreeMap<Home, Bytes>,
    pending_end: Bytes,
}

impl<'a> Passes<'a> {
    fn new(
        stage: &'a Stage,
        model: &'a Model,
        forms: &'a Forms,
        range: Range<usize>,
        states: &'a IdVec<Slice, States>,
        slice: Slice,
        wanted: Wanted,
    ) -> Self {
        let mut passes = Self::within(stage, model, forms, range, states, slice);
        passes.place_kept(wanted.splits());
        if wanted.fused && !wanted.splits() {
            passes.apart = passes.pieces.len().saturating_sub(wanted.recompute);
            passes.place_recomputed();
        }
        passes
    }

    /// Passes that keep nothing.
    fn within(
        stage: &'a Stage,
        model: &'a Model,
        forms: &'a Forms,
        range: Range<usize>,
        states: &'a IdVec<Slice, States>,
        slice: Slice,
    ) -> Self {
        let mut sites: u64 = (0..range.start).map(|piece| forms.of(slice, piece).random_sites).sum();
        let mut pieces: Vec<Part<'a>> = Vec::with_capacity(range.len());
        let mut outputs: Vec<Home> = Vec::new();
        let mut input: Vec<(TensorType, Bytes)> = Vec::new();
        for (position, number) in range.enumerate() {
            let (piece, form) = (&model.pieces[number], forms.of(slice, number));
            let inputs = if position == 0 {
                input = placed(form, &form.inputs);
                (0..form.inputs.len()).map(Home::Input).collect()
            } else {
                std::mem::take(&mut outputs)
            };
            let part = Part { piece, form, inputs, sites };
            outputs = form.outputs.iter().map(|&output| part.home(position, form.origin(output))).collect();
            sites += form.random_sites;
            pieces.push(part);
        }
        let output = pieces.last().map(|last| placed(last.form, &last.form.outputs)).unwrap_or_default();
        Self {
            stage,
            states,
            slice,
            pieces,
            input,
            output,
            saved: BTreeMap::new(),
            saved_end: Bytes::ZERO,
            held_end: Bytes::ZERO,
            stored: BTreeMap::new(),
            stored_end: Bytes::ZERO,
            apart: usize::MAX,
            recomputed: BTreeMap::new(),
            recomputed_end: Bytes::ZERO,
            pending: BTreeMap::new(),
            pending_end: Bytes::ZERO,
        }
    }

    /// What goes out of the piece before a position.
    fn exit(&self, end: usize, region: Region) -> Exit {
        let last = end.checked_sub(1).and_then(|position| Some((position, self.pieces.get(position)?)));
        let values = last.into_iter().flat_map(|(position, part)| {
            let home = move |&output: &ValueId| part.home(position, part.form.origin(output));
            let places = placed(part.form, &part.form.outputs);
            part.form.outputs.iter().map(home).zip(places).map(|(home, (ty, place))| (home, ty, place))
        });
        Exit { region, values: values.collect() }
    }

    /// The earlier slices whose state this one reads, each once.
    fn prefix(&self) -> BTreeSet<Slice> {
        self.pieces.iter().flat_map(|part| &part.form.prefix).map(|prefix| prefix.slice).collect()
    }

    fn functions(&self, name: &str, wanted: Wanted) -> SliceFunctions {
        let splits = wanted.splits();
        let products = self.products();
        let mut backward = Backward::default();
        if !self.recomputed.is_empty() {
            let pass = self.backward(program::Pass::R, |position, phase, _| self.is_apart(position, phase));
            backward.recompute = Some(pass.finish(&format!("recompute_{name}")));
        }
        if wanted.fused {
            let takes = |position, phase, _| !self.is_apart(position, phase);
            let pass = self.backward(program::Pass::BW, takes);
            backward.fused = Some(pass.finish(&format!("backward_{name}")));
        }
        if splits {
            let pass = self.backward(program::Pass::B, |_, _, product| product.is_none());
            backward.inputs = Some(pass.finish(&format!("inputs_{name}")));
        }
        if wanted.weights {
            let pass = self.backward(program::Pass::W, |_, _, product| product.is_some());
            backward.weights = Some(pass.finish(&format!("weights_{name}")));
        }
        if let Some(parts) = wanted.parts {
            let count = products.last().map_or(0, |last| last + 1);
            let part_of = |product: usize| product * usize::from(parts) / count.max(usize::from(parts));
            let function = |part: u16| -> StageFunction {
                let takes = |_, _, product: Option<usize>| product.map(part_of) == Some(usize::from(part));
                self.backward(program::Pass::W, takes).finish(&format!("weights_{name}_w{part}"))
            };
            backward.parts = (0..parts).map(function).collect();
        }
        SliceFunctions {
            input: self.input.iter().map(|(ty, _)| ty.clone()).collect(),
            output: self.output.iter().map(|(ty, _)| ty.clone()).collect(),
            state: self.states[self.slice].end,
            seen_until: self.slice,
            forward: self
                .forward(&[self.exit(self.pieces.len(), Region::Output)])
                .finish(&format!("forward_{name}")),
            backward,
        }
    }

    /// The product of each kernel of the pass with respect to weights, in the order of the backward pass.
    fn products(&self) -> Vec<usize> {
        let mut products = Vec::new();
        let mut count = 0;
        for part in self.pieces.iter().rev() {
            products.extend(part.form.products().into_iter().map(|product| count + product));
            count = products.last().map_or(0, |last| last + 1);
        }
        products
    }

    /// Places what kernels of this stage make and later passes read, in the order in which it is made.
    fn place_kept(&mut self, splits: bool) {
        let mut read: BTreeSet<Home> = BTreeSet::new();
        let mut read_by_weights: BTreeSet<Home> = BTreeSet::new();
        let mut fetched: BTreeSet<Home> = BTreeSet::new();
        for (position, part) in self.pieces.iter().enumerate() {
            for (phase, kernel) in &part.form.backward {
                let by_weights = splits && *phase == Phase::W;
                for &value in &kernel.inputs {
                    let origin = part.form.origin(value);
                    match part.form.values[origin].kind {
                        Kind::Boundary | Kind::Computed | Kind::StateGradient => {
                            let home = self.home(position, origin);
                            read.insert(home);
                            if by_weights {
                                read_by_weights.insert(home);
                            }
                        }
                        Kind::Fetched(of) => {
                            fetched.insert(self.home(position, of));
                        }
                        Kind::Weight(_)
                        | Kind::WeightGradient(_)
                        | Kind::Tokens
                        | Kind::Targets
                        | Kind::Loss
                        | Kind::Prefix
                        | Kind::PrefixGradient
                        | Kind::Reshaped(_) => {}
                    }
                }
            }
        }
        let states = &self.states[self.slice];
        let mut saved: BTreeMap<Home, (Region, Bytes)> = BTreeMap::new();
        let mut saved_end = states.end;
        let mut held_end = Bytes::ZERO;
        for (position, (part, places)) in self.pieces.iter().zip(&states.places).enumerate() {
            for (state, &place) in part.form.state.iter().zip(places) {
                saved.insert(Home::Made(position, part.form.origin(state.value)), (Region::Saved, place));
            }
        }
        for (position, part) in self.pieces.iter().enumerate() {
            for output in part.form.forward.iter().flat_map(|kernel| &kernel.outputs) {
                let origin = part.form.origin(output.value);
                let home = Home::Made(position, origin);
                if !read.contains(&home) || saved.contains_key(&home) {
                    continue;
                }
                let (region, end) = match read_by_weights.contains(&home) {
                    true => (Region::Held, &mut held_end),
                    false => (Region::Saved, &mut saved_end),
                };
                let place = end.align_up(super::layout::ALIGNMENT);
                *end = place + part.form.values[origin].ty.bytes();
                saved.insert(home, (region, place));
            }
        }
        let mut pending = BTreeMap::new();
        let mut pending_end = Bytes::ZERO;
        for (position, part) in self.pieces.iter().enumerate().rev() {
            for (_, kernel) in &part.form.backward {
                for output in &kernel.outputs {
                    let origin = part.form.origin(output.value);
                    let home = Home::Made(position, origin);
                    if read_by_weights.contains(&home)
                        && !saved.contains_key(&home)
                        && !pending.contains_key(&home)
                    {
                        let place = pending_end.align_up(super::layout::ALIGNMENT);
                        pending_end = place + part.form.values[origin].ty.bytes();
                        pending.insert(home, place);
                    }
                }
            }
        }
        for home in fetched {
            let Some(ty) = self.type_of(home).cloned() else { continue };
            let place = self.stored_end.align_up(super::layout::ALIGNMENT);
            self.stored_end = place + ty.bytes();
            self.stored.insert(home, place);
        }
        (self.saved, self.saved_end, self.held_end) = (saved, saved_end, held_end);
        (self.pending, self.pending_end) = (pending, pending_end);
    }

    /// Whether kernels of a piece belong to the pass that computes again.
    fn is_apart(&self, position: usize, phase: Phase) -> bool {
        phase == Phase::R && position >= self.apart
    }

    /// Places what kernels of the pass that computes again make and others read.
    fn place_recomputed(&mut self) {
        let mut read: BTreeSet<Home> = BTreeSet::new();
        let mut made: BTreeMap<Home, Bytes> = BTreeMap::new();
        for (position, part) in self.pieces.iter().enumerate() {
            for (phase, kernel) in &part.form.backward {
                let home = |value: ValueId| self.home(position, part.form.origin(value));
                if self.is_apart(position, *phase) {
                    let outputs = kernel.outputs.iter().map(|output| output.value);
                    made.extend(
                        outputs
                            .map(|value| (home(value), part.form.values[part.form.origin(value)].ty.bytes())),
                    );
                } else {
                    read.extend(kernel.inputs.iter().map(|&value| home(value)));
                }
            }
        }
        for (home, bytes) in made.into_iter().filter(|(home, _)| read.contains(home)) {
            let place = self.recomputed_end.align_up(super::layout::ALIGNMENT);
            self.recomputed_end = place + bytes;
            self.recomputed.insert(home, place);
        }
    }

    /// The type of a value of the forward pass.
    fn type_of(&self, home: Home) -> Option<&TensorType> {
        match home {
            Home::Made(position, value) => Some(&self.pieces[position].form.values[value].ty),
            Home::Input(number) => self.input.get(number).map(|(ty, _)| ty),
            Home::OutputGradient(_) => None,
        }
    }

    /// Where a value is made that is no reshape.
    fn home(&self, position: usize, value: ValueId) -> Home {
        let part = &self.pieces[position];
        match part.form.output_gradients.iter().position(|&gradient| gradient == value) {
            // The gradient of what goes out is that of what comes into the next piece.
            Some(number) => match self.pieces.get(position + 1) {
                Some(next) => self.home(position + 1, next.form.origin(next.form.input_gradients[number])),
                None => Home::OutputGradient(number),
            },
            None => part.home(position, value),
        }
    }

    fn parameter(&self, part: &Part<'_>, slot: crate::spec::SlotId) -> StageParameter {
        self.stage.parameters[self.stage.positions[&part.piece.parameters[slot]]]
    }

    fn forward(&self, exits: &[Exit]) -> Pass {
        let mut pass = self.pass(program::Pass::F);
        let mut made: BTreeMap<Home, StorageId> = BTreeMap::new();
        // An output that nothing else claims is written where it goes out.
        for exit in exits {
            for &(home, _, place) in &exit.values {
                if let Home::Made(..) = home
                    && !self.saved.contains_key(&home)
                    && !self.stored.contains_key(&home)
                {
                    made.entry(home).or_insert_with(|| pass.fixed(exit.region, place));
                }
            }
        }
        for (&home, &place) in &self.stored {
            made.insert(home, pass.fixed(Region::Stored, place));
        }
        for (&home, &(region, place)) in &self.saved {
            made.insert(home, pass.fixed(region, place));
        }
        for (number, &(_, place)) in self.input.iter().enumerate() {
            made.insert(Home::Input(number), pass.fixed(Region::Input, place));
        }
        for (position, part) in self.pieces.iter().enumerate() {
            for kernel in &part.form.forward {
                let operand = |pass: &mut Pass, value: ValueId| {
                    let storage = match self.fixed(pass, position, value) {
                        Some(storage) => storage,
                        None => {
                            let home = part.home(position, part.form.origin(value));
                            *made.entry(home).or_insert_with(|| pass.temporary())
                        }
                    };
                    pass.tensor(storage, &part.form.values[value].ty)
                };
                append(&mut pass, kernel, part.sites, operand);
            }
        }
        // What goes to the host and lies elsewhere is copied.
        for (home, &place) in &self.stored {
            let to = pass.fixed(Region::Stored, place);
            if let Some(ty) = self.type_of(*home)
                && pass.place(made[home]) != pass.place(to)
            {
                let (from, to) = (pass.tensor(made[home], ty), pass.tensor(to, ty));
                pass.copy(from, to);
            }
        }
        // What goes out and is needed here too, or only passes by, is copied.
        for exit in exits {
            for (home, ty, place) in &exit.values {
                let from = pass.tensor(made[home], ty);
                let to = pass.fixed(exit.region, *place);
                if pass.place(made[home]) != pass.place(to) {
                    let to = pass.tensor(to, ty);
                    pass.copy(from, to);
                }
            }
        }
        pass
    }

    /// A backward pass with the kernels that it takes, by piece, phase and the product that a kernel is a part of.
    fn backward(&self, which: program::Pass, takes: impl Fn(usize, Phase, Option<usize>) -> bool) -> Pass {
        let mut pass = self.pass(which);
        let mut places: BTreeMap<Home, StorageId> = BTreeMap::new();
        for (&home, &(region, place)) in &self.saved {
            places.insert(home, pass.fixed(region, place));
        }
        for (number, &(_, place)) in self.input.iter().enumerate() {
            places.insert(Home::Input(number), pass.fixed(Region::Input, place));
        }
        for (number, &(_, place)) in self.output.iter().enumerate() {
            places.insert(Home::OutputGradient(number), pass.fixed(Region::OutputGradient, place));
        }
        for (&home, &place) in &self.recomputed {
            places.insert(home, pass.fixed(Region::Recomputed, place));
        }
        if which != program::Pass::BW {
            for (&home, &place) in &self.pending {
                places.insert(home, pass.fixed(Region::Pending, place));
            }
        }
        let mut products = self.products().into_iter();
        for (position, part) in self.pieces.iter().enumerate().rev() {
            for (phase, kernel) in &part.form.backward {
                let product = if *phase == Phase::W { products.next() } else { None };
                if !takes(position, *phase, product) {
                    continue;
                }
                let operand = |pass: &mut Pass, value: ValueId| {
                    let storage = match self.fixed(pass, position, value) {
                        Some(storage) => storage,
                        None => {
                            let home = self.home(position, part.form.origin(value));
                            *places.entry(home).or_insert_with(|| pass.temporary())
                        }
                    };
                    pass.tensor(storage, &part.form.values[value].ty)
                };
                append(&mut pass, kernel, part.sites, operand);
            }
        }
        if matches!(which, program::Pass::W | program::Pass::R) {
            return pass;
        }
        // The gradients of the input are made where they go out; what stands elsewhere already is copied.
        let first = self.pieces.first().map_or(&[][..], |part| &part.form.input_gradients);
        for (&gradient, (ty, place)) in first.iter().zip(&self.input) {
            let home = self.home(0, self.pieces[0].form.origin(gradient));
            let gradient = *places.entry(home).or_insert_with(|| pass.temporary());
            if !pass.fix(gradient, Region::InputGradient, *place) {
                let to = pass.fixed(Region::InputGradient, *place);
                let (from, to) = (pass.tensor(gradient, ty), pass.tensor(to, ty));
                pass.copy(from, to);
            }
        }
        pass
    }

    /// The bytes of a value that lies outside of what the passes make; none for what they do.
    fn fixed(&self, pass: &mut Pass, position: usize, value: ValueId) -> Option<StorageId> {
        let part = &self.pieces[position];
        let origin = part.form.origin(value);
        let (region, place) = match part.form.values[origin].kind {
            Kind::Weight(slot) => (Region::Weights, self.parameter(part, slot).weight),
            Kind::WeightGradient(slot) => (Region::Gradients, self.parameter(part, slot).gradient),
            Kind::Tokens => (Region::Tokens, Bytes::ZERO),
            Kind::Targets => (Region::Targets, Bytes::ZERO),
            Kind::Loss => (Region::Loss, Bytes::ZERO),
            Kind::Prefix | Kind::PrefixGradient => {
                let prefixes = part.form.prefix.iter();
                let prefix =
                    prefixes.copied().find(|prefix| prefix.value == origin || prefix.gradient == origin)?;
                let place = self.states[prefix.slice].places[position][prefix.state];
                match prefix.value == origin {
                    true => (Region::Prefix(prefix.slice), place),
                    false => (Region::PrefixGradient(prefix.slice), place),
                }
            }
            Kind::StateGradient => {
                let state = part.form.state.iter().position(|state| state.gradient == Some(origin))?;
                (Region::StateGradient, self.states[self.slice].places[position][state])
            }
            Kind::Fetched(of) => (Region::Fetched, *self.stored.get(&self.home(position, of))?),
            Kind::Boundary | Kind::Computed | Kind::Reshaped(_) => return None,
        };
        Some(pass.fixed(region, place))
    }

    fn pass(&self, which: program::Pass) -> Pass {
        let end = |places: &[(TensorType, Bytes)]| {
            places.last().map(|(ty, place)| *place + ty.bytes()).unwrap_or_default()
        };
        let mut sizes = BTreeMap::from([
            (Region::Weights, self.stage.weights),
            (Region::Gradients, self.stage.gradients),
            (Region::Input, end(&self.input)),
            (Region::InputGradient, end(&self.input)),
            (Region::Saved, self.saved_end),
            (Region::Held, self.held_end),
            (Region::Stored, self.stored_end),
            (Region::Fetched, self.stored_end),
            (Region::Recomputed, self.recomputed_end),
            (Region::Pending, self.pending_end),
            (Region::StateGradient, self.states[self.slice].end),
            (Region::Output, end(&self.output)),
            (Region::OutputGradient, end(&self.output)),
        ]);
        for slice in self.prefix() {
            sizes.insert(Region::Prefix(slice), self.states[slice].end);
            sizes.insert(Region::PrefixGradient(slice), self.states[slice].end);
        }
        Pass::new(sizes, which)
    }
}

impl Part<'_> {
    /// Where a value is made that is no reshape.
    fn home(&self, position: usize, value: ValueId) -> Home {
        match self.form.inputs.iter().position(|&input| input == value) {
            Some(number) => self.inputs[number],
            None => Home::Made(position, value),
        }
    }
}

/// The tensors of a message with their places.
fn placed(form: &Form, values: &[ValueId]) -> Vec<(TensorType, Bytes)> {
    let types: Vec<TensorType> = values.iter().map(|&value| form.values[value].ty.clone()).collect();
    let (places, _) = place_tensors(&types);
    types.into_iter().zip(places).collect()
}

/// Appends a kernel of a form; its random numbers are those of its piece.
fn append(
    pass: &mut Pass,
    kernel: &Kernel,
    sites: u64,
    mut operand: impl FnMut(&mut Pass, ValueId) -> Tensor,
) {
    let mut op = kernel.op.clone();
    if let Op::Map { nodes, .. } = &mut op {
        for node in nodes {
            if let Node::Random { salt } = node {
                *salt += sites;
            }
        }
    }
    let inputs = kernel.inputs.iter().map(|&value| operand(pass, value).0).collect();
    let outputs = kernel
        .outputs
        .iter()
        .map(|output| Output { value: operand(pass, output.value).0, accumulate: output.accumulate })
        .collect();
    pass.kernels.push(Kernel { op, inputs, outputs });
}
