//! What unwinders and debuggers are told: nothing here. The unwind tables of this architecture (EHABI32) are found through the
//! dynamic linker's list of objects alone, so there is no way to add some for code that is made at run time.
//!
//! # Safety
//! The symbol that debuggers look for is data of the form that their interface asks for.

use crate::{
    native::{Layout, LinkKind},
    seen::{Descriptor, piece::Stack},
};

/// Unwinders and debuggers can't be told of anything.
pub(crate) const LAYOUT: Option<Layout> = None;

/// What the relocated code of one instruction does to the stack before it is done isn't told to anyone.
pub(crate) fn stack_within(_: &[u8], each: &mut dyn FnMut(usize, Stack)) {
    each(0, Stack::default());
}

/// The same for the stub of a listener or a probe.
pub(crate) fn stack_of_link_stub(_: LinkKind, each: &mut dyn FnMut(usize, Stack)) {
    each(0, Stack::default());
}

core::arch::global_asm!(
    ".pushsection .data.grapnel_hook_debug, \"aw\", %progbits",
    ".p2align 3",
    ".globl grapnel_hook_debug_descriptor",
    ".hidden grapnel_hook_debug_descriptor",
    "grapnel_hook_debug_descriptor: .long 1, 0, 0, 0",
    ".popsection",
);

unsafe extern "C" {
    static mut grapnel_hook_debug_descriptor: Descriptor;
}

/// The list for debuggers, which stays empty and which none of them finds.
pub(crate) fn debug_descriptor() -> *mut Descriptor {
    &raw mut grapnel_hook_debug_descriptor
}

/// No debugger has a breakpoint.
pub(crate) fn debug_register() {}
