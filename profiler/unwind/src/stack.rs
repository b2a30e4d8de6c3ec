//! Which part of the stack can be read, and reading it.
//!
//! # Safety
//! Memory is read only inside ranges that the kernel has said are readable. A range can become stale when a stack is
//! unmapped. That is harmless while the walk follows CFI from a true state, since it then reads only slots of live
//! frames. Once a frame was found by guessing, this no longer holds and each page is probed again
//! ([`StackMemory::distrust`]).

use crate::memory::{WORD, read_word};
use crate::probe::{PAGE, page_is_readable, page_of};

/// How many stacks of a context are remembered besides the one in use.
const OTHERS: usize = 3;
/// How far below a known range a new stack pointer may lie to be taken as the same stack.
const REACH_DOWN: u64 = 64 * PAGE;
/// How far above a known range a read may lie to be taken as the same stack.
///
/// Larger than any frame that is not a mistake: a frame across the reach would have each walk turn to another range,
/// and the memo lost.
const REACH_UP: u64 = 4096 * PAGE;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) lo: u64,
    pub(crate) hi: u64,
}

impl Range {
    /// How many bytes from the lowest on words may begin at.
    pub(crate) fn starts(self) -> u64 {
        (self.hi - self.lo).saturating_sub(WORD - 1)
    }

    fn holds_word(self, address: u64) -> bool {
        address >= self.lo && address < self.hi && self.hi - address >= WORD
    }

    pub(crate) fn covers(self, other: Range) -> bool {
        self.lo <= other.lo && self.hi >= other.hi
    }
}

/// The readable ranges of the stacks that a context has run on.
///
/// Works for any stack, since nothing but the stack pointer and the kernel is asked: that of the process, of a
/// thread, of a signal handler, of a coroutine.
#[derive(Debug, Default)]
pub struct StackMemory {
    range: Range,
    /// Words that start in `[range.lo, range.lo + fast)` are read without a question; 0 while reads are distrusted.
    fast: u64,
    others: [Range; OTHERS],
    next_victim: usize,
    distrusted: bool,
    /// Whether this walk has turned to another range.
    switched: bool,
    /// The page that was last found readable in this walk.
    probed: u64,
}

impl StackMemory {
    /// No range known.
    pub const fn new() -> Self {
        const NONE: Range = Range { lo: 0, hi: 0 };
        StackMemory {
            range: NONE,
            fast: 0,
            others: [NONE; OTHERS],
            next_victim: 0,
            distrusted: false,
            switched: false,
            probed: 0,
        }
    }

    /// Begins a walk at a stack pointer: chooses the range of its stack.
    ///
    /// The trap: what lies at it may be the page behind the stack, as where a coroutine's first function has no frame. The byte
    /// below it is on the stack, where whoever asks for the walk has its own frame.
    #[inline]
    pub fn begin(&mut self, sp: u64) {
        self.probed = page_of(sp.wrapping_sub(1));
        if self.distrusted || !self.range.holds_word(sp) {
            self.distrusted = false;
            self.select(sp);
        }
        self.switched = false;
    }

    /// Forgets all ranges. To be called when a stack of this context may have been unmapped.
    pub fn forget(&mut self) {
        *self = Self::new();
    }

    /// From here to the end of the walk, each page is probed before it is read.
    pub fn distrust(&mut self) {
        self.distrusted = true;
        self.fast = 0;
    }

    /// The range that all reads of this walk were made in, if it was one.
    #[inline]
    pub(crate) fn range_of_walk(&self) -> Option<Range> {
        (!self.switched).then_some(self.range)
    }

    #[inline]
    pub(crate) fn range(&self) -> Range {
        self.range
    }

    /// The range of the stack that `sp` points into, if the last walk was on it and trusted it: what a walk from `sp`
    /// would begin with.
    #[inline(always)]
    pub(crate) fn range_at(&self, sp: u64) -> Option<Range> {
        (!self.distrusted && self.range.holds_word(sp)).then_some(self.range)
    }

