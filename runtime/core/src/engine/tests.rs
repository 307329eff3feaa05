use super::exchange::Exchange;
use super::*;
use crate::arena::{Arena, Region};
use crate::data::Batches;
use crate::device::ScalarValue;
use crate::reference::ReferenceDevice;
use crate::state;
use crate::testing;
use pipec_program::{DType, Function, Timeline};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

fn reference(_: DeviceId, _: &Description, _: Space) -> Result<Box<dyn Device>, DeviceError> {
    Ok(Box::new(ReferenceDevice::new()))
}

fn engine(program: &Arc<Verified>, options: Options) -> Engine {
    let mut engine = Engine::new(program.clone(), options, reference).expect("the engine");
    state::initialise(&mut engine).expect("the state");
    engine
}

fn inputs(program: &Program, step: u64) -> StepInputs {
    let mut batches = Batches::open(program, Path::new("")).expect("the data");
    let fed = batches.step((step - 1) * batches.sequences_per_step()).expect("the tokens");
    StepInputs {
        step,
        learning_rate: program.training.learning_rate.at(step),
        loss_scale: 1.0 / fed.targets.len() as f64,
        seed: program.training.seed,
        tokens: fed.tokens,
        targets: fed.targets,
    }
}

/// Losses, norms and the bytes of all parameters after some steps.
fn trained(program: &Arc<Verified>, options: Options, steps: u64) -> (Vec<Vec<f64>>, Vec<f64>, Vec<Vec<u8>>) {
    let mut engine = engine(program, options);
    let (mut losses, mut norms) = (Vec::new(), Vec::new());
    for step in 1..=steps {
        let output = engine.run_step(&inputs(program, step)).expect("a step");
        losses.push(output.losses);
        norms.extend(output.gradient_norm);
    }
    let weights =
        state::entries(program).iter().map(|entry| engine.read(entry.views[0]).expect("the state")).collect();
    (losses, norms, weights)
}

#[test]
fn two_devices_train_to_the_same_bits_as_one_and_again() {
    let one = trained(&testing::one_device(), Options::default(), 20);
    let two = trained(&testing::two_devices(0), Options::default(), 20);
    let again = trained(&testing::two_devices(0), Options::default(), 20);
    let buffered = trained(&testing::two_devices(2), Options::default(), 20);
    assert_eq!(one, two);
    assert_eq!(two, again);
    assert_eq!(two, buffered);
    let mean = |losses: &[Vec<f64>]| losses.iter().flatten().sum::<f64>() / losses.len() as f64 / 12.0;
    // A uniform guess among 11 tokens costs ln 11 = 2.40.
    let (start, end) = (mean(&one.0[..3]), mean(&one.0[17..]));
    assert!(start > 2.2 && end < 0.85 * start, "{start} to {end}");
    assert!(one.1.iter().all(|norm| norm.is_finite() && *norm > 0.0));
}

#[test]
fn painted_arenas_change_nothing_and_are_touched_as_planned() {
    let program = testing::two_devices(0);
    let plain = trained(&program, Options::default(), 2);
    assert_eq!(plain, trained(&program, Options { paint: true }, 2));
    let mut engine = engine(&program, Options { paint: true });
    engine.run_step(&inputs(&program, 1)).expect("a step");
    let planned = engine.arena_bytes();
    assert_eq!(planned.len(), 2);
    for (key, touched) in engine.touched() {
        assert_eq!(touched.high_water, planned[&key]);
        // The buffers of this program lie side by side and all of them are written.
        assert_eq!(touched.bytes, planned[&key]);
    }
}

#[test]
fn events_make_a_timeline_of_all_instructions() {
    for program in [testing::two_devices(0), testing::two_devices(1), testing::one_device()] {
        let mut engine = engine(&program, Options::default());
        assert!(engine.run_step(&inputs(&program, 1)).expect("a step").events.is_empty());
        engine.record(true);
        let output = engine.run_step(&inputs(&program, 2)).expect("a step");
        let instructions = program.queues.values().flat_map(|queue| &queue.instructions);
        let working =
            instructions.filter(|instruction| !matches!(instruction, Instruction::Wait { .. })).count();
        assert_eq!(output.events.len(), working);
        let timeline = Timeline::measured(&program, output.events).expect("events in order");
        assert!(timeline.makespan() <= output.elapsed);
    }
}

#[test]
fn tokens_of_the_wrong_number_are_refused_before_the_step() {
    let program = testing::one_device();
    let mut engine = engine(&program, Options::default());
    let mut short = inputs(&program, 1);
    short.targets.pop();
    assert_eq!(engine.run_step(&short), Err(EngineError::FeedSize { expected: 12, found: 11 }));
    engine.run_step(&inputs(&program, 1)).expect("the engine is unharmed");
}

#[test]
fn a_stall_is_an_error_and_no_hang() {
    let program = testing::two_devices(0);
    let exchange = Exchange::new(&program, program.devices.len());
    std::thread::scope(|scope| {
        scope.spawn(|| exchange.sleep(0));
        scope.spawn(|| exchange.sleep(1));
    });
    assert_eq!(exchange.into_failure(), Some(EngineError::Stalled));
}

