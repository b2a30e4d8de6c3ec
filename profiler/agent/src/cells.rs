//! The shadow of one mebibyte: which of its addresses have an entry, in memory that follows how many there are.
//!
//! A cell begins with a table of a few entries, each with its address's place in the mebibyte, found by a hash. Where a
//! table has no room, a larger one comes before it, and at last a [`Leaf`], which has an entry for each place. So a mebibyte
//! with one large block takes 64 bytes, and one that is full of small ones 2 for each 16; with any number of blocks in
//! between it is seldom more than 16 bytes for each. The first cells have leaves from the start, but where it is a large block that
//! comes first: most programs have no others, and a leaf is the quickest.
//!
//! Nothing is locked, and nothing moves. An entry of 0 is free, and is taken by compare and swap; a block's entry is
//! written, and taken out, by whoever has the block. It stays in the table that it was put in, and is looked for in all of
//! them, the newest first: there are seven at most, and the newest have most of the entries.
//!
//! # Safety
//! A table is zeroed memory of its whole size when it is put in place, and never given back; so is a leaf. All of both is
//! atomic. A pointer that is marked as one to a table of some length was made by [`Table::new`] for that length.

use crate::native::prefetch;
use crate::{heap, sys};
use core::hint::cold_path;
use core::ptr::{self, NonNull};
use core::slice;
use core::sync::atomic::{AtomicPtr, AtomicU16, AtomicU32, AtomicUsize, Ordering};

/// Places in a mebibyte: one for each 16 bytes.
const PLACES: usize = 1 << 16;

/// How many cells get a leaf as long as there are some, for the first entry unless that is of a block that is large: 12 MiB for
/// all of them.
static LEAVES: AtomicUsize = AtomicUsize::new(MOST_LEAVES);
const MOST_LEAVES: usize = 80;
/// So many of them are mappings of their own. Behind these the program's heap is large enough to have pushed the pages of
/// its shadow out of the processor's translation of addresses, and leaves lie side by side in huge pages.
const ALONE: usize = 16;

/// A mebibyte's shadow. Null, a [`Leaf`], or a [`Table`] with its mark.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Cell(AtomicPtr<u8>);

/// The bits of a pointer that mark it as one to a table: the place of its length among [`LENS`], counted from 1. So who
/// looks for an entry need not wait for the header. A leaf's are 0.
const MARKS: usize = align_of::<Header>() - 1;

/// An entry for each place.
#[derive(Debug)]
#[repr(C)]
struct Leaf {
    entries: [AtomicU16; PLACES],
    /// The table that was there before, with its mark.
    older: AtomicPtr<u8>,
}

/// What a table begins with. Its entries follow, each group of them in one cache line.
#[derive(Debug)]
#[repr(C, align(32))]
struct Header {
    /// The table that was there before, with its mark.
    older: AtomicPtr<u8>,
}

/// Entries that one of two hashes leads to.
const GROUP: usize = 8;
/// How many entries tables have. Steps are smaller where a step takes more memory than the blocks that ask for it may.
const LENS: [usize; 6] = [GROUP, 64, 512, 1024, 4096, 8192];

const _: () = assert!(LENS.len() <= MARKS && size_of::<Header>() == GROUP * size_of::<u32>());

const FREE: u32 = 0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Table {
    header: NonNull<Header>,
    /// The place of its length among [`LENS`].
    size: usize,
}

fn entry_of(place: u16, asked: u16) -> u32 {
    u32::from(place) << 16 | u32::from(asked)
}

fn is_of(entry: u32, place: u16) -> bool {
    entry != FREE && entry >> 16 == u32::from(place)
}

impl Table {
    /// A table of the length at this place among [`LENS`]; `None` where there is none, or no memory.
    fn new(size: usize) -> Option<Self> {
        let len = LENS.get(size)?;
        let memory = SMALL.take(size_of::<Header>() + len * size_of::<u32>())?;
        // Zeroes are a header with nothing older, and free entries.
        NonNull::new(memory.cast()).map(|header| Self { header, size })
    }

    /// The table that a marked pointer leads to; `None` for a leaf, or null.
    fn of(pointer: *mut u8) -> Option<Self> {
        let size = (pointer.addr() & MARKS).checked_sub(1)?;
        let header = NonNull::new(pointer.map_addr(|address| address & !MARKS).cast())?;
        Some(Self { header, size })
    }

