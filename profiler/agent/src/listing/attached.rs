//! By a walk over the list itself (`r_debug`), and the agent's own image, which is in no list.
//!
//! # Safety
//! The list is read where it is at rest: in the hook on `_dl_debug_state`, and once at the start, on a thread that the
//! command traces: should an object go away just then, the fault ends that thread, and nothing else.

use super::{Listed, in_memory};
use crate::ledger;
use alloc::vec::Vec;
use core::ops::Range;
use core::ptr;
use core::sync::atomic::Ordering;
use grapnel_hook::module::{self, RDebug};
use grapnel_trace::event::Module;
use grapnel_unwind::ProgramHeader;

/// Where the program's headers lie, and how many there are.
fn program_headers() -> (u64, u64) {
    let ledger = &ledger::LEDGER;
    let count = ledger.program_header_count.load(Ordering::Relaxed);
    (ledger.program_headers.load(Ordering::Relaxed), count)
}

/// The linker's structure for debuggers.
fn debug() -> Option<*const RDebug> {
    let (headers, count) = program_headers();
    // SAFETY: the command read both in the auxiliary vector of this process.
    unsafe { module::r_debug(ptr::with_exposed_provenance(headers as usize), count as usize) }
}

/// Whether the linker is unloading objects.
pub(crate) fn is_unloading() -> bool {
    // SAFETY: the linker's structure.
    debug().is_some_and(|debug| unsafe { module::is_unloading(debug) })
}

/// The objects, where the list is at rest.
pub(crate) fn listed() -> Vec<Listed> {
    let ledger = &ledger::LEDGER;
    let (headers, count) = program_headers();
    let mut list = Vec::new();
    let debug = debug();
    if let Some(debug) = debug.filter(|debug| !debug.is_null()) {
        // SAFETY: the linker's own list, at rest: see the module's header.
        let modules = unsafe { module::loaded_modules(debug) };
        // SAFETY: as above.
        list.extend(modules.iter().filter_map(|module| unsafe { in_memory::of_module(module) }));
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
        list.extend(unsafe { in_memory::at(first as usize, bias, b"") });
    }
    let image = ledger.image.load(Ordering::Relaxed) as usize;
    // SAFETY: the agent's own image, which begins with its header.
    list.extend(unsafe { in_memory::at(image, image as u64, Module::AGENT) });
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
