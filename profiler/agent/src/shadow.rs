//! What `operator new` gave: for each block how it was asked for, by its address, so that what gives it back otherwise
//! is noticed, and its stack walked, at the moment when it does.
//!
//! A table like a sanitizer's shadow: 16 bytes of address space, 8 where blocks may begin at each 8, have an entry of 16 bits, kept for each mebibyte, or half of one, in the form
//! that its number of entries asks for ([`crate::cells`]). Where no two blocks begin so close together ([`blocks_are_chunks`]) it is twice as many bytes; and
//! where they do later, there are two such tables ([`blocks_may_be_close`]).
//! Allocators of other kinds give blocks of half a granule amid one: those have a table of their own.
//! 0 says that nothing is known. An entry is written by whoever was just
//! given the block and read by whoever is about to give it back: no two threads meet in one. So there is nothing to
//! lock, and a signal handler or a fork at any moment finds each entry whole.
//!
//! Not exact, and need not be: what differs here is only the reason to tell the analysis, which knows the whole of it.
//! Sizes up to 8191 are kept as they are, larger ones as 13 bits that most others differ in.
//!
//! # Safety
//! A middle table is a mapping of its whole size, zero when new, and never unmapped. Blocks of an address that no user of
//! the machine has unless it asks for one (on x86-64 from 2^47) are not noted.

use crate::cells::Cell;
use crate::hot::HOT;
use crate::{native, sys};
use core::hint::cold_path;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU16, Ordering};

/// How a block was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    /// By `new[]`.
    pub(crate) array: bool,
    /// The alignment's logarithm to base 2, of one that was asked to be aligned.
    pub(crate) align_log2: Option<u8>,
    pub(crate) size: usize,
}

const PRESENT: u16 = 1;
const ARRAY: u16 = 2;
const ALIGNED: u16 = 4;

impl Asked {
    /// All of it in 16 bits, never 0.
    #[inline]
    pub(crate) fn entry(self) -> u16 {
        let array = if self.array { ARRAY } else { 0 };
        match self.align_log2 {
            None => PRESENT | array | folded(self.size, 13) << 3,
            Some(log2) => {
                let log2 = u16::from(log2.min(15));
                PRESENT | array | ALIGNED | log2 << 3 | folded(self.size, 9) << 7
            }
        }
    }

    /// The entry of what is said without a size.
    #[inline]
    pub(crate) fn is_like(self, entry: u16, sized: bool) -> bool {
        let mask = match (sized, self.align_log2) {
            (true, _) => u16::MAX,
            (false, None) => PRESENT | ARRAY | ALIGNED,
            (false, Some(_)) => 0x7f,
        };
        (self.entry() ^ entry) & mask == 0
    }
}

/// A size in `bits` bits.
#[inline(always)]
fn folded(size: usize, bits: u32) -> u16 {
    if size >> bits != 0 {
        cold_path();
        return folded_large(size, bits);
    }
    size as u16
}

#[cold]
fn folded_large(size: usize, bits: u32) -> u16 {
    let upper = (size as u64 >> bits).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits);
    ((size as u64 ^ upper) & ((1 << bits) - 1)) as u16
}

/// Bytes of address space with one entry, as its logarithm.
const GRANULE: u32 = (2 * size_of::<usize>()).ilog2();
/// A block of so many bytes and more has few others beside it: most allocators get a mapping for each.
const LARGE: usize = 1 << 16;
/// The logarithm of the bytes of a cell, of a middle table, and of all.
const CELL: u32 = GRANULE + u16::BITS;
const MIDDLE: u32 = if ALL < 33 { ALL } else { 33 };
const ALL: u32 = native::ADDRESS_BITS;

type Middle = [Cell; 1 << (MIDDLE - CELL)];
type Root = [AtomicPtr<Middle>; 1 << (ALL - MIDDLE)];

/// Of blocks that may begin a granule apart, of those that begin two apart at least, and of those that begin amid a granule: of at most half of
/// one, as allocators of other kinds than glibc's give them. There is no fourth.
static ROOTS: [Root; 4] = [const { [const { AtomicPtr::new(ptr::null_mut()) }; 1 << (ALL - MIDDLE)] }; 4];

/// A function is both `free` and `delete`: nothing is noted, since all would seem to be given back in the wrong way.
pub(crate) fn do_without(is_shared: bool) {
    HOT.shadow_is_shared.fetch_or(is_shared, Ordering::Relaxed);
}

