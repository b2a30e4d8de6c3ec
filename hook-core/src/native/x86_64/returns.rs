//! Where a function returns to whose return is listened to: the points of [`crate::native::points`], and the routines
//! behind them.
//!
//! # Safety
//! The routines keep every register but those that the listener changes.

use crate::{
    listen::{self, Telling},
    native::points::{PAGE, PART, RETURN_POINTS},
};

use super::{
    general::Own,
    registers::{NOT_SAVED, Saved},
    save::*,
    vectors::{load_all, save_all, with_all_vectors},
};

/// The size of a place for a point, and of its word. Ahead of each point there is a call, of this length, by which the stub
/// goes into the function. So a processor that keeps a list of the calls under way finds the point at its top when the
/// function returns, and below that the caller, when the routine behind the point does. A return that isn't foreseen costs
/// more than all that.
pub(in crate::native) const POINT: usize = 16;
/// For each of the routines behind points.
pub(in crate::native) const PARTS: usize = 3;
pub(super) const CALL_LEN: u64 = 5;
/// How far into its place a point is.
pub(in crate::native) const POINT_OFFSET: usize = CALL_LEN as usize;

// What is said to unwinders about the return address, as DWARF expressions.
//
// Of a return point and the call ahead of it: the place of the point, where the frame's own program counter is, and to that
// the distance that the first word of its page holds. Not what is in the return slot: where several listen, it holds the
// innermost's point.
//   10 10 0c        DW_CFA_expression, column 16 (the return address), 12 bytes
//   80 00           breg16 (the program counter)
//   3f 20 1a        lit15, not, and
//   12              dup
//   0b 00 f0 1a     const2s -4096, and
//   06 22           deref, plus
//
// Its canonical frame address (CFA) is a little above the caller's stack pointer. libgcc knows the frame that handles an
// exception by its callee's CFA, and aborts if a frame without a handler has the same. So the outermost point of a call
// has another distance than those of the listeners within, which their numbers say (`is_outer_point`).
//   0f 0b           DW_CFA_def_cfa_expression, 11 bytes
//   77 00 80 00     breg7 (rsp), breg16
//   34 25 33 1a 22  lit4, shr, lit3, and, plus
//   23 01           plus_uconst 1
//   16 07 02        DW_CFA_val_expression, column 7 (rsp), 2 bytes
//   77 00           breg7
//
// Of the routine behind a point, until it has the real return address: the same from what is in the return slot. The CFA
// is on the stack of expressions.
//   10 10 0d        13 bytes
//   38 1c 06        lit8, minus, deref
//   09 f0 1a        const1s -16, and
//   12 0b 00 f0 1a 06 22

// Behind a return point. The slot below the stack pointer still holds the point's address: it is in the red zone, which
// signals keep. It gets the real return address, and from there on this is an ordinary frame.
macro_rules! return_routine {
    ($name:literal, $vectors:ident, $tell:expr; $($operands:tt)*) => {
        routine!(
            $name,
            ".cfi_def_cfa rsp, 0",
            ".cfi_escape 0x10, 0x10, 0x0d, 0x38, 0x1c, 0x06, 0x09, 0xf0, 0x1a, 0x12, 0x0b, 0x00, 0xf0, 0x1a, 0x06, 0x22",
            "lea rsp, [rsp - 320]",
            ".cfi_def_cfa_offset 320",
            save!($vectors),
            "lea rax, [rbp + 320]",
            "mov [rbp + 160], rax",
            ".cfi_offset rip, -8",
            $tell,
            load!($vectors),
            "lea rsp, [rsp + 312]",
            ".cfi_def_cfa_offset 8",
            "ret";
            $($operands)*
        );
    };
}

return_routine!(
    "grapnel_hook_returned", low, tell!("{returning}");
    returning = sym returning, data = const LINK_DATA, errno = sym listen::ERRNO,
);
return_routine!(
    "grapnel_hook_returned_none", none, tell!("{returning}");
    not_saved = const NOT_SAVED, returning = sym returning, data = const LINK_DATA, errno = sym listen::ERRNO,
);
with_all_vectors!(return_routine!(
    "grapnel_hook_returned_all", all, "mov rdi, rbp\ncall {returned}";
    returned = sym returned,
));

/// What the routine calls that saves no vectors.
pub(super) const RETURNING: Own = Own(returning as *const ());

/// A function has returned: the slot gets the real return address. A signal's backtrace that comes before finds the point's
/// address there, and goes on through the point's own entry. Says which listener to tell.
///
/// # Safety
/// Called by a return routine, with what it saved.
unsafe extern "C" fn returning(saved: &mut Saved) -> Telling {
    // SAFETY: the caller's promise.
    unsafe {
        let (number, address) = listen::take(saved);
        saved.return_to(address);
        listen::leaving(saved, number)
    }
}

/// The same, and tells it.
///
/// # Safety
/// As [`returning`].
unsafe extern "C" fn returned(saved: &mut Saved) {
    // SAFETY: the caller's promise.
    unsafe {
        let address = listen::take_return(saved);
        saved.return_to(address);
        listen::returned(saved);
    }
}

// What a stub goes by that has the return watched: on to the call ahead of the point, with the stack pointer as if the function
// had returned. The way is where the routine has left it (`Saved::WAY_IN`), below the stack pointer in the red zone.
routine!(
    "grapnel_hook_go_in",
    "lea rsp, [rsp + 8]",
    ".cfi_def_cfa_offset 0",
    "notrack jmp qword ptr [rsp - 32]";
);

// What the call ahead of a point leads to: back to the stub, by what its routine has left there as well. Without a point the
// way in is here at once, with the stack pointer above the return slot.
routine!(
    "grapnel_hook_unwatched",
    ".cfi_def_cfa rsp, 0",
    "lea rsp, [rsp - 8]",
    ".cfi_def_cfa_offset 8",
    ".globl grapnel_hook_go_on",
    ".hidden grapnel_hook_go_on",
    "grapnel_hook_go_on:",
    "notrack jmp qword ptr [rsp - 16]";
);

unsafe extern "C" {
    fn grapnel_hook_go_in();
}

/// Where a stub goes on that has the return watched.
pub(super) fn go_in_routine() -> u64 {
    grapnel_hook_go_in as *const () as usize as u64
}

// The points: one part for each of the routines.
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
            ".cfi_escape 0x0f, 0x0b, 0x77, 0x00, 0x80, 0x00, 0x34, 0x25, 0x33, 0x1a, 0x22, 0x23, 0x01",
            ".cfi_escape 0x16, 0x07, 0x02, 0x77, 0x00",
            ".cfi_escape 0x10, 0x10, 0x0c, 0x80, 0x00, 0x3f, 0x20, 0x1a, 0x12, 0x0b, 0x00, 0xf0, 0x1a, 0x06, 0x22",
            ".set grapnel_hook_page, 0",
            $(
                ".rept {pages}",
                ".quad grapnel_hook_return_words + grapnel_hook_page - .",
                ".quad 0",
                ".rept {points}",
                // As bytes, since an assembler chooses their lengths otherwise.
                ".byte 0xe8",
                ".long grapnel_hook_go_on - . - 4",
                ".byte 0xe9",
                concat!(".long ", $routine, " - . - 4"),
                ".byte 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc",
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

return_points!("grapnel_hook_returned", "grapnel_hook_returned_all", "grapnel_hook_returned_none");
