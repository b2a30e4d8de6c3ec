//! What a program calls: Android's functions, and one to mark a process.
//!
//! # Safety
//! Pointers come from C and are as the functions' documentation says.

use super::live::{Live, encode, record_bytes};
use super::log::log;
use super::stacks::EMPTY;
use super::{allocator, blocks, fork, options, walk};
use crate::lock::Quiet;
use core::ptr;

const WORD: usize = size_of::<usize>();

/// Gives all live blocks: a buffer of `overall_size` bytes with records of `info_size` bytes each, which are a size with bit
/// 31 as a mark, a number of blocks, and `backtrace_size` addresses. Nothing is written if a pointer is null.
#[unsafe(no_mangle)]
unsafe extern "C" fn get_malloc_leak_info(
    info: *mut *mut u8,
    overall_size: *mut usize,
    info_size: *mut usize,
    total_memory: *mut usize,
    backtrace_size: *mut usize,
) {
    let sizes = [overall_size, info_size, total_memory, backtrace_size];
    if info.is_null() || sizes.iter().any(|size| size.is_null()) {
        return log!("get_malloc_leak_info: At least one invalid parameter.");
    }
    // SAFETY: the caller's own words.
    unsafe {
        *info = ptr::null_mut();
        sizes.iter().for_each(|&size| *size = 0);
    }
    let Some(options) = options().filter(|options| options.backtrace) else {
        return log!(
            "get_malloc_leak_info: Allocations not being tracked, to enable set the option 'backtrace'."
        );
    };
    fork::look();
    let live = {
        let _quiet = Quiet::new();
        let blocks = blocks::all().map(|mut blocks| {
            blocks.retain(|block| block.traced);
            blocks
        });
        blocks.and_then(|blocks| walk::with_stacks(|stacks| Live::of(&blocks, stacks, options.frames)))
    };
    let Some(live) = live else {
        return log!("get_malloc_leak_info: no memory; nothing is given");
    };
    if live.records.is_empty() {
        return;
    }
    let record = record_bytes::<WORD>(options.frames);
    let whole = record * live.records.len();
    let buffer = allocator::unlisted(whole);
    if buffer.is_null() {
        return log!("get_malloc_leak_info: no memory; nothing is given");
    }
    // SAFETY: as above; the buffer has room for all records, and is zero.
    unsafe {
        *overall_size = whole;
        *info_size = record;
        *total_memory = live.total();
        *backtrace_size = options.frames;
        *info = buffer;
        encode::<WORD>(&live, options.frames, |at, bytes| {
            ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.add(at), bytes.len());
        });
    }
}

/// Gives a buffer of [`get_malloc_leak_info`] back.
#[unsafe(no_mangle)]
unsafe extern "C" fn free_malloc_leak_info(info: *mut u8) {
    if super::is_on() && !info.is_null() {
        // SAFETY: the caller's promise.
        unsafe { allocator::give_back(info) };
    }
}

/// Gives the frames of the call that allocated a block, at most so many, and says how many: 0 if it isn't known.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc_backtrace(block: *mut u8, frames: *mut usize, count: usize) -> isize {
    let Some(options) = options().filter(|_| !block.is_null() && !frames.is_null()) else { return 0 };
    fork::look();
    let _quiet = Quiet::new();
    let Some(stack) = blocks::get(block.addr()).map(|block| block.stack).filter(|&stack| stack != EMPTY)
    else {
        return 0;
    };
    let most = count.min(options.frames);
    walk::with_stacks(|stacks| {
        let mut given = 0;
        for (at, pc) in stacks.frames(stack).take(most).enumerate() {
            // SAFETY: the caller has room for so many.
            unsafe { *frames.add(at) = pc };
            given += 1;
        }
        given
    })
}

/// Marks this process: what processes allocate that are forked from it has bit 31 in its size, as on Android what those
/// allocate that are forked from the Zygote.
#[unsafe(no_mangle)]
extern "C" fn grapnel_malloc_mark_parent() {
    fork::mark();
}
