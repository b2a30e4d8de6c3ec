//! Which instruction of a hooked function a thread was at that a signal stopped in the code made for the hook.
//!
//! That code is in no object, so nothing says how to leave its frame. Nearly all of it stands for an instruction of the
//! function, whose entry in the unwind tables does.
//!
//! # Safety
//! A list that only grows: its nodes are never freed.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use grapnel_hook::Prepared;

/// What was prepared at once.
struct Made {
    places: Vec<(Range<u64>, u64)>,
    before: *const Made,
}

static LAST: AtomicPtr<Made> = AtomicPtr::new(ptr::null_mut());

/// Notes what the code of these hooks stands for. Not while another thread does: only under PROCESS, or in the only thread.
pub(crate) fn note(prepared: &Prepared<'_>) {
    let hooks = prepared.hooks().flatten();
    let mut places = Vec::new();
    for hook in hooks {
        places.extend(hook.stands_for().map(|(range, of)| (range, of.0)));
    }
    let made = Made { places, before: LAST.load(Ordering::Relaxed) };
    LAST.store(Box::into_raw(Box::new(made)), Ordering::Release);
}

/// The bit of an address that says T32.
const CODE: u64 = if cfg!(target_arch = "arm") { 1 } else { 0 };

/// The instruction that code at an address stands for; nothing of code that no hook has, or is amid what it does instead.
pub(crate) fn original(pc: u64) -> Option<u64> {
    let at = pc & !CODE;
    let mut made: *const Made = LAST.load(Ordering::Acquire);
    // SAFETY: nodes stay as they are.
    while let Some(node) = unsafe { made.as_ref() } {
        if let Some((_, of)) = node.places.iter().find(|(range, _)| range.contains(&at)) {
            return Some(*of | pc & CODE);
        }
        made = node.before;
    }
    None
}
