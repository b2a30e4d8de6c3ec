//! The functions in an ELF file.

use std::{collections::BTreeMap, fs, io, ops::Range, path::Path};

use gimli::{BaseAddresses, CieOrFde, EhFrame, LittleEndian, UnwindSection};
use grapnel_relocator::CodeAddr;
use object::{Object, ObjectSection, ObjectSymbol, SectionKind, SymbolKind};

/// A function in a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Function {
    /// Its address as the file says.
    pub addr: CodeAddr,
    /// Its length in bytes.
    pub len: usize,
    /// Its bytes, and those that follow it, as many as a window may need.
    pub bytes: Vec<u8>,
}

/// What is taken from a file.
#[derive(Clone, Debug)]
pub struct Library {
    /// Its functions, by address.
    pub functions: Vec<Function>,
    /// The constant data that jump tables lie in: addresses and bytes.
    constants: Vec<(u64, Vec<u8>)>,
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
}

/// How many bytes behind a function are kept.
const BEHIND: usize = 64;

/// The functions that symbols and FDEs give an extent to, and the constant data.
///
/// # Errors
///
/// If the file can't be read or is no ELF file.
pub fn library(path: &Path) -> Result<Library, CorpusError> {
    let name = || path.display().to_string();
    let data = fs::read(path).map_err(|error| CorpusError::Io { path: name(), error })?;
    let file = object::File::parse(&*data).map_err(|error| CorpusError::Object { path: name(), error })?;
    let mut extents = BTreeMap::new();
    for symbol in file.symbols().chain(file.dynamic_symbols()) {
        if symbol.kind() == SymbolKind::Text && symbol.is_definition() && symbol.size() > 0 {
            extents.insert(symbol.address(), symbol.size());
        }
    }
    for Range { start, end } in described(&file) {
        extents.entry(start).or_insert(end - start);
    }
    let texts: Vec<_> = file
        .sections()
        .filter(|section| section.kind() == SectionKind::Text)
        .filter_map(|section| Some((section.address(), section.data().ok()?)))
        .collect();
    let function = |(&addr, &len): (&u64, &u64)| {
        let &(start, text) =
            texts.iter().find(|(start, text)| (*start..start + text.len() as u64).contains(&addr))?;
        let (at, len) = ((addr - start) as usize, len as usize);
        let bytes = text.get(at..text.len().min(at + len + BEHIND))?;
        Some(Function { addr: CodeAddr(addr), len: len.min(bytes.len()), bytes: bytes.to_vec() })
    };
    let constants = file
        .sections()
        .filter(|section| matches!(section.kind(), SectionKind::ReadOnlyData))
        .filter_map(|section| Some((section.address(), section.data().ok()?.to_vec())))
        .collect();
    Ok(Library { functions: extents.iter().filter_map(function).collect(), constants })
}

/// The extents that FDEs in `.eh_frame` describe.
fn described(file: &object::File<'_>) -> Vec<Range<u64>> {
    let Some(section) = file.section_by_name(".eh_frame") else { return Vec::new() };
    let Ok(data) = section.data() else { return Vec::new() };
    let frames = EhFrame::new(data, LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(section.address());
    let mut entries = frames.entries(&bases);
    let mut found = Vec::new();
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        if let Ok(fde) = partial.parse(EhFrame::cie_from_offset)
            && fde.len() > 0
        {
            found.push(fde.initial_address()..fde.initial_address() + fde.len());
        }
    }
    found
}
