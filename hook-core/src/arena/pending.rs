//! Code on its way to memory that is written by system calls: pieces that lie close to each other go together, with what lies between
//! them as it is.
//!
//! # Safety
//! Every piece comes with the promise that nobody runs it before it is written. What lies between two pieces is the same arena's, so
//! nobody else changes it meanwhile; who runs it finds it as it was.

use alloc::vec::Vec;
use core::ops::Range;

use crate::{memory::view::MemoryView, native, sys::Errno};

/// No run gets longer than this by more than a piece.
const MOST: usize = 64 << 10;
/// As much as may lie between two pieces of a run.
const GAP: usize = 1 << 10;
/// When so much is kept, it is written.
const KEPT: usize = 1 << 20;

/// Pieces side by side.
#[derive(Debug, Default)]
struct Run {
    at: usize,
    code: Vec<u8>,
}

/// A piece: where it goes, and its place among the bytes that are kept, which is later for what came later.
#[derive(Debug)]
struct Piece {
    at: usize,
    kept: Range<usize>,
}

impl Piece {
    fn end(&self) -> usize {
        self.at + self.kept.len()
    }
}

impl Run {
    fn write(&self, memory: &MemoryView) -> Result<(), Errno> {
        // SAFETY: the promise of those who added the pieces.
        unsafe { memory.write_unrun(self.at, &self.code) }.map_err(|why| why.errno)?;
        native::flush(self.at..self.at + self.code.len());
        Ok(())
    }
}

#[derive(Debug, Default)]
pub(super) struct Pending {
    /// Where two have the same bytes, those of the later one count.
    pieces: Vec<Piece>,
    kept: Vec<u8>,
    /// What couldn't be written. It is tried again before anything else is written: what is led to later may be among it.
    left: Vec<Run>,
    /// Why not.
    failed: Option<Errno>,
}

impl Pending {
    /// Adds a piece, and writes those before it if there are many.
    ///
    /// # Safety
    /// The bytes from `at` on are the caller's, and nobody runs them before the next [`Self::flush`] that succeeds.
    pub(super) unsafe fn add(&mut self, at: usize, piece: impl Iterator<Item = u8>, memory: &MemoryView) {
        if self.kept.len() >= KEPT {
            self.write(memory);
        }
        let start = self.kept.len();
        self.kept.extend(piece);
        match self.pieces.last_mut() {
            Some(last) if last.end() == at => last.kept.end = self.kept.len(),
            _ => self.pieces.push(Piece { at, kept: start..self.kept.len() }),
        }
    }

    /// Writes what is left. Says whether all is written that ever was added.
    pub(super) fn flush(&mut self, memory: &MemoryView) -> Result<(), Errno> {
        self.write(memory);
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Writes nothing to this memory any more, which is about to be unmapped.
    pub(super) fn forget(&mut self, range: &Range<usize>) {
        self.left.retain(|run| !range.contains(&run.at));
        self.pieces.retain(|piece| !range.contains(&piece.at));
    }

    fn write(&mut self, memory: &MemoryView) {
        while let Some(run) = self.left.first() {
            if let Err(errno) = run.write(memory) {
                self.failed = Some(errno);
                break;
            }
            self.left.remove(0);
        }
        let (mut pieces, kept) = (core::mem::take(&mut self.pieces), core::mem::take(&mut self.kept));
        pieces.sort_unstable_by_key(|piece| piece.at);
        let mut rest = &mut pieces[..];
        while let [first, ..] = rest {
            let (limit, mut end) = (first.at + MOST, first.end());
            let fits = |piece: &&Piece| {
                // Those that have the same bytes must not be parted.
                let fits = piece.at < end || (piece.at <= end + GAP && piece.at < limit);
                end = end.max(piece.end());
                fits
            };
            let (together, behind) = rest.split_at_mut(rest.iter().take_while(fits).count());
            self.write_together(together, &kept, memory);
            rest = behind;
        }
        (self.pieces, self.kept) = (pieces, kept);
        self.pieces.clear();
        self.kept.clear();
    }

    /// Writes pieces that are in the order of their places.
    fn write_together(&mut self, pieces: &mut [Piece], kept: &[u8], memory: &MemoryView) {
        let Some(at) = pieces.first().map(|first| first.at) else { return };
        let (mut end, mut gaps) = (at, false);
        for piece in &*pieces {
            gaps |= piece.at > end;
            end = end.max(piece.end());
        }
        let mut run = Run { at, code: alloc::vec![0; end - at] };
        if gaps && memory.read(at, &mut run.code) < run.code.len() {
            // What lies between can't be read. Those that overlap have no gap between them.
            let mut rest = pieces;
            while let [first, ..] = rest {
                let mut end = first.end();
                let touches = |piece: &&Piece| {
                    let touches = piece.at <= end;
                    end = end.max(piece.end());
                    touches
                };
                let (together, behind) = rest.split_at_mut(rest.iter().take_while(touches).count());
                self.write_together(together, kept, memory);
                rest = behind;
            }
            return;
        }
        pieces.sort_unstable_by_key(|piece| piece.kept.start);
        for piece in &*pieces {
            let code = kept.get(piece.kept.clone()).unwrap_or(&[]);
            for (slot, byte) in run.code.iter_mut().skip(piece.at - at).zip(code) {
                *slot = *byte;
            }
        }
        let written = if self.left.is_empty() { run.write(memory) } else { Ok(()) };
        if written.is_err() || !self.left.is_empty() {
            self.failed = self.failed.or(written.err());
            self.left.push(run);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{self, PAGE};

    /// Pieces in any order, that have others' bytes or lie apart, some behind memory that can't be read.
    #[test]
    #[cfg_attr(miri, ignore = "maps memory")]
    fn what_was_added_last_is_what_is_there() {
        let memory = MemoryView::open();
        let len = 64 * PAGE;
        // SAFETY: a fresh mapping that nothing else knows; a page in it goes again.
        let start = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let start = sys::mmap(0, len, libc::PROT_READ | libc::PROT_WRITE, flags, None).unwrap();
            sys::munmap(start + 20 * PAGE, PAGE).unwrap();
            start
        };
        let mut model = alloc::vec![0u8; len];
        let mut pending = Pending::default();
        let mut random = 0x2545_f491_4f6c_dd1du64;
        let mut below = |end: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random as usize % end
        };
        for round in 0..200 {
            let near = below(len - 2048);
            for _ in 0..below(200) {
                let at = if below(3) == 0 { below(len - 300) } else { near + below(1700) };
                let (size, byte) = (1 + below(250), below(256) as u8);
                if at < 21 * PAGE && 20 * PAGE < at + size {
                    continue;
                }
                // SAFETY: the bytes are this test's.
                unsafe { pending.add(start + at, core::iter::repeat_n(byte, size), &memory) };
                model[at..at + size].fill(byte);
            }
            assert_eq!(pending.flush(&memory), Ok(()), "round {round}");
            for part in [0..20 * PAGE, 21 * PAGE..len] {
                let mut found = alloc::vec![0; part.len()];
                assert_eq!(memory.read(start + part.start, &mut found), part.len());
                assert!(found == model[part], "round {round}");
            }
        }
        // SAFETY: mapped above; where nothing is any more that is no error.
        unsafe { sys::munmap(start, len) }.unwrap();
    }
}
