//! The stub of `clone`: see [`crate::guests`].
//!
//! # Safety
//! It changes no register but RAX, which holds no argument, and the flags.

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
    "endbr64",
    "mov eax, edx",
    "and eax, {flags}",
    "cmp eax, {guest}",
    "jne 2f",
    "mov byte ptr [rip + {hot} + {has_guests}], 1",
    "2:",
    "jmp qword ptr [rip + {originals} + {function}]",
    ".cfi_endproc",
    ".size grapnel_agent_clone, . - grapnel_agent_clone",
    ".text",
    flags = const FLAGS,
    guest = const GUEST,
    hot = sym HOT,
    has_guests = const offset_of!(Hot, has_guests),
    originals = sym ORIGINALS,
    function = const size_of::<usize>() * Function::Clone as usize,
);
