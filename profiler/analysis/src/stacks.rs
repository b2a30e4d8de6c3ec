//! The stacks of a trace: a prefix tree of frames.

use crate::analyse::Violation;
use grapnel_trace::event::node_flags;

/// More nodes than a recording has (a compiler's has half a million), for a bound on what a hostile
/// trace makes us keep: a gigabyte.
const MAX_NODES: usize = 1 << 25;

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
        self.flags & node_flags::GUESS != 0
    }

    /// Whether this stands for the frames beyond the depth limit.
    pub fn is_truncation(&self) -> bool {
        self.flags & node_flags::TRUNCATED != 0
    }
}

/// All nodes of a trace, no two of them equal.
#[derive(Clone, Debug, Default)]
pub struct Stacks {
    /// Node `id` is at `id - 1`.
    nodes: Vec<Node>,
}

impl Stacks {
    /// Adds a node, whose parent must be one of those before it, and gives its id.
    pub(crate) fn push(&mut self, node: Node) -> Result<u32, Violation> {
        if self.nodes.len() >= MAX_NODES {
            return Err(Violation::TooMany { what: "stack nodes", limit: MAX_NODES as u64 });
        }
        self.nodes.push(node);
        Ok(self.nodes.len() as u32)
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
    pub fn iter(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter()
    }

    /// The node with this id; `None` for 0, the empty stack.
    pub fn node(&self, id: u32) -> Option<&Node> {
        self.nodes.get((id as usize).checked_sub(1)?)
    }

    /// The frames of a stack, leaf first.
    pub fn frames(&self, stack: u32) -> impl Iterator<Item = &Node> {
        core::iter::successors(self.node(stack), |node| self.node(node.parent))
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
