//! AArch64: what the storm must know of it.

use std::ops::Range;

use grapnel_arch::{
    CodeAddr,
    aarch64::{INST_LEN, decode},
};
use grapnel_hook::listen::{Exit, Registers};

/// Every redirect is one instruction.
pub(crate) const SHORT: &[&str] = &[];
/// Behind what a hook at a function's start may patch: an instruction, and a landing pad before it.
pub(crate) const BEHIND_WINDOW: usize = 2 * INST_LEN;
/// How much a return takes from the stack.
pub(crate) const POPPED: u64 = 0;

pub(crate) fn stack_pointer(registers: &Registers) -> u64 {
    registers.sp
}

pub(crate) fn add_to_result(call: &mut Exit, mark: u64) {
    call.set_result(call.result().wrapping_add(mark));
}

/// The length of an instruction that goes on to the next one.
pub(crate) fn len_if_followed(at: *const (), bytes: &[u8]) -> Option<usize> {
    let inst = decode(CodeAddr(at as u64), bytes).ok()?;
    (!inst.flow().is_exit()).then_some(INST_LEN)
}

/// Unwind tables have the ranges of functions.
pub(crate) fn range_of(_: *const ()) -> Option<Range<u64>> {
    None
}
