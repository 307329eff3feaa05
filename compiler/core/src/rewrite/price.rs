//! What a term costs over a micro-batch: the time of its kernel over all slices, and what it keeps.

use super::term::{EGraph, Head, Term};
use crate::graph::{Added, Op, Type};
use crate::mode::{Extent, kernel, tensor};
use crate::spec::{Offload, Spec};
use egg::Id;
use pipec_program::{Bytes, BytesPerSecond, DType, Flops, FlopsPerSecond, TensorType};

/// The rates of the device that prices are for.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// Of operations on values of the precision of the model.
    pub compute: FlopsPerSecond,
    /// Of memory.
    pub bandwidth: BytesPerSecond,
    /// Whether values may wait in the memory of the host.
    pub host: bool,
}

impl Rates {
    /// The rates of the first device of the cluster: prices choose between ways to compute the same, which a plan then takes at
    /// the times of its own devices.
    pub fn of(spec: &Spec) -> Self {
        let host = spec.pipeline.offload != Offload::None;
        let Some(kind) = spec.cluster.nodes.first().map(|node| &node.device) else {
            return Self { compute: FlopsPerSecond(0), bandwidth: BytesPerSecond(0), host };
        };
        let stated = kind.rates.iter().find(|(dtype, _)| *dtype == spec.train.precision);
        let compute = stated.or_else(|| kind.rates.iter().min_by_key(|(_, rate)| *rate));
        let compute = compute.map_or(FlopsPerSecond(0), |(_, rate)| *rate);
        Self { compute, bandwidth: kind.bandwidth, host }
    }
}

/// A price: picoseconds, and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Price {
    /// The time of kernels, in picoseconds: kernels of small layers take less than a nanosecond.
    pub(super) time: u64,
    /// Bytes kept from the forward pass to the backward pass.
    pub(super) kept: u64,
    /// Bytes that go to the host and come back.
    pub(super) offloaded: u64,
    /// Kernels: of ways that are equal in all else, the one with fewer is taken.
    pub(super) kernels: u32,
}

impl Price {
    /// Whether it is no more than another in anything.
    pub(super) fn is_at_most(self, other: Self) -> bool {
        self.time <= other.time
            && self.kept <= other.kept
            && self.offloaded <= other.offloaded
            && self.kernels <= other.kernels
    }
}

impl std::ops::Add for Price {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            time: self.time.saturating_add(other.time),
            kept: self.kept.saturating_add(other.kept),
            offloaded: self.offloaded.saturating_add(other.offloaded),
            kernels: self.kernels.saturating_add(other.kernels),
        }
    }
}

