//! What a plan looks at beyond the function itself: code around it, as it was before the patches that are in, and what was found
//! there.

use alloc::{collections::BTreeMap, vec, vec::Vec};
use core::ops::Range;

use grapnel_relocator::{CodeAddr, Culprit};

use crate::{
    memory::{maps::Maps, pages::Pages, view::Bytes},
    patch::Edit,
    sys::PAGE,
};

/// Patches of one owner that are in or about to be, by where they are.
pub(crate) type Standing = BTreeMap<CodeAddr, Edit>;

/// What was found of branches from elsewhere into a patch.
pub(crate) enum Inbound {
    /// There is none in what was looked at.
    Nothing,
    /// This instruction.
    #[cfg_attr(target_arch = "aarch64", expect(dead_code, reason = "patches are one instruction"))]
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

    /// Code around an address, and where it begins: `before` bytes before it, or where its page begins if the one before isn't there,
    /// up to `behind` bytes behind it or the end of what is there.
    pub(crate) fn code_around(&self, at: usize, before: usize, behind: usize) -> (usize, Vec<u8>) {
        let mut from = at.saturating_sub(before);
        let mut code = vec![0; at - from + behind];
        let mut read = self.read(from, &mut code);
        if from + read <= at {
            from = at & !(PAGE - 1);
            read = self.read(from, &mut code);
        }
        code.truncate(read);
        (from, code)
    }
}

/// Those of the patches that may have bytes in a range.
pub(crate) fn standing_in<'a>(standing: &'a Standing, range: &Range<u64>) -> impl Iterator<Item = &'a Edit> {
    let first = CodeAddr(range.start.saturating_sub(Bytes::MAX as u64));
    standing.range(first..CodeAddr(range.end)).map(|(_, edit)| edit)
}
