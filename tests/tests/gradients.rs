//! Every gradient of every op against central differences, through the functions of a stage, in f64 on the reference
//! device; and passes that are cut or split against passes that are not, bit for bit.

#[path = "gradients/layers.rs"]
mod layers;
#[path = "gradients/stage.rs"]
mod stage;

use layers::Sample;
use pipec_compiler::graph;
use pipec_compiler::mode::{self, Extent, Form, Phase};
use pipec_compiler::rewrite::{self, Rates};
use pipec_compiler::spec::{Layer, LayerId, Model, Op, Unary};
use pipec_program::id::IdVec;
use pipec_program::{BytesPerSecond, DType, FlopsPerSecond, Mask, Pairing, RopeScaling};
use stage::Stage;

/// Sequences and tokens of a micro-batch.
const SEQUENCES: u64 = 2;
const TOKENS: u64 = 3;

/// The step of the differences, a power of two so that it changes no other digit of a number.
const STEP: f64 = 1.0 / 1024.0;

/// Compares all gradients of a single layer with differences.
fn check(name: &str, layer: Layer, constants: f64) {
    check_model(name, &layers::single(layer), constants);
}

/// Compares all gradients of a model on a single stage with differences.
///
/// With `D(h)` the central difference, `(4 D(h) - D(2h)) / 3` errs by a multiple of `h^4` of the fifth derivative; the
/// leading error that it removes is `(D(2h) - D(h)) / 3`. With h = 2^-10 and numbers around 1 the rest is below a 64th
/// of what is removed, or else below 2^-32 of the sum of absolute terms, which also covers the roundings of f64 that the
/// quotient magnifies by 2^10. `constants` bounds the relative error of constants that only the gradient has.
fn check_model(name: &str, model: &Model, constants: f64) {
    let mut stage = Stage::new(model, &forms(model), 0..model.pieces.len());
    stage.randomize(7);
    stage.forward();
    stage.backward();
    let gradients = stage.gradients();
    let largest = gradients.iter().flat_map(|(_, values)| values).fold(1.0_f64, |a, b| a.max(b.abs()));
    for (place, values) in gradients {
        for (index, &gradient) in values.iter().enumerate() {
            let mut value = |offset: f64| {
                let before = stage.get(place, index);
                stage.set(place, index, before + offset);
                stage.forward();
                stage.set(place, index, before);
                stage.objective()
            };
            let mut difference = |step: f64| {
                let ((above, size), (below, _)) = (value(step), value(-step));
                ((above - below) / (2.0 * step), size)
            };
            let ((near, size), (far, _)) = (difference(STEP), difference(2.0 * STEP));
            let expected = (4.0 * near - far) / 3.0;
            let bound = (far - near).abs() / 64.0 + size.max(1.0) / 4294967296.0 + constants * largest;
            assert!(
                (expected - gradient).abs() <= bound,
                "{name}, {place:?}[{index}]: {gradient} by the gradient, {expected} by differences, bound {bound}"
            );
        }
    }
}

/// A micro-batch of whole sequences.
const WHOLE: Extent<'_> = Extent { sequences: SEQUENCES, lengths: &[TOKENS], slice: 0, reach: None };

/// Of a device on which products take longer than what moves.
const RATES: Rates = Rates {
    compute: FlopsPerSecond(100_000_000_000),
    bandwidth: BytesPerSecond(10_000_000_000),
    host: false,
};

fn forms(model: &Model) -> IdVec<LayerId, Form> {
    let build = |layer| {
        let graph = graph::build(layer, DType::F64);
        assert_eq!(graph::verify(&graph), Vec::<String>::new(), "{}", graph::print(&graph));
        let (layer, _) = rewrite::layer(&graph, &[WHOLE], RATES).unwrap();
        let form = mode::form(&layer, &layer.modes[mode::ModeId(0)], WHOLE);
        assert_eq!(mode::verify(&form), Vec::<String>::new(), "{}", mode::print(&form));
        form
    };
    model.layers.values().map(build).collect()
}

#[test]
fn linear() {
    for bias in [false, true] {
        let mut layer = Sample::new();
        let x = layer.input(3);
        let y = layer.linear(x, 4, bias);
        check("linear", layer.output(&[y]), 0.0);
    }
}

#[test]
fn norms() {
    for heads in [1, 2] {
        let mut layer = Sample::new();
        let x = layer.input(6);
        let x = layer.heads(x, heads);
        let y = layer.rms_norm(x);
        check("rms_norm", layer.output(&[y]), 0.0);
        let mut layer = Sample::new();
        let x = layer.input(6);
        let x = layer.heads(x, heads);
        let y = layer.layer_norm(x);
        check("layer_norm", layer.output(&[y]), 0.0);
    }
}

