//! The stubs of `longjmp`: see [`crate::jumps`].
//!
//! # Safety
//! As said there. The buffer's fourteenth word is the stack pointer, mixed with a word that the dynamic linker keeps for libc:
//! a call of `_setjmp`, whose stack pointer is known, tells which.

use crate::hooks::{Function, ORIGINALS};
use crate::native::tls::put_block;
use crate::tls::{AROUND, Tls};
use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering};

const _: () = assert!(AROUND == 2);

/// What the words of a buffer are mixed with.
static GUARD: AtomicU64 = AtomicU64::new(0);

/// Learns how buffers are written. False if that isn't known of this libc.
pub(crate) fn prepare() -> bool {
    unsafe extern "C" {
        fn _setjmp();
    }
    let mut buffer = [0u64; 40];
    let (stack, address): (u64, u64);
    // SAFETY: the buffer has the room of a `jmp_buf`, 39 words, into which the function writes; nobody jumps there. The call
    // has the stack pointer that is then read, and returns to the address that is.
    unsafe {
        core::arch::asm!(
            "mov x20, sp",
            "adr x21, 2f",
            "blr {function}",
            "2:",
            function = in(reg) _setjmp as unsafe extern "C" fn(),
            in("x0") &raw mut buffer,
            out("x20") stack,
            out("x21") address,
            clobber_abi("C"),
        );
    }
    let guard = buffer[13] ^ stack;
    GUARD.store(guard, Ordering::Relaxed);
    buffer[11] ^ guard == address
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
            // BTI C.
            "hint #34",
            put_block!("x16", "x17"),
            "ldr x17, [x16, #{inside}]",
            "mov x9, sp",
            "cmp x17, x9",
            "b.lo 2f",
            "ldr x9, [x0, #104]",
            "adrp x10, {guard}",
            "add x10, x10, :lo12:{guard}",
            "ldr x10, [x10]",
            "eor x9, x9, x10",
            "mov x10, sp",
            "3:",
            "cmp x17, x9",
            "b.hs 2f",
            // As `around::left`.
            "ldr x12, [x16, #{around}]",
            "ldr x11, [x16, #{around} + 8]",
            "cmp x12, x17",
            "csel x17, x12, xzr, hs",
            "str x17, [x16, #{inside}]",
            "str x11, [x16, #{around}]",
            "str xzr, [x16, #{around} + 8]",
            "cmp x17, x10",
            "b.hs 3b",
            "2:",
            "adrp x16, {originals}",
            "add x16, x16, :lo12:{originals}",
            "ldr x16, [x16, #{function}]",
            "br x16",
            ".cfi_endproc",
            concat!(".size ", stringify!($stub), ", . - ", stringify!($stub)),
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
