//! Where a thread goes that meets a trap of ours.
//!
//! The table is the process's, because the signal handler is. An entry stays when its patch is gone: a thread may have
//! trapped long ago and get to run its handler only now. It goes when it is proved that no thread does, with the
//! trampoline that it leads to. Entries are reused when the same place is patched again, so the table grows with the number of
//! places and not with the number of patches.
//!
//! Looking up neither locks nor allocates, and may interrupt an update of the same entry: each address in it is a
//! valid way on at all times.
//!
//! # Safety
//! Tables are leaked and never freed, so a pointer to one that was published is good for ever. Each is twice as large as
//! the one before, so those that were outgrown take no more than the last.

use alloc::boxed::Box;
use core::ptr;

use super::{SMALLEST, TABLE, TAKEN};
use crate::atomic::{AtomicU64, Ordering::*};

/// Positions in a patch at which a thread may trap: its start, and each byte that an instruction of the window starts
/// at. The longest patch is a redirect with all that may lead it.
pub(crate) const POSITIONS: usize = 8;

/// Where to go on from each position of a patch; 0 where no instruction starts.
pub(crate) type Ways = [u64; POSITIONS];

/// Ways on from the first positions.
#[cfg(test)]
pub(crate) fn ways(first: &[u64]) -> Ways {
    core::array::from_fn(|position| first.get(position).copied().unwrap_or(0))
}

#[derive(Default)]
pub(super) struct Entry {
    /// 0 while the entry is free.
    site: AtomicU64,
    ways: [AtomicU64; POSITIONS],
    /// How often a patch was put in here or taken out. If odd, it is out: who traps here then, and finds a trap still there, has
    /// met another's.
    turns: AtomicU64,
}

/// Open addressing by the site.
pub(super) struct Table(Box<[Entry]>);

impl Table {
    fn with_room(entries: usize) -> Self {
        Self((0..entries.next_power_of_two().max(SMALLEST)).map(|_| Entry::default()).collect())
    }

    fn current() -> Option<&'static Self> {
        // SAFETY: the pointer is null or came from `Box::leak` and is never freed.
        unsafe { TABLE.load(Acquire).as_ref() }
    }

    /// The entry of a site, or the free one where it would be. There is always one: the table is never full.
    fn place(&self, site: u64) -> Option<&Entry> {
        let mask = self.0.len() - 1;
        let hash = (site.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
        let mut entries = (0..self.0.len()).filter_map(|i| self.0.get(hash.wrapping_add(i) & mask));
        entries.find(|entry| matches!(entry.site.load(Acquire), found if found == site || found == 0))
    }

    fn find(&self, site: u64) -> Option<&Entry> {
        self.place(site).filter(|entry| site != 0 && entry.site.load(Relaxed) == site)
    }
}

fn is_out(turns: u64) -> bool {
    turns % 2 == 1
}

impl Entry {
    fn fill(&self, site: u64, ways: Ways) {
        for (slot, way) in self.ways.iter().zip(ways) {
            slot.store(way, Relaxed);
        }
        self.turn(false);
        self.site.store(site, Release);
    }

    /// Notes whether the patch is out.
    fn turn(&self, out: bool) {
        let turns = self.turns.load(Relaxed);
        if is_out(turns) != out {
            self.turns.store(turns + 1, Release);
        }
    }

    /// The patch is out, and there is a trap all the same. Not if it came back meanwhile: then the trap may be its own.
    fn is_another_s(&self, is_trap: impl Fn() -> bool) -> bool {
        let turns = self.turns.load(Acquire);
        is_out(turns) && is_trap() && self.turns.load(Acquire) == turns
    }
}

/// Sees to it that so many more places can be entered without an allocation.
pub(crate) fn make_room(more: usize) {
    let taken = TAKEN.load(Relaxed);
    let old = Table::current();
    // At most half full, so that searches stay short.
    if old.is_some_and(|table| (taken + more) * 2 <= table.0.len()) {
        return;
    }
    let table: &'static Table = Box::leak(Box::new(Table::with_room((taken + more) * 2)));
    for entry in old.iter().flat_map(|old| &old.0) {
        let site = entry.site.load(Relaxed);
        if let Some(place) = table.place(site).filter(|_| site != 0) {
            place.fill(site, core::array::from_fn(|i| entry.ways.get(i).map_or(0, |way| way.load(Relaxed))));
            place.turns.store(entry.turns.load(Relaxed), Relaxed);
        }
    }
    TABLE.store(ptr::from_ref(table).cast_mut(), Release);
}

/// Enters a place, before anything traps there. Only the holder of the patching right calls this.
pub(crate) fn enter(site: u64, ways: Ways) {
    make_room(1);
    let Some(entry) = Table::current().and_then(|table| table.place(site)) else { return };
    if entry.site.load(Relaxed) == 0 {
        TAKEN.fetch_add(1, Relaxed);
    }
    entry.fill(site, ways);
}

/// Takes the ways from the places in memory that was unmapped. No thread can be in such a place, and none has trapped
/// there and not run its handler: the object could not have been unloaded while its code ran.
pub(super) fn forget(range: &core::ops::Range<u64>) {
    let entries = Table::current().into_iter().flat_map(|table| &table.0);
    for entry in entries.filter(|entry| range.contains(&entry.site.load(Relaxed))) {
        entry.ways.iter().for_each(|way| way.store(0, Relaxed));
    }
}

/// Notes whether the patch at a place is out. Threads that have trapped there may yet look it up.
pub(crate) fn leave(site: u64, left: bool) {
    if let Some(entry) = Table::current().and_then(|table| table.find(site)) {
        entry.turn(left);
    }
}

/// Takes the ways from a place that lead into this code: no thread has trapped there and is yet to be sent to it, and none
/// will. Another owner's ways stay. Only the holder of the patching right calls this.
pub(super) fn forget_ways_into(site: u64, into: &core::ops::Range<u64>) {
    if let Some(entry) = Table::current().and_then(|table| table.find(site)) {
        let own = entry.ways.iter().filter(|way| into.contains(&way.load(Relaxed)));
        own.for_each(|way| way.store(0, Relaxed));
    }
}

/// Takes these ways from a place whose memory is gone. Others that were entered there since stay.
pub(crate) fn forget_ways(site: u64, ways: &Ways) {
    if let Some(entry) = Table::current().and_then(|table| table.find(site)) {
        for (slot, &way) in entry.ways.iter().zip(ways) {
            // If it is another one, nothing needs to be done.
            let _ = slot.compare_exchange(way, 0, Relaxed, Relaxed);
        }
    }
}

/// Where a thread goes on that trapped at `pc`. Async-signal-safe.
///
/// Patches are of various lengths, so the places of two may lie close together; and one may have been where another is
/// now. A patch that starts at the address comes before one that had an instruction there, and a near one before one
/// further away. Where the patch was taken out, `is_trap` is asked whether there is another trap now.
pub(crate) fn way_on(pc: u64, is_trap: impl Fn() -> bool) -> Option<u64> {
    loop {
        let table = Table::current()?;
        let way = (0..POSITIONS).find_map(|position| {
            let entry = table.find(pc.wrapping_sub(position as u64))?;
            let way = entry.ways.get(position)?.load(Relaxed);
            (way != 0 && !entry.is_another_s(&is_trap)).then_some(way)
        });
        // An outgrown table isn't told of what is patched now.
        if way.is_some() || ptr::eq(table, TABLE.load(Acquire)) {
            return way;
        }
    }
}
