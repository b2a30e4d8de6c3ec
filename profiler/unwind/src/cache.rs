//! Rules by pc, for one context.
//!
//! What a pc is looked up by shares a word with a number, and the rules that these numbers stand for lie by themselves: code
//! has many call sites, and few ways in which a frame is left. So a cache line knows of eight pcs. A program that needs the
//! processor's caches for itself pushes most of such lines out, and not the commonest rules.
//!
//! # Safety
//! A set of zero bytes is a set of empty entries, and so is a [`Known`] of zero bytes, and a number.

use crate::Error;
use crate::native::{PackedRule, prefetch};
use crate::resolve::RuleEntry;
use crate::zeroed::{Zeroable, zeroed};
use alloc::vec::Vec;

/// A pc, and the number of what is known of it: in the lower 16 bits. 0 is none: no frame is looked up by pc 0.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry(u64);

const NUMBER_BITS: u32 = 16;
/// A pc of more bits has no entry. No program has such code.
pub(crate) const PC_BITS: u32 = u64::BITS - NUMBER_BITS;

impl Entry {
    fn new(pc: u64, number: u16) -> Option<Self> {
        RuleCache::has_room_for(pc).then_some(Entry(pc << NUMBER_BITS | u64::from(number)))
    }

    #[inline(always)]
    pub(crate) fn is_of(self, pc: u64) -> bool {
        self.0 >> NUMBER_BITS == pc
    }

    #[inline(always)]
    fn number(self) -> usize {
        usize::from(self.0 as u16)
    }
}

// SAFETY: a number.
unsafe impl Zeroable for Entry {}

/// How to leave a frame, and the id of the module that has its code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) rule: PackedRule,
    pub(crate) module: u32,
}

// SAFETY: made of numbers.
unsafe impl Zeroable for Known {}

impl Known {
    pub(crate) fn new(entry: RuleEntry) -> Self {
        Known { rule: PackedRule::new(entry.rule), module: entry.module_id }
    }
}

const WAYS: usize = 8;

/// The entries that a pc may be in, the newest first. One cache line.
#[repr(align(64))]
#[derive(Clone, Copy, Debug, Default)]
struct Set([Entry; WAYS]);

// SAFETY: made of numbers.
unsafe impl Zeroable for Set {}

/// The 4 GiB in which most pcs lie. Libraries are mapped side by side; the program itself may be far from them, and beside its heap, to
/// which words of a stack lead as well.
#[derive(Debug)]
struct Around {
    /// The upper half of these pcs.
    upper: u64,
    /// By how many more they are than others, if they are more.
    lead: u32,
    /// The lowest and the highest of them; both are the highest number where there is none.
    lowest: u64,
    highest: u64,
}

impl Around {
    const NONE: Self = Self { upper: 0, lead: 0, lowest: u64::MAX, highest: u64::MAX };

    fn add(&mut self, pc: u64) {
        let upper = pc >> 32;
        if self.lead == 0 {
            *self = Self { upper, lead: 1, lowest: pc, highest: pc };
        } else if self.upper == upper {
            self.lead = self.lead.saturating_add(1);
            (self.lowest, self.highest) = (self.lowest.min(pc), self.highest.max(pc));
        } else {
            self.lead -= 1;
        }
    }
}

/// A set-associative cache. What falls out costs a call of the resolver, nothing else.
///
/// Looking up and inserting neither allocate nor lock.
#[derive(Debug)]
pub(crate) struct RuleCache {
    sets: Vec<Set>,
    /// By number.
    known: Vec<Known>,
    /// How many there are; the first stands for none.
    len: usize,
    /// Where most pcs lie that have come.
    around: Around,
    /// The numbers, found by a hash; 0 for none. Twice as many as there can be.
    numbers: Vec<u32>,
}

impl RuleCache {
    /// A cache of `1 << bits` pcs.
    pub(crate) fn new(bits: u32) -> Result<Self, Error> {
        let most = 1usize << (bits - 1).min(NUMBER_BITS);
        Ok(RuleCache {
            sets: zeroed((1usize << bits) / WAYS)?,
            known: zeroed(most)?,
            len: 1,
            around: Around::NONE,
            numbers: zeroed(2 * most)?,
        })
    }

    /// Whether there can be an entry for a pc.
    #[inline(always)]
    pub(crate) fn has_room_for(pc: u64) -> bool {
        pc >> PC_BITS == 0
    }

    /// The low bits of return addresses differ enough; the next ones keep modules apart. Cheap, since each step of a
    /// walk waits for it.
    #[inline(always)]
    fn index(&self, pc: u64) -> usize {
        (pc ^ (pc >> 12)) as usize & self.sets.len().wrapping_sub(1)
    }

    /// The lowest of the pcs that lie where most of them do, and how far above it the highest of these is.
    #[inline(always)]
    pub(crate) fn pcs(&self) -> (u64, u64) {
        (self.around.lowest, self.around.highest.wrapping_sub(self.around.lowest))
    }

    /// Asks the processor for what [`RuleCache::get`] will read.
    #[inline(always)]
    pub(crate) fn expect(&self, pc: u64) {
        self.sets.get(self.index(pc)).inspect(|set| prefetch(*set));
    }

