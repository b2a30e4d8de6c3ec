//! The frame that the kernel leaves a thread's state in while a signal handler runs (`struct sigframe` and `rt_sigframe`
//! in `arch/arm/kernel/signal.h`), and the code that returns from it.
//!
//! glibc's own trampolines have unwind tables, and are known here as what a handler without tables returns to. The rest is for
//! those of the kernel, of musl and of bionic.

use super::plain;
use crate::probe::copied;

/// The bit of the program status register that says T32.
pub(super) const T32: u64 = 1 << 5;

/// Of `ucontext`, in front of r0: flags, link, the alternate stack, and three words of `sigcontext`.
const TO_REGISTERS: u64 = 4 * (1 + 1 + 3 + 3);
const SIGINFO: u64 = 128;

/// Where the registers of the stopped code are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Saved {
    registers: u64,
}

impl Saved {
    /// r0 to r15.
    pub(super) fn register(self, number: u64) -> u64 {
        self.registers.wrapping_add(4 * number)
    }

    /// The program status register.
    pub(super) fn status(self) -> u64 {
        self.register(16)
    }
}

/// Whether a handler that returns to `pc` returns to what a signal stopped.
///
/// Off the hot path: asks the kernel whether the code can be read.
pub(super) fn is_trampoline(pc: u64) -> bool {
    saved(pc, 0).is_some()
}

/// Where the registers are, if `pc` is a signal's trampoline and `sp` what it has.
pub(super) fn saved(pc: u64, sp: u64) -> Option<Saved> {
    let address = plain(pc);
    let [a, b, c, d, e, f, g, h] = copied(address)?;
    let (first, second) = (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]));
    let siginfo = if pc != address {
        // `movs r7, #n; svc #0`; glibc has the wide form of the first.
        match (first, second as u16) {
            (0xdf00_27ad, _) | (0x07ad_f04f, 0xdf00) => SIGINFO,
            (0xdf00_2777, _) | (0x0777_f04f, 0xdf00) => 0,
            _ => return None,
        }
    } else {
        // `mov r7, #n; svc #0`, or with the number in the instruction, as the old ABI has it.
        match (first, second) {
            (0xe3a0_70ad, 0xef00_0000 | 0xef90_00ad) => SIGINFO,
            (0xe3a0_7077, 0xef00_0000 | 0xef90_0077) => 0,
            _ => return None,
        }
    };
    Some(Saved { registers: sp.wrapping_add(siginfo + TO_REGISTERS) })
}
