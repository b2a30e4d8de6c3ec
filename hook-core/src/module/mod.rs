//! Loaded ELF objects, found through the dynamic linker's own list and read where they are mapped.
//!
//! No function of the dynamic linker is called: `dl_iterate_phdr`, `dlopen` and `dlsym` take its lock.
//!
//! # Safety
//! A [`Module`] reads the memory of an object. Its constructors are `unsafe`: the object must stay loaded for as long
//! as the value is used. Every read is checked against the readable segments that the program headers name.

mod build_id;
mod dynamic;
mod list;

use alloc::vec::Vec;
use core::ops::Range;

pub use build_id::BuildId;
pub(crate) use dynamic::Dynamic;
pub use list::{
    LinkMap, RDebug, is_unloading, loaded_modules, next_namespace, r_debug, r_debug_of_this_process,
};
pub(crate) use list::{breakpoint, is_settled};

use crate::{
    elf::{self, Ehdr, Phdr},
    memory::maps::{self, Mapping, Maps},
    native,
};

/// More program headers than any object has.
const PHDR_MAX: usize = 1 << 12;

/// A segment as it is mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// The addresses, as the program header gives them, moved by the load bias.
    pub range: Range<usize>,
    /// May be read.
    pub read: bool,
    /// May be written to.
    pub write: bool,
    /// Holds code.
    pub execute: bool,
}

/// A loaded ELF object.
#[derive(Debug, Clone)]
pub struct Module {
    name: Vec<u8>,
    bias: usize,
    segments: Vec<Segment>,
    dynamic: Dynamic,
    eh_frame_hdr: Option<Range<usize>>,
    notes: Vec<Range<usize>>,
    /// What isn't to be written once it is relocated: the pages from the first one's start up to where the last one begins.
    relro: Option<Range<usize>>,
}

impl Module {
    /// Describes an object by its program headers.
    ///
    /// # Safety
    /// `phdr` points to `count` program headers of an object that is loaded with this bias and stays loaded for as long
    /// as the value is used.
    pub unsafe fn from_program_headers(name: &[u8], bias: usize, phdr: *const (), count: usize) -> Self {
        // SAFETY: the caller's promise.
        let (module, dynamic) = unsafe { Self::by_headers(name, bias, phdr, count) };
        module.with_dynamic(dynamic)
    }

    /// What the headers say by themselves, and where the dynamic section is.
    ///
    /// # Safety
    /// `phdr` points to `count` program headers. What they say must be so before anything of the object is read.
    unsafe fn by_headers(name: &[u8], bias: usize, phdr: *const (), count: usize) -> (Self, Option<usize>) {
        let mut segments = Vec::new();
        let mut dynamic = None;
        let mut eh_frame_hdr = None;
        let mut notes = Vec::new();
        let mut relro = None;
        for i in 0..count.min(PHDR_MAX) {
            // SAFETY: `phdr` points to `count` headers (the caller's promise).
            let header = unsafe { phdr.cast::<Phdr>().add(i).read_unaligned() };
            let start = bias.wrapping_add(header.p_vaddr);
            let Some(end) = start.checked_add(header.p_memsz) else { continue };
            match header.p_type {
                elf::PT_LOAD => segments.push(Segment {
                    range: start..end,
                    read: header.p_flags & elf::PF_R != 0,
                    write: header.p_flags & elf::PF_W != 0,
                    execute: header.p_flags & elf::PF_X != 0,
                }),
                elf::PT_DYNAMIC => dynamic = Some(start),
                elf::PT_GNU_EH_FRAME => eh_frame_hdr = Some(start..end),
                elf::PT_NOTE => notes.push(start..end),
                elf::PT_GNU_RELRO => {
                    let page = |address: usize| address & !(crate::sys::PAGE - 1);
                    relro = Some(page(start)..page(end)).filter(|range| !range.is_empty());
                }
                _ => {}
            }
        }
        let name = Vec::from(name);
        (Self { name, bias, segments, dynamic: Dynamic::default(), eh_frame_hdr, notes, relro }, dynamic)
    }

    fn with_dynamic(mut self, at: Option<usize>) -> Self {
        if let Some(at) = at {
            self.dynamic = Dynamic::read(&self, at);
        }
        self
    }

    /// Describes an object by the address of its ELF header, which lies in its first segment.
    ///
    /// # Safety
    /// At `header` one page is readable. If it holds an ELF header of this machine, it is that of an object that is
    /// loaded there and stays loaded for as long as the value is used.
    pub unsafe fn from_elf_header(name: &[u8], header: usize) -> Option<Self> {
        // SAFETY: the caller's promise.
        let (module, dynamic) = unsafe { Self::by_elf_header(name, header) }?;
        Some(module.with_dynamic(dynamic))
    }

