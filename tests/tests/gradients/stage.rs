//! A stage on the reference device, each of its regions an arena.

use pipec_compiler::lower::functions::{
    Region, SliceFunctions, StageFunction, StageFunctions, Wanted, stage_functions,
};
use pipec_compiler::mode::{Form, Forms, ModeId, Variant, VariantId};
use pipec_compiler::spec::{LayerId, Model};
use pipec_program::id::{Id, IdVec};
use pipec_program::{Bytes, ParameterId, Scalar, Slice, TensorType};
use pipec_runtime::{Arena, Compiled, Device, ReferenceDevice, ScalarValue, splitmix};
use std::collections::BTreeMap;
use std::ops::Range;

/// The scale of the loss.
const LOSS_SCALE: f64 = 0.5;

pub(crate) struct Stage {
    device: ReferenceDevice,
    functions: StageFunctions,
    passes: SliceFunctions,
    forward: Compiled,
    backward: Compiled,
    arenas: BTreeMap<Region, Arena>,
}

/// Numbers that a gradient belongs to: a tensor of f64 in a region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    region: Region,
    offset: Bytes,
}

impl Stage {
    /// A stage of layers of one form each.
    pub(crate) fn new(model: &Model, forms: &IdVec<LayerId, Form>, pieces: Range<usize>) -> Self {
        let wanted = Wanted { fused: true, ..Wanted::default() };
        let variants = forms.ids().map(|layer| Variant { layer, mode: ModeId(0) });
        let forms = Forms {
            variants: variants.collect(),
            slices: vec![forms.values().cloned().collect()].into(),
            pieces: model.pieces.iter().map(|piece| VariantId::new(piece.layer.index())).collect(),
        };
        let functions = stage_functions(model, &forms, pieces, "stage", wanted);
        let passes = functions.slices[Slice(0)].clone();
        let mut device = ReferenceDevice::new();
        let forward = device.compile(&passes.forward.function).expect("the reference device runs every op");
        let backward = device.compile(&fused(&passes).function).expect("the reference device runs every op");
        // The workspace serves both functions, whose needs differ.
        let mut sizes: BTreeMap<Region, Bytes> = BTreeMap::new();
        for function in [&passes.forward, fused(&passes)] {
            for (id, param) in function.function.params.iter() {
                let size = sizes.entry(function.regions[id]).or_default();
                *size = param.bytes.max(*size);
            }
        }
        let arena = |(region, bytes)| (region, Arena::new(bytes).expect("memory"));
        let arenas = sizes.into_iter().map(arena).collect();
        let mut stage = Self { device, functions, passes, forward, backward, arenas };
        let count = stage.arenas.get(&Region::Tokens).or(stage.arenas.get(&Region::Targets));
        let count = count.map_or(0, |arena| arena.bytes().0 / 4);
        for region in [Region::Tokens, Region::Targets] {
            let tokens: Vec<u8> =
                (0..count).flat_map(|token| (token * 3 % 5).to_le_bytes()[..4].to_vec()).collect();
            stage.store(region, Bytes::ZERO, &tokens);
        }
        stage
    }

    fn store(&mut self, region: Region, offset: Bytes, bytes: &[u8]) {
        if let Some(arena) = self.arenas.get(&region) {
            arena.region(offset, Bytes(bytes.len() as u64)).expect("inside").store(bytes);
        }
    }

    fn load(&self, region: Region, offset: Bytes, count: u64) -> Vec<f64> {
        let mut bytes = vec![0; count as usize * 8];
        if let Some(arena) = self.arenas.get(&region) {
            arena.region(offset, Bytes(count * 8)).expect("inside").load(&mut bytes);
        }
        bytes.chunks_exact(8).map(|word| f64::from_le_bytes(word.try_into().expect("8 bytes"))).collect()
    }

    fn store_floats(&mut self, region: Region, offset: Bytes, values: &[f64]) {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.store(region, offset, &bytes);
    }

    /// Fills weights, by parameter, and messages with numbers from counters.
    pub(crate) fn randomize(&mut self, seed: u64) {
        for place in self.functions.parameters.clone() {
            let values = numbers(seed + place.parameter.index() as u64, place.elements);
            self.store_floats(Region::Weights, place.weight, &values);
        }
        let input = numbers(seed + 1000, elements(&self.passes.input));
        self.set_input(&input);
        let gradient = numbers(seed + 2000, elements(&self.passes.output));
        self.set_output_gradient(&gradient);
    }

    pub(crate) fn set_input(&mut self, values: &[f64]) {
        let types = self.passes.input.clone();
        self.set_message(Region::Input, &types, values);
    }

    pub(crate) fn set_output_gradient(&mut self, values: &[f64]) {
        let types = self.passes.output.clone();
        self.set_message(Region::OutputGradient, &types, values);
    }

