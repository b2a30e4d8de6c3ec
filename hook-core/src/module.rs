//! Loaded ELF objects, found through the dynamic linker's own list and read where they are mapped.
//!
//! No function of the dynamic linker is called: `dl_iterate_phdr`, `dlopen` and `dlsym` take its lock.
//!
//! # Safety
//! A [`Module`] reads the memory of an object. Its constructors are `unsafe`: the object must stay loaded for as long
//! as the value is used. Every read is checked against the readable segments that the program headers name.

use alloc::vec::Vec;
use core::{ffi::c_char, ops::Range};

use crate::{
    elf::{self, Dyn, Ehdr, Phdr},
    memory::maps::Maps,
};

/// The longest name of an object that is kept.
const NAME_MAX: usize = 4096;
/// More objects than any process has; a corrupt list ends here.
const LIST_MAX: usize = 1 << 16;
/// More program headers than any object has.
const PHDR_MAX: usize = 1 << 12;
/// More dynamic entries than any object has.
const DYNAMIC_MAX: usize = 1 << 12;

/// A segment as it is mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// The addresses, as the program header gives them, moved by the load bias.
    pub range: Range<usize>,
    /// May be read.
    pub read: bool,
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
}

/// What the dynamic section says, as addresses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Dynamic {
    pub(crate) symbols: Option<usize>,
    pub(crate) strings: Option<usize>,
    pub(crate) strings_len: usize,
    pub(crate) gnu_hash: Option<usize>,
    pub(crate) hash: Option<usize>,
    pub(crate) versions: Option<usize>,
    pub(crate) debug: Option<usize>,
    /// Tables of relocations, with their lengths in bytes: the ordinary ones, those of the PLT, and the packed ones.
    pub(crate) rela: (Option<usize>, usize),
    pub(crate) plt: (Option<usize>, usize),
    pub(crate) relr: (Option<usize>, usize),
    /// The tag of the kind that the PLT's are of.
    pub(crate) plt_kind: usize,
}

impl Module {
    /// Describes an object by its program headers.
    ///
    /// # Safety
    /// `phdr` points to `count` program headers of an object that is loaded with this bias and stays loaded for as long
    /// as the value is used.
    pub unsafe fn from_program_headers(name: &[u8], bias: usize, phdr: *const (), count: usize) -> Self {
        let mut segments = Vec::new();
        let mut dynamic = None;
        let mut eh_frame_hdr = None;
        for i in 0..count.min(PHDR_MAX) {
            // SAFETY: `phdr` points to `count` headers (the caller's promise).
            let header = unsafe { phdr.cast::<Phdr>().add(i).read_unaligned() };
            let start = bias.wrapping_add(header.p_vaddr as usize);
            let Some(end) = start.checked_add(header.p_memsz as usize) else { continue };
            match header.p_type {
                elf::PT_LOAD => segments.push(Segment {
                    range: start..end,
                    read: header.p_flags & elf::PF_R != 0,
                    execute: header.p_flags & elf::PF_X != 0,
                }),
                elf::PT_DYNAMIC => dynamic = Some(start),
                elf::PT_GNU_EH_FRAME => eh_frame_hdr = Some(start..end),
                _ => {}
            }
        }
        let mut module =
            Self { name: Vec::from(name), bias, segments, dynamic: Dynamic::default(), eh_frame_hdr };
        if let Some(at) = dynamic {
            module.dynamic = module.read_dynamic(at);
        }
        module
    }

    /// Describes an object by the address of its ELF header, which lies in its first segment.
    ///
    /// # Safety
    /// At `header` one page is readable. If it holds an ELF header of this machine, it is that of an object that is
    /// loaded there and stays loaded for as long as the value is used.
    pub unsafe fn from_elf_header(name: &[u8], header: usize) -> Option<Self> {
        // SAFETY: one page is readable there.
        let ehdr = unsafe { (header as *const Ehdr).read_unaligned() };
        let table = (ehdr.e_phoff as usize)
            ..(ehdr.e_phoff as usize).checked_add(usize::from(ehdr.e_phnum) * size_of::<Phdr>())?;
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
        let bias = header.wrapping_sub(first.p_vaddr as usize);
        // SAFETY: the table is readable, and the object stays loaded (the caller's promise).
        Some(unsafe { Self::from_program_headers(name, bias, phdr.cast(), usize::from(ehdr.e_phnum)) })
    }

    /// The name that the dynamic linker has for it: a path, or empty for the main program.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// The last component of the name.
    pub fn file_name(&self) -> &[u8] {
        self.name.rsplit(|&b| b == b'/').next().unwrap_or(&[])
    }

