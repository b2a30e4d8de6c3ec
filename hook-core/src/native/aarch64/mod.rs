//! AArch64: what the engine needs to know beyond what the relocator does.
//!
//! Sections are those of Arm's Architecture Reference Manual (DDI 0487), the procedure call standard (AAPCS64) and its
//! DWARF supplement (AADWARF64).
//!
//! # Safety
//! One routine is assembly: the rewriting of pages that can't run meanwhile. Caches are told of code that was written.

mod entry;
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

use grapnel_arch::aarch64::{INST_LEN, decode};
use grapnel_relocator::{CodeAddr, Isa, redirect};

use super::{Pad, Trial};
use crate::{
    memory::maps::Maps,
    rebind::RelocatedValue,
    surroundings::{Inbound, Surroundings},
};
pub(crate) use entry::routine;
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

/// `brk #0`.
const TRAP: [u8; 4] = 0xd420_0000_u32.to_le_bytes();

/// The instruction sets of this process.
pub(crate) const ISAS: &[Isa] = &[Isa::Aarch64];

/// `mov w0, #5; ret`.
#[cfg(test)]
pub(crate) const ANSWER_5: &[u8] = &[0xa0, 0, 0x80, 0x52, 0xc0, 0x03, 0x5f, 0xd6];

/// What unused memory for code holds: traps.
pub(crate) const FILL: &[u8] = &TRAP;

/// The return address is in a register at the entry, and then where the function keeps it, perhaps signed.
pub(crate) const RETURNS_BY_MEMORY: bool = false;

/// A patch must leave the landing pad where it is, if there is one.
pub(crate) const PADS_MAY_GO: bool = false;

/// The longest instruction.
pub(crate) const MAX_INST_LEN: usize = INST_LEN;

/// Nothing leads a redirect here.
pub(crate) const LEAD: &[u8] = &[];

/// How far a near redirect reaches from its end, either way: 128 MiB, and a page less for what is counted from elsewhere.
pub(crate) const NEAR_REACH: u64 = (1 << 27) - 4096;

/// The end of the addresses that a process gets without asking for more (48 bits).
pub(crate) const HIGHEST: usize = 0xffff_ffff_f000;

/// Whether an emulator runs this whose list of mappings can't be trusted: none is known.
pub(crate) fn is_emulated() -> bool {
    false
}

/// The instruction set of the code that a pointer leads to, and where that code lies.
pub(crate) fn code_at(pointer: CodeAddr) -> (Isa, CodeAddr) {
    (Isa::Aarch64, pointer)
}

/// The pointer that leads to code.
pub(crate) fn pointer_to(_: Isa, code: CodeAddr) -> CodeAddr {
    code
}

/// A branch into a patch from another function: a patch is one instruction, which is entered at its start or not at all.
pub(crate) fn branch_into(_: Isa, _: &Range<u64>, _: &Range<u64>, _: &Maps, _: &Surroundings<'_>) -> Inbound {
    Inbound::Nothing
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
    &TRAP
}

/// Whether whoever runs the bytes traps at once.
pub(crate) fn is_trap(_: Isa, bytes: &[u8]) -> bool {
    bytes.starts_with(&TRAP)
}

/// How many aligned bytes of code change for everybody at once when they are written: the kernel copies a word by one store.
pub(crate) const STORE: usize = INST_LEN;

/// The instructions at which indirect calls may land (DDI 0487, D8.4.7). Those that sign the return address are taken back
/// on the way to a replacement, which signs it itself.
pub(crate) fn landing_pad(_: Isa, code: &[u8]) -> Option<Pad> {
    const PADS: [(u32, Option<u32>); 4] = [
        (0xd503_245f, None),              // bti c
        (0xd503_24df, None),              // bti jc
        (0xd503_233f, Some(0xd503_23bf)), // paciasp, autiasp
        (0xd503_237f, Some(0xd503_23ff)), // pacibsp, autibsp
    ];
    const BYTES: [([u8; 4], [u8; 4], usize); 4] = {
        let mut out = [([0; 4], [0; 4], 0); 4];
        let mut i = 0;
        while i < 4 {
            let (pad, undo) = PADS[i];
            out[i] = match undo {
                Some(undo) => (pad.to_le_bytes(), undo.to_le_bytes(), 4),
                None => (pad.to_le_bytes(), [0; 4], 0),
            };
            i += 1;
        }
        out
    };
    let (bytes, undo, len) = BYTES.iter().find(|(pad, ..)| code.starts_with(pad))?;
    Some(Pad { bytes, undo: undo.get(..*len)? })
}

/// Other cores may have fetched what was at an address before code was written there (DDI 0487, B2.4.4).
pub(crate) const SEES_NEW_CODE: bool = false;

/// Tells the caches of code that was written: what is in the cache of data goes to where instructions are read from, and
/// what was read there before is dropped (DDI 0487, B2.4.4). CTR_EL0 has the lengths of lines, and says whether one of the
/// two isn't needed.
pub(crate) fn flush(code: Range<usize>) {
    const IDC: usize = 1 << 28;
    const DIC: usize = 1 << 29;
    let ctr: usize;
    // SAFETY: the register may be read; the instructions change nothing but caches, at addresses that are mapped.
    unsafe {
        asm!("mrs {}, ctr_el0", out(reg) ctr, options(nomem, nostack, preserves_flags));
        let lines = |log: usize| {
            let line = 4usize << (log & 15);
            (code.start & !(line - 1)..code.end).step_by(line)
        };
        if ctr & IDC == 0 {
            for at in lines(ctr >> 16) {
                asm!("dc cvau, {}", in(reg) at, options(nostack, preserves_flags));
            }
        }
        asm!("dsb ish", options(nostack, preserves_flags));
        if ctr & DIC == 0 {
            for at in lines(ctr) {
                asm!("ic ivau, {}", in(reg) at, options(nostack, preserves_flags));
            }
        }
        asm!("dsb ish", "isb", options(nostack, preserves_flags));
    }
}

