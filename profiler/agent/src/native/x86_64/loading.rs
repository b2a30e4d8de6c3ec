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
            "endbr64",
            "push rdi",
            "push rsi",
            "push rdx",
            "sub rsp, 16",
            ".cfi_adjust_cfa_offset 40",
            "mov edi, {number}",
            "call {loading}",
            "add rsp, 16",
            "pop rdx",
            "pop rsi",
            "pop rdi",
            ".cfi_adjust_cfa_offset -40",
            "jmp qword ptr [rip + {functions} + 8 * {number}]",
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
