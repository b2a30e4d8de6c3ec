//! Memory for code near the code that jumps to it.
//!
//! Invariant: no mapping of the arena is writable and executable at once, at any time. A region is made in one of two
//! ways, tried in this order:
//!
//! 1. Two views of one unlinked file in memory: one that is executable, one that is writable. The descriptor is closed
//!    before the region is used. Slots can be added while code in the region runs.
//! 2. Anonymous memory that is writable first and executable after [`Arena::seal`]; nothing is added after that.
//!
//! Words that code reads and that change while it runs lie in pages of their own, which are writable and never
//! executable; a child made by fork has a copy of them.
//!
//! Regions are never unmapped: a trampoline may be on some thread's stack. An arena that goes away leaves its
//! executable views behind, and only the writable ones go.
//!
//! After fork the child's regions are shared with the parent's where they are views of a file. So a region serves only
//! the process that made it; its writable view isn't even mapped in the child.
//!
//! # Safety
//! Slots are written through raw pointers. A slot's bytes belong to its holder alone, and [`Arena::write`] looks up the
//! region of a slot before it writes.

mod region;

use alloc::vec::Vec;
use core::{ops::Range, sync::atomic::AtomicU64};

use crate::{
    memory::{maps::Maps, place::map_near},
    native::{self, NEAR_REACH, Pattern},
    sys::{self, Errno, PAGE},
};
pub use region::CodeWay;
use region::{Region, two_views};

/// The size of a region that isn't asked to be larger.
const REGION: usize = 64 << 10;
/// Slots begin at multiples of this, as functions do.
const ALIGN: usize = 16;
/// What unused bytes hold, so that a stray jump traps at once.
const FILL: &[u8] = native::FILL;

/// Memory for code.
#[derive(Debug, Default)]
pub struct Arena {
    regions: Vec<Region>,
    /// Where islands are, and where each goes. They are never changed, so hooks can share them.
    islands: Vec<(u64, u64)>,
    words: Vec<Words>,
    avoid_two_views: bool,
}

/// A page of words.
#[derive(Debug)]
struct Words {
    start: usize,
    used: usize,
}

/// A piece of code memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CodeSlot {
    /// Where the code runs.
    pub(crate) at: usize,
    pub(crate) len: usize,
}

impl Arena {
    /// An arena with no memory yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// An arena that doesn't try a file in memory.
    pub fn with_protection_only() -> Self {
        let mut arena = Self::new();
        arena.avoid_two_views = true;
        arena
    }

