//! Registers that a call may change by the ABI, kept: for functions that lie beside their callers.
//!
//! A compiler that has a function and its callers before it may know which registers the function leaves as they are, and
//! rely on it (gcc's `-fipa-ra`, part of `-O2`). That is so of functions that nothing can take the place of: those of
//! the program itself, and of libraries that were linked for it. A stub on such a function must leave alone all that the function
//! leaves alone, but for the flags, which no compiler counts on.
//!
//! Nor need such a caller align the stack for a function that doesn't need it (`-fipa-stack-alignment`): it is aligned for our own.
//!
//! So these stubs keep the nine registers for whole numbers that a call may change, and XMM0 to XMM15. That is all that
//! we, and what we call but the hooked function itself, can change: the agent is compiled for the first x86-64
//! processors, in whose code nothing writes the rest of a wide vector register, one from 16 on, a mask, or
//! the x87 stack; libc's functions that it calls are of that kind; and the kernel keeps vectors.
//!
//! The frame below [`SavedRegisters`](super::entry::SavedRegisters), which has RDI, RSI and RDX, from the stack pointer:
//!
//! | offset | what |
//! |---|---|
//! | 0, 8 | the stub's own |
//! | 16 | XMM0 to XMM15 |
//! | 272 | R11, RAX, R10, R9, R8, RCX |
//! | 320 | the saved registers |

#[cfg(all(grapnel_cdylib, target_feature = "avx"))]
compile_error!("an instruction of AVX clears what is above an XMM register, and nobody here keeps that");

/// Assembly that saves all but RAX, in a frame of 320 bytes that is there.
macro_rules! keep {
    () => {
        "mov [rsp + 272], r11
        mov [rsp + 288], r10
        mov [rsp + 296], r9
        mov [rsp + 304], r8
        mov [rsp + 312], rcx
        movups [rsp + 16], xmm0
        movups [rsp + 32], xmm1
        movups [rsp + 48], xmm2
        movups [rsp + 64], xmm3
        movups [rsp + 80], xmm4
        movups [rsp + 96], xmm5
        movups [rsp + 112], xmm6
        movups [rsp + 128], xmm7
        movups [rsp + 144], xmm8
        movups [rsp + 160], xmm9
        movups [rsp + 176], xmm10
        movups [rsp + 192], xmm11
        movups [rsp + 208], xmm12
        movups [rsp + 224], xmm13
        movups [rsp + 240], xmm14
        movups [rsp + 256], xmm15
        "
    };
}
pub(crate) use keep;

/// Assembly that brings all back but RAX.
macro_rules! bring_back {
    () => {
        "movups xmm0, [rsp + 16]
        movups xmm1, [rsp + 32]
        movups xmm2, [rsp + 48]
        movups xmm3, [rsp + 64]
        movups xmm4, [rsp + 80]
        movups xmm5, [rsp + 96]
        movups xmm6, [rsp + 112]
        movups xmm7, [rsp + 128]
        movups xmm8, [rsp + 144]
        movups xmm9, [rsp + 160]
        movups xmm10, [rsp + 176]
        movups xmm11, [rsp + 192]
        movups xmm12, [rsp + 208]
        movups xmm13, [rsp + 224]
        movups xmm14, [rsp + 240]
        movups xmm15, [rsp + 256]
        mov r11, [rsp + 272]
        mov r10, [rsp + 288]
        mov r9, [rsp + 296]
        mov r8, [rsp + 304]
        mov rcx, [rsp + 312]
        mov rdx, [rsp + 384]
        mov rsi, [rsp + 392]
        mov rdi, [rsp + 400]
        "
    };
}
pub(crate) use bring_back;

/// Assembly that calls a function with the stack aligned, in a frame where RBP was saved so many bytes from the stack pointer.
macro_rules! call_aligned {
    ($function:literal, $rbp:literal) => {
        concat!(
            "mov rbp, rsp\n.cfi_def_cfa_register rbp\n",
            "and rsp, -16\n",
            "call ",
            $function,
            "\n",
            $crate::native::entry::stub_returned!(),
            "mov rsp, rbp\n.cfi_def_cfa_register rsp\n",
            "mov rbp, [rsp + ",
            $rbp,
            "]\n"
        )
    };
}
pub(crate) use call_aligned;
