//! The stacks of a trace: a prefix tree of frames.

use crate::analyse::Violation;
use crate::hash::FoldHash;
use grapnel_trace::event::node_flags;
use std::collections::HashMap;

/// More nodes than a recording has (a compiler's has half a million), for a bound on what a hostile
/// trace makes us keep: a gigabyte.
pub(crate) const MAX_NODES: usize = 1 << 25;

/// Why frames of a stack are missing at its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    /// They lie beyond the depth limit.
    Depth,
    /// The caller of the last one was not found.
    Caller,
}

impl Lack {
    fn of(flags: u8) -> Option<Self> {
        match flags & node_flags::NO_CALLER {
            node_flags::TRUNCATED => Some(Self::Depth),
            node_flags::NO_CALLER => Some(Self::Caller),
            _ => None,
        }
    }

    /// As the JSON report has it.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Depth => "depth-limit",
            Self::Caller => "caller-not-found",
        }
    }
}

/// A frame, and by its parent the stack that it is the leaf of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// The stack without this frame; 0 is the empty stack. Always less than the node's own id.
    pub parent: u32,
    /// The id of the module that `pc` lies in; 0 for none.
    pub module: u32,
    /// The return address, or the exact pc: see [`node_flags::is_exact`].
    pub pc: u64,
    /// See [`node_flags`].
    pub flags: u8,
}

impl Node {
    /// The address to look up: that of the call, not of the instruction it returns to, which may belong to
    /// another line or, behind a call that never returns, to another function.
    pub fn lookup_pc(&self) -> u64 {
        if node_flags::is_exact(self.flags) { self.pc } else { self.pc.wrapping_sub(1) }
    }

    /// Whether the frame that called this one was found by a frame pointer: likely, not certain.
    pub fn caller_is_guess(&self) -> bool {
        self.flags & node_flags::NO_CALLER == node_flags::GUESS
    }

    /// Whether this stands for the stacks of blocks that are older than the recording.
    pub fn is_before(&self) -> bool {
        self.flags & node_flags::BEFORE != 0
    }

    /// Whether this stands for frames that the stack lacks: those beyond the depth limit, or those that were not found.
    pub fn is_truncation(&self) -> bool {
        self.flags & node_flags::TRUNCATED != 0
    }

    /// Whether this is a frame, and does not stand for others or for blocks.
    pub(crate) fn is_frame(&self) -> bool {
        !self.is_truncation() && !self.is_before()
    }

    /// Why the stack lacks the frames that this [stands for](Self::is_truncation).
    pub(crate) fn lack(&self) -> Option<Lack> {
        Lack::of(self.flags)
    }

    /// What is shown for frames that the stack lacks.
    pub fn mark(&self) -> Option<&'static str> {
        self.lack().map(|lack| match lack {
            Lack::Depth => "[deeper frames cut]",
            Lack::Caller => "[caller not found]",
        })
    }
}

/// All nodes of a trace, no two of them equal.
///
/// Frames are few: a node has the number of its own, and takes eight bytes.
#[derive(Clone, Debug, Default)]
pub struct Stacks {
    /// Node `id` is at `id - 1`.
    nodes: Vec<ParentAndFrame>,
    /// What nodes are but for their parents.
    frames: Vec<FrameKey>,
    numbers: HashMap<FrameKey, u32, FoldHash>,
}

/// Which node is one's parent, and the number of one's frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ParentAndFrame {
    pub(crate) parent: u32,
    pub(crate) frame: u32,
}

/// Its pc, module and flags.
type FrameKey = (u64, u32, u8);

impl Stacks {
    /// The number of a node's frame.
    #[inline]
    pub(crate) fn frame(&mut self, node: &Node) -> u32 {
        let key = (node.pc, node.module, node.flags);
        let number = self.frames.len() as u32;
        *self.numbers.entry(key).or_insert_with(|| {
            self.frames.push(key);
            number
        })
    }

    /// Adds a node, whose parent must be one of those before it, and gives its id.
    pub(crate) fn push(&mut self, node: ParentAndFrame) -> Result<u32, Violation> {
        if self.nodes.len() >= MAX_NODES {
            return Err(Violation::TooMany { what: "stack nodes", limit: MAX_NODES as u64 });
        }
        self.nodes.push(node);
        Ok(self.nodes.len() as u32)
    }

    /// The parent and the frame of a node.
    #[inline]
    pub(crate) fn at(&self, id: u32) -> Option<ParentAndFrame> {
        self.nodes.get((id as usize).checked_sub(1)?).copied()
    }

    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is no node.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// All nodes, from id 1.
    pub fn iter(&self) -> impl Iterator<Item = Node> {
        self.nodes.iter().map(|&node| self.whole(node))
    }

    /// The node with this id; `None` for 0, the empty stack.
    pub fn node(&self, id: u32) -> Option<Node> {
        Some(self.whole(self.at(id)?))
    }

    /// The frames of a stack, leaf first.
    pub fn frames(&self, stack: u32) -> impl Iterator<Item = Node> {
        core::iter::successors(self.node(stack), |node| self.node(node.parent))
    }

    /// Tells of each stack, by its node, whether it lacks the frames of a caller that was not found, and of those behind it.
    pub(crate) fn without_caller(&self) -> impl Fn(u32) -> bool + use<> {
        let mut lacks: Vec<bool> = Vec::new();
        if self.frames.iter().any(|&(_, _, flags)| Lack::of(flags) == Some(Lack::Caller)) {
            lacks = vec![false; self.nodes.len() + 1];
            for (id, node) in (1..).zip(self.iter()) {
                lacks[id] = node.lack() == Some(Lack::Caller) || lacks[node.parent as usize];
            }
        }
        move |stack| lacks.get(stack as usize).copied().unwrap_or(false)
    }

    #[cfg(test)]
    pub(crate) fn push_whole(&mut self, node: &Node) -> Result<u32, Violation> {
        let frame = self.frame(node);
        self.push(ParentAndFrame { parent: node.parent, frame })
    }

    fn whole(&self, node: ParentAndFrame) -> Node {
        let (pc, module, flags) = self.frames[node.frame as usize];
        Node { parent: node.parent, module, pc, flags }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(parent: u32, pc: u64) -> Node {
        Node { parent, module: 0, pc, flags: 0 }
    }

    #[test]
    fn a_return_address_is_looked_up_at_its_call() {
        assert_eq!(node(0, 0x10).lookup_pc(), 0xf);
        for exact in [node_flags::SIGNAL, node_flags::EXACT] {
            assert_eq!(Node { flags: exact, ..node(0, 0x10) }.lookup_pc(), 0x10);
        }
        assert_eq!(node(0, 0).lookup_pc(), u64::MAX);
    }
}
