//! Safetensors files, written and read one tensor at a time, so that no file is ever in memory as a whole.

use super::{CheckpointError, file_error};
use crate::state::Entry;
use pipec_program::{DType, Shape};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Headers above this size are refused, as the safetensors library does.
const LARGEST_HEADER: u64 = 100_000_000;

/// Size and hash of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Digest {
    /// Its size.
    bytes: u64,
    /// Its SHA-256 in hexadecimal.
    sha256: String,
}

/// An open safetensors file.
pub(super) struct Tensors {
    file: File,
    path: PathBuf,
    /// Where the data begin.
    start: u64,
    tensors: BTreeMap<String, TensorInfo>,
}

/// The element type as safetensors spells it.
fn dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::U32 => Dtype::U32,
    }
}

fn shape(entry: &Entry) -> Vec<usize> {
    entry.ty.shape.0.iter().map(|&extent| extent as usize).collect()
}

/// Writes the tensors of `entries`, whose bytes `read` returns, and syncs the file.
pub(super) fn write(
    path: &Path,
    entries: &[&Entry],
    mut read: impl FnMut(&Entry) -> Result<Vec<u8>, CheckpointError>,
) -> Result<Digest, CheckpointError> {
    // The format wants larger elements first, so that all are aligned; names decide among equals.
    let mut entries = entries.to_vec();
    entries.sort_by(|a, b| (b.ty.dtype.bytes(), &a.name).cmp(&(a.ty.dtype.bytes(), &b.name)));
    let mut offset = 0;
    let infos = entries
        .iter()
        .map(|entry| {
            let end = offset + entry.ty.bytes().0 as usize;
            let info =
                TensorInfo { dtype: dtype(entry.ty.dtype), shape: shape(entry), data_offsets: (offset, end) };
            offset = end;
            (entry.name.clone(), info)
        })
        .collect();
    let invalid = |reason: String| CheckpointError::Damaged { path: path.to_owned(), reason };
    let metadata = Metadata::new(None, infos).map_err(|error| invalid(error.to_string()))?;
    let mut header = serde_json::to_vec(&metadata).map_err(|error| invalid(error.to_string()))?;
    header.resize(header.len().next_multiple_of(8), b' ');

    let failed = || file_error("write", path);
    let mut file = BufWriter::new(File::create(path).map_err(failed())?);
    let mut hash = Sha256::new();
    let mut bytes = 0;
    let mut put = |part: &[u8]| {
        hash.update(part);
        bytes += part.len() as u64;
        file.write_all(part).map_err(failed())
    };
    put(&(header.len() as u64).to_le_bytes())?;
    put(&header)?;
    for entry in entries {
        put(&read(entry)?)?;
    }
    let file = file.into_inner().map_err(|error| failed()(error.into_error()))?;
    file.sync_all().map_err(failed())?;
    Ok(Digest { bytes, sha256: hexadecimal(&hash.finalize()) })
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Tensors {
    /// Opens a file and checks that its header is valid and its size the one that the header says.
    pub(super) fn open(path: &Path) -> Result<Self, CheckpointError> {
        let damaged = |reason: String| CheckpointError::Damaged { path: path.to_owned(), reason };
        let mut file = File::open(path).map_err(file_error("read", path))?;
        let size = file.metadata().map_err(file_error("read", path))?.len();
        if size < 8 {
            return Err(damaged(format!("it has only {size} bytes")));
        }
        let mut length = [0; 8];
        file.read_exact(&mut length).map_err(file_error("read", path))?;
        let length = u64::from_le_bytes(length);
        if length > LARGEST_HEADER || length > size - 8 {
            return Err(damaged(format!("a header of {length} bytes in a file of {size}")));
        }
        let mut header = vec![0; length as usize];
        file.read_exact(&mut header).map_err(file_error("read", path))?;
        let metadata: Metadata =
            serde_json::from_slice(&header).map_err(|error| damaged(format!("its header: {error}")))?;
        let start = 8 + length;
        let expected = start + metadata.data_len() as u64;
        if expected != size {
            return Err(damaged(format!("it has {size} bytes instead of {expected}")));
        }
        let tensors = metadata
            .offset_keys()
            .into_iter()
            .filter_map(|name| metadata.info(&name).cloned().map(|info| (name, info)))
            .collect();
        Ok(Self { file, path: path.to_owned(), start, tensors })
    }

    /// Checks the whole file against its digest.
    pub(super) fn check_digest(&mut self, expected: &Digest) -> Result<(), CheckpointError> {
        let failed = || file_error("read", &self.path);
        let mut hash = Sha256::new();
        let mut bytes = 0;
        self.file.seek(SeekFrom::Start(0)).map_err(failed())?;
        let mut part = vec![0; 1 << 16];
        loop {
            let count = self.file.read(&mut part).map_err(failed())?;
            if count == 0 {
                break;
            }
            hash.update(&part[..count]);
            bytes += count as u64;
        }
        let found = Digest { bytes, sha256: hexadecimal(&hash.finalize()) };
        if found == *expected {
            return Ok(());
        }
        Err(CheckpointError::Damaged {
            path: self.path.clone(),
            reason: format!(
                "it has {} bytes with SHA-256 {}, but was written with {} bytes and {}",
                found.bytes, found.sha256, expected.bytes, expected.sha256
            ),
        })
    }

    /// Checks that the file holds exactly the tensors of `entries`.
    pub(super) fn check_fit(&self, entries: &[&Entry]) -> Result<(), CheckpointError> {
        let mut misfits = Vec::new();
        for entry in entries {
            match self.tensors.get(&entry.name) {
                None => misfits.push(format!("`{}` is missing", entry.name)),
                Some(info) if info.dtype != dtype(entry.ty.dtype) || info.shape != shape(entry) => {
                    let dtype = info.dtype.to_string().to_lowercase();
                    let shape = Shape(info.shape.iter().map(|&extent| extent as u64).collect());
                    misfits.push(format!("`{}` is {dtype}{shape} instead of {}", entry.name, entry.ty));
                }
                Some(_) => {}
            }
        }
        let known: BTreeSet<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
        let extra = self.tensors.keys().filter(|name| !known.contains(name.as_str()));
        misfits.extend(extra.map(|name| format!("`{name}` is not in the program")));
        if misfits.is_empty() {
            return Ok(());
        }
        Err(CheckpointError::Misfit { path: self.path.clone(), misfits })
    }

    /// The bytes of a tensor.
    pub(super) fn read(&mut self, name: &str) -> Result<Vec<u8>, CheckpointError> {
        let failed = || file_error("read", &self.path);
        let (from, to) = self.tensors.get(name).map(|info| info.data_offsets).unwrap_or_default();
        let mut bytes = vec![0; to - from];
        self.file.seek(SeekFrom::Start(self.start + from as u64)).map_err(failed())?;
        self.file.read_exact(&mut bytes).map_err(failed())?;
        Ok(bytes)
    }
}
