//! Allocators besides libc's: whose `malloc` the program calls, and families of functions with a common prefix, such as
//! `je_malloc`, `je_free` and the rest, wherever an object has them.
//!
//! What the program calls by libc's names is its own heap, whoever defines them: those nine are hooked where they are
//! found first in the order of the objects ([`crate::start`]). What the object that defines `malloc` offers besides, by other
//! names, belongs to that heap too. Every other family is a heap of its own: a prefix with `malloc`, `calloc`, `realloc`,
//! `free` and a function for aligned blocks; and libc's own functions, where others have taken their names. What has `malloc` and `free` alone, or
//! not all of these, is one if it behaves as an allocator (`trial`).
//!
//! Of a sample, the blocks of families that are heaps of their own are chosen by the gap that the thread has for all heaps together
//! (`sampled`). The program's own has its other functions hooked only where all is recorded: what passes by `malloc`'s quick
//! beginning leaves no mark, by which a call of them that is part of it would be known.
//!
//! A call that a family's own code makes of the family is part of the call that led there. Calls of another heap's
//! functions are that heap's.
//!
//! # Safety
//! As in [`crate::slots`]: a family's functions are taken to have the types that their names have everywhere.

mod found;
mod sampled;
mod trial;

#[cfg(grapnel_attached)]
pub(crate) use found::ready;
pub(crate) use found::{Visit, in_file, install, path};
pub(crate) use trial::has_asked;

use crate::context::Context;
use crate::entry::{SavedRegisters, rescued};
use crate::hooks;
use crate::record::{self, enter};
use crate::slots::{self, FAMILY, Frame};
use crate::{heaps, native, sampling, session, shadow, tls};
use alloc::format;
use core::ptr;
use grapnel_trace::shared::failure;
use grapnel_trace::{HeapKind, Source};
use grapnel_unwind::page_is_readable;

/// What a function of a family does with its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Role {
    /// `malloc(size)`
    Malloc = 1,
    /// `calloc(count, size)`
    Calloc,
    /// `zalloc(size)`
    Zalloc,
    /// `realloc(block, size)`
    Realloc,
    /// `reallocn(block, count, size)`
    ReallocArray,
    /// `free(block)`
    Free,
    /// `memalign(alignment, size)`
    Memalign,
    /// `valloc(size)`, and whatever takes an alignment last.
    Valloc,
    /// `posix_memalign(&block, alignment, size)`
    PosixMemalign,
}

impl Role {
    const ALL: [Self; 9] = [
        Self::Malloc,
        Self::Calloc,
        Self::Zalloc,
        Self::Realloc,
        Self::ReallocArray,
        Self::Free,
        Self::Memalign,
        Self::Valloc,
        Self::PosixMemalign,
    ];

    pub(crate) fn from_u8(n: u8) -> Option<Self> {
        Self::ALL.get(usize::from(n).checked_sub(1)?).copied()
    }

    /// The block that a call with these arguments takes back, and whether it is exchanged for another.
    fn taken(self, saved: &SavedRegisters) -> Option<(u64, bool)> {
        let block = saved.argument(0);
        let exchanged = match self {
            Self::Free => false,
            Self::Realloc => saved.argument(1) != 0,
            // One that overflows takes nothing back: it fails.
            Self::ReallocArray => saved.argument(1) != 0 && saved.argument(2) != 0,
            _ => return None,
        };
        (block != 0).then_some((block, exchanged))
    }

    /// The size that is asked for. A product that overflows gives no block.
    fn size(self, saved: &SavedRegisters) -> u64 {
        match self {
            Self::Malloc | Self::Zalloc | Self::Valloc => saved.argument(0),
            Self::Calloc => saved.argument(0).wrapping_mul(saved.argument(1)),
            Self::Realloc | Self::Memalign => saved.argument(1),
            Self::ReallocArray => saved.argument(1).wrapping_mul(saved.argument(2)),
            Self::PosixMemalign => saved.argument(2),
            Self::Free => 0,
        }
    }

