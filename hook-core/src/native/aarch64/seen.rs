//! What unwinders and debuggers would be told. No entries are made yet: the return address of an entry must not take X30's
//! column (30), since the function may not have saved it yet.

use crate::{
    native::{Layout, LinkKind},
    seen::{Descriptor, piece::Stack},
};

/// Neither unwinders nor debuggers can be told of anything.
pub(crate) const LAYOUT: Option<Layout> = None;

/// What the relocated code of one instruction does to the stack isn't asked for without a layout.
pub(crate) fn stack_within(_: &[u8], each: &mut dyn FnMut(usize, Stack)) {
    each(0, Stack::default());
}

/// The same for stubs.
pub(crate) fn stack_of_link_stub(_: LinkKind, each: &mut dyn FnMut(usize, Stack)) {
    each(0, Stack::default());
}

/// There is no list for debuggers, and none is asked for.
pub(crate) fn debug_descriptor() -> *mut Descriptor {
    core::ptr::null_mut()
}

/// Nobody has a breakpoint here.
pub(crate) fn debug_register() {}
