//! Which part of the stack can be read, and reading it.
//!
//! # Safety
//! Memory is read only inside ranges that the kernel has said are readable, and ranges become stale when a stack is unmapped. So what
//! is read without a question is the stack alone that the walk began on, which is there as long as the thread runs on it:
//! - A walk reads any other memory with a question for each page of it, in each walk anew: other stacks that were known may be gone, since a
//!   frame that was left by mistake leads to one. A new stack is one that can't be read on from the first, or
//!   that lies further above than ordinary frames reach.
//! - What the range grew by in a walk which was led astray at last may be another's, that of the next stack above. It is given back
//!   ([`StackMemory::doubt`]).
//! - Once a frame was found by guessing ([`StackMemory::guess`]) each page of the stack is probed, too, and what lies beyond it is copied by the kernel
//!   ([`Copies`]): it need not be of a stack at all.
//!
//! What is left is a stack that was unmapped, with a smaller one in its place. Whoever hears of memory that goes asks whether it [may be a stack's](crate::may_be_stack), and
//! has ranges [forgotten](StackMemory::forget). Where nobody hears of it, that is harmless while the walk follows CFI from a true
//! state, since it then reads only slots of live frames.

use crate::copies::Copies;
use crate::frame_pointer::LARGEST_GUESSED_FRAME;
use crate::memory::{WORD, read_word};
use crate::probe::{PAGE, page_is_readable, page_of};
use crate::start::Cursor;
use crate::whereabouts;

/// How many stacks of a context are remembered besides the one in use.
const OTHERS: usize = 3;
/// How far below a known range a new stack pointer may lie to be taken as the same stack.
const REACH_DOWN: u64 = 64 * PAGE;
/// The bytes of an ordinary frame. What lies further above may be another stack, unless it is sp alone that says so.
pub(crate) const ORDINARY: u64 = 8 * PAGE;
/// How far above a known range a frame found by sp may end to be on the same stack. Larger than any frame that is not a mistake.
const REACH_UP: u64 = 4096 * PAGE;
/// How many times a walk may go from one stack to another.
const TURNS: usize = 128;
/// No page begins here.
const NO_PAGE: u64 = 1;

/// Whether a frame that begins at `sp` and ends at `cfa` is none of the ordinary: its caller lies below it, or far above.
#[inline(always)]
pub(crate) fn is_far(sp: u64, cfa: u64) -> bool {
    cfa.wrapping_sub(sp).wrapping_sub(1) >= ORDINARY
}

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

    #[inline]
    pub(crate) fn holds_word(self, address: u64) -> bool {
        address >= self.lo && address < self.hi && self.hi - address >= WORD
    }

    /// Whether a thread with this stack pointer runs on the stack whose range it is.
    ///
    /// The trap: what lies at it may be the page behind the stack, as where a coroutine's first function has no frame. The byte
    /// below it is on the stack, where whoever asks for the walk has its own frame.
    #[inline(always)]
    fn is_under(self, sp: u64) -> bool {
        sp > self.lo && sp < self.hi && self.hi - sp >= WORD
    }

    pub(crate) fn covers(self, other: Range) -> bool {
        self.lo <= other.lo && self.hi >= other.hi
    }
}

/// The readable ranges of the stacks that a context has run on.
///
/// Works for any stack, since nothing but the stack pointer and the kernel is asked: that of the process, of a
/// thread, of a signal handler, of a coroutine.
#[derive(Debug)]
pub struct StackMemory {
    range: Range,
    /// Words that start in `[range.lo, range.lo + fast)` are read without a question; 0 while reads are distrusted.
    fast: u64,
    others: [Range; OTHERS],
    next_victim: usize,
    distrusted: bool,
    /// Whether this walk went to another stack, or read there.
    switched: bool,
    /// Whether the range grew in this walk.
    grown: bool,
    /// Whether what it grew by may be another's.
    doubted: bool,
    /// How many times the walk went from one stack to another.
    turns: u8,
    /// Where the range ended before it grew in this walk.
    sure: u64,
    /// The stack pointer that the walk has begun with, or that it came to another stack with.
    from: u64,
    /// The page that was last found readable in this walk.
    probed: u64,
    /// Whether a frame of this walk was found by guessing.
    guessed: bool,
    copies: Copies,
    /// The thread's own stack, or what of it is known to be its.
    own: Range,
    /// The range may be taken to reach to here from the next walk on: one that guessed has shown it.
    reached: u64,
    /// What the walk has passed of stacks that it has left.
    passed: [Range; TURNS],
}