    fn source(self) -> Source {
        match self {
            Self::Malloc | Self::Free => Source::Malloc,
            Self::Calloc | Self::Zalloc => Source::Calloc,
            Self::Realloc | Self::ReallocArray => Source::Realloc,
            Self::Memalign | Self::Valloc | Self::PosixMemalign => Source::Aligned,
        }
    }
}

/// What is done with the blocks of a slot's function before its own code runs; whether the call is part of another one.
#[inline]
pub(crate) fn before(saved: &SavedRegisters, role: Role, handle: u32, target: usize, frame: &Frame) -> bool {
    if slots::is_part_of_family(saved, handle) || (handle == 0 && hooks::is_inside(saved)) {
        sampling::mend();
        return true;
    }
    if matches!(role, Role::Free) {
        if heaps::is_on_trial(handle.into()) && !trial::may_be_one(handle) {
            end(saved, handle, ptr::null_mut(), target);
            return false;
        }
    } else {
        let size = role.size(saved) as usize;
        trial::begin(ptr::from_ref(saved).addr(), size);
        if sampling::is_on() {
            sampling::choose(size, frame);
        }
    }
    if let Some((block, exchanged)) = role.taken(saved) {
        let kind = if exchanged { record::REALLOC_BEGIN } else { record::FREE };
        if handle == 0 {
            let _ = shadow::take(block as usize);
        } else if !is_of_program(block & !7) {
            give_up(saved, handle, ptr::null_mut(), target);
            return false;
        }
        if sampling::is_on() && !sampled::is_taken(handle, block, frame) {
            return false;
        }
        told(saved, handle, ptr::null_mut(), target, |context, id| context.plain_in(id, kind, block));
    }
    false
}

/// No block is larger. On 64-bit machines code, stacks and mappings lie beyond, whose addresses an argument may be that isn't a size.
const LARGEST: u64 = if usize::BITS == 64 { 1 << 44 } else { 1 << 31 };

/// Whether a program may have an aligned word at an address. Nothing lies lower: numbers of pools do, and flags.
fn is_of_program(address: u64) -> bool {
    const LOWEST: u64 = 1 << 16;
    (LOWEST..1 << native::ADDRESS_BITS).contains(&address)
        && address.is_multiple_of(size_of::<usize>() as u64)
}

/// Records nothing more of a heap whose functions have names of an allocator's, but were called with what can't be such
/// arguments. It ends; what was recorded of it until then stays. `result` and `call` are as [`rescued`] has them.
#[cold]
#[inline(never)]
fn give_up(saved: &SavedRegisters, handle: u32, result: *mut core::ffi::c_void, call: usize) {
    let name = heaps::name(handle.into()).filter(|_| !heaps::is_candidate(handle.into()));
    let has_ended = end(saved, handle, result, call);
    // Nobody misses what may be one.
    if let Some(name) = name.filter(|_| has_ended) {
        not_recorded(&name, &"its functions are not what their names say");
    }
}

/// Records nothing more of the heap with this handle. Whether anything was until then.
#[cold]
#[inline(never)]
fn end(saved: &SavedRegisters, handle: u32, result: *mut core::ffi::c_void, call: usize) -> bool {
    let id = heaps::close(handle.into());
    if id != 0 {
        slots::let_by(handle);
        rescued(saved, result, call, || enter(saved, |context| context.heap_ends(id)));
    }
    id != 0
}

/// Judges a heap on trial by a call that was asked for so many bytes and gave a block, and that `asked` others for so many. Whether it goes on; otherwise it has ended.
#[cold]
#[inline(never)]
fn has_passed(
    saved: &SavedRegisters,
    handle: u32,
    result: *mut core::ffi::c_void,
    size: u64,
    asked: u32,
) -> bool {
    let verdict = trial::judge(handle, size as usize, asked);
    // What it gave until it ended counts no more, either.
    let kind = verdict.unwrap_or(HeapKind::Candidate);
    if heaps::is_candidate(handle.into()) != (kind == HeapKind::Candidate) {
        told(saved, handle, result, 0, |context, _| {
            heaps::set_kind(handle.into(), kind, &mut context.ring);
        });
    }
    if verdict.is_none() {
        end(saved, handle, result, 0);
    }
    verdict.is_some()
}

