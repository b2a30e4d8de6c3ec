//! 32-bit Arm, AAPCS32, in a process where A32 and T32 code live side by side. The stubs are A32 code. Nobody is attached to here:
//! the agent is one that the dynamic linker loaded.
//!
//! Bit 0 of a function's address, and of one that a call returns to, says that the code there is T32.

pub(crate) mod entry;
pub(crate) mod floats;
pub(crate) mod guests;
pub(crate) mod jumps;
pub(crate) mod kept;
pub(crate) mod kernel;
#[cfg(grapnel_cdylib)]
mod library;
pub(crate) mod loading;
pub(crate) mod quick;
pub(crate) mod restorer;
pub(crate) mod sandbox;
pub(crate) mod slots;
pub(crate) mod tls;

pub(crate) use kernel::{CALLS, FSTATAT};

use crate::sys;
use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// How many bits of an address there are.
pub(crate) const ADDRESS_BITS: u32 = 32;

/// Bits of a pointer that the processor takes for a tag.
pub(crate) const TAGS: usize = 0;

/// `e_machine` of programs that the agent can go along into.
pub(crate) const MACHINE: u16 = 40;

/// What has to be known before a hook is in.
pub(crate) fn prepare() {
    kept::prepare();
}

/// Which clock [`ticks`] reads.
static CLOCK: AtomicU8 = AtomicU8::new(clock::UNKNOWN);
/// The last moment that was known of the kernel's.
static LAST: AtomicU64 = AtomicU64::new(0);

mod clock {
    pub(super) const UNKNOWN: u8 = 0;
    /// The processor's.
    pub(super) const COUNTER: u8 = 1;
    /// Nanoseconds of the kernel's.
    pub(super) const KERNEL: u8 = 2;
}

/// The processor's clock where it is known to have one that programs may read, or else the kernel's: before the generic timer
/// (Arm ARM DDI 0406, B8) there was none.
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    if CLOCK.load(Ordering::Relaxed) != clock::COUNTER && !has_counter() {
        return kernels_ticks();
    }
    let (low, high): (u32, u32);
    // SAFETY: reads a register (CNTVCT) that is there and that the kernel lets programs read.
    unsafe {
        core::arch::asm!("mrrc p15, 1, {}, {}, c14", out(reg) low, out(reg) high, options(nomem, nostack, preserves_flags));
    }
    u64::from(low) | u64::from(high) << 32
}

/// Whether the kernel has the timer make events, which it says where it has set it up for programs.
#[cold]
fn has_counter() -> bool {
    /// `HWCAP_EVTSTRM` of the kernel's `uapi/asm/hwcap.h`.
    const EVENTS: libc::c_ulong = 1 << 21;
    if CLOCK.load(Ordering::Relaxed) == clock::KERNEL {
        return false;
    }
    // SAFETY: looks through what the kernel gave the process at its start.
    let has = unsafe { libc::getauxval(libc::AT_HWCAP) } & EVENTS != 0;
    CLOCK.store(if has { clock::COUNTER } else { clock::KERNEL }, Ordering::Relaxed);
    has
}

#[inline(never)]
fn kernels_ticks() -> u64 {
    // Where a filter is against asking, time stands still.
    let Some(now) = sys::clock_ns(libc::CLOCK_MONOTONIC) else { return LAST.load(Ordering::Relaxed) };
    LAST.store(now, Ordering::Relaxed);
    now
}

/// The stack pointer.
#[inline(always)]
pub(crate) fn stack_pointer() -> usize {
    let here: usize;
    // SAFETY: reads the stack pointer.
    unsafe { core::arch::asm!("mov {}, sp", out(reg) here, options(nomem, nostack, preserves_flags)) };
    here
}

/// Asks the processor for an entry that will be looked at soon.
#[inline(always)]
pub(crate) fn prefetch<T>(entry: &T) {
    // SAFETY: PLD never faults (Arm ARM DDI 0406, A8.8.126).
    unsafe {
        core::arch::asm!(
            "pld [{entry}]",
            entry = in(reg) ptr::from_ref(entry),
            options(nostack, preserves_flags, readonly)
        );
    }
}

/// The length of a call that names its function.
pub(crate) const CALL: usize = 4;

/// The function that is named by the call that returns to an address, if that is such a call, as its address says in which
/// instruction set it is.
///
/// # Safety
/// The [`CALL`] bytes before it can be read.
pub(crate) unsafe fn called_before(return_address: usize) -> Option<usize> {
    let at = (return_address & !1) - CALL;
    let halves: *const [u16; 2] = ptr::with_exposed_provenance(at);
    // SAFETY: the caller's promise; code is little-endian, and aligned to two bytes.
    let [first, second] = unsafe { *halves }.map(u32::from);
    if return_address & 1 == 0 {
        called_in_a32(at, first | second << 16)
    } else {
        called_in_t32(at, first, second)
    }
}

