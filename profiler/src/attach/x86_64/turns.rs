//! What a thread is about whose registers matter, for tests.
//!
//! # Safety
//! The code touches its own registers, and memory of its caller's.

use std::sync::atomic::AtomicU64;

unsafe extern "C" {
    /// Where glibc keeps a thread's area for restartable sequences, from the thread pointer.
    static __rseq_offset: isize;
}

/// Whether registers and vectors keep what is put there.
pub(crate) fn counts_right(turns: u64) -> bool {
    let right: u64;
    // SAFETY: the registers are named, and no memory is used.
    unsafe {
        std::arch::asm!(
            "mov r8, 0x1234567890abcdef",
            "mov r12, r8", "mov r15, r8", "movq xmm3, r8", "movq xmm15, r8",
            "2:", "dec {turns}", "jnz 2b",
            "xor eax, eax",
            "cmp r12, r8", "jne 3f", "cmp r15, r8", "jne 3f",
            "movq r9, xmm3", "cmp r9, r8", "jne 3f",
            "movq r9, xmm15", "cmp r9, r8", "jne 3f",
            "mov eax, 1",
            "3:",
            turns = inout(reg) turns => _,
            out("rax") right, out("r8") _, out("r9") _, out("r12") _, out("r15") _,
            out("xmm3") _, out("xmm15") _,
        );
    }
    right == 1
}

/// Whether a restartable sequence that came to its end was not borrowed in the middle of it: `borrowed` says how often the
/// thread was.
pub(crate) fn restarts_right(borrowed: &AtomicU64) -> bool {
    let right: u64;
    // SAFETY: the sequence is described in memory that is written here and outlives it, and is in force only within this
    // block; where it is aborted stands behind the signature that glibc registered. The registers are named.
    unsafe {
        let mut section = [0u64; 8];
        let section = section.as_mut_ptr().map_addr(|at| at.next_multiple_of(32));
        std::arch::asm!(
            "lea {turns}, [rip + 2f]", "mov [{section} + 8], {turns}",
            "lea {seen}, [rip + 5f]", "sub {seen}, {turns}", "mov [{section} + 16], {seen}",
            "lea {turns}, [rip + 7f]", "mov [{section} + 24], {turns}",
            "mov {turns}, 1000000",
            "mov fs:[{area} + 8], {section}",
            "2:", "mov {seen}, [{borrowed}]",
            "3:", "dec {turns}", "jnz 3b",
            "xor eax, eax",
            "cmp {seen}, [{borrowed}]", "sete al",
            "5:", "jmp 8f",
            ".long 0x53053053",
            "7:", "mov eax, 1",
            "8:", "mov qword ptr fs:[{area} + 8], 0",
            area = in(reg) __rseq_offset,
            section = in(reg) section,
            borrowed = in(reg) borrowed.as_ptr(),
            seen = out(reg) _, turns = out(reg) _, out("rax") right,
        );
    }
    right == 1
}
