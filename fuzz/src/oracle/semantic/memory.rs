//! What memory holds, and where the emulator has it.
//!
//! The emulator asks for the place of each page that it touches (its TLB is filled by a hook), so no page is ever mapped
//! while code runs. Data and code are looked up apart: what is executed is the code under judgement and, everywhere else
//! on its pages, an instruction that ends a block; what is read is what a hash says of the address, and the bytes of
//! the case.

use std::collections::HashMap;

pub(super) const PAGE: u64 = 4096;
/// The emulator's memory starts here. It must not be 0, which hooks take for no address.
pub(super) const BASE: u64 = 0x10_0000;
/// Pages of code: two for each side.
pub(super) const CODE_PAGES: u64 = 4;
/// Pages of data.
const DATA_PAGES: u64 = 4096;
pub(super) const SIZE: u64 = (CODE_PAGES + DATA_PAGES) * PAGE;
const DATA_BASE: u64 = BASE + CODE_PAGES * PAGE;
/// With more pages than this in use, all are given back before the next window.
const MANY: usize = 2048;

/// An address as the processor has it.
pub(super) fn wrap(addr: u64, wide: bool) -> u64 {
    if wide { addr } else { addr & 0xffff_ffff }
}

/// The pages in use.
#[derive(Default)]
pub(super) struct Memory {
    /// Addresses have 64 bits.
    wide: bool,
    places: HashMap<u64, u64>,
    /// The page at each place.
    pages: Vec<u64>,
    /// Bytes that the case puts into memory.
    overlays: Vec<(u64, Vec<u8>)>,
}

impl Memory {
    pub(super) fn new(wide: bool) -> Self {
        Self { wide, ..Self::default() }
    }

    /// Where a page of data is, if it is anywhere.
    pub(super) fn place(&self, page: u64) -> Option<u64> {
        self.places.get(&page).copied()
    }

    /// Finds a place for a page.
    pub(super) fn allocate(&mut self, page: u64) -> Option<u64> {
        if self.pages.len() as u64 == DATA_PAGES {
            return None;
        }
        let place = DATA_BASE + self.pages.len() as u64 * PAGE;
        self.pages.push(page);
        self.places.insert(page, place);
        Some(place)
    }

    /// The address of what is at a place.
    pub(super) fn address(&self, place: u64) -> u64 {
        let number = place.wrapping_sub(DATA_BASE) / PAGE;
        self.pages.get(number as usize).map_or(place, |page| page | (place % PAGE))
    }

    pub(super) fn is_full(&self) -> bool {
        self.pages.len() > MANY
    }

    pub(super) fn clear(&mut self) {
        self.places.clear();
        self.pages.clear();
    }

    pub(super) fn overlay(&mut self, addr: u64, bytes: &[u8]) {
        self.overlays.push((addr, bytes.to_vec()));
    }

    pub(super) fn take_overlays(&mut self) -> Vec<(u64, Vec<u8>)> {
        std::mem::take(&mut self.overlays)
    }

    /// What memory holds before anything is written to it.
    pub(super) fn content(&self, addr: u64, out: &mut [u8]) {
        let mut word = 0;
        for (number, byte) in (0..).zip(out.iter_mut()) {
            let at = self.wrap(addr.wrapping_add(number));
            if number == 0 || at & 7 == 0 {
                word = content_word(at & !7, self.wide);
            }
            *byte = (word >> ((at & 7) * 8)) as u8;
        }
        for (start, bytes) in &self.overlays {
            // Where the overlay starts in `out`, or `out` in the overlay.
            let (ahead, behind) = (self.wrap(start.wrapping_sub(addr)), self.wrap(addr.wrapping_sub(*start)));
            let (to, from) =
                if (ahead as usize) < out.len() { (ahead as usize, 0) } else { (0, behind as usize) };
            let (Some(to), Some(from)) = (out.get_mut(to..), bytes.get(from..)) else { continue };
            let len = to.len().min(from.len());
            to[..len].copy_from_slice(&from[..len]);
        }
    }

    fn wrap(&self, addr: u64) -> u64 {
        wrap(addr, self.wide)
    }
}

/// Half of the words are like pointers to data.
fn content_word(addr: u64, wide: bool) -> u64 {
    let mut hash = (addr >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ hash >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash ^= hash >> 32;
    if wide {
        return if hash & 1 == 0 { 0x0000_2000_0000_0000 + (hash & 0xffff) } else { hash };
    }
    let half = |word: u64, pointer: bool| if pointer { 0x2000_0000 + (word & 0xfffc) } else { word };
    let (low, high) = (hash & 0xffff_ffff, hash >> 32);
    half(low, hash & 1 == 0) | half(high, high & 1 == 0) << 32
}
