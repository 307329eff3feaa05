//! Sliced training has the gradients of whole sequences: every parameter, every schedule, within a bound of rounding; and a
//! wrong order of backward passes has not.
//!
//! # The bound
//!
//! To first order a computed gradient errs by the sum over all roundings of the step, each carried to the gradient by the
//! derivative of what follows it. A kernel of n terms errs by at most `gamma_n = n u / (1 - n u)` times the sum of their
//! absolute values. A worst case over all of them is of no use: it multiplies the absolute values of all matrices from
//! layer to layer, here about 300 a layer, and that forth and back. The roundings are taken as independent with
//! mean zero instead (Higham and Mary, 2019), so that the error of a parameter is normal with a covariance that follows
//! from the same sums. Slices change neither the terms of a sum nor what carries its error on: only the order in which it
//! is added up, in blocks, whose bound is not above that of the whole. So a sliced run draws its error from the same
//! distribution as an unsliced one, and that is sampled: at 8 points near the initial weights (each weight moved by up to a
//! thousandth, so that all roundings fall anew) the unsliced gradients in f32 are compared with those in f64. With the
//! root `sigma` of the mean square of the 8 distances, a further distance lies above 24 `sigma` with probability 1e-8 by
//! Student's t of 8 degrees of freedom; that is exact for an error in one direction, and more than enough for one in many.
//!
//! In f64 all roundings are smaller by 2^-29. The reference device adds up in ascending order where the CPU device adds in
//! blocks; by the same model the error of a sum of n terms is then larger by at most the root of n, 16 for the 256 tokens
//! over which weight gradients are summed.
//!
//! Both bounds are sharp: 24 sigma is around 1e-5 of the norm of a gradient, and around 3e-13 in f64; what is measured lies
//! within two sigma.

#[path = "slices/gradients.rs"]
mod gradients;
#[path = "slices/hand.rs"]
mod hand;

use gradients::{Gradients, Truth, gradients, short};
use hand::{Form, Model};
use pipec::show;
use pipec_compiler::schedule::{Step, Violation, given, verify};
use pipec_compiler::spec::{Cut, InFlight, Origins, Resolution, Schedule, Spec, WeightGrads};
use pipec_program::{DType, Instruction, Pass, Rule, Slice, Unit, Work};
use pipec_tests::{Kind, compile, replan, resolve};

fn svpp(virtual_stages: u32, slices: u32, weight_grads: WeightGrads) -> Schedule {
    Schedule::Svpp { virtual_stages, slices, in_flight: InFlight::Max, bias: 100, weight_grads }
}

/// Schedules with one copy of the weights, by the slices that they cut a sequence into.
fn schedules(slices: u32) -> Vec<Schedule> {
    let mut schedules = if slices == 1 {
        vec![
            Schedule::GPipe,
            Schedule::OneFOneB,
            Schedule::Interleaved { virtual_stages: 2, group: 2 },
            Schedule::BreadthFirst { virtual_stages: 2 },
            Schedule::ZbH1,
            Schedule::ZbH2,
            Schedule::ZbV,
            Schedule::VHalf,
            Schedule::VMin,
            Schedule::DualPipeV,
            Schedule::Hanayo { waves: 1 },
        ]
    } else {
        vec![
            Schedule::TeraPipe { slices },
            Schedule::Seq1F1B { virtual_stages: 1, slices },
            Schedule::Seq1F1B { virtual_stages: 2, slices },
        ]
    };
    for weight_grads in [WeightGrads::Fused, WeightGrads::Split, WeightGrads::PerGemm] {
        schedules.extend([1, 2].map(|virtual_stages| svpp(virtual_stages, slices, weight_grads)));
    }
    let auto = |memory| Schedule::Auto { virtual_stages: 2, slices, memory, effort: 0 };
    schedules.push(auto(None));
    schedules
}

