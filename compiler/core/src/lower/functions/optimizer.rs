//! The functions of the optimizer step: norm of the gradients, clipping, update.

use super::layout::has_master;
use super::{Region, StageFunction, StageFunctions, StageParameter};
use crate::graph::accumulator_type;
use crate::spec::Optimizer;
use pipec_program::id::{Id, IdVec};
use pipec_program::{
    Access, Body, Bytes, DType, Function, Kernel, Op, Output, Param, ParamId, ParameterId, Scalar, ScalarId,
    ScalarType, TensorType, Value, ValueId,
};

/// The squared norms of the gradients of a stage, each at the number of its parameter in the vector of all parameters of
/// the model: only those of `counted` (a parameter with several copies counts once), the rest of the vector stays as it
/// is. Takes [`Region::Gradients`] and [`Region::Squares`]. None if the stage has nothing to count.
pub fn norm_function(
    name: &str,
    stage: &StageFunctions,
    counted: impl Fn(ParameterId) -> bool,
    parameters: usize,
) -> Option<StageFunction> {
    let mut places: Vec<&StageParameter> =
        stage.parameters.iter().filter(|place| counted(place.parameter)).collect();
    places.sort_by_key(|place| place.parameter);
    let mut function = Builder::new(name);
    let gradients = function.region(Region::Gradients, stage.gradients, Access::Read);
    let squares = function.region(Region::Squares, DType::F64.bytes() * parameters as u64, Access::Update);
    // One kernel for every run of consecutive numbers.
    for run in places.chunk_by(|a, b| a.parameter.index() + 1 == b.parameter.index()) {
        let inputs = run
            .iter()
            .map(|place| {
                let ty = TensorType::new(stage.gradient, &[place.elements]);
                function.value(gradients, place.gradient, ty)
            })
            .collect();
        let offset = DType::F64.bytes() * run[0].parameter.index() as u64;
        let output = function.value(squares, offset, TensorType::new(DType::F64, &[run.len() as u64]));
        function.kernel(Op::SumSquares, inputs, &[output]);
    }
    (!places.is_empty()).then(|| function.finish())
}

/// The global norm from the squared norms of all `parameters` of the model, and the factor that brings it down to
/// `limit`. Takes [`Region::Squares`], [`Region::Norm`] and [`Region::Factor`].
pub fn clip_function(name: &str, parameters: usize, limit: f64) -> StageFunction {
    let mut function = Builder::new(name);
    let squares_type = TensorType::new(DType::F64, &[parameters as u64]);
    let (norm_type, factor_type) = (TensorType::new(DType::F64, &[1]), TensorType::new(DType::F32, &[1]));
    let squares = function.region(Region::Squares, squares_type.bytes(), Access::Read);
    let norm = function.region(Region::Norm, norm_type.bytes(), Access::Write);
    let factor = function.region(Region::Factor, factor_type.bytes(), Access::Write);
    let squares = function.value(squares, Bytes::ZERO, squares_type);
    let norm = function.value(norm, Bytes::ZERO, norm_type);
    let factor = function.value(factor, Bytes::ZERO, factor_type);
    function.kernel(Op::ClipFactor { limit }, vec![squares], &[norm, factor]);
    function.finish()
}

/// The optimizer step of a stage, one kernel for every contiguous range of its parameters. Takes [`Region::Weights`],
/// [`Region::Gradients`], [`Region::Moment`], [`Region::Variance`], [`Region::Master`] where the weights are shorter than
/// f32, [`Region::Factor`] when `clip` is set, and the scalars `learning_rate` and `step`. None if the stage has no
/// parameters.
pub fn update_function(
    name: &str,
    stage: &StageFunctions,
    optimizer: Optimizer,
    clip: bool,
) -> Option<StageFunction> {
    let Optimizer::AdamW { beta1, beta2, eps, weight_decay } = optimizer;
    let mut function = Builder::new(name);
    let weights = function.region(Region::Weights, stage.weights, Access::Update);
    let gradients = function.region(Region::Gradients, stage.gradients, Access::Read);
    let moment = function.region(Region::Moment, stage.moments, Access::Update);
    let variance = function.region(Region::Variance, stage.moments, Access::Update);
    let master =
        has_master(stage.precision).then(|| function.region(Region::Master, stage.moments, Access::Update));
    let factor = clip.then(|| {
        let ty = TensorType::new(DType::F32, &[1]);
        let region = function.region(Region::Factor, ty.bytes(), Access::Read);
        function.value(region, Bytes::ZERO, ty)
    });
    let learning_rate = function.scalar("learning_rate", ScalarType::Real);
    let step = function.scalar("step", ScalarType::Integer);
    let moments = accumulator_type(stage.precision);
    let touches =
        |a: &StageParameter, b: &StageParameter| a.moment + moments.bytes() * a.elements == b.moment;
    for range in stage.parameters.chunk_by(touches) {
        let first = &range[0];
        let elements = range.iter().map(|place| place.elements).sum();
        let ty = |dtype| TensorType::new(dtype, &[elements]);
        let mut inputs = vec![function.value(gradients, first.gradient, ty(stage.gradient))];
        inputs.extend(factor);
        let mut outputs = vec![
            function.value(weights, first.weight, ty(stage.precision)),
            function.value(moment, first.moment, ty(moments)),
            function.value(variance, first.moment, ty(moments)),
        ];
        outputs.extend(master.map(|master| function.value(master, first.moment, ty(moments))));
        let op = Op::AdamW { beta1, beta2, eps, weight_decay, learning_rate, step };
        function.kernel(op, inputs, &outputs);
    }
    (!stage.parameters.is_empty()).then(|| function.finish())
}

/// A function under construction.
struct Builder {
    name: String,
    params: IdVec<ParamId, Param>,
    regions: IdVec<ParamId, Region>,
    scalars: IdVec<ScalarId, Scalar>,
    values: IdVec<ValueId, Value>,
    kernels: Vec<Kernel>,
}

impl Builder {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            params: IdVec::new(),
            regions: IdVec::new(),
            scalars: IdVec::new(),
            values: IdVec::new(),
            kernels: Vec::new(),
        }
    }

    fn region(&mut self, region: Region, bytes: Bytes, access: Access) -> ParamId {
        self.regions.push(region);
        self.params.push(Param { name: region.name().into_owned(), bytes, access })
    }

    fn scalar(&mut self, name: &str, ty: ScalarType) -> ScalarId {
        self.scalars.push(Scalar { name: name.to_owned(), ty })
    }

    fn value(&mut self, param: ParamId, offset: Bytes, ty: TensorType) -> ValueId {
        self.values.push(Value { param, offset, ty })
    }

    fn kernel(&mut self, op: Op, inputs: Vec<ValueId>, outputs: &[ValueId]) {
        let outputs = outputs.iter().map(|&value| Output { value, accumulate: false }).collect();
        self.kernels.push(Kernel { op, inputs, outputs });
    }

    fn finish(self) -> StageFunction {
        let body = Body::Kernels { values: self.values, kernels: self.kernels };
        let function =
            Function { name: self.name, params: self.params, scalars: self.scalars, pair: None, body };
        StageFunction { function, regions: self.regions }
    }
}
