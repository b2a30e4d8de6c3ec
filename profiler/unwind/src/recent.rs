//! Whole walks of a while ago, found by their leaf.
//!
//! Programs come back to the same stacks: most walks are, word for word, one of the last few hundred. Such a walk is
//! one look-up and one comparison, and touches neither rules nor the tree.
//!
//! # Safety
//! [`Recent::find`] reads words without asking [`StackMemory`](crate::StackMemory) for each: all of them were read from
//! one range, and it makes sure that the current range covers that.

use crate::Error;
use crate::memo::{Word, last_changed};
use crate::native::prefetch;
use crate::stack::Range;
use crate::tree::NodeId;
use crate::zeroed::{Zeroable, zeroed};
use alloc::vec::Vec;

/// The binary logarithm of the number of sets.
const SET_BITS: u32 = 7;
const WAYS: usize = 4;
/// A walk of more words is not remembered: it would push out too many others.
pub(crate) const MOST_WORDS: usize = 256;

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

/// The walks that a leaf may be found in.
type Set = [Walk; WAYS];

/// What is known of a set without looking at its walks: the heads of all sets stay near the processor.
#[repr(C, align(32))]
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    /// Of each walk, part of the hash of its leaf; 0 where there is none.
    tags: [u32; WAYS],
    /// Where the next walk goes.
    next: u8,
    /// Rises when a walk is found, falls when one is kept.
    worth: u8,
    /// How many walks were not kept since the last that was.
    passed: u8,
}

// SAFETY: made of numbers.
unsafe impl Zeroable for Head {}

/// What `worth` begins with, and its bound.
const MOST_WORTH: u8 = 32;
/// What a walk that is found saves, in walks that are kept.
const FOUND: u8 = 2;
/// Where walks are not worth keeping, one in so many is kept all the same, in case that changes.
const PASSED: u8 = 15;
/// And it is looked at in so many walks: one that comes back does so soon, more often than not.
const LOOKS: u8 = 4;

/// So many walks are looked up before it is known whether that is worth while.
const TRIED: u32 = 1 << 12;
/// Where it isn't, so many walks are not looked up.
const LEFT_OUT: u32 = 1 << 16;

