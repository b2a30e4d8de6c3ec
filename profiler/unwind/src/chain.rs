//! For each leaf at its depth, the frames nearest to it as they were the last time.
//!
//! A walk looks up a rule for each frame, one after the other. In a program that needs the processor's caches for itself each
//! of these waits for memory. Walks from one leaf most often begin with the same few frames: here these lie side by side, with
//! their rules, so that a walk waits once. Where a chain ends, the frame behind it is looked for as if it were a leaf.

use crate::Error;
use crate::native::{PackedRule, prefetch};
use crate::zeroed::{Zeroable, zeroed};
use alloc::vec::Vec;

/// The binary logarithm of the most chains.
const MOST_BITS: u32 = 11;
/// Frames of a chain: what two cache lines hold.
pub(crate) const FRAMES: usize = 6;

#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Chain {
    /// Leaf first; 0 where there is none.
    pcs: [u64; FRAMES],
    rules: [PackedRule; FRAMES],
    modules: [u32; FRAMES],
}

const _: () = assert!(size_of::<Chain>() == 128);

// SAFETY: made of numbers.
unsafe impl Zeroable for Chain {}

/// A pc and a module of more bits are not kept.
pub(crate) const PC_BITS: u32 = 48;
pub(crate) const MODULE_BITS: u32 = 12;

impl Chain {
    /// Whether a frame like this is kept.
    #[inline(always)]
    pub(crate) fn has_room_for(pc: u64, module: u32) -> bool {
        pc >> PC_BITS == 0 && module >> MODULE_BITS == 0
    }

    /// The rule for the frame at `pc`, the one with this number from the leaf, and its module, if that is as it was.
    #[inline(always)]
    pub(crate) fn rule(&self, frame: usize, pc: u64) -> Option<(PackedRule, u32)> {
        match (self.pcs.get(frame), self.rules.get(frame), self.modules.get(frame)) {
            (Some(&other), Some(&rule), Some(&module)) if other == pc => Some((rule, module)),
            _ => None,
        }
    }
}

/// The chains. Looking up and storing neither allocate nor lock. What is found is right whatever chain it is found in: a
/// rule belongs to a pc.
#[derive(Debug)]
pub(crate) struct Chains(Vec<Chain>);

impl Chains {
    /// `1 << bits` chains, but no more than there are numbers for.
    pub(crate) fn new(bits: u32) -> Result<Self, Error> {
        Ok(Chains(zeroed(1 << bits.min(MOST_BITS))?))
    }

    /// To be called when a pc may have another rule.
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
            prefetch(&chain.pcs);
            prefetch(&chain.modules);
        }
    }

    /// A chain, to be read also behind changes of it.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn raw(&self, chain: usize) -> Option<*const Chain> {
        (chain < self.0.len()).then(|| self.0.as_ptr().wrapping_add(chain))
    }

    /// A chain.
    #[inline(always)]
    pub(crate) fn at(&self, chain: usize) -> Option<&Chain> {
        self.0.get(chain)
    }

    /// Keeps a rule for the next walk, if it has [room](Chain::has_room_for).
    #[inline(always)]
    pub(crate) fn set_rule(
        &mut self,
        chain: usize,
        frame: usize,
        pc: u64,
        (rule, module): (PackedRule, u32),
    ) {
        if let Some(Chain { pcs, rules, modules }) = self.0.get_mut(chain)
            && Chain::has_room_for(pc, module)
            && let (Some(to_pc), Some(to_rule), Some(to_module)) =
                (pcs.get_mut(frame), rules.get_mut(frame), modules.get_mut(frame))
        {
            (*to_pc, *to_rule, *to_module) = (pc, rule, module);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::UnwindRule;

    #[test]
    fn a_rule_is_found_at_its_frame_and_pc_alone() {
        let (mut chains, rule) = (Chains::new(4).unwrap(), PackedRule::new(UnwindRule::ROOT));
        let at = chains.of(10, 0);
        let found = |chains: &Chains, frame, pc| chains.at(at).and_then(|chain| chain.rule(frame, pc));
        for frame in 0..2 * FRAMES {
            let pc = 10 + frame as u64;
            assert_eq!(found(&chains, frame, pc), None);
            chains.set_rule(at, frame, pc, (rule, frame as u32));
            assert_eq!(found(&chains, frame, pc), (frame < FRAMES).then_some((rule, frame as u32)));
            assert_eq!(found(&chains, frame, pc + 1), None);
        }
        assert_eq!(found(&chains, 2, 12), Some((rule, 2)));
        chains.forget();
        assert_eq!(found(&chains, 2, 12), None);
    }
}
