//! The blocks that are live, by their address: open addressing, and no tombstones.
//!
//! The invariant: from the place where the search for an address begins to where it lies, no slot is empty. Who takes an
//! entry out moves those behind it up, as far as their searches begin at the hole or before it.

use alloc::vec::Vec;

/// A live block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Block {
    /// What the program knows it by; 0 in a slot that is empty.
    pub(crate) address: usize,
    /// What the program asked for.
    pub(crate) size: usize,
    /// Where it was allocated, in [`super::stacks`].
    pub(crate) stack: u32,
    /// How far behind the allocator's own block it begins.
    pub(crate) offset: u32,
    /// Backtraces were on.
    pub(crate) traced: bool,
    /// Allocated in a process that was forked from one that is marked.
    pub(crate) in_child: bool,
}

impl Block {
    /// With its address in the other form.
    fn masked(self) -> Self {
        Self { address: self.address ^ MASK, ..self }
    }
}

/// There was no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoMemory;

const FIRST: usize = 256;

/// Addresses in slots are xored with this, so that who looks through memory takes none of them for one.
pub(crate) const MASK: usize = usize::MAX >> 1;

/// The blocks.
#[derive(Debug, Default)]
pub(crate) struct Table {
    slots: Vec<Block>,
    len: usize,
}

/// Bits that tell addresses apart. Blocks are aligned to 16 bytes.
pub(crate) fn hash(address: usize) -> usize {
    let mixed = (address as u64 >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 24) as usize
}

impl Table {
    pub(crate) const fn new() -> Self {
        Self { slots: Vec::new(), len: 0 }
    }

    fn mask(&self) -> usize {
        self.slots.len().wrapping_sub(1)
    }

    /// Where an address lies, or the empty slot where its search ends.
    fn place(&self, address: usize) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let mut at = hash(address) & self.mask();
        while self.slots[at].address != 0 && self.slots[at].address != address {
            at = (at + 1) & self.mask();
        }
        Some(at)
    }

    /// The block at an address.
    pub(crate) fn get(&self, address: usize) -> Option<Block> {
        let address = address ^ MASK;
        let found = self.place(address).map(|at| self.slots[at]).filter(|block| block.address != 0);
        found.map(Block::masked)
    }

    /// Puts a block in, in place of one that was at its address.
    pub(crate) fn insert(&mut self, block: Block) -> Result<(), NoMemory> {
        let block = block.masked();
        if (self.len + 1) * 4 > self.slots.len() * 3 {
            self.grow()?;
        }
        let at = self.place(block.address).ok_or(NoMemory)?;
        self.len += usize::from(self.slots[at].address == 0);
        self.slots[at] = block;
        Ok(())
    }

    fn grow(&mut self) -> Result<(), NoMemory> {
        let len = (self.slots.len() * 2).max(FIRST);
        let mut slots = Vec::new();
        slots.try_reserve_exact(len).map_err(|_| NoMemory)?;
        slots.resize(len, Block::default());
        let old = core::mem::replace(&mut self.slots, slots);
        for block in old.into_iter().filter(|block| block.address != 0) {
            if let Some(at) = self.place(block.address) {
                self.slots[at] = block;
            }
        }
        Ok(())
    }

    /// Takes the block at an address out.
    pub(crate) fn take(&mut self, address: usize) -> Option<Block> {
        let mut hole = self.place(address ^ MASK)?;
        let taken = self.slots[hole];
        if taken.address == 0 {
            return None;
        }
        self.len -= 1;
        let mut at = hole;
        loop {
            at = (at + 1) & self.mask();
            let block = self.slots[at];
            if block.address == 0 {
                break;
            }
            // How far the block is from where its search begins, and from the hole.
            let begins = hash(block.address) & self.mask();
            if at.wrapping_sub(begins) & self.mask() >= at.wrapping_sub(hole) & self.mask() {
                self.slots[hole] = block;
                hole = at;
            }
        }
        self.slots[hole] = Block::default();
        Some(taken.masked())
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// All of them, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Block> {
        self.slots.iter().filter(|block| block.address != 0).map(|block| block.masked())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn a_table_holds_what_a_map_holds() {
        let (mut table, mut map) = (Table::new(), HashMap::new());
        let mut state = 7u32;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state as usize
        };
        for step in 0..if cfg!(miri) { 2_000 } else { 200_000 } {
            // Few addresses, near to each other, so that searches run into one another and over the end.
            let address = 0x5555_0000 + 16 * (random() % 3000);
            if random() % 3 == 0 {
                assert_eq!(table.take(address), map.remove(&address), "{step}");
            } else {
                let block = Block { address, size: step, ..Block::default() };
                table.insert(block).expect("memory");
                map.insert(address, block);
            }
            assert_eq!(table.len(), map.len());
            let other = 0x5555_0000 + 16 * (random() % 3000);
            assert_eq!(table.get(other), map.get(&other).copied());
        }
        let mut left: Vec<Block> = table.iter().collect();
        left.sort_by_key(|block| block.address);
        let mut right: Vec<Block> = map.into_values().collect();
        right.sort_by_key(|block| block.address);
        assert_eq!(left, right);
    }
}
