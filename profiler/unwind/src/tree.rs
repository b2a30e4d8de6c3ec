//! Call stacks as a prefix tree, from the root to the leaf.
//!
//! # Safety
//! A slot of zero bytes is an empty one.

use crate::zeroed::{Zeroable, zeroed};
use alloc::vec::Vec;
use core::ops::BitOr;

/// A stack: the node of its leaf frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct NodeId(pub u32);

impl NodeId {
    /// The empty stack.
    pub const ROOT: NodeId = NodeId(0);
}

/// What is known of a frame besides its pc.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct FrameFlags(u8);

impl FrameFlags {
    /// An ordinary frame.
    pub const NONE: FrameFlags = FrameFlags(0);
    /// There is no CFI for this pc. What lies rootward of it was found by frame pointers: a guess.
    pub const GUESS: FrameFlags = FrameFlags(1);
    /// The kernel's signal frame: the pc is that of the trampoline that returns from the handler.
    pub const SIGNAL: FrameFlags = FrameFlags(2);
    /// Not a frame: stands at the root in place of the frames that the depth limit cut off. Its pc is 0.
    pub const TRUNCATED: FrameFlags = FrameFlags(4);
    /// Not a frame: stands at the root where no caller was found, and the stack is incomplete. Its pc is 0.
    pub const NO_CALLER: FrameFlags = FrameFlags(Self::TRUNCATED.0 | Self::GUESS.0);
    /// The pc is that of the instruction that a signal stopped, not a return address.
    pub const EXACT: FrameFlags = FrameFlags(8);

    /// The flags as bits, as they may be written to a file.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Whether all flags of `other` are set.
    pub const fn contains(self, other: FrameFlags) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for FrameFlags {
    type Output = FrameFlags;

    fn bitor(self, other: FrameFlags) -> FrameFlags {
        FrameFlags(self.0 | other.0)
    }
}

/// A frame as the tree sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// A return address, unless the flags say otherwise.
    pub pc: u64,
    /// The id of the module that holds the pc; 0 for none.
    pub module: u32,
    /// What else is known.
    pub flags: FrameFlags,
}

impl Frame {
    /// The frame that a word of [`Sink::told`] stands for.
    pub fn of_word(word: u64) -> Self {
        let flags = (word >> WORD_FLAGS_AT) as u8 & ((1 << (WORD_MODULE_AT - WORD_FLAGS_AT)) - 1);
        let pc = word & ((1 << WORD_FLAGS_AT) - 1);
        Frame { pc, module: (word >> WORD_MODULE_AT) as u32, flags: FrameFlags(flags) }
    }
}

/// A frame's pc with the flags in the bits above any user address: what tells frames of one parent apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct FrameKey(u64);

impl FrameKey {
    #[inline(always)]
    pub(crate) fn new(pc: u64, flags: FrameFlags) -> Self {
        FrameKey(pc ^ (u64::from(flags.bits()) << FLAG_SHIFT))
    }

    pub(crate) fn bits(self) -> u64 {
        self.0
    }
}

/// Where in a word of [`Sink::told`] the flags begin, and the module's id. Below them there is the pc.
pub const WORD_FLAGS_AT: u32 = 48;
/// See [`WORD_FLAGS_AT`].
pub const WORD_MODULE_AT: u32 = 52;

/// Hears of each node when it comes to be, in the order of the ids; a parent's id is below its child's.
pub trait Sink {
    /// Nodes that the tree doesn't hold, at most [`MOST_TOLD`] of them: the first below `parent`, each other below the one
    /// before it. Their ids go up from `first` by one.
    fn nodes(&mut self, first: NodeId, parent: NodeId, frames: impl ExactSizeIterator<Item = Frame> + Clone);

