//! Where a function returns to whose return is listened to: the points of [`crate::native::points`], and the routines
//! behind them.
//!
//! # Safety
//! The routines keep every register but those that the listener changes.

use crate::native::points::{PAGE, POINT, RETURN_POINTS};

use super::{
    registers::{COMPONENTS, XSAVE_ROOM},
    save::{load_general, load_vectors, routine, save_general, save_vectors},
};

// What is said to unwinders about the return address, as DWARF expressions.
//
// Of a return point: the point's address, which is the frame's own program counter, and to that the distance that the
// first word of its page holds. Not what is in the return slot: where several listen, it holds the innermost's point.
//   10 10 09        DW_CFA_expression, column 16 (the return address), 9 bytes
//   80 00           breg16 (the program counter)
//   12              dup
//   0b 00 f0 1a     const2s -4096, and
//   06 22           deref, plus
//
// Its canonical frame address (CFA) is a little above the caller's stack pointer. libgcc knows the frame that handles an
// exception by its callee's CFA, and aborts if a frame without a handler has the same. So the outermost point of a call
// has another distance than those of the listeners within, which their numbers say (`is_outer_point`).
//   0f 0b           DW_CFA_def_cfa_expression, 11 bytes
//   77 00 80 00     breg7 (rsp), breg16
//   33 25 33 1a 22  lit3, shr, lit3, and, plus
//   23 01           plus_uconst 1
//   16 07 02        DW_CFA_val_expression, column 7 (rsp), 2 bytes
//   77 00           breg7
//
// Of the routine behind a point, until it has the real return address: the same from what is in the return slot. The CFA
// is on the stack of expressions.
//   10 10 0d        13 bytes
//   38 1c 06        lit8, minus, deref
//   09 f8 1a        const1s -8, and
//   12 0b 00 f0 1a 06 22

// Behind a return point. The slot below the stack pointer still holds the point's address: it is in the red zone, which
// signals keep. It gets the real return address, and from there on this is an ordinary frame.
//
// It ends with a jump, not a return: the processor's prediction of returns has used up the caller's already.
macro_rules! return_routine {
    ($name:literal, $vectors:ident; $($operands:tt)*) => {
        routine!(
            $name,
            ".cfi_def_cfa rsp, 0",
            ".cfi_escape 0x10, 0x10, 0x0d, 0x38, 0x1c, 0x06, 0x09, 0xf8, 0x1a, 0x12, 0x0b, 0x00, 0xf0, 0x1a, 0x06, 0x22",
            "lea rsp, [rsp - 304]",
            ".cfi_def_cfa_offset 304",
            save_general!(),
            "lea rax, [rsp + 304]",
            "mov [rsp + 160], rax",
            save_vectors!($vectors),
            "mov rdi, rbp",
            "call {take}",
            "mov [rbp + 296], rax",
            ".cfi_offset rip, -8",
            "mov rdi, rbp",
            "call {returned}",
            load_vectors!($vectors),
            load_general!(),
            "lea rsp, [rsp + 304]",
            ".cfi_def_cfa_offset 0",
            "jmp qword ptr [rsp - 8]";
            take = sym crate::listen::take_return,
            returned = sym crate::listen::returned,
            $($operands)*
        );
    };
}

return_routine!("grapnel_hook_returned", low;);
return_routine!("grapnel_hook_returned_all", all; room = const XSAVE_ROOM, components = const COMPONENTS,);

// The points: one half for each of the routines. An unwinder looks a return address up by the byte before it, which lies
// in the point before or in the page's first word.
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
            ".cfi_escape 0x0f, 0x0b, 0x77, 0x00, 0x80, 0x00, 0x33, 0x25, 0x33, 0x1a, 0x22, 0x23, 0x01",
            ".cfi_escape 0x16, 0x07, 0x02, 0x77, 0x00",
            ".cfi_escape 0x10, 0x10, 0x09, 0x80, 0x00, 0x12, 0x0b, 0x00, 0xf0, 0x1a, 0x06, 0x22",
            ".set grapnel_hook_page, 0",
            $(
                ".rept {pages}",
                ".quad grapnel_hook_return_words + grapnel_hook_page - .",
                ".rept {points}",
                ".byte 0xe9",
                concat!(".long ", $routine, " - . - 4"),
                ".byte 0xcc, 0xcc, 0xcc",
                ".endr",
                ".set grapnel_hook_page, grapnel_hook_page + 4096",
                ".endr",
            )*
            ".cfi_endproc",
            ".size grapnel_hook_return_points, . - grapnel_hook_return_points",
            ".popsection",
            bytes = const RETURN_POINTS * POINT,
            pages = const RETURN_POINTS / 2 * POINT / PAGE,
            points = const PAGE / POINT - 1,
        );
    };
}

return_points!("grapnel_hook_returned", "grapnel_hook_returned_all");
