//! Hooks on functions of which there may be several in a process: `operator new` is in libstdc++, and may be in the
//! program and in other libraries too.
//!
//! Each such function has a slot, which says what it is and where its own code goes on, and a thunk, which its hook
//! leads to. All thunks lead to one stub, which asks [`before`], makes the call with the caller's registers, and tells
//! [`after`]. The call is made by the stub, not by Rust: an exception may pass through it.
//!
//! # Safety
//! A slot is filled in under [`life::PROCESS`](crate::life::PROCESS), before its hook is live, and emptied when the
//! object of its function is gone. The stub keeps to the System V ABI on both sides, for functions of up to six whole
//! arguments whose result is in RAX.

use crate::entry::SavedRegisters;
use crate::operators::{self, Operator};
use crate::tls;
use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

/// How many functions can be hooked in this way.
pub(crate) const SLOTS: usize = 512;

/// What is known of a hooked function.
#[derive(Debug)]
pub(crate) struct Slot {
    /// Its address; 0 for a slot that is free.
    target: AtomicUsize,
    /// Where its own code goes on.
    original: AtomicUsize,
    /// Which operator it is: [`Operator::to_u8`].
    operator: AtomicU8,
    /// The code whose calls of allocation functions are its own.
    code: [AtomicUsize; 2],
}

impl Slot {
    const fn free() -> Self {
        Self {
            target: AtomicUsize::new(0),
            original: AtomicUsize::new(0),
            operator: AtomicU8::new(0),
            code: [AtomicUsize::new(0), AtomicUsize::new(0)],
        }
    }

    #[inline(always)]
    pub(crate) fn operator(&self) -> Operator {
        Operator::from_u8(self.operator.load(Ordering::Relaxed))
    }
}

static TABLE: [Slot; SLOTS] = [const { Slot::free() }; SLOTS];

/// What [`before`] tells the stub.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Going {
    /// The code to call.
    target: usize,
    /// What [`after`] is told: what `inside` was, and [`PART`] if the call is part of another one.
    cookie: usize,
}

const PART: usize = 2;

/// Marks the stack pointer in [`tls::Tls::inside`] as that of an operator's stub.
pub(crate) const OPERATOR: usize = 1;

unsafe extern "C" {
    static grapnel_agent_thunks: u8;
    static grapnel_agent_slot_returns: u8;
}

const THUNK: usize = 16;

core::arch::global_asm!(
    ".text",
    ".balign 16",
    "grapnel_agent_slot:",
    ".cfi_startproc",
    ".cfi_personality 0x1b, {personality}",
    // Which thunk it was.
    "lea rax, [rip + grapnel_agent_thunks + 11]",
    "sub r11, rax",
    "shr r11, 4",
    "push rdi",
    "push rsi",
    "push rdx",
    "push rbp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    // Room for the way out of a fault.
    "sub rsp, 16",
    "push rcx",
    "push r8",
    "push r9",
    "push r11",
    ".cfi_adjust_cfa_offset 120",
    ".cfi_rel_offset rbp, 88",
    ".cfi_rel_offset rbx, 80",
    ".cfi_rel_offset r12, 72",
    ".cfi_rel_offset r13, 64",
    ".cfi_rel_offset r14, 56",
    ".cfi_rel_offset r15, 48",
    "lea rdi, [rsp + 32]",
    "mov rsi, r11",
    "call {before}",
    "mov rbx, rdx",
    "mov r9, [rsp + 8]",
    "mov r8, [rsp + 16]",
    "mov rcx, [rsp + 24]",
    "mov rdx, [rsp + 96]",
    "mov rsi, [rsp + 104]",
    "mov rdi, [rsp + 112]",
    "call rax",
    ".globl grapnel_agent_slot_returns",
    ".hidden grapnel_agent_slot_returns",
    "grapnel_agent_slot_returns:",
    "mov rdi, rax",
    "lea rsi, [rsp + 32]",
    "mov rdx, [rsp]",
    "mov rcx, rbx",
    "call {after}",
    "mov rbx, [rsp + 80]",
    "add rsp, 120",
    ".cfi_adjust_cfa_offset -120",
    ".cfi_restore rbx",
    "ret",
    ".cfi_endproc",
    ".size grapnel_agent_slot, . - grapnel_agent_slot",
    ".balign 16",
    ".globl grapnel_agent_thunks",
    ".hidden grapnel_agent_thunks",
    "grapnel_agent_thunks:",
    ".cfi_startproc",
    ".rept {slots}",
    "endbr64",
    "lea r11, [rip]",
    ".byte 0xe9",
    ".long grapnel_agent_slot - . - 4",
    ".endr",
    ".cfi_endproc",
    ".size grapnel_agent_thunks, . - grapnel_agent_thunks",
    slots = const SLOTS,
    before = sym before,
    after = sym after,
    personality = sym personality,
);