    /// As [`Sink::nodes`], of frames that are a word each: the pc, from bit [`WORD_FLAGS_AT`] on the flags, of which there are none,
    /// and from [`WORD_MODULE_AT`] on the module's id.
    #[inline(always)]
    fn told(&mut self, first: NodeId, parent: NodeId, words: impl ExactSizeIterator<Item = u64> + Clone) {
        self.nodes(first, parent, words.map(Frame::of_word));
    }
}

impl<F: FnMut(NodeId, NodeId, Frame)> Sink for F {
    fn nodes(&mut self, first: NodeId, parent: NodeId, frames: impl ExactSizeIterator<Item = Frame> + Clone) {
        let mut parent = parent;
        for (id, frame) in (first.0..).map(NodeId).zip(frames) {
            self(id, parent, frame);
            parent = id;
        }
    }
}

/// How many nodes are told at a time.
pub const MOST_TOLD: usize = 64;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slot {
    key: FrameKey,
    parent: u32,
    /// Below [`StackTree::first`] in an empty slot.
    node: u32,
}

/// What tells the slots of a cache line apart: a search goes through all of them before it turns to the next line.
const IN_LINE: usize = 3;
const _: () = assert!((IN_LINE + 1) * size_of::<Slot>() == 64);

// SAFETY: made of numbers.
unsafe impl Zeroable for Slot {}

const FLAG_SHIFT: u32 = 60;
const FIRST_BITS: u32 = 10;

/// An open-addressing hash table from (parent, frame) to node. Ids count from 1.
///
/// The table has a largest size, so that it stays in the processor's caches when a program's stacks are ever new.
/// When that is three quarters full, the table is emptied: nodes up to the last one count as none, and no slot is written.
/// Nodes that were given out stay good: they are what they were told to be. The same stack may get another node later,
/// and is told again.
///
/// A walk may tell nodes past the table, for whoever is told to find out which of them are known.
///
/// Looking up a node that exists neither allocates nor locks. A new one allocates when a smaller table is three
/// quarters full: it then grows.
#[repr(C)]
#[derive(Debug)]
pub struct StackTree {
    nodes: u32,
    slots: Vec<Slot>,
    shift: u32,
    /// The binary logarithm of the most slots.
    most_bits: u32,
    /// The nodes in the table are some of those from here on.
    first: u32,
    /// How many these are.
    held: u32,
    lost: u64,
}

impl StackTree {
    /// An empty tree of at most `1 << most_bits` slots of 16 bytes. Does not allocate yet.
    pub const fn new(most_bits: u32) -> Self {
        StackTree { slots: Vec::new(), shift: 0, most_bits, first: 1, held: 0, nodes: 0, lost: 0 }
    }

    /// How many nodes were given out besides the root; also the highest id.
    pub fn len(&self) -> u32 {
        self.nodes
    }

    /// Whether there is no node but the root.
    pub fn is_empty(&self) -> bool {
        self.nodes == 0
    }

    /// How many frames were left out of stacks since there was no memory, or no id, for their node.
    pub fn lost_frames(&self) -> u64 {
        self.lost
    }

    /// How many bytes the tree takes.
    pub fn memory(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>()
    }

    /// Forgets all nodes. Ids count from 1 again. Keeps the memory.
    pub fn reset(&mut self) {
        self.slots.fill(Slot::default());
        (self.first, self.held, self.nodes) = (1, 0, 0);
    }

    /// Numbers nodes that don't go into the table. Returns the first; `None` without ids for them.
    #[inline(always)]
    fn number(&mut self, count: u32) -> Option<NodeId> {
        let last = self.nodes.checked_add(count);
        if last.is_none() {
            self.lost = self.lost.wrapping_add(u64::from(count));
        }
        Some(NodeId(core::mem::replace(&mut self.nodes, last?) + 1))
    }

    /// Where the search for a frame called from `parent` begins. The top bits are the best mixed ones.
    #[inline(always)]
    fn first_index(&self, parent: u32, key: FrameKey) -> usize {
        let hash = (u64::from(parent).rotate_left(40) ^ key.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hash >> (self.shift & 63)) as usize
    }

