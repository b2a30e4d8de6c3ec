//! Other profilers' files as traces, so that all that is made of traces can be made of them.

pub mod heaptrack;
mod lines;
mod modules;

/// Why nothing was imported, or not all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The file can't be read.
    #[error("it can't be read: {0}")]
    Read(std::io::Error),
    /// The trace can't be written.
    #[error("the trace can't be written: {0}")]
    Write(#[from] grapnel_trace::Error),
    /// It does not begin as such files do.
    #[error("it is not a file of heaptrack's; it begins with {found}")]
    NotHeaptrack {
        /// Its first bytes.
        found: String,
    },
    /// A newer heaptrack wrote it, or a very old one.
    #[error("it has version {found} of heaptrack's format, and versions 1 to 3 are known")]
    Version {
        /// The version.
        found: u64,
    },
}

/// A line that says what can't be: the file was cut or damaged there. What comes before it was imported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} {what}; what comes before it was imported")]
pub struct Damage {
    /// Its number, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub what: String,
}

/// What was imported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Imported {
    /// Blocks that were given out.
    pub allocations: u64,
    /// Blocks that were given back.
    pub frees: u64,
    /// Where the file broke off.
    pub damage: Option<Damage>,
}
