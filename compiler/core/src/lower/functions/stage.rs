//! The forward and backward functions of a stage.
//!
//! The graphs of the pieces are laid one after the other; what goes out of a piece is what comes into the next. Every
//! value then has bytes in one region: what the backward pass reads lies in `saved`, what goes to another stage in its
//! message, the rest in the workspace. Kernels that may work in place do, where nothing reads their operand later.

use super::layout::{place_parameters, place_tensors};
use super::pass::{Pass, StorageId, Tensor};
use super::{Region, StageFunctions, StageParameter};
use crate::graph::{Graph, Graphs, Kind};
use crate::spec::{Model, Piece};
use pipec_program::{Bytes, Kernel, Node, Op, Output, ParameterId, TensorType, ValueId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The forward and the backward function of the consecutive `pieces` of a model, under the names given. The scalars
/// `loss_scale` and `seed` are there only if they are used. Takes time linear in the number of pieces.
pub fn stage_functions(
    model: &Model,
    graphs: &Graphs,
    pieces: Range<usize>,
    forward: &str,
    backward: &str,
) -> StageFunctions {
    let stage = Stage::new(model, graphs, pieces);
    StageFunctions {
        precision: stage.pieces.first().map_or(pipec_program::DType::F32, |piece| piece.graph.precision),
        weights: stage.weights,
        gradients: stage.gradients,
        moments: stage.moments,
        input: stage.input.iter().map(|(ty, _)| ty.clone()).collect(),
        output: stage.output.iter().map(|(ty, _)| ty.clone()).collect(),
        saved: stage.saved_end,
        forward: stage.forward().finish(forward),
        backward: stage.backward().finish(backward),
        parameters: stage.parameters,
    }
}

/// A piece of the stage.
struct Part<'a> {
    piece: &'a Piece,
    graph: &'a Graph,
    /// Where each input comes from.
    inputs: Vec<Home>,
    /// Random sites of the pieces of the model before it.
    sites: u64,
}

/// Where a value of the forward pass is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Home {
    /// In the stage before: a tensor of the input.
    Input(usize),
    /// By a kernel of a piece of this stage.
    Made(usize, ValueId),
}

struct Stage<'a> {
    pieces: Vec<Part<'a>>,
    parameters: Vec<StageParameter>,
    /// The position of each parameter in `parameters`.
    positions: BTreeMap<ParameterId, usize>,
    weights: Bytes,
    gradients: Bytes,
    moments: Bytes,
    /// The tensors of the input with their places.
    input: Vec<(TensorType, Bytes)>,
    /// The tensors of the output with their places.
    output: Vec<(TensorType, Bytes)>,
    /// Where each output comes from.
    outputs: Vec<Home>,
    /// The places of the values that the backward pass reads, in `saved`.
    saved: BTreeMap<Home, Bytes>,
    saved_end: Bytes,
}

impl<'a> Stage<'a> {
    fn new(model: &'a Model, graphs: &'a Graphs, range: Range<usize>) -> Self {
        let mut sites: u64 =
            model.pieces[..range.start].iter().map(|piece| graphs[piece.layer].random_sites).sum();
        let mut pieces: Vec<Part<'a>> = Vec::with_capacity(range.len());
        let mut outputs: Vec<Home> = Vec::new();
        let mut input: Vec<(TensorType, Bytes)> = Vec::new();
        for (position, piece) in model.pieces[range].iter().enumerate() {
            let graph = &graphs[piece.layer];
            let inputs = if position == 0 {
                input = placed(graph, &graph.inputs);
                (0..graph.inputs.len()).map(Home::Input).collect()
            } else {
                std::mem::take(&mut outputs)
            };
            let part = Part { piece, graph, inputs, sites };
            outputs = graph.outputs.iter().map(|&output| part.home(position, output)).collect();
            sites += graph.random_sites;
            pieces.push(part);
        }
        let output = pieces.last().map(|last| placed(last.graph, &last.graph.outputs)).unwrap_or_default();

        let mut stage = Self {
            pieces,
            parameters: Vec::new(),
            positions: BTreeMap::new(),
            weights: Bytes::ZERO,
            gradients: Bytes::ZERO,
            moments: Bytes::ZERO,
            input,
            output,
            outputs,
            saved: BTreeMap::new(),
            saved_end: Bytes::ZERO,
        };
        stage.place_parameters(model);
        stage.place_saved();
        stage
    }

