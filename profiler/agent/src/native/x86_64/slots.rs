//! The stub of functions with slots, and their thunks: see [`crate::slots`].
//!
//! # Safety
//! The stub keeps to the System V ABI on both sides, for functions of up to six whole arguments whose result is in RAX.

use super::entry::{push_saved, stub_returned};
use super::kept::{bring_back, keep};
use crate::entry::stub_section;
use crate::slots::{AGAIN, INSTEAD, SLOTS, after, again, before, personality};

unsafe extern "C" {
    pub(crate) static grapnel_agent_thunks: u8;
    pub(crate) static grapnel_agent_slot_returns: u8;
    pub(crate) static grapnel_agent_beside_thunks: u8;
    pub(crate) static grapnel_agent_beside_slot_returns: u8;
}

/// Whether the stub heeds [`AGAIN`] and [`INSTEAD`]. Not that beside a function's callers.
pub(crate) const DIRECT: bool = true;

const _: () = assert!(AGAIN == 1 << 63 && INSTEAD == 1 << 62);

/// Whether exceptions can pass the stub.
pub(crate) fn is_passable() -> bool {
    true
}

/// Bytes from one thunk to the next.
pub(crate) const THUNK: usize = 16;

// The stubs' frames have the slot's number where the stack pointer is when the call is made: a [`Frame`].
core::arch::global_asm!(
    stub_section!(),
    ".balign 16",
    "grapnel_agent_slot:",
    ".cfi_startproc",
    ".cfi_personality 0x1b, {personality}",
    // Which thunk it was.
    "lea rax, [rip + grapnel_agent_thunks + 11]",
    "sub r11, rax",
    "shr r11, 4",
    "push rdi",
    ".cfi_adjust_cfa_offset 8",
    push_saved!(),
    // Room for the way out of a fault.
    "sub rsp, 16",
    ".cfi_adjust_cfa_offset 16",
    "push rcx",
    ".cfi_adjust_cfa_offset 8",
    "push r8",
    ".cfi_adjust_cfa_offset 8",
    "push r9",
    ".cfi_adjust_cfa_offset 8",
    "push r11",
    ".cfi_adjust_cfa_offset 8",
    "lea rdi, [rsp + 32]",
    "mov rsi, rsp",
    "call {before}",
    "mov rdi, [rsp + 112]",
    "bt rdx, 62",
    "jc 4f",
    "mov rbx, rdx",
    "2:",
    "mov r9, [rsp + 8]",
    "mov r8, [rsp + 16]",
    "mov rcx, [rsp + 24]",
    "mov rdx, [rsp + 96]",
    "mov rsi, [rsp + 104]",
    "call rax",
    ".globl grapnel_agent_slot_returns",
    ".hidden grapnel_agent_slot_returns",
    "grapnel_agent_slot_returns:",
    "test rax, rax",
    "jnz 3f",
    // AGAIN, which is taken out.
    "btr rbx, 63",
    "jnc 3f",
    "mov rdi, rsp",
    "call {again}",
    "mov rdi, [rsp + 112]",
    "jmp 2b",
    "3:",
    "mov rdi, rax",
    "lea rsi, [rsp + 32]",
    "mov rdx, [rsp]",
    "mov rcx, rbx",
    "call {after}",
    stub_returned!(),
    ".cfi_remember_state",
    "mov rbx, [rsp + 80]",
    ".cfi_restore rbx",
    "add rsp, 120",
    ".cfi_adjust_cfa_offset -120",
    "ret",
    ".cfi_restore_state",
    // INSTEAD.
    "4:",
    stub_returned!(),
    "add rsp, 120",
    ".cfi_adjust_cfa_offset -120",
    "jmp rax",
    ".cfi_endproc",
    ".size grapnel_agent_slot, . - grapnel_agent_slot",
    ".balign 16",
    ".globl grapnel_agent_thunks",
    ".hidden grapnel_agent_thunks",
    "grapnel_agent_thunks:",
    ".cfi_startproc",
    ".rept {slots}",
    "endbr64",
    "lea r11, [rip]",
    ".byte 0xe9",
    ".long grapnel_agent_slot - . - 4",
    ".endr",
    ".cfi_endproc",
    ".size grapnel_agent_thunks, . - grapnel_agent_thunks",
    // The same for functions whose callers may lie beside them: no register of theirs is changed.
    ".balign 16",
    "grapnel_agent_beside_slot:",
    ".cfi_startproc",
    ".cfi_personality 0x1b, {personality}",
    // The thunk pushed its number.
    ".cfi_def_cfa_offset 16",
    "mov [rsp - 120], rax",
    "mov rax, [rsp]",
    "mov [rsp], rdi",
    push_saved!(),
    "sub rsp, 336",
    ".cfi_adjust_cfa_offset 336",
    "mov [rsp], rax",
    keep!(),
    "lea rdi, [rsp + 320]",
    "mov rsi, rsp",
    "call {before}",
    "mov [rsp + 8], rax",
    "mov rbx, rdx",
    bring_back!(),
    "mov rax, [rsp + 280]",
    "call [rsp + 8]",
    ".globl grapnel_agent_beside_slot_returns",
    ".hidden grapnel_agent_beside_slot_returns",
    "grapnel_agent_beside_slot_returns:",
    "mov rdi, rax",
    "lea rsi, [rsp + 320]",
    "mov rdx, [rsp]",
    "mov rcx, rbx",
    "call {after}",
    stub_returned!(),
    bring_back!(),
    "mov rbx, [rsp + 368]",
    ".cfi_restore rbx",
    "add rsp, 408",
    ".cfi_adjust_cfa_offset -408",
    "ret",
    ".cfi_endproc",
    ".size grapnel_agent_beside_slot, . - grapnel_agent_beside_slot",
    ".balign 16",
    ".globl grapnel_agent_beside_thunks",
    ".hidden grapnel_agent_beside_thunks",
    "grapnel_agent_beside_thunks:",
    ".cfi_startproc",
    ".set grapnel_agent_thunk_number, 0",
    ".rept {slots}",
    "endbr64",
    ".byte 0x68",
    ".long grapnel_agent_thunk_number",
    ".set grapnel_agent_thunk_number, grapnel_agent_thunk_number + 1",
    ".cfi_def_cfa_offset 16",
    ".byte 0xe9",
    ".long grapnel_agent_beside_slot - . - 4",
    ".balign 16",
    ".cfi_def_cfa_offset 8",
    ".endr",
    ".cfi_endproc",
    ".size grapnel_agent_beside_thunks, . - grapnel_agent_beside_thunks",
    ".text",
    slots = const SLOTS,
    before = sym before,
    again = sym again,
    after = sym after,
    personality = sym personality,
);
