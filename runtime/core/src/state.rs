//! The state of a run: parameters with their moments, found by name.
//!
//! A state entry is one tensor with all of its copies. Because names, shapes and types do not depend on the cut, the
//! state of one program is that of any other program of the same model.

use crate::engine::{Engine, EngineError};
use crate::splitmix;
use pipec_program::id::Id;
use pipec_program::{DType, Init, Parameter, ParameterId, Program, TensorType, View};

/// A tensor of the state.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The name of the parameter, with `.moment`, `.variance` or `.master` for what belongs to it.
    pub name: String,
    /// What it is.
    pub role: Role,
    /// Its parameter.
    pub parameter: ParameterId,
    /// Its type.
    pub ty: TensorType,
    /// Its copies, which hold the same bytes between steps; at least one.
    pub views: Vec<View>,
}

/// What a tensor of the state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// A parameter as the model uses it.
    Weight,
    /// The first moment of the optimizer.
    Moment,
    /// The second moment.
    Variance,
    /// The f32 original of a weight that is stored in a shorter type.
    Master,
}

/// All tensors of the state, by parameter.
pub fn entries(program: &Program) -> Vec<Entry> {
    let mut entries = Vec::new();
    for (id, parameter) in program.parameters.iter() {
        let mut entry = |role, suffix: &str, dtype, views: Vec<View>| {
            if !views.is_empty() {
                let ty = TensorType { dtype, shape: parameter.ty.shape.clone() };
                let name = format!("{}{suffix}", parameter.name);
                entries.push(Entry { name, role, parameter: id, ty, views });
            }
        };
        let copies = &parameter.copies;
        let views = |of: fn(&pipec_program::Placed) -> Option<View>| copies.iter().filter_map(of).collect();
        let moments: Vec<View> = views(|copy| Some(copy.moments?[0]));
        // Moments are f32, or f64 in a program that computes in f64.
        let wide = parameter.ty.shape.elements().saturating_mul(8);
        let dtype = match moments.first() {
            Some(view) if view.bytes.0 == wide => DType::F64,
            Some(_) | None => DType::F32,
        };
        entry(Role::Weight, "", parameter.ty.dtype, views(|copy| Some(copy.weight)));
        entry(Role::Moment, ".moment", dtype, moments);
        entry(Role::Variance, ".variance", dtype, views(|copy| Some(copy.moments?[1])));
        entry(Role::Master, ".master", DType::F32, views(|copy| copy.master));
    }
    entries
}

/// Gives every parameter its initial value, and every moment zero.
pub fn initialise(engine: &mut Engine) -> Result<(), EngineError> {
    let program = engine.program().clone();
    let seed = program.training.seed;
    for entry in entries(&program) {
        let bytes = match entry.role {
            Role::Weight | Role::Master => {
                let parameter = &program.parameters[entry.parameter];
                let values = initial_values(seed, entry.parameter, parameter);
                match entry.ty.dtype {
                    DType::F32 => values.flat_map(f32::to_le_bytes).collect::<Vec<u8>>(),
                    DType::F64 => values.flat_map(|value| f64::from(value).to_le_bytes()).collect(),
                    DType::F16 | DType::BF16 | DType::U32 => {
                        return Err(EngineError::Initial { name: entry.name, dtype: entry.ty.dtype });
                    }
                }
            }
            Role::Moment | Role::Variance => {
                vec![0; usize::try_from(entry.ty.bytes().0).unwrap_or(usize::MAX)]
            }
        };
        for view in entry.views {
            engine.write(view, &bytes)?;
        }
    }
    Ok(())
}

/// The initial value of a parameter, element by element: see [`Init`].
pub fn initial_values(
    seed: u64,
    id: ParameterId,
    parameter: &Parameter,
) -> impl Iterator<Item = f32> + use<> {
    let seed = splitmix::at(seed, id.index() as u64);
    let init = parameter.init;
    (0..parameter.ty.shape.elements()).map(move |element| match init {
        Init::Constant { value } => value,
        Init::Uniform { bound } => {
            let unit = (splitmix::at(seed, element) >> 40) as f64 / (1u64 << 23) as f64 - 1.0;
            (unit * bound) as f32
        }
        Init::Normal { std } => {
            // The upper 53 bits, as a number in [0, 1).
            let unit = |n| (splitmix::at(seed, n) >> 11) as f64 / (1u64 << 53) as f64;
            let u = unit(2 * element) + 1.0 / (1u64 << 53) as f64;
            let angle = 2.0 * std::f64::consts::PI * unit(2 * element + 1);
            (std * (-2.0 * u.ln()).sqrt() * angle.cos()) as f32
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pipec_program::DType;

    fn parameter(init: Init, extents: &[u64]) -> Parameter {
        let ty = TensorType::new(DType::F32, extents);
        Parameter { name: "w".to_owned(), ty, init, copies: Vec::new() }
    }

    /// Values and sums of the reference configuration `tiny-a` (seed 1234), as a trusted framework printed them.
    #[test]
    fn uniform_values_are_those_of_the_reference_run() {
        let embed = parameter(Init::Uniform { bound: 3.0_f64.sqrt() }, &[64, 32]);
        let values: Vec<f64> = initial_values(1234, ParameterId(0), &embed).map(f64::from).collect();
        assert_eq!(
            values[..4],
            [0.4072120189666748, 1.2688931226730347, -1.4792778491973877, -0.2523527443408966]
        );
        let sum: f64 = values.iter().sum();
        assert!((sum - 68.93419346198789).abs() < 1e-9, "{sum}");
        let wq = parameter(Init::Uniform { bound: (3.0_f64 / 32.0).sqrt() }, &[32, 32]);
        let values: Vec<f64> = initial_values(1234, ParameterId(2), &wq).map(f64::from).collect();
        assert_eq!(
            values[..4],
            [0.24291929602622986, 0.212630033493042, 0.17031724750995636, -0.008806631900370121]
        );
    }

    #[test]
    fn normal_values_have_mean_and_deviation() {
        let normal = parameter(Init::Normal { std: 0.5 }, &[100, 100]);
        let values: Vec<f64> = initial_values(7, ParameterId(3), &normal).map(f64::from).collect();
        let mean = values.iter().sum::<f64>() / 1e4;
        let variance = values.iter().map(|value| value * value).sum::<f64>() / 1e4;
        // Five standard errors: 0.5 / 100 for the mean, 0.25 sqrt(2) / 100 for the variance.
        assert!(mean.abs() < 0.025, "{mean}");
        assert!((variance - 0.25).abs() < 0.018, "{variance}");
    }

    #[test]
    fn constants() {
        let ones = parameter(Init::Constant { value: 1.0 }, &[3]);
        assert_eq!(initial_values(7, ParameterId(3), &ones).collect::<Vec<_>>(), [1.0; 3]);
    }
}
