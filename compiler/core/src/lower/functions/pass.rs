//! A function under construction: kernels over tensors whose bytes are found last.
//!
//! Tensors name a storage, and a storage is either fixed (a place in a region) or temporary. [`Pass::finish`] lets
//! kernels work in place where they may, packs what is left into the workspace and lists the regions that are used.

use super::{Region, StageFunction};
use crate::lower::pack::{Effort, Span, pack};
use crate::mode::{LOSS_SCALE, SEED};
use pipec_program as program;
use pipec_program::id::{Id, IdVec};
use pipec_program::signature;
use pipec_program::{
    Access, Body, Bytes, Function, Kernel, Node, Op, Output, Param, Scalar, ScalarId, ScalarType, TensorType,
    Value, ValueId,
};
use std::collections::BTreeMap;

/// Some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StorageId(usize);

/// A storage under a type: a value of the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tensor(pub(super) ValueId);

pub(super) struct Pass {
    /// The sizes of the regions that are known before; others grow with what lies in them.
    sizes: BTreeMap<Region, Bytes>,
    /// Which pass it is.
    pass: program::Pass,
    /// The place of each storage, none for a temporary.
    storages: Vec<Option<(Region, Bytes)>>,
    fixed: BTreeMap<(Region, Bytes), StorageId>,
    tensors: IdVec<ValueId, (StorageId, TensorType)>,
    known: BTreeMap<(StorageId, TensorType), Tensor>,
    /// The kernels, over tensors, with the scalars of graphs.
    pub(super) kernels: Vec<Kernel>,
}

impl Pass {
    /// A pass without kernels.
    pub(super) fn new(sizes: BTreeMap<Region, Bytes>, pass: program::Pass) -> Self {
        Self {
            sizes,
            pass,
            storages: Vec::new(),
            fixed: BTreeMap::new(),
            tensors: IdVec::new(),
            known: BTreeMap::new(),
            kernels: Vec::new(),
        }
    }

    /// The storage at a place of a region.
    pub(super) fn fixed(&mut self, region: Region, place: Bytes) -> StorageId {
        *self.fixed.entry((region, place)).or_insert_with(|| {
            self.storages.push(Some((region, place)));
            StorageId(self.storages.len() - 1)
        })
    }

    /// A new storage that lies wherever there is room.
    pub(super) fn temporary(&mut self) -> StorageId {
        self.storages.push(None);
        StorageId(self.storages.len() - 1)
    }

    /// Gives a temporary a place in a region; false if the storage has a place already.
    pub(super) fn fix(&mut self, storage: StorageId, region: Region, place: Bytes) -> bool {
        let temporary = self.storages[storage.0].is_none();
        if temporary {
            self.storages[storage.0] = Some((region, place));
            self.fixed.insert((region, place), storage);
        }
        temporary
    }

    /// Where a storage lies.
    pub(super) fn place(&self, storage: StorageId) -> Option<(Region, Bytes)> {
        self.storages[storage.0]
    }

    /// A storage under a type.
    pub(super) fn tensor(&mut self, storage: StorageId, ty: &TensorType) -> Tensor {
        *self
            .known
            .entry((storage, ty.clone()))
            .or_insert_with(|| Tensor(self.tensors.push((storage, ty.clone()))))
    }

    /// Appends a kernel that copies a tensor.
    pub(super) fn copy(&mut self, from: Tensor, to: Tensor) {
        self.kernels.push(Kernel {
            op: Op::Map { nodes: vec![Node::Input(0)], results: vec![0], seed: None },
            inputs: vec![from.0],
            outputs: vec![Output { value: to.0, accumulate: false }],
        });
    }

    /// What a call does with a region, as long as nothing is written that was only to be read.
    fn access(&self, region: Region) -> Access {
        let made_by = |pass| if self.pass == pass { Access::Write } else { Access::Read };
        match region {
            Region::Weights
            | Region::Tokens
            | Region::Targets
            | Region::Input
            | Region::Prefix(_)
            | Region::OutputGradient
            | Region::StateGradient
            | Region::Fetched
            | Region::Squares
            | Region::Factor => Access::Read,
            Region::Gradients => Access::Accumulate,
            Region::Saved | Region::Held | Region::Stored => made_by(program::Pass::F),
            Region::Pending => made_by(program::Pass::B),
            Region::Recomputed => made_by(program::Pass::R),
            Region::PrefixGradient(_) if self.adds_to(region) => Access::Update,
            Region::Output
            | Region::Checkpoint(_)
            | Region::Loss
            | Region::InputGradient
            | Region::PrefixGradient(_)
            | Region::Norm => Access::Write,
            Region::Moment | Region::Variance | Region::Master => Access::Update,
            Region::Workspace => Access::Workspace,
        }
    }

