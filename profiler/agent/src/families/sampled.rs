//! What a family's functions do where only some allocations are recorded.

use super::told;
use crate::entry::SavedRegisters;
use crate::record::{FREE, REALLOC_FAILED};
use crate::sampling::{self, Costs, others};
use crate::slots::{Frame, TAKES_RECORDED};
use crate::{filter, heaps};
use core::ffi::c_void;
use grapnel_trace::Source;

/// Whether a block that a function is about to take back was recorded, which its frame then says. It is no more.
pub(super) fn is_taken(handle: u32, block: u64, frame: &Frame) -> bool {
    if !filter::may_have(block as usize) {
        return false;
    }
    let _costs = Costs::begin();
    let is_taken = others::take(heaps::id(handle.into()), block as usize);
    if is_taken {
        filter::forget(block as usize);
        frame.note(TAKES_RECORDED);
    }
    is_taken
}

/// A block that a function gave, at 0 for none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given {
    pub(super) block: u64,
    pub(super) size: u64,
    pub(super) source: Source,
}

/// What is recorded afterwards, in exchange for `old` if there was one.
pub(super) fn after(
    saved: &SavedRegisters,
    handle: u32,
    result: *mut c_void,
    given: Given,
    old: Option<u64>,
    noted: usize,
) {
    let Given { block, size, source } = given;
    let recorded = old.filter(|_| noted & TAKES_RECORDED != 0);
    if block == 0 {
        if let Some(old) = recorded {
            told(saved, handle, result, 0, |context, id| {
                context.plain_in(id, REALLOC_FAILED, old);
                note(id, old);
            });
        }
        return;
    }
    let mean = sampling::chosen_before(noted);
    if mean.is_none() && recorded.is_none() {
        return;
    }
    let _costs = Costs::begin();
    told(saved, handle, result, 0, |context, id| {
        let Some(mean) = mean else {
            // What took its place isn't recorded.
            return recorded.into_iter().for_each(|old| context.plain_in(id, FREE, old));
        };
        context.tell_mean(mean);
        match old {
            Some(old) => context.realloc_end_in(id, saved, block, size, old),
            None => context.alloc_in(id, saved, block, size, source),
        }
        note(id, block);
    });
}

/// Notes a block that is recorded, also for the gates before functions that take some back.
fn note(id: u32, block: u64) {
    others::note(id, block as usize);
    filter::note(block as usize);
}
