//! The places of a stage's parameters, and of tensors packed one after the other.

use super::StageParameter;
use pipec_program::{DType, ParameterId};

/// The alignment of tensors in regions, in bytes.
pub(super) const ALIGNMENT: u64 = 64;

/// The element type of the gradients of weights.
pub(super) fn gradient_type(precision: DType) -> DType {
    match precision {
        DType::F32 | DType::F16 | DType::BF16 | DType::U32 => DType::F32,
        DType::F64 => DType::F64,
    }
}

/// Whether the optimizer keeps the weights in f32 beside their rounding.
pub(super) fn has_master(precision: DType) -> bool {
    match precision {
        DType::F16 | DType::BF16 => true,
        DType::F32 | DType::F64 | DType::U32 => false,
    }
}

/// Places parameters one after the other, given with their number of elements, and returns the number of elements up
/// to the end of the last, gaps included.
pub(super) fn place_parameters(
    parameters: impl IntoIterator<Item = (ParameterId, u64)>,
    precision: DType,
) -> (Vec<StageParameter>, u64) {
    let weight = precision.bytes();
    let gradient = gradient_type(precision).bytes();
    let moment = DType::F32.bytes();
    // The smallest element decides: then every region is aligned with the same gaps in elements.
    let step = ALIGNMENT / weight.min(moment).0;
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
