//! For each leaf at its depth, the frames nearest to it as they were the last time.
//!
//! A walk looks up a rule for each frame, one after the other. In a program that needs the processor's caches for itself each
//! of these waits for memory. Walks from one leaf most often begin with the same few frames: here these lie side by side, with
//! the numbers of their rules, so that a walk waits once. Where a chain ends, the frame behind it is looked for as if it were a leaf.

use crate::Error;
use crate::cache::Entry;
use crate::native::prefetch;
use crate::zeroed::{Zeroable, zeroed};
use alloc::vec::Vec;

/// The binary logarithm of the most chains.
const MOST_BITS: u32 = 11;
/// Frames of a chain: what a cache line holds.
pub(crate) const FRAMES: usize = 8;

/// Leaf first. Of each frame, what it was the last time, and what it was when it was another one before that: walks from a leaf often
/// alternate between two callers.
#[repr(align(128))]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Chain {
    last: [Entry; FRAMES],
    before: [Entry; FRAMES],
}

const _: () = assert!(size_of::<Chain>() == 128);

// SAFETY: made of numbers.
unsafe impl Zeroable for Chain {}

impl Chain {
    /// The entry of the frame at `pc`, the one with this number from the leaf, if that is as it was.
    #[inline(always)]
    pub(crate) fn entry(&self, frame: usize, pc: u64) -> Option<Entry> {
        match self.last.get(frame) {
            Some(&entry) if entry.is_of(pc) => Some(entry),
            _ => None,
        }
    }
}

/// The chains. Looking up and storing neither allocate nor lock. What is found is right whatever chain it is found in: a
/// rule belongs to a pc.
#[derive(Debug)]
pub(crate) struct Chains(Vec<Chain>);

impl Chains {
    /// `1 << bits` chains, but no more than there are numbers for; none for 0.
    pub(crate) fn new(bits: u32) -> Result<Self, Error> {
        Ok(Chains(if bits == 0 { Vec::new() } else { zeroed(1 << bits.min(MOST_BITS))? }))
    }

    /// To be called when a pc may have another rule, or when entries stand for something else.
    pub(crate) fn forget(&mut self) {
        self.0.fill(Chain::default());
    }

    /// The number of the chain of a leaf. One at the same depth most often has the same callers.
    #[inline(always)]
    pub(crate) fn of(&self, pc: u64, sp: u64) -> usize {
        let hash = (pc ^ (sp << 20)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - MOST_BITS);
        hash as usize & self.0.len().wrapping_sub(1)
    }

    /// Asks the processor for a chain.
    #[inline(always)]
    pub(crate) fn expect(&self, chain: usize) {
        if let Some(chain) = self.0.get(chain) {
            prefetch(&chain.last);
            prefetch(&chain.before);
        }
    }

    /// A chain, to be read also behind changes of it.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn raw(&self, chain: usize) -> Option<*const Chain> {
        (chain < self.0.len()).then(|| self.0.as_ptr().wrapping_add(chain))
    }

    #[inline(always)]
    pub(crate) fn are_none(&self) -> bool {
        self.0.is_empty()
    }

    /// A chain.
    #[inline(always)]
    pub(crate) fn at(&self, chain: usize) -> Option<&Chain> {
        self.0.get(chain)
    }

    /// The entry of the frame at `pc` where that is as it was before, but not the last time. From now on that is the last time.
    #[inline(always)]
    pub(crate) fn entry_before(&mut self, chain: usize, frame: usize, pc: u64) -> Option<Entry> {
        let Chain { last, before } = self.0.get_mut(chain)?;
        let (last, before) = (last.get_mut(frame)?, before.get_mut(frame)?);
        if !before.is_of(pc) {
            return None;
        }
        core::mem::swap(last, before);
        Some(*last)
    }

    /// Keeps a frame for the next walk.
    #[inline(always)]
    pub(crate) fn set(&mut self, chain: usize, frame: usize, entry: Entry) {
        if let Some(Chain { last, before }) = self.0.get_mut(chain)
            && let (Some(last), Some(before)) = (last.get_mut(frame), before.get_mut(frame))
        {
            *before = core::mem::replace(last, entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{Known, RuleCache};

    #[test]
    fn a_rule_is_found_at_its_frame_and_pc_alone() {
        let (mut chains, mut cache) = (Chains::new(4).unwrap(), RuleCache::new(6).unwrap());
        let at = chains.of(10, 0);
        let entry = |chains: &Chains, frame, pc| chains.at(at).and_then(|chain| chain.entry(frame, pc));
        let mut keep = |pc, module| cache.insert(pc, Known { module, ..Known::default() }).expect("room");
        for frame in 0..2 * FRAMES {
            let pc = 10 + frame as u64;
            assert_eq!(entry(&chains, frame, pc), None);
            let kept = keep(pc, frame as u32);
            chains.set(at, frame, kept);
            assert_eq!(entry(&chains, frame, pc), (frame < FRAMES).then_some(kept));
            assert_eq!(entry(&chains, frame, pc + 1), None);
        }
        let [other, third] = [200, 300].map(|pc| keep(pc, 1));
        let found = entry(&chains, 2, 12).expect("it was kept");
        assert_eq!(cache.known(found).module, 2);
        // The one before is found too, and takes the other's place.
        chains.set(at, 2, other);
        assert_eq!((entry(&chains, 2, 200), entry(&chains, 2, 12)), (Some(other), None));
        assert_eq!(chains.entry_before(at, 2, 13), None);
        assert_eq!(chains.entry_before(at, 2, 12), Some(found));
        assert_eq!((entry(&chains, 2, 12), chains.entry_before(at, 3, 12)), (Some(found), None));
        assert_eq!(chains.entry_before(at, 2, 200), Some(other));
        // Not the one before that.
        chains.set(at, 2, third);
        assert_eq!(chains.entry_before(at, 2, 12), None);
        assert_eq!(chains.entry_before(at, FRAMES, 12), None);
        chains.forget();
        assert_eq!((entry(&chains, 2, 300), chains.entry_before(at, 2, 200)), (None, None));
    }
}
