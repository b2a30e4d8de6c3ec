//! Registers that a call may change by the ABI, kept: for functions that lie beside their callers.
//!
//! A compiler that has a function and its callers before it may know which registers the function leaves as they are, and
//! rely on it (gcc's `-fipa-ra`, part of `-O2`). That is so of functions that nothing can take the place of: those of
//! the program itself, and of libraries that were linked for it. A stub on such a function must leave alone all that the function
//! leaves alone, but for the flags, which no compiler counts on, and X16 and X17, which a linker may change at any call.
//!
//! So these stubs keep X0 to X15, X18, and V0 to V31. What is beyond 128 bits of a register of SVE is not kept: the kernel itself
//! keeps it in no system call.
//!
//! The frame below [`SavedRegisters`](super::entry::SavedRegisters), which has X0 to X2, from the stack pointer:
//!
//! | offset | what |
//! |---|---|
//! | 0, 8 | the stub's own |
//! | 16 | X3 to X15, X18 |
//! | 128 | V0 to V31 |
//! | 640 | the saved registers |

/// Assembly that saves all but X0 to X2, in a frame of 640 bytes that is there.
macro_rules! keep {
    () => {
        "stp x3, x4, [sp, #16]
        stp x5, x6, [sp, #32]
        stp x7, x8, [sp, #48]
        stp x9, x10, [sp, #64]
        stp x11, x12, [sp, #80]
        stp x13, x14, [sp, #96]
        stp x15, x18, [sp, #112]
        stp q0, q1, [sp, #128]
        stp q2, q3, [sp, #160]
        stp q4, q5, [sp, #192]
        stp q6, q7, [sp, #224]
        stp q8, q9, [sp, #256]
        stp q10, q11, [sp, #288]
        stp q12, q13, [sp, #320]
        stp q14, q15, [sp, #352]
        stp q16, q17, [sp, #384]
        stp q18, q19, [sp, #416]
        stp q20, q21, [sp, #448]
        stp q22, q23, [sp, #480]
        stp q24, q25, [sp, #512]
        stp q26, q27, [sp, #544]
        stp q28, q29, [sp, #576]
        stp q30, q31, [sp, #608]
        "
    };
}
pub(crate) use keep;

/// Assembly that brings all back but X0, with the frame at a register: the stack pointer, if none is named.
macro_rules! bring_back {
    () => {
        $crate::native::kept::bring_back!("sp")
    };
    ($frame:literal) => {
        concat!(
            ".irp frame, ",
            $frame,
            "
        ldp x3, x4, [\\frame, #16]
        ldp x5, x6, [\\frame, #32]
        ldp x7, x8, [\\frame, #48]
        ldp x9, x10, [\\frame, #64]
        ldp x11, x12, [\\frame, #80]
        ldp x13, x14, [\\frame, #96]
        ldp x15, x18, [\\frame, #112]
        ldp q0, q1, [\\frame, #128]
        ldp q2, q3, [\\frame, #160]
        ldp q4, q5, [\\frame, #192]
        ldp q6, q7, [\\frame, #224]
        ldp q8, q9, [\\frame, #256]
        ldp q10, q11, [\\frame, #288]
        ldp q12, q13, [\\frame, #320]
        ldp q14, q15, [\\frame, #352]
        ldp q16, q17, [\\frame, #384]
        ldp q18, q19, [\\frame, #416]
        ldp q20, q21, [\\frame, #448]
        ldp q22, q23, [\\frame, #480]
        ldp q24, q25, [\\frame, #512]
        ldp q26, q27, [\\frame, #544]
        ldp q28, q29, [\\frame, #576]
        ldp q30, q31, [\\frame, #608]
        ldr x1, [\\frame, #808]
        ldr x2, [\\frame, #816]
        .endr
        "
        )
    };
}
pub(crate) use bring_back;
