//! Three return points, of which the first is none, and the stacks of three threads of one word each.

use core::ops::Range;

use crate::atomic::{AtomicU64, Ordering::*};

pub(crate) const RETURN_POINTS: usize = 3;
pub(crate) const RETURNS_BY_MEMORY: bool = true;
const POINTS: u64 = 0x4000;
/// Where the stacks are.
pub(crate) const STACKS: usize = 0x800;

loom::lazy_static! {
    static ref WORDS: [AtomicU64; RETURN_POINTS] = Default::default();
    pub(crate) static ref STACK: [AtomicU64; 3] = Default::default();
}

loom::thread_local! {
    static THREAD: core::cell::Cell<usize> = core::cell::Cell::new(0);
}

pub(crate) fn thread_pointer() -> usize {
    THREAD.with(core::cell::Cell::get)
}

pub(crate) fn set_thread_pointer(to: usize) {
    THREAD.with(|thread| thread.set(to));
}

pub(crate) fn return_points(_: usize) -> Range<usize> {
    0..RETURN_POINTS
}

pub(crate) fn part_of_point(_: usize) -> usize {
    0
}

/// # Safety
/// As for the function.
pub(crate) unsafe fn aside(
    function: unsafe extern "C" fn(usize, usize, usize) -> usize,
    [a, b, c]: [usize; 3],
) -> usize {
    // SAFETY: the caller's promise.
    unsafe { function(a, b, c) }
}

pub(crate) fn is_return_point(number: usize) -> bool {
    number != 0
}

pub(crate) fn is_outer_point(_: usize) -> bool {
    true
}

pub(crate) fn return_point(number: usize) -> u64 {
    POINTS + 8 * number as u64
}

pub(crate) fn number_of_return_point(at: u64) -> usize {
    at.wrapping_sub(POINTS) as usize / 8 % RETURN_POINTS
}

pub(crate) fn point_at(address: u64) -> Option<usize> {
    (0..RETURN_POINTS).find(|&number| is_return_point(number) && return_point(number) == address)
}

pub(crate) fn return_word(number: usize) -> &'static AtomicU64 {
    &WORDS[number]
}

pub(crate) fn return_point_to_try(slot: usize, i: usize, _: usize, _: bool) -> usize {
    ((slot - STACKS) / 8 + i) % RETURN_POINTS
}

/// The word at an address on a stack.
pub(crate) fn on_stack(at: usize) -> &'static AtomicU64 {
    &STACK[(at - STACKS) / 8]
}

/// What a stub saves of a call.
pub(crate) struct Saved {
    pub(crate) call: usize,
    pub(crate) return_address: u64,
    pub(crate) word: u64,
}

impl Saved {
    pub(crate) fn call(&self) -> usize {
        self.call
    }

    pub(crate) fn set_return_address(&mut self, address: u64) {
        on_stack(self.call).store(address, Relaxed);
    }
}
