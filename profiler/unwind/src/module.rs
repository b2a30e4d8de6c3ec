//! The loaded modules, by address.
//!
//! # Safety
//! A table holds addresses of unwind information in mapped modules. Reading them relies on the promise made to
//! [`ModuleTable::build`].

use crate::cfi::{FrameList, SearchTable};
use crate::memory::{WORD, read_word};
use alloc::vec::Vec;
use core::ops::Range;

/// A program header, laid out as `Elf64_Phdr` (System V gABI, "Program Header").
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of the gABI")]
pub struct ProgramHeader {
    pub p_type: u32,
    pub p_flags: u32,
    pub p_offset: u64,
    pub p_vaddr: u64,
    pub p_paddr: u64,
    pub p_filesz: u64,
    pub p_memsz: u64,
    pub p_align: u64,
}

const PT_LOAD: u32 = 1;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const PT_ARM_EXIDX: u32 = 0x7000_0001;
const PF_X: u32 = 1;
const PF_R: u32 = 4;

/// What the caller knows of a module: the contents of a `dl_phdr_info`.
#[derive(Clone, Copy, Debug)]
pub struct ModuleInfo<'a> {
    /// Unique per load; never used again after the module is unloaded. 0 stands for "no module".
    pub id: u32,
    /// What is added to an address in the file (SVMA) to get one in memory (AVMA).
    pub bias: u64,
    /// The program headers.
    pub phdrs: &'a [ProgramHeader],
}

/// `[start, end)` as AVMAs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Span {
    fn contains(self, address: u64) -> bool {
        self.start <= address && address < self.end
    }
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    span: Span,
    module: u32,
    executable: bool,
}

#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) id: u32,
    /// Base of text-relative pointers: the start of the first executable segment.
    pub(crate) text: u64,
    pub(crate) eh_frame_hdr: Option<Span>,
    pub(crate) arm_exidx: Option<Span>,
    /// The table of the header, if it is of the common form.
    pub(crate) search: Option<SearchTable>,
    /// What stands for a header that isn't there.
    pub(crate) frames: Option<FrameList>,
    /// The readable, file-backed parts of the segments: where `.eh_frame` may lie.
    readable: Vec<Span>,
}

impl Module {
    /// The readable part of the segment that `address` lies in.
    pub(crate) fn segment_at(&self, address: u64) -> Option<Span> {
        self.readable.iter().copied().find(|segment| segment.contains(address))
    }

    /// From `address` to the end of the readable part of the segment that it lies in.
    ///
    /// The length of `.eh_frame` is nowhere in memory; its terminator ends it.
    pub(crate) fn rest_of_segment(&self, address: u64) -> Option<Span> {
        Some(Span { start: address, end: self.segment_at(address)?.end })
    }

    /// What of a table is mapped: one that lies outside is not worth a fault.
    fn mapped(&self, table: Span) -> Option<Span> {
        let rest = self.rest_of_segment(table.start)?;
        Some(Span { start: table.start, end: table.end.min(rest.end) })
    }
}

/// An immutable snapshot of the loaded modules.
#[derive(Debug, Default)]
pub struct ModuleTable {
    /// Sorted by start; they do not overlap.
    segments: Vec<Segment>,
    modules: Vec<Module>,
    pub(crate) by_frame_pointers: bool,
}

