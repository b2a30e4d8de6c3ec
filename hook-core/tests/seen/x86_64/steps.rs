//! A backtrace at every instruction that runs while hooked functions are called.

use std::{arch::global_asm, ffi::c_void, ops::Range};

use grapnel_hook::HookSet;

use super::{
    backtrace::{self, Seen},
    samples::{self, Function},
};

// Calls a function with the trap flag set, which makes the processor trap behind each instruction.
global_asm!(
    ".globl seen_step",
    "seen_step:",
    ".cfi_startproc",
    "push rbx",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbx, -16",
    "mov rax, rdi",
    "mov rdi, rsi",
    "pushfq",
    ".cfi_def_cfa_offset 24",
    "or qword ptr [rsp], 0x100",
    "popfq",
    ".cfi_def_cfa_offset 16",
    "call rax",
    "pushfq",
    ".cfi_def_cfa_offset 24",
    "and qword ptr [rsp], -0x101",
    "popfq",
    ".cfi_def_cfa_offset 16",
    "nop",
    "pop rbx",
    ".cfi_def_cfa_offset 8",
    "ret",
    ".cfi_endproc",
    ".globl seen_step_end",
    "seen_step_end:",
);

unsafe extern "C" {
    fn seen_step(function: Function, x: u64) -> u64;
    fn seen_step_end();
}

unsafe extern "C" fn trapped(_: i32, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's description of what was interrupted.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    backtrace::take(context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize);
}

/// Installs a handler, which runs on the stack of what it interrupts.
pub(crate) fn handle(signal: i32, handler: unsafe extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void)) {
    // SAFETY: the handler calls what may be called in one.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        assert_eq!(libc::sigaction(signal, &raw const action, std::ptr::null_mut()), 0);
    }
}

pub(crate) fn regions(set: &HookSet) -> Vec<Range<usize>> {
    set.regions().map(|(range, _)| range).collect()
}

/// Steps through all samples.
pub(crate) fn run(set: &HookSet) -> Seen {
    backtrace::begin(seen_step as *const () as usize..seen_step_end as *const () as usize, regions(set));
    handle(libc::SIGTRAP, trapped);
    for sample in samples::all() {
        for x in [0, 1] {
            // SAFETY: the samples have this type.
            assert_eq!(unsafe { seen_step(sample.function, x) }, x + 1);
        }
    }
    backtrace::end()
}
