//! The commonest walk, by itself: a few new frames, and behind them the last walk's, unchanged to the root.
//!
//! It comes to what [`Gatherer::memoised`] would come to, or to nothing: where it meets anything but the commonest rules, it gives up
//! before it has changed what walks go by. So nothing is written until all is known, and a frame that is being found is a
//! few registers. It takes three fifths of the other's instructions.
//!
//! # Safety
//! [`Going`] is that of a walk which ended at the root, without a guess, and whose words were all read from one range, still
//! the current one. There each word of the memo can be read if those nearer to the leaf are as they were
//! ([`Memo::changed_at`](crate::memo::Memo::changed_at)), and any that a rule leads to. Pointers into the memo stay within what
//! [`Memo::raw`](crate::memo::Memo::raw) says is there, or that there is room for.

use super::Gatherer;
use crate::cache::{Known, PC_BITS, RuleCache};
use crate::memo::{Raw, Record, Word};
use crate::memory::read_word;
use crate::native::{FrameRegister, RuleKind};
use crate::resolve::Resolver;
use crate::stack::is_far;
use crate::start::Start;
use crate::tree::{Frame, FrameKey, Interner, MOST_TOLD, NodeId, Sink, WORD_FLAGS_AT, WORD_MODULE_AT};
use crate::walker::End;
use core::mem::MaybeUninit;

/// The most new frames.
const MOST: usize = 20;

const _: () = assert!(WORD_FLAGS_AT == PC_BITS && MOST <= MOST_TOLD);

/// Where words can be read, if a walk may go on from the last one in this way: what [`StackMemory`](crate::stack::StackMemory) and the
/// memo say, asked once behind each other walk, and beside what this one needs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Going {
    /// Those that begin in `[lo, lo + len)`; 0 where none may.
    lo: u64,
    len: u64,
}

impl Going {
    #[inline(always)]
    fn holds(self, address: u64) -> bool {
        address.wrapping_sub(self.lo) < self.len
    }

    #[inline(always)]
    fn read(self, address: u64) -> Option<u64> {
        // SAFETY: the word lies in the range of the stack.
        self.holds(address).then(|| unsafe { read_word(address) })
    }
}

/// A new frame.
#[derive(Clone, Copy)]
struct New {
    /// The pc and the module, as [`Sink::told`] has them.
    word: u64,
    sp: u64,
    fp: u64,
    /// Where `fp` was read behind the step to this frame, or 0; [`DEAD`] where no step from here reads it.
    fp_at: u64,
}

/// No word lies there.
const DEAD: u64 = 1;

impl Gatherer {
    /// Behind a walk: whether the next one may go on from it.
    #[inline(always)]
    pub(super) fn may_go_on(&mut self) {
        self.going = Going::default();
        if let Some(range) = self.stack.trusted()
            && self.memo.is_whole_in(range)
        {
            self.going = Going { lo: range.lo, len: range.starts() };
        }
    }

