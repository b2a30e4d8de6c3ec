//! Call stacks as a prefix tree, from the root to the leaf.

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

const FLAG_SHIFT: u32 = 60;
const FIRST_BITS: u32 = 10;

/// An open-addressing hash table from (parent, frame) to node. Ids count from 1.
///
/// Looking up a node that exists neither allocates nor locks. A new one allocates when the table is three quarters
/// full: it then doubles.
#[derive(Debug, Default)]
pub struct StackTree {
    slots: Vec<Slot>,
    shift: u32,
    nodes: u32,
    lost: u64,
}

impl StackTree {
    /// An empty tree. Does not allocate yet.
    pub const fn new() -> Self {
        StackTree { slots: Vec::new(), shift: 0, nodes: 0, lost: 0 }
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

    /// How many bytes the table takes.
    pub fn memory(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>()
    }

    /// Forgets all nodes. Ids count from 1 again. Keeps the memory.
    pub fn reset(&mut self) {
        self.slots.fill(Slot::default());
        self.nodes = 0;
    }

    /// The node for `frame` called from `parent`; a new one is told to `sink`.
    ///
    /// Without memory for a new node, the answer is `parent`: the stack then lacks the frame, and
    /// [`lost_frames`](Self::lost_frames) counts it.
    #[inline]
    pub fn child(&mut self, parent: NodeId, frame: Frame, sink: &mut impl Sink) -> NodeId {
        let key = frame.pc ^ (u64::from(frame.flags.bits()) << FLAG_SHIFT);
        let mask = self.slots.len().wrapping_sub(1);
        let mut index = hash(key, parent.0, self.shift);
        while let Some(slot) = self.slots.get(index) {
            if slot.key == key && slot.parent == parent.0 && slot.node != 0 {
                return NodeId(slot.node);
            }
            if slot.node == 0 {
                break;
            }
            index = index.wrapping_add(1) & mask;
        }
        self.insert(parent, frame, key, sink)
    }

    #[cold]
    #[inline(never)]
    fn insert(&mut self, parent: NodeId, frame: Frame, key: u64, sink: &mut impl Sink) -> NodeId {
        let full = self.nodes as usize >= self.slots.len() / 4 * 3;
        if (full && !self.grow()) || self.nodes == u32::MAX {
            self.lost = self.lost.wrapping_add(1);
            return parent;
        }
        self.nodes += 1;
        let node = self.nodes;
        self.place(Slot { key, parent: parent.0, node });
        sink.node(NodeId(node), parent, frame);
        NodeId(node)
    }

    /// Puts a slot whose key is not in the table where it belongs. There is an empty slot.
    fn place(&mut self, new: Slot) {
        let mask = self.slots.len().wrapping_sub(1);
        let mut index = hash(new.key, new.parent, self.shift);
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
        let mut bigger = Vec::new();
        if bigger.try_reserve_exact(len).is_err() {
            return false;
        }
        bigger.resize(len, Slot::default());
        let old = core::mem::replace(&mut self.slots, bigger);
        self.shift = 64 - bits;
        for slot in old {
            if slot.node != 0 {
                self.place(slot);
            }
        }
        true
    }
}

#[inline(always)]
fn hash(key: u64, parent: u32, shift: u32) -> usize {
    // Odd constants; the two products spread the bits of each part to the top, which the shift keeps.
    let mixed =
        (key ^ u64::from(parent).wrapping_mul(0xd6e8_feb8_6659_fd93)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (shift & 63)) as usize
}

/// A [`StackTree`] with the sink of one walk.
pub(crate) struct Interner<'a, S> {
    pub(crate) tree: &'a mut StackTree,
    pub(crate) sink: &'a mut S,
}

impl<S: Sink> Tree for Interner<'_, S> {
    #[inline(always)]
    fn child(&mut self, parent: NodeId, frame: Frame) -> NodeId {
        self.tree.child(parent, frame, self.sink)
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
