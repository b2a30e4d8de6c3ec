//! Functions, lines and inlined calls, from DWARF.

use super::demangle::demangle;
use super::files::{ElfFile, FileStore};
use super::{Frame, Name};
use addr2line::Context;
use gimli::{EndianSlice, RunTimeEndian, SectionId};
use object::read::{Object, ObjectSection};
use std::borrow::Cow;

type Slice<'a> = EndianSlice<'a, RunTimeEndian>;

/// The debug information of a module. Units, lines and functions are parsed when first asked for.
pub(crate) struct DebugInfo<'a> {
    context: Context<Slice<'a>>,
}

/// Whether a file has debug information, rather than symbols only.
pub(crate) fn has_debug_info(elf: &ElfFile<'_>) -> bool {
    elf.section_by_name(".debug_info")
        .is_some_and(|section| section.size() > 0 && section.file_range().is_some())
}

impl<'a> DebugInfo<'a> {
    pub(crate) fn load(
        store: &'a FileStore,
        elf: &ElfFile<'a>,
        sup: Option<&ElfFile<'a>>,
    ) -> Result<Self, gimli::Error> {
        let mut dwarf = gimli::Dwarf::load(|id| section(store, elf, id))?;
        if let Some(sup) = sup {
            dwarf.load_sup(|id| section(store, sup, id))?;
        }
        dwarf.populate_abbreviations_cache(gimli::AbbreviationsCacheStrategy::Duplicates);
        Ok(Self { context: Context::from_dwarf(dwarf)? })
    }

    /// The frames at an address, the innermost inlined one first, the physical one last. Empty when the
    /// address is not covered; also when its information is broken, which is no better.
    pub(crate) fn frames(&self, address: u64) -> Vec<Frame> {
        let mut frames = Vec::new();
        let Ok(mut found) = self.context.find_frames(address).skip_all_loads() else { return frames };
        while let Ok(Some(frame)) = found.next() {
            let raw = frame.function.as_ref().and_then(|function| function.raw_name().ok());
            let location = frame.location.as_ref();
            frames.push(Frame {
                function: raw
                    .as_deref()
                    .map(|raw| Name { text: demangle(raw), full: super::demangle::is_mangled(raw) }),
                file: location.and_then(|location| location.file).map(clean_path),
                line: location.and_then(|location| location.line).filter(|&line| line != 0),
                inlined: true,
            });
        }
        if let Some(physical) = frames.last_mut() {
            physical.inlined = false;
        }
        frames
    }
}

/// A section's bytes, decompressed where they are compressed; empty for what is absent or not needed.
fn section<'a>(store: &'a FileStore, elf: &ElfFile<'a>, id: SectionId) -> Result<Slice<'a>, gimli::Error> {
    let endian = if elf.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
    let needed = !matches!(
        id,
        SectionId::DebugLoc
            | SectionId::DebugLocLists
            | SectionId::DebugMacinfo
            | SectionId::DebugMacro
            | SectionId::DebugNames
            | SectionId::DebugTypes
    );
    let section = needed.then(|| elf.section_by_name(id.name())).flatten();
    let bytes: &'a [u8] = match section.and_then(|section| section.uncompressed_data().ok()) {
        Some(Cow::Borrowed(bytes)) => bytes,
        Some(Cow::Owned(bytes)) => store.sections.alloc(bytes),
        None => &[],
    };
    Ok(EndianSlice::new(bytes, endian))
}

/// Compilers leave `/build/x/./a.c` and `dir/../b.c` where the build directory and a relative name meet.
fn clean_path(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for part in path.split('/').filter(|part| !matches!(*part, "" | ".")) {
        if part == ".." && kept.last().is_some_and(|last| *last != "..") {
            kept.pop();
        } else if part != ".." || !path.starts_with('/') || !kept.is_empty() {
            kept.push(part);
        }
    }
    let root = if path.starts_with('/') { "/" } else { "" };
    format!("{root}{}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use super::clean_path;

    #[test]
    fn paths_lose_their_detours() {
        for (path, clean) in [
            ("/build/x/./a.c", "/build/x/a.c"),
            ("/build/x/../csu/../malloc//malloc.c", "/build/malloc/malloc.c"),
            ("../src/a.c", "../src/a.c"),
            ("a/../../b.c", "../b.c"),
            ("/../a.c", "/a.c"),
        ] {
            assert_eq!(clean_path(path), clean);
        }
    }
}
