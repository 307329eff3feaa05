//! Data: from files or a formula to the tokens of a step.
//!
//! A source is a list of sequences of `tokens + 1` token ids, and which sequence stands at which place of which step is
//! a function of the number of sequences before it alone. So a run resumes exactly, at any step and under any number
//! of micro-batches, without a state.
//!
//! Files are joined in the order of their sorted paths. Sequence w of the text is made of its tokens
//! `w * tokens ..= (w + 1) * tokens`: the inputs of two sequences never overlap, and the last target of one is the first
//! input of the next. The rest that fills no sequence is left out. After the last sequence the next epoch begins; with
//! shuffling each epoch has an order of its own.
//!
//! What it deliberately does not do: pad, pack documents, or download.

mod files;
mod shuffle;
mod tokens;

use crate::splitmix;
use pipec_program::{Batch, Body, Data, Op, Program, Tokenizer};
use shuffle::Permutation;
use std::path::{Path, PathBuf};
use tokens::Tokens;

/// Distinguishes the numbers of the formula source from those of initial weights; part of the reference runs.
const FORMULA_TAG: u64 = 0xD1B5_4A32_D192_ED03;

/// Distinguishes the numbers of shuffling from all others.
const SHUFFLE_TAG: u64 = 0x7368_7566_666C_6521;

/// The tokens of the steps of a run.
#[derive(Debug)]
pub struct Batches {
    source: Source,
    batch: Batch,
    seed: u64,
    vocab: Option<u32>,
}

#[derive(Debug)]
enum Source {
    Formula { vocab: u32 },
    Corpus { tokens: Tokens, name: String, sequences: u64, shuffle: bool },
}

/// What a step is fed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fed {
    /// `[micro_batches, sequences, tokens]`.
    pub tokens: Vec<u32>,
    /// The token after each, in the same order.
    pub targets: Vec<u32>,
}

/// What is wrong with the data of a run.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The program names no data.
    #[error("the program does not say where its tokens come from")]
    None,
    /// A path or pattern names no file.
    #[error("no text files at `{0}`")]
    NoFiles(String),
    /// A pattern that no file name can match.
    #[error("`{pattern}` is not a file pattern: {reason}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A file cannot be read.
    #[error("cannot read `{}`: {error}", path.display())]
    Unreadable {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// A file that was named is not text.
    #[error("`{}` is not UTF-8 text", .0.display())]
    NotText(PathBuf),
    /// A tokenizer file cannot be used.
    #[error("cannot use the tokenizer `{}`: {reason}", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The size of a token file is not a multiple of that of a token.
    #[error("`{}` has {bytes} bytes, which is no whole number of {width}-byte tokens", path.display())]
    PartialToken {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The size of a token.
        width: u64,
    },
    /// Not enough sequences for one step.
    #[error(
        "{name} holds {tokens} tokens, that is {found} sequences of {length}; one step needs {needed} sequences, \
         {} tokens",
        needed * length + 1
    )]
    TooLittle {
        /// The source.
        name: String,
        /// Its tokens.
        tokens: u64,
        /// Its whole sequences.
        found: u64,
        /// Tokens of a sequence.
        length: u64,
        /// Sequences of a step.
        needed: u64,
    },
    /// A token id has no row in the vocabulary of the model.
    #[error("{name} holds the token {token}, but the vocabulary of the model has {vocab} tokens")]
    OutsideVocabulary {
        /// The source.
        name: String,
        /// The token id.
        token: u32,
        /// The size of the vocabulary.
        vocab: u32,
    },
}

impl Batches {
    /// Opens the data of a program. Paths are relative to `base`.
    ///
    /// Text is read and tokenised here, as a whole; a token file is read as it is needed.
    pub fn open(program: &Program, base: &Path) -> Result<Self, DataError> {
        let data = program.training.data.as_ref().ok_or(DataError::None)?;
        Self::from_data(data, program.batch, program.training.seed, vocabulary(program), base)
    }

    /// Opens data for batches of a size. Token ids from `vocab` on, where it is known, are errors.
    pub fn from_data(
        data: &Data,
        batch: Batch,
        seed: u64,
        vocab: Option<u32>,
        base: &Path,
    ) -> Result<Self, DataError> {
        let source = match data {
            Data::Formula { vocab } => Source::Formula { vocab: *vocab },
            Data::Text { paths, tokenizer, shuffle } => {
                let files = files::find(paths, base)?;
                let tokens = match tokenizer {
                    Tokenizer::Bytes => Tokens::bytes(&files)?,
                    Tokenizer::File(path) => Tokens::tokenised(&files, &base.join(path))?,
                };
                corpus(tokens, format!("the text of {}", paths.join(", ")), batch, *shuffle)?
            }
            Data::Tokens { path, width, shuffle } => {
                let tokens = Tokens::file(&base.join(path), *width)?;
                corpus(tokens, format!("`{path}`"), batch, *shuffle)?
            }
        };
        let mut batches = Self { source, batch, seed, vocab };
        batches.check_vocabulary()?;
        Ok(batches)
    }

    /// Sequences of one step.
    pub fn sequences_per_step(&self) -> u64 {
        u64::from(self.batch.micro_batches) * u64::from(self.batch.sequences)
    }

    /// Sequences of an epoch; none for a source that never ends.
    pub fn sequences(&self) -> Option<u64> {
        match self.source {
            Source::Formula { .. } => None,
            Source::Corpus { sequences, .. } => Some(sequences),
        }
    }

