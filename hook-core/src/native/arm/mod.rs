//! 32-bit Arm, where A32 and T32 code live in one process: what the engine needs to know beyond what the relocator does.
//!
//! Bit 0 of a function's address says which of the two it is. Stubs and routines are A32 code, which serves both: they are
//! entered and left by instructions that change the instruction set by that bit.
//!
//! Sections are those of Arm's Architecture Reference Manual (DDI 0406) and the procedure call standard (AAPCS32).
//!
//! # Safety
//! Two routines are assembly: the rewriting of pages that can't run meanwhile, and the kernel's call that tells caches of
//! code that was written.

mod entry;
mod inbound;
mod island;
mod kernel;
mod registers;
mod returns;
mod save;
mod seen;
mod stub;
#[path = "../untold.rs"]
mod untold;

use core::{arch::asm, ops::Range};

use grapnel_relocator::{CodeAddr, Isa, redirect};

use super::{Pad, Trial};
use crate::rebind::RelocatedValue;
pub(crate) use entry::routine;
pub(crate) use inbound::branch_into;
pub(crate) use island::Pattern;
pub(crate) use kernel::{EFFECTIVE_USER, RESTORER, SIGNAL_WAITS, mmap, pread, pwrite};
pub use registers::Registers;
pub(crate) use registers::{Saved, vectors_can_be_saved};
pub(super) use returns::{PARTS, POINT, POINT_OFFSET};
pub(crate) use seen::{
    LAYOUT, debug_routine, stack_of_jump_stub, stack_of_link_stub, stack_of_preamble, stack_within,
};
pub(crate) use stub::{
    AFTER_PROBE, JUMP_STUB_LEN, LINK_STUB_LEN, STUBS, jump_stub, link_of_stub, link_stub, site_of_stub,
};
pub(crate) use untold::{aside, leaves_vectors_alone, prepare, routines_leave_vectors_alone};

/// The undefined instructions that Linux and debuggers take for breakpoints (the kernel's `arch/arm/kernel/ptrace.c`). To tell
/// them from others the kernel reads them again, and where something else was written since the thread gets `SIGILL`.
const UNDEFINED_A32: [u8; 4] = 0xe7f0_01f0_u32.to_le_bytes();
const UNDEFINED_T32: [u8; 2] = 0xde01_u16.to_le_bytes();
/// `bkpt`, of which the processor tells the kernel.
const TRAP_A32: [u8; 4] = 0xe120_0070_u32.to_le_bytes();
const TRAP_T32: [u8; 2] = 0xbe00_u16.to_le_bytes();

/// The instruction sets of this process.
pub(crate) const ISAS: &[Isa] = &[Isa::T32, Isa::A32];

/// `mov r0, #5; bx lr`, in A32.
#[cfg(test)]
pub(crate) const ANSWER_5: &[u8] = &[5, 0, 0xa0, 0xe3, 0x1e, 0xff, 0x2f, 0xe1];

/// What unused memory for code holds: traps in both instruction sets.
pub(crate) const FILL: &[u8] = &0xe7ff_defe_u32.to_le_bytes();

/// The return address is in a register at the entry, and then where the function keeps it.
pub(crate) const RETURNS_BY_MEMORY: bool = false;

/// There are no landing pads.
pub(crate) const PADS_MAY_GO: bool = true;

/// The longest instruction.
pub(crate) const MAX_INST_LEN: usize = 4;

/// Nothing leads a redirect here.
pub(crate) const LEAD: &[u8] = &[];

/// How far a near redirect reaches from its end, either way: 16 MiB in T32, and a page less for what is counted from
/// elsewhere. A32 reaches twice as far.
pub(crate) const NEAR_REACH: u64 = (1 << 24) - 4096;

/// The end of the addresses that a process gets.
pub(crate) const HIGHEST: usize = 0xffff_0000;

/// Whether an emulator runs this whose list of mappings can't be trusted: none is known.
pub(crate) fn is_emulated() -> bool {
    false
}