/// BL and BLX (Arm ARM DDI 0406, A8.8.25, encodings A1 and A2).
fn called_in_a32(at: usize, word: u32) -> Option<usize> {
    const PC: usize = 8;
    // The lower 24 bits are the distance in words.
    let distance = (word << 8).cast_signed() >> 6;
    let target = at.wrapping_add(PC).wrapping_add_signed(distance as isize);
    match word >> 24 {
        0xeb => Some(target),
        0xfa => Some(target | 1),
        0xfb => Some((target + 2) | 1),
        _ => None,
    }
}

/// The same, encodings T1 and T2.
fn called_in_t32(at: usize, first: u32, second: u32) -> Option<usize> {
    const PC: usize = 4;
    if first >> 11 != 0b11110 || second >> 14 != 0b11 {
        return None;
    }
    let sign = first >> 10 & 1;
    let upper = |bit: u32| !(second >> bit ^ sign) & 1;
    let distance =
        sign << 24 | upper(13) << 23 | upper(11) << 22 | (first & 0x3ff) << 12 | (second & 0x7ff) << 1;
    let distance = ((distance << 7).cast_signed() >> 7) as isize;
    let here = at.wrapping_add(PC);
    match second >> 12 & 1 {
        1 => Some(here.wrapping_add_signed(distance) | 1),
        // To A32 code, counted from a whole word.
        _ if second & 1 == 0 => Some((here & !3).wrapping_add_signed(distance)),
        _ => None,
    }
}

/// The most bytes of a call that [`is_named_call`] looks at.
pub(crate) const NAMED_CALL: usize = CALL;

/// Whether the call that returns to an address names the function that it calls: then who wrote the one knew the other.
///
/// # Safety
/// The [`NAMED_CALL`] bytes before it can be read.
pub(crate) unsafe fn is_named_call(return_address: usize, _may_be: impl Fn(usize) -> bool) -> bool {
    // SAFETY: the caller's promise.
    unsafe { called_before(return_address) }.is_some()
}

/// Not asked: a jump takes no more than a return does.
pub(crate) fn returns_at_once(_function: usize) -> bool {
    false
}

/// Calls a function on another stack, whose end is `top`.
///
/// # Safety
/// The stack is aligned and nobody else's, the function neither unwinds nor returns twice, and takes `argument`.
pub(crate) unsafe fn call_on(top: usize, function: unsafe extern "C" fn(*mut c_void), argument: *mut c_void) {
    unsafe extern "C" {
        fn grapnel_agent_call_on(
            argument: *mut c_void,
            top: usize,
            function: unsafe extern "C" fn(*mut c_void),
        );
    }
    // SAFETY: the caller's promise.
    unsafe { grapnel_agent_call_on(argument, top, function) }
}

core::arch::global_asm!(
    ".text",
    entry::begin!("grapnel_agent_call_on"),
    ".save {{r4, lr}}",
    "push {{r4, lr}}",
    ".setfp r4, sp",
    "mov r4, sp",
    "mov sp, r1",
    "blx r2",
    "mov sp, r4",
    "pop {{r4, pc}}",
    entry::end!("grapnel_agent_call_on"),
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_names_its_function() {
        // BL .-8, BL .+12, BLX .+6, BX LR
        let code = [0xebff_fffc_u32, 0xeb00_0001, 0xfb00_0000 - 1, 0xe12f_ff1e];
        let start = code.as_ptr().expose_provenance();
        // SAFETY: the words before are the array's.
        let called = |count: usize| unsafe { called_before(start + 4 * count) };
        assert_eq!([called(1), called(2)], [Some(start - 8), Some(start + 4 + 12)]);
        assert_eq!(called(3), Some((start + 8 + 8 - 2) | 1));
        assert_eq!(called(4), None);
        // BL .-8, BL .+12, BLX .+12 from a whole word, BX LR and NOP
        let code = [0xf7ff_u16, 0xfffa, 0xf000, 0xf804, 0xf000, 0xe804, 0x4770, 0xbf00];
        let start = code.as_ptr().expose_provenance();
        // SAFETY: as above.
        let called = |count: usize| unsafe { called_before(start + 4 * count + 1) };
        assert_eq!([called(1), called(2)], [Some((start - 8) | 1), Some((start + 4 + 12) | 1)]);
        assert_eq!(called(3), Some(((start + 12) & !3) + 8));
        assert_eq!(called(4), None);
    }

    #[test]
    fn the_way_in_which_libc_keeps_a_stack_pointer_is_found_out() {
        assert!(jumps::prepare());
    }

    #[test]
    fn the_clock_goes_on() {
        let before = ticks();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(ticks() > before);
    }
}
