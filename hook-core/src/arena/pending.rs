//! Code on its way to memory that is written by system calls: pieces that lie side by side go together.
//!
//! # Safety
//! Every piece comes with the promise that nobody runs it before it is written.

use alloc::vec::Vec;
use core::ops::Range;

use crate::{memory::view::MemoryView, native, sys::Errno};

/// No run gets longer than this by more than a piece.
const MOST: usize = 16 << 10;

/// Pieces side by side.
#[derive(Debug, Default)]
struct Run {
    /// Where it begins; 0 while there is none. Who looks for addresses of code on stacks may find this.
    at: usize,
    code: Vec<u8>,
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
    run: Run,
    /// What couldn't be written. It is tried again before anything else is written: what is led to later may be among it.
    left: Vec<Run>,
    /// Why not.
    failed: Option<Errno>,
}

impl Pending {
    /// Adds a piece, and writes those before it if they end elsewhere.
    ///
    /// # Safety
    /// The bytes from `at` on are the caller's, and nobody runs them before the next [`Self::flush`] that succeeds.
    pub(super) unsafe fn add(&mut self, at: usize, piece: impl Iterator<Item = u8>, memory: &MemoryView) {
        if at != self.run.at + self.run.code.len() || self.run.code.len() >= MOST {
            self.write(memory);
            self.run.at = at;
        }
        self.run.code.extend(piece);
    }

    /// Writes what is left. Says whether all is written that ever was added.
    pub(super) fn flush(&mut self, memory: &MemoryView) -> Result<(), Errno> {
        self.write(memory);
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Writes nothing to this memory any more, which is about to be unmapped.
    pub(super) fn forget(&mut self, range: &Range<usize>) {
        self.left.retain(|run| !range.contains(&run.at));
    }

    fn write(&mut self, memory: &MemoryView) {
        while let Some(run) = self.left.first() {
            if let Err(errno) = run.write(memory) {
                self.failed = Some(errno);
                break;
            }
            self.left.remove(0);
        }
        if self.run.code.is_empty() {
            return;
        }
        let written = if self.left.is_empty() { self.run.write(memory) } else { Ok(()) };
        if written.is_err() || !self.left.is_empty() {
            self.failed = self.failed.or(written.err());
            self.left.push(core::mem::take(&mut self.run));
        }
        self.run.code.clear();
        self.run.at = 0;
    }
}
