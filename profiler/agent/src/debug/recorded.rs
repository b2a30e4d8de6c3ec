//! A recording that goes on beside: what the recorder's own hooks would note of the same calls.

use crate::entry::SavedRegisters;
use crate::record::{self, enter};
use crate::{hooks, session};
use core::ffi::c_void;
use grapnel_trace::{Release, Source};

type Block = *mut c_void;
type Saved<'a> = &'a SavedRegisters;

/// Records a block that was given out, if anything is recorded, and returns it.
pub(crate) fn recorded(saved: Saved<'_>, block: Block, size: usize, source: Source) -> Block {
    if session::header().is_some() { hooks::given(saved, block, size, source) } else { block }
}

/// The same of one that was asked to be aligned.
pub(crate) fn recorded_aligned(saved: Saved<'_>, block: Block, size: usize, alignment: usize) -> Block {
    if session::header().is_some() {
        hooks::given_aligned(saved, block, size, alignment, block);
    }
    block
}

/// Records that a block is about to be given back, or exchanged, if anything is recorded.
pub(crate) fn record_end(saved: Saved<'_>, block: Block, release: Release, kind: u8) {
    if session::header().is_some() && !hooks::is_inside(saved) {
        enter(saved, |context| hooks::taken_back(context, saved, block, release, kind));
    }
}

/// Records what became of a block that was to be exchanged.
pub(crate) fn record_exchange(saved: Saved<'_>, old: Block, new: Block, size: usize) {
    if session::header().is_some() && !hooks::is_inside(saved) {
        enter(saved, |context| match new.is_null() {
            true => context.plain(record::REALLOC_FAILED, old.addr() as u64),
            false => context.realloc_end(saved, new.addr() as u64, size as u64, old.addr() as u64),
        });
    }
}
