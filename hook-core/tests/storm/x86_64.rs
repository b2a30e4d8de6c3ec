//! x86-64: what the storm must know of it.

use std::ops::Range;

use grapnel_arch::{CodeAddr, x86_64::decode};
use grapnel_hook::listen::{Exit, Registers};

/// Samples that take a short redirect, which has no island to choose.
pub(crate) const SHORT: &[&str] = &["no_room", "inner_loop"];
/// Behind what a hook at a function's start may patch and displace.
pub(crate) const BEHIND_WINDOW: usize = 12;
/// How much a return takes from the stack.
pub(crate) const POPPED: u64 = 8;

pub(crate) fn stack_pointer(registers: &Registers) -> u64 {
    registers.rsp
}

pub(crate) fn add_to_result(call: &mut Exit, mark: u64) {
    call.set_result(call.result().wrapping_add(mark));
}

/// The length of an instruction that goes on to the next one.
pub(crate) fn len_if_followed(at: *const (), bytes: &[u8]) -> Option<usize> {
    let inst = decode(CodeAddr(at as u64), bytes).ok().filter(|inst| !inst.flow().is_exit())?;
    Some(inst.bytes().len())
}

/// Unwind tables have the ranges of functions.
pub(crate) fn range_of(_: *const ()) -> Option<Range<u64>> {
    None
}
