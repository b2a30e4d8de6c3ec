//! The registers of a stopped thread.
//!
//! # Safety
//! ptrace requests that fill in a live buffer, of whose length the kernel is told.

use grapnel_analysis::leaks::Width;
use std::io;

#[cfg(target_pointer_width = "32")]
pub(crate) use super::{arm::begin_call_anew, under_way::UnderWay};
pub(crate) use crate::attach::own_mappings;
#[cfg(target_pointer_width = "64")]
pub(crate) use crate::attach::{UnderWay, begin_call_anew};

/// What is known of an architecture's registers.
struct Layout {
    /// How long they are, and pointers.
    width: Width,
    /// The general registers, as NT_PRSTATUS has them.
    names: &'static [&'static str],
    /// The place of the stack pointer among them.
    stack: usize,
    /// The set that the vector registers are in, where their words begin in it, and how many there are.
    vectors: (u32, usize, usize),
    /// How the place of the thread's own variables is known.
    thread: ThreadPointer,
    /// Where they lie from there.
    locals: Locals,
    /// Bytes below the stack pointer that are in use.
    red_zone: u64,
    /// Bits of a pointer that the processor takes for a tag.
    tags: u64,
}

enum ThreadPointer {
    /// It is one of the registers.
    Register(usize),
    /// It is another set.
    Set(u32),
    /// It is asked for by a request of its own.
    Request(libc::c_uint),
}

#[cfg(target_arch = "x86_64")]
const NATIVE: Layout = X86_64;
#[cfg(target_arch = "aarch64")]
const NATIVE: Layout = AARCH64;
#[cfg(target_arch = "arm")]
const NATIVE: Layout = ARM;

/// Where a thread's own variables lie from its thread pointer: one of the two ways of ELF's thread-local storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Locals {
    /// Right below it, and what libc keeps of the thread above (the second).
    Below,
    /// Above it, behind so many bytes, and what libc keeps of the thread below (the first).
    Above(u64),
}

impl Locals {
    /// How far below and above the thread pointer it all may reach: so many bytes of variables, and what libc keeps.
    pub(crate) fn reach(self, variables: u64, descriptor: u64) -> (u64, u64) {
        match self {
            Self::Below => (variables, descriptor),
            Self::Above(behind) => (descriptor, descriptor.max(behind.saturating_add(variables))),
        }
    }
}

/// Where they lie on this machine.
pub(crate) const LOCALS: Locals = NATIVE.locals;

/// How long words are on this machine: a process that is looked through is one of its own.
pub(crate) const WIDTH: Width = NATIVE.width;

/// Tags are taken out of pointers, unless something else is asked for.
pub(crate) const TAGS: u64 = NATIVE.tags;

/// `struct user_regs_struct` and `struct user_fpregs_struct` of sys/user.h.
#[cfg_attr(not(any(target_arch = "x86_64", test)), expect(dead_code, reason = "another machine's"))]
const X86_64: Layout = Layout {
    width: Width::Bits64,
    names: &[
        "r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi",
        "rdi", "orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base",
    ],
    stack: 19,
    vectors: (FLOATING, 20, 32),
    thread: ThreadPointer::Register(21),
    locals: Locals::Below,
    red_zone: 128,
    tags: 0,
};

/// `struct user_pt_regs` and `struct user_fpsimd_state` of asm/ptrace.h.
#[cfg_attr(not(any(target_arch = "aarch64", test)), expect(dead_code, reason = "another machine's"))]
const AARCH64: Layout = Layout {
    width: Width::Bits64,
    names: &[
        "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15",
        "x16", "x17", "x18", "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "x29",
        "x30", "sp", "pc",
    ],
    stack: 31,
    vectors: (FLOATING, 0, 64),
    // NT_ARM_TLS.
    thread: ThreadPointer::Set(0x401),
    locals: Locals::Above(16),
    red_zone: 0,
    tags: 0xff << 56,
};

