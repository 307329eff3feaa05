use super::*;
use crate::data::Batches;
use crate::engine::Options;
use crate::reference::ReferenceDevice;
use crate::testing;
use crate::train::{Checkpoints, Ending, Metrics, NotFinite, Observer, Run, TrainError, train};
use pipec_program::Verified;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

fn engine(program: &Arc<Verified>) -> Engine {
    let mut engine =
        Engine::new(program.clone(), Options::default(), |_, _, _| Ok(Box::new(ReferenceDevice::new())))
            .expect("the engine");
    state::initialise(&mut engine).expect("the state");
    engine
}

/// Remembers losses and saves; asks for an end after some steps.
struct Watch {
    losses: Vec<f64>,
    saved: Vec<PathBuf>,
    stop_at: u64,
    stop: Arc<AtomicBool>,
}

impl Watch {
    fn new(stop_at: u64) -> Self {
        Self { losses: Vec::new(), saved: Vec::new(), stop_at, stop: Arc::default() }
    }
}

impl Observer for Watch {
    fn step(&mut self, metrics: &Metrics) {
        self.losses.push(metrics.loss);
        self.stop.store(metrics.step == self.stop_at, Ordering::Relaxed);
    }
    fn saved(&mut self, path: &Path) {
        self.saved.push(path.to_owned());
    }
}

fn run(steps: u64, folder: Option<&TempDir>, every: u64) -> Run {
    let checkpoints = folder.map(|folder| Checkpoints { folder: folder.path().join("run"), every, keep: 2 });
    Run { steps, checkpoints, not_finite: NotFinite::Stop }
}

fn go(engine: &mut Engine, from: Progress, run: &Run, watch: &mut Watch) -> Result<Ending, TrainError> {
    let mut batches = Batches::open(engine.program(), Path::new("")).expect("the data");
    let stop = watch.stop.clone();
    train(engine, &mut batches, from, run, &stop, watch)
}

