//! Where each instruction of a window went, both ways.

use arrayvec::ArrayVec;

use crate::window::MAX_INSTS;

/// The way from a position in relocated code back to the window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin {
    /// The offset in the window of the instruction that the position belongs to.
    pub offset: usize,
    /// The position is the start of that instruction's code, so that a thread there has executed all before it and
    /// nothing of it. Elsewhere the instruction is under way.
    pub exact: bool,
}

/// Offsets in a window against offsets in its relocated code.
///
/// Both sides start at 0. The jump back, if there is one, counts as the instruction behind the window.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PcMap {
    /// (offset in the window, offset in the relocated code), ascending in both. One more than instructions, for the
    /// jump back.
    entries: ArrayVec<(u16, u16), { MAX_INSTS + 1 }>,
    /// Where the code ends and literals begin.
    code_len: u16,
}

impl PcMap {
    pub(crate) fn push(&mut self, from: usize, to: usize) {
        self.entries.push((from as u16, to as u16));
    }

    pub(crate) fn end_code(&mut self, len: usize) {
        self.code_len = len as u16;
    }

    /// Where the code of the instruction at this offset of the window starts. `None` inside an instruction, in
    /// padding and outside; the window's length maps to the jump back if there is one.
    #[must_use]
    pub fn to_relocated(&self, offset: usize) -> Option<usize> {
        let at = self.entries.binary_search_by_key(&offset, |&(from, _)| usize::from(from)).ok()?;
        Some(usize::from(self.entries[at].1))
    }

    /// Which instruction of the window the relocated code at this offset belongs to. `None` behind the code.
    #[must_use]
    pub fn to_original(&self, offset: usize) -> Option<Origin> {
        if offset >= usize::from(self.code_len) {
            return None;
        }
        let behind = self.entries.partition_point(|&(_, to)| usize::from(to) <= offset);
        let (from, to) = *self.entries.get(behind.checked_sub(1)?)?;
        Some(Origin { offset: usize::from(from), exact: usize::from(to) == offset })
    }

    /// The original return address, as an offset, of a call whose relocated code pushed this one.
    ///
    /// A return address lies behind its call, at the start of the next instruction's code, or at the end of all code
    /// if the call is not expected to return.
    #[must_use]
    pub fn return_to_original(&self, offset: usize) -> Option<usize> {
        let at = self.entries.binary_search_by_key(&offset, |&(_, to)| usize::from(to)).ok()?;
        Some(usize::from(self.entries[at].0))
    }

    /// Every pair (offset in the window, offset in the relocated code), ascending.
    pub fn iter(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.entries.iter().map(|&(from, to)| (usize::from(from), usize::from(to)))
    }

    /// How long the code is; literals follow it.
    #[must_use]
    pub fn code_len(&self) -> usize {
        usize::from(self.code_len)
    }
}
