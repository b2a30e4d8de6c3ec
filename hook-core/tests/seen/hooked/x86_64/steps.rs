//! A backtrace at every instruction that runs while hooked functions are called.

use std::{arch::global_asm, ffi::c_void};

use grapnel_hook::HookSet;

use super::{
    backtrace::{self, Seen},
    handle, regions,
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

// Calls what throws, far enough from the start for a patch of its own, and through memory: such a call returns to the
// trampoline.
global_asm!(
    ".globl seen_thrown_through",
    "seen_thrown_through:",
    ".cfi_startproc",
    "sub rsp, 8",
    ".cfi_def_cfa_offset 16",
    "lea rax, [rip + 9f]",
    "sub rax, 0x1000",
    "call [rax + 0x1000]",
    "add rsp, 8",
    ".cfi_def_cfa_offset 8",
    "ret",
    ".pushsection .data.rel.ro, \"aw\", @progbits",
    ".p2align 3",
    "9: .quad {throws}",
    ".popsection",
    ".cfi_endproc",
    throws = sym super::thrown::throws,
);

/// Where the call is in that.
pub(crate) const CALL: usize = 17;

unsafe extern "C" {
    fn seen_step(function: Function, x: u64) -> u64;
    fn seen_step_end();
}

unsafe extern "C" fn trapped(_: i32, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's description of what was interrupted.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    backtrace::take(pc(context));
}

/// Where interrupted code was.
pub(crate) fn pc(context: &libc::ucontext_t) -> usize {
    context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize
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
