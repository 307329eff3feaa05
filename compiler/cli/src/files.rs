//! Reading and writing files: the only place of the command line that touches the file system for sources and results.
//!
//! Writes are atomic: a result is written beside its target, synced and renamed, so that a target is either the old
//! file or the whole new one.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// The largest source that is read; no pipeline needs one, and it bounds the memory of a mistake.
pub const LARGEST_SOURCE: u64 = 256 << 20;

/// Reads a file, or standard input for `-`.
///
/// # Errors
/// When it cannot be read or is larger than [`LARGEST_SOURCE`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = if path == Path::new("-") {
        io::stdin().lock().take(LARGEST_SOURCE + 1).read_to_end(&mut bytes)?
    } else {
        File::open(path)?.take(LARGEST_SOURCE + 1).read_to_end(&mut bytes)?
    };
    if read as u64 > LARGEST_SOURCE {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("larger than {LARGEST_SOURCE} bytes"),
        ));
    }
    Ok(bytes)
}

/// Writes a file atomically, or to standard output for `-` or no path.
///
/// # Errors
/// When it cannot be written; the target is then untouched.
pub fn write(path: Option<&Path>, bytes: &[u8]) -> io::Result<()> {
    match path {
        Some(path) if path != Path::new("-") => replace(path, bytes),
        Some(_) | None => {
            let mut out = io::stdout().lock();
            out.write_all(bytes)?;
            out.flush()
        }
    }
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not the name of a file"))?
        .to_os_string();
    name.push(format!(".{}.partial", std::process::id()));
    let beside: PathBuf = path.with_file_name(name);
    let written = File::create(&beside).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    let renamed = written.and_then(|()| fs::rename(&beside, path));
    if renamed.is_err() {
        // The error to report is the first one; a leftover that cannot be removed does no harm.
        let _ = fs::remove_file(&beside);
    }
    renamed
}
