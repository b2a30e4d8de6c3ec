//! Memory for code near the code that jumps to it.
//!
//! Invariant: no mapping of the arena is writable and executable at once, at any time. A region is made in one of the
//! ways of [`CodeWay`], which are tried in that order.
//!
//! Words that code reads and that change while it runs lie in pages of their own, which are writable and never
//! executable; a child made by fork has a copy of them.
//!
//! A slot is given back only by who has proved that no thread can reach it (`reclaim`). What was never given back stays: an arena
//! that goes away leaves its executable views behind, and only the writable ones go.
//!
//! After fork the child's regions are shared with the parent's where they are views of a file. So a region serves only
//! the process that made it; its writable view isn't even mapped in the child. And nothing in such a region is ever
//! overwritten: the child may run what its parent has given back. It is unmapped as a whole.
//!
//! # Safety
//! Slots are written through raw pointers. A slot's bytes belong to its holder alone, and [`Arena::write`] looks up the
//! region of a slot before it writes.

mod pending;
mod region;
#[cfg(test)]
mod tests;
mod words;

use alloc::{collections::BTreeMap, vec::Vec};
use core::{ops::Range, sync::atomic::AtomicU64};

use grapnel_relocator::CodeAddr;

use crate::{
    Error, Hook, Refusal, live,
    memory::{maps::Maps, place::Atlas, view::MemoryView},
    native::{self, Pattern},
    seen::{Audience, Notices, SeenError, piece::Piece},
    sys::{self, Errno, PAGE},
};
use pending::Pending;
pub use region::CodeWay;
use region::Region;
use words::Words;

/// The size of a region that isn't asked to be larger.
const REGION: usize = 64 << 10;
/// Slots begin at multiples of this, as functions do.
const ALIGN: usize = 16;
/// What unused bytes hold, so that a stray jump traps at once.
const FILL: &[u8] = native::FILL;

/// Memory for code.
#[derive(Debug)]
pub struct Arena {
    regions: Vec<Region>,
    /// Where each island goes and where it is, and how many hooks share it.
    islands: BTreeMap<(u64, u64), usize>,
    words: Words,
    ways: Vec<CodeWay>,
    given: usize,
    /// Something was given back, or written where cores don't see that by themselves, and nobody has synchronised since.
    stale: bool,
    /// The process, as long as slots are taken and nothing was sealed.
    process: Option<i32>,
    /// The mappings, for so long.
    atlas: Atlas,
    /// The region that had room last.
    roomy: usize,
    pending: Pending,
    notices: Notices,
    /// Hooks of transactions that never went in, whose originals were known.
    pub(crate) left: Vec<Hook>,
}

/// A piece of code memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CodeSlot {
    /// Where the code runs.
    pub(crate) at: usize,
    pub(crate) len: usize,
}

/// Why what was written can't be come to.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Unfinished {
    NotSealed(Errno),
    NotSynchronised(Errno),
}

impl Unfinished {
    /// For one of the functions that it was written for.
    pub(crate) fn of(self, target: CodeAddr) -> Error {
        match self {
            Self::NotSealed(errno) => Error::NotSealed { target, errno },
            Self::NotSynchronised(errno) => Error::NotLive { site: target, refusal: Refusal::Kernel(errno) },
        }
    }
}

impl Default for Arena {
    fn default() -> Self {
        Self::with_ways(&CodeWay::ALL)
    }
}

impl Arena {
    /// An arena with no memory yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// An arena that doesn't try a file in memory, nor `/proc/self/mem`.
    pub fn with_protection_only() -> Self {
        Self::with_ways(&[CodeWay::Protect])
    }

    /// An arena that tries `/proc/self/mem` first, so that what is given back can be used again: a child made by fork has a
    /// copy of its memory.
    pub(crate) fn for_reuse() -> Self {
        Self::with_ways(&[CodeWay::ProcMem, CodeWay::TwoViews, CodeWay::Protect])
    }