/// Whether something gives blocks out or takes them back as an operator that isn't hooked: then a block that seems to be given back
/// in the wrong way needn't be.
static INCOMPLETE: AtomicBool = AtomicBool::new(false);

/// There is such an operator.
pub(crate) fn is_now_incomplete() {
    INCOMPLETE.store(true, Ordering::Relaxed);
}

/// Whether there is.
#[cold]
pub(crate) fn is_incomplete() -> bool {
    INCOMPLETE.load(Ordering::Relaxed)
}

/// Where blocks are noted and looked for ([`HOT`]): one of these three. The lowest bit is the place among [`ROOTS`], and the logarithm of
/// how many granules lie between the beginnings of two blocks at least. The first is what it is from the start.
const CLOSE: u8 = 0;
const APART: u8 = 1;
/// Noted as those that are close, and looked for in both: once they were apart.
const NO_LONGER_APART: u8 = 2;

/// The place among [`ROOTS`] of the table for blocks that begin amid a granule. Its entries are one granule apart.
const AMID: u32 = 2;

#[inline]
fn place_now() -> u32 {
    u32::from(HOT.shadow.load(Ordering::Relaxed) & 1)
}

/// The logarithm of how many granules an entry of a table stands for.
#[inline(always)]
const fn apart_in(table: u32) -> u32 {
    table & 1
}

/// All blocks are chunks of glibc's heap, each of which takes two granules or more: so each entry stands for two, and half as many
/// lines of the processor's caches hold them. To be called before anything is noted.
#[cfg(not(grapnel_attached))]
pub(crate) fn blocks_are_chunks() {
    if !HOT.shadow_is_used.load(Ordering::Relaxed) {
        HOT.shadow.store(APART, Ordering::Relaxed);
    }
}

/// From now on there may be others. Whoever was given one of those knows of this by then.
pub(crate) fn blocks_may_be_close() {
    let _ = HOT.shadow.compare_exchange(APART, NO_LONGER_APART, Ordering::Relaxed, Ordering::Relaxed);
}

/// The place of an address in a table whose entries have 2^`low` bytes and that has 2^`high`, where blocks lie a granule apart.
#[inline]
fn index(address: usize, table: u32, low: u32, high: u32) -> usize {
    let address = (address & !native::TAGS) as u64 >> apart_in(table);
    (address >> low) as usize & ((1 << (high - low)) - 1)
}

#[inline]
fn is_noted(address: usize) -> bool {
    (address & !native::TAGS) as u64 >> ALL == 0 && address & ((1 << GRANULE) - 1) == 0
}

/// Whether the block at an address is noted among those that begin amid a granule.
#[cold]
fn is_noted_amid(address: usize) -> bool {
    (address & !native::TAGS) as u64 >> ALL == 0 && address & ((1 << GRANULE) - 1) == 1 << (GRANULE - 1)
}

/// The place of an address in its cell.
#[inline]
fn place(address: usize, table: u32) -> u16 {
    index(address, table, GRANULE, CELL) as u16
}

#[inline]
fn root(address: usize, table: u32) -> &'static AtomicPtr<Middle> {
    &ROOTS[table as usize % ROOTS.len()][index(address, table, MIDDLE, ALL)]
}

/// The cell of an address, if there is one.
#[inline]
fn cell(address: usize, table: u32) -> Option<&'static Cell> {
    // SAFETY: null, or a table as the module's header has it.
    let Some(middle) = (unsafe { root(address, table).load(Ordering::Acquire).as_ref() }) else {
        cold_path();
        return None;
    };
    Some(&middle[index(address, table, CELL, MIDDLE)])
}

/// Where a block is noted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    address: usize,
    /// Which of [`ROOTS`].
    table: u32,
    /// `None` where no cell was there yet.
    cell: Option<&'static Cell>,
}

/// Where the block at an address is to be noted; `None` where it is not.
#[inline]
fn place_of(address: usize) -> Option<Place> {
    if HOT.shadow_is_shared.load(Ordering::Relaxed) {
        cold_path();
        return None;
    }
    let table = if is_noted(address) {
        place_now()
    } else if is_noted_amid(address) {
        AMID
    } else {
        return None;
    };
    Some(Place { address, table, cell: cell(address, table) })
}

