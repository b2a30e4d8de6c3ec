//! Extents: what jemalloc divides its memory into. Each is one large block, or has small ones of one size.
//!
//! A tree leads from the number of a page to what is kept of its extent: the upper half of the number to a leaf, the lower half
//! there to a word with the address of the extent's variables, its size's index and its state, which it says too.

use super::super::{Unknown, View, object, word};
use super::touched;
use crate::run::recording::Block;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Indices of sizes: those of small blocks come first.
pub(super) const NUMBER_OF_BINS: usize = 36;
pub(super) const NUMBER_OF_SIZES: usize = 232;

const PAGE: u64 = 4096;
/// Of the tree: what comes before its words, and how many of these it and each leaf has.
const BEFORE_ROOT: u64 = 120;
const LOG_WORDS: u32 = 18;
const WORDS: u64 = 1 << LOG_WORDS;

/// What is kept of an extent: bits, its address, its size with a number, three words, links, and a bit for each block.
const EXTENT: usize = 128;
const ADDRESS: usize = 8;
const SIZE: usize = 16;
const FREE: usize = 64;
const MOST_BLOCKS: u64 = 512;
/// As many of them as lie near to each other are read at once.
const WINDOW: u64 = 1 << 16;

/// Of an extent's bits, and of a leaf's word: where what is, and how many bits that has.
const ARENA: (u32, u32) = (0, 12);
const SLAB: (u32, u32) = (12, 1);
const STATE: (u32, u32) = (17, 3);
const INDEX: (u32, u32) = (20, 8);
const NUMBER_FREE: (u32, u32) = (28, 10);
const SHARD: (u32, u32) = (38, 6);
const LEAF_SLAB: (u32, u32) = (0, 1);
const LEAF_STATE: (u32, u32) = (2, 3);
const LEAF_INDEX: (u32, u32) = (48, 16);
/// It is in use.
const ACTIVE: u64 = 0;

fn bits(word: u64, (at, count): (u32, u32)) -> u64 {
    (word >> at) & ((1 << count) - 1)
}

/// How large blocks of an index are: 8, four that are 16 apart, then four in each doubling.
pub(super) fn size_of(index: usize) -> u64 {
    let Some(index) = index.checked_sub(1) else { return 8 };
    let (group, within) = (index / 4, index as u64 % 4 + 1);
    if group == 0 { 16 * within } else { (32 << group) + (within << (group + 3)) }
}

fn broken(what: &'static str, at: u64) -> Unknown {
    Unknown::Broken { what, at }
}

/// One that is in use.
#[derive(Debug)]
struct Extent {
    is_slab: bool,
    index: usize,
    address: u64,
    size: u64,
    /// A bit for each free block.
    free: [u64; 8],
}

/// All that are in use.
#[derive(Debug, Default)]
pub(super) struct Extents {
    all: Vec<Extent>,
    /// By arena, by index of size: how many blocks, and how many extents.
    counted: Vec<Counted>,
}

/// How many blocks and extents of each size an arena has.
#[derive(Clone, Debug, Default)]
pub(super) struct Counted(BTreeMap<usize, (u64, u64)>);

impl Counted {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn of_size(&self, index: usize) -> (u64, u64) {
        self.0.get(&index).copied().unwrap_or_default()
    }
}

/// A word of a leaf, and the page that it is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Leaf {
    extent: u64,
    page: u64,
    word: u64,
}

