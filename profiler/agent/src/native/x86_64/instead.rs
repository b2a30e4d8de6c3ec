//! Stubs of [`crate::instead`]: they return what the hook gives, or, where that is nothing, go on to the original.
//!
//! # Safety
//! The stubs keep to the System V ABI on both sides, and leave all registers that a function may leave alone ([`kept`](super::kept)).
//! What they go on to finds the stack as the hooked function does.

/// `stub_or_original!(STUB, HOOK, N, FUNCTION)` defines the stub STUB, which calls HOOK with the caller's N arguments and what was
/// saved, and goes on to FUNCTION's original if that returns 0.
macro_rules! stub_or_original {
    ($stub:ident, $hook:path, $number:tt, $function:expr) => {
        unsafe extern "C" {
            fn $stub();
        }
        core::arch::global_asm!(
            $crate::entry::stub_section!(),
            ".balign 16",
            concat!(".globl ", stringify!($stub)),
            concat!(".hidden ", stringify!($stub)),
            concat!(".type ", stringify!($stub), ",@function"),
            concat!(stringify!($stub), ":"),
            ".cfi_startproc",
            "endbr64",
            "push rdi",
            ".cfi_adjust_cfa_offset 8",
            $crate::native::entry::push_saved!(),
            "sub rsp, 336",
            ".cfi_adjust_cfa_offset 336",
            "mov [rsp + 280], rax",
            $crate::native::kept::keep!(),
            concat!("lea ", $crate::native::entry::argument!($number), ", [rsp + 320]"),
            $crate::native::kept::call_aligned!("{hook}", 376),
            "test rax, rax",
            "jz 2f",
            ".cfi_remember_state",
            $crate::native::kept::bring_back!(),
            "add rsp, 408",
            ".cfi_adjust_cfa_offset -408",
            "ret",
            ".cfi_restore_state",
            "2:",
            "mov rax, [rsp + 280]",
            $crate::native::kept::bring_back!(),
            "add rsp, 408",
            // Absolute: an assembler goes on from where it was, not from the state that was restored.
            ".cfi_def_cfa_offset 8",
            "jmp qword ptr [rip + {originals} + {original}]",
            ".cfi_endproc",
            concat!(".size ", stringify!($stub), ", . - ", stringify!($stub)),
            ".text",
            hook = sym $hook,
            originals = sym $crate::hooks::ORIGINALS,
            original = const $function as usize * size_of::<usize>(),
        );
    };
}
pub(crate) use stub_or_original;
