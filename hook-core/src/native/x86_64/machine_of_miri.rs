//! The same for Miri, which runs no assembly and no code that was written.
//!
//! # Safety
//! As there.

use core::ops::Range;

use super::general::Own;
use crate::sys;

pub(crate) fn synchronise_this_core() {}

pub(crate) fn is_emulated() -> bool {
    false
}

pub(crate) fn thread_pointer() -> usize {
    std::thread_local!(static BLOCK: u8 = const { 0 });
    BLOCK.with(|block| core::ptr::from_ref(block) as usize)
}

/// # Safety
/// `bytes` fit into the pages at `at`, and the caller may change them.
pub(crate) unsafe fn rewrite(pages: &Range<usize>, at: usize, bytes: &[u8], rights: i32) -> isize {
    // SAFETY: the caller's promise.
    let written = unsafe {
        sys::mprotect(pages.start, pages.len(), libc::PROT_READ | libc::PROT_WRITE).and_then(|()| {
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len());
            sys::mprotect(pages.start, pages.len(), rights)
        })
    };
    written.map_or_else(|errno| -(errno.0 as isize), |()| 0)
}

pub(crate) fn rewrite_range() -> Range<usize> {
    0..0
}

pub(crate) extern "C" fn signal_return() {}

pub(super) const ASIDE: Own = Own(core::ptr::null());

/// # Safety
/// As for the function.
pub(crate) unsafe fn aside(
    function: unsafe extern "C" fn(usize, usize, usize) -> usize,
    [a, b, c]: [usize; 3],
) -> usize {
    // SAFETY: the caller's promise.
    unsafe { function(a, b, c) }
}

pub(super) fn mark_vectors() {}
