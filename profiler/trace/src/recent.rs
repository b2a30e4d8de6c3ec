//! Finds blocks of the heap that were given out in this block of the trace.

use alloc::boxed::Box;

/// Bits of an address above the lowest four that say which slot it has.
const SLOT_BITS: u32 = 15;
const SLOTS: usize = 1 << SLOT_BITS;
/// Bits of a slot for the class of a block's size, and for its number.
const CLASS_BITS: u32 = 6;
const NUMBER_BITS: u32 = 18;
const COUNT_LIMIT: u32 = 1 << NUMBER_BITS;
const REST_LIMIT: u64 = 1 << (64 - CLASS_BITS - NUMBER_BITS);

/// The blocks that were given out last, by address: one word each, so that all of them stay near the processor: with half as
/// many slots the drain takes up to 4 of 100 longer, and traces up to 3 more; twice as many bring nothing.
///
/// Blocks that meet in a slot push each other out, and blocks at odd addresses have none. What isn't found costs a few bytes
/// in the trace, no more. What is found is right: with the slot's own number, the rest of the address in the word is the
/// whole of it.
///
/// ```text
/// word = (rest of the address + 1) << 24 | number << 6 | class      so 0 is no block
/// slot = (address >> 4 ^ rest) mod 2^15                       rest = address >> 19
/// ```
#[derive(Debug)]
pub(crate) struct Recent {
    slots: Box<[u64; SLOTS]>,
    /// How many blocks were given out.
    count: u32,
}

impl Default for Recent {
    fn default() -> Self {
        Self { slots: Box::new([0; SLOTS]), count: 0 }
    }
}

impl Recent {
    pub(crate) fn clear(&mut self) {
        self.slots.fill(0);
        self.count = 0;
    }

    /// The slot of an address, and what a word there has of it. What an address has that has no slot fits no word.
    #[inline(always)]
    fn place(address: u64) -> (usize, u64) {
        // What has to be 0 lies above all else.
        let address = address.rotate_right(4);
        let rest = address >> SLOT_BITS;
        ((address ^ rest) as usize % SLOTS, rest + 1)
    }

    /// Notes the next block. `class` is below 64.
    #[inline(always)]
    pub(crate) fn push(&mut self, address: u64, class: u8) {
        self.count += 1;
        let (slot, rest) = Self::place(address);
        // Of 64 bits, some addresses that no process has don't leave enough either.
        if rest < REST_LIMIT && self.count < COUNT_LIMIT {
            let number = u64::from(self.count);
            self.slots[slot] = (((rest << NUMBER_BITS) | number) << CLASS_BITS) | u64::from(class);
        }
    }

    /// How many blocks were given out after the last one at this address, and the class of its size.
    #[inline(always)]
    pub(crate) fn find(&self, address: u64) -> Option<(u32, u8)> {
        let (slot, rest) = Self::place(address);
        let word = self.slots[slot];
        let number = (word >> CLASS_BITS) as u32 % COUNT_LIMIT;
        let found = word >> (CLASS_BITS + NUMBER_BITS) == rest;
        found.then(|| (self.count - number, word as u8 % (1 << CLASS_BITS)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn what_is_found_is_the_last_block_at_that_address() {
        let mut recent = Recent::default();
        let addresses: Vec<u64> =
            (0..5000_u64).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (n % 50)) & !15).collect();
        let mut found = 0;
        for (number, &address) in addresses.iter().enumerate() {
            recent.push(address, number as u8 % 64);
            for (earlier, &address) in addresses[..=number].iter().enumerate().rev().take(50) {
                let Some((since, class)) = recent.find(address) else { continue };
                let last = addresses[..=number].iter().rposition(|&other| other == address);
                assert_eq!(Some(number - since as usize), last);
                assert_eq!(class, last.map_or(0, |last| last as u8 % 64));
                found += usize::from(last == Some(earlier));
            }
        }
        assert!(found > 1000, "{found}");
        recent.clear();
        assert!(addresses.iter().all(|&address| recent.find(address).is_none()));
    }
}