/// The instruction set of the code that a pointer leads to, and where that code lies.
pub(crate) fn code_at(pointer: CodeAddr) -> (Isa, CodeAddr) {
    let isa = if pointer.0 & 1 == 0 { Isa::A32 } else { Isa::T32 };
    (isa, CodeAddr(pointer.0 & !1))
}

/// The pointer that leads to code.
pub(crate) fn pointer_to(isa: Isa, code: CodeAddr) -> CodeAddr {
    CodeAddr(code.0 | u64::from(isa == Isa::T32))
}

/// A redirect that needs no island, if it reaches. It stays in its instruction set.
pub(crate) fn near(isa: Isa, from: CodeAddr, to: CodeAddr) -> Option<redirect::Redirect> {
    let (of, to) = code_at(to);
    redirect::near(isa, from, to).ok().filter(|_| of == isa)
}

/// A redirect that leads anywhere and into either instruction set, for an island: its literal, which comes last, is loaded
/// into the PC.
pub(crate) fn absolute(isa: Isa, from: CodeAddr, to: CodeAddr) -> Option<redirect::Redirect> {
    let mut code = redirect::absolute(isa, from, from).ok()?;
    let literal = code.len().checked_sub(4)?;
    code.get_mut(literal..)?.copy_from_slice(&(to.0 as u32).to_le_bytes());
    Some(code)
}

/// The trap that is written over an instruction's start. No instruction is shorter.
pub(crate) fn trap(isa: Isa) -> &'static [u8] {
    match isa {
        Isa::T32 => &TRAP_T32,
        _ => &TRAP_A32,
    }
}

/// Whether whoever runs the bytes traps at once.
pub(crate) fn is_trap(isa: Isa, bytes: &[u8]) -> bool {
    match (isa, bytes) {
        (Isa::T32, [_, 0xbe, ..]) => true,
        (Isa::T32, _) => bytes.starts_with(&UNDEFINED_T32),
        (_, [low, _, high, 0xe1, ..]) if low & 0xf0 == 0x70 && high & 0xf0 == 0x20 => true,
        _ => bytes.starts_with(&UNDEFINED_A32),
    }
}

/// How many aligned bytes of code change for everybody at once when they are written: the kernel copies a word by one store.
pub(crate) const STORE: usize = 4;

pub(crate) fn landing_pad(_: Isa, _: &[u8]) -> Option<Pad> {
    None
}

/// Other cores may have fetched what was at an address before code was written there (DDI 0406, A3.5.4).
pub(crate) const SEES_NEW_CODE: bool = false;

/// Tells the caches of code that was written. Programs may not do that themselves here.
pub(crate) fn flush(code: Range<usize>) {
    // SAFETY: the kernel changes nothing but caches.
    unsafe { grapnel_hook_flush(code.start, code.end) };
}

/// Makes this core drop what it has decoded of code that has changed.
pub(crate) fn synchronise_this_core() {
    // SAFETY: a barrier.
    unsafe { asm!("isb", options(nostack, preserves_flags)) };
}

/// How many of the bytes are padding between functions. None is known to be: nothing says where a function ends.
pub(crate) fn padding_len(_: Isa, _: CodeAddr, _: &[u8]) -> usize {
    0
}

/// The signals by which a thread is told that it has run a trap. Of `bkpt` 32-bit kernels tell by `SIGBUS`, unless their support
/// of hardware breakpoints has begun (the kernel's `arch/arm/mm/fsr-2level.c` and `arch/arm/kernel/hw_breakpoint.c`).
pub(crate) const TRAP_SIGNALS: [i32; 2] = [libc::SIGTRAP, libc::SIGBUS];

/// Whether that is the signal of who runs the bytes.
pub(crate) fn tells_of(_: i32, isa: Isa, bytes: &[u8]) -> bool {
    is_trap(isa, bytes)
}

/// Whether such a signal may come from a trap instruction. Of `bkpt` 32-bit kernels say `TRAP_HWBKPT`; with `SIGBUS` 0, as of a
/// signal that a process has sent.
pub(crate) fn is_trap_code(signal: i32, code: i32) -> bool {
    match signal {
        libc::SIGBUS => code == 0,
        _ => code == libc::TRAP_BRKPT || code == libc::TRAP_HWBKPT,
    }
}

