//! Where recorded blocks lie, as far as the quick beginnings of the hooks want to know: of a block that is given back, most often that it
//! was not recorded.
//!
//! Two tables of counters by address. [`COARSE`] has one for 16 KiB, which is asked first: of a large program's heap it is a few
//! pages, and what it takes to ask is five instructions of a gate. [`FILTER`] has one for 32 bytes, so nearly one for each block: programs
//! give the same few blocks back again and again, and those beside one that was recorded and stays would be looked up exactly each time.
//!
//! Both are by address, not by a hash of it: what the program gives back lies close together for a while, and so do the few cache
//! lines that are taken from it. What lies 4 GiB apart shares the former, what lies 4 MiB apart the latter.

use core::sync::atomic::{AtomicU8, Ordering};

/// How many recorded blocks begin in 32 bytes. A counter that is full stays so.
pub(crate) static FILTER: [AtomicU8; 1 << 17] = [const { AtomicU8::new(0) }; 1 << 17];

/// The same of 16 KiB. What is left of the lower half of an address, when it was shifted, is the place in this table: a gate need not
/// take away what is above.
pub(crate) static COARSE: [AtomicU8; 1 << 18] = [const { AtomicU8::new(0) }; 1 << 18];

/// The logarithms of the bytes that a counter of each stands for.
pub(crate) const FINE_SHIFT: u32 = 5;
pub(crate) const COARSE_SHIFT: u32 = 14;
const _: () = assert!((COARSE.len() as u64) << COARSE_SHIFT == 1 << 32);

/// What remains of an address that was shifted by [`FINE_SHIFT`], as the place in the table.
pub(crate) const COUNTERS: usize = FILTER.len() - 1;

fn counters(address: usize) -> [&'static AtomicU8; 2] {
    [&FILTER[address >> FINE_SHIFT & COUNTERS], &COARSE[address as u32 as usize >> COARSE_SHIFT]]
}

/// A block is recorded. Before the program is told of it.
pub(crate) fn note(address: usize) {
    let more = |count: u8| Some(count.saturating_add(1));
    for counter in counters(address) {
        let _ = counter.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
    }
}

/// One that was [noted](note) is given back.
pub(crate) fn forget(address: usize) {
    let less = |count: u8| (count != u8::MAX).then(|| count.saturating_sub(1));
    for counter in counters(address) {
        let _ = counter.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }
}

/// Has the processor fetch what [`note`] changes.
pub(crate) fn expect(address: usize) {
    counters(address).into_iter().for_each(crate::native::prefetch);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn counts(address: usize) -> [u8; 2] {
        counters(address).map(|counter| counter.load(Ordering::Relaxed))
    }

    #[test]
    fn counters_stand_for_all_blocks_of_their_memory() {
        let blocks = [0x7123_0000_usize, 0x7123_0010, 0x7123_0200, 0x7123_3ff0];
        blocks.iter().for_each(|&block| note(block));
        assert_eq!(blocks.map(counts), [[2, 4], [2, 4], [1, 4], [1, 4]]);
        assert_eq!([0x7122_fff0, 0x7123_4000].map(counts), [[0; 2]; 2]);
        assert_eq!(counts(0x7123_0020), [0, 4]);
        for (at, &block) in blocks.iter().enumerate() {
            assert!(blocks[at..].iter().all(|&block| counts(block).iter().all(|&count| count != 0)));
            forget(block);
        }
        assert_eq!(blocks.map(counts), [[0; 2]; 4]);
    }

    #[test]
    fn what_was_counted_beyond_its_range_stays_noted() {
        let block = 0x7234_0000_usize;
        (0..300).for_each(|_| note(block));
        (0..300).for_each(|_| forget(block));
        assert_eq!(counts(block), [u8::MAX; 2]);
    }

    #[test]
    fn no_block_is_without_its_counters_while_others_forget_theirs() {
        let times = if cfg!(miri) { 200 } else { 300_000 };
        thread::scope(|scope| {
            for thread in 0..3_usize {
                scope.spawn(move || {
                    for number in 0..times {
                        let block = 0x5456_0000 + thread * 0x10 + number % 2 * 0x800;
                        note(block);
                        assert!(counts(block).iter().all(|&count| count != 0), "{block:x}");
                        forget(block);
                    }
                });
            }
        });
        assert_eq!(counts(0x5456_0000), [0; 2]);
    }
}
