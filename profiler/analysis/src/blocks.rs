//! The live blocks by their addresses, made for what a heap does to them: millions that come and go, most of them near to the
//! last one.
//!
//! A block is a word. Where blocks lie close together, the words lie as the blocks do: for a region of 16 KiB there is a
//! *page* with a word for each 32 bytes, which is the least that glibc's blocks are apart. So nothing is searched, and
//! blocks that are neighbours share lines of the processor's cache. Where blocks are far between, pages would be mostly empty:
//! their words lie in a [`Table`] by address. What a word has no room for, such as a size of gigabytes, is kept whole in a map.
//!
//! A region gets a page when the table has [`MANY`] of its blocks, while there are few pages [`SOME`], or with its first one if the
//! region before it has that many in its page, since heaps grow by what follows; and gives it back when it is empty. So beyond the
//! first few a page has at least [`MANY`] blocks, or follows one that had, when it is made: what is kept grows with the most blocks
//! that were ever live.
//!
//! ```text
//! word   = stack:26 size:24 kind:12 upper:1 used:1       where more than totals are kept
//! word   = size:62 upper:1 used:1                        where they are not
//! region = page:32 live:16 others:16
//! ```
//! `upper` tells the two places in 32 bytes apart that blocks may lie at. A kind is a number for a thread, a source and an
//! alignment. `page` is counted from 1, `live` are the blocks in it, and `others` those of the region that lie in the table or
//! the map. Invariant: a block is in one place only, and `others` is right for all addresses below [`COUNTED`] once regions
//! are [kept](Blocks::count_regions).

use crate::hash::{AddressMap, FoldHash};
use crate::live::Block;
use crate::pages::{Pages, WORDS};
use crate::table::Table;
use grapnel_trace::{Alignment, Source};
use std::collections::HashMap;

/// What a region takes of the addresses, and how much of them a part has, both as logarithms.
const REGION: u32 = 14;
const PART: u32 = 30;
const REGIONS: usize = 1 << (PART - REGION);
const _: () = assert!(WORDS == 1 << (REGION - 5));
/// Beyond this lie no programs, but keys of other kinds than addresses, and they have no regions.
const COUNTED: u64 = 1 << 47;
/// More gigabytes with blocks in them than a recording has; further blocks lie in the table.
const MOST_PARTS: u16 = 1 << 12;
/// So many blocks in a region deserve a page: 64 bytes each, at most.
const MANY: u64 = 64;
/// So few do while there are less than [`FEW_PAGES`], which are 16 MiB.
const SOME: u64 = 8;
const FEW_PAGES: usize = 4096;

/// What tells blocks of different kinds in a word, and how many kinds it can tell.
const KIND_BITS: u32 = 12;
const SIZE_BITS: u32 = 24;
const STACK_BITS: u32 = 26;
const _: () = assert!((Source::Before as u8) < 8);
const _: () = assert!(KIND_BITS + SIZE_BITS + STACK_BITS + 2 == u64::BITS);

/// Threads have numbers below 2^24: what else is kept of a block goes above.
const THREAD: u32 = (1 << 24) - 1;
/// Alignments are kept in five bits. Beyond 2^30 bytes they are all the same.
pub(crate) const ALIGNMENT: u8 = 31;

/// The kinds that blocks have: thread, source and alignment in one number, each with a number of its own in the order in which
/// they came.
#[derive(Debug)]
struct Kinds {
    all: Vec<Kind>,
    numbers: HashMap<u32, u16, FoldHash>,
    /// Those that were asked for last, by their lower bits: kinds as they are, and their numbers.
    recent: [(u32, u16); 64],
}

/// A kind, taken apart.
#[derive(Clone, Copy, Debug)]
struct Kind {
    thread: u32,
    source: Source,
    alignment: Alignment,
}

impl Default for Kinds {
    fn default() -> Self {
        // No kind has all bits set, since there are fewer sources.
        Self { all: Vec::new(), numbers: HashMap::default(), recent: [(u32::MAX, 0); 64] }
    }
}

impl Kinds {
    #[inline]
    fn of(block: &Block) -> u32 {
        let how = block.source as u8 | block.alignment.to_u8().min(ALIGNMENT) << 3;
        (block.thread & THREAD) << 8 | u32::from(how)
    }

    #[inline]
    fn number(&mut self, kind: u32) -> Option<u16> {
        let at = (kind ^ kind >> 5) as usize % self.recent.len();
        let (known, number) = self.recent[at];
        if known == kind { Some(number) } else { self.find(kind, at) }
    }

