//! The time of every piece on every kind of device.

use super::PassTimes;
use crate::mode::{Form, Forms, Phase, VariantId};
use crate::spec::{Cluster, DeviceKind, Spec};
use pipec_program::id::{Id, IdVec};
use pipec_program::{
    Batch, Body, Bytes, Costs, Device, DeviceId, Function, FunctionId, Kernel, LearningRate, Nanos, ParamId,
    Program, Slice, Training, Value,
};
use std::ops::Range;

/// The times of all pieces.
pub(crate) struct Times {
    /// The kind of every device.
    kinds: IdVec<DeviceId, usize>,
    /// The times of each variant, by slice and kind.
    variants: IdVec<Slice, Vec<IdVec<VariantId, PassTimes>>>,
    /// Sums of times over the pieces before each, by slice and kind.
    slices: IdVec<Slice, Vec<Vec<PassTimes>>>,
}

impl Times {
    /// Takes the roofline times of a program that holds each pass of each layer as a function of its own, so that a
    /// plan and a simulation never disagree about the cost of a kernel.
    pub(crate) fn new(spec: &Spec, forms: &Forms) -> Self {
        let mut distinct: Vec<&DeviceKind> = Vec::new();
        let kinds = devices(&spec.cluster)
            .map(|kind| {
                distinct.iter().position(|&known| known == kind).unwrap_or_else(|| {
                    distinct.push(kind);
                    distinct.len() - 1
                })
            })
            .collect();
        let mut functions = IdVec::new();
        let mut calls: IdVec<Slice, IdVec<VariantId, [FunctionId; 4]>> = IdVec::new();
        for of_slice in forms.slices.values() {
            let of_form = |form: &Form| {
                let backward = |wanted: &[Phase]| {
                    let taken = form.backward.iter().filter(|(phase, _)| wanted.contains(phase));
                    taken.map(|(_, kernel)| kernel.clone()).collect::<Vec<Kernel>>()
                };
                let passes = [
                    form.forward.clone(),
                    backward(&[Phase::R, Phase::B]),
                    backward(&[Phase::W]),
                    backward(&[Phase::R, Phase::B, Phase::W]),
                ];
                passes.map(|kernels| functions.push(function(form, kernels)))
            };
            calls.push(of_slice.values().map(of_form).collect());
        }
        let costs = Costs::roofline(&program(&distinct, functions));
        let of_slice = |calls: &IdVec<VariantId, [FunctionId; 4]>| -> Vec<IdVec<VariantId, PassTimes>> {
            let of_variant = |kind: usize, calls: [FunctionId; 4]| {
                let time = |pass: usize| costs.call(DeviceId::new(kind), calls[pass]);
                PassTimes { forward: time(0), inputs: time(1), weights: time(2), backward: time(3) }
            };
            let of_kind = |kind| calls.values().map(|&calls| of_variant(kind, calls)).collect();
            (0..distinct.len()).map(of_kind).collect()
        };
        let variants: IdVec<Slice, Vec<IdVec<VariantId, PassTimes>>> = calls.values().map(of_slice).collect();
        let sums = |times: &IdVec<VariantId, PassTimes>| {
            let mut sum = PassTimes::default();
            let mut sums = vec![sum];
            for &variant in &forms.pieces {
                sum = sum + times[variant];
                sums.push(sum);
            }
            sums
        };
        let slices = variants.values().map(|kinds| kinds.iter().map(sums).collect()).collect();
        Self { kinds, variants, slices }
    }

    /// The passes of a variant over each slice on a device.
    pub(crate) fn variant(
        &self,
        variant: VariantId,
        device: DeviceId,
    ) -> impl Iterator<Item = PassTimes> + '_ {
        let kind = self.kinds.get(device).copied().unwrap_or_default();
        self.variants.values().filter_map(move |kinds| Some(kinds.get(kind)?[variant]))
    }

    /// The passes of some pieces over each slice on a device.
    pub(super) fn slices(&self, pieces: Range<usize>, device: DeviceId) -> IdVec<Slice, PassTimes> {
        let of_slice = |sums: &Vec<Vec<PassTimes>>| {
            // A pipeline on more devices than its cluster has is refused with the spec; the last kind stands in for them.
            let kind = self.kinds.get(device).copied().unwrap_or(sums.len().saturating_sub(1));
            let between = |sums: &Vec<PassTimes>| {
                let (first, last) = (sums[pieces.start], sums[pieces.end]);
                PassTimes {
                    forward: last.forward - first.forward,
                    inputs: last.inputs - first.inputs,
                    weights: last.weights - first.weights,
                    backward: last.backward - first.backward,
                }
            };
            sums.get(kind).map(between).unwrap_or_default()
        };
        self.slices.values().map(of_slice).collect()
    }

    /// One forward pass of some pieces over all slices.
    pub(super) fn forward(&self, pieces: Range<usize>, device: DeviceId) -> Nanos {
        self.slices(pieces, device).values().map(|times| times.forward).sum()
    }

    /// One forward and one backward pass of some pieces over all slices.
    pub(super) fn both(&self, pieces: Range<usize>, device: DeviceId) -> Nanos {
        self.slices(pieces, device).values().map(|times| times.forward + times.backward).sum()
    }
}

/// The kind of every device of a cluster, in order.
fn devices(cluster: &Cluster) -> impl Iterator<Item = &DeviceKind> {
    cluster.nodes.iter().flat_map(|node| (0..node.devices).map(|_| &node.device))
}

/// Kernels of a form as a function. Costs do not depend on where values lie.
fn function(form: &Form, kernels: Vec<Kernel>) -> Function {
    let values = form.values.values().map(|value| Value {
        param: ParamId(0),
        offset: Bytes::ZERO,
        ty: value.ty.clone(),
    });
    Function {
        name: form.name.clone(),
        params: IdVec::new(),
        scalars: IdVec::new(),
        pair: None,
        body: Body::Kernels { values: values.collect(), kernels },
    }
}

/// A program with nothing but functions and one device of each kind.
fn program(kinds: &[&DeviceKind], functions: IdVec<FunctionId, Function>) -> Program {
    let device = |kind: &&DeviceKind| Device {
        name: kind.name.clone(),
        memory: kind.memory,
        host_memory: Bytes::ZERO,
        bandwidth: kind.bandwidth,
        host_bandwidth: kind.bandwidth,
        upload: Vec::new(),
        download: Vec::new(),
        rates: kind.rates.clone(),
        threads: kind.threads,
        host_threads: 1,
    };
    Program {
        name: String::new(),
        compiler: String::new(),
        inputs: String::new(),
        batch: Batch {
            micro_batches: 1,
            sequences: 1,
            tokens: 1,
            slices: 1,
            stages: 1,
            forward: 0,
            copies: 1,
        },
        slices: vec![1].into(),
        training: Training {
            steps: None,
            seed: 0,
            learning_rate: LearningRate::Constant { rate: 0.0 },
            data: None,
        },
        devices: kinds.iter().map(device).collect(),
        links: IdVec::new(),
        parameters: IdVec::new(),
        functions,
        buffers: IdVec::new(),
        channels: IdVec::new(),
        groups: IdVec::new(),
        feeds: Vec::new(),
        readings: Vec::new(),
        queues: IdVec::new(),
    }
}
