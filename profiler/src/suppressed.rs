//! A file of suppressions, as options name it.

use crate::opened::text_of;
use grapnel_analysis::suppressions::{SuppressionError, Suppressions};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Why a file of suppressions can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum SuppressionsError {
    /// It has something else in it.
    #[error("{path}: {error}")]
    Syntax {
        /// The file.
        path: String,
        /// What is wrong with it.
        error: SuppressionError,
    },
    /// It is larger than any that people write.
    #[error("{path}: it has more than {most} bytes, so it is no file of suppressions")]
    Large {
        /// The file.
        path: String,
        /// How many it may have.
        most: u64,
    },
    /// It can't be read.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: String,
        /// Why not.
        error: io::Error,
    },
}

/// Reads a file of suppressions.
///
/// # Errors
/// When it can't be read, or has something else in it.
pub(crate) fn suppressions_of(path: &Path) -> Result<Suppressions, SuppressionsError> {
    /// More than anybody writes.
    const MOST: u64 = 1 << 24;
    let mut text = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MOST + 1).read_to_end(&mut text))
        .map_err(|error| SuppressionsError::File { path: text_of(path), error })?;
    if text.len() as u64 > MOST {
        return Err(SuppressionsError::Large { path: text_of(path), most: MOST });
    }
    Suppressions::parse(&text).map_err(|error| SuppressionsError::Syntax { path: text_of(path), error })
}