/// Where the block at an address will be [noted](Place::note): what that needs comes while something else goes on.
#[inline]
pub(crate) fn expect(address: usize) -> Option<Place> {
    let found = place_of(address)?;
    if let Some(cell) = found.cell {
        cell.expect(place(address, found.table));
    }
    Some(found)
}

/// Notes a block, and not how it was asked for. `is_alone`: few others will be noted near it.
pub(crate) fn note_plainly(address: usize, is_alone: bool) {
    if let Some(found) = place_of(address)
        && let Some(cell) = found.cell.or_else(|| make_cell(address, found.table))
    {
        cell.note(place(address, found.table), PRESENT, is_alone);
    }
}

impl Place {
    /// Notes how the block was asked for. What there is no memory for is not noted.
    #[inline]
    pub(crate) fn note(self, asked: Asked) {
        let Self { address, table, cell } = self;
        if let Some(cell) = cell.or_else(|| make_cell(address, table)) {
            cell.note(place(address, table), asked.entry(), asked.size >= LARGE);
        }
    }
}

/// Takes out what is noted of the block at an address; 0 for nothing.
#[inline]
pub(crate) fn take(address: usize) -> u16 {
    if !HOT.shadow_is_used.load(Ordering::Relaxed) {
        return 0;
    }
    if !is_noted(address) {
        return if is_noted_amid(address) { take_of(address, AMID) } else { 0 };
    }
    match HOT.shadow.load(Ordering::Relaxed) {
        NO_LONGER_APART => take_of_both(address),
        state => take_of(address, u32::from(state)),
    }
}

/// The entry of the block at an address, where that is found at once: if it is 0, others may hold what is noted of the block.
#[inline(always)]
pub(crate) fn entry(address: usize) -> Option<&'static AtomicU16> {
    newest(address).map(|(entry, _)| entry)
}

/// Whether nothing is noted of the block at an address, as far as that is seen at once.
#[inline(always)]
pub(crate) fn surely_lacks(address: usize) -> bool {
    !HOT.shadow_is_used.load(Ordering::Relaxed)
        || newest(address).is_some_and(|(entry, older)| {
            entry.load(Ordering::Relaxed) == 0 && older.load(Ordering::Acquire).is_null()
        })
}

#[inline(always)]
fn newest(address: usize) -> Option<(&'static AtomicU16, &'static AtomicPtr<u8>)> {
    let state = HOT.shadow.load(Ordering::Relaxed);
    if state == NO_LONGER_APART || !is_noted(address) {
        cold_path();
        return None;
    }
    let table = u32::from(state);
    cell(address, table)?.in_leaf(place(address, table))
}

#[inline(always)]
fn take_of(address: usize, table: u32) -> u16 {
    cell(address, table).map_or(0, |cell| cell.take(place(address, table)))
}

/// Takes out of both tables, so that nothing is left there that was of another block.
#[inline(never)]
fn take_of_both(address: usize) -> u16 {
    let [close, before] = [CLOSE, APART].map(|table| take_of(address, u32::from(table)));
    if close == 0 { before } else { close }
}

