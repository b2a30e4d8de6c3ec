//! The dynamic linker's list of loaded objects.
//!
//! # Safety
//! The list is the dynamic linker's own, and read without its lock: [`loaded_modules`] says when that is right.

use alloc::vec::Vec;
use core::ffi::c_char;

use super::{Module, PHDR_MAX};
use crate::{
    elf::{self, Dyn, Phdr},
    memory::maps::Maps,
    sys::{self, PAGE},
};

/// The longest name of an object that is kept.
const NAME_MAX: usize = 4096;
/// More objects than any process has; a corrupt list ends here.
const LIST_MAX: usize = 1 << 16;

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

/// Whether no object is being added or removed in any namespace.
///
/// # Safety
/// `debug` is the dynamic linker's structure.
pub(crate) unsafe fn is_settled(debug: *const RDebug) -> bool {
    let mut space = debug;
    for _ in 0..LIST_MAX {
        if space.is_null() {
            break;
        }
        // SAFETY: the structure belongs to the dynamic linker and stays. Another thread may be writing the state, hence
        // volatile, and no reference.
        let state = unsafe { (&raw const (*space).state).read_volatile() };
        if state != 0 {
            return false;
        }
        // SAFETY: as above.
        space = unsafe { next_namespace(space) };
    }
    true
}

/// The next namespace's, or null: objects that were opened by `dlmopen` are in a list of their own, and those of auditors.
///
/// # Safety
/// `space` is a structure of the dynamic linker's.
pub unsafe fn next_namespace(space: *const RDebug) -> *const RDebug {
    // SAFETY: the structure belongs to the dynamic linker and stays; so do those that are added, at the end of the list.
    let version = unsafe { (&raw const (*space).version).read_volatile() };
    if version < 2 {
        return core::ptr::null();
    }
    // SAFETY: as above; the word is there from version 2 on.
    unsafe { (&raw const (*space).next).read_volatile() }
}

/// Whether objects are being unloaded, in this namespace or a later one: some of those in the list may be unmapped already.
///
/// # Safety
/// `space` is a structure of the dynamic linker's.
pub unsafe fn is_unloading(space: *const RDebug) -> bool {
    const RT_DELETE: i32 = 2;
    let mut space = space;
    while !space.is_null() {
        // SAFETY: the structure stays.
        if unsafe { (&raw const (*space).state).read_volatile() } == RT_DELETE {
            return true;
        }
        // SAFETY: as above.
        space = unsafe { next_namespace(space) };
    }
    false
}

/// The function that the dynamic linker calls when its list has changed.
///
/// # Safety
/// `debug` is the dynamic linker's structure.
pub(crate) unsafe fn breakpoint(debug: *const RDebug) -> *const () {
    // SAFETY: the structure stays, and this word of it never changes. There may be no reference to those that do.
    unsafe { (&raw const (*debug).brk).read() as *const () }
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
    let linked = headers.clone().find(|p| p.p_type == elf::PT_PHDR).map(|p| p.p_vaddr);
    let bias = linked.map_or(0, |linked| (phdr as usize).wrapping_sub(linked));
    // The ELF header lies before its program headers, in the same page in every program that linkers make.
    // SAFETY: the page that holds the program headers is readable, and the main program is never unloaded.
    let program = unsafe { Module::from_elf_header(b"", phdr as usize & !(PAGE - 1)) }
        // SAFETY: as above; `phdr` points to `count` headers.
        .unwrap_or_else(|| unsafe { Module::from_program_headers(b"", bias, phdr, count) });
    // When the dynamic linker was started by hand, the vector describes it, and the structure is its own symbol.
    let own = || crate::symbol::find(&program, b"_r_debug").map(|symbol| symbol.addr);
    program.dynamic().debug.or_else(own).map(|at| at as *const RDebug)
}

/// The same through `/proc/self/auxv`, for who has no auxiliary vector at hand.
pub fn r_debug_of_this_process() -> Option<*const RDebug> {
    let of_program = |kind| sys::auxiliary(kind as usize);
    let (phdr, count) = (of_program(libc::AT_PHDR)?, of_program(libc::AT_PHNUM)?);
    // SAFETY: the kernel put these into the vector for the program that it loaded.
    (phdr != 0).then(|| unsafe { r_debug(phdr as *const (), count) })?
}

/// Every loaded object, in every namespace, in the dynamic linker's order. The first one is the main program.
///
/// Objects whose ELF header can't be found in memory are left out. Where `/proc/self/maps` can't be read, these are those that
/// were linked for an address of their own, but for the main program.
///
/// # Safety
/// `debug` is the dynamic linker's structure. No object is loaded or unloaded during the walk (for instance: this is
/// called before main, or from the function at [`RDebug::breakpoint`], or with the loader known to be idle), and the
/// objects stay loaded for as long as the values are used.
pub unsafe fn loaded_modules(debug: *const RDebug) -> Vec<Module> {
    let maps = Maps::read().ok();
    let mut out = Vec::new();
    let mut space = debug;
    for _ in 0..LIST_MAX {
        if space.is_null() {
            break;
        }
        // SAFETY: the structure and those that follow it in the list belong to the dynamic linker and stay.
        let mut map = unsafe { (&raw const (*space).map).read() };
        for _ in 0..LIST_MAX {
            if map.is_null() {
                break;
            }
            // SAFETY: the list doesn't change meanwhile (the caller's promise).
            let entry = unsafe { map.read() };
            // SAFETY: the entry is of an object that is loaded and stays so.
            out.extend(unsafe { from_link_map(&entry, maps.as_ref()) });
            map = entry.next;
        }
        // SAFETY: as above.
        space = unsafe { next_namespace(space) };
    }
    out
}

/// # Safety
/// The entry describes an object that is loaded and stays so.
unsafe fn from_link_map(entry: &LinkMap, maps: Option<&Maps>) -> Option<Module> {
    let name = read_name(entry.name as usize, maps);
    // The header is where the bias says unless the file was linked for an address of its own.
    let other = match maps {
        Some(maps) => maps.file_start(entry.dynamic as usize),
        None => sys::auxiliary(libc::AT_PHDR as usize).map(|headers| headers & !(PAGE - 1)),
    };
    [Some(entry.bias), other].into_iter().flatten().find_map(|header| {
        if readable(maps, header, PAGE) < PAGE {
            return None;
        }
        // SAFETY: a page is readable there, and what is mapped there stays.
        let module = unsafe { Module::from_elf_header(&name, header) }?;
        (module.bias == entry.bias
            && module.segments.iter().any(|s| s.range.contains(&(entry.dynamic as usize))))
        .then_some(module)
    })
}

fn read_name(at: usize, maps: Option<&Maps>) -> Vec<u8> {
    let len = readable(maps, at, NAME_MAX);
    if len == 0 {
        return Vec::new();
    }
    // SAFETY: the bytes are mapped and readable, so the address isn't null; the entry stays meanwhile, and nobody writes to its
    // name.
    let bytes = unsafe { core::slice::from_raw_parts(at as *const u8, len) };
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(0);
    bytes.get(..end).map_or_else(Vec::new, Vec::from)
}

/// How many bytes can be read at an address, at most `limit`. Without a list of mappings the kernel is asked to copy them.
fn readable(maps: Option<&Maps>, at: usize, limit: usize) -> usize {
    match maps {
        Some(maps) => maps.readable(at, limit),
        None => sys::copy_memory(at, &mut alloc::vec![0; limit]).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_name_has_an_empty_one() {
        assert_eq!(read_name(0, Some(&Maps::default())), b"");
    }
}
