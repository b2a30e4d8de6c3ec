//! Words that a walk is led to by a guess, beyond what is known of its stack: another thread may unmap them between a question and a look, so the
//! kernel copies them, a piece at a time.
//!
//! A copy takes the kernel a microsecond, where a page that is known needs one question or none. Most often they are words of the same stack all the same, as where
//! code made at run time has frame pointers: a walk on the thread's own stack that goes on from such a guess, piece after piece, and comes to a
//! function that has no caller by its tables, has shown that.

use crate::memory::WORD;
use crate::probe::{copied, copy, page_of};
use crate::stack::{ORDINARY, Range, StackMemory};

/// How many bytes are copied at a time.
const PIECE: usize = 512;

/// The last piece, and how far the copies of a walk reach.
#[derive(Debug)]
pub(crate) struct Copies {
    bytes: [u8; PIECE],
    range: Range,
    /// The end of the highest word, or of the stack where there was none yet.
    top: u64,
    /// Where the stack ended as far as it was known.
    from: u64,
    /// Not all of them lay behind one another.
    leapt: bool,
}

impl Copies {
    pub(crate) const fn new() -> Self {
        Copies { bytes: [0; PIECE], range: Range { lo: 0, hi: 0 }, top: 0, from: 0, leapt: false }
    }

    /// Forgets the last piece: a walk begins to guess whose stack is known up to `end`.
    pub(crate) fn begin(&mut self, end: u64) {
        (self.range, self.top, self.from, self.leapt) = (Range::default(), end, end, false);
    }

    /// The word at `address`, whose last byte is at `last`, if it can be read.
    pub(crate) fn read(&mut self, address: u64, last: u64) -> Option<u64> {
        self.leapt |= address >= self.top.saturating_add(ORDINARY) || address < self.from;
        self.top = self.top.max(last + 1);
        if !(self.range.lo <= address && last < self.range.hi) {
            self.range = Range::default();
            if page_of(address) != page_of(last) {
                return copied(address).map(|word| usize::from_ne_bytes(word) as u64);
            }
            let len = (StackMemory::end_of_page(address + 1) - address).min(PIECE as u64);
            if !copy(address, self.bytes.get_mut(..len as usize)?) {
                return None;
            }
            self.range = Range { lo: address, hi: address + len };
        }
        let word = self.bytes.get((address - self.range.lo) as usize..)?.first_chunk()?;
        Some(usize::from_ne_bytes(*word) as u64)
    }

    /// Up to where they reach, if each lay near the one before.
    pub(crate) fn top(&self) -> Option<u64> {
        (!self.leapt).then_some(self.top)
    }
}

const _: () = assert!(PIECE as u64 >= WORD);
