//! Where recorded blocks lie, as far as the quick beginnings of the hooks want to know: of a block that is given back, most often that it
//! was not recorded.
//!
//! Two tables by address. [`COARSE`] has a bit for 16 KiB, which says that a recorded block begins there: it is asked first, and has only
//! 16 cache lines, so that most of it stays near the processor in a program that gives back blocks all over a large heap.
//! [`FILTER`] has a counter for 512 bytes.
//!
//! Both are by address, not by a hash of it: what the program gives back lies close together for a while, and so do the few cache
//! lines that are taken from it. What lies 64 MiB apart shares both.
//!
//! A bit is taken away when the last of its counters has come to 0, by compare and swap of a word whose other half counts how often a bit
//! of it was set. So whoever notes a block meanwhile either raises a counter before it is looked at, or has the swap fail, or sets the bit
//! behind it: no block that is noted is ever without its bit, unless 2^32 others are noted there in that moment.

use core::array;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// How many recorded blocks begin in 512 bytes. One that is full stays so.
pub(crate) static FILTER: [AtomicU8; 1 << 17] = [const { AtomicU8::new(0) }; 1 << 17];

/// Above the lower 32 bits, which say it of 16 KiB each, a count of how often one of them was set.
pub(crate) static COARSE: [AtomicU64; 1 << 7] = [const { AtomicU64::new(0) }; 1 << 7];

/// The logarithms of the bytes that a counter, a bit and a word stand for.
pub(crate) const COUNTER: u32 = 9;
pub(crate) const BIT: u32 = 14;
pub(crate) const WORD: u32 = BIT + 5;
/// What remains of an address that was shifted so, as the place in the table.
pub(crate) const WORDS: usize = COARSE.len() - 1;
pub(crate) const COUNTERS: usize = FILTER.len() - 1;
const SET_ONCE: u64 = 1 << 32;

const _: () = assert!(FILTER.len() << COUNTER == COARSE.len() << WORD);

fn counter(address: usize) -> &'static AtomicU8 {
    &FILTER[address >> COUNTER & COUNTERS]
}

fn word(address: usize) -> (&'static AtomicU64, u64) {
    (&COARSE[address >> WORD & WORDS], 1 << (address >> BIT & 31))
}

/// A block is recorded. Before the program is told of it.
pub(crate) fn note(address: usize) {
    let more = |count: u8| Some(count.saturating_add(1));
    let _ = counter(address).fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
    let (word, bit) = word(address);
    let set = |word: u64| Some((word | bit).wrapping_add(SET_ONCE));
    let _ = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, set);
}

/// One that was [noted](note) is given back.
pub(crate) fn forget(address: usize) {
    let less = |count: u8| (count != u8::MAX).then(|| count.saturating_sub(1));
    let _ = counter(address).fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    let (word, bit) = word(address);
    let counters: [_; 1 << (BIT - COUNTER)] =
        array::from_fn(|at| counter((address >> BIT << BIT) + (at << COUNTER)));
    let cleared = |word: u64| {
        let are_zero = counters.iter().all(|counter| counter.load(Ordering::SeqCst) == 0);
        are_zero.then_some(word & !bit)
    };
    let _ = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, cleared);
}

/// Has the processor fetch what [`note`] changes.
pub(crate) fn expect(address: usize) {
    crate::native::prefetch(counter(address));
    crate::native::prefetch(word(address).0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn says_so(address: usize) -> bool {
        let (word, bit) = word(address);
        word.load(Ordering::Relaxed) & bit != 0 && counter(address).load(Ordering::Relaxed) != 0
    }

    #[test]
    fn a_bit_stands_for_all_blocks_of_its_memory() {
        let blocks = [0x7123_0000_usize, 0x7123_0010, 0x7123_0200, 0x7123_3ff0];
        blocks.iter().for_each(|&block| note(block));
        for (at, &block) in blocks.iter().enumerate() {
            assert!(blocks[at..].iter().all(|&block| says_so(block)));
            forget(block);
        }
        assert!(!says_so(blocks[0]) && word(blocks[0]).0.load(Ordering::Relaxed) & word(blocks[0]).1 == 0);
    }

    #[test]
    fn no_block_is_without_its_bit_while_others_forget_theirs() {
        let times = if cfg!(miri) { 200 } else { 300_000 };
        thread::scope(|scope| {
            for thread in 0..3_usize {
                scope.spawn(move || {
                    for number in 0..times {
                        let block = 0x5456_0000 + thread * 0x40 + number % 2 * 0x800;
                        note(block);
                        assert!(says_so(block), "{block:x}");
                        forget(block);
                    }
                });
            }
        });
        assert!(!says_so(0x5456_0000));
    }
}