/// `struct pt_regs` and `struct user_vfp` of asm/ptrace.h and asm/user.h.
#[cfg_attr(not(any(target_arch = "arm", test)), expect(dead_code, reason = "another machine's"))]
const ARM: Layout = Layout {
    width: Width::Bits32,
    names: &[
        "r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7", "r8", "r9", "r10", "r11", "r12", "sp", "lr", "pc",
    ],
    stack: 13,
    // NT_ARM_VFP.
    vectors: (0x400, 0, 64),
    // PTRACE_GET_THREAD_AREA.
    thread: ThreadPointer::Request(22),
    locals: Locals::Above(8),
    red_zone: 0,
    tags: 0,
};

/// What a thread's registers hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct Values {
    /// The general registers with their names, the stack pointer left out.
    pub(crate) general: Vec<(&'static str, u64)>,
    /// The words of the vector registers.
    pub(crate) vectors: Vec<u64>,
    /// The stack pointer.
    pub(crate) stack: u64,
    /// The lowest address of the stack that is in use.
    pub(crate) stack_end: u64,
    /// What the places of the thread's own variables are counted from.
    pub(crate) thread: u64,
}

/// `NT_PRSTATUS` and `NT_PRFPREG` of elf.h.
pub(super) const GENERAL: u32 = 1;
const FLOATING: u32 = 2;

/// Reads the registers of a thread.
///
/// # Errors
/// When it doesn't stand still, or isn't ours to ask.
pub(crate) fn read(thread: u32) -> io::Result<Values> {
    let words = set(thread, GENERAL)?;
    let at = |place: usize| words.get(place).copied().unwrap_or(0);
    let general = NATIVE.names.iter().copied().zip(words.iter().copied());
    let general =
        general.enumerate().filter(|(place, _)| *place != NATIVE.stack).map(|(_, value)| value).collect();
    let (number, first, count) = NATIVE.vectors;
    let vectors = set(thread, number).unwrap_or_default().into_iter().skip(first).take(count).collect();
    let pointer = match NATIVE.thread {
        ThreadPointer::Register(place) => at(place),
        ThreadPointer::Set(number) => set(thread, number)?.first().copied().unwrap_or(0),
        ThreadPointer::Request(request) => word(thread, request)?,
    };
    let stack = at(NATIVE.stack);
    Ok(Values { general, vectors, stack, stack_end: stack.saturating_sub(NATIVE.red_zone), thread: pointer })
}

/// A set of registers, as words.
fn set(thread: u32, number: u32) -> io::Result<Vec<u64>> {
    let mut bytes = [0u8; 1024];
    let len = transfer(libc::PTRACE_GETREGSET, thread, number, &mut bytes)?;
    let mut words = vec![0; len / WIDTH.bytes() as usize];
    WIDTH.words(&bytes[..len], &mut words);
    Ok(words)
}

/// Reads or writes a set of registers, and says how many bytes it has.
///
/// # Errors
/// When the thread doesn't stand still, or isn't ours to ask.
pub(super) fn transfer(
    request: libc::c_uint,
    thread: u32,
    number: u32,
    bytes: &mut [u8],
) -> io::Result<usize> {
    let mut buffer = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: `buffer` describes live memory, which the kernel fills in no further than said.
    match unsafe { libc::ptrace(request, thread, number as usize, &raw mut buffer) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(buffer.iov_len.min(bytes.len())),
    }
}

/// A word that a request of its own is for.
fn word(thread: u32, request: libc::c_uint) -> io::Result<u64> {
    let mut word = 0usize;
    // SAFETY: the kernel writes a word to `word`, which is live.
    match unsafe { libc::ptrace(request, thread, 0usize, &raw mut word) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(word as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_lie_on_one_side_of_the_thread_pointer() {
        assert_eq!(X86_64.locals.reach(10_000, 4096), (10_000, 4096));
        assert_eq!(AARCH64.locals.reach(10_000, 4096), (4096, 10_016));
        assert_eq!(AARCH64.locals.reach(8, 4096), (4096, 4096));
        assert_eq!(ARM.locals.reach(10_000, 4096), (4096, 10_008));
    }
}