/// The address of the trap that a thread has run.
pub(crate) fn trap_address(_: i32, context: &libc::ucontext_t) -> u64 {
    u64::from(context.uc_mcontext.arm_pc)
}

/// Where the stack of an interrupted thread stands.
pub(crate) fn stack_pointer(context: &libc::ucontext_t) -> usize {
    context.uc_mcontext.arm_sp as usize
}

/// Has the thread go on elsewhere, in the same instruction set: at the copy of the instruction that it was in front of.
///
/// If that is one of an IT block, the thread's state holds the block's conditions (CPSR's IT bits; DDI 0406, A2.5.2). A copy
/// of the whole block needs them still; one that was taken apart has conditions of its own.
pub(crate) fn set_pc(context: &mut libc::ucontext_t, pc: u64) {
    const T: u32 = 1 << 5;
    const IT: u32 = 0x0600_fc00;
    let state = context.uc_mcontext.arm_cpsr;
    if state & T != 0 && state & IT != 0 {
        // SAFETY: code of a trampoline, which is readable, longer than this, and stays while a thread may come to it.
        let [first, second] = unsafe { (pc as usize as *const [u16; 2]).read() };
        if has_own_condition(first, second) {
            context.uc_mcontext.arm_cpsr = state & !IT;
        }
    }
    context.uc_mcontext.arm_pc = pc as _;
}

/// It is `it` or a conditional branch, which are in no IT block.
fn has_own_condition(first: u16, second: u16) -> bool {
    let it = first & 0xff00 == 0xbf00 && first & 0xf != 0;
    let branch = first & 0xf000 == 0xd000 && first & 0xe00 != 0xe00;
    let wide_branch = first & 0xf800 == 0xf000 && second & 0xd000 == 0x8000 && first & 0x380 != 0x380;
    it || branch || wide_branch
}

// grapnel_hook_rewrite(start, len, at, bytes, count, rights): makes pages writable, copies bytes into them, and gives them
// these rights. Between the two system calls it runs nothing but itself. Answers 0 or a negative error number.
core::arch::global_asm!(
    ".pushsection .text.grapnel_hook_rewrite, \"ax\", %progbits",
    ".p2align 4",
    ".arm",
    ".globl grapnel_hook_rewrite",
    ".hidden grapnel_hook_rewrite",
    ".type grapnel_hook_rewrite, %function",
    "grapnel_hook_rewrite:",
    ".fnstart",
    ".save {{r4-r8, lr}}",
    "push {{r4-r8, lr}}",
    "mov r4, r0",
    "mov r5, r1",
    "mov r6, r2",
    "mov r8, r3",
    "mov r7, #125", // mprotect
    "mov r2, #3",   // PROT_READ | PROT_WRITE
    "svc #0",
    "cmp r0, #0",
    "bne 3f",
    "ldr r1, [sp, #24]",
    "1: cmp r1, #0",
    "beq 2f",
    "ldrb r2, [r8], #1",
    "strb r2, [r6], #1",
    "sub r1, r1, #1",
    "b 1b",
    "2: mov r0, r4",
    "mov r1, r5",
    "ldr r2, [sp, #28]",
    "svc #0",
    "3: pop {{r4-r8, pc}}",
    ".fnend",
    ".globl grapnel_hook_rewrite_end",
    ".hidden grapnel_hook_rewrite_end",
    "grapnel_hook_rewrite_end:",
    ".size grapnel_hook_rewrite, . - grapnel_hook_rewrite",
    // grapnel_hook_flush(start, end)
    ".globl grapnel_hook_flush",
    ".hidden grapnel_hook_flush",
    ".type grapnel_hook_flush, %function",
    "grapnel_hook_flush:",
    ".fnstart",
    ".save {{r7, lr}}",
    "push {{r7, lr}}",
    "mov r2, #0",
    "mov r7, #0xf0000",
    "orr r7, r7, #2",
    "svc #0",
    "pop {{r7, pc}}",
    ".fnend",
    ".size grapnel_hook_flush, . - grapnel_hook_flush",
    // Answers 1, or what it is made to answer.
    ".p2align 4",
    ".globl grapnel_hook_trial",
    ".hidden grapnel_hook_trial",
    ".type grapnel_hook_trial, %function",
    "grapnel_hook_trial:",
    ".fnstart",
    "mov r0, #1",
    "bx lr",
    ".fnend",
    ".size grapnel_hook_trial, . - grapnel_hook_trial",
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
    fn grapnel_hook_flush(start: usize, end: usize);
    fn grapnel_hook_trial() -> u32;
    safe static grapnel_hook_rewrite_end: u8;
}

