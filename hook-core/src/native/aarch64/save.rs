//! What the routines of [`super::entry`] and [`super::returns`] do at their start and their end, as macros: saving the
//! registers as a [`Saved`](super::Saved) on the stack, and loading what is in it then.

// From X0 to X29; X30, SP and what depends on the routine are its own.
macro_rules! save_general {
    () => {
        "
        stp x0, x1, [sp, #0]
        stp x2, x3, [sp, #16]
        stp x4, x5, [sp, #32]
        stp x6, x7, [sp, #48]
        stp x8, x9, [sp, #64]
        stp x10, x11, [sp, #80]
        stp x12, x13, [sp, #96]
        stp x14, x15, [sp, #112]
        stp x16, x17, [sp, #128]
        stp x18, x19, [sp, #144]
        stp x20, x21, [sp, #160]
        stp x22, x23, [sp, #176]
        stp x24, x25, [sp, #192]
        stp x26, x27, [sp, #208]
        stp x28, x29, [sp, #224]
        str x30, [sp, #240]
        .cfi_rel_offset x19, 152
        .cfi_rel_offset x20, 160
        .cfi_rel_offset x21, 168
        .cfi_rel_offset x22, 176
        .cfi_rel_offset x23, 184
        .cfi_rel_offset x24, 192
        .cfi_rel_offset x25, 200
        .cfi_rel_offset x26, 208
        .cfi_rel_offset x27, 216
        .cfi_rel_offset x28, 224
        .cfi_rel_offset x29, 232
        "
    };
}

// All but X16, X17 and X30.
macro_rules! load_general {
    () => {
        "
        ldp x0, x1, [sp, #0]
        ldp x2, x3, [sp, #16]
        ldp x4, x5, [sp, #32]
        ldp x6, x7, [sp, #48]
        ldp x8, x9, [sp, #64]
        ldp x10, x11, [sp, #80]
        ldp x12, x13, [sp, #96]
        ldp x14, x15, [sp, #112]
        ldp x18, x19, [sp, #144]
        ldp x20, x21, [sp, #160]
        ldp x22, x23, [sp, #176]
        ldp x24, x25, [sp, #192]
        ldp x26, x27, [sp, #208]
        ldp x28, x29, [sp, #224]
        "
    };
}

// Each changes X0 and X1.
macro_rules! save_vectors {
    // Those that pass arguments where the listener sees them, and the other ones that a function needn't keep: a caller
    // that the compiler has seen together with the function may hold values in any of them (GCC's -fipa-ra). Rust keeps the
    // lower halves of Q8 to Q15.
    (low) => {
        "
        stp q0, q1, [sp, #272]
        stp q2, q3, [sp, #304]
        stp q4, q5, [sp, #336]
        stp q6, q7, [sp, #368]
        stp q8, q9, [sp, #400]
        stp q10, q11, [sp, #432]
        stp q12, q13, [sp, #464]
        stp q14, q15, [sp, #496]
        stp q16, q17, [sp, #528]
        stp q18, q19, [sp, #560]
        stp q20, q21, [sp, #592]
        stp q22, q23, [sp, #624]
        stp q24, q25, [sp, #656]
        stp q26, q27, [sp, #688]
        stp q28, q29, [sp, #720]
        stp q30, q31, [sp, #752]
        mov x0, #8
        str x0, [sp, #800]
        "
    };
    (all) => {
        "
        stp q0, q1, [sp, #272]
        stp q2, q3, [sp, #304]
        stp q4, q5, [sp, #336]
        stp q6, q7, [sp, #368]
        stp q8, q9, [sp, #400]
        stp q10, q11, [sp, #432]
        stp q12, q13, [sp, #464]
        stp q14, q15, [sp, #496]
        stp q16, q17, [sp, #528]
        stp q18, q19, [sp, #560]
        stp q20, q21, [sp, #592]
        stp q22, q23, [sp, #624]
        stp q24, q25, [sp, #656]
        stp q26, q27, [sp, #688]
        stp q28, q29, [sp, #720]
        stp q30, q31, [sp, #752]
        mrs x0, fpcr
        mrs x1, fpsr
        str x0, [sp, #784]
        str x1, [sp, #792]
        mov x0, #32
        str x0, [sp, #800]
        "
    };
}

macro_rules! load_vectors {
    (low) => {
        "
        ldp q0, q1, [sp, #272]
        ldp q2, q3, [sp, #304]
        ldp q4, q5, [sp, #336]
        ldp q6, q7, [sp, #368]
        ldp q8, q9, [sp, #400]
        ldp q10, q11, [sp, #432]
        ldp q12, q13, [sp, #464]
        ldp q14, q15, [sp, #496]
        ldp q16, q17, [sp, #528]
        ldp q18, q19, [sp, #560]
        ldp q20, q21, [sp, #592]
        ldp q22, q23, [sp, #624]
        ldp q24, q25, [sp, #656]
        ldp q26, q27, [sp, #688]
        ldp q28, q29, [sp, #720]
        ldp q30, q31, [sp, #752]
        "
    };
    (all) => {
        "
        ldr x0, [sp, #784]
        ldr x1, [sp, #792]
        msr fpcr, x0
        msr fpsr, x1
        ldp q0, q1, [sp, #272]
        ldp q2, q3, [sp, #304]
        ldp q4, q5, [sp, #336]
        ldp q6, q7, [sp, #368]
        ldp q8, q9, [sp, #400]
        ldp q10, q11, [sp, #432]
        ldp q12, q13, [sp, #464]
        ldp q14, q15, [sp, #496]
        ldp q16, q17, [sp, #528]
        ldp q18, q19, [sp, #560]
        ldp q20, q21, [sp, #592]
        ldp q22, q23, [sp, #624]
        ldp q24, q25, [sp, #656]
        ldp q26, q27, [sp, #688]
        ldp q28, q29, [sp, #720]
        ldp q30, q31, [sp, #752]
        "
    };
}

// Begins with `bti c`: stubs jump to it. What unwinders are told of that, too, comes first, behind `@`.
macro_rules! routine {
    ($name:literal, $(@ $told:literal,)* $($body:expr),+ ; $($operands:tt)*) => {
        core::arch::global_asm!(
            concat!(".pushsection .text.", $name, ", \"ax\", @progbits"),
            ".p2align 4",
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ", @function"),
            concat!($name, ":"),
            ".cfi_startproc",
            $($told,)*
            "hint #34",
            $($body,)+
            ".cfi_endproc",
            concat!(".size ", $name, ", . - ", $name),
            ".popsection",
            $($operands)*
        );
    };
}

pub(super) use {load_general, load_vectors, routine, save_general, save_vectors};
