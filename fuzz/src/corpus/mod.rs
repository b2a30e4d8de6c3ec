//! The functions in files: ELF files, and lists of windows as JSON lines.

mod arm;
mod elf;
mod lines;
mod within;

use std::{io, path::Path};

use bytes::Bytes;
use grapnel_relocator::{CodeAddr, Isa};

pub use within::boundaries;

/// A function in a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Function {
    /// Its address as the file says.
    pub addr: CodeAddr,
    /// Its length in bytes, where the file tells.
    pub extent: Option<usize>,
    /// Its first byte is where a caller enters it.
    pub entry: bool,
    /// Its bytes, and those that follow it, as many as a window may need; or as many as the file has. Functions of an ELF
    /// file may lie in one another, and share them.
    pub bytes: Bytes,
}

impl Function {
    /// All its bytes, if they are there.
    #[must_use]
    pub fn whole(&self) -> Option<&[u8]> {
        self.bytes.get(..self.extent?)
    }

    /// The bytes that are known or likely to be its own.
    #[must_use]
    pub fn own(&self) -> &[u8] {
        &self.bytes[..self.extent.unwrap_or(self.bytes.len()).min(self.bytes.len())]
    }
}

/// What is taken from a file.
#[derive(Clone, Debug, Default)]
pub struct Library {
    /// Its functions, by address.
    pub functions: Vec<Function>,
    /// The constant data that jump tables lie in: addresses and bytes.
    constants: Vec<(u64, Bytes)>,
}

impl Library {
    /// Reads constant data, all of it or nothing.
    #[must_use]
    pub fn read(&self, addr: CodeAddr, out: &mut [u8]) -> bool {
        let found = self.constants.iter().find_map(|(start, bytes)| {
            let at = addr.offset_within(CodeAddr(*start), bytes.len() as u64)? as usize;
            bytes.get(at..at + out.len())
        });
        found.map(|bytes| out.copy_from_slice(bytes)).is_some()
    }
}

/// Why a file has no functions to offer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CorpusError {
    /// It can't be read.
    #[error("can't read {path}: {error}")]
    Io {
        /// The file.
        path: String,
        /// The reason.
        error: io::Error,
    },
    /// It is no ELF file.
    #[error("{path} is not an ELF file: {error}")]
    Object {
        /// The file.
        path: String,
        /// The reason.
        error: object::Error,
    },
    /// It has code of another machine.
    #[error("{path} has no {isa} code: it is for {machine}")]
    Machine {
        /// The file.
        path: String,
        /// What was asked for.
        isa: Isa,
        /// What it is for.
        machine: String,
    },
    /// A line is no window.
    #[error("{path}, line {line}: {error}")]
    Line {
        /// The file.
        path: String,
        /// The line's number, from 1.
        line: usize,
        /// What is wrong with it.
        error: String,
    },
}

/// The functions of an instruction set in a file: those that symbols and unwind tables of an ELF file tell, or those that
/// the lines of a `*.jsonl` or `*.jsonl.gz` file are.
///
/// # Errors
///
/// If the file can't be read, or is neither of these.
pub fn library(path: &Path, isa: Isa) -> Result<Library, CorpusError> {
    let name = path.to_string_lossy();
    if name.ends_with(".jsonl") || name.ends_with(".jsonl.gz") {
        lines::library(path, isa)
    } else {
        elf::library(path, isa)
    }
}
