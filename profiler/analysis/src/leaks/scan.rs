//! From roots through blocks.
//!
//! Two floods, each over blocks that none before has come to: from the roots, by pointers that the policy counts, and from
//! blocks that only others lead to, possibly lost. A block is given to what came to it first, and the floods go by breadth,
//! so blocks have the shortest of their paths. What is left is lost; see `lost.rs`.

use super::Policy;
use super::blocks::{Block, Blocks};
use super::known::is_known;
use super::lost::Links;
use super::roots::Interned;
use grapnel_trace::leaks::{Interior, Root, RootKind, doubts};
use std::ops::Range;

/// Bytes of a word.
const WORD: u64 = 8;
/// Words that are read together.
const CHUNK: usize = 1 << 14;
/// Of ranges that are longer it is asked first what of them is there.
const SHORT: u64 = 1 << 16;
const PAGE: u64 = 4096;

/// The memory of a process.
pub trait Memory {
    /// The parts of a range that have anything in them, in order: others were never touched, and are zero.
    fn present(&mut self, range: Range<u64>) -> Vec<Range<u64>>;
    /// Reads words from an address on, and says how many there are before the first that can't be read.
    fn read(&mut self, address: u64, words: &mut [u64]) -> usize;
}

/// What roots are called.
pub trait Naming {
    /// Where the variable lies that this address of a module belongs to, and its name.
    fn variable(&mut self, module: u32, address: u64) -> Option<(Range<u64>, Vec<u8>)>;
    /// A thread's name.
    fn thread(&mut self, thread: u32) -> Vec<u8>;
}

/// Memory that is looked through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootRange {
    /// What is looked through of it.
    pub range: Range<u64>,
    /// The whole.
    pub root: Range<u64>,
    /// What it is.
    pub kind: RootKind,
    /// The thread whose it is, as the kernel numbers it; 0 for none.
    pub thread: u32,
    /// The module whose it is; 0 for none.
    pub module: u32,
}

/// A word of a thread that lies in no memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Register {
    /// The thread, as the kernel numbers it.
    pub thread: u32,
    /// The register's name.
    pub name: &'static str,
    /// What is in it.
    pub value: u64,
    /// It leads to the block that it lies in, whatever the policy: a stack pointer.
    pub anywhere: bool,
}

/// What a process holds blocks by.
#[derive(Clone, Debug, Default)]
pub struct Roots {
    /// Memory.
    pub ranges: Vec<RootRange>,
    /// Registers.
    pub registers: Vec<Register>,
    /// Where modules lie.
    pub modules: Vec<Range<u64>>,
    /// Modules with glibc's allocator in them, whose own pointers lead to where its chunks begin.
    pub allocators: Vec<u32>,
}

/// What holds each block.
#[derive(Debug)]
pub struct Scanned {
    /// By the number of the block: a block's number, or [`OF_ROOT`] and a root's.
    pub(super) holders: Vec<u32>,
    /// Where in its holder the pointer lies.
    pub(super) offsets: Vec<u32>,
    /// The roots that were found to hold something.
    pub roots: Vec<Root>,
    /// Bytes of roots that were looked through.
    pub root_bytes: u64,
    /// See [`doubts`].
    pub doubts: u32,
}

/// No holder is known.
const NONE: u32 = u32::MAX;
/// The holder is a root.
pub(super) const OF_ROOT: u32 = 1 << 31;

/// Looks through the roots and follows what they lead to.
pub fn scan(
    blocks: &Blocks,
    roots: &Roots,
    policy: Policy,
    memory: &mut impl Memory,
    naming: &mut impl Naming,
) -> Scanned {
    let count = blocks.all().len();
    let mut scan = Scan {
        blocks,
        modules: &roots.modules,
        policy,
        memory,
        holders: vec![NONE; count],
        offsets: vec![0; count],
        queue: Vec::new(),
        others: Vec::new(),
        buffer: vec![0; CHUNK],
        unreadable: false,
    };
    let mut interned = Interned::new();
    let root_bytes = scan.take_roots(roots, &mut interned, naming);
    scan.flood();
    scan.take_others(&mut interned);
    scan.take_lost(&mut interned);
    let mut found = 0;
    found |= if scan.unreadable { doubts::UNREADABLE } else { 0 };
    found |= if interned.cut { doubts::CUT } else { 0 };
    let (holders, offsets) = (scan.holders, scan.offsets);
    Scanned { holders, offsets, roots: interned.into_roots(), root_bytes, doubts: found }
}