    #[cold]
    fn find(&mut self, kind: u32, at: usize) -> Option<u16> {
        let number = match self.numbers.get(&kind) {
            Some(&number) => number,
            None if self.all.len() < 1 << KIND_BITS => {
                let number = self.all.len() as u16;
                self.all.push(Kind {
                    thread: kind >> 8,
                    // All others have a number among those of `from_u8`.
                    source: Source::from_u8(kind as u8 & 7).unwrap_or(Source::Before),
                    alignment: Alignment::from_u8(kind as u8 >> 3).unwrap_or_default(),
                });
                self.numbers.insert(kind, number);
                number
            }
            None => return None,
        };
        self.recent[at] = (kind, number);
        Some(number)
    }
}

/// A region's word, taken apart.
#[derive(Clone, Copy)]
struct Region(u64);

impl Region {
    const LIVE: u64 = 1 << 16;
    const OTHER: u64 = 1;

    #[inline]
    fn page(self) -> Option<usize> {
        ((self.0 >> 32) as usize).checked_sub(1)
    }

    #[inline]
    fn live(self) -> u64 {
        self.0 >> 16 & 0xffff
    }

    #[inline]
    fn others(self) -> u64 {
        self.0 & 0xffff
    }
}

/// Live blocks, with nothing but their sizes if `W` is 2, with all but their means if it is 3, else with all.
#[derive(Debug)]
pub(crate) struct Blocks<const W: usize> {
    /// Which part each gigabyte is, from 1. Empty until regions are counted.
    parts: Vec<u16>,
    part_count: u16,
    /// Those of all parts, [`REGIONS`] for each.
    regions: Vec<u64>,
    /// A page that is not in use is all zero.
    pages: Pages,
    free_pages: Vec<u32>,
    kinds: Kinds,
    /// Blocks outside of pages: address and word.
    table: Table<2>,
    /// Blocks that no word has room for.
    whole: AddressMap<Block>,
    len: usize,
}

impl<const W: usize> Default for Blocks<W> {
    fn default() -> Self {
        Self {
            parts: Vec::new(),
            part_count: 0,
            regions: Vec::new(),
            pages: Pages::default(),
            free_pages: Vec::new(),
            kinds: Kinds::default(),
            table: Table::default(),
            whole: AddressMap::default(),
            len: 0,
        }
    }
}

/// The two lowest bits of the word of a block at this address.
#[inline]
fn tag(address: u64) -> u64 {
    1 | (address >> 4 & 1) << 1
}

/// Which word of its region's page an address has.
#[inline]
fn place(address: u64) -> usize {
    (address >> 5) as usize % WORDS
}

