//! By a walk over the list itself (`r_debug`), and the agent's own image, which is in no list.
//!
//! # Safety
//! The list is read where it is at rest: in the hook on `_dl_debug_state`, and once at the start, on a thread that the
//! command traces: should an object go away just then, the fault ends that thread, and nothing else.

use super::Listed;
use crate::ledger;
use alloc::vec::Vec;
use core::ops::Range;
use core::ptr;
use core::sync::atomic::Ordering;
use grapnel_hook::module::{self, Module};
use grapnel_unwind::ProgramHeader;

/// The head of an ELF file of 64 bits, as far as it is needed.
#[repr(C)]
struct Header {
    ident: [u8; 16],
    _kinds: [u32; 2],
    _entry: u64,
    program_headers: u64,
    _sections: u64,
    _flags: u32,
    _sizes: [u16; 2],
    count: u16,
}

/// The objects, where the list is at rest.
pub(crate) fn listed() -> Vec<Listed> {
    let ledger = &ledger::LEDGER;
    let (headers, count) =
        (ledger.program_headers.load(Ordering::Relaxed), ledger.program_header_count.load(Ordering::Relaxed));
    let mut list = Vec::new();
    // SAFETY: the command read both in the auxiliary vector of this process.
    let debug = unsafe { module::r_debug(ptr::with_exposed_provenance(headers as usize), count as usize) };
    if let Some(debug) = debug.filter(|debug| !debug.is_null()) {
        // SAFETY: the linker's own list, at rest: see the module's header.
        let modules = unsafe { module::loaded_modules(debug) };
        list.extend(modules.iter().filter_map(of_module));
    }
    if list.is_empty() && headers != 0 {
        // A static program, which nobody has a list of.
        let first: *const ProgramHeader = ptr::with_exposed_provenance(headers as usize);
        // SAFETY: as above.
        let of_program = (0..count as usize).map(|index| unsafe { first.add(index).read_unaligned() });
        let first = headers & !(crate::sys::PAGE as u64 - 1);
        let linked =
            of_program.into_iter().find(|header| header.p_type == libc::PT_LOAD && header.p_offset == 0);
        let bias = linked.map_or(0, |linked| first.wrapping_sub(linked.p_vaddr));
        // SAFETY: the ELF header lies before its program headers, in the same page in every program that linkers make.
        list.extend(unsafe { at(first as usize, bias, b"") });
    }
    let image = ledger.image.load(Ordering::Relaxed) as usize;
    // SAFETY: the agent's own image, which begins with its header.
    list.extend(unsafe { at(image, image as u64, b"[grapnel]") });
    list
}

/// The path of the program's file, as the command knows it: the process may see no `/proc`.
pub(crate) fn executable(buffer: &mut [u8; 4096]) -> &[u8] {
    ledger::LEDGER.executable(buffer)
}

/// Where the program's call frame information lies, if that is in none of its program headers.
pub(crate) fn frames() -> Option<Range<u64>> {
    Some(ledger::LEDGER.linked.frames.range()).filter(|frames| !frames.is_empty())
}

fn of_module(module: &Module) -> Option<Listed> {
    let first = module.segments().iter().map(|segment| segment.range.start).min()?;
    // SAFETY: the module was described by the header at the start of its first segment.
    unsafe { at(first & !(crate::sys::PAGE - 1), module.bias() as u64, module.name()) }
}

/// # Safety
/// At `address` a page of a loaded object is readable.
unsafe fn at(address: usize, bias: u64, path: &[u8]) -> Option<Listed> {
    let header: *const Header = ptr::with_exposed_provenance(address);
    // SAFETY: within the page.
    let header = unsafe { header.read_unaligned() };
    let count = usize::from(header.count);
    let table = header.program_headers as usize;
    let end = table.checked_add(count * size_of::<ProgramHeader>())?;
    if !header.ident.starts_with(b"\x7fELF") || end > crate::sys::PAGE {
        return None;
    }
    let first: *const ProgramHeader = ptr::with_exposed_provenance(address + table);
    // SAFETY: the table ends within the page.
    let headers = (0..count).map(|index| unsafe { first.add(index).read_unaligned() }).collect();
    Some(Listed { bias, path: path.to_vec(), headers })
}
