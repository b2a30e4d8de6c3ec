//! The routines that call listeners, and the places that hooked functions return to.
//!
//! A link stub calls one of the entry routines. It saves the registers as a [`Saved`] on the stack, calls Rust, loads
//! what is in the [`Saved`] then, and returns to the stub. `rbp` holds the `Saved`, so that the stack can be aligned
//! whatever the caller did with it.
//!
//! A function whose return is listened to returns to a *return point*: one of a fixed number of places in this
//! library's own text, each of which has one word in memory, the real return address. Text and words come in pages; the
//! first word of a page of text is the distance from each of its points to the point's word. So the unwind entry of
//! the points can say where the return address is: in the word at that distance from the point. Unwinders find the entry
//! as they find that of any function, and exceptions and backtraces pass through. Nothing is registered with them at
//! run time, which would allocate.
//!
//! # Safety
//! The routines keep every register but those that the listener changes. A page of points holds nothing but points, so
//! a return address in it names a point.

use core::{ops::Range, sync::atomic::AtomicU64};

use super::{
    registers::{COMPONENTS, XSAVE_ROOM},
    stub::StubKind,
};

const PAGE: usize = 4096;
/// The length of a point, and of its word.
const POINT: usize = 8;
/// The places for points of one routine, eight pages of them.
const HALF: usize = 8 * PAGE / POINT;
/// All numbers of points; see [`is_return_point`].
pub(crate) const RETURN_POINTS: usize = 2 * HALF;

// What is said to unwinders about the return address, as DWARF expressions.
//
// Of a return point: the point's address, which is the frame's own program counter, and to that the distance that the
// first word of its page holds. Not what is in the return slot: where several listen, it holds the innermost's point.
//   10 10 09        DW_CFA_expression, column 16 (the return address), 9 bytes
//   80 00           breg16 (the program counter)
//   12              dup
//   0b 00 f0 1a     const2s -4096, and
//   06 22           deref, plus
//
// Its canonical frame address (CFA) is a little above the caller's stack pointer. libgcc knows the frame that handles an
// exception by its callee's CFA, and aborts if a frame without a handler has the same. So the outermost point of a call
// has another distance than those of the listeners within, which their numbers say (`is_outer_point`).
//   0f 0b           DW_CFA_def_cfa_expression, 11 bytes
//   77 00 80 00     breg7 (rsp), breg16
//   33 25 33 1a 22  lit3, shr, lit3, and, plus
//   23 01           plus_uconst 1
//   16 07 02        DW_CFA_val_expression, column 7 (rsp), 2 bytes
//   77 00           breg7
//
// Of the routine behind a point, until it has the real return address: the same from what is in the return slot. The CFA
// is on the stack of expressions.
//   10 10 0d        13 bytes
//   38 1c 06        lit8, minus, deref
//   09 f8 1a        const1s -8, and
//   12 0b 00 f0 1a 06 22
//
// Of a probe: the site literal of the stub, 40 bytes behind where its call returns to, at CFA - 136.
//   10 10 06        DW_CFA_expression, column 16, 6 bytes
//   08 88 1c 06     const1u 136, minus, deref
//   23 28           plus_uconst 40

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

