//! The stub of functions with slots, and their thunks: see [`crate::slots`].
//!
//! # Safety
//! The stub keeps to the System V ABI on both sides, for functions of up to six whole arguments whose result is in RAX. That beside a
//! function's callers, also of families, which are known by their names alone, hands on arguments and results of every kind: but
//! for what lies more than 128 bytes up the stack.

use super::entry::{push_saved, stub_returned};
use super::kept::{bring_back, call_aligned, keep};
use crate::entry::stub_section;
use crate::slots::{DONE, INSTEAD, SLOTS, after, before, personality, readable};
use core::ops::Range;
use grapnel_hook::module::Module;

unsafe extern "C" {
    pub(crate) static grapnel_agent_thunks: u8;
    pub(crate) static grapnel_agent_slot_returns: u8;
    pub(crate) static grapnel_agent_beside_thunks: u8;
    pub(crate) static grapnel_agent_beside_slot_returns: u8;
}

/// Whether the stub heeds [`INSTEAD`] and [`DONE`]. Not that beside a function's callers.
pub(crate) const DIRECT: bool = true;

const _: () = assert!(INSTEAD == 1 << 63 && DONE == 3 << 62);

/// Whether exceptions can pass the stub, with these objects and those that came before them.
pub(crate) fn is_passable(_modules: &[&Module]) -> bool {
    true
}

/// Nothing is loaded at these addresses any more.
pub(crate) fn forget(_range: &Range<u64>) {}

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
    // Not all programs keep it aligned; the function itself has it as its caller does.
    "mov rbx, rsp",
    ".cfi_remember_state",
    ".cfi_def_cfa_register rbx",
    "and rsp, -16",
    "call {before}",
    stub_returned!(),
    "mov rsp, rbx",
    ".cfi_restore_state",
    "test rdx, rdx",
    "js 2f",
    "mov rbx, rdx",
    "mov r9, [rsp + 8]",
    "mov r8, [rsp + 16]",
    "mov rcx, [rsp + 24]",
    "mov rdx, [rsp + 96]",
    "mov rsi, [rsp + 104]",
    "mov rdi, [rsp + 112]",
    "call rax",
    ".globl grapnel_agent_slot_returns",
    ".hidden grapnel_agent_slot_returns",
    "grapnel_agent_slot_returns:",
    "mov rdi, rax",
    "lea rsi, [rsp + 32]",
    "mov rdx, [rsp]",
    "mov rcx, rbx",
    "mov rbx, rsp",
    ".cfi_remember_state",
    ".cfi_def_cfa_register rbx",
    "and rsp, -16",
    "call {after}",
    stub_returned!(),
    "mov rsp, rbx",
    ".cfi_restore_state",
    ".cfi_remember_state",
    "mov rbx, [rsp + 80]",
    ".cfi_restore rbx",
    "add rsp, 120",
    ".cfi_adjust_cfa_offset -120",
    "ret",
    ".cfi_restore_state",
    // INSTEAD, or DONE.
    "2:",
    "mov rbx, [rsp + 80]",
    "mov rdi, [rsp + 112]",
    "add rsp, 120",
    // Absolute: an assembler goes on from where it was, not from the state that was restored.
    ".cfi_def_cfa_offset 8",
    "bt rdx, 62",
    "jc 3f",
    "jmp rax",
    "3:",
    "ret",
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
    call_aligned!("{before}", 376),
    "mov [rsp + 8], rax",
    "mov rbx, rdx",
    // What the function may take as arguments on the stack, again where it looks for them: as yet below the stack pointer, where
    // 128 bytes are safe.
    "lea rsi, [rsp + 416]",
    "mov eax, esi",
    "and eax, 4095",
    "jz 4f",
    "cmp eax, 3968",
    "ja 4f",
    // All of it lies in a page of the caller's. At once: for so little `rep` takes longer.
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "movups xmm4, [rsi + 64]",
    "movups xmm5, [rsi + 80]",
    "movups xmm6, [rsi + 96]",
    "movups xmm7, [rsi + 112]",
    "movups [rsp - 128], xmm0",
    "movups [rsp - 112], xmm1",
    "movups [rsp - 96], xmm2",
    "movups [rsp - 80], xmm3",
    "movups [rsp - 64], xmm4",
    "movups [rsp - 48], xmm5",
    "movups [rsp - 32], xmm6",
    "movups [rsp - 16], xmm7",
    "jmp 5f",
    "4:",
    "mov rdi, rsi",
    call_aligned!("{readable}", 376),
    "mov ecx, eax",
    "lea rsi, [rsp + 416]",
    "lea rdi, [rsp - 128]",
    "shr ecx, 3",
    "rep movsq",
    "5:",
    bring_back!(),
    "mov rax, [rsp + 280]",
    "lea rsp, [rsp - 128]",
    ".cfi_adjust_cfa_offset 128",
    "call [rsp + 136]",
    ".globl grapnel_agent_beside_slot_returns",
    ".hidden grapnel_agent_beside_slot_returns",
    "grapnel_agent_beside_slot_returns:",
    // No later call comes to lie where this one's return address does.
    stub_returned!(),
    "lea rsp, [rsp + 128]",
    ".cfi_adjust_cfa_offset -128",
    // From here on registers are kept as the function left them: what it returns may lie in any.
    keep!(),
    "push rdx",
    ".cfi_adjust_cfa_offset 8",
    "push rsi",
    ".cfi_adjust_cfa_offset 8",
    "push rdi",
    ".cfi_adjust_cfa_offset 8",
    "push rax",
    ".cfi_adjust_cfa_offset 8",
    "mov rdi, rax",
    "lea rsi, [rsp + 352]",
    "mov rdx, [rsp + 32]",
    "mov rcx, rbx",
    call_aligned!("{after}", 408),
    "pop rax",
    ".cfi_adjust_cfa_offset -8",
    "pop rcx",
    ".cfi_adjust_cfa_offset -8",
    "mov [rsp + 416], rcx",
    "pop rcx",
    ".cfi_adjust_cfa_offset -8",
    "mov [rsp + 400], rcx",
    "pop rcx",
    ".cfi_adjust_cfa_offset -8",
    "mov [rsp + 384], rcx",
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
    after = sym after,
    readable = sym readable,
    personality = sym personality,
);
