//! Padding between functions that can take a redirect.

use grapnel_relocator::{CodeAddr, Isa, redirect};

use crate::{native, surroundings::Surroundings};

/// Functions begin at multiples of this, and the padding before them ends there.
const ALIGNMENT: usize = 16;

impl Surroundings<'_> {
    /// Where `len` bytes of padding that nothing runs lie within reach of a short redirect at `target`: behind the end
    /// of some function, as its unwind entry says, and before the next multiple of 16.
    pub(crate) fn padding_near(&self, isa: Isa, target: CodeAddr, len: usize) -> Option<CodeAddr> {
        let at = target.0 as usize;
        let first = at.saturating_sub(128) & !(ALIGNMENT - 1);
        let reached = |stop: CodeAddr| redirect::short(isa, target, stop).ok();
        (first..at.saturating_add(130)).step_by(ALIGNMENT).find_map(|block| {
            let stop = self.padding_at_end_of(isa, at, block, len)?;
            let patch = target.0..target.0 + reached(stop)?.len() as u64;
            let bytes = stop.0..stop.0 + len as u64;
            let overlaps = bytes.start < patch.end && patch.start < bytes.end;
            (!overlaps && !(self.claimed)(&bytes)).then_some(stop)
        })
    }

    /// The padding that ends the 16 bytes at `block`, beside the function at `own`, if it is `len` bytes long and proved to be no code.
    fn padding_at_end_of(&self, isa: Isa, own: usize, block: usize, len: usize) -> Option<CodeAddr> {
        let maps = self.maps?;
        let limit = block.checked_add(ALIGNMENT)?;
        // The last byte before the padding belongs to a function whose extent ends right behind it.
        let function = (block..limit).rev().find_map(|at| self.view.described(maps, at))?;
        let end = function.end;
        if end < block || end > limit - len {
            return None;
        }
        let bytes = self.view.bytes(end, limit - end);
        let at = CodeAddr(end as u64);
        // Whatever begins in the padding would have an entry or a symbol of its own. What is none by its bytes is asked about nowhere.
        let is_padding = native::padding_len(isa, at, bytes.as_slice()) >= len
            && (end..limit).all(|at| self.view.neighbour(maps, own, at).is_none());
        is_padding.then_some(at)
    }
}