    /// The range that words are read from without a question, if this walk made all its reads there.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn trusted(&self) -> Option<Range> {
        (!self.distrusted && !self.switched).then_some(self.range)
    }

    /// Where the page ends that a frame's caller has its own words in, or those of the call: it is there as long as the frame is. What
    /// lies behind may be another stack that was known, and is gone.
    #[inline(always)]
    pub(crate) fn end_of_page(sp: u64) -> u64 {
        page_of(sp.wrapping_sub(1)).saturating_add(PAGE)
    }

    /// Shows the words from `from` up to `to` that are read without a question. Nothing of them may be gone: they need not be those of live frames.
    #[inline(always)]
    pub(crate) fn each(&self, from: u64, to: u64, mut show: impl FnMut(u64)) {
        let from = from.max(self.range.lo);
        let end = to.min(self.range.lo.saturating_add(self.fast));
        for word in 0..end.saturating_sub(from) / WORD {
            // SAFETY: as in `read`; that it isn't gone is the caller's promise.
            show(unsafe { read_word(from + word * WORD) });
        }
    }

    /// The word at `address`, if it can be read.
    #[inline(always)]
    pub fn read(&mut self, address: u64) -> Option<u64> {
        if address.wrapping_sub(self.range.lo) < self.fast {
            // SAFETY: the word lies inside a range that was probed; see the module's header for stale ranges.
            return Some(unsafe { read_word(address) });
        }
        self.read_slow(address)
    }

    #[cold]
    #[inline(never)]
    fn read_slow(&mut self, address: u64) -> Option<u64> {
        let last = address.checked_add(WORD - 1)?;
        if self.distrusted {
            for page in [page_of(address), page_of(last)] {
                if page != self.probed {
                    if !page_is_readable(page) {
                        return None;
                    }
                    self.probed = page;
                }
            }
        } else if !self.extend_to(address, last) {
            return None;
        }
        // SAFETY: both ends of the word lie in pages that were just found readable, or in the extended range.
        Some(unsafe { read_word(address) })
    }

    /// Makes the current range hold the word, by growing it, by turning to another one, or by starting a new one.
    fn extend_to(&mut self, address: u64, last: u64) -> bool {
        if self.range.holds_word(address) {
            return true;
        }
        let near = address >= self.range.lo && address < self.range.hi.saturating_add(REACH_UP);
        if self.range.hi != 0 && near {
            let mut hi = self.range.hi;
            while hi <= last && page_is_readable(hi) {
                hi = hi.wrapping_add(PAGE);
            }
            self.set(Range { lo: self.range.lo, hi });
            if hi > last {
                return true;
            }
        }
        self.select(address);
        if self.range.holds_word(address) {
            return true;
        }
        // A word across a page's end.
        if self.range.lo <= address && page_of(last) == self.range.hi && page_is_readable(last) {
            self.set(Range { lo: self.range.lo, hi: self.range.hi.wrapping_add(PAGE) });
            return true;
        }
        false
    }

    fn set(&mut self, range: Range) {
        self.range = range;
        self.fast = range.starts();
    }

    /// Turns to the range that holds `address`; probes for one where none does.
    #[cold]
    #[inline(never)]
    fn select(&mut self, address: u64) {
        if self.range.holds_word(address) {
            self.set(self.range);
            return;
        }
        self.switched = true;
        let old = self.range;
        if let Some(slot) = self.others.iter_mut().find(|r| r.holds_word(address)) {
            let found = core::mem::replace(slot, old);
            self.set(found);
            return;
        }
        let page = page_of(address);
        let mut hi = page;
        let below = address < old.lo && old.lo - page <= REACH_DOWN;
        let limit = if below { old.lo } else { page.saturating_add(PAGE) };
        while hi < limit && page_is_readable(hi) {
            hi = hi.wrapping_add(PAGE);
        }
        if below && hi == old.lo {
            self.set(Range { lo: page, hi: old.hi });
            return;
        }
        if let Some(victim) = self.others.get_mut(self.next_victim)
            && old.hi != 0
        {
            *victim = old;
            self.next_victim = (self.next_victim + 1) % OTHERS;
        }
        self.set(Range { lo: page, hi });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_stack_and_nothing_bad() {
        let words = [1usize, 2, 3];
        let at = &raw const words as u64;
        let mut stack = StackMemory::new();
        stack.begin(at);
        assert_eq!(stack.read(at + WORD), Some(2));
        assert_eq!(stack.read(at + 1), Some(2 << (8 * WORD - 8)));
        assert_eq!(stack.read(0), None);
        assert_eq!(stack.read(u64::MAX - 3), None);
        assert_eq!(stack.read(0xffff_8000_0000_0000), None);
        stack.begin(at);
        assert_eq!(stack.read(at), Some(1));
        stack.distrust();
        assert_eq!(stack.read(at), Some(1));
        assert_eq!(stack.read(64), None);
    }

    #[test]
    fn the_page_behind_a_stack_is_not_taken_for_readable() {
        // SAFETY: a fresh mapping, of which the second page is given back.
        let end = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let page = libc::mmap(core::ptr::null_mut(), 2 * PAGE as usize, libc::PROT_READ, flags, -1, 0);
            assert_ne!(page, libc::MAP_FAILED);
            let end = page.byte_add(PAGE as usize);
            libc::munmap(end, PAGE as usize);
            end as u64
        };
        let mut stack = StackMemory::new();
        stack.begin(end);
        stack.distrust();
        assert_eq!(stack.read(end), None);
        assert_eq!(stack.read(end - WORD), Some(0));
        assert_eq!(stack.read(end - 1), None, "across the end");
        // SAFETY: nothing refers to the page any more.
        unsafe { libc::munmap((end - PAGE) as *mut _, PAGE as usize) };
    }

    #[test]
    fn a_heap_page_becomes_a_range_of_its_own() {
        let local = 7u64;
        let at = &raw const local as u64;
        let heap = vec![9u64; 8192];
        let (first, last) = (heap.as_ptr() as u64, &raw const heap[8191] as u64);
        let mut stack = StackMemory::new();
        stack.begin(at);
        assert_eq!(stack.read(first), Some(9));
        assert_eq!(stack.read(last), Some(9));
        assert!(stack.range().lo <= first && stack.range().hi > last);
        stack.begin(at);
        assert_eq!(stack.read(at), Some(7));
        stack.begin(first);
        assert!(stack.range().hi > last, "the range was kept");
    }
}
