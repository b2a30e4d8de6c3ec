//! The stub of `clone`: see [`crate::guests`].
//!
//! # Safety
//! It changes no register but IP, which a jump through a linker's table may change, and the flags.

use super::entry::{address, begin, end};
use crate::guests::{FLAGS, GUEST};
use crate::hooks::{Function, ORIGINALS};
use crate::hot::{HOT, Hot};
use core::mem::offset_of;

unsafe extern "C" {
    pub(crate) fn grapnel_agent_clone();
}
core::arch::global_asm!(
    ".text",
    begin!("grapnel_agent_clone"),
    "push {{r4, r5}}",
    ".save {{r4, r5}}",
    "movw ip, #{flags_low}",
    "movt ip, #{flags_high}",
    "and ip, ip, r2",
    "cmp ip, #{guest}",
    "bne 2f",
    address!("r4", "{hot}"),
    "mov r5, #1",
    "strb r5, [r4, #{has_guests}]",
    "2:",
    "pop {{r4, r5}}",
    address!("ip", "{originals}"),
    "ldr ip, [ip, #{function}]",
    "bx ip",
    end!("grapnel_agent_clone"),
    flags_low = const FLAGS & 0xffff,
    flags_high = const FLAGS >> 16,
    guest = const GUEST,
    hot = sym HOT,
    has_guests = const offset_of!(Hot, has_guests),
    originals = sym ORIGINALS,
    function = const size_of::<usize>() * Function::Clone as usize,
);
