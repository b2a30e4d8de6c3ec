//! What can be wrong with a trace.

use alloc::string::String;

/// Why a trace could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file has no bytes.
    #[error("the file is empty: the recording never began, or something emptied it since")]
    Empty,
    /// The first bytes are not a trace's.
    #[error("this is not a grapnel trace (it begins with {found})")]
    NotATrace {
        /// The first bytes, as text or hex.
        found: String,
    },
    /// Written by another version of the format.
    #[error(
        "the trace has format version {found}, this grapnel reads version {supported}: use the grapnel that recorded it"
    )]
    Version {
        /// The version in the file.
        found: u16,
        /// The version that this code reads.
        supported: u16,
    },
    /// The file ends before its process description is complete.
    #[error("the trace is cut short after {len} bytes, before anything was recorded")]
    NoInfo {
        /// Length of the file in bytes.
        len: u64,
    },
    /// A block's bytes are not what was written.
    #[error("the trace is damaged at byte {offset}: {what}")]
    Damaged {
        /// Where in the file the block begins.
        offset: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A record inside a block can't be decoded.
    #[error("bad record at byte {at} of a block: {what}")]
    Record {
        /// Offset in the decompressed block.
        at: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Reading or writing failed.
    #[cfg(feature = "file")]
    #[error("{0}")]
    Io(#[from] std::io::Error),
}
