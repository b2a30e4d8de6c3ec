//! Live blocks by the addresses in them.
//!
//! Most words of a process are no pointers into its heap, and each is asked about: so blocks are grouped into *regions*
//! without large gaps, few enough for a short search, and a region knows for each of its pages the first block that
//! reaches into it or begins behind. Between two pages' blocks a search goes through the few that are left.

use std::ops::Range;

const PAGE_LOG2: u32 = 12;
/// Blocks that are further apart lie in different regions.
const GAP: u64 = 1 << 20;
/// Blocks of this size and more have a region of their own, without pages: some are much larger than what was ever touched
/// of them.
const LARGE: u64 = 1 << 18;

#[derive(Debug)]
struct Region {
    range: Range<u64>,
    /// The first of its blocks.
    first: u32,
    /// One behind its last block.
    end: u32,
    /// For each page, from the one in which the region starts, the first block that ends behind the page's start.
    pages: Vec<u32>,
}

/// A live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Where it starts.
    pub address: u64,
    /// Bytes requested.
    pub size: u64,
    /// The node of the stack that allocated it.
    pub stack: u32,
}

impl Block {
    /// One behind its last byte. A block of no bytes is found by its address.
    fn end(&self) -> u64 {
        self.address.saturating_add(self.size.max(1))
    }
}

/// The live blocks of a process, by address.
#[derive(Debug)]
pub struct Blocks {
    blocks: Vec<Block>,
    regions: Vec<Region>,
    /// From the start of the first block to the end of the last.
    all: Range<u64>,
}

impl Blocks {
    /// Of blocks in any order, at most 2^31 of them. Where two overlap, which only a damaged record has, the one that
    /// starts further on wins.
    pub fn new(mut blocks: Vec<Block>) -> Self {
        blocks.sort_unstable_by_key(|block| block.address);
        blocks.dedup_by_key(|block| block.address);
        blocks.truncate(i32::MAX as usize);
        for at in 1..blocks.len() {
            let next = blocks[at].address;
            let before = &mut blocks[at - 1];
            before.size = before.size.min(next - before.address);
        }
        let mut regions: Vec<Region> = Vec::new();
        for (at, block) in (0..).zip(&blocks) {
            let is_large = block.size >= LARGE;
            match regions.last_mut() {
                Some(region)
                    if !is_large
                        && blocks[region.first as usize].size < LARGE
                        && block.address - region.range.end < GAP =>
                {
                    region.end = at + 1;
                    region.range.end = block.end();
                }
                _ => {
                    let range = block.address..block.end();
                    regions.push(Region { range, first: at, end: at + 1, pages: Vec::new() });
                }
            }
        }
        for region in &mut regions {
            if region.end - region.first > 1 {
                region.pages = pages(region, &blocks);
            }
        }
        let all = match (regions.first(), regions.last()) {
            (Some(first), Some(last)) => first.range.start..last.range.end,
            _ => 0..0,
        };
        Self { blocks, regions, all }
    }

    /// The blocks by address.
    pub fn all(&self) -> &[Block] {
        &self.blocks
    }

    /// The number of the block that an address lies in.
    #[inline]
    pub fn find(&self, address: u64) -> Option<u32> {
        if address.wrapping_sub(self.all.start) >= self.all.end - self.all.start {
            return None;
        }
        self.look_up(address)
    }

    fn look_up(&self, address: u64) -> Option<u32> {
        let behind = self.regions.partition_point(|region| region.range.start <= address);
        let region = self.regions.get(behind.checked_sub(1)?)?;
        if address >= region.range.end {
            return None;
        }
        let (mut low, mut high) = (region.first, region.end);
        if !region.pages.is_empty() {
            let page = (address >> PAGE_LOG2) - (region.range.start >> PAGE_LOG2);
            low = *region.pages.get(page as usize)?;
            high = region.pages.get(page as usize + 1).map_or(region.end, |&next| (next + 1).min(region.end));
        }
        let few = self.blocks.get(low as usize..high as usize)?;
        let found = low + (few.partition_point(|block| block.address <= address) as u32).checked_sub(1)?;
        let block = self.blocks.get(found as usize)?;
        (address < block.end()).then_some(found)
    }

    /// The parts of a range that lie in no block.
    pub fn gaps(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut from = range.start;
        let first = self.blocks.partition_point(|block| block.end() <= range.start);
        for block in self.blocks[first..].iter().take_while(|block| block.address < range.end) {
            if block.address > from {
                gaps.push(from..block.address);
            }
            from = from.max(block.end());
        }
        if from < range.end {
            gaps.push(from..range.end);
        }
        gaps
    }
}

fn pages(region: &Region, blocks: &[Block]) -> Vec<u32> {
    let first = region.range.start >> PAGE_LOG2;
    let count = ((region.range.end - 1) >> PAGE_LOG2) - first + 1;
    let mut next = region.first;
    let page = |page: u64| {
        let start = (first + page) << PAGE_LOG2;
        while next < region.end && blocks[next as usize].end() <= start {
            next += 1;
        }
        next
    };
    (0..count).map(page).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(address: u64, size: u64) -> Block {
        Block { address, size, stack: 0 }
    }

    fn blocks() -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut at = 0x5555_0000_0010;
        for _ in 0..4000 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let size = match state % 50 {
                0 => 0,
                1 => LARGE + state % 9999,
                2 => 5000 + state % 60_000,
                _ => state % 200,
            };
            blocks.push(block(at, size));
            at += size.next_multiple_of(16) + 16;
            at += [0, 0, 0, 4096, GAP, 40 << 20][(state >> 20) as usize % 6]
                * u64::from(state.is_multiple_of(97));
        }
        blocks
    }

    #[test]
    fn every_address_finds_its_block() {
        let all = blocks();
        let index = Blocks::new(all.iter().rev().copied().collect());
        assert_eq!(index.all(), all);
        assert!(index.regions.len() > 20 && index.regions.iter().any(|region| region.pages.len() > 10));
        for (at, block) in (0..).zip(&all) {
            let inside = [0, 1, block.size / 2, block.size.saturating_sub(1)];
            for offset in inside.into_iter().filter(|&offset| offset < block.size.max(1)) {
                assert_eq!(index.find(block.address + offset), Some(at), "{block:?} + {offset}");
            }
            assert_eq!(index.find(block.end()), None);
            assert_eq!(index.find(block.address - 1), None);
        }
        for address in [0, 0x1000, u64::MAX] {
            assert_eq!(index.find(address), None);
        }
        assert_eq!(Blocks::new(Vec::new()).find(0), None);
    }

    #[test]
    fn gaps_are_all_that_is_not_in_blocks() {
        let index = Blocks::new(vec![block(100, 10), block(110, 5), block(200, 50)]);
        assert_eq!(index.gaps(0..300), [0..100, 115..200, 250..300]);
        assert!(index.gaps(105..220).into_iter().eq(std::iter::once(115..200)));
        assert_eq!(index.gaps(205..210), []);
        assert!(index.gaps(300..310).into_iter().eq(std::iter::once(300..310)));
    }

    #[test]
    fn blocks_that_cannot_be_are_cut() {
        let index = Blocks::new(vec![block(100, 1000), block(150, 10), block(150, 20), block(u64::MAX, 9)]);
        assert_eq!(index.find(149), Some(0));
        assert_eq!(index.find(151), Some(1));
        assert_eq!(index.all().len(), 3);
    }
}
