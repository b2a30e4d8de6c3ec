//! Recorded blocks, where few are: as exact as the shadow ([`crate::shadow`]), and what it takes to find one is a single cache line.
//!
//! A program that needs the processor's caches for itself has pushed out all that is here by the next record. A shadow then is read from
//! memory step by step: its upper table, the cell of the mebibyte, the cell's table, the block's group there. Here a hash leads to the group.
//!
//! An entry is an address, and 0 is free. It is taken by compare and swap, and given back by whoever has the block, so no two threads
//! meet in one of the same address. A group that is full has no room for more: what comes then is the shadow's.

use crate::native;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Entries that an address may be in: a cache line of them where an address has 64 bits.
const GROUP: usize = 8;
const GROUP_BITS: u32 = 9;

#[repr(align(64))]
#[derive(Debug)]
struct Group([AtomicUsize; GROUP]);

static GROUPS: [Group; 1 << GROUP_BITS] =
    [const { Group([const { AtomicUsize::new(0) }; GROUP]) }; 1 << GROUP_BITS];

/// By the address without its lowest bits, in which blocks don't differ.
fn group(address: usize) -> &'static Group {
    let hash = (address as u64 >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    &GROUPS[(hash >> (u64::BITS - GROUP_BITS)) as usize]
}

/// Has the processor fetch what [`note`] changes.
pub(crate) fn expect(address: usize) {
    native::prefetch(group(address));
}

/// Notes a block. Whether there was room.
pub(crate) fn note(address: usize) -> bool {
    let Group(entries) = group(address);
    let take = |entry: &AtomicUsize| {
        entry.compare_exchange(0, address, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    };
    // It is there already where it was given back by a way that isn't seen.
    entries.iter().any(|entry| entry.load(Ordering::Relaxed) == address) || entries.iter().any(take)
}

/// Takes a block out. Whether it was noted; none is at 0, which stands for a free entry.
pub(crate) fn take(address: usize) -> bool {
    if address == 0 {
        return false;
    }
    let Group(entries) = group(address);
    let found = entries.iter().find(|entry| entry.load(Ordering::Relaxed) == address);
    found.inspect(|entry| entry.store(0, Ordering::Relaxed)).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::thread;

    /// Addresses of one group.
    fn neighbours(of: usize) -> impl Iterator<Item = usize> {
        (of..).step_by(16).filter(move |&address| core::ptr::eq(group(address), group(of)))
    }

    #[test]
    fn a_group_has_room_for_so_many_and_finds_each_once() {
        let blocks: Vec<usize> = neighbours(0x7468_1234_0000).take(GROUP + 1).collect();
        let (last, others) = blocks.split_last().expect("some");
        assert!(others.iter().all(|&block| note(block)));
        assert!(!note(*last) && !take(*last));
        assert!(note(others[2]), "again");
        assert_eq!([take(others[2]), take(others[2])], [true, false]);
        assert!(note(*last));
        assert!(others.iter().all(|&block| take(block) == (block != others[2])));
        assert_eq!([take(*last), take(*last)], [true, false]);
        assert!(others.iter().all(|&block| !take(block)));
    }

    #[test]
    fn nothing_is_no_block() {
        assert!(!take(0));
        let beside = neighbours(0).nth(1).expect("one");
        assert!(note(beside) && !take(0) && take(beside) && !take(0));
    }

    #[test]
    fn blocks_of_much_the_same_place_are_in_many_groups() {
        for apart in [16, 48, 64, 4096, 1 << 20] {
            let mut counts = HashMap::<usize, usize>::new();
            for n in 0..512 {
                *counts
                    .entry(core::ptr::from_ref(group(0x5555_0000_0010 + n * apart)).addr())
                    .or_default() += 1;
            }
            let most = counts.values().max().expect("some");
            assert!(*most <= GROUP, "{most} of 512, {apart} apart");
        }
    }

    #[test]
    fn threads_find_theirs_in_groups_that_they_share() {
        thread::scope(|scope| {
            for thread in 0..4_usize {
                scope.spawn(move || {
                    let own: Vec<usize> = neighbours(0x7500_0000_0000).skip(2 * thread).take(2).collect();
                    for _ in 0..if cfg!(miri) { 20 } else { 100_000 } {
                        assert!(own.iter().all(|&block| note(block)));
                        assert!(own.iter().all(|&block| take(block)));
                        assert!(own.iter().all(|&block| !take(block)));
                    }
                });
            }
        });
    }
}
