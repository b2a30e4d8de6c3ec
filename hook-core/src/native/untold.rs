//! What only x86-64 has files for, on the other instruction sets: nothing tells whether code leaves the vector registers
//! alone, so it counts as if it didn't, nothing looks for branches from other functions, and no decoder has tables to be made.

use core::ops::Range;

use grapnel_relocator::Culprit;

use crate::{
    memory::{maps::Maps, pages::Pages},
    padding::Surroundings,
};

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

/// A branch into a patch from another function: on AArch64 and in A32 a patch is one instruction, which is entered at its
/// start or not at all. In T32 it is two at most, and nothing is looked for.
pub(crate) fn branch_into(_: &Range<u64>, _: &Range<u64>, _: &Maps, _: &Surroundings<'_>) -> Option<Culprit> {
    None
}
