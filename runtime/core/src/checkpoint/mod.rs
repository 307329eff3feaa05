//! Checkpoints: the state of a run in a folder, complete or not there at all.
//!
//! A checkpoint is a folder `step-000012` of three files: `weights.safetensors` (the parameters by their names, for
//! any tool that reads safetensors), `optimizer.safetensors` (moments and masters) and `state.json` (the counters, and
//! size and SHA-256 of the two other files). It is written beside, as `step-000012.partial`, every file is synced, then
//! the folder is renamed and its parent synced: whenever the machine stops, each `step-*` folder is whole.
//!
//! Loading checks everything before it changes anything: a checkpoint that does not fit or is damaged leaves the engine
//! as it was. State is found by name, so that another program of the same model can go on with it.

mod tensors;

use crate::engine::{Engine, EngineError};
use crate::state::{self, Entry, Role};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use tensors::{Digest, Tensors};

/// How far a run is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Steps that are done.
    pub step: u64,
    /// Sequences that these steps took: the position in the data.
    pub sequences: u64,
}

/// The content of `state.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    /// The version of this format.
    format: u32,
    /// The name of the program.
    program: String,
    /// The seed of the run.
    seed: u64,
    progress: Progress,
    /// The other files by name.
    files: BTreeMap<String, Digest>,
}

/// The version of the format of checkpoints.
const FORMAT: u32 = 1;
/// Marks a checkpoint that is being replaced by another one of the same step; it counts until that one is there.
const REPLACED: &str = ".old";
const RECORD: &str = "state.json";
const WEIGHTS: &str = "weights.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";