    /// The tokens of the step that begins after so many sequences.
    pub fn step(&mut self, first: u64) -> Result<Fed, DataError> {
        let length = self.batch.tokens as usize;
        let count = self.sequences_per_step();
        let mut fed = Fed {
            tokens: Vec::with_capacity(length * count as usize),
            targets: Vec::with_capacity(length * count as usize),
        };
        let mut sequence = Vec::with_capacity(length + 1);
        for number in first..first.saturating_add(count) {
            self.sequence(number, &mut sequence)?;
            fed.tokens.extend_from_slice(&sequence[..length]);
            fed.targets.extend_from_slice(&sequence[1..]);
        }
        Ok(fed)
    }

    /// Puts the tokens of sequence `number`, counted from the start of the run, into `sequence`.
    fn sequence(&mut self, number: u64, sequence: &mut Vec<u32>) -> Result<(), DataError> {
        let length = u64::from(self.batch.tokens);
        sequence.clear();
        match &mut self.source {
            Source::Formula { vocab } => {
                formula(self.seed, number, length + 1, *vocab, sequence);
                Ok(())
            }
            Source::Corpus { tokens, name, sequences, shuffle } => {
                let (epoch, place) = (number / *sequences, number % *sequences);
                let window = if *shuffle {
                    let key = splitmix::at(splitmix::at(self.seed ^ SHUFFLE_TAG, 0), epoch);
                    Permutation::new(*sequences, key).apply(place)
                } else {
                    place
                };
                tokens.read(window * length, length + 1, sequence)?;
                check_tokens(sequence, self.vocab, name)
            }
        }
    }

    /// Checks what is in memory at once, so that a run does not fail in its middle; a token file is checked as it is
    /// read.
    fn check_vocabulary(&mut self) -> Result<(), DataError> {
        match (&self.source, self.vocab) {
            (Source::Formula { vocab }, Some(limit)) if *vocab > limit => Err(DataError::OutsideVocabulary {
                name: "the formula".to_owned(),
                token: *vocab - 1,
                vocab: limit,
            }),
            (Source::Corpus { tokens, name, .. }, Some(limit)) => match tokens.largest() {
                Some(token) if token >= limit => {
                    Err(DataError::OutsideVocabulary { name: name.clone(), token, vocab: limit })
                }
                Some(_) | None => Ok(()),
            },
            (Source::Formula { .. } | Source::Corpus { .. }, _) => Ok(()),
        }
    }
}

fn check_tokens(tokens: &[u32], vocab: Option<u32>, name: &str) -> Result<(), DataError> {
    let Some(vocab) = vocab else { return Ok(()) };
    match tokens.iter().find(|&&token| token >= vocab) {
        None => Ok(()),
        Some(&token) => Err(DataError::OutsideVocabulary { name: name.to_owned(), token, vocab }),
    }
}

fn corpus(tokens: Tokens, name: String, batch: Batch, shuffle: bool) -> Result<Source, DataError> {
    let length = u64::from(batch.tokens).max(1);
    let found = tokens.len().saturating_sub(1) / length;
    let needed = u64::from(batch.micro_batches) * u64::from(batch.sequences);
    if found < needed || found == 0 {
        return Err(DataError::TooLittle { name, tokens: tokens.len(), found, length, needed });
    }
    Ok(Source::Corpus { tokens, name, sequences: found, shuffle })
}

/// The formula of the reference runs: a token is drawn, small ids more often than large ones, or follows from the one
/// before it, each half of the time.
fn formula(seed: u64, number: u64, count: u64, vocab: u32, sequence: &mut Vec<u32>) {
    let vocab = u64::from(vocab.max(1));
    let seed = splitmix::at(seed ^ FORMULA_TAG, number);
    let mut last: u64 = 0;
    for place in 0..count {
        let drawn = splitmix::at(seed, place);
        last = if place == 0 || drawn.is_multiple_of(2) {
            let k = drawn >> 40;
            (((k * k) >> 24) * vocab) >> 24
        } else {
            (3 * last + 1) % vocab
        };
        // It is below the size of the vocabulary, a u32.
        sequence.push(last as u32);
    }
}

/// The size of the vocabulary: the least number of token ids that any function of the program accepts; none if no
/// function reads tokens.
pub fn vocabulary(program: &Program) -> Option<u32> {
    let mut least: Option<u64> = None;
    for function in program.functions.values() {
        let Body::Kernels { values, kernels } = &function.body else { continue };
        for kernel in kernels {
            let input = |index: usize| kernel.inputs.get(index).and_then(|&id| values.get(id));
            let rows = if let Op::Embedding = kernel.op {
                input(1).map(|table| table.ty.shape.rows())
            } else if let Op::CrossEntropy { .. } = kernel.op {
                input(0).map(|logits| logits.ty.shape.last())
            } else {
                None
            };
            if let Some(rows) = rows {
                least = Some(least.map_or(rows, |least| least.min(rows)));
            }
        }
    }
    least.map(|least| u32::try_from(least).unwrap_or(u32::MAX))
}

/// The target that counts for nothing, where the program has one.
pub fn ignored_target(program: &Program) -> Option<u32> {
    program.functions.values().find_map(|function| {
        let Body::Kernels { kernels, .. } = &function.body else { return None };
        kernels
            .iter()
            .find_map(|kernel| if let Op::CrossEntropy { ignore } = kernel.op { ignore } else { None })
    })
}

#[cfg(test)]
mod tests;
