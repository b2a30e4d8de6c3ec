//! Heaps besides the program's own: which there are, and what each is numbered.
//!
//! A heap's handle is its place in a table, which stays; its number is new whenever it is emptied, so that nothing of
//! before can be taken for something of after. 0 is neither.
//!
//! # Safety
//! The table is a mapping of its whole size, zero when new, and never unmapped. It is of atomics: a signal handler or the
//! child of a fork finds each entry whole, or not yet there.

use crate::context::Context;
use crate::entry::SavedRegisters;
use crate::sys;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicPtr, AtomicU16, AtomicU32, AtomicU64, Ordering};
use grapnel_trace::ring::Producer;
use grapnel_trace::wire::{self, kind};
use grapnel_trace::{Heap, HeapKind, Source};

/// How many there can be at a time, with none at place 0.
const PLACES: usize = 1 << 16;
/// Bytes that are kept of a name.
const NAME: usize = 48;

/// A place in the table.
#[repr(C)]
#[derive(Debug)]
struct Entry {
    /// The heap's number; 0 for a place that is free, [`TAKEN`] for one that is about to be filled in.
    id: AtomicU32,
    /// [`HeapKind`], and above it the name's length.
    kind: AtomicU32,
    name: [AtomicU64; NAME / 8],
    /// Tells allocators of one name in several objects apart that are on trial, or were; 0 of others.
    origin: AtomicU32,
    /// Of one that is, how many calls were signs of an allocator, and how many weren't.
    signs: AtomicU16,
    doubts: AtomicU16,
}

const TAKEN: u32 = u32::MAX;

type Table = [Entry; PLACES];

static TABLE: AtomicPtr<Table> = AtomicPtr::new(core::ptr::null_mut());
/// The last number that was given.
static LAST: AtomicU32 = AtomicU32::new(0);
/// Where the next free place is looked for.
static NEXT: AtomicU32 = AtomicU32::new(1);
/// The highest place that was ever taken.
static HIGHEST: AtomicU32 = AtomicU32::new(0);
/// The life whose trace was told of all of them.
static DESCRIBED: AtomicU64 = AtomicU64::new(0);

fn table() -> Option<&'static Table> {
    // SAFETY: null, or the table as the module's header has it.
    unsafe { TABLE.load(Ordering::Acquire).as_ref() }
}

fn made_table() -> Option<&'static Table> {
    if let Some(table) = table() {
        return Some(table);
    }
    let fresh = sys::map_anonymous(size_of::<Table>())?;
    let placed =
        TABLE.compare_exchange(core::ptr::null_mut(), fresh.cast(), Ordering::AcqRel, Ordering::Acquire);
    if placed.is_err() {
        sys::unmap(fresh, size_of::<Table>());
    } else {
        let _ = sys::advise(fresh, size_of::<Table>(), libc::MADV_DONTDUMP);
    }
    table()
}

fn next_id() -> u32 {
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

impl Entry {
    fn heap(&self) -> Option<Heap> {
        let id = self.id.load(Ordering::Acquire);
        if id == 0 || id == TAKEN {
            return None;
        }
        let kind = self.kind.load(Ordering::Relaxed);
        let mut bytes = [0; NAME];
        for (to, word) in bytes.chunks_mut(8).zip(&self.name) {
            to.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        let name = bytes[..(kind >> 8) as usize % (NAME + 1)].to_vec();
        Some(Heap { id, kind: HeapKind::from_u8(kind as u8)?, name })
    }

    fn fill_in(&self, kind: HeapKind, name: &[u8], origin: u32) {
        let name = &name[..name.len().min(NAME)];
        let mut bytes = [0; NAME];
        bytes[..name.len()].copy_from_slice(name);
        for (word, from) in self.name.iter().zip(bytes.chunks(8)) {
            let from = from.iter().rev().fold(0, |word, &byte| (word << 8) | u64::from(byte));
            word.store(from, Ordering::Relaxed);
        }
        self.kind.store(kind as u32 | (name.len() as u32) << 8, Ordering::Relaxed);
        self.origin.store(origin, Ordering::Relaxed);
        self.signs.store(0, Ordering::Relaxed);
        self.doubts.store(0, Ordering::Relaxed);
        self.id.store(next_id(), Ordering::Release);
    }
}

/// The entry of a handle that is one.
fn entry(handle: u64) -> Option<&'static Entry> {
    let place = usize::try_from(handle).ok().filter(|&place| place != 0)?;
    table()?.get(place)
}

/// All entries that were ever taken, with place 0.
fn entries() -> &'static [Entry] {
    table().map_or(&[], |table| &table[..=HIGHEST.load(Ordering::Relaxed) as usize])
}