/// What the unwinder asks of the stub's frame when an exception passes: nothing is caught here. Its call is over then,
/// and what is called from now on is no part of it.
unsafe extern "C" fn personality(
    _version: i32,
    actions: i32,
    _class: u64,
    _object: usize,
    _context: usize,
) -> i32 {
    const CLEANUP_PHASE: i32 = 2;
    const CONTINUE_UNWIND: i32 = 8;
    if actions & CLEANUP_PHASE != 0 {
        tls::get().inside.set(0);
    }
    CONTINUE_UNWIND
}

/// Where the registers of the operator's stub that `inside` names were saved, less this, its slot's number stands.
const SLOT_BELOW: usize = 32;

/// Whether a call that returns to `caller` is made by the operator itself that this thread is in, whose stub `inside`
/// names, and not by code that the operator calls: a `new_handler` frees blocks of the program's.
#[inline(never)]
pub(crate) fn is_operators_own(inside: usize, caller: usize) -> bool {
    // A tail call: the operator's own return is awaited.
    if caller == (&raw const grapnel_agent_slot_returns).addr() {
        return true;
    }
    let number: *const usize = core::ptr::with_exposed_provenance((inside & !OPERATOR) - SLOT_BELOW);
    // SAFETY: the stub's frame lies less than a kilobyte up this thread's stack.
    let number = unsafe { number.read() };
    TABLE.get(number).is_some_and(|slot| {
        let [start, len] = &slot.code;
        caller.wrapping_sub(start.load(Ordering::Relaxed)) < len.load(Ordering::Relaxed)
    })
}

unsafe extern "C" fn before(saved: &SavedRegisters, number: usize) -> Going {
    let slot = &TABLE[number % SLOTS];
    let target = slot.original.load(Ordering::Relaxed);
    let part = if crate::hooks::is_inside(saved) {
        PART
    } else {
        operators::before(saved, slot.operator(), target);
        0
    };
    let here = core::ptr::from_ref(saved).expose_provenance();
    Going { target, cookie: tls::get().inside.replace(here | OPERATOR) | part }
}

unsafe extern "C" fn after(result: usize, saved: &SavedRegisters, number: usize, cookie: usize) -> usize {
    tls::get().inside.set(cookie & !PART);
    if cookie & PART == 0 {
        operators::after(saved, TABLE[number % SLOTS].operator(), result);
    }
    result
}

/// Whether the function at an address is hooked.
pub(crate) fn is_hooked(target: usize) -> bool {
    TABLE.iter().any(|slot| slot.target.load(Ordering::Relaxed) == target)
}

/// Takes a free slot for a function and gives its thunk. Only under PROCESS, or in the only thread.
pub(crate) fn take(target: usize, operator: Operator, code: &Range<usize>) -> Option<(usize, *const ())> {
    let number = TABLE.iter().position(|slot| slot.target.load(Ordering::Relaxed) == 0)?;
    let slot = &TABLE[number];
    slot.target.store(target, Ordering::Relaxed);
    slot.operator.store(operator.to_u8(), Ordering::Relaxed);
    slot.code[0].store(code.start, Ordering::Relaxed);
    slot.code[1].store(code.len(), Ordering::Relaxed);
    let thunk = (&raw const grapnel_agent_thunks).wrapping_add(number * THUNK);
    Some((number, thunk.cast()))
}

/// Says where the function's own code goes on.
pub(crate) fn set_original(number: usize, original: *const ()) {
    TABLE[number].original.store(original.expose_provenance(), Ordering::Release);
}

/// Gives a slot back whose hook did not come about.
pub(crate) fn give_back(number: usize) {
    TABLE[number].target.store(0, Ordering::Relaxed);
}

/// Gives back the slots of functions at these addresses, where nothing is loaded any more.
pub(crate) fn forget(range: &Range<u64>) {
    for slot in &TABLE {
        if range.contains(&(slot.target.load(Ordering::Relaxed) as u64)) {
            slot.target.store(0, Ordering::Relaxed);
        }
    }
}
