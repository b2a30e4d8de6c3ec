//! The places that functions return to whose return is listened to.
//!
//! Such a function returns to a *return point*: one of a fixed number of places in this library's own text, each of which
//! has one word in memory, the real return address. Text and words come in pages; the first word of a page of text is the
//! distance from each of its points to the point's word. So the unwind entry of the points can say where the return
//! address is: in the word at that distance from the point. Unwinders find the entry as they find that of any function, and
//! exceptions and backtraces pass through. Nothing is registered with them at run time, which would allocate. 32-bit Arm has
//! entries of another kind, and a function that does the same.
//!
//! The text of the points is in `returns.rs` of each instruction set. A point and its word have places of one size, at whose
//! start the word is; so the distance is that between the places.
//!
//! # Safety
//! A page of points holds nothing but points, so a return address in it names a point.

use core::{ops::Range, sync::atomic::AtomicU64};

use super::{
    Vectors,
    isa::{PARTS, POINT, POINT_OFFSET},
};

/// The pages are of this size everywhere: they are no pages of the processor's.
pub(super) const PAGE: usize = 4096;
/// The places for points of one routine.
pub(super) const PART: usize = 4096;
/// More than all numbers of points, so that a number is cut to size by one instruction; see [`is_return_point`].
pub(crate) const RETURN_POINTS: usize = (PARTS * PART).next_power_of_two();

unsafe extern "C" {
    fn grapnel_hook_return_points();
    safe static grapnel_hook_return_words: [AtomicU64; RETURN_POINTS * POINT / WORD];
}

const WORD: usize = size_of::<AtomicU64>();

/// Which part has the return points of a routine. One that saves nothing is not everywhere.
pub(crate) fn part_of_points(vectors: Vectors) -> usize {
    let part = match vectors {
        Vectors::Low => 0,
        Vectors::All => 1,
        Vectors::None => 2,
    };
    part % PARTS
}

/// The part that a point is in.
pub(crate) fn part_of_point(number: usize) -> usize {
    number / PART % PARTS
}

/// How many parts there are.
pub(crate) const POINT_PARTS: usize = PARTS;

/// The numbers of the return points of a part.
pub(crate) fn return_points(part: usize) -> Range<usize> {
    part * PART..part * PART + PART
}

/// Whether a number is that of a point: the first place of each page holds the page's distance.
pub(crate) fn is_return_point(number: usize) -> bool {
    !number.is_multiple_of(PAGE / POINT)
}

/// Whether a point is for the outermost listener of a call: one whose return address isn't that of another point.
pub(crate) fn is_outer_point(number: usize) -> bool {
    !number.is_multiple_of(4)
}

/// Where a function returns to when its return point has this number.
pub(crate) fn return_point(number: usize) -> u64 {
    (grapnel_hook_return_points as *const () as usize + number * POINT + POINT_OFFSET) as u64
}

/// The number of the point at an address.
pub(crate) fn number_of_return_point(at: u64) -> usize {
    (at as usize).wrapping_sub(grapnel_hook_return_points as *const () as usize) / POINT % RETURN_POINTS
}

/// The number of the point with this very address, if there is one.
#[inline]
pub(crate) fn point_at(at: u64) -> Option<usize> {
    let offset = (at as usize).wrapping_sub(grapnel_hook_return_points as *const () as usize + POINT_OFFSET);
    let number = offset / POINT;
    (number < PARTS * PART && offset.is_multiple_of(POINT) && is_return_point(number)).then_some(number)
}

/// The number of the place that is tried as the `i`th for a return, by where it is. All of them are for the outermost
/// listener of a call or none is, as asked for, and few are no points.
#[inline]
pub(crate) fn return_point_to_try(slot: usize, i: usize, part: usize, outer: bool) -> usize {
    const FOURS: usize = PART / 4;
    let hash = (slot as u64 >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // Of each four numbers the first is for listeners within.
    let within = if outer { 1 + (hash >> 62).min(2) as usize } else { 0 };
    let four = ((hash >> 40) as usize).wrapping_add(i) % FOURS;
    return_points(part).start + 4 * four + within
}

/// The word in which unwinders find the real return address.
pub(crate) fn return_word(number: usize) -> &'static AtomicU64 {
    &grapnel_hook_return_words[number % RETURN_POINTS * POINT / WORD]
}
