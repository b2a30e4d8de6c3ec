//! The two symbols that debuggers look for (`seen/debugger.rs`).
//!
//! # Safety
//! They are data and a function of the form that the interface asks for.

use super::isa::debug_routine;
use crate::seen::Descriptor;

core::arch::global_asm!(
    ".pushsection .data.grapnel_hook_debug, \"aw\", %progbits",
    ".p2align 3",
    ".globl grapnel_hook_debug_descriptor",
    ".hidden grapnel_hook_debug_descriptor",
    "grapnel_hook_debug_descriptor:",
    ".type __jit_debug_descriptor, %object",
    "__jit_debug_descriptor: .long 1, 0",
    ".zero {pointers}",
    ".size __jit_debug_descriptor, 8 + {pointers}",
    ".popsection",
    ".pushsection .text.grapnel_hook_debug, \"ax\", %progbits",
    ".p2align 4",
    debug_routine!(".globl grapnel_hook_debug_register
        .hidden grapnel_hook_debug_register
        .type grapnel_hook_debug_register, %function
        grapnel_hook_debug_register:
        .type __jit_debug_register_code, %function
        __jit_debug_register_code:"),
    ".size __jit_debug_register_code, . - __jit_debug_register_code",
    ".popsection",
    pointers = const 2 * size_of::<usize>(),
);

unsafe extern "C" {
    static mut grapnel_hook_debug_descriptor: Descriptor;
    safe fn grapnel_hook_debug_register();
}

/// The list for debuggers.
pub(crate) fn debug_descriptor() -> *mut Descriptor {
    &raw mut grapnel_hook_debug_descriptor
}

/// Where a debugger has its breakpoint.
pub(crate) fn debug_register() {
    grapnel_hook_debug_register();
}
