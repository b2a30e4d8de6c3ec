//! The stubs that the hooks lead to, and the way out of a fault of our own.
//!
//! A stub saves the registers that the caller counts on (they say where its frames lie), its first three
//! arguments, and calls the hook's Rust function with the caller's arguments and a pointer to what was saved. Above
//! these lie two words for the way out.
//!
//! # Safety
//! The stubs keep to the System V ABI on both sides: entered as the hooked function is, they return as it
//! does. [`escape`] leaves the agent's frames in the middle of their work; nothing in them needs a destructor
//! to run but locks, and after an escape recording is off, so nobody takes one again.

use crate::tls;
use core::cell::Cell;
use core::ffi::c_void;
use grapnel_unwind::{Registers, Start};

/// What a stub saves, in the order in which it lies on the stack.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct SavedRegisters {
    /// What the hooked function returns when the agent meets a fault of its own.
    rescue_result: Cell<usize>,
    /// Or else, when not 0, the original that is then called with the caller's arguments.
    rescue_call: Cell<usize>,
    r15: u64,
    r14: u64,
    r13: u64,
    r12: u64,
    rbx: u64,
    rbp: u64,
    rdx: u64,
    rsi: u64,
    rdi: u64,
    return_address: u64,
}

impl SavedRegisters {
    /// Where the hooked function returns to.
    #[inline(always)]
    pub(crate) fn return_address(&self) -> usize {
        self.return_address as usize
    }

    /// One of the first three arguments.
    #[inline(always)]
    pub(crate) fn argument(&self, number: usize) -> u64 {
        [self.rdi, self.rsi, self.rdx][number]
    }
}

/// The state of the caller just after its call returns. Read word by word, and only what is needed: the stub has just
/// written these words, and a load of two of them at once would wait until all stores before have left the processor.
impl Start for SavedRegisters {
    #[inline(always)]
    fn pc(&self) -> u64 {
        self.return_address
    }

    #[inline(always)]
    fn sp(&self) -> u64 {
        (&raw const self.return_address).addr() as u64 + 8
    }

    #[inline(always)]
    fn fp(&self) -> u64 {
        self.rbp
    }

    #[cold]
    fn registers(&self) -> Registers {
        Registers {
            pc: self.pc(),
            sp: self.sp(),
            bp: self.fp(),
            rbx: self.rbx,
            r12: self.r12,
            r13: self.r13,
            r14: self.r14,
            r15: self.r15,
        }
    }
}

/// Defines the stub `$stub`, which calls `$hook` with the caller's arguments and, as the argument in
/// `$register`, a pointer to the [`SavedRegisters`]. Where six arguments take all registers, it is the seventh: `stack`.
macro_rules! stub {
    ($stub:ident, $hook:path, $register:literal) => {
        $crate::entry::stub!(@define $stub, $hook, concat!("mov ", $register, ", rsp"), "88");
    };
    ($stub:ident, $hook:path, stack) => {
        $crate::entry::stub!(
            @define $stub, $hook,
            "mov rax, rsp\nsub rsp, 8\npush rax\n.cfi_adjust_cfa_offset 16", "104"
        );
    };
    (@define $stub:ident, $hook:path, $pass:expr, $frame:literal) => {
        unsafe extern "C" {
            pub(crate) fn $stub();
        }
        core::arch::global_asm!(
            ".text",
            ".balign 16",
            concat!(".globl ", stringify!($stub)),
            concat!(".hidden ", stringify!($stub)),
            concat!(".type ", stringify!($stub), ",@function"),
            concat!(stringify!($stub), ":"),
            ".cfi_startproc",
            "endbr64",
            "push rdi",
            "push rsi",
            "push rdx",
            "push rbp",
            "push rbx",
            "push r12",
            "push r13",
            "push r14",
            "push r15",
            "sub rsp, 16",
            ".cfi_adjust_cfa_offset 88",
            ".cfi_rel_offset rbp, 56",
            ".cfi_rel_offset rbx, 48",
            ".cfi_rel_offset r12, 40",
            ".cfi_rel_offset r13, 32",
            ".cfi_rel_offset r14, 24",
            ".cfi_rel_offset r15, 16",
            $pass,
            "call {hook}",
            concat!("add rsp, ", $frame),
            concat!(".cfi_adjust_cfa_offset -", $frame),
            "ret",
            ".cfi_endproc",
            concat!(".size ", stringify!($stub), ", . - ", stringify!($stub)),
            hook = sym $hook,
        );
    };
}
pub(crate) use stub;

/// Runs `work` with a way out: should it meet a fault of our own, the hooked function returns `result`, or,
/// where `call` is not 0, the function there is called with the caller's arguments in our place.
#[inline(always)]
pub(crate) fn rescued<T>(
    saved: &SavedRegisters,
    result: *mut c_void,
    call: usize,
    work: impl FnOnce() -> T,
) -> T {
    let tls = tls::get();
    saved.rescue_result.set(result.addr());
    saved.rescue_call.set(call);
    let outer = tls.rescue.replace(saved);
    let value = work();
    tls.rescue.set(outer);
    value
}

/// Leaves the agent by the way that [`rescued`] laid. Returns only if there is none.
#[cfg(grapnel_cdylib)]
pub(crate) fn escape() {
    let tls = tls::get();
    let saved = tls.rescue.get();
    if saved.is_null() {
        return;
    }
    tls.rescue.set(core::ptr::null());
    tls.level.set(0);
    crate::lock::let_signals_through();
    // SAFETY: `saved` lies in the frame of a stub that has not returned; from there this does what the stub
    // does after its call, with the registers as they were saved.
    unsafe {
        core::arch::asm!(
            "mov rsp, {saved}",
            "pop rax",
            "pop r11",
            "pop r15",
            "pop r14",
            "pop r13",
            "pop r12",
            "pop rbx",
            "pop rbp",
            "pop rdx",
            "pop rsi",
            "pop rdi",
            "test r11, r11",
            "jz 2f",
            "jmp r11",
            "2:",
            "ret",
            saved = in(reg) saved,
            options(noreturn),
        );
    }
}