    /// The pointer to it, with its mark.
    fn marked(self) -> *mut u8 {
        self.header.as_ptr().cast::<u8>().map_addr(|address| address | (self.size + 1))
    }

    fn older(self) -> &'static AtomicPtr<u8> {
        // SAFETY: a table as the module's header has it.
        unsafe { &self.header.as_ref().older }
    }

    fn entries(self) -> &'static [AtomicU32] {
        let len = LENS.get(self.size).copied().unwrap_or(0);
        // SAFETY: as above; so many entries lie behind its header.
        unsafe { slice::from_raw_parts(self.header.as_ptr().add(1).cast(), len) }
    }

    /// The groups in which the entry of a place may be.
    fn groups(self, place: u16) -> [&'static [AtomicU32]; 2] {
        let (entries, hash) = (self.entries(), u32::from(place).wrapping_mul(0x9e37_79b1));
        let mask = entries.len() / GROUP - 1;
        [22, 12].map(|bits| &entries[(hash as usize >> bits & mask) * GROUP..][..GROUP])
    }

    /// Asks the processor for the groups of a place.
    #[inline(never)]
    #[unsafe(link_section = ".text.hot.grapnel")]
    fn expect(self, place: u16) {
        self.groups(place).into_iter().flat_map(<[_]>::first).for_each(prefetch);
    }

    /// Whether there was room.
    ///
    /// What is new goes to the group that has fewer: so nearly all of a table is in use before one has no room, where it
    /// would be half of it if the first group had to be full.
    fn put(self, entry: u32) -> bool {
        let place = (entry >> 16) as u16;
        loop {
            let (mut free, mut most) = (None, 0);
            for group in self.groups(place) {
                let (mut at_free, mut count) = (None, 0);
                for at in group {
                    let found = at.load(Ordering::Relaxed);
                    if is_of(found, place) {
                        // Of a block that went unseen.
                        at.store(entry, Ordering::Relaxed);
                        return true;
                    }
                    if found == FREE {
                        (at_free, count) = (Some(at), count + 1);
                    }
                }
                if count > most {
                    (free, most) = (at_free, count);
                }
            }
            let Some(at) = free else { return false };
            if at.compare_exchange(FREE, entry, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return true;
            }
        }
    }

    fn take(self, place: u16) -> u16 {
        let found = self.groups(place).into_iter().flatten().find_map(|at| {
            let entry = at.load(Ordering::Relaxed);
            is_of(entry, place).then(|| {
                at.store(FREE, Ordering::Relaxed);
                entry as u16
            })
        });
        found.unwrap_or(0)
    }
}

/// What a cell has first.
#[derive(Clone, Copy, Debug)]
enum First {
    Leaf(&'static Leaf),
    Table(Table),
}

impl First {
    #[inline]
    fn of(pointer: *mut u8) -> Option<Self> {
        if pointer.addr() & MARKS != 0 {
            cold_path();
            return Table::of(pointer).map(Self::Table);
        }
        // SAFETY: null, or a leaf as the module's header has it.
        unsafe { pointer.cast::<Leaf>().as_ref() }.map(Self::Leaf)
    }

    fn older(self) -> &'static AtomicPtr<u8> {
        match self {
            Self::Leaf(leaf) => &leaf.older,
            Self::Table(table) => table.older(),
        }
    }
}

impl Leaf {
    #[inline]
    fn take(&self, place: u16) -> u16 {
        let at = &self.entries[usize::from(place)];
        let found = at.load(Ordering::Relaxed);
        if found != 0 {
            at.store(0, Ordering::Relaxed);
        }
        found
    }
}

impl Cell {
    /// Says that something will be noted of a place.
    #[inline]
    #[unsafe(link_section = ".text.hot.grapnel")]
    pub(crate) fn expect(&self, place: u16) {
        match First::of(self.0.load(Ordering::Acquire)) {
            Some(First::Leaf(leaf)) => prefetch(&leaf.entries[usize::from(place)]),
            Some(First::Table(table)) => {
                cold_path();
                table.expect(place);
            }
            None => cold_path(),
        }
    }

