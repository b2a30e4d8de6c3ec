//! What only the processor itself can do, apart from the routines of stubs.
//!
//! # Safety
//! Two routines are assembly: the end of a signal handler, which the kernel's frame alone returns to, and the rewriting of
//! pages that can't run meanwhile.

use core::ops::Range;

use super::general::Own;

/// Makes this core drop what it has decoded of code that has changed (Intel SDM volume 3, 9.1.3: a serialising
/// instruction).
pub(crate) fn synchronise_this_core() {
    core::hint::black_box(core::arch::x86_64::__cpuid(0));
}

/// Whether QEMU runs this as a program, which names itself where hypervisors do (CPUID, 0x40000000).
pub(crate) fn is_emulated() -> bool {
    let name = core::arch::x86_64::__cpuid(0x4000_0000);
    let bytes = [name.ebx, name.ecx, name.edx].map(u32::to_le_bytes);
    bytes.as_flattened() == b"TCGTCGTCGTCG"
}

/// What tells this thread from all others: the thread pointer, which the word that it points to holds as well (System V
/// ABI, x86-64 psABI 3.4.6 with the TLS ABI's variant II).
pub(crate) fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: every thread that runs code of an ELF object has its control block there.
    unsafe {
        core::arch::asm!("mov {}, qword ptr fs:[0]", out(reg) pointer, options(nostack, readonly, preserves_flags));
    }
    pointer
}

// grapnel_hook_rewrite(start, len, at, bytes, count, rights): makes pages writable, copies bytes into them, and gives them
// these rights. Between the two system calls it runs nothing but itself. Answers 0 or a negative error number.
core::arch::global_asm!(
    ".pushsection .text.grapnel_hook_rewrite, \"ax\", @progbits",
    ".p2align 4",
    ".globl grapnel_hook_rewrite",
    ".hidden grapnel_hook_rewrite",
    ".type grapnel_hook_rewrite, @function",
    "grapnel_hook_rewrite:",
    ".cfi_startproc",
    "push rdx",
    ".cfi_adjust_cfa_offset 8",
    "mov r10, rcx",
    "mov eax, 10", // mprotect
    "mov edx, 3",  // PROT_READ | PROT_WRITE
    "syscall",
    "pop rdx",
    ".cfi_adjust_cfa_offset -8",
    "test rax, rax",
    "jnz 2f",
    "xchg rdi, rdx",
    "xchg rsi, r10",
    "mov rcx, r8",
    "rep movsb",
    "mov rdi, rdx",
    "mov rsi, r10",
    "mov edx, r9d",
    "mov eax, 10",
    "syscall",
    "2: ret",
    ".cfi_endproc",
    ".globl grapnel_hook_rewrite_end",
    ".hidden grapnel_hook_rewrite_end",
    "grapnel_hook_rewrite_end:",
    ".size grapnel_hook_rewrite, . - grapnel_hook_rewrite",
    ".popsection",
);

unsafe extern "C" {
    fn grapnel_hook_rewrite(
        start: usize,
        len: usize,
        at: usize,
        bytes: *const u8,
        count: usize,
        rights: i32,
    ) -> isize;
    safe static grapnel_hook_rewrite_end: u8;
}

/// Writes bytes into pages of code that are made writable for it, and have these rights afterwards. Answers 0, or a negative
/// error number. If the second change of rights fails, the pages stay writable and not executable.
///
/// # Safety
/// `bytes` fit into the pages at `at`, the caller may change them, and nothing runs code in the pages meanwhile.
pub(crate) unsafe fn rewrite(pages: &Range<usize>, at: usize, bytes: &[u8], rights: i32) -> isize {
    // SAFETY: the caller's promise; the routine keeps the C ABI.
    unsafe { grapnel_hook_rewrite(pages.start, pages.len(), at, bytes.as_ptr(), bytes.len(), rights) }
}

/// Where that routine lies.
pub(crate) fn rewrite_range() -> Range<usize> {
    grapnel_hook_rewrite as *const () as usize..&raw const grapnel_hook_rewrite_end as usize
}

// What a signal handler returns to: `rt_sigreturn`. Unwinders and debuggers know the end of a signal handler by exactly
// these bytes, if no unwind entry covers them; they look at the byte before as well, since that is where a call would be.
core::arch::global_asm!(
    ".pushsection .text.grapnel_hook_signal_return, \"ax\", @progbits",
    ".p2align 4",
    "nop",
    ".globl grapnel_hook_signal_return",
    ".hidden grapnel_hook_signal_return",
    ".type grapnel_hook_signal_return, @function",
    "grapnel_hook_signal_return:",
    ".byte 0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0", // mov rax, 15
    "syscall",
    ".size grapnel_hook_signal_return, . - grapnel_hook_signal_return",
    ".popsection",
);

unsafe extern "C" {
    /// Run by the kernel's signal frame alone.
    #[link_name = "grapnel_hook_signal_return"]
    pub(crate) fn signal_return();
}

// Calls a function of three arguments, the fourth here, with the low halves of the vector registers kept.
core::arch::global_asm!(
    ".pushsection .text.grapnel_hook_aside, \"ax\", @progbits",
    ".p2align 4",
    ".globl grapnel_hook_aside",
    ".hidden grapnel_hook_aside",
    ".type grapnel_hook_aside, @function",
    "grapnel_hook_aside:",
    ".cfi_startproc",
    "sub rsp, 264",
    ".cfi_def_cfa_offset 272",
    ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
    "movaps [rsp + 16 * \\i], xmm\\i",
    ".endr",
    "call rcx",
    ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
    "movaps xmm\\i, [rsp + 16 * \\i]",
    ".endr",
    "add rsp, 264",
    ".cfi_def_cfa_offset 8",
    "ret",
    ".cfi_endproc",
    ".size grapnel_hook_aside, . - grapnel_hook_aside",
    ".popsection",
);

unsafe extern "C" {
    fn grapnel_hook_aside();
}

type Aside = unsafe extern "C" fn(usize, usize, usize) -> usize;

/// The routine.
pub(super) const ASIDE: Own = Own(grapnel_hook_aside as *const ());

/// Where a routine has saved no vector registers, what is rare may use them all the same: calls a function with their low
/// halves kept.
///
/// # Safety
/// As for the function.
#[inline(always)]
pub(crate) unsafe fn aside(function: Aside, [a, b, c]: [usize; 3]) -> usize {
    let answer;
    // SAFETY: the caller's promise; the routine keeps the C ABI. By name, since a compiler's call may go by a word of memory,
    // and such a call leads anywhere for who looks at the code.
    unsafe {
        core::arch::asm!(
            "call {}",
            sym grapnel_hook_aside,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("rcx") function,
            lateout("rax") answer,
            clobber_abi("sysv64"),
        );
    }
    answer
}

/// What code contains that looks at saved vector registers, so that nobody takes it for code that leaves them alone.
#[inline(always)]
pub(super) fn mark_vectors() {
    // SAFETY: it changes nothing.
    unsafe { core::arch::asm!("movaps xmm0, xmm0", options(nomem, nostack, preserves_flags)) };
}