    /// The node of a walk from `start` that is one of the commonest.
    #[inline(never)]
    pub(crate) fn again(
        &mut self,
        start: &impl Start,
        resolver: &mut impl Resolver,
        tree: &mut Interner<'_, impl Sink>,
    ) -> Option<NodeId> {
        let (mut pc, mut sp, mut fp, mut fp_at) = (start.pc(), start.sp(), start.fp(), 0);
        let going = self.going;
        if !going.holds(sp) {
            return None;
        }
        let mut found = [const { MaybeUninit::<New>::uninit() }; MOST];
        let mut new = 0;
        let chain = self.chains.of(pc, sp);
        let nearest = self.chains.raw(chain)?;
        let Raw { records, len, words, most_words } = self.memo.raw();
        // SAFETY: a walk to the root has frames.
        let (root_sp, mut end) = unsafe { ((*records).sp, records.add(len)) };
        let (last, last_fp_at) = loop {
            if sp > root_sp {
                return None;
            }
            // SAFETY: a record there is: that of the root at last.
            let old: &Record = unsafe {
                while (*end.sub(1)).sp < sp {
                    end = end.sub(1);
                }
                &*end.sub(1)
            };
            let mut read_at = 0;
            if old.is_at(pc, sp) {
                if old.ignores_fp() {
                    break (old, 0);
                }
                if fp_at != 0 {
                    (fp, read_at, fp_at) = (going.read(fp_at)?, fp_at, 0);
                }
                if old.fp == fp {
                    break (old, read_at);
                }
            }
            // SAFETY: it is a chain of the walker's, which nobody writes meanwhile.
            let known = match unsafe { (*nearest).entry(new, pc) } {
                Some(entry) => self.cache.known(entry),
                None if !RuleCache::has_room_for(pc) => return None,
                None => self.look_up(chain, new, pc, sp, resolver),
            };
            let Known { rule, module } = known;
            if module >> (u64::BITS - WORD_MODULE_AT) != 0 {
                return None;
            }
            let (cfa, caller_fp_at);
            if rule.ignores_fp() {
                read_at = DEAD;
                cfa = sp.wrapping_add(rule.cfa_offset());
                caller_fp_at = cfa.wrapping_add(rule.bp_offset());
            } else {
                if fp_at != 0 {
                    (fp, read_at) = (going.read(fp_at)?, fp_at);
                }
                let base = match () {
                    () if rule.is(RuleKind::Sp) => sp,
                    () if rule.is(RuleKind::Bp) => fp,
                    () => return None,
                };
                cfa = base.wrapping_add(rule.cfa_offset());
                caller_fp_at = match () {
                    () if rule.finds_bp(FrameRegister::Same) => 0,
                    () if rule.finds_bp(FrameRegister::AtCfa) => cfa.wrapping_add(rule.bp_offset()),
                    () => return None,
                };
            }
            if is_far(sp, cfa) {
                return None;
            }
            let caller = going.read(cfa.wrapping_sub(8))?;
            if caller == 0 {
                return None;
            }
            let word = pc | u64::from(module) << WORD_MODULE_AT;
            found.get_mut(new)?.write(New { word, sp, fp, fp_at: read_at });
            new += 1;
            (pc, sp, fp_at) = (caller, cfa, caller_fp_at);
        };
        // Else the compiler counts in several ways, for what comes behind, and has no registers left for the frames.
        let new = core::hint::black_box(new);
        // SAFETY: `end` is one behind `last`, a record of the memo.
        let kept = unsafe { end.offset_from_unsigned(records) };
        let kept_words = last.words() as usize;
        if kept + new > self.max_frames || kept_words + 2 * new + 1 > most_words {
            return None;
        }
        // SAFETY: as many words were read to leave the frames up to this one; see the module's header.
        if !unsafe { are_as_they_were(words, words.add(kept_words)) } {
            return None;
        }
        let (mut node, mut words_now) = (last.node, kept_words);
        if let Some(found @ [_, ..]) = found.get(..new) {
            // SAFETY: the first `new` were written.
            let found = found.iter().rev().map(|frame| unsafe { frame.assume_init() });
            // SAFETY: there is room for so many records and words behind those that are kept.
            let behind = unsafe { Behind { record: end, word: words.add(kept_words), words: kept_words } };
            let joined = Joined { pc: last.pc, sp: last.sp, fp, fp_at: last_fp_at };
            let told = found.clone().map(|New { word, .. }| word);
            if self.tells {
                let first = tree.number_within(new as u32)?;
                tree.told(first, node, told);
                node = NodeId(first.0 + (new as u32 - 1));
                // SAFETY: as above.
                words_now = unsafe { behind.keep(joined, found, (first.0..).map(NodeId)) };
            } else {
                let mut nodes = [NodeId::ROOT; MOST];
                node = intern(node, told, &mut nodes, tree);
                // SAFETY: as above.
                words_now = unsafe { behind.keep_interned(joined, found, &nodes) };
            }
        }
        // SAFETY: all of them were written.
        unsafe { self.memo.now_has(kept, kept + new, words_now) };
        self.last_end = End::Root;
        self.remember();
        Some(node)
    }
}

/// The frame of the last walk that new ones were called from.
struct Joined {
    pc: u64,
    sp: u64,
    fp: u64,
    /// As [`New::fp_at`].
    fp_at: u64,
}

