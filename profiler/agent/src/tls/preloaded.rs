//! The block of a thread in a process into which the dynamic linker loaded the agent: initial-exec.
//!
//! `thread_local!` would call `__tls_get_addr`, which may allocate; a variable in `.tbss` reached through its
//! offset from the thread pointer never does.
//!
//! # Safety
//! As in [`crate::tls`].

use super::Tls;
use core::ptr;

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

/// Whether a block is that of several threads: each has its own.
#[inline(always)]
pub(crate) fn is_shared(_tls: &Tls) -> bool {
    false
}
