//! The thread-local block of an agent that the dynamic linker loaded: initial-exec. See [`crate::tls`].
//!
//! # Safety
//! Nothing but the place of the variable is read, and the word in which libc keeps a thread's id.

use super::kept::{bring_back, keep};
use crate::guests;
use crate::hot::{HOT, Hot};
use crate::tls::Tls;
use core::mem::offset_of;
use core::ptr;

core::arch::global_asm!(
    ".section .tbss.grapnel_agent_tls,\"awT\",@nobits",
    ".balign 64",
    ".globl grapnel_agent_tls",
    ".hidden grapnel_agent_tls",
    ".type grapnel_agent_tls,@object",
    ".size grapnel_agent_tls,{size}",
    "grapnel_agent_tls:",
    ".zero {size}",
    ".text",
    size = const size_of::<Tls>(),
);

/// Where this thread's block is.
#[inline(always)]
pub(crate) fn block() -> usize {
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
    address
}

/// The same, or, where there may be guests, what [`guests::block`](crate::guests::block) makes of it: which block a task has doesn't change amid a call either.
#[inline(always)]
pub(crate) fn block_of_task() -> usize {
    let address: usize;
    // SAFETY: as above; what is called changes no register but the one for the address.
    unsafe {
        core::arch::asm!(
            "mov rax, qword ptr [rip + grapnel_agent_tls@GOTTPOFF]",
            "add rax, qword ptr fs:[0]",
            "cmp byte ptr [rip + {hot} + {has_guests}], 0",
            "jne 2f",
            "3:",
            ".pushsection .text.unlikely.grapnel, \"ax\", @progbits",
            "2:",
            "call grapnel_agent_block_of_task",
            "jmp 3b",
            ".popsection",
            hot = sym HOT,
            has_guests = const offset_of!(Hot, has_guests),
            out("rax") address,
            options(pure, nomem),
        );
    }
    address
}

extern "C" fn block_of_guest(own: &'static Tls) -> usize {
    ptr::from_ref(guests::block(own)).expose_provenance()
}

core::arch::global_asm!(
    ".pushsection .text.unlikely.grapnel, \"ax\", @progbits",
    ".globl grapnel_agent_block_of_task",
    ".hidden grapnel_agent_block_of_task",
    ".type grapnel_agent_block_of_task,@function",
    "grapnel_agent_block_of_task:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset rbp, 0",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    // As above what is kept elsewhere: RDX, RSI and RDI lie behind the rest of the frame.
    "sub rsp, 416",
    "and rsp, -16",
    "mov [rsp + 384], rdx",
    "mov [rsp + 392], rsi",
    "mov [rsp + 400], rdi",
    keep!(),
    "mov rdi, rax",
    "call {block}",
    bring_back!(),
    "mov rsp, rbp",
    ".cfi_def_cfa_register rsp",
    "pop rbp",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_restore rbp",
    "ret",
    ".cfi_endproc",
    ".size grapnel_agent_block_of_task, . - grapnel_agent_block_of_task",
    ".popsection",
    block = sym block_of_guest,
);

/// The thread pointer.
#[cfg(not(grapnel_attached))]
pub(crate) fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads a word that says where it lies itself, and is the same as long as the thread lives.
    unsafe {
        core::arch::asm!(
            "mov {}, qword ptr fs:[0]",
            out(reg) pointer,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    pointer
}

/// How far behind the thread pointer each thread's block is.
pub(crate) fn offset() -> isize {
    let offset: isize;
    // SAFETY: reads what the loader filled in.
    unsafe {
        core::arch::asm!(
            "mov {offset}, qword ptr [rip + grapnel_agent_tls@GOTTPOFF]",
            offset = out(reg) offset,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    offset
}

/// Where glibc keeps a thread's id, in bytes behind the thread pointer: the same in all versions from 2.11 on.
const THREAD_AT: usize = 720;

/// Whether libc keeps the id of this thread, which is `thread`, where [`kept_id`] looks.
pub(crate) fn find_kept_id(thread: u32) -> bool {
    // SAFETY: glibc's description of a thread begins at the thread pointer, and is larger than this.
    unsafe { kept_id() == thread }
}

/// The id of this thread that libc keeps.
///
/// # Safety
/// Memory is readable there: glibc's description of a thread begins at the thread pointer, and is larger than this.
pub(crate) unsafe fn kept_id() -> u32 {
    let thread: u32;
    // SAFETY: the caller's promise.
    unsafe {
        core::arch::asm!(
            "mov {thread:e}, dword ptr fs:[{at}]",
            thread = lateout(reg) thread,
            at = const THREAD_AT,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    thread
}
