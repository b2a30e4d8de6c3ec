//! x86-64: what the engine needs to know beyond what the relocator does.
//!
//! # Safety
//! Two routines are assembly: the end of a signal handler, which the kernel's frame alone returns to, and the rewriting of
//! pages that can't run meanwhile.

mod entry;
mod island;
mod kernel;
mod registers;
mod returns;
mod save;
mod seen;
mod stub;
mod vectors;

use core::ops::Range;

use grapnel_arch::x86_64::decode;
use grapnel_relocator::{CodeAddr, Isa, redirect};

use super::Pad;
use crate::rebind::RelocatedValue;
pub(crate) use entry::routine;
pub(crate) use island::Pattern;
pub(crate) use kernel::{EFFECTIVE_USER, RESTORER, SIGNAL_WAITS, mmap, pread, pwrite};
pub use registers::Registers;
pub(crate) use registers::Saved;
pub(super) use returns::{POINT, POINT_OFFSET};
pub(crate) use seen::{LAYOUT, debug_descriptor, debug_register, stack_of_link_stub, stack_within};
pub(crate) use stub::{
    AFTER_PROBE, JUMP_STUB_LEN, LINK_STUB_LEN, jump_stub, link_of_stub, link_stub, site_of_stub,
};
pub(crate) use vectors::vectors_can_be_saved;

/// `int3`: one byte, so it can be written over any instruction's start at once.
const TRAP: u8 = 0xcc;

/// The instruction sets of this process.
#[cfg(test)]
pub(crate) const ISAS: &[Isa] = &[Isa::X86_64];

/// `mov eax, 5; ret`.
#[cfg(test)]
pub(crate) const ANSWER_5: &[u8] = &[0xb8, 5, 0, 0, 0, 0xc3];

/// What unused memory for code holds: traps.
pub(crate) const FILL: &[u8] = &[TRAP];

/// The return address is in memory, in a slot that is the call's own until it returns.
pub(crate) const RETURNS_BY_MEMORY: bool = true;

/// The instruction set of the code that a pointer leads to, and where that code lies.
pub(crate) fn code_at(pointer: CodeAddr) -> (Isa, CodeAddr) {
    (Isa::X86_64, pointer)
}

/// The pointer that leads to code.
pub(crate) fn pointer_to(_: Isa, code: CodeAddr) -> CodeAddr {
    code
}

/// A redirect that needs no island, if it reaches.
pub(crate) fn near(isa: Isa, from: CodeAddr, to: CodeAddr) -> Option<redirect::Redirect> {
    redirect::near(isa, from, to).ok()
}

/// A redirect that leads anywhere, for an island.
pub(crate) fn absolute(isa: Isa, from: CodeAddr, to: CodeAddr) -> Option<redirect::Redirect> {
    redirect::absolute(isa, from, to).ok()
}

/// The trap that is written over an instruction's start. No instruction is shorter.
pub(crate) fn trap(_: Isa) -> &'static [u8] {
    FILL
}

/// Whether whoever runs the bytes traps at once.
pub(crate) fn is_trap(_: Isa, bytes: &[u8]) -> bool {
    bytes.first() == Some(&TRAP)
}

/// Whether these bytes of code change for everybody at once when they are written. Not here: `/proc/self/mem` makes no
/// promise about the size of its stores.
pub(crate) fn is_one_store(_: CodeAddr, _: usize) -> bool {
    false
}

/// `endbr64`, where indirect calls must land under indirect branch tracking.
pub(crate) fn landing_pad(_: Isa, code: &[u8]) -> Option<Pad> {
    const ENDBR64: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];
    code.starts_with(ENDBR64).then_some(Pad { bytes: ENDBR64, undo: &[] })
}

/// No cache of instructions has to be told of changed code here.
pub(crate) fn flush(_: Range<usize>) {}

/// A routine that can be changed to see whether that is noticed. Here it always is.
pub(crate) const TRIAL: Option<super::Trial> = None;

/// The longest instruction.
pub(crate) const MAX_INST_LEN: usize = grapnel_arch::x86_64::MAX_INST_LEN;

/// How far a near redirect reaches from its end, either way.
pub(crate) const NEAR_REACH: u64 = 1 << 31;

/// The end of the addresses that a process gets without asking for more.
pub(crate) const HIGHEST: usize = 0x7fff_ffff_f000;

/// A patch may go over a landing pad: nothing on Linux enforces them in user space yet.
pub(crate) const PADS_MAY_GO: bool = true;

/// Makes this core drop what it has decoded of code that has changed (Intel SDM volume 3, 9.1.3: a serialising
/// instruction).
pub(crate) fn synchronise_this_core() {
    core::hint::black_box(core::arch::x86_64::__cpuid(0));
}

