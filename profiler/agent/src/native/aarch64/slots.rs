//! The stub of functions with slots, and their thunks: see [`crate::slots`].
//!
//! # Safety
//! The stub keeps to AAPCS64 on both sides, for functions of up to eight whole arguments whose result is in X0. That beside a
//! function's callers, also of families, which are known by their names alone, hands on arguments and results of every kind: but
//! for what lies more than 128 bytes up the stack.

use super::entry::{return_above, save, set_mark};
use super::kept::{bring_back, keep};
use crate::entry::stub_section;
use crate::slots::{SLOTS, after, before, personality, readable};
use core::ops::Range;
use grapnel_hook::module::Module;

unsafe extern "C" {
    pub(crate) static grapnel_agent_thunks: u8;
    pub(crate) static grapnel_agent_slot_returns: u8;
    pub(crate) static grapnel_agent_beside_thunks: u8;
    pub(crate) static grapnel_agent_beside_slot_returns: u8;
}

/// Whether the stub heeds [`INSTEAD`](crate::slots::INSTEAD) and [`DONE`](crate::slots::DONE).
pub(crate) const DIRECT: bool = false;

/// Whether exceptions can pass the stub, with these objects and those that came before them.
pub(crate) fn is_passable(_modules: &[&Module]) -> bool {
    true
}

/// Nothing is loaded at these addresses any more.
pub(crate) fn forget(_range: &Range<u64>) {}

/// Bytes from one thunk to the next.
pub(crate) const THUNK: usize = 16;

/// Thunks that lead to a stub with the slot's number in X17.
macro_rules! thunks {
    ($thunks:literal, $stub:literal) => {
        concat!(
            ".balign 16\n",
            ".globl ",
            $thunks,
            "\n.hidden ",
            $thunks,
            "\n",
            $thunks,
            ":\n",
            ".cfi_startproc\n",
            ".set grapnel_agent_thunk_number, 0\n",
            ".rept {slots}\n",
            // BTI C.
            "hint #34\n",
            "movz x17, #grapnel_agent_thunk_number\n",
            ".set grapnel_agent_thunk_number, grapnel_agent_thunk_number + 1\n",
            "b ",
            $stub,
            "\n",
            "nop\n",
            ".endr\n",
            ".cfi_endproc\n",
            ".size ",
            $thunks,
            ", . - ",
            $thunks
        )
    };
}

// The stubs' frames have the slot's number where the stack pointer is when the call is made: a [`Frame`](crate::slots::Frame).
core::arch::global_asm!(
    stub_section!(),
    ".balign 16",
    "grapnel_agent_slot:",
    ".cfi_startproc",
    ".cfi_personality 0x1b, {personality}",
    save!(),
    set_mark!(),
    ".cfi_rel_offset x19, 16",
    "sub sp, sp, #64",
    ".cfi_adjust_cfa_offset 64",
    "stp x17, x8, [sp]",
    "stp x3, x4, [sp, #16]",
    "stp x5, x6, [sp, #32]",
    "str x7, [sp, #48]",
    "add x0, sp, #64",
    "mov x1, sp",
    "bl {before}",
    "mov x16, x0",
    "mov x19, x1",
    "ldr x8, [sp, #8]",
    "ldp x3, x4, [sp, #16]",
    "ldp x5, x6, [sp, #32]",
    "ldr x7, [sp, #48]",
    "ldp x0, x1, [sp, #224]",
    "ldr x2, [sp, #240]",
    "blr x16",
    ".globl grapnel_agent_slot_returns",
    ".hidden grapnel_agent_slot_returns",
    "grapnel_agent_slot_returns:",
    "add x1, sp, #64",
    "ldr x2, [sp]",
    "mov x3, x19",
    "bl {after}",
    "ldr x19, [sp, #80]",
    ".cfi_restore x19",
    return_above!(64),
    ".cfi_endproc",
    ".size grapnel_agent_slot, . - grapnel_agent_slot",
    thunks!("grapnel_agent_thunks", "grapnel_agent_slot"),
    // The same for functions whose callers may lie beside them: no register of theirs is changed.
    ".balign 16",
    "grapnel_agent_beside_slot:",
    ".cfi_startproc",
    ".cfi_personality 0x1b, {personality}",
    save!(),
    set_mark!(),
    ".cfi_rel_offset x19, 16",
    "sub sp, sp, #640",
    ".cfi_adjust_cfa_offset 640",
    "str x17, [sp]",
    keep!(),
    "add x0, sp, #640",
    "mov x1, sp",
    "bl {before}",
    "str x0, [sp, #8]",
    "mov x19, x1",
    // What the function may take as arguments on the stack, again where it looks for them. Nothing below the stack pointer is safe.
    "add x0, sp, #848",
    "bl {readable}",
    "add x1, sp, #848",
    "sub sp, sp, #128",
    ".cfi_adjust_cfa_offset 128",
    "mov x2, sp",
    "cbz x0, 3f",
    "2:",
    "ldp x3, x4, [x1], #16",
    "stp x3, x4, [x2], #16",
    "subs x0, x0, #16",
    "b.ne 2b",
    "3:",
    "add x16, sp, #128",
    bring_back!("x16"),
    "ldr x0, [x16, #800]",
    "ldr x16, [x16, #8]",
    "blr x16",
    ".globl grapnel_agent_beside_slot_returns",
    ".hidden grapnel_agent_beside_slot_returns",
    "grapnel_agent_beside_slot_returns:",
    "add sp, sp, #128",
    ".cfi_adjust_cfa_offset -128",
    // From here on registers are kept as the function left them: what it returns may lie in any.
    keep!(),
    "stp x1, x2, [sp, #-16]!",
    ".cfi_adjust_cfa_offset 16",
    "add x1, sp, #656",
    "ldr x2, [sp, #16]",
    "mov x3, x19",
    "bl {after}",
    "ldp x1, x2, [sp], #16",
    ".cfi_adjust_cfa_offset -16",
    "str x1, [sp, #808]",
    "str x2, [sp, #816]",
    bring_back!(),
    "ldr x19, [sp, #656]",
    ".cfi_restore x19",
    return_above!(640),
    ".cfi_endproc",
    ".size grapnel_agent_beside_slot, . - grapnel_agent_beside_slot",
    thunks!("grapnel_agent_beside_thunks", "grapnel_agent_beside_slot"),
    ".text",
    slots = const SLOTS,
    before = sym before,
    after = sym after,
    readable = sym readable,
    personality = sym personality,
);