#[cold]
#[inline(never)]
fn make_cell(address: usize, table: u32) -> Option<&'static Cell> {
    HOT.shadow_is_used.store(true, Ordering::Relaxed);
    let root = root(address, table);
    let fresh = sys::map_anonymous(size_of::<Middle>())?;
    let _ = sys::advise(fresh, size_of::<Middle>(), libc::MADV_DONTDUMP);
    let placed =
        root.compare_exchange(ptr::null_mut(), fresh.cast(), Ordering::AcqRel, Ordering::Acquire).is_ok();
    if placed {
        crate::heap::count_mapped(size_of::<Middle>());
    } else {
        sys::unmap(fresh, size_of::<Middle>());
    }
    cell(address, table)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(array: bool, align_log2: Option<u8>, size: usize) -> Asked {
        Asked { array, align_log2, size }
    }

    fn note(address: usize, asked: Asked) {
        if let Some(place) = expect(address) {
            place.note(asked);
        }
    }

    #[test]
    fn what_is_noted_is_found_once() {
        for (number, address) in
            [0x10_0000_usize, 0x10_0010, (1 << (ALL - 1)) - 16, 0x5555 << (ALL - 16)].into_iter().enumerate()
        {
            assert_eq!(take(address), 0);
            let asked = asked(number % 2 == 0, None, number);
            note(address, asked);
            assert_eq!(take(address), asked.entry());
            assert_eq!(take(address), 0);
        }
        // At odd addresses, and beyond what is kept.
        let beyond = 1usize.checked_shl(ALL);
        for address in [0x10_0000 | 1 << (GRANULE - 2)].into_iter().chain(beyond) {
            note(address, asked(false, None, 1));
            assert_eq!(take(address), 0);
        }
    }

    #[test]
    fn small_blocks_side_by_side_are_told_apart() {
        const HALF: usize = 1 << (GRANULE - 1);
        let blocks = (0..64).map(|number| (0x3210 << (ALL - 16)) + number * HALF);
        blocks.clone().for_each(|block| note(block, asked(false, None, block / HALF % 64 + 1)));
        for block in blocks.clone().step_by(3) {
            assert_eq!(take(block), asked(false, None, block / HALF % 64 + 1).entry(), "{block:x}");
        }
        for (number, block) in blocks.enumerate() {
            assert_eq!(take(block) == 0, number % 3 == 0, "{block:x}");
        }
    }

    /// Whether it has a leaf or not: the other tests may have taken them.
    #[test]
    fn what_is_seen_at_once_is_what_is_found() {
        let (block, beside) = (0x1235_0010_0040, 0x1235_0010_0080);
        let seen = |address| entry(address).map(|entry| entry.load(Ordering::Relaxed));
        note(block, asked(true, None, 24));
        let is_leaf = seen(block).is_some();
        assert_eq!(seen(block), is_leaf.then_some(asked(true, None, 24).entry()));
        assert_eq!([block, beside].map(surely_lacks), [false, is_leaf]);
        assert_ne!(take(block), 0);
        assert_eq!((seen(block), surely_lacks(block)), (is_leaf.then_some(0), is_leaf));
        // Nothing is known of what no table has, or can't have.
        for address in [0x4321_0000_0000, block + 8] {
            assert_eq!((seen(address), surely_lacks(address)), (None, false), "{address:x}");
        }
    }

    /// Large blocks, each of them with a small one beside it.
    #[test]
    fn what_is_far_apart_takes_little_memory() {
        const BLOCKS: usize = 50_000;
        let address = |number: usize| (0x6000 << (ALL - 16)) + number * 40_000 / 16 * 16;
        let before = crate::heap::mapped();
        for number in 0..BLOCKS {
            note(address(number), asked(false, None, 32));
            note(address(number) + 48, asked(true, None, 39_000));
        }
        let took = crate::heap::mapped() - before;
        assert!(took < (13 << 20) + 16 * 2 * BLOCKS as u64, "{took} bytes");
        for number in 0..BLOCKS {
            assert_eq!(take(address(number)), asked(false, None, 32).entry());
            assert_eq!(take(address(number) + 48), asked(true, None, 39_000).entry());
        }
    }

    #[test]
    fn blocks_that_are_few_take_no_leaf() {
        let address = |number: usize| (0x3000 << (ALL - 16)) + number * 0x8_0010 / 16 * 16;
        (0..500).for_each(|number| note_plainly(address(number), true));
        for number in 0..500 {
            assert!(entry(address(number)).is_none());
            assert_ne!(take(address(number)), 0);
            assert_eq!(take(address(number)), 0);
        }
    }

    #[test]
    fn what_differs_is_seen() {
        let plain = asked(false, None, 100);
        assert!(plain.is_like(plain.entry(), true));
        assert!(asked(false, None, 7).is_like(plain.entry(), false));
        for other in [asked(true, None, 100), asked(false, Some(4), 100)] {
            assert!(!other.is_like(plain.entry(), false), "{other:?}");
        }
        assert!(!asked(false, None, 101).is_like(plain.entry(), true));
        assert!(!plain.is_like(0, false));
        let wide = asked(true, Some(6), 4096);
        assert!(asked(true, Some(6), 1).is_like(wide.entry(), false));
        for other in [asked(true, Some(5), 4096), asked(true, None, 4096), asked(false, Some(6), 4096)] {
            assert!(!other.is_like(wide.entry(), false), "{other:?}");
        }
        // Up to 8191 each size has an entry of its own; of the larger ones few are alike.
        let entries: std::collections::HashSet<u16> =
            (0..8192).map(|size| asked(false, None, size).entry()).collect();
        assert_eq!(entries.len(), 8192);
        let alike =
            (1..1000).filter(|n| asked(false, None, n << 13).is_like(asked(false, None, 0).entry(), true));
        assert!(alike.count() < 3);
    }
}