/// Where the memo ends that is kept: the next record and the next word, and how many words there are.
struct Behind {
    record: *mut Record,
    word: *mut Word,
    words: usize,
}

impl Behind {
    /// Writes new frames, root first, with these nodes. How many words there are then.
    ///
    /// # Safety
    /// There is room for them, and for two words of each and one more.
    #[inline(always)]
    unsafe fn keep(
        self,
        joined: Joined,
        new: impl Iterator<Item = New>,
        nodes: impl Iterator<Item = NodeId>,
    ) -> usize {
        let Behind { mut record, mut word, words } = self;
        let mut words = words as u32;
        let mut keep = |address, value| {
            // SAFETY: the caller's promise.
            unsafe {
                word.write(Word::new(address, value));
                word = word.add(1);
            }
            words += 1;
            words
        };
        let Joined { pc: mut caller, sp: mut caller_sp, fp, fp_at } = joined;
        if fp_at != 0 {
            keep(fp_at, fp);
        }
        for (New { word, sp, fp, fp_at }, node) in new.zip(nodes) {
            let words = keep(caller_sp.wrapping_sub(8), caller);
            let pc = word & ((1 << WORD_FLAGS_AT) - 1);
            let module = (word >> WORD_MODULE_AT) as u32;
            // SAFETY: the caller's promise.
            unsafe {
                record.write(Record::plain(pc, sp, fp, node, words, module, fp_at == DEAD));
                record = record.add(1);
            }
            // It was read on the way to the frame, and leads to none rootward of it.
            if fp_at > DEAD {
                keep(fp_at, fp);
            }
            (caller, caller_sp) = (pc, sp);
        }
        words as usize
    }

    /// As [`Behind::keep`].
    ///
    /// # Safety
    /// As there.
    #[inline(never)]
    unsafe fn keep_interned(self, joined: Joined, new: impl Iterator<Item = New>, nodes: &[NodeId]) -> usize {
        // SAFETY: the caller's promise.
        unsafe { self.keep(joined, new, nodes.iter().copied()) }
    }
}

/// Gives frames their nodes, the first below `parent`. Returns the last.
#[inline(never)]
fn intern(
    parent: NodeId,
    words: impl ExactSizeIterator<Item = u64> + Clone,
    nodes: &mut [NodeId; MOST],
    tree: &mut Interner<'_, impl Sink>,
) -> NodeId {
    let key = |word| {
        let Frame { pc, flags, .. } = Frame::of_word(word);
        FrameKey::new(pc, flags)
    };
    let (mut node, mut known) = (parent, 0);
    for (word, to) in words.clone().zip(&mut *nodes) {
        let Some(found) = tree.find(node, key(word)) else { break };
        (*to, node) = (found, found);
        known += 1;
    }
    let rest = words.skip(known);
    if rest.len() == 0 {
        return node;
    }
    let count = rest.len() as u32;
    let Some(first) = tree.add(node, rest.clone().map(key), rest.map(Frame::of_word)) else {
        // Without memory the stack lacks these frames.
        nodes.iter_mut().skip(known).for_each(|to| *to = node);
        return node;
    };
    for (number, to) in (first.0..).zip(nodes.iter_mut().skip(known).take(count as usize)) {
        *to = NodeId(number);
    }
    NodeId(first.0 + (count - 1))
}

