//! What the routines of [`super::entry`] and [`super::returns`] do at their start and their end, as macros: saving the
//! registers as a [`Saved`](super::Saved) on the stack, and loading what is in it then.
//!
//! `rbp` holds the `Saved` in between, so that the stack can be aligned whatever the caller did with it.

macro_rules! save_general {
    () => {
        "
        mov [rsp + 128], rax
        mov [rsp + 136], rcx
        mov [rsp + 144], rdx
        mov [rsp + 152], rbx
        mov [rsp + 168], rbp
        mov [rsp + 176], rsi
        mov [rsp + 184], rdi
        mov [rsp + 192], r8
        mov [rsp + 200], r9
        mov [rsp + 208], r10
        mov [rsp + 216], r11
        mov [rsp + 224], r12
        mov [rsp + 232], r13
        mov [rsp + 240], r14
        mov [rsp + 248], r15
        .cfi_rel_offset rbx, 152
        .cfi_rel_offset rbp, 168
        .cfi_rel_offset r12, 224
        .cfi_rel_offset r13, 232
        .cfi_rel_offset r14, 240
        .cfi_rel_offset r15, 248
        "
    };
}

// All but rsp. From here on unwinders find them where they belong: what was saved is soon too far below the stack pointer to
// be safe from signals.
macro_rules! load_general {
    () => {
        "
        mov rax, [rsp + 128]
        mov rcx, [rsp + 136]
        mov rdx, [rsp + 144]
        mov rbx, [rsp + 152]
        mov rsi, [rsp + 176]
        mov rdi, [rsp + 184]
        mov r8, [rsp + 192]
        mov r9, [rsp + 200]
        mov r10, [rsp + 208]
        mov r11, [rsp + 216]
        mov r12, [rsp + 224]
        mov r13, [rsp + 232]
        mov r14, [rsp + 240]
        mov r15, [rsp + 248]
        mov rbp, [rsp + 168]
        .cfi_restore rbx
        .cfi_restore rbp
        .cfi_restore r12
        .cfi_restore r13
        .cfi_restore r14
        .cfi_restore r15
        "
    };
}

macro_rules! save_vectors {
    // Those that pass arguments where the listener sees them, and the others below: a caller that the compiler has seen
    // together with the function may hold values in any of them (GCC's -fipa-ra).
    (low) => {
        "
        movups [rsp], xmm0
        movups [rsp + 16], xmm1
        movups [rsp + 32], xmm2
        movups [rsp + 48], xmm3
        movups [rsp + 64], xmm4
        movups [rsp + 80], xmm5
        movups [rsp + 96], xmm6
        movups [rsp + 112], xmm7
        mov qword ptr [rsp + 272], 0
        mov rbp, rsp
        .cfi_def_cfa_register rbp
        sub rsp, 128
        and rsp, -16
        movaps [rsp], xmm8
        movaps [rsp + 16], xmm9
        movaps [rsp + 32], xmm10
        movaps [rsp + 48], xmm11
        movaps [rsp + 64], xmm12
        movaps [rsp + 80], xmm13
        movaps [rsp + 96], xmm14
        movaps [rsp + 112], xmm15
        "
    };
    (none) => {
        "
        mov qword ptr [rsp + 272], 0
        mov rbp, rsp
        .cfi_def_cfa_register rbp
        and rsp, -16
        "
    };
    (all) => {
        save_all!()
    };
}

// Ends with rsp at the `Saved`.
macro_rules! load_vectors {
    (low) => {
        "
        movaps xmm8, [rsp]
        movaps xmm9, [rsp + 16]
        movaps xmm10, [rsp + 32]
        movaps xmm11, [rsp + 48]
        movaps xmm12, [rsp + 64]
        movaps xmm13, [rsp + 80]
        movaps xmm14, [rsp + 96]
        movaps xmm15, [rsp + 112]
        mov rsp, rbp
        .cfi_def_cfa_register rsp
        movups xmm0, [rsp]
        movups xmm1, [rsp + 16]
        movups xmm2, [rsp + 32]
        movups xmm3, [rsp + 48]
        movups xmm4, [rsp + 64]
        movups xmm5, [rsp + 80]
        movups xmm6, [rsp + 96]
        movups xmm7, [rsp + 112]
        "
    };
    (none) => {
        "
        mov rsp, rbp
        .cfi_def_cfa_register rsp
        "
    };
    (all) => {
        load_all!()
    };
}

macro_rules! routine {
    ($name:literal, $($body:expr),+ ; $($operands:tt)*) => {
        core::arch::global_asm!(
            concat!(".pushsection .text.", $name, ", \"ax\", @progbits"),
            ".p2align 4",
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ", @function"),
            concat!($name, ":"),
            ".cfi_startproc",
            $($body,)+
            ".cfi_endproc",
            concat!(".size ", $name, ", . - ", $name),
            ".popsection",
            $($operands)*
        );
    };
}

pub(super) use {load_general, load_vectors, routine, save_general, save_vectors};
