//! Recorded blocks of heaps besides the program's own, where only some are recorded.
//!
//! Blocks of two heaps may begin at the same address: what a pool gives out first lies where the block does that it is in. So an
//! entry is an address with the lower half of its heap's number. A heap's number is new whenever it is emptied ([`heaps`]), by which its
//! blocks are none any more; their entries are used again where there is no other room. Until then one is found only by a heap whose number is
//! 65,536 further, or twice that and so on. What is then said to be given back, nobody knows of, and it counts as nothing.
//!
//! # Safety
//! Groups are never freed. An entry is taken by compare and swap, and given back by whoever has the block.

use crate::heaps;
use crate::native;
use alloc::boxed::Box;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Entries of a group: with its link, a cache line where an address has 64 bits.
const ENTRIES: usize = 7;
const GROUP_BITS: u32 = 10;

#[repr(align(64))]
#[derive(Debug)]
struct Group {
    entries: [AtomicU64; ENTRIES],
    next: AtomicPtr<Group>,
}

impl Group {
    const fn new() -> Self {
        Self { entries: [const { AtomicU64::new(0) }; ENTRIES], next: AtomicPtr::new(ptr::null_mut()) }
    }
}

/// The first group of each chain.
static GROUPS: [Group; 1 << GROUP_BITS] = [const { Group::new() }; 1 << GROUP_BITS];

/// Addresses have 48 bits.
const _: () = assert!(native::ADDRESS_BITS <= 48);

fn entry_of(heap: u32, address: usize) -> u64 {
    (address as u64) << 16 | u64::from(heap as u16)
}

/// The groups that an entry may be in.
fn chain(entry: u64) -> impl Iterator<Item = &'static Group> {
    let hash = (entry >> 16 >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let first = &GROUPS[(hash >> (u64::BITS - GROUP_BITS)) as usize];
    // SAFETY: null, or a group, which stays.
    core::iter::successors(Some(first), |group| unsafe { group.next.load(Ordering::Acquire).as_ref() })
}

/// Puts an entry in the place of what is there. Whether it still was.
fn exchange(place: &AtomicU64, there: u64, entry: u64) -> bool {
    place.compare_exchange(there, entry, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

/// Notes a block of the heap with this number.
pub(crate) fn note(heap: u32, address: usize) {
    let entry = entry_of(heap, address);
    let places = || chain(entry).flat_map(|group| &group.entries);
    // It is there already where it was given back by a way that isn't seen.
    if places().any(|place| place.load(Ordering::Relaxed) == entry)
        || places().any(|place| exchange(place, 0, entry))
    {
        return;
    }
    let live = heaps::numbers();
    let is_stale = |there: u64| !live.contains(there as u16);
    let reused = places().any(|place| {
        let there = place.load(Ordering::Relaxed);
        is_stale(there) && exchange(place, there, entry)
    });
    if !reused {
        let group = Group::new();
        group.entries[0].store(entry, Ordering::Relaxed);
        append(entry, Box::leak(Box::new(group)));
    }
}

/// Makes a group the last one of the chain that an entry belongs to.
fn append(entry: u64, group: &'static mut Group) {
    let added: *mut Group = group;
    for last in chain(entry) {
        let free = ptr::null_mut();
        if last.next.compare_exchange(free, added, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return;
        }
    }
}

/// Takes a block out. Whether it was noted.
pub(crate) fn take(heap: u32, address: usize) -> bool {
    let entry = entry_of(heap, address);
    address != 0 && chain(entry).flat_map(|group| &group.entries).any(|place| exchange_if(place, entry))
}

/// Frees a place if it holds the entry.
fn exchange_if(place: &AtomicU64, entry: u64) -> bool {
    place.load(Ordering::Relaxed) == entry && exchange(place, entry, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use grapnel_trace::HeapKind;
    use std::thread;

    fn pool() -> (u64, u32) {
        let handle = heaps::add(HeapKind::Pool, b"pool").map(u64::from).expect("room");
        (handle, heaps::id(handle))
    }

    #[test]
    fn blocks_of_one_address_are_told_apart_by_their_heaps() {
        let ((one, first), (other, second)) = (pool(), pool());
        let block = 0x7f12_3456_7890;
        note(first, block);
        assert!(!take(second, block));
        note(second, block);
        note(second, block);
        assert_eq!([take(second, block), take(second, block)], [true, false]);
        assert_eq!([take(first, block), take(first, block)], [true, false]);
        assert!(!take(first, 0));
        assert_eq!([one, other].map(heaps::remove), [first, second]);
    }

    #[test]
    fn any_number_has_room_and_is_found() {
        let (handle, heap) = pool();
        let blocks = || (0..if cfg!(miri) { 50 } else { 50_000_usize }).map(|n| 0x5555_0000_0000 + 48 * n);
        blocks().for_each(|block| note(heap, block));
        assert!(blocks().all(|block| take(heap, block)));
        assert!(!blocks().any(|block| take(heap, block)));
        heaps::remove(handle);
    }

    /// Of a heap that is emptied again and again, what is left behind is used again.
    #[test]
    fn what_an_emptied_heap_leaves_is_no_bar() {
        let (handle, _) = pool();
        let entry = entry_of(0, 0x6666_0000_1000);
        for _ in 0..100 {
            for n in 0..5 {
                // All of one chain.
                note(heaps::id(handle), 0x6666_0000_1000);
                note(heaps::id(handle), 0x6666_0000_1000 + n);
            }
            heaps::renumber(handle, |_| {});
        }
        // Other tests have some in it, too.
        assert!(chain(entry).count() < 20, "{}", chain(entry).count());
        heaps::remove(handle);
    }

    #[test]
    fn threads_find_theirs() {
        let (handle, heap) = pool();
        thread::scope(|scope| {
            for thread in 0..4_usize {
                scope.spawn(move || {
                    for round in 0..if cfg!(miri) { 5 } else { 5000 } {
                        let blocks = || (0..20).map(|n| 0x7500_0000_0000 + n * 256 + 64 * thread);
                        blocks().for_each(|block| note(heap, block));
                        assert!(blocks().all(|block| take(heap, block)), "{round}");
                    }
                });
            }
        });
        heaps::remove(handle);
    }
}