    /// Where a search goes on that began at `first`, after so many slots.
    #[inline(always)]
    fn index_after(&self, first: usize, tried: usize) -> usize {
        let line = (first & !IN_LINE).wrapping_add(tried & !IN_LINE) & self.slots.len().wrapping_sub(1);
        line | ((first ^ tried) & IN_LINE)
    }

    fn find(&self, parent: NodeId, key: FrameKey) -> Option<NodeId> {
        let first = self.first_index(parent.0, key);
        let mut tried = 0;
        while let Some(slot) = self.slots.get(self.index_after(first, tried))
            && slot.node >= self.first
        {
            if slot.key == key && slot.parent == parent.0 {
                return Some(NodeId(slot.node));
            }
            tried += 1;
        }
        None
    }

    /// Makes nodes of frames with these keys, the first below `parent`, each other below the one before it; none
    /// of them is in the table. Returns the first, or `None` where there is no room for them.
    fn insert_all(
        &mut self,
        parent: NodeId,
        keys: impl ExactSizeIterator<Item = FrameKey>,
    ) -> Option<NodeId> {
        let count = keys.len() as u32;
        while !self.has_room(count) {
            if !self.make_room(count) {
                self.lost = self.lost.wrapping_add(u64::from(count));
                return None;
            }
        }
        let first = self.nodes + 1;
        self.held += count;
        let mut parent = parent.0;
        for key in keys {
            self.nodes += 1;
            self.place(Slot { key, parent, node: self.nodes });
            parent = self.nodes;
        }
        Some(NodeId(first))
    }

    /// Whether so many nodes more leave a quarter of the table empty, and have ids.
    fn has_room(&self, count: u32) -> bool {
        let held = u64::from(self.held) + u64::from(count);
        held <= self.slots.len() as u64 / 4 * 3 && self.nodes <= u32::MAX - count
    }

    /// Puts a slot whose key is not in the table where it belongs. There is an empty slot.
    fn place(&mut self, new: Slot) {
        let (first, in_use) = (self.first_index(new.parent, new.key), self.first);
        let (mut tried, mut index) = (0, first);
        while let Some(slot) = self.slots.get_mut(index) {
            if slot.node < in_use {
                *slot = new;
                return;
            }
            tried += 1;
            index = self.index_after(first, tried);
        }
    }

    /// Doubles the table, or empties it if it is as large as it may be. False where that gives no room for so many nodes, or
    /// there is no memory: the table stays as it was.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self, count: u32) -> bool {
        let bits = match self.slots.is_empty() {
            true => FIRST_BITS.min(self.most_bits),
            false => 64 - self.shift + 1,
        };
        if bits > self.most_bits {
            if self.nodes > u32::MAX - count || count as usize > self.slots.len() / 4 * 3 {
                return false;
            }
            (self.first, self.held) = (self.nodes.wrapping_add(1), 0);
            return true;
        }
        let Some(len) = 1usize.checked_shl(bits) else { return false };
        let Ok(bigger) = zeroed(len) else { return false };
        let old = core::mem::replace(&mut self.slots, bigger);
        self.shift = 64 - bits;
        for slot in old {
            if slot.node >= self.first {
                self.place(slot);
            }
        }
        true
    }
}

/// A [`StackTree`] with the sink of one walk.
pub(crate) struct Interner<'a, S> {
    tree: &'a mut StackTree,
    sink: &'a mut S,
}

impl<'a, S: Sink> Interner<'a, S> {
    pub(crate) fn new(tree: &'a mut StackTree, sink: &'a mut S) -> Self {
        Interner { tree, sink }
    }

    /// Numbers for so many nodes past the table, at most [`MOST_TOLD`]: the first. `None` without numbers for them.
    #[inline(always)]
    pub(crate) fn number(&mut self, count: u32) -> Option<NodeId> {
        self.tree.number(count)
    }

