//! x86-64, System V ABI.

pub(crate) mod entry;
pub(crate) mod floats;
#[cfg(not(grapnel_attached))]
pub(crate) mod gates;
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

use crate::hooks;
use core::ffi::c_void;
use core::ptr;
use syscalls::Sysno;

/// How many bits of an address there are, but where a program asks for one beyond.
pub(crate) const ADDRESS_BITS: u32 = 47;

/// Bits of a pointer that the processor takes for a tag.
pub(crate) const TAGS: usize = 0;

/// `e_machine` of programs that the agent can go along into.
#[cfg(not(grapnel_attached))]
pub(crate) const MACHINE: u16 = 62;

/// The system call that takes a path and gives a `stat`, which has a name for each machine.
pub(crate) const FSTATAT: Sysno = Sysno::newfstatat;

/// The system calls of [`crate::sandbox`]'s list that have other names elsewhere.
pub(crate) const CALLS: &[Sysno] =
    &[Sysno::fstat, Sysno::geteuid, Sysno::mmap, FSTATAT, Sysno::rt_sigtimedwait, Sysno::arch_prctl];

/// Nothing has to be known before a hook is in.
pub(crate) fn prepare() {}

/// The processor's clock.
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    // SAFETY: reads a register.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The stack pointer.
#[inline(always)]
pub(crate) fn stack_pointer() -> usize {
    let here: usize;
    // SAFETY: reads the stack pointer.
    unsafe { core::arch::asm!("mov {}, rsp", out(reg) here, options(nomem, nostack, preserves_flags)) };
    here
}

/// Asks the processor for an entry that will be looked at soon.
#[inline(always)]
pub(crate) fn prefetch<T>(entry: &T) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a prefetch never faults (Intel SDM, PREFETCHh), and every x86-64 processor has SSE.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(ptr::from_ref(entry).cast()) }
}

/// The length of a call that names its function.
pub(crate) const CALL: usize = 5;

/// The function that is named by the call that returns to an address, if that is such a call.
///
/// # Safety
/// The [`CALL`] bytes before it can be read.
pub(crate) unsafe fn called_before(return_address: usize) -> Option<usize> {
    const CALL_REL32: u8 = 0xe8;
    let instruction: *const [u8; CALL] = ptr::with_exposed_provenance(return_address - CALL);
    // SAFETY: the caller's promise.
    let [opcode, displacement @ ..] = unsafe { *instruction };
    let target = return_address.wrapping_add_signed(i32::from_le_bytes(displacement) as isize);
    (opcode == CALL_REL32).then_some(target)
}

/// The most bytes of a call that [`is_named_call`] looks at.
pub(crate) const NAMED_CALL: usize = 6;

/// Whether the call that returns to an address names the function that it calls, one that `may_be` called here, or by a word of its own: then
/// who wrote the one knew the other.
///
/// # Safety
/// The [`NAMED_CALL`] bytes before it can be read.
pub(crate) unsafe fn is_named_call(return_address: usize, may_be: impl Fn(usize) -> bool) -> bool {
    const CALL_BY_WORD: [u8; 2] = [0xff, 0x15];
    let instruction: *const [u8; NAMED_CALL] = ptr::with_exposed_provenance(return_address - NAMED_CALL);
    // SAFETY: the caller's promise.
    let is_by_word = unsafe { *instruction }.starts_with(&CALL_BY_WORD);
    // SAFETY: as above.
    is_by_word || unsafe { called_before(return_address) }.is_some_and(may_be)
}

/// Whether all that a function does is to return.
pub(crate) fn returns_at_once(function: usize) -> bool {
    const RETURNS: [&[u8]; 4] =
        [&[0xc3], &[0xf3, 0xc3], &[0xf3, 0x0f, 0x1e, 0xfa, 0xc3], &[0xf3, 0x0f, 0x1e, 0xfa, 0xf3, 0xc3]];
    // SAFETY: code of the program, which was about to be hooked.
    let code = hooks::has_first_bytes(function).then(|| unsafe { hooks::first_bytes(function) });
    code.is_some_and(|code| RETURNS.iter().any(|returns| code.to_le_bytes().starts_with(returns)))
}

/// Calls a function on another stack, whose end is `top`.
///
/// # Safety
/// The stack is aligned and nobody else's, the function neither unwinds nor returns twice, and takes `argument`.
pub(crate) unsafe fn call_on(top: usize, function: unsafe extern "C" fn(*mut c_void), argument: *mut c_void) {
    // SAFETY: the caller's promise; r12 survives the call.
    unsafe {
        core::arch::asm!(
            "xchg rsp, r12",
            "call {function}",
            "mov rsp, r12",
            function = in(reg) function,
            inout("r12") top => _,
            in("rdi") argument,
            clobber_abi("C"),
        );
    }
}

/// The thread pointer, and the thread's id, which lies so many bytes behind it.
///
/// # Safety
/// It does.
#[cfg(grapnel_attached)]
#[inline(always)]
pub(crate) unsafe fn thread(id_at: u32) -> (usize, u32) {
    let (pointer, thread): (usize, u32);
    // SAFETY: the ABI has the thread pointer itself at its own address, and the id lies where the caller says. Both
    // are the same as long as the thread lives; a fork changes the id before anybody can ask.
    unsafe {
        core::arch::asm!(
            "mov {pointer}, qword ptr fs:[0]",
            "mov {thread:e}, dword ptr fs:[{at:r}]",
            pointer = out(reg) pointer,
            thread = lateout(reg) thread,
            at = in(reg) u64::from(id_at),
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    (pointer, thread)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_call_names_its_function() {
        // call .-3, jmp .-3
        static CODE: [u8; 10] = [0xe8, 0xf8, 0xff, 0xff, 0xff, 0xe9, 0xf8, 0xff, 0xff, 0xff];
        let start = core::hint::black_box(&CODE).as_ptr().expose_provenance();
        // SAFETY: the bytes before are the array's.
        let called = |count: usize| unsafe { super::called_before(start + 5 * count) };
        assert_eq!([called(1), called(2)], [Some(start - 3), None]);
    }
}
