//! The functions that are hooked: empty ones, one for each kind of hook, and many of the usual form.

use std::arch::global_asm;

/// How many of the usual form there are.
pub const MANY: usize = 10_000;

/// How long each function is, in bytes.
pub const SIZE: usize = 19;

/// Where a probe is put in: behind the first instructions of the frame.
pub const PROBED: usize = 4;

const EMPTY: usize = 64;
const STEP: usize = 64;
const STEP_OF_MANY: usize = 32;

global_asm!(
    ".macro bench_function",
    "push rbp",
    "mov rbp, rsp",
    "mov eax, 1",
    "nop dword ptr [rax + rax + 0x11223344]",
    "pop rbp",
    "ret",
    ".endm",
    ".pushsection .text.bench, \"ax\", @progbits",
    ".p2align 6",
    "bench_empty:",
    ".rept 64",
    "bench_function",
    ".p2align 6",
    ".endr",
    "bench_jump: .byte 0xe9; .long bench_behind_jump - . - 4",
    ".skip 4096",
    ".p2align 6",
    "bench_behind_jump:",
    "bench_function",
    ".p2align 6",
    "bench_many:",
    ".rept 10000",
    "bench_function",
    ".p2align 5",
    ".endr",
    ".globl bench_empty, bench_jump, bench_many",
    ".popsection",
);

unsafe extern "C" {
    fn bench_empty();
    fn bench_jump();
    fn bench_many();
}

/// The empty function of this number, from 0.
pub fn empty(number: usize) -> *const () {
    assert!(number < EMPTY, "there are {EMPTY} empty functions");
    (bench_empty as *const ()).wrapping_byte_add(STEP * number)
}

/// A jump to an empty function.
pub fn jump() -> *const () {
    bench_jump as *const ()
}

/// One of the [`MANY`].
pub fn many(number: usize) -> *const () {
    assert!(number < MANY, "there are {MANY} functions");
    (bench_many as *const ()).wrapping_byte_add(STEP_OF_MANY * number)
}

/// What replaces them.
pub extern "C" fn replacement() -> u32 {
    0
}