// All but rsp and rbp.
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
    // The header must be zero where the instruction doesn't write it.
    (all) => {
        "
        mov rbp, rsp
        .cfi_def_cfa_register rbp
        sub rsp, {room}
        and rsp, -64
        xor eax, eax
        mov [rsp + 512], rax
        mov [rsp + 520], rax
        mov [rsp + 528], rax
        mov [rsp + 536], rax
        mov [rsp + 544], rax
        mov [rsp + 552], rax
        mov [rsp + 560], rax
        mov [rsp + 568], rax
        xor edx, edx
        mov eax, {components}
        xsave64 [rsp]
        mov [rbp + 272], rsp
        "
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
        "
        xor edx, edx
        mov eax, {components}
        xrstor64 [rsp]
        mov rsp, rbp
        .cfi_def_cfa_register rsp
        "
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

// At a function's entry: the stub's return address is on the stack, and above it the function's.
macro_rules! entry_routine {
    ($name:literal, $vectors:ident; $($operands:tt)*) => {
        routine!(
            $name,
            ".cfi_def_cfa rsp, 16",
            "lea rsp, [rsp - 288]",
            ".cfi_def_cfa_offset 304",
            save_general!(),
            "lea rax, [rsp + 296]",
            "mov [rsp + 160], rax",
            save_vectors!($vectors),
            "mov rdi, rbp",
            "call {entered}",
            load_vectors!($vectors),
            load_general!(),
            "lea rsp, [rsp + 288]",
            ".cfi_def_cfa_offset 16",
            "ret";
            entered = sym crate::listen::entered,
            $($operands)*
        );
    };
}

entry_routine!("grapnel_hook_entered", low;);
entry_routine!("grapnel_hook_entered_all", all; room = const XSAVE_ROOM, components = const COMPONENTS,);

// In the middle of a function: the stub has passed the red zone. The flags are kept. What lies above is the frame of the
// probed function, as an interrupted one: its address is that of an instruction that has yet to run.
macro_rules! probe_routine {
    ($name:literal, $vectors:ident; $($operands:tt)*) => {
        routine!(
            $name,
            ".cfi_signal_frame",
            ".cfi_def_cfa rsp, 136",
            ".cfi_escape 0x10, 0x10, 0x06, 0x08, 0x88, 0x1c, 0x06, 0x23, 0x28",
            // First and last, since what lies far below the stack pointer isn't safe from signals.
            "lea rsp, [rsp - 24]",
            ".cfi_def_cfa_offset 160",
            "pushfq",
            ".cfi_def_cfa_offset 168",
            "lea rsp, [rsp - 256]",
            ".cfi_def_cfa_offset 424",
            save_general!(),
            "cld",
            "lea rax, [rsp + 424]",
            "mov [rsp + 160], rax",
            save_vectors!($vectors),
            "mov rdi, rbp",
            "call {probed}",
            load_vectors!($vectors),
            load_general!(),
            "lea rsp, [rsp + 256]",
            ".cfi_def_cfa_offset 168",
            "popfq",
            ".cfi_def_cfa_offset 160",
            "lea rsp, [rsp + 24]",
            ".cfi_def_cfa_offset 136",
            "ret";
            probed = sym crate::listen::probed,
            $($operands)*
        );
    };
}

probe_routine!("grapnel_hook_probed", none;);
probe_routine!("grapnel_hook_probed_all", all; room = const XSAVE_ROOM, components = const COMPONENTS,);

// Behind a return point. The slot below the stack pointer still holds the point's address: it is in the red zone, which
// signals keep. It gets the real return address, and from there on this is an ordinary frame.
//
// It ends with a jump, not a return: the processor's prediction of returns has used up the caller's already.
macro_rules! return_routine {
    ($name:literal, $vectors:ident; $($operands:tt)*) => {
        routine!(
            $name,
            ".cfi_def_cfa rsp, 0",
            ".cfi_escape 0x10, 0x10, 0x0d, 0x38, 0x1c, 0x06, 0x09, 0xf8, 0x1a, 0x12, 0x0b, 0x00, 0xf0, 0x1a, 0x06, 0x22",
            "lea rsp, [rsp - 304]",
            ".cfi_def_cfa_offset 304",
            save_general!(),
            "lea rax, [rsp + 304]",
            "mov [rsp + 160], rax",
            save_vectors!($vectors),
            "mov rdi, rbp",
            "call {take}",
            "mov [rbp + 296], rax",
            ".cfi_offset rip, -8",
            "mov rdi, rbp",
            "call {returned}",
            load_vectors!($vectors),
            load_general!(),
            "lea rsp, [rsp + 304]",
            ".cfi_def_cfa_offset 0",
            "jmp qword ptr [rsp - 8]";
            take = sym crate::listen::take_return,
            returned = sym crate::listen::returned,
            $($operands)*
        );
    };
}

return_routine!("grapnel_hook_returned", low;);
return_routine!("grapnel_hook_returned_all", all; room = const XSAVE_ROOM, components = const COMPONENTS,);

// The points: one half for each of the routines. An unwinder looks a return address up by the byte before it, which lies
// in the point before or in the page's first word.
macro_rules! return_points {
    ($($routine:literal),*) => {
        core::arch::global_asm!(
            ".pushsection .bss.grapnel_hook_return_words, \"aw\", @nobits",
            ".p2align 12",
            ".globl grapnel_hook_return_words",
            ".hidden grapnel_hook_return_words",
            ".type grapnel_hook_return_words, @object",
            "grapnel_hook_return_words: .zero {bytes}",
            ".size grapnel_hook_return_words, {bytes}",
            ".popsection",
            ".pushsection .text.grapnel_hook_return_points, \"ax\", @progbits",
            ".p2align 12",
            ".globl grapnel_hook_return_points",
            ".hidden grapnel_hook_return_points",
            ".type grapnel_hook_return_points, @function",
            "grapnel_hook_return_points:",
            ".cfi_startproc",
            ".cfi_escape 0x0f, 0x0b, 0x77, 0x00, 0x80, 0x00, 0x33, 0x25, 0x33, 0x1a, 0x22, 0x23, 0x01",
            ".cfi_escape 0x16, 0x07, 0x02, 0x77, 0x00",
            ".cfi_escape 0x10, 0x10, 0x09, 0x80, 0x00, 0x12, 0x0b, 0x00, 0xf0, 0x1a, 0x06, 0x22",
            ".set grapnel_hook_page, 0",
            $(
                ".rept {pages}",
                ".quad grapnel_hook_return_words + grapnel_hook_page - .",
                ".rept {points}",
                ".byte 0xe9",
                concat!(".long ", $routine, " - . - 4"),
                ".byte 0xcc, 0xcc, 0xcc",
                ".endr",
                ".set grapnel_hook_page, grapnel_hook_page + 4096",
                ".endr",
            )*
            ".cfi_endproc",
            ".size grapnel_hook_return_points, . - grapnel_hook_return_points",
            ".popsection",
            bytes = const 2 * HALF * POINT,
            pages = const HALF * POINT / PAGE,
            points = const PAGE / POINT - 1,
        );
    };
}

return_points!("grapnel_hook_returned", "grapnel_hook_returned_all");

unsafe extern "C" {
    fn grapnel_hook_entered();
    fn grapnel_hook_entered_all();
    fn grapnel_hook_probed();
    fn grapnel_hook_probed_all();
    fn grapnel_hook_return_points();
    safe static grapnel_hook_return_words: [AtomicU64; 2 * HALF];
}

/// The routine that a link stub calls, by where it stands and whether all vector state is saved.
pub(crate) fn routine(kind: StubKind, all_vectors: bool) -> u64 {
    let routine: unsafe extern "C" fn() = match (kind, all_vectors) {
        (StubKind::Entry, false) => grapnel_hook_entered,
        (StubKind::Entry, true) => grapnel_hook_entered_all,
        (StubKind::Inside, false) => grapnel_hook_probed,
        (StubKind::Inside, true) => grapnel_hook_probed_all,
    };
    routine as usize as u64
}

/// The numbers of the return points of one of the two routines.
pub(crate) fn return_points(all_vectors: bool) -> Range<usize> {
    let first = if all_vectors { HALF } else { 0 };
    first..first + HALF
}

/// Whether a number is that of a point: the first place of each page holds the page's distance.
pub(crate) fn is_return_point(number: usize) -> bool {
    !number.is_multiple_of(PAGE / POINT)
}

/// Whether a point is for the outermost listener of a call: one whose return address isn't that of another point.
pub(crate) fn is_outer_point(number: usize) -> bool {
    !number.is_multiple_of(4)
}

/// Where a function returns to when its return point has this number.
pub(crate) fn return_point(number: usize) -> u64 {
    (grapnel_hook_return_points as *const () as usize + number * POINT) as u64
}

/// The number of the point at an address.
pub(crate) fn number_of_return_point(at: u64) -> usize {
    (at as usize).wrapping_sub(grapnel_hook_return_points as *const () as usize) / POINT % RETURN_POINTS
}

/// The word in which unwinders find the real return address.
pub(crate) fn return_word(number: usize) -> &'static AtomicU64 {
    &grapnel_hook_return_words[number % RETURN_POINTS]
}