    /// Notes something of a place, not 0. `is_alone`: few others will be noted near it, as far as can be told.
    #[inline]
    pub(crate) fn note(&self, place: u16, asked: u16, is_alone: bool) {
        match First::of(self.0.load(Ordering::Acquire)) {
            Some(First::Leaf(leaf)) => leaf.entries[usize::from(place)].store(asked, Ordering::Relaxed),
            _ => {
                cold_path();
                self.note_with(place, asked, is_alone, &LEAVES);
            }
        }
    }

    /// As [`Cell::note`], where so many leaves are left.
    #[inline(never)]
    #[unsafe(link_section = ".text.hot.grapnel")]
    fn note_with(&self, place: u16, asked: u16, is_alone: bool, leaves: &AtomicUsize) {
        loop {
            let pointer = self.0.load(Ordering::Acquire);
            let first = First::of(pointer);
            match first {
                Some(First::Leaf(leaf)) => {
                    return leaf.entries[usize::from(place)].store(asked, Ordering::Relaxed);
                }
                Some(First::Table(table)) if table.put(entry_of(place, asked)) => return,
                _ => {
                    if !self.grow(pointer, first, is_alone, leaves) {
                        return;
                    }
                }
            }
        }
    }

    /// The entry of a place in a leaf, if there is one, and the tables that were there before.
    #[inline(always)]
    pub(crate) fn in_leaf(&self, place: u16) -> Option<(&'static AtomicU16, &'static AtomicPtr<u8>)> {
        match First::of(self.0.load(Ordering::Acquire))? {
            First::Leaf(leaf) => Some((&leaf.entries[usize::from(place)], &leaf.older)),
            First::Table(_) => {
                cold_path();
                None
            }
        }
    }

    /// Takes out what is noted of a place; 0 for nothing.
    #[inline]
    pub(crate) fn take(&self, place: u16) -> u16 {
        let pointer = self.0.load(Ordering::Acquire);
        match First::of(pointer) {
            Some(First::Leaf(leaf)) => {
                let found = leaf.take(place);
                if found != 0 {
                    return found;
                }
                let older = leaf.older.load(Ordering::Acquire);
                if older.is_null() { 0 } else { take_older(older, place) }
            }
            Some(First::Table(_)) => take_older(pointer, place),
            None => 0,
        }
    }

    /// Puts what is larger in place of the first. Whether there is memory for it.
    #[cold]
    #[inline(never)]
    fn grow(&self, pointer: *mut u8, first: Option<First>, is_alone: bool, leaves: &AtomicUsize) -> bool {
        let size = match first {
            Some(First::Table(table)) => Some(table.size + 1).filter(|&size| size < LENS.len()),
            _ => Some(0),
        };
        let one_less = |left: usize| left.checked_sub(1).filter(|_| size != Some(0) || !is_alone);
        let left = leaves.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).ok();
        let (next, made) = if let Some(size) = size.filter(|_| left.is_none()) {
            let Some(table) = Table::new(size) else { return false };
            (table.marked(), Some(First::Table(table)))
        } else {
            let Some(made) = leaf(left) else { return false };
            (made, First::of(made))
        };
        let Some(made) = made else { return false };
        if let Some(First::Table(old)) = first {
            made.older().store(old.marked(), Ordering::Relaxed);
        }
        // Where somebody else was faster, what was made is nobody's, and stays untouched.
        let _ = self.0.compare_exchange(pointer, next, Ordering::AcqRel, Ordering::Acquire);
        true
    }
}

#[inline(never)]
#[unsafe(link_section = ".text.hot.grapnel")]
fn take_older(mut older: *mut u8, place: u16) -> u16 {
    while let Some(table) = Table::of(older) {
        let found = table.take(place);
        if found != 0 {
            return found;
        }
        older = table.older().load(Ordering::Acquire);
    }
    0
}

/// Memory for a leaf, the one of so many left, or one that takes the place of all tables.
fn leaf(left: Option<usize>) -> Option<*mut u8> {
    if left.is_some_and(|left| left <= MOST_LEAVES - ALONE) {
        return HUGE.take(size_of::<Leaf>());
    }
    let made = sys::map_anonymous(size_of::<Leaf>())?;
    let _ = sys::advise(made, size_of::<Leaf>(), libc::MADV_DONTDUMP);
    heap::count_mapped(size_of::<Leaf>());
    Some(made)
}

