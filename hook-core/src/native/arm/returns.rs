//! Where a function returns to whose return is listened to: the points of [`crate::native::points`], and the routines
//! behind them.
//!
//! The instructions of this architecture's unwind tables (EHABI32, 10.3) can't say where a return address is that depends
//! on the point. But a table may name a function that unwinds, a personality routine, and so does that of the points.
//!
//! # Safety
//! The routines keep every register but those that the listener changes, and R12 and LR, which no call keeps. An unwinder
//! gives the personality routine its own context, and the two functions that look into it are the unwinder's, if there is
//! one kind of unwinder in the process.

use core::{ffi::c_void, sync::atomic::Ordering::Relaxed};

use crate::native::points::{PAGE, PART, RETURN_POINTS, point_at, return_word};

use super::save::{call, load_vectors, routine, save_vectors, vectors_there};

/// `_Unwind_VRS_Get` and `_Unwind_VRS_Set` (EHABI32, 8.5).
type Access = unsafe extern "C" fn(
    context: *mut c_void,
    class: u32,
    register: u32,
    representation: u32,
    value: *mut u32,
) -> u32;

unsafe extern "C" {
    /// The two of the process, if it has an unwinder.
    safe static grapnel_hook_unwinder: [Option<Access>; 2];
}

// They are weak, since who throws nothing needs no unwinder.
core::arch::global_asm!(
    ".pushsection .data.rel.ro.grapnel_hook_unwinder, \"aw\", %progbits",
    ".p2align 2",
    ".globl grapnel_hook_unwinder",
    ".hidden grapnel_hook_unwinder",
    ".type grapnel_hook_unwinder, %object",
    ".weak _Unwind_VRS_Get",
    ".weak _Unwind_VRS_Set",
    "grapnel_hook_unwinder: .long _Unwind_VRS_Get, _Unwind_VRS_Set",
    ".size grapnel_hook_unwinder, . - grapnel_hook_unwinder",
    ".popsection",
);

/// The personality routine of the points: nothing of the frame is there any more but its return address, which is the
/// point's. The real one takes its place, whatever the unwinder is about (EHABI32, 8.3).
///
/// # Safety
/// An unwinder calls it, with its context of a frame that has returned to a point.
unsafe extern "C" fn pass_point(_: u32, _: *mut c_void, context: *mut c_void) -> u32 {
    const CONTINUE: u32 = 8;
    const FAILURE: u32 = 9;
    const CORE: u32 = 0;
    const PC: u32 = 15;
    const UINT32: u32 = 0;
    let [Some(get), Some(set)] = grapnel_hook_unwinder else { return FAILURE };
    let mut pc = 0;
    // SAFETY: the context is the unwinder's own, and a core register is one word.
    if unsafe { get(context, CORE, PC, UINT32, &raw mut pc) } != 0 {
        return FAILURE;
    }
    let Some(number) = point_at(pc.into()) else { return FAILURE };
    let mut returns_to = return_word(number).load(Relaxed) as u32;
    // SAFETY: as above.
    match unsafe { set(context, CORE, PC, UINT32, &raw mut returns_to) } {
        0 => CONTINUE,
        _ => FAILURE,
    }
}

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
/// For each of the routines behind points.
pub(in crate::native) const PARTS: usize = 2;
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
            ".personality {pass}",
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
            ".handlerdata",
            ".fnend",
            ".size grapnel_hook_return_points, . - grapnel_hook_return_points",
            ".popsection",
            pass = sym pass_point,
            bytes = const RETURN_POINTS * POINT,
            pages = const PART * POINT / PAGE,
            points = const PAGE / POINT - 1,
        );
    };
}

return_points!("grapnel_hook_returned", "grapnel_hook_returned_all");