    /// Parameters in the order of their first use, each once.
    fn place_parameters(&mut self, model: &Model) {
        let Some(first) = self.pieces.first() else { return };
        let precision = first.graph.precision;
        let mut parameters: Vec<(ParameterId, u64)> = Vec::new();
        for &parameter in self.pieces.iter().flat_map(|part| part.piece.parameters.values()) {
            self.positions.entry(parameter).or_insert_with(|| {
                parameters.push((parameter, model.parameters[parameter].shape.iter().product()));
                parameters.len() - 1
            });
        }
        let (places, elements) = place_parameters(parameters, precision);
        self.parameters = places;
        self.weights = precision.bytes() * elements;
        self.gradients = crate::graph::accumulator_type(precision).bytes() * elements;
        self.moments = self.gradients;
    }

    /// Places what kernels of this stage make and its backward pass reads, in the order in which it is made.
    fn place_saved(&mut self) {
        let mut read: BTreeSet<Home> = BTreeSet::new();
        for (position, part) in self.pieces.iter().enumerate() {
            for value in part.graph.backward.iter().flat_map(|(_, kernel)| &kernel.inputs) {
                let origin = part.graph.origin(*value);
                match part.graph.values[origin].kind {
                    Kind::Boundary | Kind::Computed => {
                        if !part.graph.output_gradients.contains(&origin) {
                            read.insert(part.home(position, origin));
                        }
                    }
                    Kind::Weight(_)
                    | Kind::WeightGradient(_)
                    | Kind::Tokens
                    | Kind::Targets
                    | Kind::Loss
                    | Kind::Reshaped(_) => {}
                }
            }
        }
        let mut kept: Vec<(Home, &TensorType)> = Vec::new();
        for (position, part) in self.pieces.iter().enumerate() {
            for output in part.graph.forward.iter().flat_map(|kernel| &kernel.outputs) {
                let origin = part.graph.origin(output.value);
                let home = Home::Made(position, origin);
                if read.contains(&home) {
                    kept.push((home, &part.graph.values[origin].ty));
                }
            }
        }
        let (places, end) = place_tensors(kept.iter().map(|(_, ty)| *ty));
        self.saved = kept.iter().zip(places).map(|((home, _), place)| (*home, place)).collect();
        self.saved_end = end;
    }

    fn parameter(&self, part: &Part<'_>, slot: crate::spec::SlotId) -> StageParameter {
        self.parameters[self.positions[&part.piece.parameters[slot]]]
    }

    fn forward(&self) -> Pass {
        let mut pass = self.pass(true);
        let mut made: BTreeMap<Home, StorageId> = BTreeMap::new();
        // An output that nothing else claims is written where it goes out.
        for (number, &home) in self.outputs.iter().enumerate() {
            if let Home::Made(..) = home
                && !self.saved.contains_key(&home)
            {
                let place = self.output[number].1;
                made.entry(home).or_insert_with(|| pass.fixed(Region::Output, place));
            }
        }
        for (&home, &place) in &self.saved {
            made.insert(home, pass.fixed(Region::Saved, place));
        }
        for (number, &(_, place)) in self.input.iter().enumerate() {
            made.insert(Home::Input(number), pass.fixed(Region::Input, place));
        }
        for (position, part) in self.pieces.iter().enumerate() {
            for kernel in &part.graph.forward {
                let operand = |pass: &mut Pass, value: ValueId| {
                    let storage = match self.fixed(pass, part, value) {
                        Some(storage) => storage,
                        None => {
                            let home = part.home(position, part.graph.origin(value));
                            *made.entry(home).or_insert_with(|| pass.temporary())
                        }
                    };
                    pass.tensor(storage, &part.graph.values[value].ty)
                };
                append(&mut pass, kernel, part.sites, operand);
            }
        }
        // What goes out and is needed here too, or only passes by, is copied.
        for (number, &home) in self.outputs.iter().enumerate() {
            let (ty, place) = &self.output[number];
            let from = pass.tensor(made[&home], ty);
            let to = pass.fixed(Region::Output, *place);
            if pass.place(made[&home]) != pass.place(to) {
                let to = pass.tensor(to, ty);
                pass.copy(from, to);
            }
        }
        pass
    }

