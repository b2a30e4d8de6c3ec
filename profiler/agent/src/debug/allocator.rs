//! The allocator's own functions, behind their hooks.
//!
//! # Safety
//! Of all functions here: the arguments are such as the function of that name takes.

use crate::hooks::{Function, inside, original, original_as};
use core::ffi::{c_int, c_void};

type Block = *mut c_void;

pub(crate) unsafe fn malloc(size: usize) -> Block {
    // SAFETY: the function's own type; the rest is the caller's promise.
    inside(|| unsafe { original_as::<unsafe extern "C" fn(usize) -> Block>(Function::Malloc)(size) })
}

pub(crate) unsafe fn calloc(count: usize, size: usize) -> Block {
    // SAFETY: as above.
    inside(|| unsafe {
        original_as::<unsafe extern "C" fn(usize, usize) -> Block>(Function::Calloc)(count, size)
    })
}

pub(crate) unsafe fn realloc(block: Block, size: usize) -> Block {
    // SAFETY: as above.
    inside(|| unsafe {
        original_as::<unsafe extern "C" fn(Block, usize) -> Block>(Function::Realloc)(block, size)
    })
}

pub(crate) unsafe fn free(block: Block) {
    // SAFETY: as above.
    inside(|| unsafe { original_as::<unsafe extern "C" fn(Block)>(Function::Free)(block) });
}

pub(crate) unsafe fn aligned(function: Function, alignment: usize, size: usize) -> Block {
    // SAFETY: as above, of both functions that take these.
    inside(|| unsafe {
        original_as::<unsafe extern "C" fn(usize, usize) -> Block>(function)(alignment, size)
    })
}

pub(crate) unsafe fn posix_memalign(out: *mut Block, alignment: usize, size: usize) -> c_int {
    // SAFETY: as above.
    inside(|| unsafe {
        let call: unsafe extern "C" fn(*mut Block, usize, usize) -> c_int =
            original_as(Function::PosixMemalign);
        call(out, alignment, size)
    })
}

pub(crate) unsafe fn usable_size(block: Block) -> usize {
    if original(Function::UsableSize) == 0 {
        return 0;
    }
    // SAFETY: as above.
    inside(|| unsafe { original_as::<unsafe extern "C" fn(Block) -> usize>(Function::UsableSize)(block) })
}

/// A block for whoever calls the interface, which isn't listed. Zeroes.
pub(crate) fn unlisted(size: usize) -> *mut u8 {
    // SAFETY: any size may be asked for.
    unsafe { calloc(1, size) }.cast()
}

/// Gives one back.
///
/// # Safety
/// It is null or such a block.
pub(crate) unsafe fn give_back(block: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { free(block.cast()) };
}
