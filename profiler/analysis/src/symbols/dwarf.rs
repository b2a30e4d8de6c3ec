//! Functions, lines and inlined calls, from DWARF.

use super::demangle::demangle;
use super::discarded::{Discarded, Slice};
use super::files::{ElfFile, FileStore, Opened};
use super::sections;
use super::split::SplitUnits;
use super::units::{self, UnitDepths};
use super::{Frame, Name};
use addr2line::{Context, LookupContinuation, LookupResult};
use object::read::{Object, ObjectSection};
use std::path::PathBuf;
use std::sync::Arc;

/// The debug information of a module. Units, lines and functions are parsed when first asked for.
pub(crate) struct DebugInfo<'a> {
    dwarf: Arc<gimli::Dwarf<Slice<'a>>>,
    context: Context<Slice<'a>>,
    depths: UnitDepths,
    split: SplitUnits<'a>,
    store: &'a FileStore,
    path: PathBuf,
}

/// Whether a file has debug information, rather than symbols only.
pub(crate) fn has_debug_info(elf: &ElfFile<'_>) -> bool {
    elf.section_by_name(".debug_info")
        .is_some_and(|section| section.size() > 0 && section.file_range().is_some())
}

impl<'a> DebugInfo<'a> {
    pub(crate) fn load(
        store: &'a FileStore,
        file: &Opened<'a>,
        supplement: Option<&Opened<'a>>,
        split: SplitUnits<'a>,
    ) -> Result<Self, gimli::Error> {
        let load = |file: &Opened<'a>, id: gimli::SectionId, discarded: Option<&'a [Discarded; 2]>| {
            Ok::<_, gimli::Error>(sections::dwarf(store, file, id, Some(id.name()), discarded))
        };
        let discarded = store.discarded(&file.elf);
        let mut dwarf = gimli::Dwarf::load(|id| load(file, id, Some(discarded)))?;
        if let Some(supplement) = supplement {
            dwarf.load_sup(|id| load(supplement, id, None))?;
        }
        dwarf.populate_abbreviations_cache(gimli::AbbreviationsCacheStrategy::Duplicates);
        let dwarf = Arc::new(dwarf);
        let depths = UnitDepths::new(&dwarf, &discarded[0])?;
        let context = Context::from_arc_dwarf(Arc::clone(&dwarf))?;
        Ok(Self { dwarf, context, depths, split, store, path: file.path.clone() })
    }

    /// The frames at an address, the innermost inlined one first, the physical one last. Empty when the
    /// address is not covered; also when its information is broken, of which a note is taken.
    pub(crate) fn frames(&self, address: u64) -> Vec<Frame> {
        let mut frames = Vec::new();
        // The end of the range that addr2line asks for would be beyond all addresses.
        if address == u64::MAX {
            return frames;
        }
        if !self.depths.are_flat_at(&self.dwarf, address) {
            self.store.trouble(units::too_deep(&self.path));
            return frames;
        }
        let mut lookup = self.context.find_frames(address);
        let found = loop {
            match lookup {
                LookupResult::Output(found) => break found,
                LookupResult::Load { load, continuation } => {
                    lookup = continuation.resume(self.split.load(&load))
                }
            }
        };
        if let Err(error) = found.and_then(|found| self.collect(found, &mut frames)) {
            self.store.trouble(format!("debug information of {} is broken: {error}", self.path.display()));
        }
        if let Some(physical) = frames.last_mut() {
            physical.inlined = false;
        }
        frames
    }

    fn collect(
        &self,
        mut found: addr2line::FrameIter<'_, Slice<'a>>,
        frames: &mut Vec<Frame>,
    ) -> Result<(), gimli::Error> {
        while let Some(frame) = found.next()? {
            let raw = frame.function.as_ref().and_then(|function| function.raw_name().ok());
            // GCC leaves it empty where it split a function in link-time optimisation.
            let raw = raw.filter(|raw| !raw.is_empty());
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
        Ok(())
    }
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
