//! Thread-local state: initial-exec, zero in each new thread, without a destructor.
//!
//! `thread_local!` would call `__tls_get_addr`, which may allocate; a variable in `.tbss` reached through its
//! offset from the thread pointer never does.
//!
//! # Safety
//! [`get`] returns this thread's own block. Only the thread itself uses it (its signal handlers included), so
//! `Cell`s suffice, and the pointer is not kept beyond a call.

use crate::context::Context;
use crate::entry::SavedRegisters;
use core::cell::Cell;
use core::ptr;

/// How many recordings of one thread may be inside one another: one, and one by a signal handler in its middle.
pub(crate) const LEVELS: usize = 2;

/// What a thread keeps when only some allocations are recorded; see [`crate::sampling`].
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Sampling {
    /// The bytes that are left until the next allocation to be recorded; below 0 in that one.
    pub(crate) left: Cell<i64>,
    /// Where the thread is in its random numbers; 0 before the first.
    pub(crate) random: Cell<u64>,
    /// The mean that the gap was drawn with.
    pub(crate) mean: Cell<u64>,
    /// What records cost since the last look at that, in ticks of the processor's clock.
    pub(crate) own_ticks: Cell<u64>,
    /// How many there were.
    pub(crate) records: Cell<u64>,
    /// The clocks at the last look: ticks, and in nanoseconds real time and the thread's.
    pub(crate) looked: Cell<(u64, u64, u64)>,
}

/// A thread's state. All zeroes at the start. What an event needs comes first, in one cache line.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Tls {
    /// What the thread records with, by level; of the life `life`.
    pub(crate) contexts: [Cell<*mut Context>; LEVELS],
    /// The life that `contexts` belong to; see [`crate::life`].
    pub(crate) life: Cell<u64>,
    /// How many recordings this thread is in the middle of.
    pub(crate) level: Cell<usize>,
    /// Where to go on when the agent meets a fault of its own; null while none of its code runs.
    pub(crate) rescue: Cell<*const SavedRegisters>,
    /// The stack pointer from which libc's own code was called; see [`crate::hooks`]. 0 when it was not.
    pub(crate) inside: Cell<usize>,
    /// Where the stub of each level's recording saved its registers.
    pub(crate) entries: [Cell<usize>; LEVELS],
    /// How many locks this thread holds: while it is not 0, signals are blocked.
    pub(crate) locks: Cell<usize>,
    /// The signal mask as it was before the first of them.
    pub(crate) mask: Cell<u64>,
    /// Memory for an environment too large for the stack, and its length in bytes; used again each time.
    pub(crate) environment: Cell<(*mut u8, usize)>,
    pub(crate) sampling: Sampling,
    _pad: [u64; 4],
}

const _: () = assert!(size_of::<Tls>() == 192);

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".section .tbss.grapnel_agent_tls,\"awT\",@nobits",
    ".balign 64",
    ".globl grapnel_agent_tls",
    ".hidden grapnel_agent_tls",
    ".type grapnel_agent_tls,@object",
    ".size grapnel_agent_tls,192",
    "grapnel_agent_tls:",
    ".zero 192",
    ".text",
);

/// This thread's block.
#[inline(always)]
pub(crate) fn get() -> &'static Tls {
    let address: usize;
    // SAFETY: reads the thread pointer and the variable's offset from it, which the loader filled in. Both are the same
    // as long as the thread lives, so that memory is none of the compiler's concern: one look per call is enough.
    unsafe {
        core::arch::asm!(
            "mov {address}, qword ptr [rip + grapnel_agent_tls@GOTTPOFF]",
            "add {address}, qword ptr fs:[0]",
            address = out(reg) address,
            options(pure, nomem, nostack),
        );
    }
    // SAFETY: the block is 192 zeroed bytes of this thread, aligned to 64, and lives as long as the thread.
    unsafe { &*ptr::with_exposed_provenance::<Tls>(address) }
}
