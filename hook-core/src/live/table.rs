//! Where a thread goes that meets a trap of ours.
//!
//! The table is the process's, because the signal handler is. An entry stays for good: a thread may have trapped long
//! ago and get to run its handler only now. Entries are reused when the same place is patched again, so the table grows
//! with the number of places and not with the number of patches.
//!
//! Looking up neither locks nor allocates, and may interrupt an update of the same entry: each address in it is a
//! valid way on at all times, because trampolines are never freed.
//!
//! # Safety
//! Entries are leaked and never freed, so a pointer to one that was published is good for ever.

use alloc::boxed::Box;
use core::{
    ptr,
    sync::atomic::{AtomicPtr, AtomicU64, Ordering::*},
};

/// Positions in a patch at which a thread may trap: its start, and each byte that an instruction of the window starts
/// at.
pub(crate) const POSITIONS: usize = 5;

const CHUNK: usize = 64;

/// Where to go on from each position of a patch; 0 where no instruction starts.
pub(crate) type Ways = [u64; POSITIONS];

struct Entry {
    /// 0 while the entry is free.
    site: AtomicU64,
    ways: [AtomicU64; POSITIONS],
}

struct Chunk {
    entries: [Entry; CHUNK],
    next: AtomicPtr<Chunk>,
}

impl Chunk {
    const fn new() -> Self {
        Self {
            entries: [const { Entry { site: AtomicU64::new(0), ways: [const { AtomicU64::new(0) }; POSITIONS] } };
                CHUNK],
            next: AtomicPtr::new(ptr::null_mut()),
        }
    }

    fn next(&self) -> Option<&'static Chunk> {
        // SAFETY: the pointer is null or came from `Box::leak` and is never freed.
        unsafe { self.next.load(Acquire).as_ref() }
    }
}

static FIRST: Chunk = Chunk::new();

fn chunks() -> impl Iterator<Item = &'static Chunk> {
    core::iter::successors(Some(&FIRST), |chunk| chunk.next())
}

/// Enters a place, before anything traps there. Only the holder of the patching lock calls this.
pub(crate) fn enter(site: u64, ways: Ways) {
    let entries = || chunks().flat_map(|chunk| &chunk.entries);
    let found = entries()
        .find(|e| e.site.load(Relaxed) == site)
        .or_else(|| entries().find(|e| e.site.load(Relaxed) == 0));
    let entry = found.unwrap_or_else(|| {
        let chunk: &'static Chunk = Box::leak(Box::new(Chunk::new()));
        if let Some(last) = chunks().last() {
            last.next.store(ptr::from_ref(chunk).cast_mut(), Release);
        }
        &chunk.entries[0]
    });
    for (slot, way) in entry.ways.iter().zip(ways) {
        slot.store(way, Relaxed);
    }
    entry.site.store(site, Release);
}

/// Where a thread goes on that trapped at `pc`. Async-signal-safe.
///
/// Patches are of various lengths, so the places of two may lie close together; and one may have been where another is
/// now. A patch that starts at the address comes before one that had an instruction there.
pub(crate) fn way_on(pc: u64) -> Option<u64> {
    let mut inside = None;
    for entry in chunks().flat_map(|chunk| &chunk.entries) {
        let site = entry.site.load(Acquire);
        if site == 0 {
            break;
        }
        let position = pc.wrapping_sub(site);
        let way = entry.ways.get(position as usize).filter(|_| position < POSITIONS as u64);
        match way.map(|way| way.load(Relaxed)).filter(|&way| way != 0) {
            Some(way) if position == 0 => return Some(way),
            way => inside = inside.or(way),
        }
    }
    inside
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_may_lie_close_together() {
        let base = 0x8010;
        enter(base, [1, 2, 3, 0, 0]);
        enter(base + 2, [4, 0, 5, 0, 0]);
        enter(base + 3, [6, 0, 0, 0, 0]);
        assert_eq!(
            [0, 1, 2, 3, 4, 5].map(|offset| way_on(base + offset)),
            [1, 2, 4, 6, 5, 0].map(|way| Some(way).filter(|&way| way != 0))
        );
    }

    #[test]
    fn places_are_found_and_reused() {
        // Addresses that no code has, so that tests beside this one don't meet them.
        let base = 0x10;
        for i in 0..200 {
            enter(base + 16 * i, [i + 1, 0, i + 2, 0, 0]);
        }
        assert_eq!(way_on(base), Some(1));
        assert_eq!(way_on(base + 16 * 199), Some(200));
        assert_eq!(way_on(base + 16 * 199 + 2), Some(201));
        assert_eq!(way_on(base + 16 * 199 + 1), None);
        assert_eq!(way_on(base + 16 * 199 + 5), None);
        let chunks_before = chunks().count();
        enter(base + 16 * 199, [7; POSITIONS]);
        assert_eq!(way_on(base + 16 * 199), Some(7));
        assert_eq!(chunks().count(), chunks_before);
    }
}