    fn backward(&self) -> Pass {
        let mut pass = self.pass(false);
        let mut kept: BTreeMap<Home, StorageId> = BTreeMap::new();
        for (&home, &place) in &self.saved {
            kept.insert(home, pass.fixed(Region::Saved, place));
        }
        for (number, &(_, place)) in self.input.iter().enumerate() {
            kept.insert(Home::Input(number), pass.fixed(Region::Input, place));
        }
        // The gradients of what goes out of a piece.
        let mut incoming: Vec<StorageId> =
            self.output.iter().map(|&(_, place)| pass.fixed(Region::OutputGradient, place)).collect();
        for (position, part) in self.pieces.iter().enumerate().rev() {
            let graph = part.graph;
            let mut gradients: BTreeMap<ValueId, StorageId> =
                graph.output_gradients.iter().copied().zip(incoming).collect();
            for (_, kernel) in &graph.backward {
                let operand = |pass: &mut Pass, value: ValueId| {
                    let origin = graph.origin(value);
                    let storage = match self.fixed(pass, part, value) {
                        Some(storage) => storage,
                        None => match kept.get(&part.home(position, origin)) {
                            Some(&storage) => storage,
                            None => *gradients.entry(origin).or_insert_with(|| pass.temporary()),
                        },
                    };
                    pass.tensor(storage, &graph.values[value].ty)
                };
                append(&mut pass, kernel, part.sites, operand);
            }
            incoming =
                graph.input_gradients.iter().map(|gradient| gradients[&graph.origin(*gradient)]).collect();
        }
        // The gradients of the input are made where they go out; what stands elsewhere already is copied.
        for (&gradient, (ty, place)) in incoming.iter().zip(&self.input) {
            if !pass.fix(gradient, Region::InputGradient, *place) {
                let to = pass.fixed(Region::InputGradient, *place);
                let (from, to) = (pass.tensor(gradient, ty), pass.tensor(to, ty));
                pass.copy(from, to);
            }
        }
        pass
    }

    /// The bytes of a value that lies outside of what the passes make; none for what they do.
    fn fixed(&self, pass: &mut Pass, part: &Part<'_>, value: ValueId) -> Option<StorageId> {
        let (region, place) = match part.graph.values[part.graph.origin(value)].kind {
            Kind::Weight(slot) => (Region::Weights, self.parameter(part, slot).weight),
            Kind::WeightGradient(slot) => (Region::Gradients, self.parameter(part, slot).gradient),
            Kind::Tokens => (Region::Tokens, Bytes::ZERO),
            Kind::Targets => (Region::Targets, Bytes::ZERO),
            Kind::Loss => (Region::Loss, Bytes::ZERO),
            Kind::Boundary | Kind::Computed | Kind::Reshaped(_) => return None,
        };
        Some(pass.fixed(region, place))
    }

    fn pass(&self, saves: bool) -> Pass {
        let end = |places: &[(TensorType, Bytes)]| {
            places.last().map(|(ty, place)| *place + ty.bytes()).unwrap_or_default()
        };
        let sizes = BTreeMap::from([
            (Region::Weights, self.weights),
            (Region::Gradients, self.gradients),
            (Region::Input, end(&self.input)),
            (Region::InputGradient, end(&self.input)),
            (Region::Saved, self.saved_end),
            (Region::Output, end(&self.output)),
            (Region::OutputGradient, end(&self.output)),
        ]);
        Pass::new(sizes, saves)
    }
}

impl Part<'_> {
    /// Where a value is made that is no reshape.
    fn home(&self, position: usize, value: ValueId) -> Home {
        match self.graph.inputs.iter().position(|&input| input == value) {
            Some(number) => self.inputs[number],
            None => Home::Made(position, value),
        }
    }
}

/// The tensors of a message with their places.
fn placed(graph: &Graph, values: &[ValueId]) -> Vec<(TensorType, Bytes)> {
    let types: Vec<TensorType> = values.iter().map(|&value| graph.values[value].ty.clone()).collect();
    let (places, _) = place_tensors(&types);
    types.into_iter().zip(places).collect()
}

/// Appends a kernel of a graph; its random numbers are those of its piece.
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
