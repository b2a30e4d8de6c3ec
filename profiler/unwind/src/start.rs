//! Where a walk starts, and a frame as the fast rules see it.

use crate::native::Registers;

/// A frame as the fast rules see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) pc: u64,
    pub(crate) sp: u64,
    pub(crate) fp: u64,
}

/// Where a walk starts: what of [`Registers`] the fast rules need, and the rest when it is asked for.
pub trait Start {
    /// The return address.
    fn pc(&self) -> u64;
    /// The stack pointer just after the return.
    fn sp(&self) -> u64;
    /// The frame pointer; on 32-bit Arm both that may be one, r7 in the low half and r11 in the high one.
    fn fp(&self) -> u64;
    /// All registers. Off the hot path.
    fn registers(&self) -> Registers;
}

impl Start for Registers {
    #[inline(always)]
    fn pc(&self) -> u64 {
        self.cursor().pc
    }

    #[inline(always)]
    fn sp(&self) -> u64 {
        self.cursor().sp
    }

    #[inline(always)]
    fn fp(&self) -> u64 {
        self.cursor().fp
    }

    fn registers(&self) -> Registers {
        *self
    }
}