/// A word that leads into a block.
#[derive(Clone, Copy)]
struct Hit {
    /// Where it lies.
    at: u64,
    /// What it leads to.
    value: u64,
    block: u32,
}

struct Scan<'s, M> {
    blocks: &'s Blocks,
    modules: &'s [Range<u64>],
    policy: Policy,
    memory: &'s mut M,
    holders: Vec<u32>,
    offsets: Vec<u32>,
    /// Blocks that were come to and not looked through.
    queue: Vec<u32>,
    /// Blocks that pointers lead to which don't count.
    others: Vec<u32>,
    buffer: Vec<u64>,
    unreadable: bool,
}

impl<M: Memory> Scan<'_, M> {
    fn take_roots(&mut self, roots: &Roots, interned: &mut Interned, naming: &mut impl Naming) -> u64 {
        let mut ranges: Vec<&RootRange> = roots.ranges.iter().collect();
        ranges.sort_by_key(|range| (range.kind, range.range.start));
        let (before, after) =
            ranges.split_at(ranges.partition_point(|range| range.kind < RootKind::Register));
        let mut bytes = 0;
        let has_chunks = |range: &RootRange| {
            range.kind == RootKind::Before
                || range.kind == RootKind::Global && roots.allocators.contains(&range.module)
        };
        for &range in before {
            bytes += self.take_range(range, has_chunks(range), interned, naming);
        }
        for register in &roots.registers {
            let value = register.value & !self.policy.tags;
            let Some(block) = self.blocks.find(value) else { continue };
            if self.holders[block as usize] != NONE {
                continue;
            }
            if register.anywhere || self.counts(value, block) {
                let root = interned.register(register.thread, register.name);
                self.reach(block, OF_ROOT | root, 0);
            } else {
                self.others.push(block);
            }
        }
        for &range in after {
            bytes += self.take_range(range, has_chunks(range), interned, naming);
        }
        bytes
    }

    /// `has_chunks`: an allocator's own pointers are among its words.
    fn take_range(
        &mut self,
        range: &RootRange,
        has_chunks: bool,
        interned: &mut Interned,
        naming: &mut impl Naming,
    ) -> u64 {
        let mut bytes = 0;
        for gap in self.blocks.gaps(range.range.clone()) {
            bytes += gap.end - gap.start;
            self.look_through(gap, |scan, hit| {
                let block = &scan.blocks.all()[hit.block as usize];
                if scan.holders[hit.block as usize] != NONE || has_chunks && is_next_chunk(block, hit.value) {
                } else if scan.counts(hit.value, hit.block) {
                    let (root, offset) = interned.at(range, hit.at, naming);
                    scan.reach(hit.block, OF_ROOT | root, offset);
                } else {
                    scan.others.push(hit.block);
                }
            });
        }
        bytes
    }

    /// Follows pointers from the blocks in the queue, in its order.
    fn flood(&mut self) {
        let mut next = 0;
        while let Some(&from) = self.queue.get(next) {
            next += 1;
            self.look_through_block(from, |scan, hit, offset| {
                if scan.holders[hit.block as usize] != NONE {
                } else if scan.counts(hit.value, hit.block) {
                    scan.reach(hit.block, from, offset);
                } else {
                    scan.others.push(hit.block);
                }
            });
        }
        self.queue.clear();
    }

    /// Blocks that only pointers lead to which don't count. From there on all count: nothing below can be better known.
    fn take_others(&mut self, interned: &mut Interned) {
        self.policy.interior = Interior::All;
        let others = std::mem::take(&mut self.others);
        for block in others {
            if self.holders[block as usize] == NONE {
                let root = interned.nowhere(RootKind::Possible);
                self.reach(block, OF_ROOT | root, 0);
            }
        }
        self.flood();
    }

    /// What is left.
    fn take_lost(&mut self, interned: &mut Interned) {
        let left = (0..).zip(&self.holders).filter(|(_, holder)| **holder == NONE);
        let left: Vec<u32> = left.map(|(block, _)| block).collect();
        if left.is_empty() {
            return;
        }
        let mut links = Links::of(&left);
        for &from in &left {
            links.begin();
            self.look_through_block(from, |_, hit, offset| links.push(hit.block, cut(offset)));
        }
        let lost = OF_ROOT | interned.nowhere(RootKind::Lost);
        for (block, holder) in links.holders() {
            let (holder, offset) = holder.unwrap_or((lost, 0));
            self.holders[block as usize] = holder;
            self.offsets[block as usize] = offset;
        }
    }

    fn reach(&mut self, block: u32, holder: u32, offset: u64) {
        self.holders[block as usize] = holder;
        self.offsets[block as usize] = cut(offset);
        self.queue.push(block);
    }

    /// Whether a pointer leads to the block that it lies in.
    #[inline]
    fn counts(&mut self, value: u64, block: u32) -> bool {
        let block = &self.blocks.all()[block as usize];
        if value == block.address {
            return true;
        }
        match self.policy.interior {
            Interior::All => true,
            Interior::Known => {
                let modules = self.modules;
                is_known(self.memory, block, value, |value| {
                    modules.iter().any(|module| module.contains(&value))
                })
            }
            _ => false,
        }
    }

    #[inline]
    fn look_through_block(&mut self, from: u32, mut take: impl FnMut(&mut Self, Hit, u64)) {
        let Block { address, size, .. } = self.blocks.all()[from as usize];
        self.look_through(address..address.saturating_add(size), |scan, hit| {
            take(scan, hit, hit.at - address)
        });
    }

    /// Calls `take` with each word of a range that leads into a block.
    fn look_through(&mut self, range: Range<u64>, mut take: impl FnMut(&mut Self, Hit)) {
        let short = range.end - range.start <= SHORT;
        let parts = if short { vec![range] } else { self.memory.present(range) };
        for part in parts {
            let mut at = part.start.next_multiple_of(WORD);
            while let Some(count) = part.end.checked_sub(at).map(|left| left / WORD).filter(|&left| left > 0)
            {
                let mut buffer = std::mem::take(&mut self.buffer);
                let count = buffer.len().min(count as usize);
                let read = self.memory.read(at, &mut buffer[..count]).min(count);
                for (word, &value) in (0..).zip(&buffer[..read]) {
                    let value = value & !self.policy.tags;
                    if let Some(block) = self.blocks.find(value) {
                        take(self, Hit { at: at + WORD * word, value, block });
                    }
                }
                self.buffer = buffer;
                at += WORD * read as u64;
                if read < count {
                    self.unreadable = true;
                    at = (at + 1).next_multiple_of(PAGE);
                }
            }
        }
    }
}