/// What is recorded afterwards: what the function gave. `noted`: see [`Frame::note`].
pub(crate) fn after(saved: &SavedRegisters, role: Role, handle: u32, result: usize, noted: usize) {
    if matches!(role, Role::Free) {
        return;
    }
    let asked = trial::end(ptr::from_ref(saved).addr(), role.size(saved) as usize);
    let given = match role {
        Role::PosixMemalign if result != 0 => return,
        Role::PosixMemalign => {
            let at = saved.argument(0);
            // By its name alone the function need not be what it is taken for.
            if handle != 0 && !(is_of_program(at) && page_is_readable(at)) {
                return give_up(saved, handle, ptr::with_exposed_provenance_mut(result), 0);
            }
            let out: *const usize = ptr::with_exposed_provenance(at as usize);
            // SAFETY: on success the block's address was stored there; of a function that isn't what it is taken for, the word can
            // be read all the same: it is aligned, so it lies in one page.
            unsafe { out.read() as u64 }
        }
        _ => result as u64,
    };
    let back = ptr::with_exposed_provenance_mut(result);
    let size = role.size(saved);
    if handle != 0 && given != 0 && (size > LARGEST || !is_of_program(given & !7)) {
        return give_up(saved, handle, back, 0);
    }
    if given != 0 && heaps::is_on_trial(handle.into()) && !has_passed(saved, handle, back, size, asked) {
        return;
    }
    if sampling::is_on() {
        let block = sampled::Given { block: given, size, source: role.source() };
        let old = role.taken(saved).map(|(old, _)| old);
        return sampled::after(saved, handle, back, block, old, noted);
    }
    match role.taken(saved) {
        Some((old, true)) if given == 0 => {
            told(saved, handle, back, 0, |context, id| context.plain_in(id, record::REALLOC_FAILED, old));
        }
        Some((old, true)) => {
            told(saved, handle, back, 0, |context, id| context.realloc_end_in(id, saved, given, size, old));
        }
        _ if given == 0 => {}
        _ => told(saved, handle, back, 0, |context, id| {
            context.alloc_in(id, saved, given, size, role.source());
        }),
    }
}

/// Records something of the heap with this handle, 0 for the program's own.
#[inline]
fn told(
    saved: &SavedRegisters,
    handle: u32,
    result: *mut core::ffi::c_void,
    call: usize,
    tell: impl FnOnce(&mut Context, u32),
) {
    let id = heaps::id(handle.into());
    if handle == 0 || id != 0 {
        rescued(saved, result, call, || enter(saved, |context| tell(context, id)));
    }
}

/// Marks the thread as inside a family's function, unless an operator's own call led there, which is then still that. What
/// it was before.
#[inline]
pub(crate) fn mark(saved: &SavedRegisters, frame: &Frame) -> usize {
    let tls = tls::get();
    let here = ptr::from_ref(frame).expose_provenance() | FAMILY;
    slots::begins(tls, if hooks::is_inside(saved) { tls.inside.get() } else { here }, frame)
}

fn nothing_is_given_back(name: &[u8]) {
    let note = format!("nothing is seen to be given back to {}: its free does nothing", name.escape_ascii());
    session::report_failure(failure::NOTE, note.as_bytes());
}

fn not_recorded(name: &[u8], why: &dyn core::fmt::Display) {
    let note = format!("what {} gives is not recorded: {why}", name.escape_ascii());
    session::report_failure(failure::NOTE, note.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_comes_back_from_its_number() {
        for role in Role::ALL {
            assert_eq!(Role::from_u8(role as u8), Some(role));
        }
        assert_eq!((Role::from_u8(0), Role::from_u8(10)), (None, None));
    }
}
