//! Registers that a call may change by the ABI, kept: for functions that lie beside their callers.
//!
//! A compiler that has a function and its callers before it may know which registers the function leaves as they are, and
//! rely on it (gcc's `-fipa-ra`, part of `-O2`). That is so of functions that nothing can take the place of: those of
//! the program itself, and of libraries that were linked for it. A stub on such a function must leave alone all that the function
//! leaves alone, but for the flags, which no compiler counts on, LR, which the call itself changes, and R12, which a linker may
//! change at any call.
//!
//! So these stubs keep R0 to R3, D0 to D7 and, on processors that have them, D16 to D31.
//!
//! The frame below [`SavedRegisters`](super::entry::SavedRegisters), which has R0 to R3, from the stack pointer:
//!
//! | offset | what |
//! |---|---|
//! | 0 | the stub's own, so many bytes |
//! | that many | D0 to D7 |
//! | 64 more | D16 to D31 |
//! | 192 more | the saved registers |

use core::sync::atomic::{AtomicBool, Ordering};

unsafe extern "C" {
    /// Whether the processor has D16 to D31.
    safe static grapnel_agent_vectors: AtomicBool;
}

core::arch::global_asm!(
    ".bss",
    ".globl grapnel_agent_vectors",
    ".hidden grapnel_agent_vectors",
    ".type grapnel_agent_vectors,%object",
    ".size grapnel_agent_vectors,1",
    "grapnel_agent_vectors:",
    ".zero 1",
    ".text",
);

/// Learns which registers there are. Before a hook is in.
pub(crate) fn prepare() {
    /// `HWCAP_VFPD32` of the kernel's `uapi/asm/hwcap.h`.
    const VECTORS_32: libc::c_ulong = 1 << 19;
    // SAFETY: looks through what the kernel gave the process at its start.
    let has = unsafe { libc::getauxval(libc::AT_HWCAP) } & VECTORS_32 != 0;
    grapnel_agent_vectors.store(has, Ordering::Relaxed);
}

/// Assembly that saves all but R0 to R3, in a frame that is there and has so many bytes of the stub's own. Changes LR and R12.
macro_rules! keep {
    ($own:literal) => {
        concat!(
            "add ip, sp, #",
            $own,
            "\n",
            "vstmia ip!, {{d0-d7}}\n",
            $crate::native::entry::address!("lr", "grapnel_agent_vectors"),
            "ldrb lr, [lr]\n",
            "cmp lr, #0\n",
            "beq 96f\n",
            "vstmia ip, {{d16-d31}}\n",
            "96:\n"
        )
    };
}
pub(crate) use keep;

/// Assembly that brings all back but R0. Changes LR and R12.
macro_rules! bring_back {
    ($own:literal) => {
        concat!(
            "add ip, sp, #",
            $own,
            "\n",
            "vldmia ip!, {{d0-d7}}\n",
            $crate::native::entry::address!("lr", "grapnel_agent_vectors"),
            "ldrb lr, [lr]\n",
            "cmp lr, #0\n",
            "beq 96f\n",
            "vldmia ip, {{d16-d31}}\n",
            "96:\n",
            "ldr r1, [sp, #",
            $own,
            " + 204]\nldr r2, [sp, #",
            $own,
            " + 208]\nldr r3, [sp, #",
            $own,
            " + 212]\n"
        )
    };
}
pub(crate) use bring_back;
