//! The stubs of `longjmp`: see [`crate::jumps`].
//!
//! # Safety
//! As said there. The buffer's first word is the stack pointer and its second where the jump goes, both mixed with a word that
//! the dynamic linker keeps for libc: a call of `_setjmp`, whose stack pointer is known, tells which.

use super::entry::{address, begin, end};
use super::tls::put_block;
use crate::hooks::{Function, ORIGINALS};
use crate::tls::{AROUND, Tls};
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, Ordering};

const _: () = assert!(AROUND == 2);

/// What the words of a buffer are mixed with.
static GUARD: AtomicU32 = AtomicU32::new(0);

/// Learns how buffers are written. False if that isn't known of this libc.
pub(crate) fn prepare() -> bool {
    unsafe extern "C" {
        fn _setjmp();
        /// Calls `_setjmp` and tells of that call the stack pointer and where it returns to.
        fn grapnel_agent_set_jump(buffer: *mut u64, seen: *mut [u32; 2], function: unsafe extern "C" fn());
    }
    // A `jmp_buf` has 392 bytes, and is aligned to 8.
    let mut buffer = [0u64; 50];
    let mut seen = [0; 2];
    // SAFETY: the buffer has the room of a `jmp_buf`, into which the function writes; nobody jumps there.
    unsafe { grapnel_agent_set_jump(buffer.as_mut_ptr(), &raw mut seen, _setjmp) };
    let [stack, address] = seen;
    let [first, second] = [buffer[0] as u32, (buffer[0] >> 32) as u32];
    let guard = first ^ stack;
    GUARD.store(guard, Ordering::Relaxed);
    second ^ guard == address
}

core::arch::global_asm!(
    ".text",
    begin!("grapnel_agent_set_jump"),
    ".save {{r4, lr}}",
    "push {{r4, lr}}",
    "adr r4, 2f",
    "str sp, [r1]",
    "str r4, [r1, #4]",
    "blx r2",
    "2:",
    "pop {{r4, pc}}",
    end!("grapnel_agent_set_jump"),
);

macro_rules! jump {
    ($stub:ident, $function:ident) => {
        unsafe extern "C" {
            pub(crate) fn $stub();
        }
        core::arch::global_asm!(
            ".text",
            begin!(stringify!($stub)),
            "push {{r4, r5, r6, lr}}",
            ".save {{r4, r5, r6, lr}}",
            put_block!("r4", "r5"),
            "ldr ip, [r4, #{inside}]",
            "add r6, sp, #16",
            "cmp ip, r6",
            "blo 2f",
            "ldr r5, [r0]",
            address!("r6", "{guard}"),
            "ldr r6, [r6]",
            "eor r5, r5, r6",
            "add r6, sp, #16",
            "3:",
            "cmp ip, r5",
            "bhs 2f",
            // As `around::left`.
            "ldr lr, [r4, #{around}]",
            "cmp lr, ip",
            "it lo",
            "movlo lr, #0",
            "mov ip, lr",
            "ldr lr, [r4, #{around} + 4]",
            "str ip, [r4, #{inside}]",
            "str lr, [r4, #{around}]",
            "mov lr, #0",
            "str lr, [r4, #{around} + 4]",
            "cmp ip, r6",
            "bhs 3b",
            "2:",
            "pop {{r4, r5, r6, lr}}",
            address!("ip", "{originals}"),
            "ldr ip, [ip, #{function}]",
            "bx ip",
            end!(stringify!($stub)),
            inside = const offset_of!(Tls, inside),
            around = const offset_of!(Tls, around),
            guard = sym GUARD,
            originals = sym ORIGINALS,
            function = const size_of::<usize>() * Function::$function as usize,
        );
    };
}
jump!(grapnel_agent_longjmp, Longjmp);
jump!(grapnel_agent_longjmp_checked, LongjmpChecked);
