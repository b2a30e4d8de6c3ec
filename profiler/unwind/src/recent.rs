//! Whole walks of a while ago, found by their leaf.
//!
//! Programs come back to the same stacks: most walks are, word for word, one of the last few hundred. Such a walk is
//! one look-up and one comparison, and touches neither rules nor the tree.
//!
//! # Safety
//! [`Recent::find`] reads words without asking [`StackMemory`](crate::StackMemory) for each: all of them were read from
//! one range, and it makes sure that the current range covers that.

use crate::Error;
use crate::memo::{Word, first_changed};
use crate::stack::Range;
use crate::tree::NodeId;
use crate::zeroed::{Zeroable, zeroed};
use alloc::vec::Vec;

/// The binary logarithm of the number of sets.
const SET_BITS: u32 = 7;
const WAYS: usize = 4;
/// How many words of walks are kept, 16 bytes each.
const WORDS: usize = 1 << 14;
/// A walk of more words is not remembered: it would push out too many others.
const MOST_WORDS: usize = 256;

/// A walk that ended at the root, without a guess. One cache line.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default)]
struct Walk {
    /// The leaf; its pc is 0 where there is no walk.
    pc: u64,
    sp: u64,
    fp: u64,
    /// Where its words begin, counted from the first word that was ever kept.
    start: u64,
    /// The range that all words were read from.
    range: Range,
    len: u32,
    node: NodeId,
    /// No step from the leaf reads `fp`.
    fp_is_dead: bool,
}

// SAFETY: made of numbers and a bool, for which zero is false.
unsafe impl Zeroable for Walk {}

/// The walks that a leaf may be found in, the newest first.
type Set = [Walk; WAYS];

/// The walks. Looking up and keeping neither allocate nor lock.
#[derive(Debug)]
pub(crate) struct Recent {
    sets: Vec<Set>,
    /// A ring: the words of the newest walks, each walk's side by side.
    words: Vec<Word>,
    /// How many words were ever kept.
    kept: u64,
}

/// The leaf of a walk that is to be kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaf {
    pub(crate) pc: u64,
    pub(crate) sp: u64,
    pub(crate) fp: u64,
    pub(crate) fp_is_dead: bool,
    pub(crate) node: NodeId,
}

impl Recent {
    pub(crate) fn new() -> Result<Self, Error> {
        Ok(Recent { sets: zeroed(1 << SET_BITS)?, words: zeroed(WORDS)?, kept: 0 })
    }

    pub(crate) fn forget(&mut self) {
        // Untouched pages stay untouched when there is nothing to forget.
        if self.kept != 0 {
            self.sets.fill(Set::default());
            self.kept = 0;
        }
    }

