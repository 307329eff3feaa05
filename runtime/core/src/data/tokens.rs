//! A long row of token ids, in memory or in a file.
//!
//! A token file is read by position and not mapped into memory: a mapping would be undefined behaviour when another
//! process shortens the file, and the system caches the pages either way.

use super::DataError;
use super::files::{self, TextFile};
use pipec_program::TokenWidth;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use tokenizers::Tokenizer;

/// Token ids, in the shortest form that holds them.
#[derive(Debug)]
pub(super) enum Tokens {
    Bytes(Vec<u8>),
    Short(Vec<u16>),
    Long(Vec<u32>),
    File { file: File, path: PathBuf, width: TokenWidth, count: u64 },
}

impl Tokens {
    /// The bytes of all files.
    pub(super) fn bytes(files: &[TextFile]) -> Result<Self, DataError> {
        let mut bytes = Vec::new();
        for file in files {
            if let Some(text) = files::read(file)? {
                bytes.extend_from_slice(text.as_bytes());
            }
        }
        Ok(Self::Bytes(bytes))
    }

    /// The tokens of all files, each tokenised as a whole, without the special tokens that a tokenizer may add.
    pub(super) fn tokenised(files: &[TextFile], path: &Path) -> Result<Self, DataError> {
        let failed = |reason: String| DataError::Tokenizer { path: path.to_owned(), reason };
        let definition = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        let tokenizer: Tokenizer = definition.parse().map_err(|error| failed(format!("{error}")))?;
        let mut tokens: Vec<u32> = Vec::new();
        for file in files {
            if let Some(text) = files::read(file)? {
                let encoding =
                    tokenizer.encode_fast(text, false).map_err(|error| failed(error.to_string()))?;
                tokens.extend_from_slice(encoding.get_ids());
            }
        }
        let short: Result<Vec<u16>, _> = tokens.iter().map(|&token| u16::try_from(token)).collect();
        Ok(short.map_or(Self::Long(tokens), Self::Short))
    }

    /// The tokens in a file of little-endian ids.
    pub(super) fn file(path: &Path, width: TokenWidth) -> Result<Self, DataError> {
        let unreadable = |error| DataError::Unreadable { path: path.to_owned(), error };
        let file = File::open(path).map_err(unreadable)?;
        let bytes = file.metadata().map_err(unreadable)?.len();
        let size = size(width);
        if bytes % size != 0 {
            return Err(DataError::PartialToken { path: path.to_owned(), bytes, width: size });
        }
        Ok(Self::File { file, path: path.to_owned(), width, count: bytes / size })
    }

    /// The number of tokens.
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Bytes(tokens) => tokens.len() as u64,
            Self::Short(tokens) => tokens.len() as u64,
            Self::Long(tokens) => tokens.len() as u64,
            Self::File { count, .. } => *count,
        }
    }

    /// The largest token id; none for a file, which is not read as a whole, and for no tokens.
    pub(super) fn largest(&self) -> Option<u32> {
        match self {
            Self::Bytes(tokens) => tokens.iter().max().map(|&token| u32::from(token)),
            Self::Short(tokens) => tokens.iter().max().map(|&token| u32::from(token)),
            Self::Long(tokens) => tokens.iter().max().copied(),
            Self::File { .. } => None,
        }
    }

    /// Appends `count` tokens from `first` on to `to`.
    pub(super) fn read(&mut self, first: u64, count: u64, to: &mut Vec<u32>) -> Result<(), DataError> {
        // A place in memory fits a usize.
        let range = first as usize..(first + count) as usize;
        match self {
            Self::Bytes(tokens) => to.extend(tokens[range].iter().map(|&token| u32::from(token))),
            Self::Short(tokens) => to.extend(tokens[range].iter().map(|&token| u32::from(token))),
            Self::Long(tokens) => to.extend_from_slice(&tokens[range]),
            Self::File { file, path, width, .. } => {
                let size = size(*width);
                let mut bytes = vec![0; (count * size) as usize];
                file.seek(SeekFrom::Start(first * size))
                    .and_then(|_| file.read_exact(&mut bytes))
                    .map_err(|error| DataError::Unreadable { path: path.clone(), error })?;
                match width {
                    TokenWidth::U16 => to.extend(
                        bytes.chunks_exact(2).map(|id| u32::from(u16::from_le_bytes([id[0], id[1]]))),
                    ),
                    TokenWidth::U32 => to.extend(
                        bytes.chunks_exact(4).map(|id| u32::from_le_bytes([id[0], id[1], id[2], id[3]])),
                    ),
                }
            }
        }
        Ok(())
    }
}

/// Bytes of a token id.
fn size(width: TokenWidth) -> u64 {
    match width {
        TokenWidth::U16 => 2,
        TokenWidth::U32 => 4,
    }
}