    /// An arena that tries only these ways, in this order.
    pub fn with_ways(ways: &[CodeWay]) -> Self {
        Self {
            regions: Vec::new(),
            islands: BTreeMap::new(),
            words: Words::default(),
            ways: ways.to_vec(),
            given: 0,
            stale: false,
            process: None,
            atlas: Atlas::default(),
            roomy: 0,
            pending: Pending::default(),
            notices: Notices::default(),
            left: Vec::new(),
        }
    }

    /// Tells others of the code that is made from now on: see [`seen`](crate::seen).
    ///
    /// # Errors
    /// If somebody can't be told; then nobody is.
    ///
    /// # Safety
    /// No object is loaded or unloaded meanwhile. Those with unwinders stay loaded, if these are to be told.
    pub unsafe fn announce_to(&mut self, audience: Audience) -> Result<(), SeenError> {
        // SAFETY: the caller's promise.
        unsafe { self.notices.begin(audience) }
    }

    /// Whether others are told of what is made, and so each piece of code serves one function for good.
    pub(crate) fn is_announced(&self) -> bool {
        self.notices.are_given()
    }

    /// Notes a piece of code that was written, for who is to be told when it is sealed.
    pub(crate) fn note(&mut self, piece: impl FnOnce() -> Piece) {
        self.notices.note(piece);
    }