    /// The executable regions and how each was made.
    pub fn regions(&self) -> impl Iterator<Item = (Range<usize>, CodeWay)> + '_ {
        self.regions.iter().map(|r| (r.code.clone(), r.way))
    }

    /// How many bytes of code and words were given out.
    pub(crate) fn used(&self) -> usize {
        let code =
            self.regions.iter().map(|r| r.used + r.pinned.iter().map(ExactSizeIterator::len).sum::<usize>());
        code.chain(self.words.iter().map(|words| words.used)).sum()
    }

    /// Takes a slot that begins in `reach`, as near to `near` as may be.
    pub(crate) fn allocate(
        &mut self,
        near: usize,
        len: usize,
        reach: &Range<usize>,
        maps: Option<&Maps>,
    ) -> Result<CodeSlot, Errno> {
        let len = len.max(1).next_multiple_of(ALIGN);
        let pid = sys::pid();
        let fits = |r: &&mut Region| r.serves(pid) && r.room() >= len && reach.contains(&r.next());
        if let Some(region) = self.regions.iter_mut().find(fits) {
            return Ok(region.take(len));
        }
        let mut region = self.new_region(near, len.max(REGION).next_multiple_of(PAGE), reach, maps)?;
        let slot = region.take(len);
        self.regions.push(region);
        Ok(slot)
    }

    /// An island that was made before, at a place that a pattern has.
    pub(crate) fn island(&self, pattern: &Pattern, to: u64) -> Option<u64> {
        let fits = |at: u64| pattern.next_from(at) == Some(at);
        self.islands.iter().find(|island| island.1 == to && fits(island.0)).map(|island| island.0)
    }

    /// Notes an island that was written.
    pub(crate) fn add_island(&mut self, at: u64, to: u64) {
        self.islands.push((at, to));
    }

    /// Takes a slot at one of a pattern's places: in a region that there is, else in a new one.
    pub(crate) fn allocate_matching(
        &mut self,
        pattern: &Pattern,
        len: usize,
        maps: Option<&Maps>,
    ) -> Result<CodeSlot, Errno> {
        let pid = sys::pid();
        for region in self.regions.iter_mut().filter(|r| r.serves(pid)) {
            let mut from = region.next();
            while let Some(at) = pattern.next_from(from as u64).map(|at| at as usize) {
                if at + len > region.code.end {
                    break;
                }
                if region.is_free(&(at..at + len)) {
                    return Ok(region.pin(at, len));
                }
                from = at + 1;
            }
        }
        let maps = maps.ok_or(sys::ENOMEM)?;
        for leave_room in [true, false] {
            let mut found = None;
            maps.for_each_gap(leave_room, |gap| {
                let lowest = pattern.next_from(gap.start as u64)? as usize;
                let pages = lowest & !(PAGE - 1)..lowest.checked_add(len)?.checked_next_multiple_of(PAGE)?;
                // A region of the usual size has room for the islands of other sites.
                let wide = pages.start..pages.start + REGION;
                let fits = |r: &Range<usize>| gap.start <= r.start && r.end <= gap.end;
                found = found.take().or_else(|| [wide, pages].into_iter().find(fits).map(|r| (lowest, r)));
                Some(())
            });
            let Some((at, range)) = found else { continue };
            let mut region = self.new_region(range.start, range.len(), &range, Some(maps))?;
            let slot = region.pin(at, len);
            self.regions.push(region);
            return Ok(slot);
        }
        Err(sys::ENOMEM)
    }

    /// Writes code into a slot and fills the rest of it. `false` if the slot isn't one that can be written.
    pub(crate) fn write(&self, slot: &CodeSlot, code: &[u8]) -> bool {
        let Some(region) = self.region_of(slot.at).filter(|r| r.serves(sys::pid())) else { return false };
        let Some(view) = region.view.filter(|_| code.len() <= slot.len) else { return false };
        let start = view + (slot.at - region.code.start);
        for i in 0..slot.len {
            // SAFETY: the slot lies in a region of this arena whose writable view is mapped (checked above). Nobody
            // else writes the slot, and no reference to its bytes exists.
            unsafe {
                ((start + i) as *mut u8).write_volatile(code.get(i).copied().unwrap_or(FILL[i % FILL.len()]))
            };
        }
        native::flush(slot.at..slot.at + slot.len);
        true
    }

    /// Takes a word that code at `code` can name by its distance. It is never given back.
    pub(crate) fn word(&mut self, code: &CodeSlot, maps: Option<&Maps>) -> Result<&'static AtomicU64, Errno> {
        const SIZE: usize = size_of::<AtomicU64>();
        let reach = NEAR_REACH as usize - code.len - SIZE;
        let reach = code.at.saturating_sub(reach)..code.at.saturating_add(reach);
        let fits = |w: &Words| w.used + SIZE <= PAGE && reach.contains(&(w.start + w.used));
        let index = match self.words.iter().position(fits) {
            Some(index) => index,
            None => {
                let rights = libc::PROT_READ | libc::PROT_WRITE;
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                let start = map_near(code.at, PAGE, &reach, maps, rights, flags, None)?;
                sys::name_mapping(start, PAGE, c"grapnel-words");
                self.words.push(Words { start, used: 0 });
                self.words.len() - 1
            }
        };
        let words = self.words.get_mut(index).ok_or(sys::ENOMEM)?;
        let at = words.start + words.used;
        words.used += SIZE;
        // SAFETY: the word is aligned, zeroed, in a page that is never unmapped, and given out once.
        Ok(unsafe { &*(at as *const AtomicU64) })
    }

    /// Makes everything that was written executable. Afterwards every slot can be run.
    pub(crate) fn seal(&mut self) -> Result<(), Errno> {
        for region in &mut self.regions {
            if region.way == CodeWay::Protect && region.view.take().is_some() {
                // SAFETY: the region is ours, and nothing writes to it any more: its view was just taken away.
                unsafe {
                    sys::mprotect(region.code.start, region.code.len(), libc::PROT_READ | libc::PROT_EXEC)
                }?;
            }
        }
        Ok(())
    }

    fn region_of(&self, at: usize) -> Option<&Region> {
        self.regions.iter().find(|r| r.code.contains(&at))
    }

    fn new_region(
        &self,
        near: usize,
        len: usize,
        reach: &Range<usize>,
        maps: Option<&Maps>,
    ) -> Result<Region, Errno> {
        if !self.avoid_two_views
            && let Ok(region) = two_views(near, len, reach, maps)
        {
            return Ok(region);
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let at = map_near(near, len, reach, maps, libc::PROT_READ | libc::PROT_WRITE, flags, None)?;
        sys::name_mapping(at, len, c"grapnel-code");
        Ok(Region {
            code: at..at + len,
            view: Some(at),
            used: 0,
            pinned: Vec::new(),
            way: CodeWay::Protect,
            pid: sys::pid(),
        })
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let pid = sys::pid();
        for region in &self.regions {
            if let (Some(view), CodeWay::TwoViews, true) = (region.view, region.way, region.pid == pid) {
                // SAFETY: the writable view is the arena's own, and goes with it. In a child made by fork it was never
                // mapped, and something else may be at its address.
                let _ = unsafe { sys::munmap(view, region.code.len()) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An address in this program's code. Hidden from the optimiser, which would have the linker compute what is far from
    /// it.
    fn some_code() -> usize {
        core::hint::black_box(sys::pid as *const () as usize)
    }

    #[test]
    fn places_are_found_near_with_and_without_a_list_of_mappings() {
        let near = some_code();
        let reach = near - (1 << 31) + PAGE..near + (1 << 31) - PAGE;
        let maps = Maps::read().unwrap();
        for (mut arena, way) in
            [(Arena::new(), CodeWay::TwoViews), (Arena::with_protection_only(), CodeWay::Protect)]
        {
            for maps in [Some(&maps), None] {
                let slot = arena.allocate(near, 100, &reach, maps).unwrap();
                assert!(reach.contains(&slot.at) && slot.at % ALIGN == 0 && slot.len >= 100);
                assert!(arena.write(&slot, native::ANSWER_5));
                arena.seal().unwrap();
                // SAFETY: the code just written is a function of this type.
                let f: extern "C" fn() -> i32 = unsafe { core::mem::transmute(slot.at) };
                assert_eq!(f(), 5);
                arena = if way == CodeWay::TwoViews { Arena::new() } else { Arena::with_protection_only() };
            }
            let slot = arena.allocate(near, 1 << 20, &reach, Some(&maps)).unwrap();
            assert!(slot.len >= 1 << 20);
            assert!(arena.regions().all(|(_, used)| used == way));
        }
    }

    #[test]
    fn slots_do_not_overlap_and_a_full_reach_is_an_error() {
        let near = some_code();
        let reach = near - (1 << 31) + PAGE..near + (1 << 31) - PAGE;
        let maps = Maps::read().unwrap();
        let mut arena = Arena::new();
        let mut slots: Vec<CodeSlot> = Vec::new();
        let site = near as u64;
        for i in 1..200 {
            slots.push(arena.allocate(near, i, &reach, Some(&maps)).unwrap());
            let ways = [1, 1, 0, (i & 1) as u64, 0];
            if let Some(pattern) = Pattern::of(native::ISAS[0], site + i as u64, &ways) {
                slots.push(arena.allocate_matching(&pattern, 14, Some(&maps)).unwrap());
            }
        }
        slots.sort_by_key(|slot| slot.at);
        assert!(slots.windows(2).all(|pair| pair[0].at + pair[0].len <= pair[1].at));
        assert!(slots.iter().all(|slot| arena.write(slot, &[0xc3])));
        let code = near..near + 16;
        assert!(arena.allocate(near, 100, &code, Some(&maps)).is_err());
        assert!(arena.allocate(near, 100, &(8..4096), Some(&maps)).is_err());
        assert!(!arena.write(&CodeSlot { at: near, len: 16 }, &[0xc3]));
    }

    #[test]
    fn islands_go_on_in_further_regions() {
        let mut arena = Arena::new();
        // Two bytes fixed: eighteen islands in each 64 KiB, within 16 MiB.
        let Some(pattern) = Pattern::of(native::ISAS[0], some_code() as u64, &[1, 0, 1, 0, 1]) else {
            return;
        };
        for i in 0..100 {
            // The list goes stale with each new region.
            let maps = Maps::read().unwrap();
            assert!(arena.allocate_matching(&pattern, 14, Some(&maps)).is_ok(), "island {i}");
        }
        assert!(arena.regions().count() > 3);
    }
}
