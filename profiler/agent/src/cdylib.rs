//! What makes the crate a library of its own.
//!
//! # Safety
//! The constructor's entry is the one of [`crate::start`].

use crate::start::grapnel_agent_start;
use crate::{entry, life, session, sys};
use alloc::format;
use core::panic::PanicInfo;
use grapnel_trace::shared::failure;

/// Called by the loader with the arguments and the environment.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: unsafe extern "C" fn() = grapnel_agent_start;

/// A fault of our own: recording ends, the target goes on as if we had never been there.
#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    life::end();
    session::report_failure(failure::PANIC, format!("{info}").as_bytes());
    entry::escape();
    sys::abort()
}

// The compiler's ready-made libraries are built to unwind and refer to these two. Nothing here unwinds: a panic
// ends in the handler above. Hidden, so that no other library is led to them.
core::arch::global_asm!(
    ".text",
    ".globl _Unwind_Resume",
    ".hidden _Unwind_Resume",
    ".type _Unwind_Resume,@function",
    "_Unwind_Resume:",
    "ud2",
    ".size _Unwind_Resume, . - _Unwind_Resume",
    ".globl rust_eh_personality",
    ".hidden rust_eh_personality",
    ".type rust_eh_personality,@function",
    "rust_eh_personality:",
    "ud2",
    ".size rust_eh_personality, . - rust_eh_personality",
);
