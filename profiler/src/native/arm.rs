//! 32-bit Arm.

use object::Endianness;
use object::elf::{EM_ARM, FileHeader32, Machine};
use std::arch::asm;
use std::sync::OnceLock;

/// Of programs for this machine.
pub(crate) const MACHINE: Machine = EM_ARM;
/// As a user knows it.
pub(crate) const NAME: &str = "32-bit Arm";

/// How a program's file begins.
pub(crate) type Header = FileHeader32<Endianness>;

/// Whether the processor has a clock that programs may read: the kernel says so where it has that make events
/// (`HWCAP_EVTSTRM` of its `uapi/asm/hwcap.h`).
fn has_counter() -> bool {
    const EVENTS: libc::c_ulong = 1 << 21;
    static HAS: OnceLock<bool> = OnceLock::new();
    // SAFETY: looks through what the kernel gave the process at its start.
    *HAS.get_or_init(|| unsafe { libc::getauxval(libc::AT_HWCAP) } & EVENTS != 0)
}

/// The clock that the agent reads: the processor's, or else nanoseconds of the kernel's.
pub(crate) fn ticks() -> u64 {
    if !has_counter() {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is live for the call.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
        return time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
    }
    let (low, high): (u32, u32);
    // SAFETY: reads a register that is there and that Linux lets programs read.
    unsafe {
        asm!("mrrc p15, 1, {}, {}, c14", out(reg) low, out(reg) high, options(nomem, nostack, preserves_flags));
    }
    u64::from(low) | u64::from(high) << 32
}

/// How long a tick takes, as the firmware says, where it is too early to know.
pub(crate) fn guessed_ns_per_tick() -> f64 {
    if !has_counter() {
        return 1.0;
    }
    let hertz: u32;
    // SAFETY: as above.
    unsafe { asm!("mrc p15, 0, {}, c14, c0, 0", out(reg) hertz, options(nomem, nostack, preserves_flags)) };
    1e9 / f64::from(hertz.max(1))
}
