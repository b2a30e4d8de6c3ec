//! Whether functions with an allocator's names are one's: most that are called `xmalloc` and `xfree` hand on to `malloc`, and what they give
//! is recorded there.
//!
//! A call is a sign of an allocator if fewer bytes were asked of other heaps amid it than it gave: they came from what the family has. An
//! allocator that gets its memory from `malloc`, a piece for many blocks, gives such a sign with the second. Until there is one, what the family gives is
//! recorded for a [candidate](grapnel_trace::HeapKind::Candidate), which counts for nothing; with the first, all of it counts. After
//! [`DOUBTS`] calls without one the family is let alone.
//!
//! Asked for are bytes that operators and allocation functions are asked for that are hooked, by the thread that is amid the call. Where all is recorded,
//! what they give comes by here ([`has_asked`]); of a sample it is what the thread's gap was lowered by.

use super::{Role, is_of_program};
use crate::entry::SavedRegisters;
use crate::{heaps, sampling, slots, tls};
use core::hint::cold_path;
use grapnel_unwind::page_is_readable;

/// So many blocks are looked at.
const DOUBTS: u32 = 4096;

/// What is known of a family behind one of its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing new.
    None,
    /// It is an allocator.
    Allocator,
    /// It hands on to another, or isn't what its names say.
    HandsOn,
}

/// How many bytes this thread has asked for; it wraps.
#[inline]
fn so_far() -> usize {
    if sampling::is_on() { sampling::passed_so_far() } else { tls::get().asked.get() }
}

/// A call of a family's function begins. Of a sample, the gap has been lowered by its size.
#[inline]
pub(super) fn begin() {
    tls::get().asked_before.set(so_far());
}

/// The call that began last, and was asked for so many bytes, is over. How many bytes were asked for amid it. To a call around it, all of these were.
#[inline]
pub(super) fn end(size: usize) -> usize {
    let before = &tls::get().asked_before;
    let asked = so_far().wrapping_sub(before.get());
    before.set(before.get().wrapping_sub(size));
    asked
}

/// Something besides families was asked for so many bytes, where all allocations are recorded. It may be amid a call of a family's.
#[inline(always)]
pub(crate) fn has_asked(saved: &SavedRegisters, size: usize) {
    if slots::may_be_amid_family(saved) {
        cold_path();
        let asked = &tls::get().asked;
        asked.set(asked.get().wrapping_add(size));
    }
}

/// A call amid which so many bytes were `asked` for gave a block.
pub(super) fn judge(saved: &SavedRegisters, role: Role, handle: u32, asked: usize) -> Verdict {
    let size = role.size(saved) as usize;
    if is_sign(role.taken(saved).is_some(), size, asked) && !may_be_address(size) {
        Verdict::Allocator
    } else if heaps::doubt(handle.into()) >= DOUBTS {
        Verdict::HandsOn
    } else {
        Verdict::None
    }
}

/// Whether it is a sign of an allocator that so many bytes were asked of others amid a call. Not where a block was exchanged, which may have stayed where
/// it was.
fn is_sign(exchanged: bool, size: usize, asked: usize) -> bool {
    !exchanged && size != 0 && asked < size
}

/// Whether what is taken for a size may be where something lies: many functions are told first of which pool a block is to be.
fn may_be_address(size: usize) -> bool {
    is_of_program(size as u64) && page_is_readable(size as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_gives_more_than_it_asks_for_is_an_allocator() {
        assert!(is_sign(false, 16, 0));
        assert!(is_sign(false, 1 << 20, 40));
        // What hands on, with a header or without, or fetches a piece for many.
        assert!(!is_sign(false, 16, 16) && !is_sign(false, 16, 32) && !is_sign(false, 16, 1 << 16));
        assert!(!is_sign(false, 0, 0) && !is_sign(true, 16, 0));
    }

    #[test]
    fn a_pools_address_is_no_size() {
        let pool = [0usize; 4];
        assert!(may_be_address(pool.as_ptr().addr()));
        assert!(![0, 8, 4096, 100_000, pool.as_ptr().addr() + 1].into_iter().any(may_be_address));
    }

    /// Families amid each other: what the inner one is asked for, the outer one has asked for.
    #[test]
    fn an_inner_call_is_asked_for_by_the_outer_one() {
        let ask = |size: usize| tls::get().asked.set(tls::get().asked.get() + size);
        begin();
        assert_eq!(end(100), 0);
        begin();
        ask(48);
        assert_eq!(end(30), 48);
        // One that gets a header more of another, which asks for half of that.
        begin();
        begin();
        ask(58);
        assert_eq!([end(116), end(100)], [58, 58 + 116]);
        // Of one that has it.
        begin();
        begin();
        assert_eq!([end(116), end(100)], [0, 116]);
    }
}
