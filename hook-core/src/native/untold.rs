//! What only x86-64 has files for, on the other instruction sets: nothing tells whether code leaves the vector registers
//! alone, so it counts as if it didn't, and no decoder has tables to be made.

use core::ops::Range;

use crate::memory::pages::Pages;

/// See [`crate::prepare`].
pub(crate) fn prepare() {}

/// Whether nothing of the vector registers has to be saved for a function.
pub(crate) fn leaves_vectors_alone(_: &Pages<'_>, _: usize, _: &Range<usize>) -> bool {
    false
}

/// The same for this library's own code that runs for listeners.
pub(crate) fn routines_leave_vectors_alone(_: &Pages<'_>) -> bool {
    false
}

/// Calls a function. Its caller has saved what it may change.
///
/// # Safety
/// As for the function.
pub(crate) unsafe fn aside(
    function: unsafe extern "C" fn(usize, usize, usize) -> usize,
    [a, b, c]: [usize; 3],
) -> usize {
    // SAFETY: the caller's promise.
    unsafe { function(a, b, c) }
}
