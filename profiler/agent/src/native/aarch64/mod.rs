//! AArch64, AAPCS64.

pub(crate) mod entry;
pub(crate) mod floats;
pub(crate) mod guests;
#[cfg(grapnel_attached)]
pub(crate) mod instead;
#[cfg(not(grapnel_attached))]
pub(crate) mod jumps;
pub(crate) mod kept;
#[path = "../kernel64.rs"]
pub(crate) mod kernel;
pub(crate) mod let_by;
#[cfg(grapnel_cdylib)]
mod library;
#[cfg(not(grapnel_attached))]
pub(crate) mod loading;
pub(crate) mod quick;
#[cfg(not(grapnel_attached))]
pub(crate) mod restorer;
pub(crate) mod sandbox;
pub(crate) mod slots;
#[cfg(not(grapnel_attached))]
pub(crate) mod tls;

use core::ffi::c_void;
use core::ptr;
use syscalls::Sysno;

/// How many bits of an address there are, but where a program asks for one beyond.
pub(crate) const ADDRESS_BITS: u32 = 48;

/// Bits of a pointer that the processor takes for a tag: Android gives out blocks with one.
pub(crate) const TAGS: usize = 0xff << 56;

/// `e_machine` of programs that the agent can go along into.
#[cfg(not(grapnel_attached))]
pub(crate) const MACHINE: u16 = 183;

/// The system call that takes a path and gives a `stat`, which has a name for each machine.
pub(crate) const FSTATAT: Sysno = Sysno::fstatat;

/// The system calls of [`crate::sandbox`]'s list that have other names elsewhere.
pub(crate) const CALLS: &[Sysno] =
    &[Sysno::fstat, Sysno::geteuid, Sysno::mmap, FSTATAT, Sysno::rt_sigtimedwait];

/// Nothing has to be known before a hook is in.
pub(crate) fn prepare() {}

/// The processor's clock.
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    let ticks: u64;
    // SAFETY: reads a register.
    unsafe {
        core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags))
    };
    ticks
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
    // SAFETY: PRFM never faults (Arm ARM, C6.2, "PRFM").
    unsafe {
        core::arch::asm!(
            "prfm pldl1keep, [{entry}]",
            entry = in(reg) ptr::from_ref(entry),
            options(nostack, preserves_flags, readonly)
        );
    }
}

/// The length of a call that names its function.
pub(crate) const CALL: usize = 4;

/// The function that is named by the call that returns to an address, if that is such a call.
///
/// # Safety
/// The [`CALL`] bytes before it can be read.
pub(crate) unsafe fn called_before(return_address: usize) -> Option<usize> {
    const BL: u32 = 0b10_0101;
    let at = return_address - CALL;
    let instruction: *const u32 = ptr::with_exposed_provenance(at);
    // SAFETY: the caller's promise; code is aligned, and little-endian.
    let word = unsafe { *instruction };
    // The lower 26 bits are the distance in words.
    let distance = (word << 6).cast_signed() >> 4;
    (word >> 26 == BL).then(|| at.wrapping_add_signed(distance as isize))
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
    // SAFETY: the caller's promise; x20 survives the call.
    unsafe {
        core::arch::asm!(
            "mov x21, sp",
            "mov sp, x20",
            "blr {function}",
            "mov sp, x21",
            function = in(reg) function,
            in("x20") top,
            out("x21") _,
            in("x0") argument,
            clobber_abi("C"),
        );
    }
}

/// The thread pointer, and the thread's id, which lies so many bytes before it.
///
/// # Safety
/// It does.
#[cfg(grapnel_attached)]
#[inline(always)]
pub(crate) unsafe fn thread(id_at: u32) -> (usize, u32) {
    let (pointer, thread): (usize, u32);
    // SAFETY: the id lies where the caller says. Both are the same as long as the thread lives; a fork changes the id before
    // anybody can ask.
    unsafe {
        core::arch::asm!(
            "mrs {pointer}, tpidr_el0",
            "sub {at}, {pointer}, {at}",
            "ldr {thread:w}, [{at}]",
            pointer = out(reg) pointer,
            thread = lateout(reg) thread,
            at = inout(reg) u64::from(id_at) => _,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    (pointer, thread)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_call_names_its_function() {
        // BL .-8, BL .+12, BLR X16, B .+8
        let code = [0x97ff_fffe_u32, 0x9400_0003, 0xd63f_0200, 0x1400_0002];
        let start = code.as_ptr().expose_provenance();
        // SAFETY: the words before are the array's.
        let called = |count: usize| unsafe { super::called_before(start + 4 * count) };
        assert_eq!([called(1), called(2)], [Some(start - 8), Some(start + 4 + 12)]);
        assert_eq!([called(3), called(4)], [None; 2]);
    }

    #[test]
    fn the_way_in_which_libc_keeps_a_stack_pointer_is_found_out() {
        assert!(super::jumps::prepare());
    }
}
