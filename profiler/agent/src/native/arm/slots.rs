//! The stub of functions with slots, and their thunks: see [`crate::slots`].
//!
//! # Safety
//! The stub keeps to AAPCS32 on both sides, for functions of up to six words of arguments whose result is in R0. The two words
//! above the stub's frame are passed on whether or not they are arguments: there is always something on a stack.
//!
//! By EHABI a personality routine has to unwind its frame, by a function of the unwinder's that it knows by name. The dynamic linker
//! binds that name, weakly, when it loads the agent: to libgcc's, which programs of C++ have. Where there is none, operators
//! aren't hooked.

use super::entry::{address, begin, end, return_above, save};
use super::kept::{bring_back, keep};
use crate::entry::stub_section;
use crate::slots::{SLOTS, after, before, ends};
use core::ptr;

unsafe extern "C" {
    pub(crate) static grapnel_agent_thunks: u8;
    pub(crate) static grapnel_agent_slot_returns: u8;
    pub(crate) static grapnel_agent_beside_thunks: u8;
    pub(crate) static grapnel_agent_beside_slot_returns: u8;
    /// How far from here the word lies in which the loader has put the address of the function that unwinds a frame.
    safe static grapnel_agent_unwind_at: usize;
}

/// Whether exceptions can pass the stub.
pub(crate) fn is_passable() -> bool {
    let at = (&raw const grapnel_agent_unwind_at).expose_provenance();
    let function: *const usize = ptr::with_exposed_provenance(at.wrapping_add(grapnel_agent_unwind_at));
    // SAFETY: the word is in the object's own table, and the loader filled it in.
    unsafe { *function != 0 }
}

// What an unwinder asks of a frame of the stubs (EHABI32, 7.3): in its second pass the call is over, and in both the frame is
// unwound as its table says. `_URC_CONTINUE_UNWIND` is 8, `_URC_FAILURE` 9, `_US_UNWIND_FRAME_STARTING` 1.
core::arch::global_asm!(
    ".section .rodata.grapnel_agent_unwind_at,\"a\",%progbits",
    ".balign 4",
    ".globl grapnel_agent_unwind_at",
    ".hidden grapnel_agent_unwind_at",
    ".type grapnel_agent_unwind_at,%object",
    ".size grapnel_agent_unwind_at,4",
    ".weak __gnu_unwind_frame",
    "grapnel_agent_unwind_at:",
    ".long __gnu_unwind_frame(GOT_PREL)",
    ".text",
    begin!("grapnel_agent_personality"),
    ".save {{r4, r5, r6, lr}}",
    "push {{r4, r5, r6, lr}}",
    "mov r4, r1",
    "mov r5, r2",
    "and r0, r0, #3",
    "cmp r0, #1",
    "bne 2f",
    "bl {ends}",
    "2:",
    address!("r6", "grapnel_agent_unwind_at"),
    "ldr r3, [r6]",
    "ldr r3, [r6, r3]",
    "mov r0, r4",
    "mov r1, r5",
    "cmp r3, #0",
    "beq 3f",
    "blx r3",
    "cmp r0, #0",
    "mov r0, #8",
    "beq 4f",
    "3:",
    "mov r0, #9",
    "4:",
    "pop {{r4, r5, r6, pc}}",
    end!("grapnel_agent_personality"),
    ends = sym ends,
);

/// Whether the stub heeds [`AGAIN`](crate::slots::AGAIN) and [`INSTEAD`](crate::slots::INSTEAD).
pub(crate) const DIRECT: bool = false;

/// Bytes from one thunk to the next.
pub(crate) const THUNK: usize = 16;

/// Thunks that lead to a stub with the slot's number in R12.
macro_rules! thunks {
    ($thunks:literal, $stub:literal) => {
        concat!(
            begin!($thunks),
            ".cantunwind\n",
            ".set grapnel_agent_thunk_number, 0\n",
            ".rept {slots}\n",
            "movw ip, #grapnel_agent_thunk_number\n",
            ".set grapnel_agent_thunk_number, grapnel_agent_thunk_number + 1\n",
            "b ",
            $stub,
            "\n",
            "nop\n",
            "nop\n",
            ".endr\n",
            end!($thunks)
        )
    };
}

/// Assembly that marks where a slot's function returns to.
macro_rules! returns {
    ($name:literal) => {
        concat!(".globl ", $name, "\n.hidden ", $name, "\n", $name, ":\n")
    };
}

// The frame: two words of arguments, the slot's number, which is a [`Frame`](crate::slots::Frame), a word that is free, and what
// `before` says, a [`Going`](crate::slots::Going).
core::arch::global_asm!(
    stub_section!(),
    begin!("grapnel_agent_slot"),
    save!(),
    "sub sp, sp, #24",
    ".pad #24",
    "str ip, [sp, #8]",
    "ldr r0, [sp, #152]",
    "ldr r1, [sp, #156]",
    "stm sp, {{r0, r1}}",
    "add r0, sp, #16",
    "add r1, sp, #24",
    "add r2, sp, #8",
    "bl {before}",
    "add ip, sp, #32",
    "ldm ip, {{r0-r3}}",
    "ldr ip, [sp, #16]",
    "blx ip",
    returns!("grapnel_agent_slot_returns"),
    "add r1, sp, #24",
    "ldr r2, [sp, #8]",
    "ldr r3, [sp, #20]",
    "bl {after}",
    return_above!(24),
    ".personality grapnel_agent_personality",
    ".handlerdata",
    end!("grapnel_agent_slot"),
    thunks!("grapnel_agent_thunks", "grapnel_agent_slot"),
    // The same for functions whose callers may lie beside them: no register of theirs is changed.
    begin!("grapnel_agent_beside_slot"),
    save!(),
    "sub sp, sp, #216",
    ".pad #216",
    "str ip, [sp, #8]",
    keep!(24),
    "ldr ip, [sp, #344]",
    "ldr lr, [sp, #348]",
    "stm sp, {{ip, lr}}",
    "add r0, sp, #16",
    "add r1, sp, #216",
    "add r2, sp, #8",
    "bl {before}",
    bring_back!(24),
    "ldr r0, [sp, #224]",
    "ldr ip, [sp, #16]",
    "blx ip",
    returns!("grapnel_agent_beside_slot_returns"),
    "add r1, sp, #216",
    "ldr r2, [sp, #8]",
    "ldr r3, [sp, #20]",
    "bl {after}",
    bring_back!(24),
    return_above!(216),
    ".personality grapnel_agent_personality",
    ".handlerdata",
    end!("grapnel_agent_beside_slot"),
    thunks!("grapnel_agent_beside_thunks", "grapnel_agent_beside_slot"),
    ".text",
    slots = const SLOTS,
    before = sym before,
    after = sym after,
);
