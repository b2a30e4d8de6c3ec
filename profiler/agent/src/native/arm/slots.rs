//! The stub of functions with slots, and their thunks: see [`crate::slots`].
//!
//! # Safety
//! The stub keeps to AAPCS32 on both sides, for functions of up to six words of arguments whose result is in R0. The two words
//! above the stub's frame are passed on whether or not they are arguments: there is always something on a stack.
//!
//! By EHABI a personality routine has to unwind its frame, by a function of the unwinder's that it knows by name: libgcc's, which
//! programs of C++ have from their start, and others from the first library of C++ on that they open. As long as there is none,
//! operators aren't hooked.

use super::entry::{address, begin, end, return_above, save};
use super::kept::{bring_back, keep};
use crate::entry::stub_section;
use crate::slots::{SLOTS, after, before, ends};
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};
use grapnel_hook::module::Module;
use grapnel_hook::symbol;

unsafe extern "C" {
    pub(crate) static grapnel_agent_thunks: u8;
    pub(crate) static grapnel_agent_slot_returns: u8;
    pub(crate) static grapnel_agent_beside_thunks: u8;
    pub(crate) static grapnel_agent_beside_slot_returns: u8;
}

/// The function that unwinds a frame, with the bit that says which code it is; 0 as long as there is none.
static UNWIND: AtomicUsize = AtomicUsize::new(0);

/// Whether exceptions can pass the stub, with these objects and those that came before them.
pub(crate) fn is_passable(modules: &[&Module]) -> bool {
    if UNWIND.load(Ordering::Relaxed) == 0 {
        let found = modules.iter().find_map(|module| symbol::find(module, b"__gnu_unwind_frame"));
        UNWIND.store(found.map_or(0, |function| function.addr), Ordering::Relaxed);
    }
    UNWIND.load(Ordering::Relaxed) != 0
}

/// Nothing is loaded at these addresses any more.
pub(crate) fn forget(range: &Range<u64>) {
    if range.contains(&(UNWIND.load(Ordering::Relaxed) as u64)) {
        UNWIND.store(0, Ordering::Relaxed);
    }
}

// What an unwinder asks of a frame of the stubs (EHABI32, 7.3): in its second pass the call is over, and in both the frame is
// unwound as its table says. `_URC_CONTINUE_UNWIND` is 8, `_URC_FAILURE` 9, `_US_UNWIND_FRAME_STARTING` 1.
core::arch::global_asm!(
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
    address!("r3", "{unwind}"),
    "ldr r3, [r3]",
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
    unwind = sym UNWIND,
);

/// Whether the stub heeds [`INSTEAD`](crate::slots::INSTEAD) and [`DONE`](crate::slots::DONE).
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