impl<const W: usize> Blocks<W> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// All blocks in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, Block)> {
        let parts = (0..).zip(&self.parts).filter(|&(_, &part)| part != 0);
        let regions = parts.flat_map(move |(gigabyte, &part)| {
            let first = (usize::from(part) - 1) * REGIONS;
            (0..).zip(&self.regions[first..first + REGIONS]).filter_map(move |(at, &region)| {
                Some((gigabyte << PART | at << REGION, Region(region).page()?))
            })
        });
        let words = regions.flat_map(move |(address, page)| {
            (0..).zip(self.pages.words(page)).filter(|&(_, word)| word != 0).map(
                move |(at, word): (u64, _)| (address | at << 5 | (word >> 1 & 1) << 4, self.unpacked(word)),
            )
        });
        let table = self.table.iter().map(|&[address, word]| (address, self.unpacked(word)));
        words.chain(table).chain(self.whole.iter().map(|(&address, &block)| (address, block)))
    }

    /// Whether there are so few that the processor has them at hand.
    #[inline]
    pub(crate) fn are_few(&self) -> bool {
        self.len <= 1 << 13
    }

    /// Loads what is kept near an address, to be there when it is used, and gives the stack of the block that is likely
    /// to lie there; of no meaning otherwise.
    #[inline]
    pub(crate) fn peek(&self, address: u64) -> u32 {
        let word = match self.region(address).and_then(|at| Region(self.regions[at]).page()) {
            Some(page) => self.pages.word(page, place(address)),
            None => self.table.peek(address)[1],
        };
        (word >> (u64::BITS - STACK_BITS)) as u32
    }

    /// The block at an address.
    pub(crate) fn get(&self, address: u64) -> Option<Block> {
        if let Some(at) = self.region(address) {
            let region = Region(self.regions[at]);
            if let Some(page) = region.page() {
                let word = self.pages.word(page, place(address));
                if word & 3 == tag(address) && address.is_multiple_of(16) {
                    return Some(self.unpacked(word));
                }
            }
            if region.others() == 0 {
                return None;
            }
        }
        match self.table.get(address) {
            Some(&[_, word]) => Some(self.unpacked(word)),
            None => self.whole.get(&address).copied(),
        }
    }

    /// Puts in a block and gives back the one that was at the same address.
    #[inline]
    pub(crate) fn insert(&mut self, address: u64, block: &Block) -> Option<Block> {
        let word = self.packed(block);
        if let (Some(at), Some(word)) = (self.region(address), word)
            && let region = Region(self.regions[at])
            && let Some(page) = region.page()
            && region.others() == 0
            && address.is_multiple_of(16)
            && self.pages.word(page, place(address)) == 0
        {
            self.pages.set(page, place(address), word | tag(address));
            self.regions[at] += Region::LIVE;
            self.len += 1;
            return None;
        }
        self.insert_otherwise(address, block, word)
    }

    #[inline(never)]
    fn insert_otherwise(&mut self, address: u64, block: &Block, word: Option<u64>) -> Option<Block> {
        if self.parts.is_empty() && self.table.len() as u64 + 1 >= SOME {
            self.count_regions();
        }
        let region = self.region_made(address);
        let paged = region.filter(|_| word.is_some() && address.is_multiple_of(16));
        if let Some(word) = word
            && self.whole.is_empty()
            && paged.is_none_or(|at| self.page_for(at, address).is_none())
        {
            // It can only be in the table.
            let old = self.table.insert([address, word | 1]);
            if old.is_none() {
                self.len += 1;
                region.into_iter().for_each(|at| self.regions[at] += Region::OTHER);
            }
            return old.map(|[_, word]| self.unpacked(word));
        }
        // By this a page may go.
        let old = self.remove(address);
        self.len += 1;
        if let (Some(at), Some(word)) = (paged, word)
            && let Some(page) = self.page_for(at, address)
            && self.pages.word(page, place(address)) == 0
        {
            self.pages.set(page, place(address), word | tag(address));
            self.regions[at] += Region::LIVE;
            return old;
        }
        if let Some(at) = region {
            self.regions[at] += Region::OTHER;
        }
        match word {
            Some(word) => drop(self.table.insert([address, word | 1])),
            None => drop(self.whole.insert(address, *block)),
        }
        old
    }

    /// Takes out the block at an address.
    #[inline]
    pub(crate) fn remove(&mut self, address: u64) -> Option<Block> {
        if let Some(at) = self.region(address) {
            let region = Region(self.regions[at]);
            if let Some(page) = region.page() {
                let word = self.pages.word(page, place(address));
                if word & 3 == tag(address) && address.is_multiple_of(16) {
                    self.pages.set(page, place(address), 0);
                    self.len -= 1;
                    self.regions[at] -= Region::LIVE;
                    if region.0 as u32 == Region::LIVE as u32 {
                        self.give_back(at, page);
                    }
                    return Some(self.unpacked(word));
                }
            }
            if region.others() == 0 {
                return None;
            }
        }
        self.remove_otherwise(address)
    }

    #[inline(never)]
    fn remove_otherwise(&mut self, address: u64) -> Option<Block> {
        let block = match self.table.remove(address) {
            Some([_, word]) => self.unpacked(word),
            None => self.whole.remove(&address)?,
        };
        self.len -= 1;
        if let Some(at) = self.region(address) {
            self.regions[at] -= Region::OTHER;
            let region = Region(self.regions[at]);
            if let (0, 0, Some(page)) = (region.live(), region.others(), region.page()) {
                self.give_back(at, page);
            }
        }
        Some(block)
    }

    /// Where the region of an address is, if its gigabyte has any.
    #[inline]
    fn region(&self, address: u64) -> Option<usize> {
        let part = usize::from(*self.parts.get(usize::try_from(address >> PART).ok()?)?);
        let first = part.checked_sub(1)? * REGIONS;
        Some(first + (address >> REGION) as usize % REGIONS)
    }

    /// As [`Blocks::region`], and makes it.
    fn region_made(&mut self, address: u64) -> Option<usize> {
        let part = self.parts.get_mut((address >> PART) as usize)?;
        if *part == 0 {
            if self.part_count >= MOST_PARTS {
                return None;
            }
            self.part_count += 1;
            *part = self.part_count;
            self.regions.resize(REGIONS * usize::from(self.part_count), 0);
        }
        self.region(address)
    }

    /// From now on what regions have is known.
    #[cold]
    fn count_regions(&mut self) {
        self.parts = vec![0; (COUNTED >> PART) as usize];
        let addresses: Vec<u64> =
            self.table.iter().map(|&[address, _]| address).chain(self.whole.keys().copied()).collect();
        for address in addresses {
            if let Some(at) = self.region_made(address) {
                self.regions[at] += Region::OTHER;
            }
        }
    }

    /// The page of a region, made if it deserves one.
    fn page_for(&mut self, at: usize, address: u64) -> Option<usize> {
        let region = Region(self.regions[at]);
        if let Some(page) = region.page() {
            return Some(page);
        }
        let before = self.region(address.wrapping_sub(1 << REGION));
        let many = if self.pages.len() < FEW_PAGES { SOME } else { MANY };
        let follows = before.is_some_and(|before| Region(self.regions[before]).live() >= many);
        if !follows && region.others() < many {
            return None;
        }
        let page = match self.free_pages.pop() {
            Some(page) => page,
            None => self.pages.add()?,
        };
        self.regions[at] |= (u64::from(page) + 1) << 32;
        self.gather(at, page as usize, address);
        Some(page as usize)
    }

    /// Puts those blocks of a region into its new page that can lie in one.
    fn gather(&mut self, at: usize, page: usize, address: u64) {
        let start = address >> REGION << REGION;
        for address in (0..1 << (REGION - 4)).map(|n| start + (n << 4)) {
            if Region(self.regions[at]).others() == 0 {
                return;
            }
            if self.pages.word(page, place(address)) != 0 {
                continue;
            }
            if let Some([_, word]) = self.table.remove(address) {
                self.pages.set(page, place(address), word & !3 | tag(address));
                self.regions[at] += Region::LIVE;
                self.regions[at] -= Region::OTHER;
            }
        }
    }

    #[cold]
    fn give_back(&mut self, at: usize, page: usize) {
        self.regions[at] &= u64::from(u32::MAX);
        self.free_pages.push(page as u32);
    }

    /// The word of a block but for its lowest bits, if there is room in it.
    #[inline]
    fn packed(&mut self, block: &Block) -> Option<u64> {
        if W == 2 {
            return (block.size >> 62 == 0).then_some(block.size << 2);
        }
        if W > 3 || block.size >> SIZE_BITS != 0 || block.stack >> STACK_BITS != 0 {
            return None;
        }
        let kind = self.kinds.number(Kinds::of(block))?;
        let upper = u64::from(block.stack) << SIZE_BITS | block.size;
        Some((upper << KIND_BITS | u64::from(kind)) << 2)
    }

    #[inline]
    fn unpacked(&self, word: u64) -> Block {
        let none = Block {
            size: word >> 2,
            stack: 0,
            thread: 0,
            source: Source::Malloc,
            alignment: Alignment::NONE,
            mean: 0,
        };
        if W == 2 {
            return none;
        }
        let Kind { thread, source, alignment } = self.kinds.all[(word >> 2) as usize % (1 << KIND_BITS)];
        Block {
            size: word >> (2 + KIND_BITS) & ((1 << SIZE_BITS) - 1),
            stack: (word >> (u64::BITS - STACK_BITS)) as u32,
            thread,
            source,
            alignment,
            ..none
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    struct Random(u64);

    impl Random {
        fn below(&mut self, n: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 11) % n
        }
    }

    /// What a set with `W` keeps of a block.
    fn kept<const W: usize>(block: Block) -> Block {
        let Block { size, mean, .. } = block;
        match W {
            2 => Block {
                size,
                stack: 0,
                thread: 0,
                source: Source::Malloc,
                alignment: Alignment::NONE,
                mean: 0,
            },
            3 => Block { mean: 0, ..block },
            _ => Block { mean, ..block },
        }
    }

    /// Mostly what programs have, sometimes the largest there is.
    fn random_block(random: &mut Random) -> Block {
        let is_odd = random.below(50) == 0;
        let number = |random: &mut Random, few: u64, most: u64| {
            if is_odd && random.below(2) == 0 { most - random.below(3).min(most) } else { random.below(few) }
        };
        Block {
            size: number(random, 3000, u64::MAX),
            stack: number(random, 5000, u64::from(u32::MAX)) as u32,
            thread: number(random, 3, u64::from(THREAD)) as u32,
            source: Source::from_u8(random.below(7) as u8).unwrap_or(Source::Before),
            alignment: if is_odd { Alignment::of(1 << random.below(20)) } else { Alignment::NONE },
            mean: random.below(2),
        }
    }

    /// Every way into the set, against a map that can't be wrong.
    fn compare<const W: usize>(addresses: impl Fn(u64) -> u64) -> Blocks<W> {
        let mut blocks = Blocks::<W>::default();
        let mut model = BTreeMap::new();
        let mut random = Random(0x1234_5678_9abc_def1);
        for step in 0..200_000 {
            let address = addresses(random.below(1 << 40));
            // Grows and shrinks by turns.
            let grows = step / 20_000 % 2 == 0;
            if random.below(8) < if grows { 5 } else { 2 } {
                let block = random_block(&mut random);
                let old = blocks.insert(address, &block).map(kept::<W>);
                assert_eq!(old, model.insert(address, kept::<W>(block)));
            } else {
                blocks.peek(address);
                assert_eq!(blocks.get(address).map(kept::<W>), model.get(&address).copied());
                assert_eq!(blocks.remove(address).map(kept::<W>), model.remove(&address));
            }
            assert_eq!(blocks.len(), model.len());
        }
        let found: BTreeMap<u64, Block> = blocks.iter().map(|(at, block)| (at, kept::<W>(block))).collect();
        assert_eq!(found.len(), blocks.iter().count());
        assert_eq!(found, model);
        for &address in model.keys() {
            assert!(blocks.remove(address).is_some());
        }
        assert_eq!((blocks.len(), blocks.iter().count()), (0, 0));
        blocks
    }

    fn compare_each(addresses: impl Fn(u64) -> u64 + Copy) -> Blocks<3> {
        compare::<2>(addresses);
        compare::<4>(addresses);
        compare::<3>(addresses)
    }

    /// What an empty set must have: no page in use, none that isn't clean, and nothing counted.
    fn is_clean(blocks: &Blocks<3>) -> bool {
        let in_use = blocks.free_pages.iter().flat_map(|&page| blocks.pages.words(page as usize));
        blocks.free_pages.len() == blocks.pages.len()
            && in_use.chain(blocks.regions.iter().copied()).all(|word| word == 0)
    }

    #[test]
    fn agrees_with_an_ordered_map() {
        let heap = compare_each(|n| 0x5555_5000_0000 + n % 20_000 * 48);
        assert!(is_clean(&heap) && heap.pages.len() > 40, "{} pages", heap.pages.len());
        // Two for each word, at odd addresses, and at the lowest.
        assert!(is_clean(&compare_each(|n| 0x1000 + n % 3000 * 16)));
        assert!(is_clean(&compare_each(|n| n % 3000 * 8)));
        assert!(is_clean(&compare_each(|n| n % 600)));
        // Far between, also in many gigabytes and beyond where regions are.
        assert!(compare_each(|n| (n % 5000) << 12 | 0x10).pages.len() == 0);
        assert!(is_clean(&compare_each(|n| (n % 7000) << 29)));
        assert!(is_clean(&compare_each(|n| (n % 700).wrapping_mul(0x9e37_79b9_7f4a_7c15))));
        // A heap with room that grows sparse, and heaps of equal addresses under different keys.
        assert!(is_clean(&compare_each(|n| (n % 20_000).pow(2) & !15)));
        assert!(is_clean(&compare_each(|n| ((n % 3) << 48) | (0x7000 + n % 2000 * 32))));
    }

    #[test]
    fn more_kinds_than_have_numbers_are_kept_whole() {
        let mut blocks = Blocks::<3>::default();
        let mut random = Random(7);
        let block = |thread: u32| Block { thread, size: 9, ..kept::<2>(random_block(&mut Random(3))) };
        for thread in 0..3 << KIND_BITS {
            assert_eq!(blocks.insert(0x10_0000 + u64::from(thread) * 32, &block(thread)), None);
        }
        assert_eq!(blocks.whole.len(), 2 << KIND_BITS);
        for _ in 0..1000 {
            let thread = random.below(3 << KIND_BITS) as u32;
            assert_eq!(blocks.get(0x10_0000 + u64::from(thread) * 32), Some(block(thread)));
        }
    }
}
