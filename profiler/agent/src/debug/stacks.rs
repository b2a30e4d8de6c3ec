//! The stacks of all threads as one prefix tree, from the root to the leaf; nodes stay for the process's life.

use alloc::vec::Vec;

/// The empty stack: none was asked for, or none was found.
pub(crate) const EMPTY: u32 = 0;

#[derive(Clone, Copy, Debug, Default)]
struct Node {
    parent: u32,
    pc: usize,
}

/// The tree. Node `n` lies at `n - 1`.
#[derive(Debug, Default)]
pub(crate) struct Stacks {
    nodes: Vec<Node>,
    /// Numbers of nodes by parent and pc; 0 in a slot that is empty.
    slots: Vec<u32>,
}

/// Any of its bits depends on all of the parent's: in recursion many nodes have the same pc.
fn hash(parent: u32, pc: usize) -> usize {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mixed = (pc as u64 ^ u64::from(parent).rotate_left(40)).wrapping_mul(FACTOR);
    ((mixed ^ mixed >> 32).wrapping_mul(FACTOR) >> 32) as usize
}

impl Stacks {
    pub(crate) const fn new() -> Self {
        Self { nodes: Vec::new(), slots: Vec::new() }
    }

    /// The stack of a frame that was called from a stack. `pc` lies in the call. Where there is no memory for a new
    /// node, the caller's.
    pub(crate) fn add(&mut self, parent: u32, pc: usize) -> u32 {
        if (self.nodes.len() + 1) * 4 > self.slots.len() * 3 && !self.grow() {
            return parent;
        }
        let at = self.place(parent, pc);
        if self.slots[at] == 0 {
            if self.nodes.try_reserve(1).is_err() || self.nodes.len() >= u32::MAX as usize - 1 {
                return parent;
            }
            self.nodes.push(Node { parent, pc });
            self.slots[at] = self.nodes.len() as u32;
        }
        self.slots[at]
    }

    fn place(&self, parent: u32, pc: usize) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = hash(parent, pc) & mask;
        while let Some(node) = self.node(self.slots[at])
            && (node.parent != parent || node.pc != pc)
        {
            at = (at + 1) & mask;
        }
        at
    }

    fn node(&self, number: u32) -> Option<&Node> {
        self.nodes.get((number as usize).checked_sub(1)?)
    }

    fn grow(&mut self) -> bool {
        let len = (self.slots.len() * 2).max(1024);
        let mut slots = Vec::new();
        if slots.try_reserve_exact(len).is_err() {
            return false;
        }
        slots.resize(len, 0);
        self.slots = slots;
        for number in 1..=self.nodes.len() as u32 {
            if let Some(&Node { parent, pc }) = self.node(number) {
                let at = self.place(parent, pc);
                self.slots[at] = number;
            }
        }
        true
    }

    /// The frames of a stack, the leaf first. Frames without a pc stand for those that were cut off.
    pub(crate) fn frames(&self, stack: u32) -> impl Iterator<Item = usize> {
        let mut at = stack;
        let frames = core::iter::from_fn(move || {
            let node = self.node(at)?;
            at = node.parent;
            Some(node.pc)
        });
        frames.filter(|&pc| pc != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_recursion_are_spread_over_the_table() {
        const NODES: u32 = 1 << 16;
        let mask = 2 * NODES as usize - 1;
        let pcs = [0x5555_5555_5189_u64, 0x5555_5555_51c4].map(|pc| pc as usize);
        let places = (0..NODES).map(|parent| hash(parent, pcs[parent as usize % 2]) & mask);
        let taken = places.collect::<std::collections::HashSet<_>>().len();
        // As many as where chance decides: 1 - exp(-1/2) of all.
        assert!(taken as f64 > 0.38 * (mask + 1) as f64, "{taken}");
    }

    #[test]
    fn equal_stacks_have_one_number_and_keep_their_frames() {
        let mut stacks = Stacks::new();
        let mut all = Vec::new();
        for number in 0..5000usize {
            let frames = [number % 3 + 1, number % 50 + 1, number + 1];
            let leaf = frames.iter().fold(EMPTY, |parent, &pc| stacks.add(parent, pc));
            all.push((leaf, frames));
        }
        for (leaf, frames) in all {
            assert_eq!(frames.iter().fold(EMPTY, |parent, &pc| stacks.add(parent, pc)), leaf);
            assert!(stacks.frames(leaf).eq(frames.into_iter().rev()));
        }
        assert_eq!(stacks.frames(EMPTY).next(), None);
    }
}
