//! x86-64: what the engine needs to know beyond what the relocator does.
//!
//! # Safety
//! The one unsafe act is `cpuid`, which changes registers only.

use grapnel_arch::x86_64::decode;
use grapnel_relocator::{CodeAddr, Isa};

/// The instruction set of this process.
pub(crate) const ISA: Isa = Isa::X86_64;

/// `int3`: one byte, so it can be written over any instruction's start at once.
pub(crate) const TRAP: u8 = 0xcc;

/// `endbr64`, where indirect calls must land under indirect branch tracking.
pub(crate) const LANDING_PAD: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];

/// The longest instruction.
pub(crate) const MAX_INST_LEN: usize = grapnel_arch::x86_64::MAX_INST_LEN;

/// How far a near redirect reaches from its end, either way.
pub(crate) const NEAR_REACH: u64 = 1 << 31;

/// Makes this core drop what it has decoded of code that has changed (Intel SDM volume 3, 9.1.3: a serialising
/// instruction).
pub(crate) fn synchronise_this_core() {
    core::hint::black_box(core::arch::x86_64::__cpuid(0));
}

/// How many of the bytes are whole instructions that compilers and linkers put between functions.
pub(crate) fn padding_len(at: CodeAddr, bytes: &[u8]) -> usize {
    let mut len = 0;
    while let Some(rest) = bytes.get(len..).filter(|rest| !rest.is_empty()) {
        match decode(at.add(len as u64), rest) {
            Ok(inst) if inst.is_padding() => len += inst.bytes().len(),
            _ => break,
        }
    }
    len
}
