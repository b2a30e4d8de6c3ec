//! Padding between functions that can take a redirect.

use alloc::collections::BTreeMap;
use core::ops::Range;

use grapnel_relocator::{CodeAddr, Culprit, Isa, redirect};

use crate::{
    memory::{maps::Maps, pages::Pages, view::Bytes},
    native,
    patch::Edit,
};

/// Functions begin at multiples of this, and the padding before them ends there.
const ALIGNMENT: usize = 16;

/// Patches of one owner that are in or about to be, by where they are.
pub(crate) type Standing = BTreeMap<CodeAddr, Edit>;

/// What was found of branches from elsewhere into a patch.
pub(crate) enum Inbound {
    /// There is none in what was looked at.
    Nothing,
    /// This instruction.
    From(Culprit),
    /// There is none in what was looked at, and there is more.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "no function's jumps are followed"))]
    MoreElsewhere,
}

/// What a plan may look at beyond the function itself.
pub(crate) struct Surroundings<'a> {
    pub(crate) view: &'a Pages<'a>,
    /// Absent without /proc.
    pub(crate) maps: Option<&'a Maps>,
    /// Whether another hook of the same transaction will overwrite any of these bytes.
    pub(crate) claimed: &'a dyn Fn(&Range<u64>) -> bool,
    /// Patches whose functions are looked at as if they weren't there.
    pub(crate) standing: &'a Standing,
}

impl<'a> Surroundings<'a> {
    /// Where no other hook is.
    pub(crate) fn unclaimed(view: &'a Pages<'a>, maps: Option<&'a Maps>, standing: &'a Standing) -> Self {
        Self { view, maps, claimed: &|_| false, standing }
    }

    /// Reads code as it was before the patches that are in.
    pub(crate) fn read(&self, at: usize, buf: &mut [u8]) -> usize {
        let len = self.view.read(at, buf);
        for edit in standing_in(self.standing, &(at as u64..(at + len) as u64)) {
            for (i, byte) in edit.old.as_slice().iter().enumerate() {
                let offset = (edit.at.0 as usize + i).wrapping_sub(at);
                if let Some(slot) = buf.get_mut(..len).and_then(|buf| buf.get_mut(offset)) {
                    *slot = *byte;
                }
            }
        }
        len
    }

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

/// Those of the patches that may have bytes in a range.
pub(crate) fn standing_in<'a>(standing: &'a Standing, range: &Range<u64>) -> impl Iterator<Item = &'a Edit> {
    let first = CodeAddr(range.start.saturating_sub(Bytes::MAX as u64));
    standing.range(first..CodeAddr(range.end)).map(|(_, edit)| edit)
}
