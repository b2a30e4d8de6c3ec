//! What the routines of [`super::entry`] and [`super::returns`] do at their start and their end, as macros: saving the
//! registers as a [`Saved`](super::Saved) on the stack, and loading what is in it then.
//!
//! R4 holds the `Saved` while Rust runs, so that the stack can be aligned whatever the caller did with it. An unwinder goes
//! from there to the registers as they were, which lie in the order in which it pops them (EHABI32, 10.3).

// How many vector registers of 64 bits the processor has, in R1, compared with 16: it has none, these, or 16 more. The number
// is in a word that the first stub's maker fills (`super::registers`).
macro_rules! vectors_there {
    () => {
        "
        ldr r1, 8f
        9: ldr r1, [pc, r1]
        b 7f
        8: .long grapnel_hook_vectors - 9b - 8
        7: cmp r1, #16
        "
    };
}

// Each changes R0, R1 and the flags.
macro_rules! save_vectors {
    // Those that pass arguments and results, which the listener is shown, and the other ones that a function needn't keep: a
    // caller that the compiler has seen together with the function may hold values in any of them (GCC's -fipa-ra). Rust keeps
    // D8 to D15.
    (low) => {
        concat!(
            vectors_there!(),
            "
            mov r0, #0
            blo 6f
            add r0, sp, #72
            vstmia r0!, {{d0-d7}}
            beq 5f
            add r0, r0, #64
            vstmia r0, {{d16-d31}}
            5: mov r0, #4
            6: str r0, [sp, #68]
            "
        )
    };
    (all) => {
        concat!(
            vectors_there!(),
            "
            blo 6f
            add r0, sp, #72
            vstmia r0!, {{d0-d15}}
            beq 5f
            vstmia r0, {{d16-d31}}
            5: vmrs r0, fpscr
            str r0, [sp, #352]
            6: mov r0, r1, lsr #1
            str r0, [sp, #68]
            "
        )
    };
}

macro_rules! load_vectors {
    (low) => {
        concat!(
            vectors_there!(),
            "
            blo 6f
            add r0, sp, #72
            vldmia r0!, {{d0-d7}}
            beq 6f
            add r0, r0, #64
            vldmia r0, {{d16-d31}}
            6:
            "
        )
    };
    (all) => {
        concat!(
            vectors_there!(),
            "
            blo 6f
            ldr r0, [sp, #352]
            vmsr fpscr, r0
            add r0, sp, #72
            vldmia r0!, {{d0-d15}}
            beq 6f
            vldmia r0, {{d16-d31}}
            6:
            "
        )
    };
}

// Calls Rust with the `Saved`, on an aligned stack.
macro_rules! call {
    ($function:literal) => {
        concat!(
            "
            mov r4, sp
            bic r0, sp, #7
            mov sp, r0
            mov r0, r4
            bl ",
            $function,
            "
            mov sp, r4
            "
        )
    };
}

macro_rules! routine {
    ($name:literal, $($body:expr),+ ; $($operands:tt)*) => {
        core::arch::global_asm!(
            concat!(".pushsection .text.", $name, ", \"ax\", %progbits"),
            ".p2align 4",
            ".arm",
            ".fpu neon",
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ", %function"),
            concat!($name, ":"),
            ".fnstart",
            $($body,)+
            ".fnend",
            concat!(".size ", $name, ", . - ", $name),
            ".popsection",
            $($operands)*
        );
    };
}

pub(super) use {call, load_vectors, routine, save_vectors, vectors_there};