    /// What is added to the addresses in the file.
    pub fn bias(&self) -> usize {
        self.bias
    }

    /// The loadable segments.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Whether an address lies in code of this object.
    pub fn holds_code(&self, address: usize) -> bool {
        self.segments.iter().any(|s| s.execute && s.range.contains(&address))
    }

    pub(crate) fn dynamic(&self) -> &Dynamic {
        &self.dynamic
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

    /// Reads a value; `None` outside the readable segments.
    pub(crate) fn read<T: elf::Plain>(&self, at: usize) -> Option<T> {
        let end = at.checked_add(size_of::<T>())?;
        let held = |s: &&Segment| s.read && s.range.start <= at && end <= s.range.end;
        self.segments.iter().find(held)?;
        // SAFETY: the bytes lie in a readable segment of an object that stays loaded (the constructors' promise), and
        // every bit pattern is a value of a `Plain` type.
        Some(unsafe { (at as *const T).read_unaligned() })
    }

    fn read_dynamic(&self, at: usize) -> Dynamic {
        let mut out = Dynamic::default();
        for i in 0..DYNAMIC_MAX {
            let Some(Dyn { tag, value }) = self.read::<Dyn>(at + i * size_of::<Dyn>()) else { break };
            match tag {
                elf::DT_NULL => break,
                elf::DT_SYMTAB => out.symbols = self.pointer(value),
                elf::DT_STRTAB => out.strings = self.pointer(value),
                elf::DT_STRSZ => out.strings_len = value,
                elf::DT_GNU_HASH => out.gnu_hash = self.pointer(value),
                elf::DT_HASH => out.hash = self.pointer(value),
                elf::DT_VERSYM => out.versions = self.pointer(value),
                elf::DT_RELA => out.rela.0 = self.pointer(value),
                elf::DT_RELASZ => out.rela.1 = value,
                elf::DT_JMPREL => out.plt.0 = self.pointer(value),
                elf::DT_PLTRELSZ => out.plt.1 = value,
                elf::DT_PLTREL => out.plt_kind = value,
                elf::DT_RELR => out.relr.0 = self.pointer(value),
                elf::DT_RELRSZ => out.relr.1 = value,
                elf::DT_DEBUG => out.debug = (value != 0).then_some(value),
                _ => {}
            }
        }
        out
    }

    /// An address in a dynamic entry. Some dynamic linkers relocate these in place (glibc), others don't (musl), and
    /// nobody does in the vDSO.
    fn pointer(&self, value: usize) -> Option<usize> {
        let mapped = |at: usize| self.segments.iter().any(|s| s.range.contains(&at));
        [value, self.bias.wrapping_add(value)].into_iter().find(|&at| mapped(at))
    }
}

/// The dynamic linker's structure for debuggers (`struct r_debug` of `<link.h>`).
#[repr(C)]
#[derive(Debug)]
pub struct RDebug {
    version: i32,
    map: *const LinkMap,
    brk: usize,
    state: i32,
    base: usize,
    /// There from version 2 on (`struct r_debug_extended`): the next namespace.
    next: *const RDebug,
}

/// The public head of the dynamic linker's `struct link_map`.
#[repr(C)]
#[derive(Debug)]
pub struct LinkMap {
    bias: usize,
    name: *const c_char,
    dynamic: *const Dyn,
    next: *const LinkMap,
    prev: *const LinkMap,
}

impl RDebug {
    /// The address of the function that the dynamic linker calls when its list has changed.
    pub fn breakpoint(&self) -> *const () {
        self.brk as *const ()
    }