    #[inline(always)]
    fn index(pc: u64, sp: u64) -> usize {
        let hash = (pc.rotate_left(7) ^ sp).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hash >> (64 - SET_BITS)) as usize
    }

    /// The words of a walk, unless others took their place.
    #[inline(always)]
    fn words_of(&self, walk: &Walk) -> Option<&[Word]> {
        if self.kept.wrapping_sub(walk.start) > WORDS as u64 {
            return None;
        }
        let first = walk.start as usize & (WORDS - 1);
        self.words.get(first..first + walk.len as usize)
    }

    /// The node of the walk that starts at this pc, sp and fp on a stack with this readable range, if it is a recent one
    /// of whose words none has changed.
    #[inline(always)]
    pub(crate) fn find(&mut self, pc: u64, sp: u64, fp: u64, range: Range) -> Option<NodeId> {
        let index = Self::index(pc, sp);
        let mut found = None;
        for (way, walk) in self.sets.get(index)?.iter().enumerate() {
            if walk.pc != pc || walk.sp != sp || (walk.fp != fp && !walk.fp_is_dead) {
                continue;
            }
            if !range.covers(walk.range) {
                continue;
            }
            let Some(words) = self.words_of(walk) else { continue };
            // SAFETY: the words lie in the walk's range, which lies in the current range.
            if unsafe { first_changed(words) }.is_none() {
                found = Some((way, walk.node));
                break;
            }
        }
        let (way, node) = found?;
        if node == NodeId::ROOT {
            // An empty slot, and a walk from nowhere.
            return None;
        }
        if way != 0
            && let Some(set) = self.sets.get_mut(index)
        {
            // What comes often is found at once.
            set.swap(way - 1, way);
        }
        Some(node)
    }

    /// Keeps a walk that ended at the root and has no guess; `words` are all that it read, leaf first, from `range`.
    pub(crate) fn keep(&mut self, leaf: Leaf, words: &[Word], range: Range) {
        if words.len() > MOST_WORDS {
            return;
        }
        let mut first = self.kept as usize & (WORDS - 1);
        if first + words.len() > WORDS {
            self.kept += (WORDS - first) as u64;
            first = 0;
        }
        let Some(place) = self.words.get_mut(first..first + words.len()) else { return };
        place.copy_from_slice(words);
        let Leaf { pc, sp, fp, fp_is_dead, node } = leaf;
        let walk = Walk { pc, sp, fp, start: self.kept, range, len: words.len() as u32, node, fp_is_dead };
        self.kept += words.len() as u64;
        if let Some(set) = self.sets.get_mut(Self::index(pc, sp)) {
            let [first, second, third, fourth] = set;
            (*fourth, *third, *second, *first) = (*third, *second, *first, walk);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memo::Word;

    fn range() -> Range {
        Range { lo: 0x1000, hi: u64::MAX }
    }

    fn leaf(n: u64) -> Leaf {
        Leaf {
            pc: 0x40_0000 + 4 * n,
            sp: 0x7000 + 16 * (n % 9),
            fp: n,
            fp_is_dead: n.is_multiple_of(2),
            node: NodeId(n as u32),
        }
    }

    fn find(recent: &mut Recent, leaf: Leaf) -> Option<NodeId> {
        recent.find(leaf.pc, leaf.sp, leaf.fp, range())
    }

    #[test]
    fn a_walk_is_found_as_long_as_its_leaf_its_words_and_its_stack_are_the_same() {
        let mut recent = Recent::new().unwrap();
        let mut stack = [5u64, 6, 7];
        let at = |stack: &[u64; 3], n: usize| &raw const stack[n] as u64;
        let words: Vec<Word> = (0..3).map(|n| Word::new(at(&stack, n), stack[n])).collect();
        let (dead, live) = (leaf(2), leaf(3));
        recent.keep(dead, &words, range());
        recent.keep(live, &words, range());
        assert_eq!(find(&mut recent, dead), Some(NodeId(2)));
        assert_eq!(find(&mut recent, Leaf { fp: 9, ..dead }), Some(NodeId(2)));
        assert_eq!(find(&mut recent, live), Some(NodeId(3)));
        assert_eq!(find(&mut recent, Leaf { fp: 9, ..live }), None);
        assert_eq!(find(&mut recent, Leaf { sp: live.sp + 16, ..live }), None);
        assert_eq!(find(&mut recent, Leaf { pc: live.pc + 1, ..live }), None);
        assert_eq!(recent.find(live.pc, live.sp, live.fp, Range { lo: 0x2000, hi: u64::MAX }), None);
        for n in 0..3 {
            stack[n] += 1;
            std::hint::black_box(&mut stack);
            assert_eq!(find(&mut recent, live), None);
            stack[n] -= 1;
            std::hint::black_box(&mut stack);
        }
        assert_eq!(find(&mut recent, live), Some(NodeId(3)));
        recent.forget();
        assert_eq!(find(&mut recent, live), None);
    }

    #[test]
    fn words_that_were_overwritten_are_nobodys() {
        let mut recent = Recent::new().unwrap();
        let stack: Vec<u64> = (0..100).collect();
        let words: Vec<Word> =
            stack.iter().map(|value| Word::new(&raw const *value as u64, *value)).collect();
        // Of different length, so that walks end at the end of the ring in many ways.
        let len = |n: u64| n as usize % 97;
        let mut found = 0;
        for n in 0..10_000u64 {
            recent.keep(leaf(n), &words[..len(n)], range());
            assert_eq!(find(&mut recent, leaf(n)), Some(NodeId(n as u32)).filter(|_| n != 0));
            let old = n - n % 701;
            if let Some(node) = find(&mut recent, leaf(old)) {
                assert_eq!(node, NodeId(old as u32));
                assert!((old..=n).map(len).sum::<usize>() <= WORDS, "{n} {old}");
                found += 1;
            }
        }
        assert!((2_000..10_000).contains(&found), "{found}");
    }

    #[test]
    fn a_walk_of_many_words_is_not_kept() {
        let mut recent = Recent::new().unwrap();
        let value = 3u64;
        let words = vec![Word::new(&raw const value as u64, 3); MOST_WORDS + 1];
        recent.keep(leaf(1), &words, range());
        assert_eq!(find(&mut recent, leaf(1)), None);
        recent.keep(leaf(1), &words[1..], range());
        assert_eq!(find(&mut recent, leaf(1)), Some(NodeId(1)));
    }
}
