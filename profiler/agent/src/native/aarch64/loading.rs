//! The stubs of `dlopen` and its kin: see [`crate::bound`].
//!
//! # Safety
//! They change no register that may hold an argument, and go on in the function as if they weren't there.

use crate::bound::{LOADING, loading};

macro_rules! loading_stub {
    ($stub:ident, $number:literal) => {
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
            // BTI C.
            "hint #34",
            "stp x29, x30, [sp, #-48]!",
            ".cfi_adjust_cfa_offset 48",
            ".cfi_rel_offset x29, 0",
            ".cfi_rel_offset x30, 8",
            "mov x29, sp",
            "stp x0, x1, [sp, #16]",
            "str x2, [sp, #32]",
            "mov w0, #{number}",
            "bl {loading}",
            "ldp x0, x1, [sp, #16]",
            "ldr x2, [sp, #32]",
            "ldp x29, x30, [sp], #48",
            ".cfi_adjust_cfa_offset -48",
            ".cfi_restore x29",
            ".cfi_restore x30",
            "adrp x16, {functions}",
            "add x16, x16, :lo12:{functions}",
            "ldr x16, [x16, #8 * {number}]",
            "br x16",
            ".cfi_endproc",
            concat!(".size ", stringify!($stub), ", . - ", stringify!($stub)),
            loading = sym loading,
            functions = sym LOADING,
            number = const $number,
        );
    };
}
loading_stub!(grapnel_agent_dlopen, 0);
loading_stub!(grapnel_agent_dlmopen, 1);
loading_stub!(grapnel_agent_dlclose, 2);
loading_stub!(grapnel_agent_dlsym, 3);
