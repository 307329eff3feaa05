//! Snapshots in files: beside their source, in the form of `insta`, so that `cargo insta review` works on them, too.
//!
//! `tiny.pipe` has `tiny.pipe.snap`; of a file with several pipelines each has one, `tiny.pipe@NAME.snap`. A file starts
//! with a header between two lines `---`, which says where it comes from and is never compared. A pending snapshot, one
//! that is not what its golden says, has `.new` behind the name of the golden.

use super::{Part, Snapshot, TextError, parse, print};
use crate::files;
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

/// The golden of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Golden {
    /// The file of the pipeline.
    source: PathBuf,
    /// Where the golden lies.
    path: PathBuf,
}

impl Golden {
    /// The golden of the pipeline of a file, or of one of its pipelines.
    pub fn new(source: &Path, pipeline: Option<&str>) -> Self {
        let mut path = source.as_os_str().to_owned();
        if let Some(pipeline) = pipeline {
            path.push(format!("@{pipeline}"));
        }
        path.push(".snap");
        Self { source: source.to_owned(), path: path.into() }
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where its pending successor lies.
    pub fn pending(&self) -> PathBuf {
        let mut path = self.path.as_os_str().to_owned();
        path.push(".new");
        path.into()
    }

    /// What it says; none where there is no such file.
    ///
    /// # Errors
    /// When it cannot be read or is no snapshot.
    pub fn read(&self) -> Result<Option<Snapshot>, FileError> {
        match read(&self.path) {
            Ok(snapshot) => Ok(Some(snapshot)),
            Err(FileError::Io(error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes a snapshot the golden; nothing is pending any more.
    ///
    /// # Errors
    /// When it cannot be written; the golden is then untouched.
    pub fn write(&self, snapshot: &Snapshot) -> io::Result<()> {
        files::write(Some(&self.path), self.file(snapshot).as_bytes())?;
        self.reject()
    }

    /// Makes a snapshot pending.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn propose(&self, snapshot: &Snapshot) -> io::Result<()> {
        files::write(Some(&self.pending()), self.file(snapshot).as_bytes())
    }

    /// Makes the pending snapshot the golden; false if there is none.
    ///
    /// # Errors
    /// When it cannot be renamed.
    pub fn accept(&self) -> io::Result<bool> {
        if_there(fs::rename(self.pending(), &self.path))
    }

    /// Removes the pending snapshot if there is one.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn reject(&self) -> io::Result<()> {
        if_there(fs::remove_file(self.pending())).map(|_| ())
    }

    /// The bytes of its file. The header names the source without its folder, so that they do not depend on where pipec
    /// was called.
    fn file(&self, snapshot: &Snapshot) -> String {
        let name = self.source.file_name().unwrap_or(self.source.as_os_str()).to_string_lossy();
        let parts: Vec<&str> = snapshot.parts().into_iter().map(Part::name).collect();
        // A text of JSON is one of YAML, too.
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        format!(
            "---\nsource: {}\nexpression: {}\n---\n{}",
            quoted(&name),
            quoted(&format!("pipec snap --what {}", parts.join(","))),
            print(snapshot)
        )
    }
}

/// Reads the snapshot of a file.
///
/// # Errors
/// When it cannot be read or is no snapshot.
pub(crate) fn read(path: &Path) -> Result<Snapshot, FileError> {
    let bytes = files::read(path).map_err(FileError::Io)?;
    let text = String::from_utf8_lossy(&bytes).replace("\r\n", "\n");
    let (header, content) =
        text.strip_prefix("---\n").and_then(|rest| rest.split_once("\n---\n")).unwrap_or(("", &text));
    let header_lines = if header.is_empty() { 0 } else { header.lines().count() + 2 };
    parse(content).map_err(|error| FileError::Text(TextError { line: error.line + header_lines, ..error }))
}

/// Whether something was done to a file, which is no error where there is no such file.
fn if_there(result: io::Result<()>) -> io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Why a file has no snapshot.
#[derive(Debug)]
pub enum FileError {
    /// It cannot be read.
    Io(io::Error),
    /// It holds something else.
    Text(TextError),
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "{error}"),
            Self::Text(error) => write!(f, "no snapshot: {error}"),
        }
    }
}

impl std::error::Error for FileError {}