/// Whether an address is where the chunk behind a block's own begins for glibc's allocator: the first word of that is the last
/// of the block's, if it needs it. What is free behind a block is known to the allocator by this address.
fn is_next_chunk(block: &Block, address: u64) -> bool {
    /// Chunks have a word before their blocks, and lie at multiples of two.
    const BETWEEN: u64 = 2 * WORD;
    let chunk = block.size.saturating_add(WORD).checked_next_multiple_of(BETWEEN).unwrap_or(u64::MAX);
    address != block.address && address.wrapping_sub(block.address) == chunk.max(2 * BETWEEN) - BETWEEN
}

/// Offsets are kept in 32 bits; further on they are all the same.
fn cut(offset: u64) -> u32 {
    u32::try_from(offset).unwrap_or(u32::MAX)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Memory that is made up: words from some addresses on.
    pub(crate) struct Words(Vec<(u64, Vec<u64>)>);

    impl Words {
        pub(crate) fn new(parts: &[(u64, &[u64])]) -> Self {
            Self(parts.iter().map(|&(address, words)| (address, words.to_vec())).collect())
        }
    }

    impl Memory for Words {
        fn present(&mut self, range: Range<u64>) -> Vec<Range<u64>> {
            vec![range]
        }

        fn read(&mut self, address: u64, words: &mut [u64]) -> usize {
            let part = self
                .0
                .iter()
                .find(|(start, part)| (*start..start + 8 * part.len() as u64).contains(&address));
            let Some((start, part)) = part else { return 0 };
            let from = &part[((address - start) / 8) as usize..];
            words.iter_mut().zip(from).map(|(to, from)| *to = *from).count()
        }
    }

    pub(crate) struct NoNames;
    impl Naming for NoNames {
        fn variable(&mut self, _: u32, _: u64) -> Option<(Range<u64>, Vec<u8>)> {
            None
        }
        fn thread(&mut self, _: u32) -> Vec<u8> {
            Vec::new()
        }
    }

    /// Where the roots lie, and where block N does, of 64 bytes.
    const GLOBALS: u64 = 0x10_0000;
    fn at(block: u64) -> u64 {
        0x20_0000 + 0x100 * block
    }

    fn range(kind: RootKind, words: usize) -> RootRange {
        let range = GLOBALS..GLOBALS + 8 * words as u64;
        RootRange { root: range.clone(), range, kind, thread: 0, module: 1 }
    }

    /// Scans roots with these words, and blocks with pointers to places. What holds each block: a block, or a root.
    fn run(policy: Policy, roots: &[u64], blocks: &[&[u64]]) -> Vec<Result<u32, RootKind>> {
        let mut memory = Words::new(&[(GLOBALS, roots)]);
        for (number, words) in (0..).zip(blocks) {
            memory.0.push((at(number), [words, &[0; 8][words.len()..]].concat()));
        }
        let live = (0..blocks.len() as u64).map(|n| Block { address: at(n), size: 64, stack: 1 }).collect();
        let blocks = Blocks::new(live);
        let roots = Roots { ranges: vec![range(RootKind::Global, roots.len())], ..Roots::default() };
        let found = scan(&blocks, &roots, policy, &mut memory, &mut NoNames);
        assert_eq!(found.doubts, 0);
        let kind = |holder: u32| found.roots[(holder & !OF_ROOT) as usize].kind;
        let holder = |&holder: &u32| if holder & OF_ROOT == 0 { Ok(holder) } else { Err(kind(holder)) };
        found.holders.iter().map(holder).collect()
    }

    const LOST: Result<u32, RootKind> = Err(RootKind::Lost);
    const HELD: Result<u32, RootKind> = Err(RootKind::Global);
    const POSSIBLE: Result<u32, RootKind> = Err(RootKind::Possible);

    #[test]
    fn what_roots_lead_to_is_held_and_the_rest_is_lost() {
        let blocks: [&[u64]; 5] = [&[at(1)], &[0, at(2)], &[], &[at(4)], &[]];
        assert_eq!(run(Policy::default(), &[7, at(0), u64::MAX], &blocks), [HELD, Ok(0), Ok(1), LOST, Ok(3)]);
    }

    #[test]
    fn paths_are_the_shortest() {
        let blocks: [&[u64]; 4] = [&[at(1)], &[at(2)], &[at(3)], &[]];
        assert_eq!(run(Policy::default(), &[at(0), at(2)], &blocks), [HELD, Ok(0), HELD, Ok(2)]);
    }

    #[test]
    fn of_a_lost_circle_one_leads_and_what_leads_to_it_leads_all() {
        // 0 -> 1 -> 2 -> 0; 3 to itself; 4 to one of the circle.
        let mut blocks: [&[u64]; 5] = [&[at(1)], &[at(2)], &[at(0)], &[at(3)], &[]];
        let policy = Policy::default();
        assert_eq!(run(policy, &[], &blocks), [LOST, Ok(0), Ok(1), LOST, LOST]);
        let into = [[at(0)], [at(1)], [at(2)]];
        let circles = [[Ok(4), Ok(0), Ok(1)], [Ok(2), Ok(4), Ok(1)], [Ok(2), Ok(0), Ok(4)]];
        for (into, circle) in into.iter().zip(circles) {
            blocks[4] = into;
            assert_eq!(run(policy, &[], &blocks), [&circle[..], &[LOST, LOST]].concat());
        }
    }

    #[test]
    fn policies_say_which_pointers_inside_count() {
        // An array of two objects behind its cookie; a block that is pointed into; what that one holds.
        let blocks: [&[u64]; 3] = [&[2], &[at(2) + 1], &[]];
        let roots = [at(0) + 8, at(1) + 24];
        let with = |interior| run(Policy { interior, tags: 0 }, &roots, &blocks);
        assert_eq!(with(Interior::All), [HELD, HELD, Ok(1)]);
        assert_eq!(with(Interior::Known), [HELD, POSSIBLE, Ok(1)]);
        assert_eq!(with(Interior::Start), [POSSIBLE, POSSIBLE, Ok(1)]);
    }

    #[test]
    fn tags_are_taken_out() {
        let blocks: [&[u64]; 2] = [&[at(1) | 0xab << 56 | 5], &[]];
        let tags = 0xff << 56 | 7;
        let roots = [at(0) | 0x12 << 56];
        assert_eq!(run(Policy { interior: Interior::Start, tags }, &roots, &blocks), [HELD, Ok(0)]);
        assert_eq!(run(Policy::default(), &roots, &blocks), [LOST, LOST]);
    }

    #[test]
    fn roots_in_blocks_are_the_blocks_own() {
        // The range of roots has the blocks in it, as a heap that isn't known has.
        let mut memory = Words::new(&[(at(0), &[0; 64]), (GLOBALS, &[])]);
        memory.0[0].1[0] = at(1);
        memory.0[0].1[20] = at(1);
        let blocks = Blocks::new((0..2).map(|n| Block { address: at(n), size: 64, stack: 0 }).collect());
        let heap = at(0)..at(2);
        let heap = RootRange { root: heap.clone(), range: heap, ..range(RootKind::Before, 0) };
        let roots = Roots { ranges: vec![heap], ..Roots::default() };
        let found = scan(&blocks, &roots, Policy::default(), &mut memory, &mut NoNames);
        assert_eq!(found.roots[(found.holders[1] & !OF_ROOT) as usize].kind, RootKind::Before);
        assert_eq!(found.roots[(found.holders[0] & !OF_ROOT) as usize].kind, RootKind::Lost);
        assert_eq!((found.offsets[1], found.root_bytes), (160, 2 * 256 - 128));
    }

    #[test]
    fn an_allocators_pointer_to_the_chunk_behind_is_none_to_the_block() {
        // Of 56 bytes the last 8 are the first of the next chunk, of 48 none.
        let found = |size: u64, offset: u64, allocators: Vec<u32>| {
            let mut memory = Words::new(&[(GLOBALS, &[at(0) + offset]), (at(0), &[0; 8])]);
            let blocks = Blocks::new(vec![Block { address: at(0), size, stack: 0 }]);
            let roots = Roots { ranges: vec![range(RootKind::Global, 1)], allocators, ..Roots::default() };
            let found = scan(&blocks, &roots, Policy::default(), &mut memory, &mut NoNames);
            found.roots[0].kind
        };
        assert_eq!(found(56, 48, vec![1]), RootKind::Lost);
        assert_eq!(found(49, 48, vec![1]), RootKind::Lost);
        assert_eq!(found(56, 48, vec![2]), RootKind::Global);
        assert_eq!(found(56, 40, vec![1]), RootKind::Global);
        assert_eq!(found(56, 0, vec![1]), RootKind::Global);
        assert_eq!(found(64, 56, vec![1]), RootKind::Global);
        // The least chunk has room for 24 bytes.
        assert_eq!(found(17, 16, vec![1]), RootKind::Lost);
        assert_eq!(found(8, 0, vec![1]), RootKind::Global);
    }

    #[test]
    fn registers_hold_too_and_what_cannot_be_read_is_said() {
        let blocks = Blocks::new(vec![Block { address: at(0), size: 64, stack: 0 }]);
        let register = |value, anywhere| Register { thread: 9, name: "rsp", value, anywhere };
        for (anywhere, kind) in [(true, RootKind::Register), (false, RootKind::Possible)] {
            let registers = vec![register(at(0) + 8, anywhere)];
            let roots = Roots { registers, ranges: vec![range(RootKind::Global, 4)], ..Roots::default() };
            let policy = Policy { interior: Interior::Start, tags: 0 };
            let found = scan(&blocks, &roots, policy, &mut Words::new(&[]), &mut NoNames);
            assert_eq!(found.roots[0].kind, kind);
            assert_eq!(found.doubts, doubts::UNREADABLE);
        }
    }
}
