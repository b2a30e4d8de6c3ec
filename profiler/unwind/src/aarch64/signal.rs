//! The frame that the kernel leaves a thread's state in while a signal handler runs (`struct rt_sigframe` in
//! `arch/arm64/kernel/signal.c`), and the code that returns from it.

use crate::module::ModuleTable;
use crate::probe::copied;

/// `mov x8, #139; svc #0`: `rt_sigreturn`.
const TRAMPOLINE: u64 = 0xd400_0001_d280_1168;

/// Whether a handler that returns to `pc` returns to what a signal stopped.
///
/// Off the hot path: asks the kernel whether the code can be read.
pub(super) fn is_trampoline(pc: u64) -> bool {
    if !cfg!(target_pointer_width = "64") || !pc.is_multiple_of(4) {
        return false;
    }
    copied(pc).is_some_and(|code| u64::from_ne_bytes(code) == TRAMPOLINE)
}

/// The same of code that needs no question, since it is a module's; nothing of other code.
pub(super) fn is_trampoline_in(table: &ModuleTable, pc: u64) -> Option<bool> {
    Some(pc.is_multiple_of(4) && table.word_of_code(pc)? == TRAMPOLINE)
}

/// Where the registers of the stopped code are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Saved {
    /// That of x0: behind `siginfo` (128 bytes), the head of `ucontext` (176) and `fault_address` (8).
    registers: u64,
}

impl Saved {
    /// In the signal frame at this stack pointer.
    pub(super) fn at(sp: u64) -> Self {
        Saved { registers: sp.wrapping_add(128 + 176 + 8) }
    }

    /// x0 to x30.
    pub(super) fn register(self, number: u64) -> u64 {
        self.registers.wrapping_add(8 * number)
    }

    pub(super) fn sp(self) -> u64 {
        self.register(31)
    }

    pub(super) fn pc(self) -> u64 {
        self.register(32)
    }
}
