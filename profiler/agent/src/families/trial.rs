//! Whether functions with an allocator's names are one's: most that are called `xmalloc` and `xfree` hand on to `malloc`, and what they give
//! is recorded there.
//!
//! A call is a sign of an allocator if it gives a block, or exchanges one, and nothing was asked of another heap amid it: the block comes from what the
//! family has. An allocator that gets its memory from `malloc`, a piece for many blocks, gives such a sign with the second; who hands on
//! asks in each call, whatever the call's arguments mean. What the family gives is recorded from the first call on, for a
//! [candidate](HeapKind::Candidate), which counts for nothing, and all of it counts once there is a sign; for as long as
//! there is one in [`CALLS_TO_SIGN`] calls, since who hands on may have some memory of its own, for the time before it can. After [`DOUBTS`] calls
//! that are none, and too few that are, the family is let alone.
//!
//! Asked for are bytes that operators and allocation functions are asked for that are hooked, by the thread that is amid the call. Where all is recorded,
//! what they give amid any call comes by here ([`has_asked`]); of a sample it is what the thread's gap was lowered by.

use crate::{heaps, native, sampling, tls};
use core::hint::cold_path;
use grapnel_trace::HeapKind;
use grapnel_unwind::page_is_readable;

/// So many calls are looked at.
const DOUBTS: u16 = 4096;
/// An allocator asks nobody in one of so many, or more often.
const CALLS_TO_SIGN: u16 = 16;

/// How many bytes this thread has asked for; it wraps.
#[inline]
fn so_far() -> u32 {
    if sampling::is_on() { sampling::passed_so_far() as u32 } else { tls::get().asked.get() }
}

/// In the place of how many bytes were asked for: that isn't known.
pub(super) const UNKNOWN: u32 = u32::MAX;

/// A call of a family's function begins whose registers were saved `here`, and that is asked for so many bytes. Of a sample, the gap is about to be lowered by them.
#[inline]
pub(super) fn begin(here: usize, size: usize) {
    let tls = tls::get();
    tls.asked_before.iter().fold((here as u32, so_far()), |inner, before| before.replace(inner));
    if !sampling::is_on() {
        tls.asked.set(tls.asked.get().wrapping_add(size as u32));
    }
}

/// The call is over that began so. How many were asked for amid it, or [`UNKNOWN`].
#[inline]
pub(super) fn end(here: usize, size: usize) -> u32 {
    let all = &tls::get().asked_before;
    // Those that are newer ended unseen.
    let Some(at) = all.iter().position(|before| before.get().0 == here as u32) else { return UNKNOWN };
    let asked = so_far().wrapping_sub(all[at].get().1).wrapping_sub(size as u32);
    for (number, before) in all.iter().enumerate() {
        before.set(all.get(number + at + 1).map_or((0, 0), |outer| outer.get()));
    }
    asked
}

/// Something was asked for so many bytes, where all allocations are recorded.
#[inline(always)]
pub(crate) fn has_asked(size: usize) {
    let tls = tls::get();
    if tls.inside.get() != 0 {
        cold_path();
        tls.asked.set(tls.asked.get().wrapping_add(size as u32));
    }
}

/// A call was asked for so many bytes and gave a block, amid which so many were `asked` for of others. What its heap, which is on trial, is seen as now;
/// nothing if that is none.
pub(super) fn judge(handle: u32, size: usize, asked: u32) -> Option<HeapKind> {
    let is_sign = size != 0 && asked == 0 && !may_be_address(size as u64);
    let (signs, doubts) = heaps::weigh(handle.into(), is_sign.into(), (!is_sign).into());
    kind(signs, doubts)
}

/// A call that gives nothing. Whether its heap, which is on trial, may be one.
pub(super) fn may_be_one(handle: u32) -> bool {
    if heaps::has_sign(handle.into()) {
        return true;
    }
    let (signs, doubts) = heaps::weigh(handle.into(), 0, 1);
    kind(signs, doubts).is_some()
}

/// What a heap of so many calls that were signs, and so many that weren't, is seen as.
fn kind(signs: u16, doubts: u16) -> Option<HeapKind> {
    if signs != 0 && signs.saturating_mul(CALLS_TO_SIGN) >= doubts {
        Some(HeapKind::Allocator)
    } else {
        (doubts < DOUBTS).then_some(HeapKind::Candidate)
    }
}

/// Whether what is taken for a size may be where something lies: many functions are told first of which pool a block is to be.
fn may_be_address(size: u64) -> bool {
    const LOWEST: u64 = 1 << 16;
    (LOWEST..1 << native::ADDRESS_BITS).contains(&size) && page_is_readable(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_nobody_often_enough_is_an_allocator() {
        use HeapKind::{Allocator, Candidate};
        assert_eq!([kind(0, 0), kind(0, 4095), kind(0, 4096)], [Some(Candidate), Some(Candidate), None]);
        assert_eq!(
            [kind(1, 0), kind(1, 16), kind(1, 17)],
            [Some(Allocator), Some(Allocator), Some(Candidate)]
        );
        assert_eq!([kind(256, 4096), kind(255, 4096)], [Some(Allocator), None]);
        assert_eq!(kind(u16::MAX, u16::MAX), Some(Allocator));
    }

    #[test]
    fn a_pools_address_is_no_size() {
        let pool = [0u8; 4];
        let addresses = [0, 3].map(|at| (pool.as_ptr().addr() + at) as u64);
        assert!(addresses.into_iter().all(may_be_address));
        assert!(![0, 8, 4096, 100_000, 1 << 40].into_iter().any(may_be_address));
    }

    /// Families amid each other: what the inner one is asked for, the outer one has asked for.
    #[test]
    fn an_inner_call_is_asked_for_by_the_outer_one() {
        let [a, b, c, d, e] = [0x5000, 0x4000, 0x3000, 0x2000, 0x1000];
        let ask = |size: u32| tls::get().asked.set(tls::get().asked.get() + size);
        begin(a, 100);
        assert_eq!(end(a, 100), 0);
        begin(a, 30);
        ask(48);
        assert_eq!(end(a, 30), 48);
        // One that asks for something, and has a block of another, which asks for half of that.
        begin(a, 100);
        ask(7);
        begin(b, 116);
        ask(58);
        assert_eq!([end(b, 116), end(a, 100)], [58, 7 + 58 + 116]);
        // Of one that has it.
        begin(a, 100);
        begin(b, 116);
        assert_eq!([end(b, 116), end(a, 100)], [0, 116]);
        // Of one that throws, or is left by a jump, whose end isn't seen.
        begin(a, 100);
        ask(3);
        begin(b, 40);
        assert_eq!([end(a, 100), end(b, 40)], [43, UNKNOWN]);
        // And more of them than are kept.
        for call in [a, b, c, d, e] {
            begin(call, 10);
        }
        assert_eq!([e, d, c, b, a].map(|call| end(call, 10)), [0, 10, 20, UNKNOWN, UNKNOWN]);
    }
}
