//! Heaps that the program reports by itself, through `grapnel_heap.h`.
//!
//! An object that was compiled with that header has a note, which says where the word lies that its calls look at. It is
//! looked for in all objects, those that are loaded later too, and gets a pointer to the [`INTERFACE`]. So a program needs
//! nothing to link with, and one that isn't recorded looks at a word that is 0.
//!
//! # Safety
//! The functions are called through the table, with the arguments that the header has for them; addresses of blocks are
//! numbers to them. The word is one of the object's own variables: it lies in a segment that can be written, which is
//! looked up, and the note is the header's.

use crate::context::Context;
use crate::entry::{SavedRegisters, rescued, stub};
use crate::heaps;
use crate::ledger;
use crate::record::{self, enter};
use crate::sampling::{self, Costs, others};
use crate::{forked, session, sys};
use alloc::vec::Vec;
use core::ffi::{CStr, c_char};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use grapnel_trace::{HeapKind, Mark, Source, wire};
use grapnel_unwind::ProgramHeader;

type Saved<'a> = &'a SavedRegisters;
type Function = unsafe extern "C" fn();

/// `struct grapnel_interface`.
#[repr(C)]
#[derive(Debug)]
struct Interface {
    version: u32,
    bytes: u32,
    create: Function,
    destroy: Function,
    reset: Function,
    alloc: Function,
    free: Function,
    realloc: Function,
    mark: Function,
    snapshot: Function,
    pause: Function,
    resume: Function,
}

static INTERFACE: Interface = Interface {
    version: 2,
    bytes: size_of::<Interface>() as u32,
    create: grapnel_agent_heap_create,
    destroy: grapnel_agent_heap_destroy,
    reset: grapnel_agent_heap_reset,
    alloc: grapnel_agent_heap_alloc,
    free: grapnel_agent_heap_free,
    realloc: grapnel_agent_heap_realloc,
    mark: grapnel_agent_mark,
    snapshot: grapnel_agent_snapshot,
    pause: grapnel_agent_pause,
    resume: grapnel_agent_resume,
};

/// Records something of the heap with this number, if there is one.
#[inline(always)]
fn told(saved: Saved<'_>, id: u32, tell: impl FnOnce(&mut Context)) {
    if id != 0 {
        let _costs = Costs::begin();
        rescued(saved, ptr::null_mut(), 0, || enter(saved, tell));
    }
}

stub!(grapnel_agent_heap_create, create, 1);
unsafe extern "C" fn create(name: *const c_char, saved: Saved<'_>) -> u64 {
    let mut handle = 0;
    rescued(saved, ptr::null_mut(), 0, || {
        // SAFETY: null, or the program's zero-terminated string.
        let name = if name.is_null() { c"" } else { unsafe { CStr::from_ptr(name) } };
        handle = heaps::add(HeapKind::Pool, name.to_bytes()).map_or(0, u64::from);
        enter(saved, |context| heaps::describe(handle, &mut context.ring));
    });
    handle
}

stub!(grapnel_agent_heap_destroy, destroy, 1, wide first);
unsafe extern "C" fn destroy(heap: u64, saved: Saved<'_>) {
    let id = heaps::id(heap);
    told(saved, id, |context| context.heap_ends(id));
    heaps::remove(heap);
}

stub!(grapnel_agent_heap_reset, reset, 1, wide first);
unsafe extern "C" fn reset(heap: u64, saved: Saved<'_>) {
    let id = heaps::id(heap);
    told(saved, id, |context| {
        heaps::renumber(heap, |anew| heaps::tell(anew, &mut context.ring));
        context.heap_ends(id);
    });
}

stub!(grapnel_agent_heap_alloc, alloc, 3, wide first);
unsafe extern "C" fn alloc(heap: u64, block: usize, size: usize, saved: Saved<'_>) {
    let id = if block == 0 { 0 } else { heaps::id(heap) };
    let Some(mean) = chosen(id, size) else { return };
    told(saved, id, |context| {
        mean.begin(context);
        context.alloc_in(id, saved, block as u64, size as u64, Source::Malloc);
        mean.note(id, block);
    });
}

