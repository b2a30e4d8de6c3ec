//! What was given out before the hooks were in: blocks of the heap that grows by `brk`, of which nothing is known.

use crate::stat::Stat;
use crate::sys;
use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The part of the heap that was in use before the hooks were in, and which blocks there were given out since, one bit
/// for each 16 bytes. A pointer into it that was never given out is older than the hooks.
static OLD: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
static GIVEN: AtomicUsize = AtomicUsize::new(0);

/// Remembers how far the heap reaches now.
pub(crate) fn remember_heap() {
    let Some(range) = sys_heap() else { return };
    let words = range.len().div_ceil(16 * 64);
    let Some(bits) = sys::map_anonymous(8 * words.max(1)) else { return };
    GIVEN.store(bits.expose_provenance(), Ordering::Relaxed);
    OLD[1].store(range.end, Ordering::Relaxed);
    OLD[0].store(range.start, Ordering::Relaxed);
}

/// The heap that grows by `brk`, if it has begun.
fn sys_heap() -> Option<Range<usize>> {
    // `start_brk`
    let start = usize::try_from(Stat::read()?.field(47)?).ok()?;
    Some(start..sys::program_break()?).filter(|range| range.start != 0 && range.start < range.end)
}

/// The part of the heap that grows by `brk` which has only blocks that were given out since.
pub(crate) fn heap_since_hooks() -> Range<usize> {
    let old = OLD[1].load(Ordering::Relaxed);
    sys_heap().map_or(0..0, |heap| heap.start.max(old)..heap.end.max(old))
}

fn bit(address: usize) -> Option<(&'static AtomicU64, u64)> {
    let [start, end] = OLD.each_ref().map(|word| word.load(Ordering::Relaxed));
    if !(start..end).contains(&address) {
        return None;
    }
    let index = (address - start) / 16;
    let words: *const AtomicU64 = ptr::with_exposed_provenance(GIVEN.load(Ordering::Relaxed));
    // SAFETY: there is a bit for each 16 bytes of the range, in memory that is never unmapped.
    Some((unsafe { &*words.add(index / 64) }, 1 << (index % 64)))
}

/// Notes that a block was given out.
pub(crate) fn remember_given(address: usize) {
    if let Some((word, bit)) = bit(address) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// Whether a block that isn't known may have been given out before the hooks were in.
pub(crate) fn is_old(address: usize) -> bool {
    bit(address).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit == 0)
}