/// A routine that can be changed to see whether that is noticed.
pub(crate) const TRIAL: Option<Trial> =
    Some(Trial { routine: grapnel_hook_trial, forms: [[1, 0, 0xa0, 0xe3], [2, 0, 0xa0, 0xe3]] });

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

/// What is added to the first argument of an IFUNC's resolver: nothing, `AT_HWCAP` is all.
pub(crate) const RESOLVER_FLAG: usize = 0;

/// What a relocation writes, if that can be a function's address (ELF for the Arm Architecture, 5.6).
pub(crate) fn relocated_value(kind: u32) -> Option<RelocatedValue> {
    const R_ARM_ABS32: u32 = 2;
    const R_ARM_GLOB_DAT: u32 = 21;
    const R_ARM_JUMP_SLOT: u32 = 22;
    const R_ARM_RELATIVE: u32 = 23;
    const R_ARM_IRELATIVE: u32 = 160;
    match kind {
        R_ARM_ABS32 => Some(RelocatedValue::SymbolAndAddend),
        R_ARM_GLOB_DAT | R_ARM_JUMP_SLOT => Some(RelocatedValue::Symbol),
        R_ARM_RELATIVE | R_ARM_IRELATIVE => Some(RelocatedValue::Address),
        _ => None,
    }
}

/// What tells this thread from all others: the thread pointer.
pub(crate) fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: the register (TPIDRURO) may be read.
    unsafe { asm!("mrc p15, 0, {}, c13, c0, 3", out(reg) pointer, options(nomem, nostack, preserves_flags)) };
    pointer
}

/// No processor has one.
pub(crate) fn has_shadow_stack() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_name_the_instruction_set() {
        for (pointer, isa, at) in [(0x1000, Isa::A32, 0x1000), (0x1003, Isa::T32, 0x1002)] {
            assert_eq!(code_at(CodeAddr(pointer)), (isa, CodeAddr(at)));
            assert_eq!(pointer_to(isa, CodeAddr(at)), CodeAddr(pointer));
        }
    }

    #[test]
    fn redirects_lead_into_either_instruction_set() {
        let (a32, t32) = (CodeAddr(0x2_0000), CodeAddr(0x2_0003));
        for (isa, from) in [(Isa::A32, 0x1_0000), (Isa::T32, 0x1_0000), (Isa::T32, 0x1_0002)] {
            let from = CodeAddr(from);
            for to in [a32, t32] {
                assert_eq!(near(isa, from, to).is_some(), (isa == Isa::T32) == (to == t32));
                let code = absolute(isa, from, to).unwrap();
                assert_eq!(code[code.len() - 4..], (to.0 as u32).to_le_bytes());
                assert!((from.0 + code.len() as u64).is_multiple_of(4));
            }
        }
    }

    #[test]
    fn conditions_are_known() {
        for (first, second) in [(0xbf08, 0), (0xd1fe, 0), (0xf43f, 0xaffe), (0xf000, 0x8000)] {
            assert!(has_own_condition(first, second), "{first:#x}");
        }
        // nop, svc, udf, mov, b.w, bl, msr.
        let others = [
            (0xbf00, 0),
            (0xdf00, 0),
            (0xde00, 0),
            (0x4608, 0),
            (0xf000, 0xb800),
            (0xf000, 0xf800),
            (0xf380, 0x8800),
        ];
        for (first, second) in others {
            assert!(!has_own_condition(first, second), "{first:#x}");
        }
    }
}