impl Extents {
    /// `data`: the library's variables, of which the tree is one.
    pub(super) fn find(view: View<'_>, tree: u64, data: &Range<u64>) -> Result<Self, Unknown> {
        let root = tree.wrapping_add(BEFORE_ROOT)..tree.wrapping_add(BEFORE_ROOT + 8 * WORDS);
        if root.start < data.start || root.end > data.end {
            return Err(Unknown::Structure("jemalloc's tree of extents was not found"));
        }
        let mut leaves = Vec::new();
        for (upper, leaf) in words(view, &root)? {
            for (lower, word) in words(view, &(leaf..leaf.wrapping_add(8 * WORDS)))? {
                // What would be a sign is filled up with it.
                let extent = (word.cast_signed() << 16 >> 16).cast_unsigned() & !0x7f;
                // What isn't jemalloc's any more keeps the index of no size.
                if extent == 0 {
                    continue;
                }
                let last: Option<&Leaf> = leaves.last();
                // Each page of one with small blocks leads to it.
                if last.is_none_or(|last| (last.extent, last.word) != (extent, word)) {
                    leaves.push(Leaf { extent, page: (upper << LOG_WORDS | lower) * PAGE, word });
                }
            }
        }
        leaves.sort_unstable();
        let mut found = Self::default();
        let mut window = (0, Vec::new());
        let mut at = 0;
        while let Some(first) = leaves.get(at) {
            let rest = &leaves[at..];
            let pages = &rest[..rest.iter().take_while(|leaf| leaf.extent == first.extent).count()];
            let offset = first.extent.wrapping_sub(window.0);
            if offset.saturating_add(EXTENT as u64) > window.1.len() as u64 {
                // To the last one that is near enough.
                let near = rest.iter().take_while(|other| other.extent - first.extent < WINDOW).last();
                let end = near.map_or(first.extent, |other| other.extent).saturating_add(EXTENT as u64);
                // What lies between them need not be mapped.
                let own = || object::read(view, first.extent..first.extent.saturating_add(EXTENT as u64));
                window = (first.extent, object::read(view, first.extent..end).or_else(|_| own())?);
            }
            let offset = first.extent.wrapping_sub(window.0) as usize;
            let bytes = window.1.get(offset..).and_then(<[u8]>::first_chunk).ok_or(Unknown::Memory)?;
            found.take(pages, bytes)?;
            at += pages.len();
        }
        found.all.sort_unstable_by_key(|extent| extent.address);
        let overlap = found.all.windows(2).find(|pair| pair[1].start() - pair[0].start() < pair[0].size);
        match overlap {
            Some(pair) => Err(broken("two extents at one place", pair[1].address)),
            None => Ok(found),
        }
    }

    /// `pages`: those that lead to it. The first one's word says all of it, the others' perhaps how it was once.
    fn take(&mut self, pages: &[Leaf], bytes: &[u8; EXTENT]) -> Result<(), Unknown> {
        let Some(&leaf) = pages.first() else { return Ok(()) };
        let of = word(bytes, 0);
        let (address, size) = (word(bytes, ADDRESS), word(bytes, SIZE) & !(PAGE - 1));
        let (state, index) = (bits(of, STATE), bits(of, INDEX));
        let (is_slab, start) = (bits(of, SLAB) == 1, address & !(PAGE - 1));
        let is_one = start == leaf.page
            && pages.iter().all(|leaf| leaf.page - start < size)
            && bits(leaf.word, LEAF_STATE) == state
            && (state != ACTIVE || bits(leaf.word, LEAF_INDEX) == index)
            && (state != ACTIVE || bits(leaf.word, LEAF_SLAB) == u64::from(is_slab));
        if !is_one {
            return Err(broken("an extent of another kind than the tree says", leaf.extent));
        }
        let index = index as usize;
        // What has no size isn't anybody's.
        if state != ACTIVE || index == NUMBER_OF_SIZES {
            return Ok(());
        }
        if index > NUMBER_OF_SIZES {
            return Err(broken("an extent of no size", leaf.extent));
        }
        let free = std::array::from_fn(|at| word(bytes, FREE + 8 * at));
        let arena = bits(of, ARENA) as usize;
        let extent = Extent { is_slab, index, address, size, free };
        let blocks = extent.check(bits(of, NUMBER_FREE), bits(of, SHARD), leaf.extent)?;
        if self.counted.len() <= arena {
            self.counted.resize(arena + 1, Counted::default());
        }
        let counted = self.counted[arena].0.entry(index).or_default();
        *counted = (counted.0 + blocks, counted.1 + 1);
        self.all.push(extent);
        Ok(())
    }

    /// How much memory those of small blocks have.
    pub(super) fn bytes(&self) -> u64 {
        self.all.iter().filter(|extent| extent.is_slab).map(|extent| extent.size).sum()
    }

    /// One more than the number of the last arena that has any.
    pub(super) fn arenas(&self) -> usize {
        self.counted.len()
    }

    pub(super) fn of_arena(&self, number: usize) -> Counted {
        self.counted.get(number).cloned().unwrap_or_default()
    }