/// How many of the bytes are whole instructions that compilers and linkers put between functions.
pub(crate) fn padding_len(_: Isa, at: CodeAddr, bytes: &[u8]) -> usize {
    let mut len = 0;
    while let Some(rest) = bytes.get(len..).filter(|rest| !rest.is_empty()) {
        match decode(at.add(len as u64), rest) {
            Ok(inst) if inst.is_padding() => len += inst.bytes().len(),
            _ => break,
        }
    }
    len
}

/// Whether a trap signal comes from a trap instruction, and not from another process or a debugger's single step.
/// Linux says `SI_KERNEL` for `int3`, emulators `TRAP_BRKPT`.
pub(crate) fn is_trap_code(code: i32) -> bool {
    code == libc::SI_KERNEL || code == libc::TRAP_BRKPT
}

/// The address of the trap that a thread has run: the saved program counter is behind it.
pub(crate) fn trap_address(context: &libc::ucontext_t) -> u64 {
    let pc = context.uc_mcontext.gregs[libc::REG_RIP as usize];
    pc.cast_unsigned().wrapping_sub(1)
}

/// Where the stack of an interrupted thread stands.
pub(crate) fn stack_pointer(context: &libc::ucontext_t) -> usize {
    context.uc_mcontext.gregs[libc::REG_RSP as usize] as usize
}

/// Has the thread go on elsewhere.
pub(crate) fn set_pc(context: &mut libc::ucontext_t, pc: u64) {
    context.uc_mcontext.gregs[libc::REG_RIP as usize] = pc.cast_signed();
}

// grapnel_hook_rewrite(start, len, at, bytes, count): makes pages writable, copies bytes into them, and makes them
// executable again. Between the two system calls it runs nothing but itself. Answers 0 or a negative error number.
core::arch::global_asm!(
    ".pushsection .text.grapnel_hook_rewrite, \"ax\", @progbits",
    ".p2align 4",
    ".globl grapnel_hook_rewrite",
    ".hidden grapnel_hook_rewrite",
    ".type grapnel_hook_rewrite, @function",
    "grapnel_hook_rewrite:",
    ".cfi_startproc",
    "mov r9, rdx",
    "mov r10, rcx",
    "mov eax, 10", // mprotect
    "mov edx, 3",  // PROT_READ | PROT_WRITE
    "syscall",
    "test rax, rax",
    "jnz 2f",
    "xchg rdi, r9",
    "xchg rsi, r10",
    "mov rcx, r8",
    "rep movsb",
    "mov rdi, r9",
    "mov rsi, r10",
    "mov eax, 10",
    "mov edx, 5", // PROT_READ | PROT_EXEC
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
    fn grapnel_hook_rewrite(start: usize, len: usize, at: usize, bytes: *const u8, count: usize) -> isize;
    safe static grapnel_hook_rewrite_end: u8;
}

/// Writes bytes into pages of code that are made writable for it and executable afterwards. Answers 0, or a negative
/// error number. If the second change of rights fails, the pages stay writable and not executable.
///
/// # Safety
/// `bytes` fit into the pages at `at`, the caller may change them, and nothing runs code in the pages meanwhile.
pub(crate) unsafe fn rewrite(pages: &Range<usize>, at: usize, bytes: &[u8]) -> isize {
    // SAFETY: the caller's promise; the routine keeps the C ABI.
    unsafe { grapnel_hook_rewrite(pages.start, pages.len(), at, bytes.as_ptr(), bytes.len()) }
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

/// What is added to the first argument of an IFUNC's resolver, which has none here.
pub(crate) const RESOLVER_FLAG: usize = 0;

/// What a relocation writes, if that can be a function's address (System V ABI, x86-64 psABI 4.4.1).
pub(crate) fn relocated_value(kind: u32) -> Option<RelocatedValue> {
    const R_X86_64_64: u32 = 1;
    const R_X86_64_GLOB_DAT: u32 = 6;
    const R_X86_64_JUMP_SLOT: u32 = 7;
    const R_X86_64_RELATIVE: u32 = 8;
    const R_X86_64_IRELATIVE: u32 = 37;
    match kind {
        R_X86_64_64 => Some(RelocatedValue::SymbolAndAddend),
        R_X86_64_GLOB_DAT | R_X86_64_JUMP_SLOT => Some(RelocatedValue::Symbol),
        R_X86_64_RELATIVE | R_X86_64_IRELATIVE => Some(RelocatedValue::Address),
        _ => None,
    }
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

/// Whether the processor keeps a second stack of return addresses, which a changed one wouldn't fit.
pub(crate) fn has_shadow_stack() -> bool {
    const ARCH_SHSTK_STATUS: usize = 0x5005;
    let mut features = 0u64;
    // SAFETY: the kernel writes one word; one that doesn't know the question answers EINVAL.
    let answer =
        unsafe { syscalls::syscall!(syscalls::Sysno::arch_prctl, ARCH_SHSTK_STATUS, &raw mut features) };
    answer.is_ok() && features & 1 != 0
}
