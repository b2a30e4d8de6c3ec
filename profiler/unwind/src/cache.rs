//! Rules by pc, for one context.

use crate::Error;
use crate::native::UnwindRule;
use crate::resolve::RuleEntry;
use alloc::vec::Vec;

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The pc, a return address; 0 in an empty slot. No frame has pc 0.
    pc: u64,
    rule: UnwindRule,
    module_id: u32,
}

const EMPTY: Slot = Slot { pc: 0, rule: UnwindRule::NOT_CODE, module_id: 0 };

/// A direct-mapped cache. A collision costs a call of the resolver, nothing else.
///
/// Looking up and inserting neither allocate nor lock.
#[derive(Debug)]
pub(crate) struct RuleCache {
    slots: Vec<Slot>,
    shift: u32,
}

impl RuleCache {
    pub(crate) fn new(bits: u32) -> Result<Self, Error> {
        let len = 1usize << bits;
        let mut slots = Vec::new();
        let bytes = len * size_of::<Slot>();
        slots.try_reserve_exact(len).map_err(|_| Error::OutOfMemory { bytes })?;
        slots.resize(len, EMPTY);
        Ok(RuleCache { slots, shift: 64 - bits })
    }

    #[inline(always)]
    fn index(&self, pc: u64) -> usize {
        // Fibonacci hashing: the top bits of the product depend on all bits of the pc.
        (pc.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    #[inline(always)]
    pub(crate) fn get(&self, pc: u64) -> Option<RuleEntry> {
        let slot = self.slots.get(self.index(pc))?;
        (slot.pc == pc).then_some(RuleEntry { rule: slot.rule, module_id: slot.module_id })
    }

    pub(crate) fn insert(&mut self, pc: u64, entry: RuleEntry) {
        let index = self.index(pc);
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = Slot { pc, rule: entry.rule, module_id: entry.module_id };
        }
    }

    pub(crate) fn clear(&mut self) {
        self.slots.fill(EMPTY);
    }
}
