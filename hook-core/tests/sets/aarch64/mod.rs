//! What only AArch64 has, or has in a shape of its own.

mod probes;
mod registers;

use grapnel_hook::listen::Registers;
pub(crate) use probes::{vector_sum, vector_sum_middle};

pub(crate) fn pc(registers: &Registers) -> u64 {
    registers.pc
}

pub(crate) fn instruction_len(at: u64, bytes: &[u8]) -> Option<usize> {
    grapnel_arch::aarch64::decode(grapnel_arch::CodeAddr(at), bytes).ok().map(|_| 4)
}

/// Leaves nothing in the registers that a call needn't keep, nor in the flags.
pub(crate) fn spoil() {
    // SAFETY: clobbers what it says.
    unsafe {
        std::arch::asm!(
            "movi v0.2d, #0xffffffffffffffff", "movi v5.2d, #0xffffffffffffffff", "movi v7.2d, #0xffffffffffffffff",
            "movi v9.2d, #0xffffffffffffffff", "movi v16.2d, #0xffffffffffffffff", "movi v31.2d, #0xffffffffffffffff",
            "adds xzr, x0, x0", "mov x0, #99", "mov x1, #99", "mov x7, #99", "mov x8, #99", "mov x9, #99",
            "mov x15, #99", "mov x16, #99", "mov x17, #99",
            out("v0") _, out("v5") _, out("v7") _, out("v9") _, out("v16") _, out("v31") _,
            out("x0") _, out("x1") _, out("x7") _, out("x8") _, out("x9") _, out("x15") _, out("x16") _, out("x17") _,
        );
    }
}

pub(crate) fn run() {
    registers::run();
    probes::run();
}