#[test]
fn rope() {
    let long = RopeScaling { factor: 8.0, low: 1.0, high: 4.0, original: 16 };
    for pairing in [Pairing::Half, Pairing::Adjacent] {
        for (rotary, scaling) in [(4, None), (2, None), (4, Some(long))] {
            let mut layer = Sample::new();
            let x = layer.input(8);
            let x = layer.heads(x, 2);
            let y = layer.like(x, Op::Rope { x, rotary, base: 100.0, pairing, scaling });
            check("rope", layer.output(&[y]), 0.0);
        }
    }
}

#[test]
fn attention() {
    for mask in [Mask::Full, Mask::Causal, Mask::Window { size: 2 }] {
        for kv_heads in [1, 2] {
            let mut layer = Sample::new();
            let (q, k, v) = (layer.input(4), layer.input(2 * kv_heads), layer.input(2 * kv_heads));
            let (q, k, v) = (layer.heads(q, 2), layer.heads(k, kv_heads), layer.heads(v, kv_heads));
            let o = layer.attention(q, k, v, mask);
            check("attention", layer.output(&[o]), 0.0);
        }
        // All three at once, and the operand goes on.
        let mut layer = Sample::new();
        let x = layer.input(4);
        let h = layer.heads(x, 2);
        let o = layer.attention(h, h, h, mask);
        let o = layer.heads(o, 1);
        let y = layer.mul(x, o);
        check("attention to itself", layer.output(&[y]), 0.0);
    }
}

#[test]
fn element_wise() {
    // The slope of the error function has a constant of its own, rounded to f32.
    for (function, constants) in
        [(Unary::Silu, 0.0), (Unary::Gelu, 1.0 / 16777216.0), (Unary::GeluTanh, 0.0), (Unary::Relu, 0.0)]
    {
        let mut layer = Sample::new();
        let x = layer.input(3);
        let y = layer.unary(function, x);
        check("unary", layer.output(&[y]), constants);
    }
    let mut layer = Sample::new();
    let (a, b) = (layer.input(3), layer.input(3));
    let product = layer.mul(a, b);
    let sum = layer.add(product, a);
    let scaled = layer.like(sum, Op::Scale { x: sum, factor: 1.5 });
    let square = layer.mul(scaled, scaled);
    let dropped = layer.like(square, Op::Dropout { x: square, p: 0.25 });
    check("expression", layer.output(&[dropped]), 0.0);
}

#[test]
fn softmax() {
    for heads in [1, 2] {
        let mut layer = Sample::new();
        let x = layer.input(6);
        let x = layer.heads(x, heads);
        let y = layer.like(x, Op::Softmax { x });
        check("softmax", layer.output(&[y]), 0.0);
    }
}

#[test]
fn tables() {
    let mut layer = Sample::new();
    let x = layer.embedding(5, 4);
    let table = layer.slot(&[6, 4]);
    let x = layer.like(x, Op::Positions { x, table, first: 2 });
    check("embedding and positions", layer.output(&[x]), 0.0);
}

#[test]
fn cross_entropy() {
    for ignore in [None, Some(1)] {
        let mut layer = Sample::new();
        let x = layer.input(3);
        let logits = layer.linear(x, 5, false);
        check("cross_entropy", layer.loss(logits, ignore), 0.0);
    }
    // Nothing between the input and the loss: the gradient of the logits is what goes out.
    let mut layer = Sample::new();
    let logits = layer.input(5);
    check("cross_entropy", layer.loss(logits, None), 0.0);
}

#[test]
fn slots_and_values_used_again() {
    let mut layer = Sample::new();
    let x = layer.input(4);
    let weight = layer.slot(&[4, 4]);
    let a = layer.like(x, Op::Linear { x, weight, bias: None });
    let b = layer.like(x, Op::Linear { x: a, weight, bias: None });
    let gain = layer.slot(&[4]);
    let c = layer.like(x, Op::RmsNorm { x: b, gain, eps: 1e-5 });
    let d = layer.like(x, Op::RmsNorm { x, gain, eps: 1e-5 });
    let roped = layer.like(x, Op::Rope { x, rotary: 4, base: 10.0, pairing: Pairing::Half, scaling: None });
    let sum = layer.add(c, d);
    let sum = layer.add(sum, roped);
    let sum = layer.add(sum, x);
    let y = layer.mul(sum, a);
    let soft = layer.like(x, Op::Softmax { x: y });
    check("reuse", layer.output(&[y, a, soft]), 0.0);
}

#[test]
fn values_that_pass_by() {
    let mut layer = Sample::new();
    let (x, skip, _unread) = (layer.input(4), layer.input(4), layer.input(2));
    let y = layer.rms_norm(x);
    let z = layer.add(y, skip);
    check("passing by", layer.output(&[skip, z, x, z]), 0.0);
}

#[test]
fn whole_layers() {
    check("llama", layers::llama(4, 2, 1, 6), 0.0);
    check("gpt", layers::gpt(4, 2), 0.0);
    check("parallel", layers::parallel(4, 2), 0.0);
}