stub!(grapnel_agent_heap_free, free, 2, wide first);
unsafe extern "C" fn free(heap: u64, block: usize, saved: Saved<'_>) {
    let id = if block == 0 { 0 } else { heaps::id(heap) };
    if is_recorded(id, block) {
        told(saved, id, |context| context.plain_in(id, record::FREE, block as u64));
    }
}

stub!(grapnel_agent_heap_realloc, realloc, 4, wide first);
unsafe extern "C" fn realloc(heap: u64, old: usize, block: usize, size: usize, saved: Saved<'_>) {
    let id = heaps::id(heap);
    let is_taken = old != 0 && is_recorded(id, old);
    let given = if block == 0 { None } else { chosen(id, size) };
    if !is_taken && given.is_none() {
        return;
    }
    let address = old as u64;
    told(saved, id, |context| {
        // Of an exchange amid a pause the end would not be told.
        if is_taken && (block == 0 || session::is_paused()) {
            return context.plain_in(id, record::FREE, address);
        }
        if is_taken {
            context.plain_in(id, record::REALLOC_BEGIN, address);
        }
        let Some(mean) = given else {
            // What took its place isn't recorded.
            return context.plain_in(id, record::FREE, address);
        };
        mean.begin(context);
        match old {
            0 => context.alloc_in(id, saved, block as u64, size as u64, Source::Realloc),
            _ => context.realloc_end_in(id, saved, block as u64, size as u64, address),
        }
        mean.note(id, block);
    });
}

/// That a block is to be recorded; of a sample, by which mean.
#[derive(Clone, Copy, Debug)]
struct Chosen(Option<u64>);

/// Whether one of this size is, which the heap with this number gives.
#[inline(always)]
fn chosen(id: u32, size: usize) -> Option<Chosen> {
    match id {
        0 => None,
        _ if !sampling::is_on() => Some(Chosen(None)),
        _ => sampling::passes(size).map(|mean| Chosen(Some(mean))),
    }
}

impl Chosen {
    fn begin(self, context: &mut Context) {
        if let Some(mean) = self.0 {
            context.tell_mean(mean);
        }
    }

    fn note(self, id: u32, block: usize) {
        if self.0.is_some() {
            others::note(id, block);
        }
    }
}

/// Whether a block was recorded that the heap with this number takes back; of a sample, it is no more.
#[inline(always)]
fn is_recorded(id: u32, block: usize) -> bool {
    !sampling::is_on() || (id != 0 && others::take(id, block))
}

/// Marks this moment.
fn marked(saved: Saved<'_>, mark: &Mark) {
    rescued(saved, ptr::null_mut(), 0, || enter(saved, |context| context.mark(mark)));
}

stub!(grapnel_agent_mark, mark, 1);
unsafe extern "C" fn mark(name: *const c_char, saved: Saved<'_>) {
    // SAFETY: null, or the program's zero-terminated string.
    let name = if name.is_null() { c"" } else { unsafe { CStr::from_ptr(name) } };
    let name = name.to_bytes();
    rescued(saved, ptr::null_mut(), 0, || {
        enter(saved, |context| {
            if record::push(&mut context.ring, &wire::name(name)).is_ok() {
                context.mark(&Mark::Named(Vec::new()));
            }
        });
    });
}

stub!(grapnel_agent_snapshot, snapshot, 0);
unsafe extern "C" fn snapshot(saved: Saved<'_>) {
    marked(saved, &Mark::Snapshot);
}

/// Begins or ends a pause of this process, not of one that it is the child of. Whether that is a change.
fn set_paused(saved: Saved<'_>, paused: bool) -> bool {
    rescued(saved, ptr::null_mut(), 0, || {
        forked::settle(saved);
        session::set_paused(paused)
    })
}

stub!(grapnel_agent_pause, pause, 0);
unsafe extern "C" fn pause(saved: Saved<'_>) {
    if set_paused(saved, true) {
        marked(saved, &Mark::Paused);
    }
}

stub!(grapnel_agent_resume, resume, 0);
unsafe extern "C" fn resume(saved: Saved<'_>) {
    if set_paused(saved, false) {
        marked(saved, &Mark::Resumed);
    }
}

