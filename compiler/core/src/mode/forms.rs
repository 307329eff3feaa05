//! The pieces of a model in modes: which form each takes over each slice.

use super::{Extent, Form, Layer, Layers, Mode, ModeId, form, reach};
use crate::spec::{LayerId, Level, Model, Offload, Piece, Recompute, Train};
use pipec_program::id::{Id, IdVec};
use pipec_program::{Bytes, Slice};
use std::collections::BTreeMap;
use std::fmt;

/// A distinct layer in one of its modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Variant {
    /// The layer.
    pub layer: LayerId,
    /// The mode.
    pub mode: ModeId,
}

/// A variant of some [`Forms`]: `v2`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VariantId(pub u32);

impl Id for VariantId {
    fn new(index: usize) -> Self {
        Self(u32::try_from(index).expect("a model has fewer than 2^32 variants of layers"))
    }
    fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for VariantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

impl fmt::Debug for VariantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The forms of all pieces of a model for every slice of a micro-batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Forms {
    /// The layers in the modes that some piece takes.
    pub variants: IdVec<VariantId, Variant>,
    /// The form of each variant for each slice.
    pub slices: IdVec<Slice, IdVec<VariantId, Form>>,
    /// The variant of each piece.
    pub pieces: Vec<VariantId>,
}

impl Forms {
    /// The forms of all layers in all their modes; of the pieces the fastest.
    pub(crate) fn every(layers: &Layers, model: &Model, train: &Train, lengths: &[u64]) -> Self {
        let of_layer = |(id, layer): (LayerId, &Layer)| {
            let variants = layer.modes.ids().map(move |mode| Variant { layer: id, mode });
            variants.collect::<Vec<Variant>>()
        };
        let variants: IdVec<VariantId, Variant> = layers.iter().flat_map(of_layer).collect();
        let fastest: BTreeMap<LayerId, VariantId> = variants
            .iter()
            .filter(|(_, variant)| variant.mode == ModeId(0))
            .map(|(id, variant)| (variant.layer, id))
            .collect();
        let pieces = model.pieces.iter().map(|piece| fastest[&piece.layer]).collect();
        let slices = slices(layers, model, train, lengths, &variants);
        Self { variants, slices, pieces }
    }

    /// The forms of pieces in the modes that `modes` gives them, one for each. `lengths` are the tokens of the slices, which
    /// add up to those of a sequence.
    pub fn new(layers: &Layers, model: &Model, train: &Train, lengths: &[u64], modes: &[ModeId]) -> Self {
        let variant = |(piece, &mode): (&Piece, &ModeId)| Variant { layer: piece.layer, mode };
        let mut known: BTreeMap<Variant, VariantId> =
            model.pieces.iter().zip(modes).map(variant).map(|variant| (variant, VariantId(0))).collect();
        let variants: IdVec<VariantId, Variant> = known.keys().copied().collect();
        for (number, id) in known.values_mut().enumerate() {
            *id = VariantId::new(number);
        }
        let pieces = model.pieces.iter().zip(modes).map(|piece| known[&variant(piece)]).collect();
        let slices = slices(layers, model, train, lengths, &variants);
        Self { variants, slices, pieces }
    }

    /// The form of a piece for a slice.
    pub fn of(&self, slice: Slice, piece: usize) -> &Form {
        &self.slices[slice][self.pieces[piece]]
    }

    /// The form of a piece for the first slice, which has in common with the others what does not depend on tokens.
    pub fn first(&self, piece: usize) -> &Form {
        self.of(Slice(0), piece)
    }

    /// All forms, slice by slice.
    pub fn all(&self) -> impl Iterator<Item = &Form> {
        self.slices.values().flat_map(IdVec::values)
    }
}

/// The forms of some variants for every slice.
fn slices(
    layers: &Layers,
    model: &Model,
    train: &Train,
    lengths: &[u64],
    variants: &IdVec<VariantId, Variant>,
) -> IdVec<Slice, IdVec<VariantId, Form>> {
    let reach = reach(model);
    let of_slice = |slice: usize| {
        let extent = Extent { sequences: train.micro_batch, lengths, slice, reach };
        let of_variant = |variant: &Variant| {
            let layer = &layers[variant.layer];
            form(layer, &layer.modes[variant.mode], extent)
        };
        variants.values().map(of_variant).collect()
    };
    (0..lengths.len()).map(of_slice).collect()
}

/// The levels of all pieces that a pipeline asks for; none where the compiler is to choose.
pub(crate) fn levels(model: &Model, recompute: &Recompute) -> Option<Vec<Level>> {
    let mut repeated = 0;
    let level = |piece: &Piece| match recompute {
        Recompute::Every(level) => Some(*level),
        Recompute::Auto => None,
        Recompute::Layers(levels) if piece.is_repeated() => {
            repeated += 1;
            Some(levels.get(repeated - 1).copied().unwrap_or_default())
        }
        Recompute::Layers(_) => Some(Level::None),
    };
    model.pieces.iter().map(level).collect()
}

/// The modes of all pieces that a pipeline asks for; the fastest where the compiler is to choose.
pub fn modes(layers: &Layers, model: &Model, recompute: &Recompute, offload: Offload) -> Vec<ModeId> {
    let levels = levels(model, recompute).unwrap_or_else(|| vec![Level::None; model.pieces.len()]);
    let mode = |(piece, level): (&Piece, Level)| {
        let layer = &layers[piece.layer];
        match offload {
            Offload::None | Offload::Auto => layer.at(level),
            Offload::Part(part) => layer.offloading(layer.at(level), part),
        }
    };
    model.pieces.iter().zip(levels).map(mode).collect()
}

impl Layer {
    /// The mode of a level that keeps everything on the device.
    pub fn at(&self, level: Level) -> ModeId {
        // Of these modes the front goes from the fastest to the one that keeps least.
        let mut ids = self.on_device();
        let first = self.on_device().next();
        let mode = match level {
            Level::None => first,
            Level::Selective => ids.rfind(|&mode| !self.modes[mode].repeats_products()).or(first),
            Level::Full => ids.next_back(),
        };
        mode.expect("a layer has a mode that needs no host")
    }

    /// The modes that keep everything on the device, the fastest first.
    pub fn on_device(&self) -> impl DoubleEndedIterator<Item = ModeId> + '_ {
        self.modes.ids().filter(|&mode| self.modes[mode].offloaded == Bytes::ZERO)
    }

    /// The modes that do what a mode on the device does, where some of what it keeps waits on the host; that mode among them.
    pub fn variants(&self, mode: ModeId) -> impl Iterator<Item = ModeId> + '_ {
        let Mode { time, kept, .. } = self.modes[mode];
        let alike = move |other: &Mode| other.time <= time && other.kept + other.offloaded <= kept;
        self.modes.iter().filter(move |(id, other)| *id == mode || alike(other)).map(|(id, _)| id)
    }

    /// Of the variants of a mode on the device the one that offloads least of those that offload a part, in thousandths, of what it
    /// keeps; the one that offloads most where none offloads so much.
    pub fn offloading(&self, mode: ModeId, part: u16) -> ModeId {
        let wanted = u128::from(self.modes[mode].kept.0) * u128::from(part);
        let offloaded = |mode: &ModeId| self.modes[*mode].offloaded;
        let enough = |mode: &ModeId| u128::from(offloaded(mode).0) * 1000 >= wanted;
        let least = self.variants(mode).filter(enough).min_by_key(|id| (offloaded(id), *id));
        least.or(self.variants(mode).max_by_key(|id| (offloaded(id), std::cmp::Reverse(*id)))).unwrap_or(mode)
    }
}