/// Why a checkpoint could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The system refused something.
    #[error("cannot {what} `{}`: {error}", path.display())]
    File {
        /// What was to be done: `read`, `write`, `rename`, `remove`.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// A file is not what it claims to be.
    #[error("`{}` is damaged: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The checkpoint was written by a newer version.
    #[error("`{}` has the format {found}; this version reads up to {FORMAT}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// The checkpoint holds another model.
    #[error("`{}` does not fit the program: {}", path.display(), misfits.join("; "))]
    Misfit {
        /// The file.
        path: PathBuf,
        /// Every tensor that is missing, too many, or of another type.
        misfits: Vec<String>,
    },
    /// The run that wrote the checkpoint had another seed, so that its data and dropout were others.
    #[error("the checkpoint is of a run with seed {found}, the program has seed {expected}")]
    Seed {
        /// The seed of the program.
        expected: u64,
        /// The seed of the checkpoint.
        found: u64,
    },
    /// The engine could not give or take the state.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// For `map_err`: the system refused to do `what` with `path`.
fn file_error(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> CheckpointError + use<> {
    let path = path.to_owned();
    move |error| CheckpointError::File { what, path, error }
}

/// The file that holds a tensor of the state.
fn file_of(role: Role) -> &'static str {
    match role {
        Role::Weight => WEIGHTS,
        Role::Moment | Role::Variance | Role::Master => OPTIMIZER,
    }
}

/// Writes the state into `folder` and removes all but the `keep` latest checkpoints there; `keep` of 0 keeps all.
/// Returns the path of the checkpoint.
///
/// A checkpoint of the same step is replaced.
pub fn save(
    engine: &mut Engine,
    progress: Progress,
    folder: &Path,
    keep: usize,
) -> Result<PathBuf, CheckpointError> {
    let name = format!("step-{:06}", progress.step);
    let partial = folder.join(format!("{name}.partial"));
    fs::create_dir_all(folder).map_err(file_error("create", folder))?;
    remove(&partial)?;
    fs::create_dir(&partial).map_err(file_error("create", &partial))?;

    let program = engine.program().clone();
    let entries = state::entries(&program);
    let mut files = BTreeMap::new();
    for file in [WEIGHTS, OPTIMIZER] {
        let entries: Vec<&Entry> = entries.iter().filter(|entry| file_of(entry.role) == file).collect();
        let digest = tensors::write(&partial.join(file), &entries, |entry| match entry.views.first() {
            Some(&view) => Ok(engine.read(view)?),
            None => Ok(Vec::new()),
        })?;
        files.insert(file.to_owned(), digest);
    }
    let record = Record {
        format: FORMAT,
        program: program.name.clone(),
        seed: program.training.seed,
        progress,
        files,
    };
    let path = partial.join(RECORD);
    let text =
        serde_json::to_string_pretty(&record).map_err(|error| file_error("write", &path)(error.into()))?;
    let write = || {
        let mut file = File::create(&path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    write().map_err(file_error("write", &path))?;
    sync_folder(&partial)?;

    let complete = folder.join(&name);
    let old = folder.join(format!("{name}{REPLACED}"));
    if complete.exists() {
        remove(&old)?;
        fs::rename(&complete, &old).map_err(file_error("rename", &complete))?;
    }
    fs::rename(&partial, &complete).map_err(file_error("rename", &partial))?;
    sync_folder(folder)?;
    remove(&old)?;
    if keep > 0 {
        let all = list(folder)?;
        for (_, path) in &all[..all.len().saturating_sub(keep)] {
            remove(path)?;
        }
    }
    Ok(complete)
}

/// The latest checkpoint in a folder; none if there is none, or no such folder.
pub fn latest(folder: &Path) -> Result<Option<PathBuf>, CheckpointError> {
    Ok(list(folder)?.pop().map(|(_, path)| path))
}

/// Takes the state of a checkpoint (the folder of one, not of many) and returns how far its run was.
///
/// Nothing is changed unless all of it fits and is whole.
pub fn load(engine: &mut Engine, path: &Path) -> Result<Progress, CheckpointError> {
    let record = read_record(path)?;
    let program = engine.program().clone();
    if record.seed != program.training.seed {
        return Err(CheckpointError::Seed { expected: program.training.seed, found: record.seed });
    }
    let entries = state::entries(&program);
    let mut opened = Vec::new();
    for file in [WEIGHTS, OPTIMIZER] {
        let expected: Vec<&Entry> = entries.iter().filter(|entry| file_of(entry.role) == file).collect();
        let path = path.join(file);
        let digest = record.files.get(file).ok_or_else(|| CheckpointError::Damaged {
            path: path.clone(),
            reason: format!("{RECORD} does not mention it"),
        })?;
        let mut tensors = Tensors::open(&path)?;
        tensors.check_digest(digest)?;
        tensors.check_fit(&expected)?;
        opened.push((tensors, expected));
    }
    for (mut tensors, expected) in opened {
        fill(engine, &mut tensors, &expected)?;
    }
    Ok(record.progress)
}

/// Takes only the parameters of a safetensors file, which must be those of the program, by name, type and shape.
/// Masters follow; moments stay as they are.
///
/// Nothing is changed unless all of it fits.
pub fn load_weights(engine: &mut Engine, path: &Path) -> Result<(), CheckpointError> {
    let program = engine.program().clone();
    let entries = state::entries(&program);
    let weights: Vec<&Entry> = entries.iter().filter(|entry| entry.role == Role::Weight).collect();
    let mut tensors = Tensors::open(path)?;
    tensors.check_fit(&weights)?;
    fill(engine, &mut tensors, &weights)
}

/// Writes only the parameters, as a safetensors file.
pub fn save_weights(engine: &mut Engine, path: &Path) -> Result<(), CheckpointError> {
    let program = engine.program().clone();
    let entries = state::entries(&program);
    let weights: Vec<&Entry> = entries.iter().filter(|entry| entry.role == Role::Weight).collect();
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    tensors::write(&partial, &weights, |entry| match entry.views.first() {
        Some(&view) => Ok(engine.read(view)?),
        None => Ok(Vec::new()),
    })?;
    fs::rename(&partial, path).map_err(file_error("rename", &partial))?;
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => sync_folder(folder),
        Some(_) | None => sync_folder(Path::new(".")),
    }
}

fn fill(engine: &mut Engine, tensors: &mut Tensors, entries: &[&Entry]) -> Result<(), CheckpointError> {
    for entry in entries {
        let bytes = tensors.read(&entry.name)?;
        for &view in &entry.views {
            engine.write(view, &bytes)?;
        }
    }
    Ok(())
}

fn read_record(path: &Path) -> Result<Record, CheckpointError> {
    let path = path.join(RECORD);
    let text = fs::read(&path).map_err(file_error("read", &path))?;
    let damaged =
        |error: serde_json::Error| CheckpointError::Damaged { path: path.clone(), reason: error.to_string() };
    /// Read first: the rest of a newer format may be different.
    #[derive(Deserialize)]
    struct Version {
        format: u32,
    }
    let version: Version = serde_json::from_slice(&text).map_err(damaged)?;
    if version.format > FORMAT {
        return Err(CheckpointError::Format { path, found: version.format });
    }
    serde_json::from_slice(&text).map_err(damaged)
}

/// The complete checkpoints of a folder, by step.
fn list(folder: &Path) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(file_error("read", folder)(error)),
    };
    let mut found = BTreeMap::new();
    for entry in entries {
        let entry = entry.map_err(file_error("read", folder))?;
        let name = entry.file_name();
        let Some(name) = name.to_str().and_then(|name| name.strip_prefix("step-")) else { continue };
        let (number, replaced) = match name.strip_suffix(REPLACED) {
            Some(number) => (number, true),
            None => (name, false),
        };
        if let Ok(step) = number.parse() {
            if replaced {
                found.entry(step).or_insert(entry.path());
            } else {
                found.insert(step, entry.path());
            }
        }
    }
    Ok(found.into_iter().collect())
}

/// Removes a folder with all that is in it, if it is there.
fn remove(path: &Path) -> Result<(), CheckpointError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(file_error("remove", path)(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Makes renames in a folder durable.
fn sync_folder(folder: &Path) -> Result<(), CheckpointError> {
    // Only Unix can open a folder as a file; elsewhere renames are durable by the file system's own rules.
    if cfg!(unix) {
        File::open(folder).and_then(|file| file.sync_all()).map_err(file_error("sync", folder))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
