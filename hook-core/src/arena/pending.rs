//! Code on its way to memory that is written by system calls: pieces that lie side by side go together.
//!
//! # Safety
//! Every piece comes with the promise that nobody runs it before it is written.

use alloc::vec::Vec;

use crate::{memory::view::MemoryView, native, sys::Errno};

/// No run gets longer than this by more than a piece.
const MOST: usize = 16 << 10;

#[derive(Debug, Default)]
pub(super) struct Pending {
    /// Where the run begins; 0 while there is none. Who looks for addresses of code on stacks may find this.
    at: usize,
    code: Vec<u8>,
    /// Why a run couldn't be written.
    failed: Option<Errno>,
}

impl Pending {
    /// Adds a piece, and writes those before it if they end elsewhere.
    ///
    /// # Safety
    /// The bytes from `at` on are the caller's, and nobody runs them before the next [`Self::flush`].
    pub(super) unsafe fn add(&mut self, at: usize, piece: impl Iterator<Item = u8>, memory: &MemoryView) {
        if at != self.at + self.code.len() || self.code.len() >= MOST {
            self.write(memory);
            self.at = at;
        }
        self.code.extend(piece);
    }

    /// Writes what is left. Says whether all since the last time is written.
    pub(super) fn flush(&mut self, memory: &MemoryView) -> Result<(), Errno> {
        self.write(memory);
        self.failed.take().map_or(Ok(()), Err)
    }

    fn write(&mut self, memory: &MemoryView) {
        if self.code.is_empty() {
            return;
        }
        // SAFETY: the promise of those who added the pieces.
        if let Err(errno) = unsafe { memory.write_running(self.at, &self.code) } {
            self.failed = Some(errno);
        }
        native::flush(self.at..self.at + self.code.len());
        self.code.clear();
        self.at = 0;
    }
}