impl Default for StackMemory {
    fn default() -> Self {
        Self::new()
    }
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
            grown: false,
            doubted: false,
            turns: 0,
            sure: 0,
            from: 0,
            probed: NO_PAGE,
            guessed: false,
            copies: Copies::new(),
            own: NONE,
            reached: 0,
            passed: [NONE; TURNS],
        }
    }

    /// Begins a walk at a stack pointer: chooses the range of its stack.
    #[inline]
    pub fn begin(&mut self, sp: u64) {
        if self.distrusted || !self.range.is_under(sp) {
            self.select(sp);
        } else {
            self.grown = false;
        }
        (self.switched, self.turns, self.from) = (false, 0, sp);
    }

    /// Forgets all ranges. To be called when a stack of this context may have been unmapped.
    pub fn forget(&mut self) {
        *self = Self { own: self.own, ..Self::new() };
    }

    /// The thread's own stack lies here, or what of it is known to be its: nobody puts that away while it runs. Empty where none is known.
    pub(crate) fn own_stack(&mut self, addresses: core::ops::Range<u64>) {
        self.own = Range { lo: addresses.start, hi: addresses.end };
    }

    /// A frame was found by guessing: from here to the end of the walk, each page of the stack is probed, and what is read beyond is
    /// copied by the kernel.
    pub(crate) fn guess(&mut self) {
        self.distrust();
        if !self.guessed {
            self.guessed = true;
            self.copies.begin(self.range.hi);
        }
    }

    /// The walk has come to a function that has no caller by its tables, which no word of memory has said. If it has guessed on its way, on the
    /// thread's own stack and from each frame to one near above, that is how far the stack reaches.
    ///
    /// The trap: on any other stack what lies near above may be the next one, which a guess leads to, and which another thread gives back.
    pub(crate) fn comes_to_root(&mut self) {
        if self.guessed && !self.switched && !self.doubted {
            let top = self.copies.top().unwrap_or(0);
            let is_own = self.own.covers(Range { lo: self.range.lo, hi: top });
            self.reached = if is_own { top } else { 0 };
        }
    }

    /// Whether that was so in this walk.
    pub(crate) fn has_guessed(&self) -> bool {
        self.guessed
    }

    /// From here to the end of the walk, each page is probed before it is read.
    pub fn distrust(&mut self) {
        if !self.distrusted {
            let below = self.from.wrapping_sub(1);
            let is_known = below >= self.range.lo && below < self.range.hi;
            self.probed = if is_known { page_of(below) } else { NO_PAGE };
            self.distrusted = true;
            self.fast = 0;
        }
    }

    /// The walk was led astray somewhere: what the range grew by in it may be another's, and is given back when the next one begins.
    ///
    /// As where a coroutine's first function returns to a made-up address: what is taken for that one's frame ends on whichever
    /// stack lies above.
    #[cold]
    #[inline(never)]
    pub(crate) fn doubt(&mut self) {
        self.distrust();
        self.doubted = true;
    }

    /// The frame at `sp` was taken for the last one by a word of memory. If that is the first word in a page that lies behind, it may
    /// be another's: zeros are everywhere.
    #[cold]
    #[inline(never)]
    pub(crate) fn ends(&mut self, sp: u64) {
        if self.grown && self.range.hi > self.sure.max(Self::end_of_page(sp)) {
            self.doubt();
        }
    }

    /// Goes on with a frame that [is far](is_far) from its callee at `sp`. False where that can't be.
    ///
    /// By sp alone it is a large frame. By anything else it is on another stack, for all that is known: functions that call others on a new stack keep the
    /// old one in a register. That one may lie anywhere, but not where this walk has been: it would come by again, and again.
    #[cold]
    #[inline(never)]
    pub(crate) fn goes_far(&mut self, sp: u64, cfa: u64, by_sp: bool) -> bool {
        if by_sp {
            self.reach(cfa);
            return cfa > sp;
        }
        let Some(slot) = self.passed.get_mut(usize::from(self.turns)) else { return false };
        *slot = Range { lo: self.from.min(sp), hi: sp };
        self.turns += 1;
        let passed = self.passed.get(..usize::from(self.turns)).unwrap_or(&[]);
        if passed.iter().any(|part| part.lo <= cfa && cfa <= part.hi) {
            return false;
        }
        self.distrust();
        (self.switched, self.from) = (true, cfa);
        true
    }

    /// Whether the pc of a frame points at the stack, as far as the walk has come, or into the frame itself. That of the first frame
    /// is beyond doubt.
    pub(crate) fn has_passed(&self, at: Cursor) -> bool {
        let Cursor { pc, sp, fp } = at;
        let is_large = fp.checked_sub(sp).is_none_or(|bytes| bytes > LARGEST_GUESSED_FRAME);
        let top = if is_large { sp } else { fp };
        sp != self.from && pc >= page_of(self.from.wrapping_sub(1)) && pc < Self::end_of_page(top)
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
        (!self.distrusted && self.range.is_under(sp)).then_some(self.range)
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
        if !self.distrusted && self.extend_to(address, last) {
            // SAFETY: the word lies in the extended range.
            return Some(unsafe { read_word(address) });
        }
        if !self.distrusted {
            self.distrust();
            self.switched = true;
        }
        if self.guessed && !self.range.holds_word(address) {
            return self.copies.read(address, last);
        }
        for page in [page_of(address), page_of(last)] {
            if page != self.probed {
                if !page_is_readable(page) {
                    return None;
                }
                self.probed = page;
            }
        }
        // SAFETY: both ends of the word lie in pages that were found readable: in this walk, or in the range, where the walk's caller has
        // its frame below the stack pointer.
        Some(unsafe { read_word(address) })
    }

    /// Makes the range hold the word by growing it, if it lies so near above that it is on the same stack.
    fn extend_to(&mut self, address: u64, last: u64) -> bool {
        let Range { lo, hi } = self.range;
        if hi != 0 && address >= lo && address < hi.saturating_add(ORDINARY) {
            self.grow_to(last);
        }
        self.range.holds_word(address)
    }

    /// Grows the range, as far as it can be read, to hold a frame that ends at `cfa`, if that is no mistake.
    fn reach(&mut self, cfa: u64) {
        let hi = self.range.hi;
        if !self.distrusted && hi != 0 && cfa > hi && cfa - hi <= REACH_UP {
            self.grow_to(cfa - 1);
        }
    }

    /// Grows the range up to the page that holds `last`, or to one that can't be read.
    fn grow_to(&mut self, last: u64) {
        let Range { lo, hi: old } = self.range;
        let mut hi = old;
        while hi <= last && page_is_readable(hi) {
            hi = hi.saturating_add(PAGE);
        }
        if hi != old {
            if !self.grown {
                (self.grown, self.sure) = (true, old);
            }
            whereabouts::note(old..hi);
            self.set(Range { lo, hi });
        }
    }

    fn set(&mut self, range: Range) {
        self.range = range;
        self.fast = range.starts();
    }

    /// Turns to the range of the stack that `sp` points into; probes for one where none does.
    #[cold]
    #[inline(never)]
    fn select(&mut self, sp: u64) {
        if self.doubted && self.grown {
            self.range.hi = self.sure;
        }
        let reached = core::mem::replace(&mut self.reached, 0);
        if reached > self.range.hi && reached - self.range.hi <= REACH_UP {
            self.grow_to(reached - 1);
        }
        (self.distrusted, self.guessed, self.doubted, self.grown) = (false, false, false, false);
        let old = self.range;
        if old.is_under(sp) {
            self.set(old);
            return;
        }
        if let Some(slot) = self.others.iter_mut().find(|range| range.is_under(sp)) {
            let found = core::mem::replace(slot, old);
            self.set(found);
            return;
        }
        let page = page_of(sp.wrapping_sub(1));
        let own = page.saturating_add(PAGE);
        let below = page < old.lo && old.lo - page <= REACH_DOWN;
        let limit = if below { old.lo } else { own };
        let mut hi = page;
        while hi < limit && page_is_readable(hi) {
            hi = hi.saturating_add(PAGE);
        }
        if below && hi == old.lo {
            // The stack that it was, or the one next to it.
            whereabouts::note(page..old.lo);
            self.set(Range { lo: page, hi: old.hi });
            (self.grown, self.sure) = (true, own);
            return;
        }
        if let Some(victim) = self.others.get_mut(self.next_victim)
            && old.hi != 0
        {
            *victim = old;
            self.next_victim = (self.next_victim + 1) % OTHERS;
        }
        let hi = hi.min(own);
        whereabouts::note(page..hi);
        self.set(Range { lo: page, hi });
    }
}

#[cfg(test)]
mod tests;