/// The walks. Looking up and keeping neither allocate nor lock.
///
/// A walk that is found spares what a walk by the rules costs. One that isn't, and is kept, costs about as much: what is read
/// and written for it pushes what the program needs out of the processor's caches. So where less than half of the walks are
/// found, none is looked up or kept for a while.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Recent {
    /// How many walks it is until it is decided anew.
    left: u32,
    /// Whether walks are looked up.
    on: bool,
    /// How many of the walks since the last decision were found.
    found: u32,
    heads: Vec<Head>,
    sets: Vec<Set>,
    /// A ring of a power of two: the words of the newest walks, each walk's side by side.
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
    /// Keeps walks of `1 << word_bits` words, 16 bytes each; none for 0.
    pub(crate) fn new(word_bits: u32) -> Result<Self, Error> {
        if word_bits == 0 {
            let (heads, sets, words) = Default::default();
            return Ok(Recent { left: 0, found: 0, on: false, heads, sets, words, kept: 0 });
        }
        let (heads, sets) = (zeroed(1 << SET_BITS)?, zeroed(1 << SET_BITS)?);
        let words = zeroed(1 << word_bits)?;
        Ok(Recent { left: TRIED, found: 0, on: true, heads, sets, words, kept: 0 })
    }

    pub(crate) fn forget(&mut self) {
        // Untouched pages stay untouched when there is nothing to forget.
        if self.kept != 0 {
            self.heads.fill(Head::default());
            self.kept = 0;
        }
    }

    /// Whether walks are looked up, and kept, at this time.
    #[inline(always)]
    pub(crate) fn is_on(&self) -> bool {
        self.on
    }

    /// The number of the set, and the tag.
    #[inline(always)]
    fn place(pc: u64, sp: u64) -> (usize, u32) {
        let hash = (pc.rotate_left(7) ^ sp).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((hash >> (64 - SET_BITS)) as usize, (hash >> (32 - SET_BITS)) as u32 | 1)
    }

    /// Asks the processor for what [`Recent::find`] will read first.
    #[inline(always)]
    pub(crate) fn expect(&self, pc: u64, sp: u64) {
        if !self.on {
            return;
        }
        let (index, _) = Self::place(pc, sp);
        if let (Some(head), Some(set)) = (self.heads.get(index), self.sets.get(index)) {
            prefetch(head);
            for walk in set {
                prefetch(walk);
            }
        }
    }

    /// The words of a walk, unless others took their place.
    #[inline(always)]
    fn words_of(&self, walk: &Walk) -> Option<&[Word]> {
        let most = self.words.len();
        if self.kept.wrapping_sub(walk.start) > most as u64 {
            return None;
        }
        let first = walk.start as usize & most.wrapping_sub(1);
        self.words.get(first..first + walk.len as usize)
    }

    /// Whether a walk is to be looked up. To be asked once for each.
    #[inline(always)]
    pub(crate) fn is_asked(&mut self) -> bool {
        self.left = self.left.wrapping_sub(1);
        if self.left == 0 {
            self.decide();
        }
        self.on
    }

    /// The node of the walk that starts at this pc, sp and fp on a stack with this readable range, if it is a recent one
    /// of whose words none has changed.
    #[inline(always)]
    pub(crate) fn find(&mut self, pc: u64, sp: u64, fp: u64, range: Range) -> Option<NodeId> {
        let (index, tag) = Self::place(pc, sp);
        let head = self.heads.get(index)?;
        if head.worth == 0 {
            return self.find_newest(
                index,
                tag,
                Leaf { pc, sp, fp, fp_is_dead: false, node: NodeId::ROOT },
                range,
            );
        }
        for (way, _) in head.tags.iter().enumerate().filter(|&(_, &other)| other == tag) {
            if let Some(node) = self.holds(index, way, pc, sp, fp, range) {
                self.found(index);
                return Some(node);
            }
        }
        None
    }

    /// Decides whether the next walks are looked up: when none was, to try it again.
    #[cold]
    #[inline(never)]
    fn decide(&mut self) {
        self.on = !self.words.is_empty() && (!self.on || self.found >= TRIED / 2);
        self.left = if self.on { TRIED } else { LEFT_OUT };
        self.found = 0;
    }

    /// As [`Recent::find`], where few walks come back: only the newest is looked at, and only while it is new.
    #[inline(never)]
    fn find_newest(&mut self, index: usize, tag: u32, leaf: Leaf, range: Range) -> Option<NodeId> {
        let head = self.heads.get(index)?;
        let way = usize::from(head.next.wrapping_sub(1)) % WAYS;
        if head.tags[way] != tag || head.passed >= LOOKS {
            return None;
        }
        let node = self.holds(index, way, leaf.pc, leaf.sp, leaf.fp, range)?;
        self.found(index);
        Some(node)
    }

    /// The node of a walk, if it is one from this leaf on a stack with this readable range, and none of its words has changed.
    #[inline(always)]
    fn holds(&self, index: usize, way: usize, pc: u64, sp: u64, fp: u64, range: Range) -> Option<NodeId> {
        let walk = self.sets.get(index)?.get(way)?;
        if walk.pc != pc || walk.sp != sp || (walk.fp != fp && !walk.fp_is_dead) {
            return None;
        }
        if !range.covers(walk.range) {
            return None;
        }
        let words = self.words_of(walk)?;
        // SAFETY: the words lie in the walk's range, which lies in the current range.
        let changed = unsafe { last_changed(words) };
        changed.is_none().then_some(walk.node)
    }

    /// A walk of this set was found.
    #[inline(always)]
    fn found(&mut self, index: usize) {
        self.found += 1;
        if let Some(head) = self.heads.get_mut(index)
            && head.worth < MOST_WORTH
        {
            head.worth += FOUND;
        }
    }

    /// Keeps a walk that ended at the root and has no guess; `words` are all that it read, the leaf's last, from `range`.
    ///
    /// Where few walks come back, as in programs that wander through ever new stacks, most are passed over: keeping one
    /// costs more than it saves then.
    pub(crate) fn keep(&mut self, leaf: Leaf, words: &[Word], range: Range) {
        let Leaf { pc, sp, fp, fp_is_dead, node } = leaf;
        // The empty stack is a walk from nowhere, and one of no words isn't worth it.
        if !self.on || words.is_empty() || words.len() > MOST_WORDS || node == NodeId::ROOT {
            return;
        }
        let (index, tag) = Self::place(pc, sp);
        let (Some(head), Some(set)) = (self.heads.get_mut(index), self.sets.get_mut(index)) else { return };
        if head.worth == 0 && head.passed < PASSED && head.tags != [0; WAYS] {
            head.passed += 1;
            return;
        }
        let most = self.words.len();
        let mut first = self.kept as usize & most.wrapping_sub(1);
        if first + words.len() > most {
            self.kept += (most - first) as u64;
            first = 0;
        }
        let Some(place) = self.words.get_mut(first..first + words.len()) else { return };
        place.copy_from_slice(words);
        let walk = Walk { pc, sp, fp, start: self.kept, range, len: words.len() as u32, node, fp_is_dead };
        self.kept += words.len() as u64;
        let way = usize::from(head.next) % WAYS;
        if head.tags == [0; WAYS] {
            head.worth = MOST_WORTH;
        }
        (head.next, head.passed, head.worth) = (head.next.wrapping_add(1), 0, head.worth.saturating_sub(1));
        head.tags[way] = tag;
        set[way] = walk;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORD_BITS: u32 = 14;
    const WORDS: usize = 1 << WORD_BITS;
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
        if !recent.is_asked() {
            return None;
        }
        recent.find(leaf.pc, leaf.sp, leaf.fp, range())
    }

    #[test]
    fn a_walk_is_found_as_long_as_its_leaf_its_words_and_its_stack_are_the_same() {
        let mut recent = Recent::new(WORD_BITS).unwrap();
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
        let mut recent = Recent::new(WORD_BITS).unwrap();
        let stack: Vec<u64> = (0..100).collect();
        let words: Vec<Word> =
            stack.iter().map(|value| Word::new(&raw const *value as u64, *value)).collect();
        // Of different length, so that walks end at the end of the ring in many ways.
        let len = |n: u64| n as usize % 97 + 1;
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
    fn where_no_walk_comes_back_few_are_kept() {
        let mut recent = Recent::new(WORD_BITS).unwrap();
        let value = 3u64;
        let words = vec![Word::new(&raw const value as u64, 3); 10];
        let mut keep = |n: u32| {
            recent.keep(Leaf { node: NodeId(n), ..leaf(1) }, &words, range());
            recent.kept / 10
        };
        assert_eq!(keep(1), 1);
        let many = (2..=1000).map(&mut keep).last();
        assert_eq!(
            many,
            Some(u64::from(MOST_WORTH) + (1000 - u64::from(MOST_WORTH)) / (u64::from(PASSED) + 1))
        );
        // Nor is one looked at that was kept a while ago.
        assert_eq!(find(&mut recent, leaf(1)), None);
        let kept = recent.kept;
        for n in 2000.. {
            recent.keep(Leaf { node: NodeId(n), ..leaf(1) }, &words, range());
            if recent.kept != kept {
                break;
            }
        }
        // One that comes back is worth as much as some that don't.
        let before = recent.kept;
        for _ in 0..3 {
            assert!(find(&mut recent, leaf(1)).is_some());
        }
        for n in 0..6 {
            recent.keep(Leaf { node: NodeId(n + 1), ..leaf(1) }, &words, range());
        }
        assert_eq!(recent.kept, before + 60);
    }

    #[test]
    fn where_less_than_half_of_the_walks_are_found_none_is_looked_up_for_a_while() {
        let value = 3u64;
        let words = vec![Word::new(&raw const value as u64, 3); 10];
        for (part, on) in [(3, false), (2, true)] {
            let mut recent = Recent::new(WORD_BITS).unwrap();
            recent.keep(leaf(1), &words, range());
            for n in 0..TRIED - 1 {
                let is_there = n % part == 0;
                assert_eq!(find(&mut recent, leaf(if is_there { 1 } else { 2 })).is_some(), is_there);
            }
            let kept = recent.kept;
            for n in 0..LEFT_OUT {
                assert_eq!(find(&mut recent, leaf(1)).is_some(), on, "{n}");
                if !on {
                    recent.keep(leaf(3), &words, range());
                }
            }
            assert_eq!(recent.kept, kept);
            // Tried again, what was kept before is found.
            assert!(find(&mut recent, leaf(1)).is_some());
        }
    }

    #[test]
    fn a_walk_of_no_words_is_not_kept() {
        let mut recent = Recent::new(WORD_BITS).unwrap();
        recent.keep(leaf(1), &[], range());
        assert_eq!(find(&mut recent, leaf(1)), None);
    }

    #[test]
    fn a_walk_of_many_words_is_not_kept() {
        let mut recent = Recent::new(WORD_BITS).unwrap();
        let value = 3u64;
        let words = vec![Word::new(&raw const value as u64, 3); MOST_WORDS + 1];
        recent.keep(leaf(1), &words, range());
        assert_eq!(find(&mut recent, leaf(1)), None);
        recent.keep(leaf(1), &words[1..], range());
        assert_eq!(find(&mut recent, leaf(1)), Some(NodeId(1)));
    }
}
