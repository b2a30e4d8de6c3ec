//! Pointers to the inside of a block that compilers and libraries make on purpose, when no other leads to its start.
//!
//! - The first element of an array whose length `new[]` keeps before it: Itanium C++ ABI, 2.7 ("array operator new
//!   cookies"). On 32-bit Arm the size of an element stands before that (C++ ABI for the Arm architecture, "array cookies").
//! - The characters of a string whose length and capacity stand before them, with their count of users: libstdc++'s
//!   `std::string` before C++11, in its old ABI.
//! - The bytes behind a block's own length in its first word, as libraries of C have it.
//! - A base class that isn't the first: both the block's start and the place pointed at hold a pointer to a table of
//!   functions, which lies in a module.

use super::blocks::Block;
use super::scan::Memory;
use super::width::Width;

/// Whether a pointer to this address, in this block and not at its start, is of such a form. `in_module`: whether an address
/// lies in a module.
pub(super) fn is_known(
    memory: &mut impl Memory,
    block: &Block,
    address: u64,
    in_module: impl Fn(u64) -> bool,
) -> bool {
    let width = memory.width();
    let bytes = width.bytes();
    // Length, capacity and count of users.
    let old_string = 3 * bytes;
    let offset = address - block.address;
    if !offset.is_multiple_of(bytes) {
        return false;
    }
    let Some(first) = word(memory, block.address) else { return false };
    if offset == bytes {
        let rest = block.size - bytes;
        let is_cookie = first > 0 && rest.is_multiple_of(first) && rest / first > 0;
        let is_length = first == block.size || first == rest;
        if is_cookie || is_length {
            return true;
        }
    }
    if offset == 2 * bytes && width == Width::Bits32 {
        let count = word(memory, block.address + bytes).filter(|&count| first > 0 && count > 0);
        if count.and_then(|count| first.checked_mul(count)) == Some(block.size - offset) {
            return true;
        }
    }
    if offset == old_string {
        let capacity = word(memory, block.address + bytes);
        // One more byte is the zero at its end.
        if capacity.is_some_and(|capacity| {
            first <= capacity && capacity.checked_add(old_string + 1) == Some(block.size)
        }) {
            return true;
        }
    }
    let is_table = |value: u64| value.is_multiple_of(bytes) && in_module(value);
    is_table(first) && word(memory, address).is_some_and(is_table)
}

fn word(memory: &mut impl Memory, address: u64) -> Option<u64> {
    let mut word = [0];
    (memory.read(address, &mut word) == 1).then_some(word[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leaks::scan::tests::Words;

    #[test]
    fn forms_are_told_from_chance() {
        let known = |size: u64, words: &[u64], offset: u64| {
            let mut memory = Words::new(Width::Bits64, &[(0x1000, words)]);
            let block = Block { address: 0x1000, size, stack: 0 };
            is_known(&mut memory, &block, 0x1000 + offset, |value| (0x8000..0x9000).contains(&value))
        };
        assert!(known(8 + 5 * 24, &[5], 8), "five objects of 24 bytes");
        assert!(!known(8 + 5 * 24, &[7], 8));
        assert!(!known(8 + 5 * 24, &[0], 8));
        assert!(known(8 + 100, &[100, 1], 8), "a length");
        assert!(known(24 + 31, &[20, 30, 1], 24), "an old string");
        assert!(!known(24 + 31, &[31, 30, 1], 24));
        assert!(!known(24 + 99, &[20, 30, 1], 24));
        assert!(known(64, &[0x8010, 1, 0x8020], 16), "two bases");
        assert!(!known(64, &[0x8010, 1, 0x9020], 16));
        assert!(!known(64, &[0x8010, 1, 0x8020], 17));
    }

    #[test]
    fn forms_are_those_of_32_bits_too() {
        let known = |size: u64, words: &[u64], offset: u64| {
            let mut memory = Words::new(Width::Bits32, &[(0x1000, words)]);
            let block = Block { address: 0x1000, size, stack: 0 };
            is_known(&mut memory, &block, 0x1000 + offset, |value| (0x8000..0x9000).contains(&value))
        };
        assert!(known(8 + 5 * 12, &[12, 5], 8), "five objects of 12 bytes on Arm");
        assert!(!known(8 + 5 * 12, &[12, 4], 8) && !known(8, &[0, 5], 8) && !known(16, &[0, 0], 8));
        assert!(known(4 + 5 * 12, &[5], 4), "five objects of 12 bytes elsewhere");
        assert!(known(4 + 100, &[100, 1], 4), "a length");
        assert!(known(12 + 31, &[20, 30, 1], 12), "an old string");
        assert!(!known(12 + 31, &[31, 30, 1], 12));
        assert!(known(64, &[0x8010, 1, 0x8020], 8), "two bases");
        assert!(!known(64, &[0x8010, 1, 0x9020], 8) && !known(64, &[0x8010, 1, 0x8020], 6));
    }
}
