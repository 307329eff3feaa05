//! The passes of a whole model over slices, called by hand on the reference device, in any order of backward passes.

use super::gradients::Gradients;
use pipec_compiler::lower::functions::{
    Region, SliceFunctions, StageFunction, StageFunctions, Wanted, stage_functions,
};
use pipec_compiler::rewrite::{Rates, fastest};
use pipec_compiler::spec::Spec;
use pipec_program::id::Id;
use pipec_program::{Bytes, DType, Parameter, Program, Slice, TensorType};
use pipec_runtime::data::Batches;
use pipec_runtime::state::initial_values;
use pipec_runtime::{Arena, Device, ReferenceDevice, ScalarValue};
use std::collections::BTreeMap;

/// The backward pass of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// In one.
    Fused,
    /// With respect to inputs, then to weights.
    Split,
}

/// A model on one stage with the bytes of all that its passes name, for one micro-batch in f64.
pub(crate) struct Model {
    device: ReferenceDevice,
    functions: StageFunctions,
    arenas: BTreeMap<(Region, Slice), Arena>,
    names: Vec<String>,
    loss_scale: f64,
}

impl Model {
    /// The model of a spec whose sequences are cut into slices of `lengths`, with the weights and the first micro-batch of
    /// a program of the same model and data.
    pub(crate) fn new(spec: &Spec, program: &Program, lengths: &[u64]) -> Self {
        assert_eq!(spec.train.precision, DType::F64);
        let forms =
            fastest(&spec.model, &spec.train, lengths, Rates::of(spec)).expect("every layer can be sliced");
        let wanted = Wanted { fused: true, weights: true, parts: None, recompute: 0 };
        let functions = stage_functions(&spec.model, &forms, 0..spec.model.pieces.len(), "model", wanted);
        let mut sizes: BTreeMap<(Region, Slice), Bytes> = BTreeMap::new();
        for (slice, passes) in functions.slices.iter() {
            for function in passes.all() {
                for (id, param) in function.function.params.iter() {
                    let size = sizes.entry(place(function.regions[id], slice)).or_default();
                    *size = param.bytes.max(*size);
                }
            }
        }
        let arena = |(key, bytes)| (key, Arena::new(bytes).expect("memory"));
        let arenas = sizes.into_iter().map(arena).collect();
        let names = spec.model.parameters.values().map(|parameter| parameter.name.clone()).collect();
        let mut model = Self { device: ReferenceDevice::new(), functions, arenas, names, loss_scale: 0.0 };
        model.fill(spec, program, lengths);
        model
    }

    fn fill(&mut self, spec: &Spec, program: &Program, lengths: &[u64]) {
        for place in self.functions.parameters.clone() {
            let parameter = &spec.model.parameters[place.parameter];
            let ty = TensorType::new(DType::F64, &parameter.shape);
            let name = parameter.name.clone();
            let described = Parameter { name, ty, init: parameter.init, copies: Vec::new() };
            let values = initial_values(spec.train.seed, place.parameter, &described);
            let bytes: Vec<u8> = values.flat_map(|value| f64::from(value).to_le_bytes()).collect();
            self.store(Region::Weights, Slice(0), place.weight, &bytes);
        }
        let fed = Batches::open(program, &pipec_tests::root()).unwrap().step(0).unwrap();
        let (sequence, count) = (spec.train.seq as usize, (spec.train.micro_batch * spec.train.seq) as usize);
        self.loss_scale = 1.0 / fed.targets.len() as f64;
        let mut first = 0;
        for (slice, &length) in lengths.iter().enumerate() {
            let range = first..first + length as usize;
            first = range.end;
            for (region, tokens) in [(Region::Tokens, &fed.tokens), (Region::Targets, &fed.targets)] {
                let rows = tokens[..count].chunks(sequence).flat_map(|row| &row[range.clone()]);
                let bytes: Vec<u8> = rows.flat_map(|token| token.to_le_bytes()).collect();
                self.store(region, Slice::new(slice), Bytes::ZERO, &bytes);
            }
        }
    }

    fn store(&mut self, region: Region, slice: Slice, offset: Bytes, bytes: &[u8]) {
        let arena = &self.arenas[&place(region, slice)];
        arena.region(offset, Bytes(bytes.len() as u64)).expect("inside").store(bytes);
    }

    /// The gradients of the micro-batch: forward passes over ascending slices, then backward passes in an order.
    pub(crate) fn gradients(&mut self, backward: impl Iterator<Item = usize>, form: Form) -> Gradients {
        for ((region, _), arena) in &self.arenas {
            match region {
                Region::Gradients | Region::StateGradient => arena.whole().set(0),
                // Not a number anywhere: nothing may be read that was not written.
                Region::Workspace | Region::Saved | Region::Held | Region::Pending => arena.whole().set(0xff),
                _ => {}
            }
        }
        let slices: Vec<(Slice, SliceFunctions)> =
            self.functions.slices.iter().map(|(slice, passes)| (slice, passes.clone())).collect();
        for (slice, passes) in &slices {
            self.run(&passes.forward, *slice);
        }
        for slice in backward {
            let (slice, passes) = &slices[slice];
            let of = &passes.backward;
            let calls = match form {
                Form::Fused => vec![&of.fused],
                Form::Split => vec![&of.inputs, &of.weights],
            };
            for function in calls {
                self.run(function.as_ref().expect("it was asked for"), *slice);
            }
        }
        let mut parameters = self.functions.parameters.clone();
        parameters.sort_by_key(|place| place.parameter);
        let of = |place: &pipec_compiler::lower::functions::StageParameter| {
            let mut bytes = vec![0; place.elements as usize * 8];
            let arena = &self.arenas[&(Region::Gradients, Slice(0))];
            arena.region(place.gradient, Bytes(bytes.len() as u64)).expect("inside").load(&mut bytes);
            let words =
                bytes.chunks_exact(8).map(|word| f64::from_le_bytes(word.try_into().expect("8 bytes")));
            (self.names[place.parameter.index()].clone(), words.collect())
        };
        Gradients(parameters.iter().map(of).collect())
    }

    fn run(&mut self, function: &StageFunction, slice: Slice) {
        let compiled = self.device.compile(&function.function).expect("the reference device runs every op");
        let params = function.function.params.iter();
        let regions: Vec<_> = params
            .map(|(id, param)| {
                let arena = &self.arenas[&place(function.regions[id], slice)];
                arena.region(Bytes::ZERO, param.bytes).expect("made for the largest")
            })
            .collect();
        let scalars = function.function.scalars.values().map(|scalar| match &scalar.name[..] {
            "loss_scale" => ScalarValue::Real(self.loss_scale),
            other => panic!("no scalar {other}"),
        });
        let scalars: Vec<_> = scalars.collect();
        self.device.run(compiled, &regions, &scalars).expect("the tokens are in range");
    }
}

/// Whose bytes a region of a pass over a slice names.
fn place(region: Region, slice: Slice) -> (Region, Slice) {
    match region {
        Region::Weights | Region::Gradients | Region::Workspace => (region, Slice(0)),
        Region::Prefix(earlier) => (Region::Saved, earlier),
        Region::PrefixGradient(earlier) => (Region::StateGradient, earlier),
        _ => (region, slice),
    }
}