/// Embedding, layers and a head that is tied to the embedding.
#[test]
fn whole_models() {
    check_model("llama", &layers::model(layers::llama(4, 2, 1, 6), 1, 5), 0.0);
    check_model("gpt", &layers::model(layers::gpt(4, 2), 1, 5), 0.0);
}

/// The same loss and the same gradients, bit for bit, however a model is cut into stages.
#[test]
fn cuts_give_the_same_bits() {
    for layer in [layers::llama(4, 2, 1, 6), layers::gpt(4, 2)] {
        let model = layers::model(layer, 2, 5);
        let forms = forms(&model);
        let run = |ends: &[usize]| {
            let starts = std::iter::once(0).chain(ends.iter().copied());
            let mut stages: Vec<Stage> =
                starts.zip(ends).map(|(start, &end)| Stage::new(&model, &forms, start..end)).collect();
            for stage in &mut stages {
                stage.randomize(11);
            }
            for number in 0..stages.len() {
                stages[number].forward();
                if number + 1 < stages.len() {
                    let message = stages[number].output();
                    stages[number + 1].set_input(&message);
                }
            }
            for number in (0..stages.len()).rev() {
                stages[number].backward();
                if number > 0 {
                    let message = stages[number].input_gradient();
                    stages[number - 1].set_output_gradient(&message);
                }
            }
            let loss = stages.last().map(Stage::loss);
            // A tied parameter has a gradient on each stage that uses it, and the sum counts.
            let mut gradients = vec![Vec::new(); model.parameters.len()];
            for (parameter, values) in stages.iter().flat_map(Stage::parameter_gradients) {
                let sum: &mut Vec<f64> = &mut gradients[parameter.0 as usize];
                sum.resize(values.len(), 0.0);
                for (sum, value) in sum.iter_mut().zip(&values) {
                    *sum += value;
                }
            }
            (loss, gradients)
        };
        let whole = run(&[4]);
        for ends in [vec![1, 4], vec![2, 4], vec![3, 4], vec![1, 2, 3, 4]] {
            let cut = run(&ends);
            assert_eq!(cut.0, whole.0);
            for (parameter, (cut, whole)) in cut.1.iter().zip(&whole.1).enumerate() {
                if parameter == 0 {
                    // The two uses of the tied table are summed in another order.
                    let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 8.0 * f64::EPSILON * (1.0 + a.abs());
                    assert!(cut.iter().zip(whole).all(close), "{ends:?}");
                } else {
                    assert_eq!(cut, whole, "parameter {parameter}, {ends:?}");
                }
            }
        }
    }
}

/// The input gradient alone, then the weight gradients: the same bits as both at once, in any order of kernels that
/// keeps the order within the two.
#[test]
fn split_passes_give_the_same_bits() {
    for layer in [layers::llama(4, 2, 1, 6), layers::gpt(4, 2)] {
        let model = layers::model(layer, 2, 5);
        let fused = forms(&model);
        let split: IdVec<LayerId, Form> = fused
            .values()
            .map(|form| {
                let mut form = form.clone();
                form.backward.sort_by_key(|(phase, _)| *phase == Phase::W);
                assert_eq!(mode::verify(&form), Vec::<String>::new());
                form
            })
            .collect();
        let inputs_only: IdVec<LayerId, Form> = fused
            .values()
            .map(|form| {
                let mut form = form.clone();
                form.backward.retain(|(phase, _)| *phase == Phase::B);
                assert_eq!(mode::verify(&form), Vec::<String>::new());
                form
            })
            .collect();
        for pieces in [0..4, 0..2, 1..3, 2..4, 3..4] {
            let run = |forms: &IdVec<LayerId, Form>| {
                let mut stage = Stage::new(&model, forms, pieces.clone());
                stage.randomize(3);
                stage.forward();
                stage.backward();
                (stage.input_gradient(), stage.parameter_gradients())
            };
            let fused = run(&fused);
            assert_eq!(run(&split), fused);
            assert_eq!(run(&inputs_only).0, fused.0);
        }
    }
}

/// The forward pass of dropout keeps a share of 1 - p and its backward pass drops the same.
#[test]
fn dropout_keeps_its_share() {
    let mut layer = Sample::new();
    let x = layer.input(500);
    let y = layer.like(x, Op::Dropout { x, p: 0.25 });
    let model = layers::single(layer.output(&[y]));
    let mut stage = Stage::new(&model, &forms(&model), 0..1);
    stage.set_input(&vec![1.0; 3000]);
    stage.set_output_gradient(&vec![1.0; 3000]);
    stage.forward();
    stage.backward();
    let output = stage.output();
    assert!(output.iter().all(|&value| value == 0.0 || (value - 4.0 / 3.0).abs() < 1e-7));
    // The standard deviation of the share is 0.008.
    let kept = output.iter().filter(|&&value| value != 0.0).count() as f64 / 3000.0;
    assert!((kept - 0.75).abs() < 0.03, "{kept}");
    assert_eq!(stage.input_gradient(), output);
}
