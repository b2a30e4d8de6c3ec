//! mimalloc's heap (version 2.0.9, without its secure mode): segments at multiples of 32 MiB, divided into pages of blocks of
//! one size, each with lists of those that are free.
//!
//! A segment is known by a word that is its address mixed with a number that only this process has. How many pages a segment has
//! in use it says itself, how many each heap has its heap says, and how many blocks of a page are used the page says, which is
//! counted beside its lists: what doesn't agree is refused. Blocks that other threads gave back wait in one more list of the heap
//! that they came from. Who asked for an alignment may have been given an address in the middle of a block, and nothing says
//! which: such pages are marked, and their blocks are told apart.

use super::object::{self, Object};
use super::{Blocks, Unknown, View, word};
use crate::attach::target::MapLine;
use crate::run::recording::Block;
use std::collections::BTreeMap;
use std::ops::Range;

/// What `mi_version` gives.
const VERSION: u32 = 209;

const SEGMENT: u64 = 32 << 20;
const SLICE: u64 = 64 << 10;
/// A segment says no more of itself than of this many slices.
const SLICES: u64 = SEGMENT / SLICE;

/// Places in a segment's header.
mod segment {
    pub(super) const ABANDONED: usize = 192;
    pub(super) const USED: usize = 208;
    pub(super) const COOKIE: usize = 216;
    pub(super) const ALL_SLICES: usize = 224;
    pub(super) const OWN_SLICES: usize = 232;
    pub(super) const KIND: usize = 240;
    pub(super) const ENTRIES: usize = 248;
    pub(super) const THREAD: usize = 256;
    pub(super) const PAGES: usize = 264;
}

/// Places in what a segment says of a page.
mod page {
    pub(super) const SLICES: usize = 0;
    pub(super) const OFFSET: usize = 4;
    pub(super) const CAPACITY: usize = 10;
    pub(super) const RESERVED: usize = 12;
    pub(super) const FLAGS: usize = 14;
    pub(super) const FREE: usize = 16;
    pub(super) const USED: usize = 24;
    pub(super) const BLOCK: usize = 28;
    pub(super) const LOCAL_FREE: usize = 32;
    pub(super) const THREAD_FREE: usize = 40;
    pub(super) const HEAP: usize = 48;
    pub(super) const LEN: usize = 80;
    /// A flag: addresses in the middle of blocks were given out.
    pub(super) const HAS_ALIGNED: u8 = 2;
}

/// Places in a heap.
mod heap {
    pub(super) const DELAYED: u64 = 2840;
    pub(super) const THREAD: u64 = 2848;
    pub(super) const COOKIE: u64 = 2864;
    pub(super) const PAGE_COUNT: u64 = 3024;
    pub(super) const NEXT: u64 = 3048;
}

/// Where what all heaps of a thread share leads to the first of them, and to all.
const FIRST_HEAP: u64 = 16;
const ALL_HEAPS: u64 = 24;
/// More heaps than any thread has.
const MOST_HEAPS: usize = 1 << 16;

/// Blocks from this size on don't say their size themselves.
const HUGE: u64 = 2 << 30;
/// Of pages with larger blocks only those words are read that are looked at.
const SMALL: u64 = 4096;
/// How much further the first block lies in pages of blocks of so many bytes.
const SHIFT: u64 = 384;
const SHIFTED: std::ops::RangeInclusive<u64> = 8..=1024;

/// Where to look.
#[derive(Debug)]
pub(super) struct Mimalloc {
    /// The heap of the first thread.
    main: u64,
    /// Where each thread has the address of its heap, from the thread pointer.
    own: u64,
}

fn broken(what: &'static str, at: u64) -> Unknown {
    Unknown::Broken { what, at }
}

/// What was found of a heap: how many of the pages are its own, and whose it is.
#[derive(Clone, Copy, Debug, Default)]
struct Pages {
    count: u64,
    thread: u64,
}

/// All that was found.
#[derive(Debug, Default)]
struct Found {
    heaps: BTreeMap<u64, Pages>,
    plain: Vec<Block>,
    within: Vec<Block>,
    /// How much memory pages of small blocks have.
    bytes: u64,
}

