//! Functions, lines and inlined calls, from DWARF.

use super::demangle::demangle;
use super::files::{ElfFile, FileStore, path_of};
use super::{Frame, Name};
use addr2line::{Context, LookupContinuation, LookupResult, SplitDwarfLoad};
use gimli::{DwarfPackage, EndianSlice, RunTimeEndian, SectionId};
use object::read::{Object, ObjectSection};
use std::borrow::Cow;
use std::sync::Arc;

type Slice<'a> = EndianSlice<'a, RunTimeEndian>;

/// The debug information of a module. Units, lines and functions are parsed when first asked for.
pub(crate) struct DebugInfo<'a> {
    context: Context<Slice<'a>>,
    package: Option<DwarfPackage<Slice<'a>>>,
    store: &'a FileStore,
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
        package: Option<&ElfFile<'a>>,
    ) -> Result<Self, gimli::Error> {
        let mut dwarf = gimli::Dwarf::load(|id| section(store, elf, id, Some(id.name())))?;
        if let Some(sup) = sup {
            dwarf.load_sup(|id| section(store, sup, id, Some(id.name())))?;
        }
        dwarf.populate_abbreviations_cache(gimli::AbbreviationsCacheStrategy::Duplicates);
        let empty = EndianSlice::new(&[][..], endian(elf));
        // A broken package is no reason to have no lines at all.
        let package = package.and_then(|package| {
            DwarfPackage::load(|id| section(store, package, id, id.dwo_name()), empty).ok()
        });
        Ok(Self { context: Context::from_dwarf(dwarf)?, package, store })
    }

    /// The frames at an address, the innermost inlined one first, the physical one last. Empty when the
    /// address is not covered; also when its information is broken, which is no better.
    pub(crate) fn frames(&self, address: u64) -> Vec<Frame> {
        let mut frames = Vec::new();
        let mut lookup = self.context.find_frames(address);
        let found = loop {
            match lookup {
                LookupResult::Output(found) => break found,
                LookupResult::Load { load, continuation } => {
                    lookup = continuation.resume(self.split_unit(&load))
                }
            }
        };
        let Ok(mut found) = found else { return frames };
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

impl<'a> DebugInfo<'a> {
    /// The part of a unit that `-gsplit-dwarf` put into a file of its own: in the package beside the object,
    /// else where the compiler left it.
    fn split_unit(&self, load: &SplitDwarfLoad<Slice<'a>>) -> Option<Arc<gimli::Dwarf<Slice<'a>>>> {
        if let Some(package) = &self.package
            && let Ok(Some(unit)) = package.find_cu(load.dwo_id, &load.parent)
        {
            return Some(Arc::new(unit));
        }
        let directory = load.comp_dir.map_or(&b""[..], |directory| directory.slice());
        let path = path_of(directory).join(path_of(load.path?.slice()));
        let opened = self.store.open(&path, &[]).ok()?;
        let mut dwarf = gimli::Dwarf::load(|id| section(self.store, &opened.elf, id, id.dwo_name())).ok()?;
        let header = dwarf.units().next().ok()??;
        // A file that was compiled again since has another id.
        if dwarf.unit(header).ok()?.dwo_id != Some(load.dwo_id) {
            return None;
        }
        dwarf.make_dwo(&load.parent);
        Some(Arc::new(dwarf))
    }
}

/// A section's bytes, decompressed where they are compressed; empty for what is absent or not needed.
fn section<'a>(
    store: &'a FileStore,
    elf: &ElfFile<'a>,
    id: SectionId,
    name: Option<&str>,
) -> Result<Slice<'a>, gimli::Error> {
    let needed = !matches!(
        id,
        SectionId::DebugLoc
            | SectionId::DebugLocLists
            | SectionId::DebugMacinfo
            | SectionId::DebugMacro
            | SectionId::DebugNames
            | SectionId::DebugTypes
    );
    // A package's index reaches into all of its sections.
    let section =
        name.filter(|name| needed || name.ends_with(".dwo")).and_then(|name| elf.section_by_name(name));
    let bytes: &'a [u8] = match section.and_then(|section| section.uncompressed_data().ok()) {
        Some(Cow::Borrowed(bytes)) => bytes,
        Some(Cow::Owned(bytes)) => store.sections.alloc(bytes),
        None => &[],
    };
    Ok(EndianSlice::new(bytes, endian(elf)))
}

fn endian(elf: &ElfFile<'_>) -> RunTimeEndian {
    if elf.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big }
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