    fn set_message(&mut self, region: Region, types: &[TensorType], values: &[f64]) {
        let mut rest = values;
        for (place, count) in message(types) {
            let (now, later) = rest.split_at(count as usize);
            self.store_floats(region, place, now);
            rest = later;
        }
    }

    fn message(&self, region: Region, types: &[TensorType]) -> Vec<f64> {
        message(types).into_iter().flat_map(|(place, count)| self.load(region, place, count)).collect()
    }

    pub(crate) fn output(&self) -> Vec<f64> {
        self.message(Region::Output, &self.passes.output)
    }

    pub(crate) fn input_gradient(&self) -> Vec<f64> {
        self.message(Region::InputGradient, &self.passes.input)
    }

    pub(crate) fn loss(&self) -> f64 {
        self.load(Region::Loss, Bytes::ZERO, 1)[0]
    }

    /// What the gradients are the gradients of, and the sum of its absolute terms.
    pub(crate) fn objective(&self) -> (f64, f64) {
        let weights = self.message(Region::OutputGradient, &self.passes.output);
        let terms = self.output().into_iter().zip(weights).map(|(output, weight)| output * weight);
        let terms = terms.chain([self.loss() * LOSS_SCALE]);
        terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()))
    }

    pub(crate) fn forward(&mut self) {
        run(&mut self.device, self.forward, &self.passes.forward, &self.arenas);
    }

    /// Runs the backward pass on gradients of zero. What was saved is used up.
    pub(crate) fn backward(&mut self) {
        if let Some(gradients) = self.arenas.get(&Region::Gradients) {
            gradients.whole().set(0);
        }
        if let Some(workspace) = self.arenas.get(&Region::Workspace) {
            // Not a number anywhere: nothing may be read that was not written.
            workspace.whole().set(0xff);
        }
        run(&mut self.device, self.backward, fused(&self.passes), &self.arenas);
    }

    pub(crate) fn parameter_gradients(&self) -> Vec<(ParameterId, Vec<f64>)> {
        let places = self.functions.parameters.iter();
        places
            .map(|place| (place.parameter, self.load(Region::Gradients, place.gradient, place.elements)))
            .collect()
    }

    /// The gradients of all parameters and inputs, each with the place of what it belongs to.
    pub(crate) fn gradients(&self) -> Vec<(Place, Vec<f64>)> {
        let parameters = self.functions.parameters.iter().map(|place| {
            let values = self.load(Region::Gradients, place.gradient, place.elements);
            (Place { region: Region::Weights, offset: place.weight }, values)
        });
        let inputs = message(&self.passes.input).into_iter().map(|(offset, count)| {
            (Place { region: Region::Input, offset }, self.load(Region::InputGradient, offset, count))
        });
        parameters.chain(inputs).collect()
    }

    pub(crate) fn get(&self, place: Place, index: usize) -> f64 {
        self.load(place.region, place.offset + Bytes(8 * index as u64), 1)[0]
    }

    pub(crate) fn set(&mut self, place: Place, index: usize, value: f64) {
        self.store_floats(place.region, place.offset + Bytes(8 * index as u64), &[value]);
    }
}

fn fused(passes: &SliceFunctions) -> &StageFunction {
    passes.backward.fused.as_ref().expect("it was asked for")
}

fn run(
    device: &mut ReferenceDevice,
    compiled: Compiled,
    function: &StageFunction,
    arenas: &BTreeMap<Region, Arena>,
) {
    let regions: Vec<_> = function
        .function
        .params
        .iter()
        .map(|(id, param)| {
            arenas[&function.regions[id]].region(Bytes::ZERO, param.bytes).expect("made for the largest")
        })
        .collect();
    let scalar = |scalar: &Scalar| match &scalar.name[..] {
        "loss_scale" => ScalarValue::Real(LOSS_SCALE),
        "seed" => ScalarValue::Integer(99),
        other => panic!("no scalar {other}"),
    };
    let scalars: Vec<_> = function.function.scalars.values().map(scalar).collect();
    device.run(compiled, &regions, &scalars).expect("the tokens are in range");
}

/// The places and element counts of the tensors of a message.
fn message(types: &[TensorType]) -> Vec<(Bytes, u64)> {
    let mut end = Bytes::ZERO;
    types
        .iter()
        .map(|ty| {
            let place = end.align_up(64);
            end = place + ty.bytes();
            (place, ty.shape.elements())
        })
        .collect()
}

fn elements(types: &[TensorType]) -> u64 {
    types.iter().map(|ty| ty.shape.elements()).sum()
}

/// Numbers in [-1, 1) from a counter, none near 0 where a function has a kink.
fn numbers(seed: u64, count: u64) -> Vec<f64> {
    (0..count)
        .map(|index| {
            let number = (splitmix::at(seed, index) >> 40) as f64 / (1u64 << 23) as f64 - 1.0;
            number + 0.01_f64.copysign(number)
        })
        .collect()
}
