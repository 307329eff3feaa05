//! Training: steps with their inputs, metrics and checkpoints.
//!
//! A loss that is no number (infinite or NaN) means that the weights are lost or soon will be. By default the run ends
//! with an error before a checkpoint of such a state is written; [`NotFinite::Warn`] tells the observer and goes on.

use crate::checkpoint::{self, CheckpointError, Progress};
use crate::data::{Batches, DataError, ignored_target};
use crate::engine::{Engine, EngineError, StepInputs};
use pipec_program::{Event, Nanos};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// What a run does besides its steps.
#[derive(Clone, Debug)]
pub struct Run {
    /// The step after which it ends, counted from the start of training, whatever it resumes from.
    pub steps: u64,
    /// Where checkpoints go; none for a run without them.
    pub checkpoints: Option<Checkpoints>,
    /// What to do about a loss that is not a finite number.
    pub not_finite: NotFinite,
}

/// Where and how often checkpoints are written.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    /// The folder.
    pub folder: PathBuf,
    /// Steps from one to the next; 0 for only one at the end.
    pub every: u64,
    /// How many are kept; 0 for all.
    pub keep: usize,
}

/// What to do about a loss that is not a finite number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NotFinite {
    /// End with an error.
    #[default]
    Stop,
    /// Tell the observer and go on.
    Warn,
}

/// What a step has shown.
#[derive(Clone, Debug, PartialEq)]
pub struct Metrics {
    /// The number of the step, from 1.
    pub step: u64,
    /// The mean loss of the counted tokens of the global batch, summed in f64.
    pub loss: f64,
    /// The global norm of the gradients before clipping, where the program computes it.
    pub gradient_norm: Option<f64>,
    /// The learning rate.
    pub learning_rate: f64,
    /// The tokens of the step.
    pub tokens: u64,
    /// Passes through the data so far, with fractions; none for data without an end.
    pub epochs: Option<f64>,
    /// How long the devices took.
    pub elapsed: Nanos,
    /// When each instruction ran, if the engine records it.
    pub events: Vec<Event>,
}

/// Someone who watches a run: a progress line, a file of metrics.
pub trait Observer {
    /// A step is done.
    fn step(&mut self, metrics: &Metrics);
    /// A checkpoint is written.
    fn saved(&mut self, _path: &Path) {}
    /// The loss of a step is not finite and the run goes on.
    fn not_finite(&mut self, _step: u64, _loss: f64) {}
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All steps are done.
    Complete(Progress),
    /// It was asked to stop; the step it was at is done and, where there are checkpoints, saved.
    Stopped(Progress),
}

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// A device failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The data ended or are not what they should be.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A checkpoint could not be written.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The loss is not a finite number.
    #[error("the loss of step {step} is {loss}; the last checkpoint is from before it")]
    NotFinite {
        /// The step.
        step: u64,
        /// Its loss.
        loss: f64,
    },
}

/// Trains from `from` (where the state of the engine is) to the last step of `run`, or until `stop` is set.
pub fn train(
    engine: &mut Engine,
    batches: &mut Batches,
    from: Progress,
    run: &Run,
    stop: &AtomicBool,
    observer: &mut dyn Observer,
) -> Result<Ending, TrainError> {
    let program = engine.program().clone();
    let ignored = ignored_target(&program);
    let mut progress = from;
    let mut saved = from;
    while progress.step < run.steps && !stop.load(Ordering::Relaxed) {
        let step = progress.step + 1;
        let fed = batches.step(progress.sequences)?;
        let counted = fed.targets.iter().filter(|&&target| Some(target) != ignored).count().max(1);
        let inputs = StepInputs {
            step,
            learning_rate: program.training.learning_rate.at(step),
            loss_scale: 1.0 / counted as f64,
            seed: program.training.seed,
            tokens: fed.tokens,
            targets: fed.targets,
        };
        let output = engine.run_step(&inputs)?;
        progress = Progress { step, sequences: progress.sequences + batches.sequences_per_step() };
        let loss = output.losses.iter().sum::<f64>() / counted as f64;
        observer.step(&Metrics {
            step,
            loss,
            gradient_norm: output.gradient_norm,
            learning_rate: inputs.learning_rate,
            tokens: inputs.tokens.len() as u64,
            epochs: batches.sequences().map(|epoch| progress.sequences as f64 / epoch as f64),
            elapsed: output.elapsed,
            events: output.events,
        });
        if !loss.is_finite() {
            match run.not_finite {
                NotFinite::Stop => return Err(TrainError::NotFinite { step, loss }),
                NotFinite::Warn => observer.not_finite(step, loss),
            }
        }
        if let Some(checkpoints) = &run.checkpoints
            && checkpoints.every > 0
            && step.is_multiple_of(checkpoints.every)
        {
            saved = save(engine, progress, checkpoints, observer)?;
        }
    }
    if let Some(checkpoints) = &run.checkpoints
        && saved != progress
    {
        save(engine, progress, checkpoints, observer)?;
    }
    Ok(if progress.step < run.steps { Ending::Stopped(progress) } else { Ending::Complete(progress) })
}

fn save(
    engine: &mut Engine,
    progress: Progress,
    checkpoints: &Checkpoints,
    observer: &mut dyn Observer,
) -> Result<Progress, CheckpointError> {
    let path = checkpoint::save(engine, progress, &checkpoints.folder, checkpoints.keep)?;
    observer.saved(&path);
    Ok(progress)
}
