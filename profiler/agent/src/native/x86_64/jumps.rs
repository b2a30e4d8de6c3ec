//! The stubs of `longjmp`: see [`crate::jumps`].
//!
//! # Safety
//! As said there. The buffer's seventh word is the stack pointer, mixed with the word at 48 behind the thread pointer.

use crate::hooks::{Function, ORIGINALS};
use crate::sampled::LEFT;
use crate::tls::{AROUND, Tls};
use core::mem::offset_of;

const _: () = assert!(AROUND == 2);

/// Learns how buffers are written, which is known here.
pub(crate) fn prepare() -> bool {
    true
}

macro_rules! jump {
    ($stub:ident, $function:ident) => {
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
            "mov r11, qword ptr [rip + grapnel_agent_tls@GOTTPOFF]",
            // As `sampling::mend`, but that it is the next malloc to begin a gap.
            "cmp qword ptr fs:[r11 + {left}], 0",
            "jge 1f",
            "mov qword ptr fs:[r11 + {left}], 0",
            "1:",
            "mov rcx, qword ptr fs:[r11 + {inside}]",
            "cmp rcx, rsp",
            "jb 2f",
            "mov rax, [rdi + 48]",
            "ror rax, 17",
            "xor rax, qword ptr fs:[48]",
            "3:",
            "cmp rcx, rax",
            "jae 2f",
            // As `around::left`.
            "mov r8, qword ptr fs:[r11 + {around}]",
            "mov rdx, qword ptr fs:[r11 + {around} + 8]",
            "cmp r8, rcx",
            "mov ecx, 0",
            "cmovae rcx, r8",
            "mov qword ptr fs:[r11 + {inside}], rcx",
            "mov qword ptr fs:[r11 + {around}], rdx",
            "mov qword ptr fs:[r11 + {around} + 8], 0",
            "cmp rcx, rsp",
            "jae 3b",
            "2:",
            "jmp qword ptr [rip + {originals} + {function}]",
            ".cfi_endproc",
            concat!(".size ", stringify!($stub), ", . - ", stringify!($stub)),
            left = const LEFT,
            inside = const offset_of!(Tls, inside),
            around = const offset_of!(Tls, around),
            originals = sym ORIGINALS,
            function = const size_of::<usize>() * Function::$function as usize,
        );
    };
}
jump!(grapnel_agent_longjmp, Longjmp);
jump!(grapnel_agent_longjmp_checked, LongjmpChecked);