/// Zeroed memory, cut from pieces that are never given back.
struct Pieces {
    /// What each piece has.
    size: usize,
    map: fn(usize) -> Option<*mut u8>,
    /// The piece that is cut from. It begins with how much of it is in use.
    current: AtomicPtr<AtomicUsize>,
}

/// For tables.
static SMALL: Pieces =
    Pieces { size: 1 << 18, map: sys::map_anonymous, current: AtomicPtr::new(ptr::null_mut()) };

/// For leaves.
static HUGE: Pieces =
    Pieces { size: heap::HUGE, map: heap::map_aligned_to_huge, current: AtomicPtr::new(ptr::null_mut()) };

impl Pieces {
    fn take(&self, len: usize) -> Option<*mut u8> {
        const ALIGNED: usize = align_of::<Header>();
        let len = len.next_multiple_of(ALIGNED);
        loop {
            let current = self.current.load(Ordering::Acquire);
            // SAFETY: null, or a piece: its first word is this counter.
            if let Some(used) = unsafe { current.as_ref() } {
                let start = used.fetch_add(len, Ordering::Relaxed);
                if start.checked_add(len).is_some_and(|end| end <= self.size) {
                    // SAFETY: this part of the piece is nobody else's.
                    return Some(unsafe { current.cast::<u8>().add(start) });
                }
            }
            let fresh = (self.map)(self.size)?;
            let _ = sys::advise(fresh, self.size, libc::MADV_DONTDUMP);
            let piece: *mut AtomicUsize = fresh.cast();
            // SAFETY: fresh memory, which nobody else knows of.
            unsafe { piece.write(AtomicUsize::new(ALIGNED)) };
            if self.current.compare_exchange(current, piece, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                sys::unmap(fresh, self.size);
            } else {
                heap::count_mapped(self.size);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// Where all have to do with tables.
    static NO_LEAVES: AtomicUsize = AtomicUsize::new(0);

    /// A cell that doesn't begin with a leaf.
    fn cell() -> Cell {
        Cell(AtomicPtr::new(Table::new(0).expect("memory").marked()))
    }

    fn asked(number: u32) -> u16 {
        number.wrapping_mul(0x9e37_79b1) as u16 | 1
    }

    /// xorshift
    fn random(state: &mut u32) -> u32 {
        *state ^= *state << 13;
        *state ^= *state >> 17;
        *state ^= *state << 5;
        *state
    }

    #[test]
    fn a_cell_finds_all_that_is_noted_and_grows_with_it() {
        // Blocks of up to so many granules each, or of exactly as many.
        let mut state = 1;
        for most in [2, 4, 5, 7, 13, 16, 25, 32, 63, 100, 126, 313, 2500] {
            for is_random in [false, true] {
                let cell = cell();
                let mut step = || if is_random { random(&mut state) as usize % most + 2 } else { most };
                let ends = std::iter::successors(Some(0), |place| Some(place + step()));
                let places: Vec<u16> = ends.map_while(|place| u16::try_from(place).ok()).collect();
                places
                    .iter()
                    .for_each(|&place| cell.note_with(place, asked(place.into()), false, &NO_LEAVES));
                let (bytes, few) = (bytes(&cell), (size_of::<Header>() + 4 * LENS[1]) * 2);
                assert!(bytes <= 16 * places.len() + few, "{bytes} bytes for {} places", places.len());
                for &place in &places {
                    assert_eq!(cell.take(place), asked(place.into()), "{place}, {most} each");
                    assert_eq!(cell.take(place), 0);
                }
            }
        }
    }

    #[test]
    fn a_leaf_comes_first_or_as_soon_as_the_first_table_is_full() {
        for is_alone in [false, true] {
            for left in [1, MOST_LEAVES] {
                let (cell, leaves) = (Cell(AtomicPtr::new(ptr::null_mut())), AtomicUsize::new(left));
                let note = |place: u16| cell.note_with(place, asked(place.into()), is_alone, &leaves);
                note(0);
                assert_eq!(leaves.load(Ordering::Relaxed), left - usize::from(!is_alone));
                (1..3000).for_each(note);
                assert_eq!(leaves.load(Ordering::Relaxed), left - 1);
                assert!(matches!(First::of(cell.0.load(Ordering::Relaxed)), Some(First::Leaf(_))));
                for place in 0..3000 {
                    assert_eq!((cell.take(place), cell.take(place)), (asked(place.into()), 0), "{place}");
                }
            }
        }
    }

    #[test]
    fn an_entry_is_seen_at_once_in_a_leaf_alone() {
        let seen = |cell: &Cell, place| {
            cell.in_leaf(place).map(|(entry, older)| {
                (entry.load(Ordering::Relaxed), older.load(Ordering::Relaxed).is_null())
            })
        };
        let cell = Cell(AtomicPtr::new(ptr::null_mut()));
        assert_eq!(seen(&cell, 7), None);
        cell.note_with(7, asked(7), false, &AtomicUsize::new(1));
        assert_eq!([7, 8].map(|place| seen(&cell, place)), [Some((asked(7), true)), Some((0, true))]);
        assert_eq!((cell.take(7), seen(&cell, 7)), (asked(7), Some((0, true))));
        // A leaf that comes behind a table: what the table has is not seen.
        let (cell, leaves) = (Cell(AtomicPtr::new(ptr::null_mut())), AtomicUsize::new(1));
        (0..100).for_each(|place| cell.note_with(place, asked(place.into()), true, &leaves));
        assert_eq!([0, 99].map(|place| seen(&cell, place)), [Some((0, false)), Some((asked(99), false))]);
        assert_eq!((cell.take(0), cell.take(99)), (asked(0), asked(99)));
    }

    /// What a cell takes.
    fn bytes(cell: &Cell) -> usize {
        let of_table = |table: Table| size_of::<Header>() + 4 * LENS[table.size];
        let first = First::of(cell.0.load(Ordering::Relaxed)).expect("something");
        let mut bytes = match first {
            First::Leaf(_) => size_of::<Leaf>(),
            First::Table(table) => of_table(table),
        };
        let mut older = first.older().load(Ordering::Relaxed);
        while let Some(table) = Table::of(older) {
            bytes += of_table(table);
            older = table.older().load(Ordering::Relaxed);
        }
        bytes
    }

    #[test]
    fn a_table_is_what_its_pointer_says_and_its_groups_lie_in_one_cache_line_each() {
        for (size, &len) in LENS.iter().enumerate() {
            let table = Table::new(size).expect("memory");
            assert_eq!(Table::of(table.marked()), Some(table));
            assert_eq!(table.entries().len(), len);
            for group in table.entries().chunks(GROUP) {
                let bytes = group.as_ptr_range();
                assert_eq!(bytes.start.addr() / 64, (bytes.end.addr() - 1) / 64);
            }
        }
        assert_eq!(Table::of(ptr::null_mut()), None);
    }

    #[test]
    fn what_is_noted_again_is_as_it_was_noted_last() {
        let cell = cell();
        for turn in 0..100 {
            cell.note_with(7, asked(turn), false, &NO_LEAVES);
        }
        assert_eq!((cell.take(7), cell.take(7)), (asked(99), 0));
    }

    /// Each thread has places of its own, as it has blocks. All share the tables.
    #[test]
    fn threads_find_theirs_while_tables_grow() {
        const THREADS: u32 = if cfg!(miri) { 2 } else { 4 };
        for turn in 1..if cfg!(miri) { 2 } else { 60 } {
            let cell = cell();
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let cell = &cell;
                    scope.spawn(move || {
                        let (mut state, mut own) = (turn * 77 + thread + 1, HashMap::new());
                        for step in 0..if cfg!(miri) { 300 } else { 12_000 } {
                            let number = random(&mut state);
                            let place = (number % (65536 / THREADS) * THREADS + thread) as u16;
                            // A block is given back before its address is given out again.
                            if number >> 16 & 3 == 0 || own.contains_key(&place) {
                                assert_eq!(cell.take(place), own.remove(&place).unwrap_or(0), "{place}");
                            } else {
                                cell.note_with(place, asked(step), false, &NO_LEAVES);
                                own.insert(place, asked(step));
                            }
                        }
                        own.into_iter().for_each(|(place, asked)| assert_eq!(cell.take(place), asked));
                    });
                }
            });
        }
    }
}
