//! The stub of functions with slots, and their thunks: see [`crate::slots`].
//!
//! # Safety
//! The stub keeps to AAPCS32 on both sides, for functions of up to six words of arguments whose result is in R0. The two words
//! above the stub's frame are passed on whether or not they are arguments: there is always something on a stack.
//!
//! An exception that passes is nobody's business here: what unwinds a frame is in the table of the unwinder that passes, and who
//! were to look at it would have to find that unwinder first. So [`inside`](crate::tls::Tls::inside) stays at a frame that is dead until the
//! next function with a slot is called. What it is asked for is whether a call is made by the function's own code, which no
//! code but through its stub runs.

use super::entry::{begin, end, return_above, save};
use super::kept::{bring_back, keep};
use crate::entry::stub_section;
use crate::slots::{SLOTS, after, before};

unsafe extern "C" {
    pub(crate) static grapnel_agent_thunks: u8;
    pub(crate) static grapnel_agent_slot_returns: u8;
    pub(crate) static grapnel_agent_beside_thunks: u8;
    pub(crate) static grapnel_agent_beside_slot_returns: u8;
}

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
    end!("grapnel_agent_beside_slot"),
    thunks!("grapnel_agent_beside_thunks", "grapnel_agent_beside_slot"),
    ".text",
    slots = const SLOTS,
    before = sym before,
    after = sym after,
);