    /// As [`Interner::number`], without a trace where there are none.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn number_within(&mut self, count: u32) -> Option<NodeId> {
        self.tree.nodes.checked_add(count)?;
        self.tree.number(count)
    }

    /// As [`Interner::tell`], of frames that are a word each.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn told(
        &mut self,
        first: NodeId,
        parent: NodeId,
        words: impl ExactSizeIterator<Item = u64> + Clone,
    ) {
        self.sink.told(first, parent, words);
    }

    /// As [`Interner::add`], of nodes past the table, which are numbered from `first` on.
    #[inline(always)]
    pub(crate) fn tell(
        &mut self,
        first: NodeId,
        parent: NodeId,
        frames: impl ExactSizeIterator<Item = Frame> + Clone,
    ) {
        self.sink.nodes(first, parent, frames);
    }

    /// The node of the frame with this key that was called from `parent`, if the tree holds it.
    pub(crate) fn find(&self, parent: NodeId, key: FrameKey) -> Option<NodeId> {
        self.tree.find(parent, key)
    }

    /// Makes nodes of frames with these keys, at most [`MOST_TOLD`], the first below `parent`, each other below
    /// the one before it; the tree holds none of them. They are told to the sink, with what `frames` says. Returns the
    /// first.
    ///
    /// `None` without memory for new nodes: the stack then lacks the frames, and [`StackTree::lost_frames`] counts them.
    pub(crate) fn add(
        &mut self,
        parent: NodeId,
        keys: impl ExactSizeIterator<Item = FrameKey>,
        frames: impl ExactSizeIterator<Item = Frame> + Clone,
    ) -> Option<NodeId> {
        let first = self.tree.insert_all(parent, keys)?;
        self.sink.nodes(first, parent, frames);
        Some(first)
    }

    /// The stack in which the frame with this key was called from `parent`. Without memory for a new node, the answer is
    /// `parent`.
    pub(crate) fn child(&mut self, parent: NodeId, key: FrameKey, frame: impl FnOnce() -> Frame) -> NodeId {
        let node = self
            .find(parent, key)
            .or_else(|| self.add(parent, core::iter::once(key), core::iter::once(frame())));
        node.unwrap_or(parent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memo::{Memo, Path};
    use crate::stack::Range;
    use crate::start::Cursor;
    use std::collections::HashMap;

    fn frame(pc: u64) -> Frame {
        Frame { pc, module: 1, flags: FrameFlags::NONE }
    }

    #[test]
    fn the_last_numbers_are_given_out_and_no_more() {
        for past in [false, true] {
            let mut tree = StackTree { nodes: u32::MAX - 2, first: u32::MAX - 1, ..StackTree::new(4) };
            let mut sink = |_, _, _| ();
            let mut add = |pcs: &[u64]| {
                let keys = pcs.iter().map(|&pc| FrameKey::new(pc, FrameFlags::NONE));
                let frames = pcs.iter().map(|&pc| frame(pc));
                let mut tree = Interner::new(&mut tree, &mut sink);
                if past { tree.number(pcs.len() as u32) } else { tree.add(NodeId::ROOT, keys, frames) }
            };
            assert_eq!(add(&[1, 2, 3]), None);
            assert_eq!(add(&[1, 2]), Some(NodeId(u32::MAX - 1)));
            assert_eq!(add(&[3]), None);
            assert_eq!(tree.lost_frames(), 4);
        }
    }

    /// Asks a tree for stacks of which most share a prefix; each answer must be a node that was told to be that stack.
    fn every_node_is_what_it_was_told_to_be(most_bits: u32) -> StackTree {
        let mut tree = StackTree::new(most_bits);
        let mut told = vec![(NodeId::ROOT, 0, 0)];
        let mut known = vec![NodeId::ROOT];
        let mut state = 1u64;
        for _ in 0..200_000 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let parent = known[state as usize % known.len()];
            let pc = 0x5555_0000_0000 + (state >> 32) % 7 * 4;
            let flags = FrameFlags((state >> 60) as u8 & 1);
            let mut sink = |id: NodeId, parent, frame: Frame| {
                assert_eq!(id.0 as usize, told.len());
                told.push((parent, frame.pc, frame.flags.bits()));
            };
            let key = FrameKey::new(pc, flags);
            let frame = || Frame { pc, module: 1, flags };
            let node = Interner::new(&mut tree, &mut sink).child(parent, key, frame);
            assert_eq!(told[node.0 as usize], (parent, pc, flags.bits()));
            if node.0 as usize == known.len() {
                known.push(node);
            }
            assert_eq!(tree.len() as usize + 1, told.len());
        }
        assert_eq!(tree.lost_frames(), 0);
        let distinct: HashMap<_, _> = told.iter().map(|told| (told, ())).collect();
        let again = told.len() - distinct.len();
        assert_eq!(again == 0, most_bits >= 20, "{again} nodes were told again");
        tree
    }

    #[test]
    fn a_tree_with_room_tells_each_node_once() {
        let mut tree = every_node_is_what_it_was_told_to_be(20);
        tree.reset();
        let frame = frame(5);
        let key = FrameKey::new(frame.pc, frame.flags);
        let first = Interner::new(&mut tree, &mut |_, _, _| ()).child(NodeId::ROOT, key, || frame);
        assert_eq!(first, NodeId(1));
    }

    #[test]
    fn a_tree_without_room_begins_anew_and_takes_no_more_memory() {
        for bits in [4, 10, 12] {
            let tree = every_node_is_what_it_was_told_to_be(bits);
            assert_eq!(tree.memory(), size_of::<Slot>() << bits);
        }
    }

    /// Walks of which all nodes are asked for at once, as a walker does it; each must be told, or have been told, as what it is.
    #[test]
    fn nodes_that_are_told_at_once_are_those_of_the_walk() {
        // All told; all looked up, in a table with room for them and in one without; and by turns.
        for (most_bits, every, least, most) in
            [(20, 1, 8 * 1000, 8 * 1000), (4, 0, 56, 8 * 1000), (20, 0, 56, 56), (20, 2, 8 * 507, 8 * 507)]
        {
            let (mut tree, mut path) = (StackTree::new(most_bits), Path::new(16).unwrap());
            let mut memo = Memo::new(16).unwrap();
            let mut told = vec![(NodeId::ROOT, 0)];
            for walk in 0..1000 {
                path.clear();
                // Bit 0 is no part of an address in every instruction set.
                for frame in 0..8 {
                    let pc = 0x1000 + 2 * (walk % 7 + 10 * frame);
                    path.push(Cursor { pc, sp: 0, fp: 0 }, 1, FrameFlags::NONE, true);
                }
                let mut sink = |id: NodeId, parent: NodeId, frame: Frame| {
                    assert_eq!(id.0 as usize, told.len());
                    told.push((parent, frame.pc));
                };
                let interner = &mut Interner::new(&mut tree, &mut sink);
                let tells = every != 0 && walk % every == 0;
                memo.forget();
                let leaf = if tells {
                    memo.tell_and_take(&path, Range::default(), NodeId::ROOT, interner)
                } else {
                    let leaf = path.intern(NodeId::ROOT, interner);
                    memo.take(&path, Range::default());
                    leaf
                };
                let mut parent = NodeId::ROOT;
                for (number, found) in (1..).zip(path.frames().iter().rev()) {
                    let record = memo.last_of(number).unwrap();
                    assert_eq!((record.pc, told[record.node.0 as usize]), (found.pc, (parent, found.pc)));
                    parent = record.node;
                }
                assert_eq!(memo.len(), 8);
                assert_eq!(leaf, parent);
            }
            let told = told.len() - 1;
            assert!((least..=most).contains(&told), "{told} of {most_bits}, {every}");
        }
    }
}