/// The version of the library, if it says one in the way that is known: `mov eax, 209; ret`.
pub(super) fn version(view: View<'_>, object: &Object) -> Option<u32> {
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    let function = object.defined(view, &[b"mi_version"]).ok()?.first()?.start;
    let mut code = [0; 10];
    view.read(function, &mut code).ok()?;
    let code = code.strip_prefix(&ENDBR64).unwrap_or(&code);
    (code.first() == Some(&0xb8) && code.get(5) == Some(&0xc3)).then(|| super::half(code, 1))
}

impl Mimalloc {
    pub(super) fn find(view: View<'_>, object: &Object, version: u32) -> Result<Self, Unknown> {
        if version != VERSION {
            let (major, minor, patch) = (version / 100, version / 10 % 10, version % 10);
            return Err(Unknown::Allocator(format!("mimalloc {major}.{minor}.{patch}")));
        }
        let variables = object.thread_variables(view)?;
        let &[own] = &variables[..] else {
            return Err(Unknown::Structure("mimalloc's variables of each thread are others"));
        };
        let data = object.data()?;
        let bytes = object::read(view, data.clone())?;
        // What the first thread's heaps share is the library's, and leads back to the first of them.
        let in_data =
            |at: u64| at.checked_sub(data.start).filter(|_| data.contains(&at)).map(|at| at as usize);
        let is_main = |at: &u64| {
            let shared = in_data(*at).map(|at| word(&bytes, at)).and_then(in_data);
            shared.is_some_and(|shared| word(&bytes, shared + FIRST_HEAP as usize) == *at)
        };
        let mut found = (data.start.next_multiple_of(8)..data.end).step_by(8).filter(is_main);
        match (found.next(), found.next()) {
            (Some(main), None) => Ok(Self { main, own }),
            _ => Err(Unknown::Structure("mimalloc's first heap was not found")),
        }
    }

    /// How much memory its pages of small blocks have, while it runs; nothing if it looks broken.
    pub(super) fn bytes(&self, view: View<'_>, maps: &[MapLine]) -> u64 {
        let mut found = Found::default();
        let _ = self.segments(view, maps, &mut found);
        found.bytes
    }

    /// All live blocks. `pointers`: each thread's own.
    pub(super) fn blocks(
        &self,
        view: View<'_>,
        maps: &[MapLine],
        pointers: impl Iterator<Item = u64>,
    ) -> Result<Blocks, Unknown> {
        let mut found = Found::default();
        self.segments(view, maps, &mut found)?;
        let Found { heaps, mut plain, mut within, .. } = found;
        plain.sort_unstable();
        within.sort_unstable();
        let mut blocks = Live { free: vec![false; plain.len() + within.len()], plain, within };
        // What threads have says whether all was found.
        let mut known: Vec<u64> = heaps.keys().copied().collect();
        for pointer in pointers.filter(|&pointer| pointer != 0) {
            let [own] = view.words(pointer.wrapping_add(self.own))?;
            known.push(own);
            known.extend(siblings(view, own)?);
        }
        known.sort_unstable();
        known.dedup();
        for at in known {
            let pages = heaps.get(&at).copied().unwrap_or_default();
            let [count] = view.words(at.wrapping_add(heap::PAGE_COUNT))?;
            let [delayed, thread] = view.words(at.wrapping_add(heap::DELAYED))?;
            const { assert!(heap::THREAD == heap::DELAYED + 8) };
            if count != pages.count || pages.count != 0 && thread != pages.thread {
                return Err(broken("a heap with other pages than were found", at));
            }
            let mut block = delayed;
            while block != 0 {
                if !blocks.give_back(block) {
                    return Err(broken("a list of blocks that were given back", at));
                }
                [block] = view.words(block)?;
            }
            // What stands for a further heap of a thread lies in the first one.
            blocks.give_back(at);
        }
        Ok(blocks.rest())
    }

    fn segments(&self, view: View<'_>, maps: &[MapLine], found: &mut Found) -> Result<(), Unknown> {
        let [cookie] = view.words(self.main + heap::COOKIE)?;
        if cookie == 0 {
            return Err(Unknown::Structure("mimalloc has not been used"));
        }
        let has_no_name = |line: &MapLine| line.name.is_empty() || line.name.starts_with("[anon");
        let places = maps.iter().filter(|line| line.inode == 0 && line.readable && has_no_name(line));
        let mut behind = 0;
        for place in places {
            let first = place.range.start.next_multiple_of(SEGMENT);
            for at in (first..place.range.end).step_by(SEGMENT as usize) {
                // Untouched memory has none; to read it would make the kernel map it.
                let is_touched = || view.memory.pages(at / 4096, 1).is_none_or(|pages| pages.contains(&true));
                if at < behind || !is_touched() {
                    continue;
                }
                let mut header = [0; segment::PAGES];
                if view.read(at, &mut header).is_ok() && word(&header, segment::COOKIE) ^ at == cookie {
                    behind = self.segment(view, at, &header, found)?.max(behind);
                }
            }
        }
        Ok(())
    }