fn bytes(engine: &mut Engine) -> Vec<(String, Vec<u8>)> {
    let program = engine.program().clone();
    let read = |entry: Entry| {
        let copies: Vec<Vec<u8>> =
            entry.views.iter().map(|&view| engine.read(view).expect("the state")).collect();
        (entry.name, copies.concat())
    };
    state::entries(&program).into_iter().map(read).collect()
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// An engine after three steps, with its checkpoint.
fn saved(folder: &TempDir) -> (Engine, PathBuf) {
    let mut engine = engine(&testing::two_devices(0));
    let ending =
        go(&mut engine, Progress::default(), &run(3, None, 0), &mut Watch::new(0)).expect("three steps");
    assert_eq!(ending, Ending::Complete(Progress { step: 3, sequences: 12 }));
    let path =
        save(&mut engine, Progress { step: 3, sequences: 12 }, folder.path(), 0).expect("a checkpoint");
    (engine, path)
}

#[test]
fn a_run_resumes_to_the_same_bits_also_on_another_number_of_devices() {
    let folder = folder();
    let mut whole = engine(&testing::two_devices(0));
    let mut watch = Watch::new(0);
    go(&mut whole, Progress::default(), &run(7, None, 0), &mut watch).expect("seven steps");

    let mut first = engine(&testing::two_devices(0));
    let mut stopped = Watch::new(3);
    let ending =
        go(&mut first, Progress::default(), &run(7, Some(&folder), 0), &mut stopped).expect("three steps");
    assert_eq!(ending, Ending::Stopped(Progress { step: 3, sequences: 12 }));
    assert_eq!(stopped.losses[..], watch.losses[..3]);
    for program in [testing::two_devices(0), testing::one_device()] {
        let mut second = engine(&program);
        let path = latest(&folder.path().join("run")).expect("the folder").expect("a checkpoint");
        let from = load(&mut second, &path).expect("the checkpoint");
        let mut resumed = Watch::new(0);
        let ending = go(&mut second, from, &run(7, None, 0), &mut resumed).expect("four steps");
        assert_eq!(ending, Ending::Complete(Progress { step: 7, sequences: 28 }));
        assert_eq!(resumed.losses[..], watch.losses[3..]);
        assert_eq!(bytes(&mut second), bytes(&mut whole));
    }
}

#[test]
fn the_latest_checkpoints_are_kept() {
    let folder = folder();
    let mut engine = engine(&testing::one_device());
    let mut watch = Watch::new(0);
    go(&mut engine, Progress::default(), &run(7, Some(&folder), 2), &mut watch).expect("seven steps");
    let names = |paths: Vec<PathBuf>| -> Vec<String> {
        paths
            .iter()
            .filter_map(|path| path.file_name())
            .map(|name| name.to_string_lossy().into_owned())
            .collect()
    };
    assert_eq!(names(watch.saved), ["step-000002", "step-000004", "step-000006", "step-000007"]);
    let mut left: Vec<PathBuf> = fs::read_dir(folder.path().join("run"))
        .expect("the folder")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    left.sort();
    assert_eq!(names(left), ["step-000006", "step-000007"]);
}

#[test]
fn a_checkpoint_that_was_not_finished_does_not_count() {
    let folder = folder();
    let (mut engine, path) = saved(&folder);
    fs::create_dir(folder.path().join("step-000009.partial")).expect("a folder");
    assert_eq!(latest(folder.path()).expect("the folder"), Some(path.clone()));
    // While a checkpoint is being replaced, the old one counts.
    let old = folder.path().join("step-000003.old");
    fs::rename(&path, &old).expect("a rename");
    assert_eq!(latest(folder.path()).expect("the folder"), Some(old));
    let progress = Progress { step: 3, sequences: 12 };
    assert_eq!(save(&mut engine, progress, folder.path(), 0).expect("a checkpoint"), path);
    assert_eq!(save(&mut engine, progress, folder.path(), 0).expect("the same again"), path);
    assert_eq!(load(&mut engine, &path).expect("the checkpoint"), progress);
    assert_eq!(latest(&folder.path().join("nothing")).expect("no folder"), None);
}

#[test]
fn weights_are_plain_safetensors() {
    let folder = folder();
    let (mut engine, path) = saved(&folder);
    let content = fs::read(path.join(WEIGHTS)).expect("the file");
    let tensors = safetensors::SafeTensors::deserialize(&content).expect("safetensors");
    assert_eq!(tensors.tensor("head").expect("the head").shape(), [11, 6]);
    let expected = bytes(&mut engine);
    let embed = tensors.tensor("embed").expect("the table");
    assert_eq!(expected[0], ("embed".to_owned(), embed.data().to_vec()));

    let mut fresh = super::tests::engine(&testing::one_device());
    load_weights(&mut fresh, &path.join(WEIGHTS)).expect("the weights");
    let (fresh_bytes, zero) = (bytes(&mut fresh), vec![0; 11 * 6 * 4]);
    assert_eq!((&fresh_bytes[0], &fresh_bytes[1].1), (&expected[0], &zero));
    let file = folder.path().join("export.safetensors");
    save_weights(&mut fresh, &file).expect("an export");
    assert_eq!(fs::read(file).expect("the export"), content);
}

/// Damages a checkpoint by `damage`, and returns the error of loading it; the engine must be unchanged.
fn damaged(damage: impl FnOnce(&Path)) -> CheckpointError {
    let folder = folder();
    let (_, path) = saved(&folder);
    damage(&path);
    let mut other = engine(&testing::one_device());
    let before = bytes(&mut other);
    let error = load(&mut other, &path).expect_err("a damaged checkpoint");
    assert_eq!(bytes(&mut other), before);
    error
}

/// Changes the text of a file.
fn edit(path: &Path, from: &str, to: &str) {
    let mut content = fs::read(path).expect("the file");
    let at = content.windows(from.len()).position(|window| window == from.as_bytes()).expect("the text");
    content.splice(at..at + from.len(), to.bytes());
    fs::write(path, content).expect("the file");
}

#[test]
fn damaged_checkpoints_are_refused_and_change_nothing() {
    let reason = |error: CheckpointError| match error {
        CheckpointError::Damaged { path, reason } => {
            format!("{}: {reason}", path.file_name().unwrap_or_default().to_string_lossy())
        }
        other => panic!("{other}"),
    };
    let truncated = damaged(|path| {
        let content = fs::read(path.join(OPTIMIZER)).expect("the file");
        fs::write(path.join(OPTIMIZER), &content[..content.len() - 1]).expect("the file");
    });
    insta::assert_snapshot!(reason(truncated), @"optimizer.safetensors: it has 1351 bytes instead of 1352");
    let empty = damaged(|path| fs::write(path.join(WEIGHTS), b"").expect("the file"));
    insta::assert_snapshot!(reason(empty), @"weights.safetensors: it has only 0 bytes");
    let header = damaged(|path| edit(&path.join(WEIGHTS), "{\"embed\"", "[\"embed\""));
    assert!(reason(header).starts_with("weights.safetensors: its header: "));
    let flipped = damaged(|path| {
        let mut content = fs::read(path.join(WEIGHTS)).expect("the file");
        let last = content.len() - 1;
        content[last] ^= 1;
        fs::write(path.join(WEIGHTS), content).expect("the file");
    });
    assert!(reason(flipped).contains("but was written with"));
    let record = damaged(|path| fs::write(path.join(RECORD), b"{ \"format\": 1 ").expect("the file"));
    assert!(reason(record).starts_with("state.json: "));
    let missing = damaged(|path| fs::remove_file(path.join(OPTIMIZER)).expect("the file"));
    assert!(matches!(missing, CheckpointError::File { what: "read", .. }));
    let newer = damaged(|path| edit(&path.join(RECORD), "\"format\": 1", "\"format\": 2"));
    assert!(matches!(newer, CheckpointError::Format { found: 2, .. }));
    let seed = damaged(|path| edit(&path.join(RECORD), "\"seed\": 5", "\"seed\": 6"));
    assert!(matches!(seed, CheckpointError::Seed { expected: 5, found: 6 }));
}

#[test]
fn weights_of_another_model_are_refused_with_every_difference() {
    let folder = folder();
    let (_, path) = saved(&folder);
    let weights = path.join(WEIGHTS);
    // The same number of bytes under another name and shape.
    edit(&weights, "\"embed\"", "\"table\"");
    edit(
        &weights,
        "\"head\":{\"dtype\":\"F32\",\"shape\":[11,6]",
        "\"head\":{\"dtype\":\"F32\",\"shape\":[6,11]",
    );
    let mut other = engine(&testing::one_device());
    let before = bytes(&mut other);
    match load_weights(&mut other, &weights) {
        Err(CheckpointError::Misfit { misfits, .. }) => {
            insta::assert_snapshot!(misfits.join("; "), @"`embed` is missing; `head` is f32[6,11] instead of f32[11,6]; `table` is not in the program")
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(bytes(&mut other), before);
}

#[test]
fn a_loss_that_is_no_number_ends_the_run_before_a_checkpoint() {
    let folder = folder();
    let program = testing::one_device();
    let broken = || {
        let mut engine = engine(&program);
        let head = state::entries(&program).into_iter().find(|entry| entry.name == "head").expect("the head");
        engine.write(head.views[0], &[0xFF; 11 * 6 * 4]).expect("the weights");
        engine
    };
    let outcome = go(&mut broken(), Progress::default(), &run(3, Some(&folder), 1), &mut Watch::new(0));
    assert!(matches!(outcome, Err(TrainError::NotFinite { step: 1, .. })));
    assert_eq!(latest(&folder.path().join("run")).expect("no folder"), None);
    let warn = Run { not_finite: NotFinite::Warn, ..run(3, None, 0) };
    let ending =
        go(&mut broken(), Progress::default(), &warn, &mut Watch::new(0)).expect("a run of nonsense");
    assert_eq!(ending, Ending::Complete(Progress { step: 3, sequences: 12 }));
}
