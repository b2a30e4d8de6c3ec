//! x86-64.

use object::Endianness;
use object::elf::{EM_X86_64, FileHeader64, Machine};

/// Of programs for this machine.
pub(crate) const MACHINE: Machine = EM_X86_64;
/// As a user knows it.
pub(crate) const NAME: &str = "x86-64";

/// How a program's file begins.
pub(crate) type Header = FileHeader64<Endianness>;

/// The processor's clock, as the agent reads it.
pub(crate) fn ticks() -> u64 {
    // SAFETY: reads a register that every x86-64 processor has.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// How long a tick takes, about, where it is too early to know.
pub(crate) fn guessed_ns_per_tick() -> f64 {
    1.0 / 3.0
}