    /// Whether a kernel adds to what a region holds before.
    fn adds_to(&self, region: Region) -> bool {
        let outputs = self.kernels.iter().flat_map(|kernel| &kernel.outputs);
        let place = |output: &Output| self.storages[self.tensors[output.value].0.0];
        outputs.clone().any(|output| output.accumulate && place(output).is_some_and(|(of, _)| of == region))
            && outputs
                .clone()
                .all(|output| output.accumulate || place(output).is_none_or(|(of, _)| of != region))
    }

    /// The function.
    pub(super) fn finish(mut self, name: &str) -> StageFunction {
        let storages = self.work_in_place();
        let workspace = self.place_temporaries(&storages);
        self.sizes.insert(Region::Workspace, workspace);
        let scalars = self.number_scalars();

        // Only what kernels name is a value: a copy that was not needed leaves a tensor without a reader.
        let mut numbers: Vec<Option<ValueId>> = vec![None; self.tensors.len()];
        let mut places: Vec<(Region, Bytes, TensorType)> = Vec::new();
        let mut accesses: BTreeMap<Region, Access> = BTreeMap::new();
        let mut kernels = self.kernels.clone();
        let mut number = |tensor: ValueId, written: bool| {
            let (storage, ty) = &self.tensors[tensor];
            let (region, place) =
                self.storages[storages.find(*storage).0].unwrap_or((Region::Workspace, Bytes::ZERO));
            let access = accesses.entry(region).or_insert(self.access(region));
            if written && *access == Access::Read {
                *access = Access::Update;
            }
            *numbers[tensor.index()].get_or_insert_with(|| {
                places.push((region, place, ty.clone()));
                ValueId::new(places.len() - 1)
            })
        };
        for kernel in &mut kernels {
            for input in &mut kernel.inputs {
                *input = number(*input, false);
            }
            for output in &mut kernel.outputs {
                output.value = number(output.value, true);
            }
        }

        let regions: IdVec<_, Region> = accesses.keys().copied().collect();
        let params = accesses
            .iter()
            .map(|(&region, &access)| {
                let ends =
                    places.iter().filter(|place| place.0 == region).map(|(_, at, ty)| *at + ty.bytes());
                let bytes = self.sizes.get(&region).copied();
                let bytes = bytes.unwrap_or_else(|| ends.max().unwrap_or_default());
                Param { name: region.name().into_owned(), bytes, access }
            })
            .collect();
        let values = places
            .into_iter()
            .map(|(region, offset, ty)| {
                let param = regions.iter().find(|(_, other)| **other == region).map(|(id, _)| id);
                Value { param: param.expect("the regions are those of the values"), offset, ty }
            })
            .collect();
        let body = Body::Kernels { values, kernels };
        let function = Function { name: name.to_owned(), params, scalars, pair: None, body };
        StageFunction { function, regions }
    }

    /// Lets results take the bytes of operands that nothing reads any more, where the op allows it.
    fn work_in_place(&mut self) -> Merged {
        // What a pass hands on is needed to its end; what it is given may not be changed, except for what was saved.
        let lasts = |place: &Option<(Region, Bytes)>| match place {
            None => false,
            Some((region, _)) => match self.access(*region) {
                Access::Write | Access::Accumulate => true,
                Access::Read | Access::Update | Access::Workspace => false,
            },
        };
        let end = self.kernels.len();
        let mut last: Vec<usize> =
            self.storages.iter().map(|place| if lasts(place) { end } else { 0 }).collect();
        for (time, kernel) in self.kernels.iter().enumerate() {
            let outputs = kernel.outputs.iter().map(|output| output.value);
            for tensor in kernel.inputs.iter().copied().chain(outputs) {
                let storage = self.tensors[tensor].0;
                last[storage.0] = last[storage.0].max(time);
            }
        }
        let mut merged = Merged((0..self.storages.len()).map(StorageId).collect());
        for (time, kernel) in self.kernels.iter().enumerate() {
            let mut taken: Vec<StorageId> = Vec::new();
            for (position, output) in
                kernel.outputs.iter().enumerate().filter(|(_, output)| !output.accumulate)
            {
                let (to, ty) = &self.tensors[output.value];
                let to = merged.find(*to);
                let place_of_result = self.storages[to.0];
                // Bytes of the saved region are better taken than those of the workspace, which others can use.
                let operands = kernel.inputs.iter().enumerate().filter_map(|(operand, &input)| {
                    let (from, of) = &self.tensors[input];
                    let from = merged.find(*from);
                    let fits = signature::may_replace(&kernel.op, position, operand)
                        && of == ty
                        && from != to
                        && last[from.0] == time
                        && !taken.contains(&from);
                    let preference = match (self.storages[from.0], place_of_result) {
                        (Some((Region::Saved, _)), None) if self.may_spoil() => 0,
                        (None, _) => 1,
                        (Some(_), _) => return None,
                    };
                    fits.then_some((preference, from))
                });
                if let Some((_, from)) = operands.min() {
                    taken.push(from);
                    let place = self.storages[from.0].or(place_of_result);
                    self.storages[from.0] = place;
                    last[from.0] = last[to.0];
                    merged.0[to.0] = from;
                }
            }
        }
        merged
    }