    /// As [`Self::by_headers`].
    ///
    /// # Safety
    /// One page is readable there, and as for that.
    unsafe fn by_elf_header(name: &[u8], header: usize) -> Option<(Self, Option<usize>)> {
        // SAFETY: one page is readable there.
        let ehdr = unsafe { (header as *const Ehdr).read_unaligned() };
        let table = ehdr.e_phoff..ehdr.e_phoff.checked_add(usize::from(ehdr.e_phnum) * size_of::<Phdr>())?;
        if ehdr.e_ident.get(..4)? != b"\x7fELF"
            || ehdr.e_ident.get(4) != Some(&elf::CLASS)
            || usize::from(ehdr.e_phentsize) != size_of::<Phdr>()
            || table.end > crate::sys::PAGE
        {
            return None;
        }
        let phdr = (header + table.start) as *const Phdr;
        // The segment that holds the file's start says which address the file was linked for.
        let first = (0..usize::from(ehdr.e_phnum))
            // SAFETY: the table ends inside the readable page (checked above).
            .map(|i| unsafe { phdr.add(i).read_unaligned() })
            .find(|p| p.p_type == elf::PT_LOAD && p.p_offset == 0)?;
        let bias = header.wrapping_sub(first.p_vaddr);
        // SAFETY: the table is readable (checked above), and the rest is the caller's promise.
        Some(unsafe { Self::by_headers(name, bias, phdr.cast(), usize::from(ehdr.e_phnum)) })
    }

    /// Describes the object whose code an address lies in, by the ELF header at the start of the file that is mapped
    /// there. It has no name.
    ///
    /// # Safety
    /// If there is one, it stays loaded for as long as the value is used.
    pub(crate) unsafe fn around(maps: &Maps, address: usize) -> Option<Self> {
        // A file that is mapped and not loaded may lack what its headers name. Nothing of it is read before that is known.
        let is_there = |s: &Segment| !s.read || maps.readable(s.range.start, s.range.len()) == s.range.len();
        let headers = [maps.file_start(address), maps.file_start_below(address)].into_iter().flatten();
        let readable = headers.filter(|header| maps.readable(*header, crate::sys::PAGE) == crate::sys::PAGE);
        // SAFETY: a page is readable there; the rest is the caller's promise.
        let mut modules = readable.filter_map(|header| unsafe { Self::by_elf_header(b"", header) });
        let (module, dynamic) =
            modules.find(|(module, _)| module.holds_code(address) && module.segments.iter().all(is_there))?;
        Some(module.with_dynamic(dynamic))
    }

    /// Whether code can lie at an address. QEMU's user mode (7.2) takes mappings of a file together and says of all of them what the
    /// first page is, which has the headers: there the headers are asked.
    ///
    /// # Safety
    /// As for [`Self::around`].
    pub(crate) unsafe fn is_code(maps: &Maps, address: usize) -> bool {
        let Some(mapping) = maps.find(address) else { return false };
        // SAFETY: the caller's promise.
        mapping.execute
            || (native::is_emulated() && unsafe { Self::is_code_together(maps, mapping, address) })
    }

    /// Whether an address of a mapping that begins with an object's headers lies in that object's code.
    ///
    /// # Safety
    /// As for [`Self::around`].
    pub(crate) unsafe fn is_code_together(maps: &Maps, mapping: &Mapping, address: usize) -> bool {
        let Mapping { read, write, offset, ref range, .. } = *mapping;
        // SAFETY: the caller's promise.
        let object = || unsafe { Self::around(maps, address) };
        read && !write && offset == 0 && object().is_some_and(|object| !object.holds_code(range.start))
    }

    /// The same with the path of the file that is mapped at this address of it for its name. The main program has none.
    pub(crate) fn with_path_at(self, address: usize) -> Self {
        let program = crate::sys::auxiliary(libc::AT_PHDR as usize);
        if program.is_some_and(|headers| self.holds(headers)) {
            return self;
        }
        Self { name: maps::path_at(address).unwrap_or_default(), ..self }
    }

    /// The name that the dynamic linker has for it: a path, or empty for the main program.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// The last component of the name.
    pub fn file_name(&self) -> &[u8] {
        self.name.rsplit(|&b| b == b'/').next().unwrap_or(&[])
    }

    /// The name that it was linked to be known by (`DT_SONAME`), if it has one.
    pub fn soname(&self) -> Option<&[u8]> {
        self.string(self.dynamic.soname?)
    }

