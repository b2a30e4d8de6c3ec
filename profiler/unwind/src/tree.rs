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

/// Where a walk puts its frames, from the root to the leaf.
pub trait Tree {
    /// The node for `frame` called from `parent`.
    fn child(&mut self, parent: NodeId, frame: Frame) -> NodeId;
}

/// Hears of each node when it comes to be, once, in the order of the ids; a parent's id is below its child's.
pub trait Sink {
    /// A node that was not there before.
    fn node(&mut self, id: NodeId, parent: NodeId, frame: Frame);
}

impl<F: FnMut(NodeId, NodeId, Frame)> Sink for F {
    fn node(&mut self, id: NodeId, parent: NodeId, frame: Frame) {
        self(id, parent, frame);
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// The pc with the flags in the bits above any user address.
    key: u64,
    parent: u32,
    /// 0 in an empty slot.
    node: u32,
}

// SAFETY: made of numbers.
unsafe impl Zeroable for Slot {}

const FLAG_SHIFT: u32 = 60;
const FIRST_BITS: u32 = 10;

/// An open-addressing hash table from (parent, frame) to node. Ids count from 1.
///
/// A frame's place follows from the hash of its whole stack, so the places of all frames of a walk can be computed
/// without waiting for the nodes before them. What is compared is the parent's id and the frame.
///
/// Looking up a node that exists neither allocates nor locks. A new one allocates when the table is three quarters
/// full: it then doubles.
#[derive(Debug, Default)]
pub struct StackTree {
    slots: Vec<Slot>,
    /// The hash of each node's stack; that of node 1 is first.
    hashes: Vec<u64>,
    shift: u32,
    nodes: u32,
    lost: u64,
}

impl StackTree {
    /// An empty tree. Does not allocate yet.
    pub const fn new() -> Self {
        StackTree { slots: Vec::new(), hashes: Vec::new(), shift: 0, nodes: 0, lost: 0 }
    }

    /// How many nodes there are besides the root; also the highest id.
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
    }

    /// The node for `frame` called from `parent`; a new one is told to `sink`.
    ///
    /// Without memory for a new node, the answer is `parent`: the stack then lacks the frame, and
    /// [`lost_frames`](Self::lost_frames) counts it.
    pub fn child(&mut self, parent: NodeId, frame: Frame, sink: &mut impl Sink) -> NodeId {
        Interner::new(self, sink).child(parent, frame)
    }

    fn hash_of(&self, node: NodeId) -> u64 {
        let index = (node.0 as usize).wrapping_sub(1);
        self.hashes.get(index).copied().unwrap_or(0)
    }

    /// Where the search for a hash begins. The top bits are the best mixed ones.
    #[inline(always)]
    fn first_index(&self, hash: u64) -> usize {
        (hash >> (self.shift & 63)) as usize
    }

    #[inline(always)]
    fn find(&self, parent: NodeId, key: u64, hash: u64) -> Option<NodeId> {
        let mask = self.slots.len().wrapping_sub(1);
        let mut index = self.first_index(hash);
        while let Some(slot) = self.slots.get(index) {
            if slot.key == key && slot.parent == parent.0 && slot.node != 0 {
                return Some(NodeId(slot.node));
            }
            if slot.node == 0 {
                break;
            }
            index = index.wrapping_add(1) & mask;
        }
        None
    }

    /// Makes the node, or returns `None` where there is no room for it.
    #[cold]
    #[inline(never)]
    fn insert(&mut self, parent: NodeId, key: u64, hash: u64) -> Option<NodeId> {
        let full = self.nodes as usize >= self.slots.len() / 4 * 3;
        if (full && !self.grow()) || self.nodes == u32::MAX {
            self.lost = self.lost.wrapping_add(1);
            return None;
        }
        self.nodes += 1;
        let node = self.nodes;
        // Growing has made room for the hashes of all nodes that the table can hold.
        self.hashes.push(hash);
        self.place(Slot { key, parent: parent.0, node }, hash);
        Some(NodeId(node))
    }

    /// Puts a slot whose key is not in the table where it belongs. There is an empty slot.
    fn place(&mut self, new: Slot, hash: u64) {
        let mask = self.slots.len().wrapping_sub(1);
        let mut index = self.first_index(hash);
        while let Some(slot) = self.slots.get_mut(index) {
            if slot.node == 0 {
                *slot = new;
                return;
            }
            index = index.wrapping_add(1) & mask;
        }
    }

    /// Doubles the table. False where there is no memory: the table stays as it was.
    fn grow(&mut self) -> bool {
        let bits = if self.slots.is_empty() { FIRST_BITS } else { 64 - self.shift + 1 };
        let Some(len) = 1usize.checked_shl(bits) else { return false };
        let hashes = (len / 4 * 3).saturating_sub(self.hashes.len());
        let Ok(bigger) = zeroed(len) else { return false };
        if self.hashes.try_reserve_exact(hashes).is_err() {
            return false;
        }
        let old = core::mem::replace(&mut self.slots, bigger);
        self.shift = 64 - bits;
        for slot in old {
            if slot.node != 0 {
                self.place(slot, self.hash_of(NodeId(slot.node)));
            }
        }
        true
    }
}

/// A [`StackTree`] with the sink of one walk.
pub(crate) struct Interner<'a, S> {
    tree: &'a mut StackTree,
    sink: &'a mut S,
    /// The last node, whose child is most likely asked for next, with its hash.
    last: (NodeId, u64),
}

impl<'a, S: Sink> Interner<'a, S> {
    pub(crate) fn new(tree: &'a mut StackTree, sink: &'a mut S) -> Self {
        Interner { tree, sink, last: (NodeId::ROOT, 0) }
    }
}

impl<S: Sink> Tree for Interner<'_, S> {
    #[inline(always)]
    fn child(&mut self, parent: NodeId, frame: Frame) -> NodeId {
        let parent_hash = if parent == self.last.0 { self.last.1 } else { self.tree.hash_of(parent) };
        let key = frame.pc ^ (u64::from(frame.flags.bits()) << FLAG_SHIFT);
        let hash = (parent_hash.rotate_left(23) ^ key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let node = match self.tree.find(parent, key, hash) {
            Some(node) => node,
            None => {
                let Some(node) = self.tree.insert(parent, key, hash) else { return parent };
                self.sink.node(node, parent, frame);
                node
            }
        };
        self.last = (node, hash);
        node
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn agrees_with_a_map() {
        let mut tree = StackTree::new();
        let mut model: HashMap<(NodeId, u64, u8), NodeId> = HashMap::new();
        let mut told = Vec::new();
        let mut state = 1u64;
        for _ in 0..200_000 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let parent = NodeId((state % (u64::from(tree.len()) + 1)) as u32);
            let pc = 0x5555_0000_0000 + (state >> 32) % 7 * 4;
            let flags = FrameFlags((state >> 60) as u8 & 1);
            let mut sink = |id, parent, frame: Frame| told.push((id, parent, frame.pc));
            let node = tree.child(parent, Frame { pc, module: 1, flags }, &mut sink);
            let expected = *model.entry((parent, pc, flags.bits())).or_insert(node);
            assert_eq!(node, expected);
            assert_eq!(tree.len() as usize, model.len());
        }
        for (index, (id, parent, _)) in told.iter().enumerate() {
            assert_eq!(id.0 as usize, index + 1);
            assert!(parent < id);
        }
        tree.reset();
        let frame = Frame { pc: 5, module: 0, flags: FrameFlags::NONE };
        assert_eq!(tree.child(NodeId::ROOT, frame, &mut |_, _, _| ()), NodeId(1));
    }
}