/// Takes a place for a heap. `None` if there is none left.
pub(crate) fn add(kind: HeapKind, name: &[u8]) -> Option<u32> {
    add_of(kind, name, 0)
}

fn add_of(kind: HeapKind, name: &[u8], origin: u32) -> Option<u32> {
    let table = made_table()?;
    let start = NEXT.load(Ordering::Relaxed);
    let place = (0..PLACES as u32).map(|turn| start.wrapping_add(turn) % PLACES as u32).find(|&place| {
        let id = &table[place as usize].id;
        place != 0
            && id.load(Ordering::Relaxed) == 0
            && id.compare_exchange(0, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
    })?;
    NEXT.store(place + 1, Ordering::Relaxed);
    HIGHEST.fetch_max(place, Ordering::Relaxed);
    table[place as usize].fill_in(kind, name, origin);
    Some(place)
}

/// The handle of the allocator with this name, which is added if it isn't there. Of a [candidate](HeapKind::Candidate) also of one of this
/// `origin` that has turned out to be one.
pub(crate) fn allocator(kind: HeapKind, name: &[u8], origin: u32) -> Option<u32> {
    let name = &name[..name.len().min(NAME)];
    let is_it = |entry: &Entry| {
        let is_of_name = |heap: Heap| heap.kind != HeapKind::Pool && heap.name == name;
        entry.origin.load(Ordering::Relaxed) == origin && entry.heap().is_some_and(is_of_name)
    };
    let found = entries().iter().position(is_it);
    found.map_or_else(|| add_of(kind, name, origin), |place| Some(place as u32))
}

/// Whether the heap with this handle counts for nothing: nothing says that it is an allocator.
pub(crate) fn is_candidate(handle: u64) -> bool {
    let kind = |entry: &Entry| entry.kind.load(Ordering::Relaxed) as u8;
    entry(handle).is_some_and(|entry| kind(entry) == HeapKind::Candidate as u8)
}

/// So many signs, and nothing more is asked.
const ENOUGH: u16 = 4096;

/// Whether the calls of the heap with this handle are looked at for whether it is an allocator.
#[inline]
pub(crate) fn is_on_trial(handle: u64) -> bool {
    entry(handle).is_some_and(|entry| {
        entry.origin.load(Ordering::Relaxed) != 0 && entry.signs.load(Ordering::Relaxed) < ENOUGH
    })
}

/// How many calls of a heap on trial were signs of an allocator, and how many weren't, each with those that are added here.
pub(crate) fn weigh(handle: u64, signs: u16, doubts: u16) -> (u16, u16) {
    let add = |to: &AtomicU16, more: u16| {
        let sum = to.load(Ordering::Relaxed).saturating_add(more);
        // Of two threads' one may get lost.
        to.store(sum, Ordering::Relaxed);
        sum
    };
    entry(handle).map_or((0, 0), |entry| (add(&entry.signs, signs), add(&entry.doubts, doubts)))
}

/// Whether a call of the heap with this handle was a sign of an allocator.
pub(crate) fn has_sign(handle: u64) -> bool {
    entry(handle).is_some_and(|entry| entry.signs.load(Ordering::Relaxed) != 0)
}

/// Tells the trace through `ring` that the heap with this handle is of another kind, unless it is known. What can't be told is told by the next call.
pub(crate) fn set_kind(handle: u64, kind: HeapKind, ring: &mut Producer<'static>) {
    let Some(entry) = entry(handle) else { return };
    let Some(heap) = entry.heap().filter(|heap| heap.kind != kind) else { return };
    if crate::record::push(ring, &wire::heap(&Heap { kind, ..heap })).is_ok() {
        let before = entry.kind.load(Ordering::Relaxed);
        entry.kind.store(before & !0xff | kind as u32, Ordering::Relaxed);
    }
}

/// The number of the heap with this handle; 0 if there is none.
#[inline]
pub(crate) fn id(handle: u64) -> u32 {
    entry(handle).map(|entry| entry.id.load(Ordering::Acquire)).filter(|&id| id != TAKEN).unwrap_or(0)
}

/// The lower halves of the numbers of all heaps.
pub(crate) struct Numbers {
    halves: Vec<u64>,
    /// That of the last number that was given.
    last: u16,
}

impl Numbers {
    /// Whether one may be that of a heap: of those that are as many as this further nobody knows.
    pub(crate) fn contains(&self, half: u16) -> bool {
        const LATER: u16 = 1 << 12;
        self.halves[usize::from(half) / 64] >> (half % 64) & 1 != 0
            || half.wrapping_sub(self.last).wrapping_sub(1) < LATER
    }
}

/// Those that there are now, which takes a look at the whole table.
pub(crate) fn numbers() -> Numbers {
    // Not on the stack, which may be a small one.
    let halves = vec![0; (1 << u16::BITS) / u64::BITS as usize];
    let mut all = Numbers { halves, last: LAST.load(Ordering::Acquire) as u16 };
    for entry in entries() {
        let half = entry.id.load(Ordering::Acquire) as u16;
        all.halves[usize::from(half) / 64] |= 1 << (half % 64);
    }
    all
}

/// The name of the heap with this handle.
pub(crate) fn name(handle: u64) -> Option<Vec<u8>> {
    entry(handle).and_then(Entry::heap).map(|heap| heap.name)
}

/// Gives a heap's place back. The number that it had.
pub(crate) fn remove(handle: u64) -> u32 {
    let Some(entry) = entry(handle).filter(|entry| entry.id.load(Ordering::Relaxed) != TAKEN) else {
        return 0;
    };
    entry.id.swap(0, Ordering::AcqRel)
}

/// Ends a heap whose functions stay hooked: its place is nobody else's. The number that it had; 0 if there is none.
pub(crate) fn close(handle: u64) -> u32 {
    let id = entry(handle).map_or(0, |entry| entry.id.swap(TAKEN, Ordering::AcqRel));
    if id == TAKEN { 0 } else { id }
}

/// Gives the place of a heap back that was [closed](close), and whose functions are gone.
pub(crate) fn forget(handle: u64) {
    if let Some(entry) = entry(handle) {
        let _ = entry.id.compare_exchange(TAKEN, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Gives a heap a new number, which `tell` hears of before anybody else.
pub(crate) fn renumber(handle: u64, tell: impl FnOnce(&Heap)) {
    let Some(entry) = entry(handle) else { return };
    if let Some(old) = entry.heap() {
        let heap = Heap { id: next_id(), ..old };
        tell(&heap);
        entry.id.store(heap.id, Ordering::Release);
    }
}

/// Tells the trace of a heap.
pub(crate) fn describe(handle: u64, ring: &mut Producer<'static>) {
    if let Some(heap) = entry(handle).and_then(Entry::heap) {
        tell(&heap, ring);
    }
}

/// As [`describe`], of one that is about to come.
pub(crate) fn tell(heap: &Heap, ring: &mut Producer<'static>) {
    let _ = crate::record::push(ring, &wire::heap(heap));
}

/// Tells the trace of life `life` of all heaps, unless it knows them.
pub(crate) fn describe_all(life: u64, ring: &mut Producer<'static>) {
    // Where nobody reads the ring, the trace is to hear of them by the next one.
    if !ring.is_ready() || DESCRIBED.swap(life, Ordering::AcqRel) == life {
        return;
    }
    for heap in entries().iter().filter_map(Entry::heap) {
        tell(&heap, ring);
    }
}

impl Context {
    /// A heap besides the program's own gave out a block.
    pub(crate) fn alloc_in(
        &mut self,
        heap: u32,
        saved: &SavedRegisters,
        address: u64,
        size: u64,
        source: Source,
    ) {
        let Ok(node) = self.stack(saved) else { return };
        self.write_of::<2, 3>(heap, address, size, wire::alloc(address, node, size, source));
    }

    /// As [`Context::plain`], of a heap besides the program's own.
    pub(crate) fn plain_in(&mut self, heap: u32, kind: u8, address: u64) {
        self.write_of::<1, 2>(heap, address, 0, wire::plain(kind, address));
    }

    /// As [`Context::realloc_end`], of a heap besides the program's own.
    pub(crate) fn realloc_end_in(
        &mut self,
        heap: u32,
        saved: &SavedRegisters,
        address: u64,
        size: u64,
        old: u64,
    ) {
        let Ok(node) = self.stack(saved) else {
            // Of another heap the old block counts as gone since its exchange began.
            return if heap == 0 {
                self.gone(old)
            };
        };
        self.write_of::<3, 4>(heap, address, size, wire::realloc_end(address, node, size, old));
    }

    /// A heap is no more, or goes on under another number.
    pub(crate) fn heap_ends(&mut self, id: u32) {
        self.write::<1, 2>(0, 0, wire::plain(kind::HEAP_END, u64::from(id)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heap_keeps_its_handle_and_changes_its_number() {
        let long = [b'n'; 100];
        let one = add(HeapKind::Pool, &long).map(u64::from).expect("there is room");
        let two = add(HeapKind::Allocator, b"two").map(u64::from).expect("there is room");
        assert_ne!(one, two);
        let heap = entry(one).and_then(Entry::heap).expect("it is there");
        assert_eq!((heap.kind, &heap.name[..], heap.id), (HeapKind::Pool, &long[..NAME], id(one)));
        let heap = entry(two).and_then(Entry::heap).expect("it is there");
        assert_eq!((heap.kind, &heap.name[..], heap.id), (HeapKind::Allocator, &b"two"[..], id(two)));
        renumber(one, |heap| {
            assert!(heap.id > id(two));
            assert_eq!((heap.kind, &heap.name[..]), (HeapKind::Pool, &long[..NAME]));
        });
        assert!(id(one) > id(two));
        assert_eq!(remove(one), id(two) + 1);
        for none in [one, 0, 1 << 16, u64::MAX] {
            renumber(none, |heap| panic!("{heap:?}"));
            assert_eq!((id(none), remove(none)), (0, 0));
        }
    }

    #[test]
    fn candidates_are_told_apart_by_where_they_come_from() {
        let candidate =
            |origin| allocator(HeapKind::Candidate, b"c_malloc", origin).map(u64::from).expect("room");
        let (one, two) = (candidate(1), candidate(2));
        let whole = allocator(HeapKind::Allocator, b"c_malloc", 0).map(u64::from).expect("room");
        assert!(one != two && one != whole && two != whole);
        assert_eq!((candidate(1), candidate(2)), (one, two));
        assert_eq!(
            [one, whole].map(|heap| (is_candidate(heap), is_on_trial(heap))),
            [(true, true), (false, false)]
        );
        assert_eq!(
            (weigh(one, 1, 0), weigh(one, 0, 2), weigh(two, 0, u16::MAX)),
            ((1, 0), (1, 2), (0, u16::MAX))
        );
        assert_eq!(weigh(two, ENOUGH, 1), (ENOUGH, u16::MAX));
        assert!(is_on_trial(one) && !is_on_trial(two));
        // Its place is nobody's until its functions are gone.
        assert_ne!(close(one), 0);
        assert_eq!((id(one), close(one), remove(one)), (0, 0, 0));
        assert_ne!(candidate(1), one);
        forget(one);
        forget(two);
        assert_ne!(id(two), 0);
        assert_eq!([two, whole].map(|heap| remove(heap) != 0), [true; 2]);
    }
}
