//! The gradients of one step, and how far rounding may move them.

use pipec_compiler::spec::{Cut, Optimizer, Origins, Schedule, Spec};
use pipec_program::{DType, Verified};
use pipec_runtime::checkpoint::Progress;
use pipec_runtime::engine::{Engine, Options};
use pipec_runtime::splitmix;
use pipec_runtime::state::{Role, entries, initialise};
use pipec_tests::{Kind, compile, engine, go_on, replan};
use std::sync::Arc;

/// Points at which the noise is sampled.
const SAMPLES: u64 = 8;

/// The two-sided quantile of Student's t of [`SAMPLES`] degrees of freedom that is passed with probability 1e-8.
const QUANTILE: f64 = 24.0;

/// How much more a sum in ascending order may err than one in blocks.
const NAIVE: f64 = 16.0;

/// The largest relative change of a weight where the noise is sampled.
const CHANGE: f64 = 1.0 / 1024.0;

/// The name of a parameter and its gradient.
type Named = (String, Vec<f64>);

/// The gradient of every parameter, in the order of the model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Gradients(pub(crate) Vec<Named>);

impl Gradients {
    /// For every parameter the 2-norm of the difference, in parts of the norm of `truth`.
    pub(crate) fn distances(&self, truth: &Self) -> Vec<f64> {
        assert_eq!(self.0.len(), truth.0.len());
        let of = |((name, found), (expected, exact)): (&Named, &Named)| {
            assert_eq!((name, found.len()), (expected, exact.len()));
            let squares = found.iter().zip(exact).map(|(found, exact)| (found - exact).powi(2));
            let all: f64 = exact.iter().map(|exact| exact * exact).sum();
            assert!(all > 0.0, "{name} has a gradient of nothing");
            (squares.sum::<f64>() / all).sqrt()
        };
        self.0.iter().zip(&truth.0).map(of).collect()
    }
}

/// The same run with so many micro-batches a step, and an optimizer whose first moment after a step is the gradient.
pub(crate) fn short(spec: &Spec, micro_batches: u32, precision: DType) -> Spec {
    let mut spec = spec.clone();
    spec.pipeline.micro_batches = micro_batches;
    spec.train.global_batch = u64::from(micro_batches) * spec.train.micro_batch;
    spec.train.precision = precision;
    assert_eq!(spec.train.clip_norm, None, "a clipped gradient is another");
    let Optimizer::AdamW { beta1, .. } = &mut spec.train.optimizer;
    *beta1 = 0.0;
    spec
}

/// The gradients of the first step of a spec that is [`short`].
pub(crate) fn gradients(spec: &Spec, origins: &Origins, kind: Kind) -> Gradients {
    near(&program(spec, origins), kind, None)
}

fn program(spec: &Spec, origins: &Origins) -> Arc<Verified> {
    Arc::new(compile(spec, origins).unwrap_or_else(|error| panic!("{error}")).program)
}

/// The gradients of the first step of a program; with `moved` at weights that are moved a little.
fn near(program: &Arc<Verified>, kind: Kind, moved: Option<u64>) -> Gradients {
    let mut engine = engine(program, kind, Options::default());
    initialise(&mut engine).unwrap();
    if let Some(seed) = moved {
        shift(&mut engine, seed);
    }
    go_on(&mut engine, Progress { step: 0, sequences: 0 }, 1);
    let moments = entries(program).into_iter().filter(|entry| entry.role == Role::Moment);
    let of = |entry: pipec_runtime::state::Entry| {
        let name = entry.name.trim_end_matches(".moment").to_owned();
        (name, read(&mut engine, entry.views[0], entry.ty.dtype))
    };
    Gradients(moments.map(of).collect())
}

/// Multiplies every weight by a number near 1, and rounds it to f32 in every precision.
fn shift(engine: &mut Engine, seed: u64) {
    let program = engine.program().clone();
    for entry in entries(&program).into_iter().filter(|entry| entry.role == Role::Weight) {
        let seed = splitmix::at(seed, u64::from(entry.parameter.0));
        let unit = |index: usize| (splitmix::at(seed, index as u64) >> 11) as f64 / (1u64 << 52) as f64 - 1.0;
        let weights = read(engine, entry.views[0], entry.ty.dtype).into_iter().enumerate();
        let moved = weights.map(|(index, weight)| (weight * (1.0 + CHANGE * unit(index))) as f32);
        let bytes: Vec<u8> = match entry.ty.dtype {
            DType::F64 => moved.flat_map(|weight| f64::from(weight).to_le_bytes()).collect(),
            _ => moved.flat_map(f32::to_le_bytes).collect(),
        };
        for view in entry.views {
            engine.write(view, &bytes).unwrap();
        }
    }
}

fn read(engine: &mut Engine, view: pipec_program::View, dtype: DType) -> Vec<f64> {
    let bytes = engine.read(view).unwrap();
    match dtype {
        DType::F64 => {
            bytes.chunks_exact(8).map(|word| f64::from_le_bytes(word.try_into().unwrap())).collect()
        }
        _ => bytes
            .chunks_exact(4)
            .map(|word| f64::from(f32::from_le_bytes(word.try_into().unwrap())))
            .collect(),
    }
}

/// The gradients of whole sequences on one device in f64, and how far those of f32 lie from theirs.
pub(crate) struct Truth {
    pub(crate) gradients: Gradients,
    /// By parameter, in parts of the norm of its gradient.
    noise: Vec<f64>,
}

impl Truth {
    /// Of the first step of a spec, with so many micro-batches.
    pub(crate) fn new(spec: &Spec, origins: &Origins, micro_batches: u32) -> Self {
        let whole = |precision| {
            let spec = short(spec, micro_batches, precision);
            program(&replan(&spec, 1, Schedule::OneFOneB, Cut::Balanced), origins)
        };
        let (single, double) = (whole(DType::F32), whole(DType::F64));
        let gradients = near(&double, Kind::Reference, None);
        let mut squares = vec![0.0; gradients.0.len()];
        for sample in 0..SAMPLES {
            let exact = near(&double, Kind::Reference, Some(sample));
            let distances = near(&single, Kind::Cpu, Some(sample)).distances(&exact);
            squares.iter_mut().zip(distances).for_each(|(sum, distance)| *sum += distance * distance);
        }
        let noise = squares.into_iter().map(|sum| (sum / SAMPLES as f64).sqrt()).collect();
        Self { gradients, noise }
    }

    /// By parameter the distance of gradients from these and how far they may be apart.
    pub(crate) fn compare(&self, found: &Gradients, precision: DType) -> Vec<(f64, f64)> {
        let scale = match precision {
            DType::F64 => QUANTILE * 2.0_f64.powi(24 - 53) * NAIVE,
            _ => QUANTILE,
        };
        let bounds = self.noise.iter().map(|noise| noise * scale);
        found.distances(&self.gradients).into_iter().zip(bounds).collect()
    }

    /// Gradients must lie within the bound.
    pub(crate) fn hold(&self, found: &Gradients, precision: DType, what: &str) {
        for ((name, _), (apart, bound)) in self.gradients.0.iter().zip(self.compare(found, precision)) {
            assert!(apart <= bound, "{what}: {name} is {apart:e} apart, the bound is {bound:e}");
        }
    }
}
