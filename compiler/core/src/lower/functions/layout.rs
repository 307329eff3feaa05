//! The places of a stage's parameters, and of tensors packed one after the other.

use super::StageParameter;
use crate::graph::accumulator_type;
use pipec_program::{Bytes, DType, ParameterId, TensorType};

/// The alignment of tensors in regions, in bytes.
pub(super) const ALIGNMENT: u64 = 64;

/// Whether the optimizer keeps the weights in f32 beside their rounding.
pub(crate) fn has_master(precision: DType) -> bool {
    match precision {
        DType::F16 | DType::BF16 => true,
        DType::F32 | DType::F64 | DType::U32 => false,
    }
}

/// Places parameters one after the other, given with their number of elements, and returns the number of elements up
/// to the end of the last, gaps included.
pub(crate) fn place_parameters(
    parameters: impl IntoIterator<Item = (ParameterId, u64)>,
    precision: DType,
    gradients: DType,
) -> (Vec<StageParameter>, u64) {
    let weight = precision.bytes();
    let gradient = gradients.bytes();
    let moment = accumulator_type(precision).bytes();
    // The smallest element decides: then every region is aligned with the same gaps in elements.
    let step = ALIGNMENT / weight.min(moment).min(gradient).0;
    let mut end = 0u64;
    let places = parameters.into_iter().map(|(parameter, elements)| {
        let first = end.next_multiple_of(step);
        end = first + elements;
        StageParameter {
            parameter,
            elements,
            weight: weight * first,
            gradient: gradient * first,
            moment: moment * first,
        }
    });
    let places: Vec<StageParameter> = places.collect();
    (places, end)
}

/// The places of tensors one after the other, and the end of the last.
pub(super) fn place_tensors<'a>(types: impl IntoIterator<Item = &'a TensorType>) -> (Vec<Bytes>, Bytes) {
    let mut end = Bytes::ZERO;
    let mut places = Vec::new();
    for ty in types {
        let first = end.align_up(ALIGNMENT);
        end = first + ty.bytes();
        places.push(first);
    }
    (places, end)
}