/// Whether words are what they were when they were read. The last comes first, and none is read before those behind it
/// were found to be so.
///
/// # Safety
/// There are words from the first up to `end`, and each can be read if those behind it are as they were.
#[inline(always)]
unsafe fn are_as_they_were(first: *const Word, mut end: *const Word) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        let is = |word: &Word| read_word(word.address) == word.value;
        while !end.offset_from_unsigned(first).is_multiple_of(4) {
            end = end.sub(1);
            if !is(&*end) {
                return false;
            }
        }
        while end != first {
            end = end.sub(4);
            let [a, b, c, d] = &*end.cast::<[Word; 4]>();
            if !(is(d) && is(c) && is(b) && is(a)) {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::{FullState, Registers, UnwindRule};
    use crate::resolve::{FullStep, Outcome, RuleEntry};
    use crate::stack::StackMemory;
    use crate::tree::StackTree;
    use crate::walker::Config;

    /// Frames of a stack, and the bytes of each.
    const FRAMES: usize = 40;
    const BYTES: u64 = 64;
    /// Functions of a frame, all with the same rule.
    const FUNCTIONS: u64 = 3;
    const ROOT_PC: u64 = 0x10_0000;

    /// What lies in memory: for each frame its function, where it returns to, and above that what its caller's rbp was.
    struct Stack {
        words: Vec<u64>,
        functions: [u64; FRAMES],
        /// Whether the next frame that goes by rbp is the larger one of two.
        is_large: [bool; FRAMES],
    }

    fn goes_by_rbp(frame: usize) -> bool {
        frame % 7 == 3
    }

    fn rule(pc: u64) -> UnwindRule {
        if pc == ROOT_PC {
            return UnwindRule::ROOT;
        }
        let frame = (pc >> 4) as usize / FUNCTIONS as usize;
        let saved = (FrameRegister::AtCfa, -16);
        let (kind, (bp, bp_offset), cfa_offset) = match frame {
            _ if goes_by_rbp(frame) => (RuleKind::Bp, saved, 16),
            _ if frame % 3 == 1 => (RuleKind::Sp, (FrameRegister::Same, 0), BYTES as i32),
            _ => (RuleKind::Sp, saved, BYTES as i32),
        };
        UnwindRule { kind, bp, bp_offset, cfa_offset }
    }

    struct Rules;

    impl Resolver for Rules {
        fn rule(&mut self, pc: u64, _: bool) -> RuleEntry {
            RuleEntry { rule: rule(pc), module_id: (pc >> 4) as u32 % 5 }
        }

        fn step(&mut self, _: &mut FullState, _: &mut StackMemory) -> FullStep {
            FullStep { outcome: Outcome::Stuck, module_id: 0, flags: Default::default() }
        }
    }

    impl Stack {
        fn new() -> Self {
            let mut stack = Stack {
                words: vec![0; (FRAMES + 2) * BYTES as usize / 8],
                functions: [0; FRAMES],
                is_large: [false; FRAMES],
            };
            (0..FRAMES).for_each(|frame| stack.write(frame));
            stack
        }

        fn sp(&self, frame: usize) -> u64 {
            self.words.as_ptr() as u64 + frame as u64 * BYTES
        }

        fn pc(&self, frame: usize) -> u64 {
            if frame >= FRAMES - 3 {
                return ROOT_PC;
            }
            0x1_0000 + (frame as u64 * FUNCTIONS + self.functions[frame]) * 16
        }

        /// What rbp is in this frame, as the one leafward of it has it: where the next one that needs it ends, which may be a frame
        /// further than that one does by itself.
        fn fp(&self, frame: usize) -> u64 {
            let next = (frame..).find(|&frame| goes_by_rbp(frame)).expect("there is always one");
            self.sp(next + 1 + usize::from(self.is_large[frame % FRAMES])) - 16
        }

        /// Writes the words at a frame's end.
        fn write(&mut self, frame: usize) {
            let end = (frame + 1) * BYTES as usize / 8;
            self.words[end - 1] = self.pc(frame + 1);
            self.words[end - 2] = self.fp(frame + 1);
        }
    }

    struct At {
        pc: u64,
        sp: u64,
        fp: u64,
    }

    impl Start for At {
        fn pc(&self) -> u64 {
            self.pc
        }
        fn sp(&self) -> u64 {
            self.sp
        }
        fn fp(&self) -> u64 {
            self.fp
        }
        fn registers(&self) -> Registers {
            unreachable!("no rule asks for a full step")
        }
    }

    /// A walker, and the nodes that it told.
    struct Told {
        gatherer: Gatherer,
        tree: StackTree,
        nodes: Vec<(NodeId, Frame)>,
    }

    impl Told {
        fn new(tells: bool) -> Self {
            let config = Config { tells, cache_bits: 6, chain_bits: 3, recent_bits: 8, ..Config::default() };
            Told {
                gatherer: Gatherer::new(&config).expect("memory"),
                tree: StackTree::new(16),
                nodes: vec![],
            }
        }

        fn walk(
            &mut self,
            how: impl FnOnce(
                &mut Gatherer,
                &mut Interner<'_, &mut dyn FnMut(NodeId, NodeId, Frame)>,
            ) -> Option<NodeId>,
        ) -> Option<Vec<Frame>> {
            let nodes = &mut self.nodes;
            let mut sink = |id: NodeId, parent, frame| {
                assert_eq!(id.0 as usize, nodes.len() + 1);
                nodes.push((parent, frame));
            };
            let mut sink: &mut dyn FnMut(NodeId, NodeId, Frame) = &mut sink;
            let mut node = how(&mut self.gatherer, &mut Interner::new(&mut self.tree, &mut sink))?;
            let mut frames = vec![];
            while node != NodeId::ROOT {
                let (parent, frame) = self.nodes[node.0 as usize - 1];
                frames.push(frame);
                node = parent;
            }
            Some(frames)
        }
    }

    /// Frames return and others are called, at any depth; and what rbp was changes by itself, by which a frame takes in the next one.
    #[test]
    fn a_walk_that_goes_on_is_the_walk_of_all_frames() {
        for tells in [false, true] {
            go_on(tells);
        }
    }

    /// What was forgotten is nothing to go on from, whatever other walks there are.
    #[test]
    fn a_walk_goes_on_from_a_walk_alone() {
        let (stack, mut told) = (Stack::new(), Told::new(false));
        let at = At { pc: stack.pc(2), sp: stack.sp(2), fp: stack.fp(2) };
        let again = |told: &mut Told| told.walk(|gatherer, tree| gatherer.again(&at, &mut Rules, tree));
        let unmemoised =
            |told: &mut Told| told.walk(|gatherer, tree| Some(gatherer.unmemoised(&at, &mut Rules, tree)));
        for forget in [Gatherer::forget_rules, Gatherer::forget_nodes, Gatherer::forget_stacks] {
            assert_eq!((again(&mut told), unmemoised(&mut told).is_some()), (None, true));
            assert_eq!(again(&mut told), None);
            let whole = told.walk(|gatherer, tree| Some(gatherer.memoised(&at, &mut Rules, tree)));
            assert_eq!((again(&mut told), unmemoised(&mut told)), (whole.clone(), whole.clone()));
            assert_eq!(again(&mut told), whole);
            forget(&mut told.gatherer);
        }
    }

    fn go_on(tells: bool) {
        let mut stack = Stack::new();
        let (mut told, mut whole) = (Told::new(tells), Told::new(false));
        let mut state = 1_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 33) as usize % below
        };
        let (mut walks, mut again) = (0, 0);
        for round in 0..100_000 {
            // Most often near the leaf, where the walk begins.
            let leaf = random(FRAMES / 2);
            for _ in 0..random(3) {
                let reach = if random(8) == 0 { FRAMES / 2 - 1 } else { 6 };
                let frame = (leaf + random(reach)).min(FRAMES - 5);
                match random(3) {
                    0 => stack.is_large[frame + 1] ^= true,
                    _ => stack.functions[frame + 1] = random(FUNCTIONS as usize) as u64,
                }
                stack.write(frame);
            }
            let at = At { pc: stack.pc(leaf), sp: stack.sp(leaf), fp: stack.fp(leaf) };
            let expected = whole.walk(|gatherer, tree| Some(gatherer.unmemoised(&at, &mut Rules, tree)));
            let mut found = told.walk(|gatherer, tree| gatherer.again(&at, &mut Rules, tree));
            again += u32::from(found.is_some());
            walks += 1;
            if found.is_none() {
                found = told.walk(|gatherer, tree| Some(gatherer.memoised(&at, &mut Rules, tree)));
            }
            assert_eq!(found, expected, "{round}");
            std::hint::black_box(&mut stack.words);
        }
        assert!(again > walks / 2 && again < walks, "{again} of {walks}");
    }
}
