//! The state of floating-point arithmetic: what rounds, traps, and was met. It is the program's.
//!
//! # Safety
//! What is read and written is the processor's own state, of this thread.

/// FPSCR, where code is compiled to use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Floats(u32);

impl Floats {
    /// As a thread has it at its start: nothing traps, nothing was met.
    pub(crate) const OWN: Self = Self(0);

    /// As it is now.
    #[inline]
    pub(crate) fn now() -> Self {
        #[cfg(any(target_abi = "eabihf", target_os = "android"))]
        {
            let state: u32;
            // SAFETY: reads the state.
            unsafe {
                core::arch::asm!("vmrs {state}, fpscr", state = out(reg) state,
                    options(nostack, preserves_flags));
            }
            Self(state)
        }
        #[cfg(not(any(target_abi = "eabihf", target_os = "android")))]
        Self::OWN
    }

    #[inline]
    pub(crate) fn set(self) {
        // SAFETY: it was so before, or is as at a thread's start.
        #[cfg(any(target_abi = "eabihf", target_os = "android"))]
        unsafe {
            core::arch::asm!("vmsr fpscr, {state}", state = in(reg) self.0, options(nostack, preserves_flags));
        }
    }
}
