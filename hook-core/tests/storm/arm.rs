//! 32-bit Arm: what the storm must know of it.

use std::ops::Range;

use grapnel_arch::{CodeAddr, a32, t32};
use grapnel_hook::{
    listen::{Exit, Registers},
    symbol::Lookup,
};

use crate::{code, find};

/// A redirect is one instruction, or as long as the longest.
pub(crate) const SHORT: &[&str] = &[];
/// Behind what a hook at a function's start may patch and displace: two instructions of T32.
pub(crate) const BEHIND_WINDOW: usize = 6;
/// How much a return takes from the stack.
pub(crate) const POPPED: u64 = 0;

pub(crate) fn stack_pointer(registers: &Registers) -> u64 {
    u64::from(registers.r[13])
}

/// A result of 64 bits lies in two registers.
pub(crate) fn add_to_result(call: &mut Exit, mark: u64) {
    let [low, high, ..] = &mut call.registers_mut().r;
    let result = (u64::from(*high) << 32 | u64::from(*low)).wrapping_add(mark);
    (*low, *high) = (result as u32, (result >> 32) as u32);
}

/// The length of an instruction that goes on to the next one.
pub(crate) fn len_if_followed(at: *const (), bytes: &[u8]) -> Option<usize> {
    let addr = CodeAddr(code::start(at) as u64);
    if code::start(at) == at {
        let inst = a32::decode(addr, bytes).ok()?;
        (!inst.is_exit()).then_some(a32::INST_LEN)
    } else {
        let inst = t32::decode(addr, bytes).ok()?;
        (!inst.is_exit()).then_some(inst.bytes().len())
    }
}

/// No unwind table has the ranges of functions, but this program's symbols have.
pub(crate) fn range_of(at: *const ()) -> Option<Range<u64>> {
    let program = find::modules().into_iter().next()?;
    // Symbols of T32 code have its bit 0, too.
    let range = Lookup::new(&program).function_at(at as usize)?.range;
    Some(at as u64..range.end as u64 & !1)
}
