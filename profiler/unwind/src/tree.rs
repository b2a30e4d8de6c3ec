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

/// A stack with what the places of its children in the table follow from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stack {
    pub(crate) node: NodeId,
    pub(crate) hash: u64,
}

impl Stack {
    /// The empty stack.
    pub(crate) const ROOT: Stack = Stack { node: NodeId::ROOT, hash: 0 };

    /// A stack that the table doesn't hold and that nobody will look for there: any hash will do for what is below it.
    #[inline(always)]
    pub(crate) fn apart(node: NodeId) -> Stack {
        Stack { node, hash: u64::from(node.0).wrapping_mul(0x9e37_79b9_7f4a_7c15) }
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

    /// The hash of a stack of this frame, called from a stack of the hash `parent`.
    #[inline(always)]
    pub(crate) fn hash_after(self, parent: u64) -> u64 {
        (parent.rotate_left(23) ^ self.0).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// Hears of each node when it comes to be, in the order of the ids; a parent's id is below its child's.
pub trait Sink {
    /// Nodes that the tree doesn't hold, at most [`MOST_TOLD`] of them: the first below `parent`, each other below the one
    /// before it. Their ids go up from `first` by one.
    fn nodes(&mut self, first: NodeId, parent: NodeId, frames: impl ExactSizeIterator<Item = Frame>);
}

impl<F: FnMut(NodeId, NodeId, Frame)> Sink for F {
    fn nodes(&mut self, first: NodeId, parent: NodeId, frames: impl ExactSizeIterator<Item = Frame>) {
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
/// A frame's place follows from the hash of its whole stack, so the places of all frames of a walk can be computed
/// without waiting for the nodes before them. What is compared is the parent's id and the frame.
///
/// The table has a largest size, so that it stays in the processor's caches when a program's stacks are ever new.
/// When that is three quarters full, the table is emptied: nodes up to the last one count as none, and no slot is written.
/// Nodes that were given out stay good: they are what they were told to be. The same stack may get another node later,
/// and is told again.
///
/// Where hardly a walk finds all its nodes, looking for them costs more than telling them anew: then the table is left
/// alone for a while, and each walk tells all nodes that it needs. Whoever is told may find that it knows them.
///
/// Looking up a node that exists neither allocates nor locks. A new one allocates when a smaller table is three
/// quarters full: it then grows.
#[derive(Debug)]
pub struct StackTree {
    slots: Vec<Slot>,
    /// The hash of each stack in the table by its node, from [`StackTree::first`] on. Empty when the table won't grow
    /// any more.
    hashes: Vec<u64>,
    shift: u32,
    /// The binary logarithm of the most slots.
    most_bits: u32,
    /// The nodes in the table are those from here on.
    first: u32,
    nodes: u32,
    lost: u64,
    /// Walks that were looked up since the table was emptied, and those of them that needed new nodes.
    walks: u32,
    new: u32,
    /// How many walks will do without the table.
    without: u32,
}

/// The table is left alone when so many of 32 walks needed new nodes.
const MOSTLY: u64 = 31;
/// For so many walks. Then it is tried again.
const WITHOUT: u32 = 1 << 16;

impl StackTree {
    /// An empty tree of at most `1 << most_bits` slots of 16 bytes. Does not allocate yet.
    pub const fn new(most_bits: u32) -> Self {
        StackTree {
            slots: Vec::new(),
            hashes: Vec::new(),
            shift: 0,
            most_bits,
            first: 1,
            nodes: 0,
            lost: 0,
            walks: 0,
            new: 0,
            without: 0,
        }
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
        self.slots.capacity() * size_of::<Slot>() + self.hashes.capacity() * size_of::<u64>()
    }

    /// Forgets all nodes. Ids count from 1 again. Keeps the memory.
    pub fn reset(&mut self) {
        self.slots.fill(Slot::default());
        self.hashes.clear();
        self.nodes = 0;
        self.first = 1;
        (self.walks, self.new, self.without) = (0, 0, 0);
    }

    /// Whether it is worth to look for nodes of a walk. If not, all of them are to be
    /// [taken as new](StackTree::number).
    #[inline(always)]
    fn is_of_use(&self) -> bool {
        self.without == 0
    }

    /// Numbers nodes that don't go into the table, all that a walk needs. Returns the first; `None` without ids for them.
    #[inline(always)]
    fn number(&mut self, count: u32) -> Option<NodeId> {
        self.without = self.without.saturating_sub(1);
        // The number behind the last one is where the table begins once it has been emptied.
        let Some(last) = self.nodes.checked_add(count).filter(|&last| last < u32::MAX) else {
            self.lost = self.lost.wrapping_add(u64::from(count));
            return None;
        };
        let first = core::mem::replace(&mut self.nodes, last) + 1;
        if self.without == 0 {
            self.empty();
        }
        Some(NodeId(first))
    }

    /// Empties the table.
    fn empty(&mut self) {
        self.first = self.nodes.wrapping_add(1);
        (self.walks, self.new) = (0, 0);
    }

    /// Where the search for a hash begins. The top bits are the best mixed ones.
    #[inline(always)]
    fn first_index(&self, hash: u64) -> usize {
        (hash >> (self.shift & 63)) as usize
    }

    /// Where a search goes on that began at `first`, after so many slots.
    #[inline(always)]
    fn index_after(&self, first: usize, tried: usize) -> usize {
        let line = (first & !IN_LINE).wrapping_add(tried & !IN_LINE) & self.slots.len().wrapping_sub(1);
        line | ((first ^ tried) & IN_LINE)
    }

    #[inline(always)]
    fn find(&self, parent: NodeId, key: FrameKey, hash: u64) -> Option<NodeId> {
        let first = self.first_index(hash);
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

    /// Makes nodes of frames with these keys and hashes, the first below `parent`, each other below the one before it; none
    /// of them is in the table. Returns the first, or `None` where there is no room for them.
    #[inline(always)]
    fn insert_all(
        &mut self,
        parent: NodeId,
        frames: impl ExactSizeIterator<Item = (FrameKey, u64)>,
    ) -> Option<NodeId> {
        let count = frames.len() as u32;
        while !self.has_room(count) {
            if !self.make_room(count) {
                self.lost = self.lost.wrapping_add(u64::from(count));
                return None;
            }
        }
        let first = self.nodes + 1;
        let mut parent = parent.0;
        for (key, hash) in frames {
            self.nodes += 1;
            if self.may_grow() {
                // Growing has made room for the hashes of all nodes that the table can hold.
                self.hashes.push(hash);
            }
            self.place(Slot { key, parent, node: self.nodes }, hash);
            parent = self.nodes;
        }
        Some(NodeId(first))
    }

    /// Whether so many nodes more leave a quarter of the table empty, and have ids.
    #[inline(always)]
    fn has_room(&self, count: u32) -> bool {
        let held = u64::from(self.nodes) + 1 - u64::from(self.first) + u64::from(count);
        held <= self.slots.len() as u64 / 4 * 3 && self.nodes <= u32::MAX - count
    }

    /// Puts a slot whose key is not in the table where it belongs. There is an empty slot.
    #[inline(always)]
    fn place(&mut self, new: Slot, hash: u64) {
        let (first, in_use) = (self.first_index(hash), self.first);
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

    fn may_grow(&self) -> bool {
        self.slots.len() >> self.most_bits == 0
    }

    /// Doubles the table, or empties it if it is as large as it may be. False where that gives no room for so many nodes, or
    /// there is no memory: the table stays as it was.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self, count: u32) -> bool {
        if !self.may_grow() {
            if self.nodes > u32::MAX - count || count as usize > self.slots.len() / 4 * 3 {
                return false;
            }
            if self.walks != 0 && u64::from(self.new) * 32 >= u64::from(self.walks) * MOSTLY {
                self.without = WITHOUT;
            }
            self.empty();
            return true;
        }
        let bits = match self.slots.is_empty() {
            true => FIRST_BITS.min(self.most_bits),
            // The last step is of two: half of the largest table would be of no use to anybody, once it is given back.
            false => 64 - self.shift + if self.most_bits + self.shift == 66 { 2 } else { 1 },
        };
        let Some(len) = 1usize.checked_shl(bits) else { return false };
        let hashes = (len / 4 * 3).saturating_sub(self.hashes.len());
        let Ok(bigger) = zeroed(len) else { return false };
        if self.hashes.try_reserve_exact(hashes).is_err() {
            return false;
        }
        let old = core::mem::replace(&mut self.slots, bigger);
        self.shift = 64 - bits;
        for slot in old {
            let index = slot.node.wrapping_sub(self.first) as usize;
            if let Some(&hash) = self.hashes.get(index) {
                self.place(slot, hash);
            }
        }
        if !self.may_grow() {
            self.hashes = Vec::new();
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

    /// Whether it is worth to look for nodes of a walk.
    #[inline(always)]
    pub(crate) fn is_of_use(&self) -> bool {
        self.tree.is_of_use()
    }

    /// A walk was looked up; `new`: some of its nodes had to be made.
    #[inline(always)]
    pub(crate) fn looked_up(&mut self, new: bool) {
        self.tree.walks = self.tree.walks.wrapping_add(1);
        self.tree.new = self.tree.new.wrapping_add(u32::from(new));
    }

    /// As [`Interner::add`], of all that a walk needs, and past the table.
    #[inline(always)]
    pub(crate) fn tell(
        &mut self,
        parent: NodeId,
        frames: impl ExactSizeIterator<Item = Frame>,
    ) -> Option<NodeId> {
        let first = self.tree.number(frames.len() as u32)?;
        self.sink.nodes(first, parent, frames);
        Some(first)
    }

    /// Where the search for a stack with this hash begins: worth a prefetch.
    #[inline(always)]
    pub(crate) fn slot_of(&self, hash: u64) -> Option<&Slot> {
        self.tree.slots.get(self.tree.first_index(hash))
    }

    /// The node of the frame with this key that was called from `parent`, of this hash, if the tree holds it.
    #[inline(always)]
    pub(crate) fn find(&self, parent: NodeId, key: FrameKey, hash: u64) -> Option<NodeId> {
        self.tree.find(parent, key, hash)
    }

    /// Makes nodes of frames with these keys and hashes, at most [`MOST_TOLD`], the first below `parent`, each other below
    /// the one before it; the tree holds none of them. They are told to the sink, with what `frames` says. Returns the
    /// first.
    ///
    /// `None` without memory for new nodes: the stack then lacks the frames, and [`StackTree::lost_frames`] counts them.
    #[inline(always)]
    pub(crate) fn add(
        &mut self,
        parent: NodeId,
        keys: impl ExactSizeIterator<Item = (FrameKey, u64)>,
        frames: impl ExactSizeIterator<Item = Frame>,
    ) -> Option<NodeId> {
        let first = self.tree.insert_all(parent, keys)?;
        self.sink.nodes(first, parent, frames);
        Some(first)
    }

    /// The stack in which the frame with this key was called from `parent`. Without memory for a new node, the answer is
    /// `parent`.
    pub(crate) fn child(&mut self, parent: Stack, key: FrameKey, frame: impl FnOnce() -> Frame) -> Stack {
        let hash = key.hash_after(parent.hash);
        let node = self.find(parent.node, key, hash).or_else(|| {
            let keys = core::iter::once((key, hash));
            self.add(parent.node, keys, core::iter::once(frame()))
        });
        node.map_or(parent, |node| Stack { node, hash })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memo::Path;
    use crate::start::Cursor;
    use std::collections::HashMap;

    #[test]
    fn the_last_numbers_leave_a_table_that_can_be_searched() {
        let mut tree = StackTree { nodes: u32::MAX - 2, without: 1, ..StackTree::new(4) };
        assert_eq!(tree.number(2), None);
        assert_eq!(tree.number(1), Some(NodeId(u32::MAX - 1)));
        assert_ne!(tree.first, 0, "every slot would be in use");
        assert_eq!(tree.lost_frames(), 2);
    }

    /// Asks a tree for stacks of which most share a prefix; each answer must be a node that was told to be that stack.
    fn every_node_is_what_it_was_told_to_be(most_bits: u32) -> StackTree {
        let mut tree = StackTree::new(most_bits);
        let mut told = vec![(NodeId::ROOT, 0, 0)];
        let mut known = vec![Stack::ROOT];
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
            let stack = Interner::new(&mut tree, &mut sink).child(parent, key, frame);
            assert_eq!(told[stack.node.0 as usize], (parent.node, pc, flags.bits()));
            if stack.node.0 as usize == known.len() {
                known.push(stack);
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
        let frame = Frame { pc: 5, module: 0, flags: FrameFlags::NONE };
        let key = FrameKey::new(frame.pc, frame.flags);
        let first = Interner::new(&mut tree, &mut |_, _, _| ()).child(Stack::ROOT, key, || frame);
        assert_eq!(first.node, NodeId(1));
    }

    /// Walks of which all nodes are asked for at once, as a walker does it; each must be told, or have been told, as what it is.
    #[test]
    fn where_no_walk_comes_back_the_table_is_left_alone() {
        let (mut tree, mut path) = (StackTree::new(10), Path::new(16).unwrap());
        let mut told = vec![(NodeId::ROOT, 0)];
        let (mut state, mut alone, mut times) = (1u64, 0, 0);
        let mut step = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            state >> 33
        };
        for walk in 0..4 * WITHOUT {
            // At first ever new ones; then always the same few.
            let (number, most) = if walk < 2 * WITHOUT { (step(), 1 << 30) } else { (step() % 7, 7) };
            path.clear();
            // Bit 0 is no part of an address in every instruction set.
            for frame in 0..8 {
                path.push(
                    Cursor { pc: 0x1000 + 2 * (number % (most >> frame).max(1)), sp: 0, fp: 0 },
                    1,
                    FrameFlags::NONE,
                    true,
                );
            }
            let before = tree.len();
            let mut sink = |id: NodeId, parent: NodeId, frame: Frame| {
                assert_eq!(id.0 as usize, told.len());
                told.push((parent, frame.pc));
            };
            let interner = &mut Interner::new(&mut tree, &mut sink);
            let is_of_use = interner.is_of_use();
            let mut stacks = Vec::new();
            let leaf = if is_of_use {
                path.expect(Stack::ROOT, interner);
                path.intern(Stack::ROOT, interner, |_| 1, |stack| stacks.push(stack.node))
            } else {
                path.tell(Stack::ROOT, interner, |_| 1, |stack| stacks.push(stack.node))
            };
            assert_eq!((stacks.len(), stacks.last()), (8, Some(&leaf.node)));
            let mut parent = NodeId::ROOT;
            for (node, found) in stacks.into_iter().zip(path.frames().iter().rev()) {
                assert_eq!(told[node.0 as usize], (parent, found.pc));
                parent = node;
            }
            if !is_of_use {
                assert_eq!(tree.len(), before + 8);
                times += u32::from(alone == 0);
                alone += 1;
            } else {
                assert!(alone == 0 || alone == WITHOUT, "{alone}");
                alone = 0;
            }
        }
        assert!((1..=3).contains(&times), "{times}");
        assert_eq!(alone, 0);
    }

    #[test]
    fn a_tree_without_room_begins_anew_and_takes_no_more_memory() {
        for bits in [4, 10, 12] {
            let tree = every_node_is_what_it_was_told_to_be(bits);
            assert_eq!(tree.memory(), size_of::<Slot>() << bits);
        }
    }
}
