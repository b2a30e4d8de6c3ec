//! What a thread is about whose registers matter, for tests.
//!
//! # Safety
//! The code touches its own registers, and memory of its caller's.

use std::arch::asm;
use std::sync::atomic::AtomicU64;

unsafe extern "C" {
    /// Where glibc keeps a thread's area for restartable sequences, from the thread pointer.
    static __rseq_offset: isize;
}

/// Whether registers and vectors keep what is put there.
pub(crate) fn counts_right(turns: u64) -> bool {
    const SCALABLE: u64 = 1 << 22;
    // SAFETY: asks for a number.
    let is_scalable = unsafe { libc::getauxval(libc::AT_HWCAP) } & SCALABLE != 0;
    if is_scalable {
        counts_right_scalable(turns / 2) && counts_right_plain(turns / 2)
    } else {
        counts_right_plain(turns)
    }
}

fn counts_right_plain(turns: u64) -> bool {
    let right: u64;
    // SAFETY: the registers are named, and no memory is used.
    unsafe {
        asm!(
            "mov x9, #0xcdef", "movk x9, #0x90ab, lsl #16", "movk x9, #0x5678, lsl #32", "movk x9, #0x1234, lsl #48",
            "mov x0, x9", "mov x7, x9", "mov x17, x9", "mov x28, x9", "mov x30, x9",
            "fmov d3, x9", "mov v15.d[1], x9", "fmov d31, x9",
            "2:", "subs {turns}, {turns}, #1", "b.ne 2b",
            "mov {right}, #0",
            "cmp x0, x9", "b.ne 3f", "cmp x7, x9", "b.ne 3f", "cmp x17, x9", "b.ne 3f", "cmp x28, x9", "b.ne 3f",
            "cmp x30, x9", "b.ne 3f",
            "fmov x10, d3", "cmp x10, x9", "b.ne 3f",
            "mov x10, v15.d[1]", "cmp x10, x9", "b.ne 3f",
            "fmov x10, d31", "cmp x10, x9", "b.ne 3f",
            "mov {right}, #1",
            "3:",
            turns = inout(reg) turns => _,
            right = out(reg) right,
            out("x0") _, out("x7") _, out("x9") _, out("x10") _, out("x17") _, out("x28") _, out("x30") _,
            out("v3") _, out("v15") _, out("v31") _,
        );
    }
    right == 1
}

/// The same of vectors of any length, which a system call clears but for their first 128 bits.
fn counts_right_scalable(turns: u64) -> bool {
    let right: u64;
    // SAFETY: as above; the processor has them.
    unsafe {
        asm!(
            ".arch_extension sve",
            "ptrue p3.b", "ptrue p2.b", "index z3.b, #1, #3", "index z30.b, #5, #7",
            "2:", "subs {turns}, {turns}, #1", "b.ne 2b",
            "mov {right}, #0",
            "ptrue p1.b", "eors p1.b, p1/z, p1.b, p3.b", "b.ne 3f",
            "index z4.b, #1, #3", "cmpne p1.b, p2/z, z3.b, z4.b", "b.ne 3f",
            "index z4.b, #5, #7", "cmpne p1.b, p2/z, z30.b, z4.b", "b.ne 3f",
            "mov {right}, #1",
            "3:",
            turns = inout(reg) turns => _,
            right = out(reg) right,
            out("v3") _, out("v4") _, out("v30") _, out("p1") _, out("p2") _, out("p3") _,
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
        asm!(
            "mrs {seen}, tpidr_el0", "add {area}, {area}, {seen}",
            "adr {turns}, 2f", "str {turns}, [{section}, #8]",
            "adr {seen}, 5f", "sub {seen}, {seen}, {turns}", "str {seen}, [{section}, #16]",
            "adr {turns}, 7f", "str {turns}, [{section}, #24]",
            "mov {turns}, #0x4240", "movk {turns}, #0xf, lsl #16",
            "str {section}, [{area}, #8]",
            "2:", "ldr {seen}, [{borrowed}]",
            "3:", "subs {turns}, {turns}, #1", "b.ne 3b",
            "ldr {right}, [{borrowed}]", "cmp {seen}, {right}", "cset {right}, eq",
            "5:", "b 8f",
            ".inst 0xd428bc00",
            "7:", "mov {right}, #1",
            "8:", "str xzr, [{area}, #8]",
            area = inout(reg) __rseq_offset => _,
            section = in(reg) section,
            borrowed = in(reg) borrowed.as_ptr(),
            seen = out(reg) _, turns = out(reg) _, right = out(reg) right,
        );
    }
    right == 1
}
