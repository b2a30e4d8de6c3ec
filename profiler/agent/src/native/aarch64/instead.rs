//! Stubs of [`crate::instead`]: they return what the hook gives, or, where that is nothing, go on to the original.
//!
//! # Safety
//! The stubs keep to AAPCS64 on both sides, and leave all registers that a function may leave alone ([`kept`](super::kept)). What they
//! go on to finds the stack as the hooked function does.

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
            // BTI C.
            "hint #34",
            $crate::native::entry::save!(),
            $crate::native::entry::set_mark!(),
            "sub sp, sp, #640",
            ".cfi_adjust_cfa_offset 640",
            $crate::native::kept::keep!(),
            concat!("add x", $number, ", sp, #640"),
            "bl {hook}",
            "cbz x0, 2f",
            ".cfi_remember_state",
            $crate::native::kept::bring_back!(),
            $crate::native::entry::return_above!(640),
            ".cfi_restore_state",
            "2:",
            $crate::native::kept::bring_back!(),
            "ldr x0, [sp, #800]",
            $crate::native::entry::clear_mark!(640),
            "add sp, sp, #640 + 192",
            // Absolute: an assembler goes on from where it was, not from the state that was restored.
            ".cfi_def_cfa_offset 16",
            "ldp x29, x30, [sp], #16",
            ".cfi_def_cfa_offset 0",
            ".cfi_restore x29",
            ".cfi_restore x30",
            "adrp x16, {originals}",
            "add x16, x16, :lo12:{originals}",
            "ldr x16, [x16, #{original}]",
            "br x16",
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