    /// Whether the list is whole: no object is being added or removed.
    pub fn is_consistent(&self) -> bool {
        self.state == 0
    }
}

/// Where the dynamic linker keeps its list, found through the main program: its program headers are in the auxiliary
/// vector, and its dynamic section has a pointer that the dynamic linker fills in. A program that was started through the
/// dynamic linker by hand works as well.
///
/// # Safety
/// `phdr` points to the `count` program headers of the main program (`AT_PHDR`, `AT_PHNUM`), which is loaded.
pub unsafe fn r_debug(phdr: *const (), count: usize) -> Option<*const RDebug> {
    let headers = (0..count.min(PHDR_MAX))
        // SAFETY: `phdr` points to `count` headers (the caller's promise).
        .map(|i| unsafe { phdr.cast::<Phdr>().add(i).read_unaligned() });
    // The header of type PT_PHDR says where the headers were linked to be; a program without it isn't relocated.
    let linked = headers.clone().find(|p| p.p_type == elf::PT_PHDR).map(|p| p.p_vaddr as usize);
    let bias = linked.map_or(0, |linked| (phdr as usize).wrapping_sub(linked));
    // The ELF header lies before its program headers, in the same page in every program that linkers make.
    // SAFETY: the page that holds the program headers is readable, and the main program is never unloaded.
    let program = unsafe { Module::from_elf_header(b"", phdr as usize & !(crate::sys::PAGE - 1)) }
        // SAFETY: as above; `phdr` points to `count` headers.
        .unwrap_or_else(|| unsafe { Module::from_program_headers(b"", bias, phdr, count) });
    // When the dynamic linker was started by hand, the vector describes it, and the structure is its own symbol.
    let own = || crate::symbol::find(&program, b"_r_debug").map(|symbol| symbol.addr);
    program.dynamic().debug.or_else(own).map(|at| at as *const RDebug)
}

/// The same through `/proc/self/auxv`, for who has no auxiliary vector at hand.
pub fn r_debug_of_this_process() -> Option<*const RDebug> {
    let file = crate::sys::Fd::open(c"/proc/self/auxv", libc::O_RDONLY).ok()?;
    let mut buf = [0u8; 1024];
    let n = file.read(&mut buf).ok()?;
    let (mut phdr, mut count) = (0, 0);
    for entry in buf.get(..n)?.chunks_exact(2 * size_of::<usize>()) {
        let (kind, value) = entry.split_at(size_of::<usize>());
        let value = usize::from_ne_bytes(value.try_into().ok()?);
        match usize::from_ne_bytes(kind.try_into().ok()?) as u64 {
            libc::AT_PHDR => phdr = value,
            libc::AT_PHNUM => count = value,
            _ => {}
        }
    }
    // SAFETY: the kernel put these into the vector for the program that it loaded.
    (phdr != 0).then(|| unsafe { r_debug(phdr as *const (), count) })?
}

/// Every loaded object, in every namespace, in the dynamic linker's order. The first one is the main program.
///
/// Objects whose ELF header can't be found in memory are left out.
///
/// # Safety
/// `debug` is the dynamic linker's structure. No object is loaded or unloaded during the walk (for instance: this is
/// called before main, or from the function at [`RDebug::breakpoint`], or with the loader known to be idle), and the
/// objects stay loaded for as long as the values are used.
pub unsafe fn loaded_modules(debug: *const RDebug) -> Vec<Module> {
    let maps = Maps::read().unwrap_or_default();
    let mut out = Vec::new();
    let mut space = debug;
    for _ in 0..LIST_MAX {
        if space.is_null() {
            break;
        }
        // SAFETY: the structure and those that follow it in the list belong to the dynamic linker and stay. `next` is
        // only looked at from version 2 on; the bytes before it are there in every version.
        let (version, mut map) = unsafe { ((*space).version, (*space).map) };
        for _ in 0..LIST_MAX {
            if map.is_null() {
                break;
            }
            // SAFETY: the list doesn't change meanwhile (the caller's promise).
            let entry = unsafe { map.read() };
            // SAFETY: the entry is of an object that is loaded and stays so.
            out.extend(unsafe { from_link_map(&entry, &maps) });
            map = entry.next;
        }
        // SAFETY: as above.
        space = if version >= 2 { unsafe { (*space).next } } else { core::ptr::null() };
    }
    out
}

/// # Safety
/// The entry describes an object that is loaded and stays so.
unsafe fn from_link_map(entry: &LinkMap, maps: &Maps) -> Option<Module> {
    let name = read_name(entry.name as usize, maps);
    // The header is where the bias says unless the file was linked for an address of its own.
    let candidates = [Some(entry.bias), maps.file_start(entry.dynamic as usize)];
    candidates.into_iter().flatten().find_map(|header| {
        if maps.readable(header, crate::sys::PAGE) < crate::sys::PAGE {
            return None;
        }
        // SAFETY: a page is readable there, and what is mapped there stays.
        let module = unsafe { Module::from_elf_header(name, header) }?;
        (module.bias == entry.bias
            && module.segments.iter().any(|s| s.range.contains(&(entry.dynamic as usize))))
        .then_some(module)
    })
}

fn read_name(at: usize, maps: &Maps) -> &'static [u8] {
    let len = maps.readable(at, NAME_MAX);
    // SAFETY: the bytes are mapped and readable. The slice is copied before the walk goes on, so it needn't outlive
    // the entry.
    let bytes: &'static [u8] = unsafe { core::slice::from_raw_parts(at as *const u8, len) };
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(0);
    bytes.get(..end).unwrap_or(&[])
}