    /// All their blocks that were given out, by address.
    pub(super) fn blocks(&self) -> Given {
        let blocks = self.all.iter().flat_map(|extent| {
            let size = size_of(extent.index);
            let is_given = |index: &u64| extent.free[(index / 64) as usize] >> (index % 64) & 1 == 0;
            (0..extent.len()).filter(is_given).map(move |index| (extent.address + index * size, size))
        });
        Given { blocks: blocks.collect(), out: BTreeSet::new() }
    }
}

impl Extent {
    /// Where it begins. A large block begins anywhere in its first page.
    fn start(&self) -> u64 {
        self.address & !(PAGE - 1)
    }

    /// How many blocks it has room for.
    fn len(&self) -> u64 {
        if self.is_slab { self.size / size_of(self.index) } else { 1 }
    }

    /// How many blocks of it are given out, if it is as one must be. `at`: where it is kept.
    fn check(&self, number_free: u64, shard: u64, at: u64) -> Result<u64, Unknown> {
        if !self.is_slab {
            let is_one = size_of(self.index) <= self.size;
            // The bits are used for something else then.
            return if is_one { Ok(1) } else { Err(broken("a large block of a wrong size", at)) };
        }
        let len = self.len();
        let is_one = self.index < NUMBER_OF_BINS
            && self.address.is_multiple_of(PAGE)
            && self.size == len * size_of(self.index)
            && len <= MOST_BLOCKS
            && shard == 0;
        let free: u32 = self.free.iter().take(len.div_ceil(64) as usize).map(|bits| bits.count_ones()).sum();
        let last = self.free.get((len / 64) as usize).copied().unwrap_or(0);
        let beyond = !len.is_multiple_of(64) && last >> (len % 64) != 0;
        if !is_one || beyond || u64::from(free) != number_free {
            return Err(broken("small blocks that are not counted right", at));
        }
        Ok(len - number_free)
    }
}

/// Blocks that were given out, by address, of which some turn out to wait in caches.
#[derive(Debug)]
pub(super) struct Given {
    blocks: Vec<Block>,
    out: BTreeSet<usize>,
}

impl Given {
    /// Takes one out that isn't the program's, and says how large it is.
    pub(super) fn take_out(&mut self, block: u64, size: Option<u64>) -> Result<u64, Unknown> {
        let found = self.blocks.binary_search_by_key(&block, |&(at, _)| at).ok();
        let found = found.and_then(|at| Some((at, self.blocks.get(at)?.1)));
        match found {
            Some((at, own)) if size.is_none_or(|size| size == own) && self.out.insert(at) => Ok(own),
            _ => Err(broken("a thread's cache of freed blocks", block)),
        }
    }

    pub(super) fn rest(self) -> Vec<Block> {
        let Self { mut blocks, out } = self;
        let mut at = 0..;
        blocks.retain(|_| at.next().is_none_or(|at| !out.contains(&at)));
        blocks
    }
}

/// All words of a range that aren't 0, and which they are.
fn words(view: View<'_>, range: &Range<u64>) -> Result<Vec<(u64, u64)>, Unknown> {
    let mut found = Vec::new();
    for part in touched(view, range) {
        let first = (part.start - range.start) / 8;
        let bytes = object::read(view, part)?;
        let words = bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
        found.extend((first..).zip(words).filter(|&(_, word)| word != 0));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_four_in_each_doubling() {
        let sizes: Vec<u64> = (0..13).map(size_of).collect();
        assert_eq!(sizes, [8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256]);
        assert_eq!((size_of(35), size_of(36), size_of(40)), (14336, 16384, 32768));
        assert_eq!(size_of(NUMBER_OF_SIZES - 1), 7 << 60);
    }

    #[test]
    fn an_extent_of_small_blocks_must_have_as_many_free_ones_as_it_says() {
        let mut free = [0; 8];
        // 160 bytes, 128 of them in five pages.
        free[1] = 1 << 63 | 1;
        let extent = |free| Extent { is_slab: true, index: 9, address: PAGE, size: 5 * PAGE, free };
        assert_eq!(extent(free).check(2, 0, 0), Ok(126));
        assert!(extent(free).check(3, 0, 0).is_err() && extent(free).check(2, 1, 0).is_err());
        let large = Extent { is_slab: false, index: 36, address: PAGE + 64, size: 5 * PAGE, free };
        assert_eq!(large.check(0, 0, 0), Ok(1));
    }
}
