//! r7 and r11, of which each function may use one as its frame pointer: r7 in T32 code, r11 in A32 code.

use crate::memo::Words;
use crate::stack::StackMemory;

/// Both registers, as one value: r7 in the low half, r11 in the high one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FramePointer(u64);

impl FramePointer {
    #[inline(always)]
    pub(crate) fn pair(r7: u32, r11: u32) -> u64 {
        u64::from(r7) | (u64::from(r11) << 32)
    }

    #[inline(always)]
    pub(crate) fn known(value: u64) -> Self {
        FramePointer(value)
    }

    #[inline(always)]
    pub(crate) fn value(self) -> u64 {
        self.0
    }

    #[inline(always)]
    pub(crate) fn r7(self) -> u64 {
        self.0 & 0xffff_ffff
    }

    #[inline(always)]
    pub(crate) fn r11(self) -> u64 {
        self.0 >> 32
    }

    #[inline(always)]
    pub(crate) fn set_r7(&mut self, value: u64) {
        self.0 = value & 0xffff_ffff | self.0 & !0xffff_ffff;
    }

    #[inline(always)]
    pub(crate) fn set_r11(&mut self, value: u64) {
        self.0 = value << 32 | self.0 & 0xffff_ffff;
    }

    /// Each step reads what it needs.
    #[inline(always)]
    pub(crate) fn settle(&mut self, _: &mut StackMemory, _: &mut Words) -> bool {
        true
    }
}

/// Reads a word of 32 bits that a walk depends on.
#[inline(always)]
pub(super) fn read(address: u64, stack: &mut StackMemory, words: &mut Words) -> Option<u64> {
    let value = stack.read(address)?;
    words.push(address, value);
    Some(value & 0xffff_ffff)
}