/// A spec on so many devices whose sequences are cut into slices of these lengths. Where they are not equal, the order
/// comes from its file with the lengths.
fn planned(spec: &Spec, origins: &Origins, devices: u32, schedule: Schedule, lengths: &[u64]) -> Spec {
    let spec = replan(spec, devices, schedule, Cut::Balanced);
    if lengths.windows(2).all(|pair| pair[0] == pair[1]) {
        return spec;
    }
    let written = compile(&spec, origins).unwrap_or_else(|error| panic!("{schedule:?}: {error}"));
    let json = show::schedule_json(&written.replica, &written.order, lengths);
    let given = given::read("order.json", &json).unwrap();
    let mut spec = replan(&spec, devices, given.schedule(), Cut::Balanced);
    spec.pipeline.given = Some(given);
    spec
}

/// In f32 on the CPU device every schedule has one and the same gradients for the same slices, and they lie within the
/// bound. In f64 on the reference device those of whole sequences do, and those of slices GEMM by GEMM.
fn gradients_agree(file: &str, devices: u32, micro_batches: u32, cuts: &[&[u64]]) {
    let Resolution { spec, origins, .. } = resolve(file);
    let truth = Truth::new(&spec, &origins, micro_batches);
    let (single, double) = (short(&spec, micro_batches, DType::F32), short(&spec, micro_batches, DType::F64));
    for &lengths in cuts {
        let slices = lengths.len() as u32;
        let mut bits: Option<Gradients> = None;
        for schedule in schedules(slices) {
            if (schedule.virtual_stages() * devices) as usize > spec.model.pieces.len()
                || schedule == Schedule::DualPipeV && micro_batches < 2 * devices
            {
                continue;
            }
            let what = format!("{file} on {devices}, {schedule:?}, slices of {lengths:?}");
            let spec = planned(&single, &origins, devices, schedule, lengths);
            let found = gradients(&spec, &origins, Kind::Cpu);
            truth.hold(&found, DType::F32, &what);
            assert!(&found == bits.get_or_insert_with(|| found.clone()), "{what}: other bits");
        }
        let weight_grads = if slices == 1 { WeightGrads::Fused } else { WeightGrads::PerGemm };
        let schedule = svpp(1, slices, weight_grads);
        let spec = planned(&double, &origins, devices, schedule, lengths);
        let what = format!("{file} in f64 on {devices}, {schedule:?}, slices of {lengths:?}");
        truth.hold(&gradients(&spec, &origins, Kind::Reference), DType::F64, &what);
    }
}

#[test]
fn tiny_a() {
    gradients_agree("examples/reference/tiny_a.pipe", 2, 4, &[&[16], &[8, 8], &[4; 4], &[7, 5, 3, 1]]);
}

#[test]
fn tiny_b() {
    gradients_agree("examples/reference/tiny_b.pipe", 2, 4, &[&[24], &[12, 12], &[6; 4], &[2, 9, 1, 12]]);
}

#[test]
fn forty_eight_layers() {
    gradients_agree("examples/reference/tiny_48.pipe", 8, 2, &[&[16], &[4; 4], &[9, 6, 1]]);
}

/// Two copies of the weights add up the gradients of their micro-batches apart: within the bound, with other bits.
#[test]
fn two_directions() {
    let Resolution { spec, origins, .. } = resolve("examples/reference/tiny_a.pipe");
    let truth = Truth::new(&spec, &origins, 4);
    let spec = short(&spec, 4, DType::F32);
    for (devices, schedule) in [(2, Schedule::DualPipe), (2, Schedule::Chimera), (4, Schedule::Chimera)] {
        let found = gradients(&planned(&spec, &origins, devices, schedule, &[16]), &origins, Kind::Cpu);
        truth.hold(&found, DType::F32, &format!("{schedule:?} on {devices}"));
    }
}

