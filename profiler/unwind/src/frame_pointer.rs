//! The frame pointer of a frame, where there is one register for it.

use crate::memo::Words;
use crate::stack::StackMemory;

/// A guess that would make a frame larger than this is not believed.
pub(crate) const LARGEST_GUESSED_FRAME: u64 = 1 << 20;

/// The frame pointer of a frame. Where a callee saved it, it is read only when a step needs it: most code uses the
/// register for anything, saves it, and never asks what it was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FramePointer {
    /// Of no meaning while it has to be read.
    value: u64,
    /// Where it is saved, as long as it was not read; else 0.
    slot: u64,
}

impl FramePointer {
    #[inline(always)]
    pub(crate) fn known(value: u64) -> Self {
        FramePointer { value, slot: 0 }
    }

    /// Saved at this address, which is not 0.
    #[inline(always)]
    pub(crate) fn is_at(&mut self, slot: u64) {
        self.slot = slot;
    }

    /// What it was last known to be: its value, unless no step from here reads it.
    #[inline(always)]
    pub(crate) fn value(self) -> u64 {
        self.value
    }

    /// Reads it if that was not done yet. False where that can't be done.
    ///
    /// The word is one of those that were read to leave the callee, so this comes before the frame goes to the path.
    #[inline(always)]
    pub(crate) fn settle(&mut self, stack: &mut StackMemory, words: &mut Words) -> bool {
        if self.slot == 0 {
            return true;
        }
        match read(self.slot, stack, words) {
            Some(value) => {
                *self = Self::known(value);
                true
            }
            None => false,
        }
    }
}

/// Reads a word that a walk depends on.
#[inline(always)]
pub(crate) fn read(address: u64, stack: &mut StackMemory, words: &mut Words) -> Option<u64> {
    let value = stack.read(address)?;
    words.push(address, value);
    Some(value)
}
