//! Where a function returns to whose return is listened to: the points of [`crate::native::points`], and the routines
//! behind them.
//!
//! The unwind tables of this architecture (EHABI32) can't say where a return address is that depends on the point. So an
//! unwinder ends at a point: see the crate's documentation.
//!
//! # Safety
//! The routines keep every register but those that the listener changes, and R12 and LR, which no call keeps.

use crate::native::points::{PAGE, RETURN_POINTS};

use super::save::{call, load_vectors, routine, save_vectors};

macro_rules! return_routine {
    ($name:literal, $vectors:ident) => {
        routine!(
            $name,
            ".unwind_raw 0, 0x94, 0xb1, 0x0f, 0x87, 0xff",
            "sub sp, sp, #360",
            "stmia sp, {{r0-r12}}",
            "add r0, sp, #360",
            "str r0, [sp, #52]",
            "mov r1, #0",
            "str ip, [sp, #344]",
            "str r1, [sp, #348]",
            save_vectors!($vectors),
            call!("{take}"),
            "str r0, [sp, #344]",
            "str r0, [sp, #56]",
            call!("{returned}"),
            load_vectors!($vectors),
            "ldr lr, [sp, #344]",
            "ldmia sp, {{r0-r11}}",
            "add sp, sp, #360",
            "bx lr";
            take = sym crate::listen::take_return,
            returned = sym crate::listen::returned,
        );
    };
}

return_routine!("grapnel_hook_returned", low);
return_routine!("grapnel_hook_returned_all", all);

/// The size of a place for a point, and of its word.
pub(in crate::native) const POINT: usize = 8;
/// How far into its place a point is.
pub(in crate::native) const POINT_OFFSET: usize = 0;

macro_rules! return_points {
    ($($routine:literal),*) => {
        core::arch::global_asm!(
            ".pushsection .bss.grapnel_hook_return_words, \"aw\", %nobits",
            ".p2align 12",
            ".globl grapnel_hook_return_words",
            ".hidden grapnel_hook_return_words",
            ".type grapnel_hook_return_words, %object",
            "grapnel_hook_return_words: .zero {bytes}",
            ".size grapnel_hook_return_words, {bytes}",
            ".popsection",
            ".pushsection .text.grapnel_hook_return_points, \"ax\", %progbits",
            ".p2align 12",
            ".arm",
            ".globl grapnel_hook_return_points",
            ".hidden grapnel_hook_return_points",
            ".type grapnel_hook_return_points, %function",
            "grapnel_hook_return_points:",
            ".fnstart",
            ".cantunwind",
            $(
                ".rept {pages}",
                ".long 0",
                ".long 0",
                ".rept {points}",
                "sub ip, pc, #8",
                concat!("b ", $routine),
                ".endr",
                ".endr",
            )*
            ".fnend",
            ".size grapnel_hook_return_points, . - grapnel_hook_return_points",
            ".popsection",
            bytes = const RETURN_POINTS * POINT,
            pages = const RETURN_POINTS / 2 * POINT / PAGE,
            points = const PAGE / POINT - 1,
        );
    };
}

return_points!("grapnel_hook_returned", "grapnel_hook_returned_all");
