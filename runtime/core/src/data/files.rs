//! Finding the files that a list of paths, folders and patterns names.

use super::DataError;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A text file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TextFile {
    pub(super) path: PathBuf,
    /// It was named itself, so that it must be text; in folders and behind patterns other files are passed over.
    pub(super) named: bool,
}

/// The files of all paths, sorted, each once. A path is a file, a folder (all files in it and below, hidden ones left
/// out) or a pattern.
pub(super) fn find(paths: &[String], base: &Path) -> Result<Vec<TextFile>, DataError> {
    let mut named = BTreeSet::new();
    let mut found = BTreeSet::new();
    for path in paths {
        let full = base.join(path);
        let before = (named.len(), found.len());
        let mut below = BTreeSet::new();
        if full.is_dir() {
            folder(&full, &mut below)?;
        } else if path.contains(['*', '?', '[']) {
            let pattern = full.to_string_lossy();
            let matches = glob::glob(&pattern)
                .map_err(|error| DataError::Pattern { pattern: path.clone(), reason: error.to_string() })?;
            for file in matches {
                let file = file.map_err(|error| DataError::Unreadable {
                    path: error.path().to_owned(),
                    error: error.into(),
                })?;
                if file.is_file() {
                    below.insert(file);
                }
            }
        } else {
            fs::metadata(&full).map_err(|error| DataError::Unreadable { path: full.clone(), error })?;
            named.insert(full);
            continue;
        }
        let none = below.is_empty();
        found.extend(below);
        if none && before == (named.len(), found.len()) {
            return Err(DataError::NoFiles(path.clone()));
        }
    }
    let all: BTreeSet<&PathBuf> = named.iter().chain(&found).collect();
    if all.is_empty() {
        return Err(DataError::NoFiles(paths.join(", ")));
    }
    Ok(all.into_iter().map(|path| TextFile { path: path.clone(), named: named.contains(path) }).collect())
}

fn folder(path: &Path, found: &mut BTreeSet<PathBuf>) -> Result<(), DataError> {
    let unreadable = |error| DataError::Unreadable { path: path.to_owned(), error };
    for entry in fs::read_dir(path).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        let kind = entry.file_type().map_err(unreadable)?;
        // Links are not followed, so that a circle of them does no harm.
        if kind.is_dir() {
            folder(&entry.path(), found)?;
        } else if kind.is_file() {
            found.insert(entry.path());
        }
    }
    Ok(())
}

/// The text of a file; none for a file that is not text and was not named itself.
pub(super) fn read(file: &TextFile) -> Result<Option<String>, DataError> {
    let bytes =
        fs::read(&file.path).map_err(|error| DataError::Unreadable { path: file.path.clone(), error })?;
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Some(text)),
        Err(_) if file.named => Err(DataError::NotText(file.path.clone())),
        Err(_) => Ok(None),
    }
}