    /// Takes the pages of the segment at an address, and says where it ends.
    fn segment(&self, view: View<'_>, at: u64, header: &[u8], found: &mut Found) -> Result<u64, Unknown> {
        let (all, own) = (word(header, segment::ALL_SLICES), word(header, segment::OWN_SLICES));
        let (used, abandoned) = (word(header, segment::USED), word(header, segment::ABANDONED));
        let (entries, thread) = (word(header, segment::ENTRIES), word(header, segment::THREAD));
        if used == 0 {
            // It waits for another use, or lies in the middle of something that is larger.
            return Ok(0);
        }
        let is_huge = super::half(header, segment::KIND) == 1;
        let is_one = super::half(header, segment::KIND) <= 1
            && own == 1
            && entries == all.min(SLICES)
            && (is_huge || all == SLICES)
            && (2..1 << 31).contains(&all)
            && (thread != 0 || abandoned == used);
        if !is_one {
            return Err(broken("a segment's header", at));
        }
        let mut pages = vec![0; entries as usize * page::LEN];
        view.read(at + segment::PAGES as u64, &mut pages)?;
        let (mut slice, mut count) = (0, 0);
        while slice < entries {
            let page = Page::of(&pages[slice as usize * page::LEN..], at, slice, thread);
            if page.slices == 0 || page.offset != 0 || page.slices > all - slice {
                return Err(broken("a page of a wrong size", page.at));
            }
            if slice == 0 && page.slices != own {
                return Err(broken("a segment's header", at));
            }
            if slice != 0 && page.block != 0 {
                count += 1;
                page.take(view, found)?;
            }
            slice += page.slices;
        }
        if count != used {
            return Err(broken("a segment with other pages than it says", at));
        }
        Ok(at + all * SLICE)
    }
}

/// All heaps of the thread that this one is of.
fn siblings(view: View<'_>, heap: u64) -> Result<Vec<u64>, Unknown> {
    let [shared] = view.words(heap)?;
    let mut all = Vec::new();
    if shared == 0 {
        return Ok(all);
    }
    let [mut next] = view.words(shared.wrapping_add(ALL_HEAPS))?;
    while next != 0 {
        if all.len() == MOST_HEAPS {
            return Err(Unknown::Structure("a thread's heaps are no list"));
        }
        all.push(next);
        [next] = view.words(next.wrapping_add(heap::NEXT))?;
    }
    Ok(all)
}

/// What a segment says of a page.
#[derive(Clone, Copy, Debug)]
struct Page {
    /// The address of its first slice.
    at: u64,
    slices: u64,
    offset: u32,
    capacity: u64,
    reserved: u64,
    flags: u8,
    used: u64,
    block: u64,
    /// The first block of each list of free ones.
    free: [u64; 2],
    given_back: u64,
    heap: u64,
    thread: u64,
}

impl Page {
    fn of(bytes: &[u8], segment: u64, slice: u64, thread: u64) -> Self {
        let half = |at| super::half(bytes, at);
        let short = |at: usize| u64::from(half(at) & 0xffff);
        Self {
            at: segment + slice * SLICE,
            slices: half(page::SLICES).into(),
            offset: half(page::OFFSET),
            capacity: short(page::CAPACITY),
            reserved: short(page::RESERVED),
            flags: bytes.get(page::FLAGS).copied().unwrap_or(0),
            used: half(page::USED).into(),
            block: half(page::BLOCK).into(),
            free: [word(bytes, page::FREE), word(bytes, page::LOCAL_FREE)],
            given_back: word(bytes, page::THREAD_FREE),
            heap: word(bytes, page::HEAP),
            thread,
        }
    }