/// Passes called by hand have the gradients of whole sequences if slices descend, and far other ones if they do not: the
/// keys and values of a slice then lack the gradients of later queries, and so does all that they are made of.
#[test]
fn gradients_tell_a_wrong_order_of_backward_passes() {
    let Resolution { spec, origins, .. } = resolve("examples/reference/tiny_a.pipe");
    let truth = Truth::new(&spec, &origins, 1);
    let spec = replan(&short(&spec, 1, DType::F64), 1, Schedule::OneFOneB, Cut::Balanced);
    let program = compile(&spec, &origins).unwrap().program;
    for lengths in [vec![16], vec![8, 8], vec![4; 4], vec![7, 5, 3, 1], vec![1; 16]] {
        let mut model = Model::new(&spec, &program, &lengths);
        let descending: Vec<usize> = (0..lengths.len()).rev().collect();
        let mut wrong = vec![(0..lengths.len()).collect::<Vec<_>>(), descending.clone()];
        wrong[1].rotate_right(1);
        for form in [Form::Fused, Form::Split] {
            let found = model.gradients(descending.iter().copied(), form);
            truth.hold(&found, DType::F64, &format!("slices of {lengths:?}, {form:?}"));
            if lengths.len() == 1 {
                continue;
            }
            for order in &wrong {
                let found = model.gradients(order.iter().copied(), form);
                let compared = truth.compare(&found, DType::F64);
                for ((name, _), (apart, bound)) in truth.gradients.0.iter().zip(compared) {
                    let of_keys_or_values = name.ends_with(".wk") || name.ends_with(".wv");
                    // What a fused pass has used up may be not a number.
                    let far = apart.is_nan() || apart > 1e6 * bound;
                    assert!(
                        far || !of_keys_or_values,
                        "{lengths:?} in order {order:?}, {form:?}: {name} is {apart:e}"
                    );
                }
            }
        }
    }
}

/// A backward pass of the mirrored slice.
fn mirrored(slices: u32, pass: Pass, unit: Unit) -> Unit {
    match pass {
        Pass::F | Pass::R => unit,
        Pass::B | Pass::W | Pass::BW => Unit { slice: Slice(slices - 1 - unit.slice.0), ..unit },
    }
}

/// What the gradients tell, the verifiers of schedules and of programs refuse before.
#[test]
fn verifiers_refuse_ascending_backward_passes() {
    let Resolution { spec, origins, .. } = resolve("examples/reference/tiny_a.pipe");
    for weight_grads in [WeightGrads::Fused, WeightGrads::Split, WeightGrads::PerGemm] {
        let spec = replan(&short(&spec, 4, DType::F32), 1, svpp(1, 4, weight_grads), Cut::Balanced);
        let compiled = compile(&spec, &origins).unwrap();
        let mut schedule = compiled.schedule.clone();
        for step in schedule.devices.values_mut().flatten() {
            *step = match *step {
                Step::Pass(pass, unit) => Step::Pass(pass, mirrored(4, pass, unit)),
                Step::Product(unit, part) => Step::Product(mirrored(4, Pass::W, unit), part),
                pair @ Step::Pair { .. } => pair,
            };
        }
        assert_eq!(verify(&compiled.problem, &compiled.schedule), []);
        let violations = verify(&compiled.problem, &schedule);
        // Three of four backward passes of each of four micro-batches come before a slice that they wait for.
        assert_eq!(violations.len(), 12, "{violations:?}");
        assert!(violations.iter().all(|violation| matches!(violation, Violation::SliceOrder(..))));

        let mut program = compiled.program.into_program();
        let queue = program.queues.values_mut().next().unwrap();
        let backward: Vec<usize> = (0..queue.instructions.len())
            .filter(|&position| {
                let Instruction::Run { work: Work::Pass(pass, unit), .. } = &queue.instructions[position]
                else {
                    return false;
                };
                matches!(pass, Pass::B | Pass::BW) && unit.micro_batch.0 == 0
            })
            .collect();
        queue.instructions.swap(backward[0], backward[1]);
        let violations = pipec_program::verify(program).unwrap_err();
        assert!(violations.list.iter().any(|violation| violation.rule == Rule::Unit), "{violations}");
    }
}