    /// The executable regions and how each was made.
    pub fn regions(&self) -> impl Iterator<Item = (Range<usize>, CodeWay)> + '_ {
        self.regions.iter().map(|r| (r.code.clone(), r.way))
    }

    /// Whether an address is one of its code.
    pub(crate) fn holds(&self, at: u64) -> bool {
        self.regions.iter().any(|region| region.code.contains(&(at as usize)))
    }

    /// How many bytes of code and words are in use.
    pub fn used(&self) -> usize {
        self.given + self.words.used()
    }

    /// Takes a slot that begins in `reach`, in a new region as near to `near` as may be.
    pub(crate) fn allocate(
        &mut self,
        near: usize,
        len: usize,
        reach: &Range<usize>,
        maps: Option<&Maps>,
    ) -> Result<CodeSlot, Errno> {
        let len = len.max(1).next_multiple_of(ALIGN);
        let pid = self.process();
        let Self { regions, ways, atlas, roomy, .. } = self;
        // The one that had room before comes first, so that the full ones aren't searched each time.
        let first = regions.get_mut(*roomy).filter(|r| r.serves(pid)).and_then(|r| r.take(len, reach));
        let slot = first.or_else(|| {
            let mut serving = regions.iter_mut().enumerate().filter(|(_, r)| r.serves(pid));
            let (index, slot) = serving.find_map(|(index, r)| Some((index, r.take(len, reach)?)))?;
            *roomy = index;
            Some(slot)
        });
        let slot = match slot {
            Some(slot) => slot,
            None => {
                let size = len.max(REGION).next_multiple_of(PAGE);
                atlas.begin(maps);
                let mut region = Region::new(ways, near, size, reach, atlas)?;
                let slot = region.take(len, reach).ok_or(sys::ENOMEM)?;
                *roomy = regions.len();
                regions.push(region);
                slot
            }
        };
        self.given += slot.len;
        Ok(slot)
    }

    /// Asked for once for all slots that are taken together.
    fn process(&mut self) -> i32 {
        *self.process.get_or_insert_with(sys::pid)
    }

    /// An island that was made before, at a place that a pattern has. Whoever takes it shares it.
    pub(crate) fn share_island(&mut self, pattern: &Pattern, to: u64) -> Option<u64> {
        let mut from = 0;
        loop {
            let (&(_, at), _) = self.islands.range((to, from)..=(to, u64::MAX)).next()?;
            from = pattern.next_from(at)?;
            if from == at {
                *self.islands.entry((to, at)).or_default() += 1;
                return Some(at);
            }
        }
    }

    /// Notes an island that was written.
    pub(crate) fn add_island(&mut self, at: u64, to: u64) {
        self.islands.insert((to, at), 1);
    }

    /// One hook less shares an island. Its slot is given back with the last.
    ///
    /// # Safety
    /// As [`Self::give_back`].
    pub(crate) unsafe fn leave_island(&mut self, to: u64, slot: &CodeSlot, memory: &MemoryView) {
        let key = (to, slot.at as u64);
        match self.islands.get_mut(&key) {
            Some(users) if *users > 1 => *users -= 1,
            Some(_) => {
                self.islands.remove(&key);
                // SAFETY: the caller's promise; it was the last.
                unsafe { self.give_back(slot, memory) };
            }
            None => {}
        }
    }

    /// Takes a slot at one of a pattern's places: in a region that there is, else in a new one.
    pub(crate) fn allocate_matching(
        &mut self,
        pattern: &Pattern,
        len: usize,
        maps: Option<&Maps>,
    ) -> Result<CodeSlot, Errno> {
        let pid = self.process();
        // The last has the most room.
        let mut serving = self.regions.iter_mut().rev().filter(|r| r.serves(pid));
        let slot = match serving.find_map(|region| region.take_matching(pattern, len)) {
            Some(slot) => slot,
            None => {
                self.atlas.begin(maps);
                let (slot, region) = self.region_matching(pattern, len).or_else(|errno| {
                    // The list may be older than others' mappings.
                    match self.atlas.refresh_once()? {
                        true => self.region_matching(pattern, len),
                        false => Err(errno),
                    }
                })?;
                self.regions.push(region);
                slot
            }
        };
        self.given += slot.len;
        Ok(slot)
    }

    fn region_matching(&mut self, pattern: &Pattern, len: usize) -> Result<(CodeSlot, Region), Errno> {
        for leave_room in [true, false] {
            let mut found = None;
            let maps = self.atlas.list().ok_or(sys::ENOMEM)?;
            maps.for_each_gap(leave_room, |gap| {
                let lowest = pattern.next_from(gap.start as u64)? as usize;
                let pages = lowest & !(PAGE - 1)..lowest.checked_add(len)?.checked_next_multiple_of(PAGE)?;
                // A region of the usual size has room for the islands of other sites.
                let wide = pages.start..pages.start + REGION;
                let fits = |r: &Range<usize>| gap.start <= r.start && r.end <= gap.end;
                found = found.take().or_else(|| [wide, pages].into_iter().find(fits));
                Some(())
            });
            let Some(range) = found else { continue };
            let mut region = Region::new(&self.ways, range.start, range.len(), &range, &mut self.atlas)?;
            let slot = region.take_matching(pattern, len).ok_or(sys::ENOMEM)?;
            return Ok((slot, region));
        }
        Err(sys::ENOMEM)
    }

    /// Writes code into a slot and fills the rest of it. It is there when it is [sealed](Self::seal). `false` if the slot
    /// isn't one that can be written.
    pub(crate) fn write(&mut self, slot: &CodeSlot, code: &[u8], memory: &MemoryView) -> bool {
        let pid = self.process();
        let region = self.regions.iter().find(|r| r.code.contains(&slot.at));
        let Some(region) = region.filter(|r| r.serves(pid) && code.len() <= slot.len) else {
            return false;
        };
        self.stale |= !native::SEES_NEW_CODE;
        let byte = |i: usize| code.get(i).copied().unwrap_or(FILL[i % FILL.len()]);
        let Some(view) = region.view else {
            // SAFETY: the slot belongs to this arena, and nobody runs it before it is written.
            unsafe { self.pending.add(slot.at, (0..slot.len).map(byte), memory) };
            return true;
        };
        let start = view + (slot.at - region.code.start);
        for i in 0..slot.len {
            // SAFETY: the slot lies in a region of this arena whose writable view is mapped (checked above). Nobody
            // else writes the slot, and no reference to its bytes exists.
            unsafe { ((start + i) as *mut u8).write_volatile(byte(i)) };
        }
        native::flush(slot.at..slot.at + slot.len);
        true
    }

    /// Gives a slot back. Where its region can be written and isn't shared with children it is filled with traps, and used
    /// again. One that others were told of is kept: to them it is what it was.
    ///
    /// # Safety
    /// No thread runs the slot's code or can come to it, and nobody gives it back twice.
    pub(crate) unsafe fn give_back(&mut self, slot: &CodeSlot, memory: &MemoryView) {
        if self.notices.are_about(slot) {
            return;
        }
        let Some(index) = self.regions.iter().position(|r| r.code.contains(&slot.at)) else { return };
        let shared = self.regions.get(index).is_some_and(Region::is_shared);
        if !shared {
            self.process = None;
            self.write(slot, &[], memory);
            // What isn't written stays as it is, which nobody runs.
            let _ = self.pending.flush(memory);
        }
        if let Some(region) = self.regions.get_mut(index) {
            if shared {
                region.idle += slot.len;
                return;
            }
            region.put_back(slot);
            self.given -= slot.len;
            self.stale = true;
        }
    }

    /// Gives a slot back to which nothing ever led, so that no child runs it either: it is used again in any region that is
    /// still written.
    ///
    /// # Safety
    /// It is so, and nobody gives the slot back twice.
    pub(crate) unsafe fn discard(&mut self, slot: &CodeSlot, memory: &MemoryView) {
        if self.notices.are_about(slot) {
            return;
        }
        self.write(slot, &[], memory);
        if let Some(region) = self.regions.iter_mut().find(|r| r.code.contains(&slot.at)) {
            region.put_back(slot);
            self.given -= slot.len;
        }
    }

    /// Unmaps regions in which nothing is in use. One is kept, if it can still be written everywhere.
    pub(crate) fn trim(&mut self) {
        let pid = sys::pid();
        self.atlas = Atlas::default();
        let mut spare = false;
        let Self { regions, given, stale, pending, .. } = self;
        regions.retain(|region| {
            if !region.is_empty() || region.pid != pid {
                return true;
            }
            if region.serves(pid) && region.idle == 0 && !core::mem::replace(&mut spare, true) {
                return true;
            }
            pending.forget(&region.code);
            // SAFETY: the region is this process's, and whoever had slots in it gave them back.
            unsafe { region.unmap() };
            *given -= region.idle;
            *stale = true;
            false
        });
    }

    /// Takes a word that code at `code` can name by its distance.
    pub(crate) fn word(&mut self, code: &CodeSlot, maps: Option<&Maps>) -> Result<&'static AtomicU64, Errno> {
        self.atlas.begin(maps);
        self.words.take(code, &mut self.atlas)
    }

    /// Gives a word back.
    ///
    /// # Safety
    /// No code that names it is run any more, and nobody uses the reference.
    pub(crate) unsafe fn give_word_back(&mut self, word: &'static AtomicU64) {
        self.words.put_back(word);
    }

    /// Seals, and sees to it that no core that runs other threads (`live`) has fetched what was in memory before.
    pub(crate) fn finish(&mut self, memory: &MemoryView, live: bool) -> Result<(), Unfinished> {
        self.seal(memory).map_err(Unfinished::NotSealed)?;
        if self.stale {
            live::drop_old_code(live).map_err(Unfinished::NotSynchronised)?;
            self.stale = false;
        }
        Ok(())
    }

    /// Makes everything that was written executable, and tells of it who is to be told. Afterwards every slot can be run.
    pub(crate) fn seal(&mut self, memory: &MemoryView) -> Result<(), Errno> {
        (self.process, self.atlas) = (None, Atlas::default());
        self.pending.flush(memory)?;
        self.regions.iter_mut().try_for_each(Region::seal)?;
        self.notices.give();
        Ok(())
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let pid = sys::pid();
        for region in self.regions.iter().filter(|region| region.pid == pid) {
            // SAFETY: the writable view is the arena's own, and goes with it. In a child made by fork it was never
            // mapped, and something else may be at its address.
            unsafe { region.unmap_view() };
        }
    }
}
