//! The routines that call listeners from stubs.
//!
//! A link stub jumps to one of them, with the address of its literals in R12. It saves the registers, calls Rust, loads
//! what was saved or changed, and goes on through the stub's word.
//!
//! # Safety
//! The routines keep every register but those that the listener changes, and at a function's entry R12.

use super::{
    registers::tell_routines,
    save::{call, load_vectors, routine, save_vectors, vectors_there},
    stub::WORD,
};
use crate::native::{LinkKind, StubKind, Vectors};

// For unwinders: vsp = r4, pop {r0-r3}, pop {r4-r12, sp, lr}.
macro_rules! entry_routine {
    ($name:literal, $vectors:ident) => {
        routine!(
            $name,
            ".unwind_raw 0, 0x94, 0xb1, 0x0f, 0x87, 0xff",
            "sub sp, sp, #360",
            "stmia sp, {{r0-r12}}",
            "add r0, sp, #360",
            "str r0, [sp, #52]",
            "str lr, [sp, #56]",
            "mov r1, #0",
            "str ip, [sp, #336]",
            "str r1, [sp, #340]",
            "str lr, [sp, #344]",
            "str r1, [sp, #348]",
            save_vectors!($vectors),
            call!("{entered}"),
            load_vectors!($vectors),
            "ldr lr, [sp, #344]",
            "ldr ip, [sp, #336]",
            "ldr ip, [ip, #{word}]",
            "ldr ip, [ip]",
            "ldmia sp, {{r0-r11}}",
            "add sp, sp, #360",
            "bx ip";
            entered = sym crate::listen::entered,
            word = const WORD,
        );
    };
}

entry_routine!("grapnel_hook_entered", low);
entry_routine!("grapnel_hook_entered_all", all);

// In the middle of a function: R12 and LR are on the stack, and above them a word for where to go on. The flags are kept.
// For unwinders the same with pop {.., pc}: what lies above is the probed function.
macro_rules! probe_routine {
    ($name:literal, $vectors:ident) => {
        routine!(
            $name,
            ".unwind_raw 0, 0x94, 0xb1, 0x0f, 0x8f, 0xff",
            "sub sp, sp, #360",
            "stmia sp, {{r0-r11}}",
            "mrs r0, cpsr",
            "str r0, [sp, #64]",
            "ldr r1, [sp, #360]",
            "str r1, [sp, #48]",
            "ldr r1, [sp, #364]",
            "str r1, [sp, #56]",
            "add r1, sp, #372",
            "str r1, [sp, #52]",
            "mov r1, #0",
            "str ip, [sp, #336]",
            "str r1, [sp, #340]",
            save_vectors!($vectors),
            call!("{probed}"),
            load_vectors!($vectors),
            "ldr r0, [sp, #48]",
            "str r0, [sp, #360]",
            "ldr r0, [sp, #56]",
            "str r0, [sp, #364]",
            "ldr ip, [sp, #336]",
            "ldr ip, [ip, #{word}]",
            "ldr ip, [ip]",
            "str ip, [sp, #368]",
            "ldr r0, [sp, #64]",
            "msr apsr_nzcvqg, r0",
            "ldmia sp, {{r0-r11}}",
            "add sp, sp, #360",
            "pop {{ip, lr}}",
            "pop {{pc}}";
            probed = sym crate::listen::probed,
            word = const WORD,
        );
    };
}

probe_routine!("grapnel_hook_probed_all", all);

unsafe extern "C" {
    fn grapnel_hook_entered();
    fn grapnel_hook_entered_all();
    fn grapnel_hook_probed_all();
}

/// The routine that a link stub calls, by where it stands and whether all vector state is saved. It may run from now on.
pub(crate) fn routine(kind: LinkKind) -> u64 {
    tell_routines();
    let routine: unsafe extern "C" fn() = match (kind.stub, kind.vectors) {
        (StubKind::Entry, Vectors::Low | Vectors::None) => grapnel_hook_entered,
        (StubKind::Entry, Vectors::All) => grapnel_hook_entered_all,
        // Those that are told are never known to leave the vectors alone here.
        (StubKind::Inside, _) => grapnel_hook_probed_all,
    };
    routine as usize as u64
}