impl Context {
    /// A moment of the process.
    fn mark(&mut self, mark: &Mark) {
        self.write::<1, 2>(0, 0, wire::mark(mark));
        self.look_at_each_walk();
    }
}

/// The word that an object's note tells of.
fn slot(bias: usize, headers: &[ProgramHeader]) -> Option<*const AtomicPtr<Interface>> {
    let segment_of = |address: usize, len: usize, flags: u32| {
        let at = address.wrapping_sub(bias) as u64;
        headers.iter().any(|load| {
            load.p_type == libc::PT_LOAD
                && load.p_flags & flags != 0
                && load.p_vaddr <= at
                && at
                    .checked_add(len as u64)
                    .is_some_and(|end| end <= load.p_vaddr.saturating_add(load.p_memsz))
        })
    };
    let notes = headers.iter().filter(|header| header.p_type == libc::PT_NOTE);
    notes.into_iter().find_map(|note| {
        let (start, len) = (bias.wrapping_add(note.p_vaddr as usize), note.p_memsz as usize);
        if !segment_of(start, len, sys::PF_R) {
            return None;
        }
        // SAFETY: the notes lie in a readable segment of a loaded object.
        let bytes = unsafe { core::slice::from_raw_parts(ptr::with_exposed_provenance::<u8>(start), len) };
        let (at, offset) = described_slot(bytes, note.p_align)?;
        let slot = start.wrapping_add(at).wrapping_add_signed(offset as isize);
        const WORD: usize = size_of::<usize>();
        let fits = slot.is_multiple_of(WORD) && segment_of(slot, WORD, sys::PF_W);
        fits.then(|| ptr::with_exposed_provenance(slot))
    })
}

/// Where in these notes Grapnel's has its description, and the first word of that.
fn described_slot(bytes: &[u8], alignment: u64) -> Option<(usize, i32)> {
    const SLOT: u32 = 1;
    let padded = |len: u32| len.checked_next_multiple_of(if alignment == 8 { 8 } else { 4 });
    let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let mut at = 0;
    loop {
        let (name_len, len, kind) = (word(at)?, word(at + 4)?, word(at + 8)?);
        let name = at + 12;
        let description = name.checked_add(padded(name_len)? as usize)?;
        if kind == SLOT && len >= 8 && bytes.get(name..)?.starts_with(b"Grapnel\0") && name_len == 8 {
            return Some((description, word(description)? as i32));
        }
        at = description.checked_add(padded(len)? as usize)?;
    }
}

/// Gives an object that was compiled with the header what its calls look for. Only while the object stays loaded.
pub(crate) fn connect(bias: u64, headers: &[ProgramHeader]) {
    if let Some(slot) = slot(bias as usize, headers) {
        // SAFETY: a word in a segment of a loaded object that can be written, and that the header reserved for this.
        let word = unsafe { &*slot };
        let interface = (&raw const INTERFACE).cast_mut();
        if ledger::word(slot.addr(), word.load(Ordering::Relaxed).addr(), interface.addr()) {
            word.store(interface, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(name: &[u8], kind: u32, description: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [name.len() as u32, description.len() as u32, kind] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        for part in [name, description] {
            bytes.extend_from_slice(part);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn the_note_is_found_among_others_and_in_no_rubbish() {
        let ours = note(b"Grapnel\0", 1, &[0xfe, 0xff, 0xff, 0xff, 1, 0, 0, 0]);
        let others =
            [note(b"GNU\0", 3, &[7; 20]), note(b"x\0", 1, &[1]), note(b"Grapnel\0", 2, &[9; 8])].concat();
        assert_eq!(described_slot(&ours, 4), Some((20, -2)));
        let all = [&others[..], &ours].concat();
        assert_eq!(described_slot(&all, 4), Some((others.len() + 20, -2)));
        for len in 0..all.len() - 4 {
            assert_eq!(described_slot(&all[..len], 4), None, "{len}");
        }
        assert_eq!(described_slot(&[0xff; 64], 4), None);
    }
}
