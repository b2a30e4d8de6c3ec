//! Where a function returns to whose return is listened to: the points of [`crate::native::points`], and the routines
//! behind them.
//!
//! # Safety
//! The routines keep every register but those that the listener changes, and X16, X17 and X30, which no call keeps.

use crate::native::points::{PAGE, PART, RETURN_POINTS};

use super::save::{load_general, load_vectors, routine, save_general, save_vectors};

// What is said to unwinders about the return address, as DWARF expressions.
//
// Of a return point: the point's address, which is the frame's own program counter and in column 30, and to that the
// distance that the first word of its page holds. A function that signs its return address has saved it signed, so the
// upper bits are dropped first.
//   10 1e 13        DW_CFA_expression, column 30, 19 bytes
//   8e 00           breg30
//   0e .. 1a        const8u 2^48 - 1, and
//   12              dup
//   0b 00 f0 1a     const2s -4096, and
//   06 22           deref, plus
//
// Its canonical frame address (CFA) is a little above the caller's stack pointer. libgcc knows the frame that handles an
// exception by its callee's CFA, and aborts if a frame without a handler has the same. So the outermost point of a call
// has another distance than those of the listeners within, which their numbers say (`is_outer_point`).
//   0f 0b           DW_CFA_def_cfa_expression, 11 bytes
//   8f 00 8e 00     breg31 (sp), breg30
//   33 25 33 1a 22  lit3, shr, lit3, and, plus
//   23 01           plus_uconst 1
//   16 1f 02        DW_CFA_val_expression, column 31 (sp), 2 bytes
//   8f 00           breg31
//
// Of the routine behind a point, until it has the real return address: the same from X16, which the point has put its
// address into, and then from where that was saved, at CFA - 8. The CFA is on the stack of expressions.
//   10 1e 09        9 bytes
//   80 00           breg16
//   12 0b 00 f0 1a 06 22
//   10 1e 0a        10 bytes
//   38 1c 06        lit8, minus, deref
//   12 0b 00 f0 1a 06 22

macro_rules! return_routine {
    ($name:literal, $vectors:ident) => {
        routine!(
            $name,
            ".cfi_escape 0x10, 0x1e, 0x09, 0x80, 0x00, 0x12, 0x0b, 0x00, 0xf0, 0x1a, 0x06, 0x22",
            "sub sp, sp, #832",
            ".cfi_def_cfa_offset 832",
            save_general!(),
            "str x16, [sp, #824]",
            ".cfi_escape 0x10, 0x1e, 0x0a, 0x38, 0x1c, 0x06, 0x12, 0x0b, 0x00, 0xf0, 0x1a, 0x06, 0x22",
            "add x17, sp, #832",
            "str x17, [sp, #248]",
            save_vectors!($vectors),
            "mov x0, sp",
            "bl {take}",
            "str x0, [sp, #824]",
            ".cfi_offset x30, -8",
            "mov x0, sp",
            "bl {returned}",
            load_vectors!($vectors),
            load_general!(),
            "ldp x16, x17, [sp, #128]",
            "ldr x30, [sp, #824]",
            "add sp, sp, #832",
            ".cfi_def_cfa_offset 0",
            ".cfi_restore x30",
            "ret";
            take = sym crate::listen::take_return,
            returned = sym crate::listen::returned,
        );
    };
}

return_routine!("grapnel_hook_returned", low);
return_routine!("grapnel_hook_returned_all", all);

// The points: one half for each of the routines. An unwinder looks a return address up by the byte before it, which lies
// in the point before or in the page's first word.
/// The size of a place for a point, and of its word.
pub(in crate::native) const POINT: usize = 8;
/// For each of the routines behind points.
pub(in crate::native) const PARTS: usize = 2;
/// How far into its place a point is.
pub(in crate::native) const POINT_OFFSET: usize = 0;

macro_rules! return_points {
    ($($routine:literal),*) => {
        core::arch::global_asm!(
            ".pushsection .bss.grapnel_hook_return_words, \"aw\", @nobits",
            ".p2align 12",
            ".globl grapnel_hook_return_words",
            ".hidden grapnel_hook_return_words",
            ".type grapnel_hook_return_words, @object",
            "grapnel_hook_return_words: .zero {bytes}",
            ".size grapnel_hook_return_words, {bytes}",
            ".popsection",
            ".pushsection .text.grapnel_hook_return_points, \"ax\", @progbits",
            ".p2align 12",
            ".globl grapnel_hook_return_points",
            ".hidden grapnel_hook_return_points",
            ".type grapnel_hook_return_points, @function",
            "grapnel_hook_return_points:",
            ".cfi_startproc",
            ".cfi_escape 0x0f, 0x0b, 0x8f, 0x00, 0x8e, 0x00, 0x33, 0x25, 0x33, 0x1a, 0x22, 0x23, 0x01",
            ".cfi_escape 0x16, 0x1f, 0x02, 0x8f, 0x00",
            ".cfi_escape 0x10, 0x1e, 0x13, 0x8e, 0x00, 0x0e, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x00, 0x00, 0x1a, 0x12, 0x0b, 0x00, 0xf0, 0x1a, 0x06, 0x22",
            ".set grapnel_hook_page, 0",
            $(
                ".rept {pages}",
                ".quad grapnel_hook_return_words + grapnel_hook_page - .",
                ".rept {points}",
                "adr x16, .",
                concat!("b ", $routine),
                ".endr",
                ".set grapnel_hook_page, grapnel_hook_page + 4096",
                ".endr",
            )*
            ".cfi_endproc",
            ".size grapnel_hook_return_points, . - grapnel_hook_return_points",
            ".popsection",
            bytes = const RETURN_POINTS * POINT,
            pages = const PART * POINT / PAGE,
            points = const PAGE / POINT - 1,
        );
    };
}

return_points!("grapnel_hook_returned", "grapnel_hook_returned_all");
