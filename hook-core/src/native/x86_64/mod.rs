//! x86-64: what the engine needs to know beyond what the relocator does.
//!
//! # Safety
//! Nothing here is unsafe but a question to the kernel. What is assembly is in the modules.

mod entry;
mod general;
mod inbound;
mod island;
mod kernel;
#[cfg_attr(miri, path = "machine_of_miri.rs")]
mod machine;
mod registers;
mod returns;
mod save;
mod seen;
mod stub;
mod vectors;

use core::ops::Range;

use grapnel_arch::x86_64::{decode, text};
use grapnel_relocator::{CodeAddr, Isa, redirect};

use super::Pad;
use crate::{rebind::RelocatedValue, sys};
pub(crate) use entry::routine;
pub(crate) use general::{leaves_vectors_alone, routines_leave_vectors_alone};
pub(crate) use inbound::branch_into;
pub(crate) use island::Pattern;
pub(crate) use kernel::{EFFECTIVE_USER, RESTORER, SIGNAL_WAITS, mmap, pread, pwrite};
pub(crate) use machine::{
    aside, is_emulated, rewrite, rewrite_range, signal_return, synchronise_this_core, thread_pointer,
};
pub use registers::Registers;
pub(crate) use registers::Saved;
pub(super) use returns::{PARTS, POINT, POINT_OFFSET};
pub(crate) use seen::{
    LAYOUT, debug_routine, stack_of_jump_stub, stack_of_link_stub, stack_of_preamble, stack_within,
};
pub(crate) use stub::{
    AFTER_PROBE, JUMP_STUB_LEN, LINK_STUB_LEN, STUBS, jump_stub, link_of_stub, link_stub, site_of_stub,
};
pub(crate) use vectors::vectors_can_be_saved;

/// See [`crate::prepare`].
pub(crate) fn prepare() {
    // `mov eax, [rax]` and `cmpeqps xmm0, xmm1`. A text has each instruction decoded by tables, and is made of others, one of
    // them for comparisons.
    for bytes in [&[0x8b, 0][..], &[0x0f, 0xc2, 0xc1, 0]] {
        let _ = text(CodeAddr(0), bytes);
    }
}

/// `int3`: one byte, so it can be written over any instruction's start at once.
const TRAP: u8 = 0xcc;

/// Instructions of one byte that 64-bit mode doesn't have (AMD64 Manual, volume 3, table B-3), from the highest on. As the
/// highest byte of a displacement each leads to other places above.
const UNDEFINED: &[u8] = &[0x61, 0x60, 0x3f, 0x37, 0x2f, 0x27, 0x1f, 0x1e, 0x17, 0x16, 0x0e, 0x07, 0x06];

/// The instruction sets of this process.
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
    bytes.first().is_some_and(|byte| *byte == TRAP || UNDEFINED.contains(byte))
}

/// How many aligned bytes of code change for everybody at once when they are written. `/proc/self/mem` makes no promise about
/// the size of its stores here.
pub(crate) const STORE: usize = 1;

/// Every core runs what was written, if nothing else was run there before (AMD64 Manual, volume 2, 7.6.1).
pub(crate) const SEES_NEW_CODE: bool = true;

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

/// What may lead a near redirect, from the end on, to move its displacement to other bytes: prefixes that change nothing (AMD64
/// Manual, volume 3, 1.2.4: in 64-bit mode those of CS are ignored). Assemblers put them ahead of jumps, too.
pub(crate) const LEAD: &[u8] = &[0x2e; 3];

/// How far a near redirect reaches from its end, either way.
pub(crate) const NEAR_REACH: u64 = 1 << 31;

/// The end of the addresses that a process gets without asking for more.
pub(crate) const HIGHEST: usize = 0x7fff_ffff_f000;

/// A patch may go over a landing pad: nothing on Linux enforces them in user space yet.
pub(crate) const PADS_MAY_GO: bool = true;

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

/// The signals by which a thread is told that it has run a trap.
pub(crate) const TRAP_SIGNALS: [i32; 2] = [libc::SIGTRAP, libc::SIGILL];

/// Whether that is the signal of who runs the bytes. `ud2` and its like are undefined for good, and never this crate's.
pub(crate) fn tells_of(signal: i32, _: Isa, bytes: &[u8]) -> bool {
    match (signal, bytes) {
        (libc::SIGILL, [0x0f, 0x0b | 0xb9 | 0xff, ..]) => true,
        (libc::SIGILL, [first, ..]) => UNDEFINED.contains(first),
        (_, [first, ..]) => *first == TRAP,
        (_, []) => false,
    }
}

/// Whether a trap signal comes from a trap instruction, and not from another process or a debugger's single step.
/// Linux says `SI_KERNEL` for `int3`, emulators `TRAP_BRKPT`.
pub(crate) fn is_trap_code(signal: i32, code: i32) -> bool {
    const ILL_ILLOPC: i32 = 1;
    const ILL_ILLOPN: i32 = 2;
    match signal {
        libc::SIGILL => code == ILL_ILLOPN || code == ILL_ILLOPC,
        _ => code == libc::SI_KERNEL || code == libc::TRAP_BRKPT,
    }
}

/// The address of the trap that a thread has run. The saved program counter is behind `int3`, and at what is undefined.
pub(crate) fn trap_address(signal: i32, context: &libc::ucontext_t) -> u64 {
    let pc = context.uc_mcontext.gregs[libc::REG_RIP as usize].cast_unsigned();
    if signal == libc::SIGILL { pc } else { pc.wrapping_sub(1) }
}

/// Where the stack of an interrupted thread stands.
pub(crate) fn stack_pointer(context: &libc::ucontext_t) -> usize {
    context.uc_mcontext.gregs[libc::REG_RSP as usize] as usize
}

/// Has the thread go on elsewhere.
pub(crate) fn set_pc(context: &mut libc::ucontext_t, pc: u64) {
    context.uc_mcontext.gregs[libc::REG_RIP as usize] = pc.cast_signed();
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

/// Whether the processor keeps a second stack of return addresses, which a changed one wouldn't fit.
pub(crate) fn has_shadow_stack() -> bool {
    const ARCH_SHSTK_STATUS: usize = 0x5005;
    let mut features = 0u64;
    // SAFETY: the kernel writes one word; one that doesn't know the question answers EINVAL.
    let answer = unsafe { sys::syscall!(syscalls::Sysno::arch_prctl, ARCH_SHSTK_STATUS, &raw mut features) };
    answer.is_ok() && features & 1 != 0
}