    /// Where its blocks lie, and how long each is.
    fn room(&self) -> Result<(Range<u64>, u64), Unknown> {
        let shift = if SHIFTED.contains(&self.block) { SHIFT } else { 0 };
        let all = self.slices * SLICE - shift;
        let block = if self.block < HUGE { self.block } else { all };
        let fits = block >= 8
            && self.used <= self.capacity
            && self.capacity <= self.reserved
            && self.reserved == (all / block) & 0xffff;
        let start = self.at + shift;
        if fits { Ok((start..start + all, block)) } else { Err(broken("a page's blocks", self.at)) }
    }

    /// Takes its live blocks.
    fn take(&self, view: View<'_>, found: &mut Found) -> Result<(), Unknown> {
        let (room, block) = self.room()?;
        // One whose thread has ended is of no heap.
        if (self.heap == 0) != (self.thread == 0) {
            return Err(broken("a page of no heap", self.at));
        }
        if self.heap != 0 {
            let pages = found.heaps.entry(self.heap).or_default();
            if pages.count != 0 && pages.thread != self.thread {
                return Err(broken("a heap of two threads", self.heap));
            }
            *pages = Pages { count: pages.count + 1, thread: self.thread };
        }
        found.bytes += if block <= SMALL { room.end - room.start } else { 0 };
        let mut lists =
            Lists { view, room, block, free: vec![false; self.capacity as usize], bytes: Vec::new() };
        let free = lists.walk(self.free[0])? + lists.walk(self.free[1])?;
        // The lowest bits say how others give back; while one does, it stands in the code.
        let given_back =
            if self.given_back & 3 == 1 { None } else { Some(lists.walk(self.given_back & !3)?) };
        if given_back.is_none_or(|count| count > self.used) || self.used + free != self.capacity {
            return Err(broken("a page's lists of free blocks", self.at));
        }
        let is_aligned = self.flags & page::HAS_ALIGNED != 0;
        let blocks = if is_aligned { &mut found.within } else { &mut found.plain };
        let address = |index: usize| lists.room.start + index as u64 * block;
        let live = lists.free.iter().enumerate().filter(|(_, is_free)| !**is_free);
        blocks.extend(live.map(|(index, _)| (address(index), block)));
        Ok(())
    }
}

/// A page's lists of free blocks: each block's first word leads to the next.
struct Lists<'v> {
    view: View<'v>,
    room: Range<u64>,
    block: u64,
    /// By its place in the page, whether a block is in one of them.
    free: Vec<bool>,
    /// All of the page that was ever given out, if it was read.
    bytes: Vec<u8>,
}

impl Lists<'_> {
    /// Marks all of a list, and says how many that are.
    fn walk(&mut self, first: u64) -> Result<u64, Unknown> {
        let (mut at, mut count) = (first, 0);
        if at != 0 && self.block <= SMALL && self.bytes.is_empty() {
            self.bytes = vec![0; self.free.len() * self.block as usize];
            self.view.read(self.room.start, &mut self.bytes)?;
        }
        while at != 0 {
            let offset = at.wrapping_sub(self.room.start);
            let free = self.free.get_mut((offset / self.block) as usize);
            // None is in two, or in one twice: so it ends.
            match free {
                Some(free) if offset.is_multiple_of(self.block) && !*free => *free = true,
                _ => return Err(broken("a list of free blocks", at)),
            }
            count += 1;
            at = if self.bytes.is_empty() {
                let [next] = self.view.words(at)?;
                next
            } else {
                word(&self.bytes, offset as usize)
            };
        }
        Ok(count)
    }
}

/// Live blocks by address, of which some turn out to be free.
struct Live {
    plain: Vec<Block>,
    within: Vec<Block>,
    /// Of all of them, in this order.
    free: Vec<bool>,
}

impl Live {
    /// Whether there is such a block, and it was not known to be free.
    fn give_back(&mut self, block: u64) -> bool {
        let find = |blocks: &[Block]| blocks.binary_search_by_key(&block, |&(at, _)| at).ok();
        let found = find(&self.plain).or_else(|| find(&self.within).map(|at| self.plain.len() + at));
        let free = found.and_then(|at| self.free.get_mut(at));
        free.is_some_and(|free| !std::mem::replace(free, true))
    }

    fn rest(self) -> Blocks {
        let Self { mut plain, mut within, free } = self;
        let mut free = free.into_iter();
        plain.retain(|_| !free.next().unwrap_or(false));
        within.retain(|_| !free.next().unwrap_or(false));
        Blocks { plain, within }
    }
}
