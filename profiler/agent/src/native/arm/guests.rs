//! The stub of `clone`: see [`crate::guests`].
//!
//! # Safety
//! It changes no register but IP, which a jump through a linker's table may change, and the flags.

use super::entry::{address, begin, end};
use crate::guests::{FLAGS, GUEST, PENDING, WITH_POINTER, begins};
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
    "beq 4f",
    "movw r4, #{with_pointer_low}",
    "movt r4, #{with_pointer_high}",
    "cmp ip, r4",
    "bne 2f",
    // Behind what was pushed and one argument.
    "ldr r4, [sp, #12]",
    "mrc p15, 0, r5, c13, c0, 3",
    "cmp r4, r5",
    "bne 2f",
    "4:",
    // Without one of these it fails.
    "cmp r0, #0",
    "beq 2f",
    "cmp r1, #0",
    "beq 2f",
    address!("r4", "{pending}"),
    "3:",
    "ldrex r5, [r4]",
    "add r5, r5, #1",
    "strex ip, r5, [r4]",
    "cmp ip, #0",
    "bne 3b",
    "dmb ish",
    address!("r4", "{hot}"),
    "mov r5, #1",
    "strb r5, [r4, #{has_guests}]",
    "bic r1, r1, #7",
    "sub r1, r1, #16",
    "str r0, [r1]",
    "str r3, [r1, #4]",
    "str r2, [r1, #8]",
    "mov r3, r1",
    address!("r0", "grapnel_agent_guest_begins"),
    "2:",
    "pop {{r4, r5}}",
    address!("ip", "{originals}"),
    "ldr ip, [ip, #{function}]",
    "bx ip",
    end!("grapnel_agent_clone"),
    // A guest begins, and goes on as if it had begun where it is to.
    begin!("grapnel_agent_guest_begins"),
    "push {{r4, lr}}",
    ".save {{r4, lr}}",
    "mov r4, r0",
    "ldr r0, [r4, #8]",
    "bl {begins}",
    "ldr ip, [r4]",
    "ldr r0, [r4, #4]",
    "pop {{r4, lr}}",
    "bx ip",
    end!("grapnel_agent_guest_begins"),
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