impl ModuleTable {
    /// A table of these modules. Allocates, and reads the heads of their tables.
    ///
    /// # Safety
    /// From now on, and as long as the table is used to resolve a pc, each module's readable segments stay mapped as its program
    /// headers say.
    pub unsafe fn build<'a>(modules: impl IntoIterator<Item = ModuleInfo<'a>>) -> Self {
        let mut table = ModuleTable::default();
        for info in modules {
            let at = |vaddr: u64| info.bias.wrapping_add(vaddr);
            let index = table.modules.len() as u32;
            let mut module = Module {
                id: info.id,
                text: u64::MAX,
                eh_frame_hdr: None,
                arm_exidx: None,
                search: None,
                frames: None,
                readable: Vec::new(),
            };
            for header in info.phdrs {
                let start = at(header.p_vaddr);
                let whole = Span { start, end: start.saturating_add(header.p_memsz) };
                match header.p_type {
                    PT_GNU_EH_FRAME => module.eh_frame_hdr = Some(whole),
                    PT_ARM_EXIDX => module.arm_exidx = Some(whole),
                    _ => {}
                }
                if header.p_type != PT_LOAD || header.p_memsz == 0 {
                    continue;
                }
                let executable = header.p_flags & PF_X != 0;
                if executable {
                    module.text = module.text.min(start);
                }
                if header.p_flags & PF_R != 0 {
                    let len = header.p_filesz.min(header.p_memsz);
                    module.readable.push(Span { start, end: start.saturating_add(len) });
                }
                table.segments.push(Segment { span: whole, module: index, executable });
            }
            module.eh_frame_hdr = module.eh_frame_hdr.and_then(|span| module.mapped(span));
            module.arm_exidx = module.arm_exidx.and_then(|span| module.mapped(span));
            // SAFETY: its segments are mapped (the caller's promise).
            module.search = unsafe { SearchTable::read(&module) };
            table.modules.push(module);
        }
        table.segments.sort_unstable_by_key(|s| s.span.start);
        table
    }

    /// Says where the `.eh_frame` of a module lies that has no header of it in memory, as static programs have none. Reads all
    /// of it. Allocates.
    ///
    /// # Safety
    /// As in [`Self::build`].
    pub unsafe fn add_frames(&mut self, module: u32, frames: Range<u64>) {
        let Some(module) = self.modules.iter_mut().find(|known| known.id == module) else { return };
        let given = Span { start: frames.start, end: frames.end };
        if module.eh_frame_hdr.is_none()
            && let Some(frames) = module.mapped(given)
        {
            // SAFETY: within a readable segment (the caller's promise).
            module.frames = Some(unsafe { FrameList::read(frames, module.text) });
        }
    }

    /// From now on callers are found by frame pointers alone, as if code had no tables: for programs that were built
    /// with these, and whose tables are wrong or missing.
    #[must_use]
    pub fn by_frame_pointers(self) -> Self {
        ModuleTable { by_frame_pointers: true, ..self }
    }

    fn segment_at(&self, address: u64) -> Option<&Segment> {
        let after = self.segments.partition_point(|s| s.span.start <= address);
        let segment = self.segments.get(after.checked_sub(1)?)?;
        segment.span.contains(address).then_some(segment)
    }

    /// The module whose code holds `address`.
    pub(crate) fn code_at(&self, address: u64) -> Option<&Module> {
        let segment = self.segment_at(address).filter(|s| s.executable)?;
        self.modules.get(segment.module as usize)
    }

    /// The word at `pc`, if that is code of a module, and is readable by what the module says.
    pub(crate) fn word_of_code(&self, pc: u64) -> Option<u64> {
        let segment = self.code_at(pc)?.segment_at(pc)?;
        // SAFETY: a word of a mapped segment (the promise made to `build`).
        (segment.end.checked_sub(pc)? >= WORD).then(|| unsafe { read_word(pc) })
    }

    /// The id of the module that has `address` in one of its segments.
    pub fn module_at(&self, address: u64) -> Option<u32> {
        let segment = self.segment_at(address)?;
        self.modules.get(segment.module as usize).map(|m| m.id)
    }

    /// Whether `address` lies in an executable segment of a module.
    pub fn is_code(&self, address: u64) -> bool {
        self.segment_at(address).is_some_and(|s| s.executable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(vaddr: u64, len: u64, flags: u32) -> ProgramHeader {
        ProgramHeader {
            p_type: PT_LOAD,
            p_flags: flags,
            p_vaddr: vaddr,
            p_filesz: len,
            p_memsz: len,
            ..Default::default()
        }
    }

    #[test]
    fn finds_the_module_of_an_address() {
        let a = [load(0, 0x1000, PF_R), load(0x1000, 0x1000, PF_R | PF_X)];
        let b = [load(0, 0x800, PF_R | PF_X)];
        let infos = [
            ModuleInfo { id: 7, bias: 0x50_0000, phdrs: &a },
            ModuleInfo { id: 3, bias: 0x10_0000, phdrs: &b },
        ];
        // SAFETY: nothing is resolved with this table.
        let table = unsafe { ModuleTable::build(infos) };
        assert_eq!(table.module_at(0x50_0000), Some(7));
        assert!(!table.is_code(0x50_0fff));
        assert!(table.is_code(0x50_1000));
        assert_eq!(table.module_at(0x50_2000), None);
        assert_eq!(table.module_at(0x10_07ff), Some(3));
        assert_eq!(table.module_at(0x10_0800), None);
        assert_eq!(table.module_at(0), None);
        assert_eq!(table.module_at(u64::MAX), None);
    }
}
