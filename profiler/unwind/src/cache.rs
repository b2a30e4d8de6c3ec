//! Rules by pc, for one context.
//!
//! # Safety
//! A set of zero bytes is a set of empty slots.

use crate::Error;
use crate::native::PackedRule;
use crate::resolve::RuleEntry;
use crate::zeroed::{Zeroable, zeroed};
use alloc::vec::Vec;

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// The pc, a return address; 0 in an empty slot. No frame is looked up by pc 0.
    pc: u64,
    rule: PackedRule,
}

const WAYS: usize = 4;

/// The slots that a pc may be in, the newest first. One cache line.
#[repr(align(64))]
#[derive(Clone, Copy, Debug, Default)]
struct Set([Slot; WAYS]);

// SAFETY: made of numbers.
unsafe impl Zeroable for Set {}

/// A set-associative cache. What falls out costs a call of the resolver, nothing else.
///
/// Looking up and inserting neither allocate nor lock.
#[derive(Debug)]
pub(crate) struct RuleCache {
    sets: Vec<Set>,
    /// Apart from the sets, each of which is a cache line.
    module_ids: Vec<[u32; WAYS]>,
}

impl RuleCache {
    /// A cache of `1 << bits` rules.
    pub(crate) fn new(bits: u32) -> Result<Self, Error> {
        let len = (1usize << bits) / WAYS;
        Ok(RuleCache { sets: zeroed(len)?, module_ids: zeroed(len)? })
    }

    /// The low bits of return addresses differ enough; the next ones keep modules apart. Cheap, since each step of a
    /// walk waits for it.
    #[inline(always)]
    fn index(&self, pc: u64) -> usize {
        (pc ^ (pc >> 12)) as usize & self.sets.len().wrapping_sub(1)
    }

    /// The rule for the frame at `pc`, and the id of the module that has the code.
    #[inline(always)]
    pub(crate) fn get(&self, pc: u64) -> Option<(PackedRule, u32)> {
        let index = self.index(pc);
        let (Set(slots), module_ids) = (self.sets.get(index)?, self.module_ids.get(index)?);
        let way = slots.iter().position(|slot| slot.pc == pc)?;
        Some((slots.get(way)?.rule, *module_ids.get(way)?))
    }

    /// Puts a rule first in its set; the oldest one falls out.
    pub(crate) fn insert(&mut self, pc: u64, entry: RuleEntry) {
        let index = self.index(pc);
        if let (Some(Set(slots)), Some(module_ids)) =
            (self.sets.get_mut(index), self.module_ids.get_mut(index))
        {
            slots.rotate_right(1);
            module_ids.rotate_right(1);
            let ([slot, ..], [module_id, ..]) = (slots, module_ids);
            *slot = Slot { pc, rule: PackedRule::new(entry.rule) };
            *module_id = entry.module_id;
        }
    }

    pub(crate) fn clear(&mut self) {
        self.sets.fill(Set::default());
    }
}
