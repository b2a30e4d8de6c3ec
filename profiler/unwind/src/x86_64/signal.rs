//! The frame that the kernel leaves a thread's state in while a signal handler runs (`struct rt_sigframe` in
//! `arch/x86/include/asm/sigframe.h`), and the code that returns from it.
//!
//! glibc's has CFI. That of musl has none, nor has that of programs which ask the kernel themselves.

use super::registers::{R8, RA, RAX, RBP, RBX, RCX, RDI, RDX, RSI, RSP};
use crate::module::ModuleTable;
use crate::probe::copied;
use gimli::Register;

/// `rt_sigreturn` as `mov $15, %rax; syscall`, of which the last byte is left out, and as `mov $15, %eax; syscall`, of which there are as many bytes
/// as the second mask has.
const TRAMPOLINES: [(u64, u64); 2] =
    [(0x0f00_0000_0fc0_c748, u64::MAX), (0x0005_0f00_0000_0fb8, u64::MAX >> 8)];

fn is_code_of_one(word: u64) -> bool {
    TRAMPOLINES.iter().any(|(code, mask)| word & mask == *code)
}

/// Whether a handler that returns to `pc` returns to what a signal stopped.
///
/// Off the hot path: asks the kernel whether code outside of modules can be read.
pub(super) fn is_trampoline(table: &ModuleTable, pc: u64) -> bool {
    if let Some(answer) = is_trampoline_in(table, pc) {
        return answer;
    }
    cfg!(target_pointer_width = "64")
        && copied(pc).is_some_and(|code| is_code_of_one(u64::from_ne_bytes(code)))
}

/// The same of code that needs no question, since it is a module's; nothing of other code.
pub(super) fn is_trampoline_in(table: &ModuleTable, pc: u64) -> Option<bool> {
    Some(is_code_of_one(table.word_of_code(pc)?))
}

/// In the order of `struct sigcontext`.
const REGISTERS: [Register; 17] = [
    R8,
    Register(9),
    Register(10),
    Register(11),
    Register(12),
    Register(13),
    Register(14),
    Register(15),
    RDI,
    RSI,
    RBP,
    RBX,
    RDX,
    RAX,
    RCX,
    RSP,
    RA,
];

/// The registers of the stopped code, and where each is in the signal frame at this stack pointer: that is at `ucontext`, behind the
/// return address, and they are behind its head of 40 bytes.
pub(super) fn saved(sp: u64) -> impl Iterator<Item = (Register, u64)> {
    REGISTERS.into_iter().zip((sp.wrapping_add(40)..).step_by(8))
}
