//! The stub of `clone`: see [`crate::guests`].
//!
//! # Safety
//! It changes registers only that a jump through a linker's table or a call may change and that hold no argument, the flags, and of a guest the arguments. The words that it writes lie
//! where the guest's stack begins.

use crate::entry::stub_section;
use crate::guests::{FLAGS, GUEST, PENDING, WITH_POINTER, begins};
use crate::hooks::{Function, ORIGINALS};
use crate::hot::{HOT, Hot};
use core::mem::offset_of;

unsafe extern "C" {
    pub(crate) fn grapnel_agent_clone();
}
core::arch::global_asm!(
    stub_section!(),
    ".balign 16",
    ".globl grapnel_agent_clone",
    ".hidden grapnel_agent_clone",
    ".type grapnel_agent_clone,@function",
    "grapnel_agent_clone:",
    ".cfi_startproc",
    // BTI C.
    "hint #34",
    "mov w16, #{flags_low}",
    "movk w16, #{flags_high}, lsl #16",
    "and w16, w2, w16",
    "cmp w16, #{guest}",
    "b.eq 4f",
    "mov w17, #{with_pointer_low}",
    "movk w17, #{with_pointer_high}, lsl #16",
    "cmp w16, w17",
    "b.ne 2f",
    "mrs x17, tpidr_el0",
    "cmp x5, x17",
    "b.ne 2f",
    "4:",
    // Without one of these it fails.
    "cbz x0, 2f",
    "cbz x1, 2f",
    "adrp x16, {pending}",
    "add x16, x16, :lo12:{pending}",
    "3:",
    "ldaxr w17, [x16]",
    "add w17, w17, #1",
    "stlxr w9, w17, [x16]",
    "cbnz w9, 3b",
    "adrp x16, {hot}",
    "add x16, x16, :lo12:{hot}",
    "mov w17, #1",
    "strb w17, [x16, #{has_guests}]",
    "and x1, x1, #-16",
    "sub x1, x1, #32",
    "stp x0, x3, [x1]",
    "str x2, [x1, #16]",
    "mov x3, x1",
    "adrp x0, grapnel_agent_guest_begins",
    "add x0, x0, :lo12:grapnel_agent_guest_begins",
    "2:",
    "adrp x16, {originals}",
    "add x16, x16, :lo12:{originals}",
    "ldr x16, [x16, #{function}]",
    "br x16",
    ".cfi_endproc",
    ".size grapnel_agent_clone, . - grapnel_agent_clone",
    // A guest begins, and goes on as if it had begun where it is to.
    ".balign 16",
    ".type grapnel_agent_guest_begins,@function",
    "grapnel_agent_guest_begins:",
    ".cfi_startproc",
    "hint #34",
    "stp x29, x30, [sp, #-32]!",
    ".cfi_def_cfa_offset 32",
    ".cfi_offset x29, -32",
    ".cfi_offset x30, -24",
    "str x19, [sp, #16]",
    ".cfi_offset x19, -16",
    "mov x19, x0",
    "ldr x0, [x19, #16]",
    "bl {begins}",
    "ldp x16, x0, [x19]",
    "ldr x19, [sp, #16]",
    "ldp x29, x30, [sp], #32",
    ".cfi_restore x19",
    ".cfi_restore x29",
    ".cfi_restore x30",
    ".cfi_def_cfa_offset 0",
    "br x16",
    ".cfi_endproc",
    ".size grapnel_agent_guest_begins, . - grapnel_agent_guest_begins",
    ".text",
    flags_low = const FLAGS & 0xffff,
    flags_high = const FLAGS >> 16,
    guest = const GUEST,
    with_pointer_low = const WITH_POINTER & 0xffff,
    with_pointer_high = const WITH_POINTER >> 16,
    pending = sym PENDING,
    begins = sym begins,
    hot = sym HOT,
    has_guests = const offset_of!(Hot, has_guests),
    originals = sym ORIGINALS,
    function = const size_of::<usize>() * Function::Clone as usize,
);