    /// The entry of the frame at `pc`.
    #[inline(always)]
    pub(crate) fn get(&self, pc: u64) -> Option<Entry> {
        let Set(entries) = self.sets.get(self.index(pc))?;
        entries.iter().copied().find(|entry| entry.is_of(pc))
    }

    /// What an entry stands for that came from here since [`RuleCache::clear`].
    #[inline(always)]
    pub(crate) fn known(&self, entry: Entry) -> Known {
        self.known.get(entry.number()).copied().unwrap_or_default()
    }

    /// Puts an entry first in its set; the oldest one falls out. `None` where it has no room.
    #[unsafe(link_section = ".text.hot.grapnel")]
    pub(crate) fn insert(&mut self, pc: u64, known: Known) -> Option<Entry> {
        let entry = Entry::new(pc, self.number(known)?)?;
        self.around.add(pc);
        let index = self.index(pc);
        if let Some(Set(entries)) = self.sets.get_mut(index) {
            entries.rotate_right(1);
            let [first, ..] = entries;
            *first = entry;
        }
        Some(entry)
    }

    /// The number of what is known; `None` where there is no room for more.
    fn number(&mut self, known: Known) -> Option<u16> {
        let hash = known.rule.bits().rotate_left(24) ^ u64::from(known.module);
        let first = (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
        for at in first.. {
            let index = at & self.numbers.len().wrapping_sub(1);
            let number = self.numbers.get_mut(index)?;
            if *number == 0 {
                // Half of the numbers are free, so each search ends.
                *self.known.get_mut(self.len)? = known;
                *number = self.len as u32;
                self.len += 1;
                return Some(*number as u16);
            }
            if self.known.get(*number as usize) == Some(&known) {
                return Some(*number as u16);
            }
        }
        None
    }

    /// Forgets all. What entries stood for is no longer there.
    pub(crate) fn clear(&mut self) {
        if self.len == 1 {
            // Untouched pages stay untouched.
            return;
        }
        self.sets.fill(Set::default());
        self.numbers.fill(0);
        self.len = 1;
        self.around = Around::NONE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::UnwindRule;

    fn known(module: u32) -> Known {
        Known::new(RuleEntry { rule: UnwindRule::ROOT, module_id: module })
    }

    #[test]
    fn what_is_known_of_a_pc_is_found_until_it_falls_out() {
        let mut cache = RuleCache::new(6).unwrap();
        let sets = cache.sets.len() as u64;
        assert_eq!(cache.get(0x1000), None);
        // All of one set, but for what lies in the pages above.
        let pcs = (1..=2 * WAYS as u64).map(|n| n * sets);
        for (n, pc) in (0..).zip(pcs.clone()) {
            let entry = cache.insert(pc, known(n % 3)).expect("room");
            assert_eq!((cache.get(pc), cache.known(entry)), (Some(entry), known(n % 3)));
            assert_eq!(cache.get(pc | 1 << 48), None);
        }
        assert_eq!(cache.len, 1 + 3, "one number for what is the same");
        assert_eq!(cache.pcs(), (sets, (2 * WAYS as u64 - 1) * sets));
        let found: Vec<bool> = pcs.clone().map(|pc| cache.get(pc).is_some()).collect();
        assert_eq!(found, [[false; WAYS], [true; WAYS]].concat());
        cache.clear();
        assert!(pcs.clone().all(|pc| cache.get(pc).is_none()));
        assert_eq!(cache.pcs(), (u64::MAX, 0), "none");
    }

    #[test]
    fn pcs_are_where_most_of_them_lie() {
        let mut cache = RuleCache::new(6).unwrap();
        let (program, libraries) = (0x5555_1234_0000_u64, 0x7f12_0000_1000_u64);
        let mut come = |pc: u64| {
            cache.insert(pc, known(1)).expect("room");
            cache.pcs()
        };
        assert_eq!(come(program), (program, 0));
        assert_eq!(come(program + 16), (program, 16));
        // They lead by two, which the next two make up for.
        assert_eq!(come(libraries), (program, 16));
        assert_eq!(come(libraries), (program, 16));
        assert_eq!(come(libraries + 0x1000), (libraries + 0x1000, 0));
        assert_eq!(come(libraries + 0xffff_0000), (libraries + 0x1000, 0xfffe_f000));
        assert_eq!(come(program), (libraries + 0x1000, 0xfffe_f000));
        assert_eq!(come(libraries), (libraries, 0xffff_0000));
    }

    #[test]
    fn what_has_no_room_is_not_kept() {
        let mut cache = RuleCache::new(6).unwrap();
        assert_eq!(cache.insert(1 << 48, known(1)), None);
        let most = cache.known.len() as u32;
        for n in 1..most {
            assert!(cache.insert(0x1000 + u64::from(n), known(n)).is_some() || n == most - 1, "{n}");
        }
        assert_eq!(cache.insert(0x1000, known(most)), None);
        let entry = cache.insert(0x1000, known(5)).expect("it is there");
        assert_eq!(cache.known(entry), known(5));
        cache.clear();
        assert!(cache.insert(0x1000, known(most)).is_some());
    }
}
