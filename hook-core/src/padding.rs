//! Padding between functions that can take a redirect.

use core::ops::Range;

use grapnel_relocator::{CodeAddr, redirect};

use crate::{
    extent,
    memory::{maps::Maps, view::MemoryView},
    native::{self, ISA},
};

/// Functions begin at multiples of this, and the padding before them ends there.
const ALIGNMENT: usize = 16;

/// What a plan may look at beyond the function itself.
pub(crate) struct Surroundings<'a> {
    pub(crate) view: &'a MemoryView,
    /// Absent without /proc.
    pub(crate) maps: Option<&'a Maps>,
    /// Whether another hook of the same transaction will overwrite any of these bytes.
    pub(crate) claimed: &'a dyn Fn(&Range<u64>) -> bool,
}

impl Surroundings<'_> {
    /// Where `len` bytes of padding that nothing runs lie within reach of a short redirect at `target`: behind the end
    /// of some function, as its unwind entry says, and before the next multiple of 16.
    pub(crate) fn padding_near(&self, target: CodeAddr, len: usize) -> Option<CodeAddr> {
        let at = target.0 as usize;
        let first = at.saturating_sub(128) & !(ALIGNMENT - 1);
        let reached = |stop: CodeAddr| redirect::short(ISA, target, stop).ok();
        (first..at.saturating_add(130)).step_by(ALIGNMENT).find_map(|block| {
            let stop = self.padding_at_end_of(block, len)?;
            let patch = target.0..target.0 + reached(stop)?.len() as u64;
            let bytes = stop.0..stop.0 + len as u64;
            let overlaps = bytes.start < patch.end && patch.start < bytes.end;
            (!overlaps && !(self.claimed)(&bytes)).then_some(stop)
        })
    }

    /// The padding that ends the 16 bytes at `block`, if it is `len` bytes long and proved to be no code.
    fn padding_at_end_of(&self, block: usize, len: usize) -> Option<CodeAddr> {
        let maps = self.maps?;
        let limit = block.checked_add(ALIGNMENT)?;
        // The last byte before the padding belongs to a function whose extent ends right behind it.
        let function = (block..limit).rev().find_map(|at| extent::of(maps, at))?;
        let end = function.end;
        // Whatever begins in the padding would have an entry of its own.
        if end < block || end > limit - len || (end..limit).any(|at| extent::of(maps, at).is_some()) {
            return None;
        }
        let bytes = self.view.bytes(end, limit - end);
        let at = CodeAddr(end as u64);
        (native::padding_len(at, bytes.as_slice()) >= len).then_some(at)
    }
}
