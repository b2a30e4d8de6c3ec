//! What the routines of [`super::entry`] and [`super::returns`] do at their start and their end, as macros: saving the
//! registers as a [`Saved`](super::Saved) on the stack, and loading what is in it then.
//!
//! `rbp` holds the `Saved` in between, so that the stack can be aligned whatever the caller did with it.

/// Where a link has its data.
pub(super) const LINK_DATA: usize = core::mem::offset_of!(crate::listen::Link, data);

// With rsp at the `Saved`. All but rsp, and nothing but them.
macro_rules! save {
    // Vector registers that pass arguments go where the listener sees them, and the others below: a caller that the
    // compiler has seen together with the function may hold values in any of them (GCC's -fipa-ra). Four of one kind take
    // turns with four of the other: processors have ways for both kinds at once, but commit two stores at a time only if they
    // follow each other into one cache line. One by one in turns takes a third longer, and that decides what a call costs.
    (low) => {
        concat!(
            begin_saved!(),
            "
        sub rsp, 128
        and rsp, -16
        mov [rbp + 128], rax
        mov [rbp + 136], rcx
        mov [rbp + 144], rdx
        mov [rbp + 152], rbx
        movups [rbp], xmm0
        movups [rbp + 16], xmm1
        movups [rbp + 32], xmm2
        movups [rbp + 48], xmm3
        mov [rbp + 176], rsi
        mov [rbp + 184], rdi
        mov [rbp + 192], r8
        mov [rbp + 200], r9
        movups [rbp + 64], xmm4
        movups [rbp + 80], xmm5
        movups [rbp + 96], xmm6
        movups [rbp + 112], xmm7
        mov [rbp + 208], r10
        mov [rbp + 216], r11
        mov [rbp + 224], r12
        mov [rbp + 232], r13
        movaps [rsp], xmm8
        movaps [rsp + 16], xmm9
        movaps [rsp + 32], xmm10
        movaps [rsp + 48], xmm11
        mov [rbp + 240], r14
        mov [rbp + 248], r15
        movaps [rsp + 64], xmm12
        movaps [rsp + 80], xmm13
        movaps [rsp + 96], xmm14
        movaps [rsp + 112], xmm15
        ",
            saved_general!(),
            "
        mov qword ptr [rbp + 272], 0
        "
        )
    };
    (none) => {
        concat!(
            begin_saved!(),
            save_general!(),
            "
        mov qword ptr [rbp + 272], {not_saved}
        and rsp, -16
        "
        )
    };
    (all) => {
        concat!(begin_saved!(), save_general!(), save_all!())
    };
}

macro_rules! begin_saved {
    () => {
        "
        mov [rsp + 168], rbp
        .cfi_rel_offset rbp, 168
        mov rbp, rsp
        .cfi_def_cfa_register rbp
        "
    };
}

macro_rules! save_general {
    () => {
        concat!(
            "
        mov [rbp + 128], rax
        mov [rbp + 136], rcx
        mov [rbp + 144], rdx
        mov [rbp + 152], rbx
        mov [rbp + 176], rsi
        mov [rbp + 184], rdi
        mov [rbp + 192], r8
        mov [rbp + 200], r9
        mov [rbp + 208], r10
        mov [rbp + 216], r11
        mov [rbp + 224], r12
        mov [rbp + 232], r13
        mov [rbp + 240], r14
        mov [rbp + 248], r15
        ",
            saved_general!()
        )
    };
}

macro_rules! saved_general {
    () => {
        "
        .cfi_rel_offset rbx, 152
        .cfi_rel_offset r12, 224
        .cfi_rel_offset r13, 232
        .cfi_rel_offset r14, 240
        .cfi_rel_offset r15, 248
        "
    };
}

// The same back, with rsp at the `Saved` in the end. From there on unwinders find the registers where they belong: what was
// saved is soon too far below the stack pointer to be safe from signals.
macro_rules! load {
    (low) => {
        concat!(
            "
        movaps xmm8, [rsp]
        movaps xmm9, [rsp + 16]
        movaps xmm10, [rsp + 32]
        movaps xmm11, [rsp + 48]
        movaps xmm12, [rsp + 64]
        movaps xmm13, [rsp + 80]
        movaps xmm14, [rsp + 96]
        movaps xmm15, [rsp + 112]
        movups xmm0, [rbp]
        mov rax, [rbp + 128]
        movups xmm1, [rbp + 16]
        mov rcx, [rbp + 136]
        movups xmm2, [rbp + 32]
        mov rdx, [rbp + 144]
        movups xmm3, [rbp + 48]
        mov rbx, [rbp + 152]
        movups xmm4, [rbp + 64]
        mov rsi, [rbp + 176]
        movups xmm5, [rbp + 80]
        mov rdi, [rbp + 184]
        movups xmm6, [rbp + 96]
        mov r8, [rbp + 192]
        movups xmm7, [rbp + 112]
        mov r9, [rbp + 200]
        mov r10, [rbp + 208]
        mov r11, [rbp + 216]
        mov r12, [rbp + 224]
        mov r13, [rbp + 232]
        mov r14, [rbp + 240]
        mov r15, [rbp + 248]
        ",
            end_saved!()
        )
    };
    (none) => {
        concat!(load_general!(), end_saved!())
    };
    (all) => {
        concat!(load_all!(), load_general!(), end_saved!())
    };
}

macro_rules! load_general {
    () => {
        "
        mov rax, [rbp + 128]
        mov rcx, [rbp + 136]
        mov rdx, [rbp + 144]
        mov rbx, [rbp + 152]
        mov rsi, [rbp + 176]
        mov rdi, [rbp + 184]
        mov r8, [rbp + 192]
        mov r9, [rbp + 200]
        mov r10, [rbp + 208]
        mov r11, [rbp + 216]
        mov r12, [rbp + 224]
        mov r13, [rbp + 232]
        mov r14, [rbp + 240]
        mov r15, [rbp + 248]
        "
    };
}

macro_rules! end_saved {
    () => {
        "
        mov rsp, rbp
        .cfi_def_cfa_register rsp
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

// Tells a listener, which a function named here says (`listen::Telling`), so that `errno` is as before. What is needed behind
// the calls is in registers that every function keeps and that are saved already: a function of Rust would have to save them
// again. Leaves the link in rbx, where it is found by who asks what threads may reach.
macro_rules! tell {
    ($whom:literal) => {
        concat!(
            "
        mov r12, fs:[0]
        add r12, [rip + {errno}]
        mov r13d, [r12]
        mov rdi, rbp
        call ",
            $whom,
            "
        mov rbx, rdx
        mov rdi, rbp
        mov rsi, [rdx + {data}]
        call rax
        mov [r12], r13d
        "
        )
    };
}

macro_rules! routine {
    ($name:literal, $($body:expr),+ ; $($operands:tt)*) => {
        core::arch::global_asm!(
            concat!(".pushsection .text.", $name, ", \"ax\", @progbits"),
            ".p2align 6",
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

pub(super) use {
    begin_saved, end_saved, load, load_general, routine, save, save_general, saved_general, tell,
};
