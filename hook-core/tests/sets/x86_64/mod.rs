//! What only x86-64 has, or has in a shape of its own.

mod probes;
mod registers;
mod under_way;
mod vectors;

use grapnel_hook::listen::Registers;
pub(crate) use probes::{vector_sum, vector_sum_middle};

pub(crate) fn pc(registers: &Registers) -> u64 {
    registers.rip
}

pub(crate) fn instruction_len(at: u64, bytes: &[u8]) -> Option<usize> {
    let inst = grapnel_arch::x86_64::decode(grapnel_arch::CodeAddr(at), bytes).ok()?;
    Some(inst.bytes().len())
}

/// Leaves nothing in the registers that a call needn't keep.
pub(crate) fn spoil() {
    // SAFETY: clobbers what it says, and is not there without AVX.
    unsafe {
        if is_x86_feature_detected!("avx") {
            std::arch::asm!("vcmpps ymm0, ymm1, ymm1, 31", "vmovaps ymm5, ymm0", "vmovaps ymm9, ymm0",
                "vzeroupper", "add eax, 1", "std", "cld", out("eax") _, out("ymm0") _, out("ymm5") _, out("ymm9") _);
        }
        std::arch::asm!("xor ecx, ecx", out("rcx") _, out("rdx") _, out("rsi") _, out("rdi") _, out("r8") _,
            out("r9") _, out("r10") _, out("r11") _, out("r12") _, out("r13") _, out("r14") _, out("r15") _);
    }
}

pub(crate) fn run() {
    registers::all_are_kept();
    vectors::run();
    under_way::run();
    probes::run();
}
