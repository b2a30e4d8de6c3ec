//! The stub of `clone`: see [`crate::guests`].
//!
//! # Safety
//! It changes registers only that a jump through a linker's table may change, and the flags.

use crate::entry::stub_section;
use crate::guests::{FLAGS, GUEST};
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
    "b.ne 2f",
    "adrp x16, {hot}",
    "add x16, x16, :lo12:{hot}",
    "mov w17, #1",
    "strb w17, [x16, #{has_guests}]",
    "2:",
    "adrp x16, {originals}",
    "add x16, x16, :lo12:{originals}",
    "ldr x16, [x16, #{function}]",
    "br x16",
    ".cfi_endproc",
    ".size grapnel_agent_clone, . - grapnel_agent_clone",
    ".text",
    flags_low = const FLAGS & 0xffff,
    flags_high = const FLAGS >> 16,
    guest = const GUEST,
    hot = sym HOT,
    has_guests = const offset_of!(Hot, has_guests),
    originals = sym ORIGINALS,
    function = const size_of::<usize>() * Function::Clone as usize,
);