    /// Whether it goes by this name: its soname, its whole name, or the last components of that ("libz.so.1",
    /// "lib/libz.so.1"). The empty name is that of the main program.
    pub fn is_called(&self, name: &[u8]) -> bool {
        let ends = || {
            let before = self.name.strip_suffix(name)?;
            Some(before.is_empty() || before.ends_with(b"/"))
        };
        match name {
            b"" => self.name.is_empty(),
            _ => self.soname() == Some(name) || ends() == Some(true),
        }
    }

    /// The number that the linker gave to this very build (the note `NT_GNU_BUILD_ID`), if it did.
    pub fn build_id(&self) -> Option<BuildId> {
        self.notes.iter().find_map(|note| BuildId::in_notes(self.slice(note.start, Some(note.end))?))
    }

    /// What is added to the addresses in the file.
    pub fn bias(&self) -> usize {
        self.bias
    }

    /// The loadable segments.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Whether an address lies in a segment of this object.
    pub fn holds(&self, address: usize) -> bool {
        self.segments.iter().any(|s| s.range.contains(&address))
    }

    /// Whether an address lies in code of this object.
    pub fn holds_code(&self, address: usize) -> bool {
        self.segments.iter().any(|s| s.execute && s.range.contains(&address))
    }

    /// What the dynamic linker protects once the object is relocated (RELRO), if that is at least a page.
    pub(crate) fn protected(&self) -> Option<&Range<usize>> {
        self.relro.as_ref()
    }

    pub(crate) fn dynamic(&self) -> &Dynamic {
        &self.dynamic
    }

    /// A string of the dynamic section's table.
    pub(crate) fn string(&self, offset: usize) -> Option<&[u8]> {
        let bytes = self.strings()?.get(offset..)?;
        bytes.get(..bytes.iter().position(|&b| b == 0)?)
    }

    /// That table.
    pub(crate) fn strings(&self) -> Option<&[u8]> {
        let start = self.dynamic.strings?;
        self.slice(start, start.checked_add(self.dynamic.strings_len))
    }

    /// The bytes from `at` to `end`, or to the end of the segment that holds `at`.
    pub(crate) fn slice(&self, at: usize, end: Option<usize>) -> Option<&[u8]> {
        let segment = self.segments.iter().find(|s| s.read && s.range.contains(&at))?;
        let end = end.map_or(segment.range.end, |end| end.min(segment.range.end));
        let len = end.checked_sub(at)?;
        // SAFETY: the range lies in a readable segment of an object that stays loaded (the constructors' promise).
        // Only tables that the dynamic linker has finished relocating are read through it.
        Some(unsafe { core::slice::from_raw_parts(at as *const u8, len) })
    }

    /// `.eh_frame_hdr`, with its address.
    pub(crate) fn eh_frame_hdr(&self) -> Option<(usize, &[u8])> {
        let range = self.eh_frame_hdr.clone()?;
        Some((range.start, self.slice(range.start, Some(range.end))?))
    }

    /// Whether so many bytes lie in a readable segment.
    pub(crate) fn can_read(&self, at: usize, len: usize) -> bool {
        let holds = |end| self.segments.iter().any(|s| s.read && s.range.start <= at && end <= s.range.end);
        at.checked_add(len).is_some_and(holds)
    }

    /// Reads a value; `None` outside the readable segments.
    pub(crate) fn read<T: elf::Plain>(&self, at: usize) -> Option<T> {
        if !self.can_read(at, size_of::<T>()) {
            return None;
        }
        // SAFETY: the bytes lie in a readable segment of an object that stays loaded (the constructors' promise), and
        // every bit pattern is a value of a `Plain` type.
        Some(unsafe { (at as *const T).read_unaligned() })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    /// Its headers name addresses at which there is nothing.
    #[test]
    #[cfg_attr(miri, ignore = "maps a file")]
    fn a_file_that_is_mapped_as_it_is_is_no_object() {
        let maps = Maps::read().unwrap();
        let here = Module::by_elf_header as *const () as usize;
        // SAFETY: this program stays.
        let own = unsafe { Module::around(&maps, here) }.unwrap();
        let code = own.segments.iter().find(|segment| segment.range.contains(&here)).unwrap();
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        // What follows, the dynamic section for one, isn't there.
        let len = code.range.end - own.bias;
        let rights = libc::PROT_READ | libc::PROT_EXEC;
        // SAFETY: a new mapping.
        let at =
            unsafe { libc::mmap(core::ptr::null_mut(), len, rights, libc::MAP_PRIVATE, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let maps = Maps::read().unwrap();
        let address = at as usize + here - own.bias;
        // SAFETY: the mapping stays.
        assert!(unsafe { Module::around(&maps, address) }.is_none());
        // SAFETY: the mapping from above.
        assert_eq!(unsafe { libc::munmap(at, len) }, 0);
    }
}
