//! Jumps out of what is being recorded: a `new_handler` may leave the program's own `operator new` by `longjmp`.
//!
//! The operator's call is over then, and what the program calls from now on is no part of it, wherever on the stack it is
//! called. So libc's `longjmp`, which is `siglongjmp` too, and its checked form are hooked: where the frame that
//! [`inside`](crate::tls::Tls::inside) names lies between here and where the jump goes, it is given up. A jump to another
//! stack leaves nothing. Jumps that aren't libc's are not seen.
//!
//! # Safety
//! The stubs read what libc is about to read, change registers that a call may change, and go on to libc's own code with the
//! caller's arguments and stack. The buffer's seventh word is the stack pointer, in the form in which glibc has kept it
//! since version 2.4; were it another, a frame would be given up that lives, or kept that is dead, and no more.

use crate::hooks::{Function, Hooked, ORIGINALS};
use crate::tls::Tls;
use core::mem::offset_of;

macro_rules! jump {
    ($stub:ident, $function:ident) => {
        unsafe extern "C" {
            fn $stub();
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
            "mov r11, qword ptr [rip + grapnel_agent_tls@GOTTPOFF]",
            "mov rcx, qword ptr fs:[r11 + {inside}]",
            "cmp rcx, rsp",
            "jb 2f",
            "mov rax, [rdi + 48]",
            "ror rax, 17",
            "xor rax, qword ptr fs:[48]",
            "cmp rcx, rax",
            "jae 2f",
            "mov qword ptr fs:[r11 + {inside}], 0",
            "2:",
            "jmp qword ptr [rip + {originals} + {function}]",
            ".cfi_endproc",
            concat!(".size ", stringify!($stub), ", . - ", stringify!($stub)),
            inside = const offset_of!(Tls, inside),
            originals = sym ORIGINALS,
            function = const size_of::<usize>() * Function::$function as usize,
        );
    };
}
jump!(grapnel_agent_longjmp, Longjmp);
jump!(grapnel_agent_longjmp_checked, LongjmpChecked);

/// The functions to hook, as [`crate::hooks::allocation_functions`] lists its.
pub(crate) fn jump_functions() -> [Hooked; 2] {
    [
        (b"longjmp", grapnel_agent_longjmp, Function::Longjmp),
        (b"__longjmp_chk", grapnel_agent_longjmp_checked, Function::LongjmpChecked),
    ]
}