    /// Whether what was saved is not needed after the pass.
    fn may_spoil(&self) -> bool {
        match self.pass {
            program::Pass::F | program::Pass::R => false,
            program::Pass::B | program::Pass::W | program::Pass::BW => true,
        }
    }

    /// Places the temporaries and returns the size of the workspace.
    fn place_temporaries(&mut self, storages: &Merged) -> Bytes {
        let mut spans: BTreeMap<StorageId, Span> = BTreeMap::new();
        for (time, kernel) in (0..).zip(&self.kernels) {
            let outputs = kernel.outputs.iter().map(|output| output.value);
            for tensor in kernel.inputs.iter().copied().chain(outputs) {
                let (storage, ty) = &self.tensors[tensor];
                let storage = storages.find(*storage);
                if self.storages[storage.0].is_none() {
                    let span = spans.entry(storage).or_insert(Span { bytes: 0, start: time, end: time });
                    span.bytes = span.bytes.max(ty.bytes().0);
                    span.end = time;
                }
            }
        }
        let needed: Vec<Span> = spans.values().copied().collect();
        let packing = pack(&needed, 0, &mut Effort::new(needed.len()));
        for (storage, offset) in spans.into_keys().zip(packing.offsets) {
            self.storages[storage.0] = Some((Region::Workspace, Bytes(offset)));
        }
        Bytes(packing.height)
    }

    /// Turns the scalars of graphs into those of the function, of which it has only those that it uses.
    fn number_scalars(&mut self) -> IdVec<ScalarId, Scalar> {
        let mut used: BTreeMap<ScalarId, ScalarId> = BTreeMap::new();
        let mut scalars = IdVec::new();
        for known in [LOSS_SCALE, SEED] {
            if self.kernels.iter_mut().any(|kernel| scalar(&mut kernel.op).is_some_and(|id| *id == known)) {
                let (name, ty) = if known == LOSS_SCALE {
                    ("loss_scale", ScalarType::Real)
                } else {
                    ("seed", ScalarType::Integer)
                };
                used.insert(known, scalars.push(Scalar { name: name.to_owned(), ty }));
            }
        }
        for kernel in &mut self.kernels {
            if let Some(id) = scalar(&mut kernel.op) {
                *id = used[id];
            }
        }
        scalars
    }
}

/// For each storage another whose bytes it shares, itself at the end of the chain.
struct Merged(Vec<StorageId>);

impl Merged {
    fn find(&self, mut storage: StorageId) -> StorageId {
        while self.0[storage.0] != storage {
            storage = self.0[storage.0];
        }
        storage
    }
}

/// The scalar of an op.
pub(super) fn scalar(op: &mut Op) -> Option<&mut ScalarId> {
    match op {
        Op::CrossEntropyGrad { scale, .. } => Some(scale),
        Op::Map { seed, .. } => seed.as_mut().map(|seed| &mut seed.scalar),
        Op::Matmul { .. }
        | Op::SumRows
        | Op::Embedding
        | Op::EmbeddingGrad
        | Op::Positions { .. }
        | Op::PositionsGrad { .. }
        | Op::RmsNorm { .. }
        | Op::RmsNormGrad
        | Op::RmsNormGainGrad
        | Op::LayerNorm { .. }
        | Op::LayerNormGrad
        | Op::LayerNormParamGrad
        | Op::Rope { .. }
        | Op::Attention(_)
        | Op::AttentionGrad(_)
        | Op::Softmax
        | Op::SoftmaxGrad
        | Op::CrossEntropy { .. }
        | Op::SumSquares
        | Op::ClipFactor { .. }
        | Op::AdamW { .. } => None,
    }
}
