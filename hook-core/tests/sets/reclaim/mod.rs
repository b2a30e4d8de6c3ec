//! Giving back what was removed.

mod leaks;
mod others;
mod plain;
mod threads;

use std::{
    arch::global_asm,
    ffi::c_void,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::*},
};

use grapnel_hook::{
    HookSet, Liveness, Reclaimed,
    listen::{Entry, Exit, Hit},
};

use crate::Function;

fn reclaim(set: &mut HookSet, liveness: Liveness) -> Reclaimed {
    // SAFETY: what `liveness` says is so, no original is called any more, and there are no coroutines.
    unsafe { set.reclaim(liveness) }
}

static TOLD: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn enter(_: &mut Entry, data: *mut c_void) {
    TOLD.fetch_add(data as u64, Relaxed);
}

unsafe extern "C" fn leave(_: &mut Exit, data: *mut c_void) {
    TOLD.fetch_add(data as u64, Relaxed);
}

unsafe extern "C" fn hit(_: &mut Hit, data: *mut c_void) {
    TOLD.fetch_add(data as u64, Relaxed);
}

extern "C" fn seven(_: u64) -> u64 {
    7
}

/// What the blocking listener and function wait for.
static BLOCK: AtomicBool = AtomicBool::new(false);
static INSIDE: AtomicBool = AtomicBool::new(false);

fn block() {
    INSIDE.store(true, SeqCst);
    while BLOCK.load(SeqCst) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    INSIDE.store(false, SeqCst);
}

unsafe extern "C" fn blocking_enter(_: &mut Entry, _: *mut c_void) {
    block();
}

unsafe extern "C" fn blocking_leave(_: &mut Exit, _: *mut c_void) {
    block();
}

extern "C" fn blocking_call() {
    block();
}

// A function that calls before anything else: the call is made in the trampoline, and returns there, since it is under BND. One
// whose call does without that, and returns to the function. And one whose call lies behind what a patch takes.
global_asm!(
    ".pushsection .text.blocking, \"ax\", @progbits",
    ".p2align 4",
    ".globl blocking_first",
    ".type blocking_first, @function",
    "blocking_first: .cfi_startproc",
    ".byte 0xf2; call {block}; lea rax, [rdi + 1]; ret",
    ".cfi_endproc; .size blocking_first, . - blocking_first",
    ".p2align 4",
    ".globl blocking_last",
    ".type blocking_last, @function",
    "blocking_last: .cfi_startproc",
    "call {block}; lea rax, [rdi + 1]; ret",
    ".cfi_endproc; .size blocking_last, . - blocking_last",
    ".p2align 4",
    ".globl blocking_later",
    ".type blocking_later, @function",
    "blocking_later: .cfi_startproc",
    "push rbp; mov rbp, rsp; and rsp, -16; nop dword ptr [rax]; call {block}; leave; ret",
    ".cfi_endproc; .size blocking_later, . - blocking_later",
    ".popsection",
    block = sym blocking_call,
);

unsafe extern "C" {
    fn blocking_first(x: u64) -> u64;
    fn blocking_last(x: u64) -> u64;
    fn blocking_later(x: u64) -> u64;
}

/// Overwrites what calls that are over have left on the stack. Addresses among it, in parts of frames that nobody writes, would
/// keep code from being freed.
#[inline(never)]
fn clear_the_stack() {
    std::hint::black_box([0u8; 64 << 10]);
}

/// Calls a function in another thread, which blocks somewhere; meanwhile it is looked at, and again afterwards.
fn while_blocked(call: Function, during: impl FnOnce(), after: impl FnOnce()) {
    clear_the_stack();
    with_it_blocked(call, during, after);
}

#[inline(never)]
fn with_it_blocked(call: Function, during: impl FnOnce(), after: impl FnOnce()) {
    BLOCK.store(true, SeqCst);
    let thread = std::thread::spawn(move || call(1));
    while !INSIDE.load(SeqCst) {
        std::thread::yield_now();
    }
    during();
    BLOCK.store(false, SeqCst);
    thread.join().unwrap();
    after();
}

pub(crate) fn run() {
    others::run();
    leaks::run();
    plain::run();
    threads::run();
}
