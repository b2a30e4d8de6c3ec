//! A table of blocks by their addresses, made for what a heap does to it: millions of blocks that come and go, most
//! of them near to the last one. What has another number for an address may lie in it too.
//!
//! Open addressing with linear probing in a power of two of slots, at most half of them in use. Word 0 of a slot is
//! the address, or 0 where there is none. Blocks of the same 512 bytes have their homes in the same 16 slots, a
//! different one for each 32 bytes, which is the least that glibc's blocks are apart: neighbours share cache lines,
//! and still seldom collide. Invariant: between a block's home and its slot no slot is free. Removing moves later
//! blocks back to keep it so, and leaves no marks.

/// Slots of a new table, a power of two.
const FIRST_SLOTS: usize = 256;
/// 2^64 divided by the golden ratio: its multiples are spread evenly.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Debug)]
pub(crate) struct Table<const W: usize> {
    slots: Vec<[u64; W]>,
    /// 64 less the logarithm of the number of slots.
    shift: u32,
    len: usize,
    /// The block at address 0, which no slot can tell from a free one. Only a damaged trace has it.
    zero: Option<[u64; W]>,
}

impl<const W: usize> Default for Table<W> {
    fn default() -> Self {
        Self::with_slots(FIRST_SLOTS)
    }
}

impl<const W: usize> Table<W> {
    fn with_slots(slots: usize) -> Self {
        Self { slots: vec![[0; W]; slots], shift: 64 - slots.ilog2(), len: 0, zero: None }
    }

    pub(crate) fn len(&self) -> usize {
        self.len + usize::from(self.zero.is_some())
    }

    /// The blocks in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u64; W]> {
        self.slots.iter().filter(|slot| slot[0] != 0).chain(&self.zero)
    }

    #[inline]
    fn home(&self, address: u64) -> usize {
        ((address >> 9).wrapping_mul(SPREAD) >> self.shift) as usize ^ ((address >> 5) & 15) as usize
    }

    /// The slot where a block would lie if it met no other: to be loaded ahead of its use. Of no meaning otherwise.
    #[inline]
    pub(crate) fn peek(&self, address: u64) -> &[u64; W] {
        &self.slots[self.home(address)]
    }

    /// The block at an address.
    pub(crate) fn get(&self, address: u64) -> Option<&[u64; W]> {
        if address == 0 {
            return self.zero.as_ref();
        }
        let mask = self.slots.len() - 1;
        let mut at = self.home(address);
        while self.slots[at][0] != 0 {
            if self.slots[at][0] == address {
                return Some(&self.slots[at]);
            }
            at = (at + 1) & mask;
        }
        None
    }

    /// Puts in a block, by word 0, and gives back the one that was at the same address.
    #[inline]
    pub(crate) fn insert(&mut self, block: [u64; W]) -> Option<[u64; W]> {
        if block[0] == 0 {
            return self.zero.replace(block);
        }
        if self.len >= self.slots.len() / 2 {
            self.grow();
        }
        let mask = self.slots.len() - 1;
        let mut at = self.home(block[0]);
        loop {
            let slot = &mut self.slots[at];
            if slot[0] == 0 {
                *slot = block;
                self.len += 1;
                return None;
            }
            if slot[0] == block[0] {
                return Some(std::mem::replace(slot, block));
            }
            at = (at + 1) & mask;
        }
    }

    /// Takes out the block at an address.
    #[inline]
    pub(crate) fn remove(&mut self, address: u64) -> Option<[u64; W]> {
        if address == 0 {
            return self.zero.take();
        }
        let mask = self.slots.len() - 1;
        let mut free = self.home(address);
        let block = loop {
            let slot = self.slots[free];
            if slot[0] == address {
                break slot;
            }
            if slot[0] == 0 {
                return None;
            }
            free = (free + 1) & mask;
        };
        self.len -= 1;
        let mut at = free;
        loop {
            at = (at + 1) & mask;
            let slot = self.slots[at];
            if slot[0] == 0 {
                break;
            }
            // One that lies behind its home by as much as it would move back, or more.
            let behind = at.wrapping_sub(self.home(slot[0])) & mask;
            if behind >= at.wrapping_sub(free) & mask {
                self.slots[free] = slot;
                free = at;
            }
        }
        self.slots[free] = [0; W];
        Some(block)
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        // Homes keep their order when the number of slots doubles: this walks through both once, from start to end.
        let old = std::mem::replace(self, Self::with_slots(2 * self.slots.len()));
        self.zero = old.zero;
        for slot in old.slots {
            if slot[0] != 0 {
                self.insert(slot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Every way into a table, against a map that can't be wrong.
    fn compare(addresses: impl Fn(u64) -> u64) {
        let mut table = Table::<2>::default();
        let mut model = BTreeMap::new();
        let mut state = 0x1234_5678_9abc_def1_u64;
        for step in 0..200_000 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let address = addresses(state >> 20);
            // Grows and shrinks by turns.
            let grows = step / 20_000 % 2 == 0;
            if (state >> 8) % 8 < if grows { 5 } else { 2 } {
                let old = table.insert([address, step]);
                assert_eq!(old.map(|block| block[1]), model.insert(address, step));
            } else {
                assert_eq!(table.get(address).map(|block| block[1]), model.get(&address).copied());
                assert_eq!(table.remove(address).map(|block| block[1]), model.remove(&address));
            }
            assert_eq!(table.len(), model.len());
        }
        let found: BTreeMap<u64, u64> = table.iter().map(|&[address, value]| (address, value)).collect();
        assert_eq!(found, model);
    }

    #[test]
    fn agrees_with_an_ordered_map() {
        compare(|n| 0x5555_0000 + n % 3000 * 32);
        compare(|n| n % 600);
        compare(|n| (n % 5000) << 12 | 0x10);
        compare(|n| (n % 700).wrapping_mul(SPREAD));
    }

    #[test]
    fn the_ends_of_the_address_space_and_of_the_table_are_no_different() {
        let mut table = Table::<3>::default();
        // All of these have their homes in the last 16 slots, and run over the end.
        let last = (0..)
            .map(|n| n * 512)
            .filter(|&a| table.home(a) >= FIRST_SLOTS - 16)
            .take(30)
            .collect::<Vec<u64>>();
        for &address in &last {
            assert_eq!(table.insert([address, 1, 2]), None);
        }
        for address in [0, u64::MAX] {
            assert_eq!(table.remove(address), None);
            assert_eq!(table.insert([address, 1, 2]), None);
            assert_eq!(table.insert([address, 3, 4]), Some([address, 1, 2]));
        }
        assert_eq!(table.len(), 32);
        for &address in last.iter().chain(&[0, u64::MAX]) {
            assert!(table.remove(address).is_some());
        }
        assert_eq!((table.len(), table.iter().count()), (0, 0));
    }
}
