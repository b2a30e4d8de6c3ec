//! The state of floating-point arithmetic: what rounds, traps, and was met. It is the program's.
//!
//! # Safety
//! What is read and written is the processor's own state, of this thread.

use core::arch::asm;

/// FPCR and FPSR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Floats(u64, u64);

impl Floats {
    /// As a thread has it at its start: nothing traps, nothing was met.
    pub(crate) const OWN: Self = Self(0, 0);

    /// As it is now.
    #[inline]
    pub(crate) fn now() -> Self {
        let (control, status): (u64, u64);
        // SAFETY: reads the state.
        unsafe {
            asm!("mrs {control}, fpcr", "mrs {status}, fpsr", control = out(reg) control,
                status = out(reg) status, options(nostack, preserves_flags));
        }
        Self(control, status)
    }

    #[inline]
    pub(crate) fn set(self) {
        // SAFETY: it was so before, or is as at a thread's start.
        unsafe {
            asm!("msr fpcr, {control}", "msr fpsr, {status}", control = in(reg) self.0,
                status = in(reg) self.1, options(nostack, preserves_flags));
        }
    }
}
