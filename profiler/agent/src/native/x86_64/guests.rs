//! The stub of `clone`: see [`crate::guests`].
//!
//! # Safety
//! It changes no register but RAX, which holds no argument, the flags, and of a guest the arguments. The words that it writes lie where the guest's stack begins, where libc is about to write others.

use crate::entry::stub_section;
use crate::guests::{FLAGS, GUEST, PENDING, WITH_POINTER, begins};
use crate::hooks::{Function, ORIGINALS};
use crate::hot::{HOT, Hot};
use core::mem::offset_of;

unsafe extern "C" {
    pub(crate) fn grapnel_agent_clone();
}
core::arch::global_asm!(
    stub_section!(),
    ".balign 16",
    ".globl grapnel_agent_clone",
    ".hidden grapnel_agent_clone",
    ".type grapnel_agent_clone,@function",
    "grapnel_agent_clone:",
    ".cfi_startproc",
    "endbr64",
    "mov eax, edx",
    "and eax, {flags}",
    "cmp eax, {guest}",
    "je 3f",
    "cmp eax, {with_pointer}",
    "jne 2f",
    "cmp r9, qword ptr fs:[0]",
    "jne 2f",
    "3:",
    // Without one of these it fails.
    "test rdi, rdi",
    "jz 2f",
    "test rsi, rsi",
    "jz 2f",
    "lock inc dword ptr [rip + {pending}]",
    "mov byte ptr [rip + {hot} + {has_guests}], 1",
    // As libc puts its own there.
    "and rsi, -16",
    "sub rsi, 32",
    "mov [rsi], rdi",
    "mov [rsi + 8], rcx",
    "mov [rsi + 16], rdx",
    "mov rcx, rsi",
    "lea rdi, [rip + grapnel_agent_guest_begins]",
    "2:",
    "jmp qword ptr [rip + {originals} + {function}]",
    ".cfi_endproc",
    ".size grapnel_agent_clone, . - grapnel_agent_clone",
    // A guest begins, and goes on as if it had begun where it is to.
    ".balign 16",
    ".type grapnel_agent_guest_begins,@function",
    "grapnel_agent_guest_begins:",
    ".cfi_startproc",
    "endbr64",
    "push rbx",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset rbx, 0",
    "mov rbx, rdi",
    "mov rdi, [rbx + 16]",
    "call {begins}",
    "mov rax, [rbx]",
    "mov rdi, [rbx + 8]",
    "pop rbx",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_restore rbx",
    "jmp rax",
    ".cfi_endproc",
    ".size grapnel_agent_guest_begins, . - grapnel_agent_guest_begins",
    ".text",
    flags = const FLAGS,
    guest = const GUEST,
    with_pointer = const WITH_POINTER,
    pending = sym PENDING,
    begins = sym begins,
    hot = sym HOT,
    has_guests = const offset_of!(Hot, has_guests),
    originals = sym ORIGINALS,
    function = const size_of::<usize>() * Function::Clone as usize,
);