/// What a failing device fails at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Compile,
    Run,
    Copy,
    Add,
    Fill,
}

/// Computes as the reference device, but fails or panics at its n-th call of a kind.
struct Failing {
    inner: ReferenceDevice,
    fault: Fault,
    left: u32,
    panics: bool,
}

impl Failing {
    fn pass(&mut self, fault: Fault) -> Result<(), DeviceError> {
        if fault != self.fault {
            return Ok(());
        }
        if self.left > 0 {
            self.left -= 1;
            return Ok(());
        }
        assert!(!self.panics, "out of order");
        Err(DeviceError::Failed("out of order".to_owned()))
    }
}

impl Device for Failing {
    fn kind(&self) -> &'static str {
        "failing"
    }
    fn allocate(&mut self, space: Space, bytes: Bytes) -> Result<Arena, DeviceError> {
        self.inner.allocate(space, bytes)
    }
    fn compile(&mut self, function: &Function) -> Result<Compiled, DeviceError> {
        self.pass(Fault::Compile)?;
        self.inner.compile(function)
    }
    fn run(
        &mut self,
        function: Compiled,
        regions: &[Region<'_>],
        scalars: &[ScalarValue],
    ) -> Result<(), DeviceError> {
        self.pass(Fault::Run)?;
        self.inner.run(function, regions, scalars)
    }
    fn copy(&mut self, from: Region<'_>, to: Region<'_>) -> Result<(), DeviceError> {
        self.pass(Fault::Copy)?;
        self.inner.copy(from, to)
    }
    fn fill(&mut self, to: Region<'_>) -> Result<(), DeviceError> {
        self.pass(Fault::Fill)?;
        self.inner.fill(to)
    }
    fn add(&mut self, dtype: DType, from: Region<'_>, to: Region<'_>) -> Result<(), DeviceError> {
        self.pass(Fault::Add)?;
        self.inner.add(dtype, from, to)
    }
    fn scratch(&self) -> Bytes {
        Bytes::ZERO
    }
}

/// The error of a run whose device `device` fails, and the error of a step after it. Fails the test if the run hangs.
fn failure(
    capacity: u32,
    device: u32,
    fault: Fault,
    left: u32,
    panics: bool,
) -> (EngineError, Option<EngineError>) {
    let (done, result) = mpsc::channel();
    std::thread::spawn(move || {
        let program = testing::two_devices(capacity);
        let made = Engine::new(program.clone(), Options::default(), |id, description, _| {
            if id == DeviceId(device) {
                return Ok(Box::new(Failing { inner: ReferenceDevice::new(), fault, left, panics }));
            }
            reference(id, description, Space::Device)
        });
        let outcome = match made {
            Err(error) => (error, None),
            Ok(mut engine) => {
                state::initialise(&mut engine).expect("the state");
                let first = engine.run_step(&inputs(&program, 1)).expect_err("a failing device");
                (first, engine.run_step(&inputs(&program, 1)).err())
            }
        };
        // Only a test that has given up does not listen.
        let _ = done.send(outcome);
    });
    result.recv_timeout(Duration::from_secs(20)).expect("the run ends")
}

#[test]
fn a_failing_device_stops_all_and_is_named() {
    let message = |capacity, device, fault, left| {
        let (error, later) = failure(capacity, device, fault, left, false);
        assert_eq!(later, Some(EngineError::Stopped));
        error.to_string()
    };
    insta::assert_snapshot!(message(0, 0, Fault::Run, 1), @"device d0 (cpu) at q0:2, run f0 `forward_g0`, F g0.m1.i0: out of order");
    insta::assert_snapshot!(message(0, 1, Fault::Run, 3), @"device d1 (cpu) at q4:6, run f2 `backward_g1`, BW g1.m1.i0: out of order");
    insta::assert_snapshot!(message(0, 1, Fault::Copy, 1), @"device d1 (cpu) at q6:1, recv c0, F g0.m1.i0: out of order");
    insta::assert_snapshot!(message(1, 0, Fault::Copy, 0), @"device d0 (cpu) at q1:1, send c0, F g0.m0.i0: out of order");
    insta::assert_snapshot!(message(0, 0, Fault::Add, 0), @"device d0 (cpu) at q3:1, reduce r0, norm: out of order");
    insta::assert_snapshot!(message(0, 1, Fault::Fill, 0), @"device d1 (cpu) at q4:0, fill: out of order");
}

#[test]
fn a_panicking_device_stops_all_and_is_named() {
    let (error, later) = failure(0, 1, Fault::Run, 0, true);
    insta::assert_snapshot!(error, @"device d1 (cpu) at q4:2, run f1 `forward_g1`, F g1.m0.i0: internal error: out of order");
    assert_eq!(later, Some(EngineError::Stopped));
}

#[test]
fn a_function_that_does_not_compile_is_an_error_of_the_setup() {
    let (error, _) = failure(0, 1, Fault::Compile, 0, false);
    insta::assert_snapshot!(error, @"device d1 (cpu): out of order");
}
