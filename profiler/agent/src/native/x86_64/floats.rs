//! The state of floating-point arithmetic: what rounds, traps, and was met. It is the program's.
//!
//! # Safety
//! What is read and written is the processor's own state, of this thread.

use core::arch::asm;
use core::ptr;

/// MXCSR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Floats(u32);

impl Floats {
    /// As a thread has it at its start: nothing traps, nothing was met.
    pub(crate) const OWN: Self = Self(0x1f80);

    /// As it is now.
    #[inline]
    pub(crate) fn now() -> Self {
        let mut state = 0u32;
        // SAFETY: writes a word.
        unsafe { asm!("stmxcsr [{at}]", at = in(reg) &raw mut state, options(nostack, preserves_flags)) };
        Self(state)
    }

    #[inline]
    pub(crate) fn set(self) {
        // SAFETY: it was so before, or is as at a thread's start.
        unsafe {
            asm!("ldmxcsr [{at}]", at = in(reg) ptr::from_ref(&self.0), options(nostack, preserves_flags))
        };
    }
}