/// The price of a term that is a kernel or keeps a value.
pub(super) fn price(egraph: &EGraph, class: Id, term: &Term, extents: &[Extent<'_>], rates: Rates) -> Price {
    match &term.head {
        Head::Op(op) => {
            let time = extents.iter().map(|&extent| time(egraph, class, term, op, extent, rates)).sum();
            let kernels = extents.first().map_or(0, |&extent| u32::from(kernel(op, extent).is_some()));
            Price { time, kernels, ..Price::default() }
        }
        Head::Keep => {
            // A state stays for later slices whether the slice itself keeps it or not.
            let own = egraph.find(term.children[0]);
            let is_state = egraph.lookup(Term::new(Head::Earlier, vec![own])).is_some();
            let kept = if is_state { 0 } else { bytes(egraph, own, extents) };
            Price { kept, ..Price::default() }
        }
        Head::Fetch => Price { offloaded: bytes(egraph, term.children[0], extents), ..Price::default() },
        Head::Earlier => Price { kept: bytes(egraph, term.children[0], extents), ..Price::default() },
        Head::Again | Head::Slice | Head::Later(..) | Head::Sum => Price::default(),
    }
}

/// The bytes of a value over all slices.
fn bytes(egraph: &EGraph, class: Id, extents: &[Extent<'_>]) -> u64 {
    let ty = &egraph[class].data.ty;
    extents.iter().map(|&extent| tensor(ty, 1, extent).bytes().0).sum()
}

fn time(egraph: &EGraph, class: Id, term: &Term, op: &Op, extent: Extent<'_>, rates: Rates) -> u64 {
    let Some(kernel) = kernel(op, extent) else { return 0 };
    let mut inputs: Vec<TensorType> = Vec::new();
    let mut classes: Vec<Id> = Vec::new();
    let heads = crate::mode::heads(op);
    let operands = operands(op, &term.children);
    let parts = Parts::of(op, operands.len());
    let mut input = |id: Id, extent: Extent<'_>, inputs: &mut Vec<TensorType>| {
        classes.push(id);
        inputs.push(tensor(&egraph[id].data.ty, heads, extent));
    };
    for (position, &id) in operands.iter().enumerate() {
        match &parts {
            Some(parts) if position == 1 => {
                for earlier in (0..extent.slice).filter(|&earlier| extent.sees(extent.slice, earlier)) {
                    let extent = Extent { slice: earlier, ..extent };
                    for part in parts.earlier {
                        input(operands[part], extent, &mut inputs);
                    }
                }
                input(id, extent, &mut inputs);
            }
            Some(parts) if parts.earlier.contains(&position) => {}
            Some(_) | None => input(id, extent, &mut inputs),
        }
    }
    let types = match &egraph[class].data.ty {
        Type::Tuple(types) => types.clone(),
        other @ (Type::PerToken { .. } | Type::Statistic { .. } | Type::Whole { .. }) => vec![other.clone()],
    };
    let adds = |position: usize| {
        if let Op::AttentionGrad { added, .. } = op {
            return added >> position & 1 == 1;
        }
        *op == Op::Product(Added::Yes) || op.sums_tokens()
    };
    let outputs: Vec<(TensorType, bool)> = types
        .iter()
        .enumerate()
        .map(|(position, ty)| (tensor(ty, heads_of(ty, heads), extent), adds(position)))
        .collect();
    let inputs: Vec<&TensorType> = inputs.iter().collect();
    let outputs: Vec<(&TensorType, bool)> = outputs.iter().map(|(ty, adds)| (ty, *adds)).collect();
    let cost = pipec_program::cost::op(&kernel, &inputs, &outputs);
    let mut traffic = cost.traffic;
    for (position, id) in classes.iter().enumerate() {
        if classes[..position].contains(id) && parts.is_none() {
            traffic -= inputs[position].bytes();
        }
    }
    limit(cost.flops, traffic, rates)
}

/// The operands of an operation that its kernel reads: what it adds to stands first of a product and last of an attention.
fn operands<'a>(op: &Op, children: &'a [Id]) -> &'a [Id] {
    match op {
        Op::Product(Added::Yes) => children.get(1..).unwrap_or_default(),
        Op::AttentionGrad { added, .. } => {
            &children[..children.len().saturating_sub(added.count_ones() as usize)]
        }
        // Places are known, not read.
        Op::Positions { .. } => children.get(..1).unwrap_or_default(),
        Op::Product(Added::No)
        | Op::Input(_)
        | Op::Weight(_)
        | Op::Tokens
        | Op::Targets
        | Op::Places
        | Op::OutputGradient(_)
        | Op::Part(_)
        | Op::Embedding
        | Op::Linear
        | Op::RmsNorm { .. }
        | Op::LayerNorm { .. }
        | Op::Rope(_)
        | Op::Attention(_)
        | Op::Softmax { .. }
        | Op::Map(_)
        | Op::CrossEntropy { .. }
        | Op::WeightProduct
        | Op::SumRows
        | Op::EmbeddingGrad
        | Op::PositionsGrad { .. }
        | Op::RmsNormGrad { .. }
        | Op::RmsNormGainGrad { .. }
        | Op::LayerNormGrad { .. }
        | Op::LayerNormParamGrad { .. }
        | Op::SoftmaxGrad { .. }
        | Op::CrossEntropyGrad { .. } => children,
    }
}

/// Vectors per token of a value of an operation: statistics and parameters have their own shape.
fn heads_of(ty: &Type, heads: u64) -> u64 {
    match ty {
        Type::PerToken { dtype: DType::U32, .. } => 1,
        Type::PerToken { .. } => heads,
        Type::Statistic { .. } | Type::Whole { .. } | Type::Tuple(_) => 1,
    }
}

/// Which operands of an attention are of earlier slices.
struct Parts {
    earlier: [usize; 2],
}

impl Parts {
    fn of(op: &Op, operands: usize) -> Option<Self> {
        let sliced = (matches!(op, Op::Attention(_)) && operands == 5)
            || (matches!(op, Op::AttentionGrad { .. }) && operands == 8);
        sliced.then_some(Self { earlier: [3, 4] })
    }
}

/// The longer of computing and moving, in picoseconds, rounded up: so one kernel never takes longer than the same in two.
fn limit(flops: Flops, traffic: Bytes, rates: Rates) -> u64 {
    let at = |amount: u64, rate: u64| match rate {
        0 => 0,
        rate => {
            let picos = (u128::from(amount) * 1_000_000_000_000).div_ceil(u128::from(rate));
            u64::try_from(picos).unwrap_or(u64::MAX)
        }
    };
    at(flops.0, rates.compute.0).max(at(traffic.0, rates.bandwidth.0))
}
