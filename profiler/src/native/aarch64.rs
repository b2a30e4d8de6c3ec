//! AArch64.

use object::Endianness;
use object::elf::{EM_AARCH64, FileHeader64, Machine};
use std::arch::asm;

/// Of programs for this machine.
pub(crate) const MACHINE: Machine = EM_AARCH64;
/// As a user knows it.
pub(crate) const NAME: &str = "AArch64";

/// How a program's file begins.
pub(crate) type Header = FileHeader64<Endianness>;

/// The processor's clock, as the agent reads it.
pub(crate) fn ticks() -> u64 {
    let ticks: u64;
    // SAFETY: reads a register that Linux lets programs read.
    unsafe { asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags)) };
    ticks
}

/// How long a tick takes, as the firmware says, where it is too early to know.
pub(crate) fn guessed_ns_per_tick() -> f64 {
    let hertz: u64;
    // SAFETY: as above.
    unsafe { asm!("mrs {}, cntfrq_el0", out(reg) hertz, options(nomem, nostack, preserves_flags)) };
    1e9 / hertz.max(1) as f64
}