/// Makes this core drop what it has decoded of code that has changed.
pub(crate) fn synchronise_this_core() {
    // SAFETY: a barrier.
    unsafe { asm!("isb", options(nostack, preserves_flags)) };
}

/// How many of the bytes are whole instructions that compilers and linkers put between functions.
pub(crate) fn padding_len(_: Isa, at: CodeAddr, bytes: &[u8]) -> usize {
    let insts = bytes.chunks_exact(INST_LEN).enumerate();
    insts
        .take_while(|(i, bytes)| {
            decode(at.add((i * INST_LEN) as u64), bytes).is_ok_and(|inst| inst.is_padding())
        })
        .count()
        * INST_LEN
}

/// The signals by which a thread is told that it has run a trap.
pub(crate) const TRAP_SIGNALS: [i32; 1] = [libc::SIGTRAP];

/// Whether that is the signal of who runs the bytes.
pub(crate) fn tells_of(_: i32, isa: Isa, bytes: &[u8]) -> bool {
    is_trap(isa, bytes)
}

/// Whether a trap signal comes from a trap instruction.
pub(crate) fn is_trap_code(_: i32, code: i32) -> bool {
    code == libc::TRAP_BRKPT
}

/// The address of the trap that a thread has run.
pub(crate) fn trap_address(_: i32, context: &libc::ucontext_t) -> u64 {
    context.uc_mcontext.pc
}

/// Where the stack of an interrupted thread stands.
pub(crate) fn stack_pointer(context: &libc::ucontext_t) -> usize {
    context.uc_mcontext.sp as usize
}

/// Has the thread go on elsewhere.
pub(crate) fn set_pc(context: &mut libc::ucontext_t, pc: u64) {
    context.uc_mcontext.pc = pc;
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
    "mov x10, x0",
    "mov x6, x1",
    "mov x7, x2",
    "mov x8, #226", // mprotect
    "mov x2, #3",   // PROT_READ | PROT_WRITE
    "svc #0",
    "cbnz x0, 3f",
    "1: cbz x4, 2f",
    "ldrb w9, [x3], #1",
    "strb w9, [x7], #1",
    "sub x4, x4, #1",
    "b 1b",
    "2: mov x0, x10",
    "mov x1, x6",
    "mov w2, w5",
    "svc #0",
    "3: ret",
    ".cfi_endproc",
    ".globl grapnel_hook_rewrite_end",
    ".hidden grapnel_hook_rewrite_end",
    "grapnel_hook_rewrite_end:",
    ".size grapnel_hook_rewrite, . - grapnel_hook_rewrite",
    // Answers 1, or what it is made to answer.
    ".p2align 4",
    ".globl grapnel_hook_trial",
    ".hidden grapnel_hook_trial",
    ".type grapnel_hook_trial, @function",
    "grapnel_hook_trial:",
    ".cfi_startproc",
    "mov w0, #1",
    "ret",
    ".cfi_endproc",
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
    fn grapnel_hook_trial() -> u32;
    safe static grapnel_hook_rewrite_end: u8;
}

/// A routine that can be changed to see whether that is noticed.
pub(crate) const TRIAL: Option<Trial> =
    Some(Trial { routine: grapnel_hook_trial, forms: [[0x20, 0, 0x80, 0x52], [0x40, 0, 0x80, 0x52]] });

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

/// What is added to the first argument of an IFUNC's resolver: that there is a second one (System V ABI for AArch64).
pub(crate) const RESOLVER_FLAG: usize = 1 << 62;

/// What a relocation writes, if that can be a function's address (ELF for the Arm 64-bit Architecture, 5.7).
pub(crate) fn relocated_value(kind: u32) -> Option<RelocatedValue> {
    const R_AARCH64_ABS64: u32 = 257;
    const R_AARCH64_GLOB_DAT: u32 = 1025;
    const R_AARCH64_JUMP_SLOT: u32 = 1026;
    const R_AARCH64_RELATIVE: u32 = 1027;
    const R_AARCH64_IRELATIVE: u32 = 1032;
    match kind {
        R_AARCH64_ABS64 => Some(RelocatedValue::SymbolAndAddend),
        R_AARCH64_GLOB_DAT | R_AARCH64_JUMP_SLOT => Some(RelocatedValue::Symbol),
        R_AARCH64_RELATIVE | R_AARCH64_IRELATIVE => Some(RelocatedValue::Address),
        _ => None,
    }
}

/// What tells this thread from all others: the thread pointer.
pub(crate) fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: the register may be read.
    unsafe { asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nomem, nostack, preserves_flags)) };
    pointer
}

/// Whether the processor keeps a second stack of return addresses, which a changed one wouldn't fit.
pub(crate) fn has_shadow_stack() -> bool {
    const PR_GET_SHADOW_STACK_STATUS: usize = 74;
    let mut features = 0u64;
    // SAFETY: the kernel writes one word; one that doesn't know the question answers EINVAL.
    let answer = unsafe {
        syscalls::syscall!(syscalls::Sysno::prctl, PR_GET_SHADOW_STACK_STATUS, &raw mut features, 0, 0, 0)
    };
    answer.is_ok() && features & 1 != 0
}
