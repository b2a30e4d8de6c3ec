//! Functions that the compiler counts on, of the crate as a library of its own.
//!
//! # Safety
//! They have the ABI and the effects of libc's functions of these names.

use super::entry::{begin, end};

// What the compiler's libraries refer to where they are built to unwind, and what tables of unwinding name: each unwinder has its
// own of those. Nothing here unwinds: a panic ends in its handler. Hidden, so that no other library is led to them.
macro_rules! never_called {
    ($($name:literal),+) => {
        $(core::arch::global_asm!(".text", begin!($name), ".cantunwind", "udf #0", end!($name));)+
    };
}
never_called!(
    "_Unwind_Resume",
    "rust_eh_personality",
    "__aeabi_unwind_cpp_pr0",
    "__aeabi_unwind_cpp_pr1",
    "__aeabi_unwind_cpp_pr2"
);

// What the compiler calls for copies. Hidden and our own: libc's would be bound to the program's, if it has functions of
// these names, and those may allocate. Most copies of the hot path are short, and all are words.
core::arch::global_asm!(
    ".text",
    begin!("memcpy"),
    "mov r3, r0",
    "2:",
    "subs r2, r2, #4",
    "blo 3f",
    "ldr ip, [r1], #4",
    "str ip, [r3], #4",
    "b 2b",
    "3:",
    "adds r2, r2, #4",
    "beq 5f",
    "4:",
    "ldrb ip, [r1], #1",
    "strb ip, [r3], #1",
    "subs r2, r2, #1",
    "bne 4b",
    "5:",
    "bx lr",
    end!("memcpy"),
    begin!("memmove"),
    "sub r3, r0, r1",
    "cmp r3, r2",
    "bhs memcpy",
    // The destination begins inside the source: from the end backwards.
    "add r1, r1, r2",
    "add r3, r0, r2",
    "2:",
    "subs r2, r2, #4",
    "blo 3f",
    "ldr ip, [r1, #-4]!",
    "str ip, [r3, #-4]!",
    "b 2b",
    "3:",
    "adds r2, r2, #4",
    "beq 5f",
    "4:",
    "ldrb ip, [r1, #-1]!",
    "strb ip, [r3, #-1]!",
    "subs r2, r2, #1",
    "bne 4b",
    "5:",
    "bx lr",
    end!("memmove"),
    begin!("memset"),
    "and r1, r1, #255",
    "orr r1, r1, r1, lsl #8",
    "orr r1, r1, r1, lsl #16",
    "mov r3, r0",
    "2:",
    "subs r2, r2, #4",
    "blo 3f",
    "str r1, [r3], #4",
    "b 2b",
    "3:",
    "adds r2, r2, #4",
    "beq 5f",
    "4:",
    "strb r1, [r3], #1",
    "subs r2, r2, #1",
    "bne 4b",
    "5:",
    "bx lr",
    end!("memset"),
    begin!("memcmp"),
    ".globl bcmp",
    ".hidden bcmp",
    ".type bcmp,%function",
    "bcmp:",
    "mov r3, r0",
    "mov r0, #0",
    "2:",
    "cmp r2, #0",
    "beq 3f",
    "ldrb r0, [r3], #1",
    "ldrb ip, [r1], #1",
    "sub r2, r2, #1",
    "subs r0, r0, ip",
    "beq 2b",
    "3:",
    "bx lr",
    end!("memcmp"),
    begin!("strlen"),
    "mov r1, r0",
    "2:",
    "ldrb r2, [r1], #1",
    "cmp r2, #0",
    "bne 2b",
    "sub r0, r1, r0",
    "sub r0, r0, #1",
    "bx lr",
    end!("strlen"),
);
