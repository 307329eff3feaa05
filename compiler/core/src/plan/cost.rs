//! The time of every piece on every kind of device.

use crate::graph::{Graph, Graphs, Phase};
use crate::spec::{Cluster, DeviceKind, Spec};
use pipec_program::id::{Id, IdVec};
use pipec_program::{
    Batch, Body, Bytes, Costs, Device, DeviceId, Function, FunctionId, Kernel, LearningRate, Nanos, ParamId,
    Program, Training, Value,
};
use std::ops::Range;

/// Sums of times over the pieces before each, by kind of device.
pub(super) struct Times {
    kinds: IdVec<DeviceId, usize>,
    forward: Vec<Vec<Nanos>>,
    backward: Vec<Vec<Nanos>>,
}

impl Times {
    /// Takes the roofline times of a program that holds each pass of each layer as a function of its own, so that a
    /// plan and a simulation never disagree about the cost of a kernel.
    pub(super) fn new(spec: &Spec, graphs: &Graphs) -> Self {
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
        for graph in graphs.values() {
            functions.push(function(graph, graph.forward.clone()));
            let backward = graph.backward.iter().map(|(phase, kernel)| match phase {
                Phase::B | Phase::W => kernel.clone(),
            });
            functions.push(function(graph, backward.collect()));
        }
        let costs = Costs::roofline(&program(&distinct, functions));
        let sums = |pass: usize| {
            let kinds = 0..distinct.len();
            let of_kind = |kind: usize| {
                let mut sum = Nanos::ZERO;
                let mut sums = vec![sum];
                for piece in &spec.model.pieces {
                    sum += costs.call(DeviceId::new(kind), FunctionId::new(2 * piece.layer.index() + pass));
                    sums.push(sum);
                }
                sums
            };
            kinds.map(of_kind).collect()
        };
        Self { kinds, forward: sums(0), backward: sums(1) }
    }

    /// One forward pass of some pieces on a device.
    pub(super) fn forward(&self, pieces: Range<usize>, device: DeviceId) -> Nanos {
        self.between(&self.forward, pieces, device)
    }

    /// One whole backward pass of some pieces on a device.
    pub(super) fn backward(&self, pieces: Range<usize>, device: DeviceId) -> Nanos {
        self.between(&self.backward, pieces, device)
    }

    /// One forward and one backward pass.
    pub(super) fn both(&self, pieces: Range<usize>, device: DeviceId) -> Nanos {
        self.forward(pieces.clone(), device) + self.backward(pieces, device)
    }

    fn between(&self, sums: &[Vec<Nanos>], pieces: Range<usize>, device: DeviceId) -> Nanos {
        // A pipeline on more devices than its cluster has is refused with the spec; the last kind stands in for them.
        let kind = self.kinds.get(device).copied().unwrap_or(sums.len().saturating_sub(1));
        sums.get(kind).map(|sums| sums[pieces.end] - sums[pieces.start]).unwrap_or_default()
    }
}

/// The kind of every device of a cluster, in order.
fn devices(cluster: &Cluster) -> impl Iterator<Item = &DeviceKind> {
    cluster.nodes.iter().flat_map(|node| (0..node.devices).map(|_| &node.device))
}

/// Kernels of a graph as a function. Costs do not depend on where values lie.
fn function(graph: &Graph, kernels: Vec<Kernel>) -> Function {
    let values = graph.values.values().map(|value| Value {
        param: ParamId(0),
        offset: Bytes::ZERO,
        ty: value.ty.clone(),
    });
    Function {
        name: graph.name.clone(),
        params: IdVec::new(),
        scalars: IdVec::new(),
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
        upload: Vec::new(),
        download: Vec::new(),
        rates: kind.rates.clone(),
        threads: kind.threads,
    };
    Program {
        name: String::new(),
        compiler: String::new(),
        inputs: String::new(),
        batch: Batch { micro_batches: 1, sequences: 1, tokens: 1, slices: 1, stages: 1 },
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
