//! What the routines of [`super::entry`] and [`super::returns`] do at their start and their end, as macros: saving the
//! registers as a [`Saved`](super::Saved) on the stack, and loading what is in it then.
//!
//! R4 holds the `Saved` while Rust runs, so that the stack can be aligned whatever the caller did with it. An unwinder goes
//! from there to the registers as they were, which lie in the order in which it pops them (EHABI32, 10.3).

// Each changes R0 and R1.
macro_rules! save_vectors {
    // Those that pass arguments and results.
    (low) => {
        "
        add r0, sp, #72
        vstmia r0, {{d0-d7}}
        mov r0, #4
        str r0, [sp, #68]
        "
    };
    (none) => {
        "
        mov r0, #0
        str r0, [sp, #68]
        "
    };
    (all) => {
        "
        add r0, sp, #72
        vstmia r0!, {{d0-d15}}
        vstmia r0, {{d16-d31}}
        vmrs r0, fpscr
        str r0, [sp, #352]
        mov r0, #16
        str r0, [sp, #68]
        "
    };
}

macro_rules! load_vectors {
    (low) => {
        "
        add r0, sp, #72
        vldmia r0, {{d0-d7}}
        "
    };
    (none) => {
        ""
    };
    (all) => {
        "
        ldr r0, [sp, #352]
        vmsr fpscr, r0
        add r0, sp, #72
        vldmia r0!, {{d0-d15}}
        vldmia r0, {{d16-d31}}
        "
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

pub(super) use {call, load_vectors, routine, save_vectors};
