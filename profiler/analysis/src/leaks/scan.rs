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
use super::width::Width;
use grapnel_trace::leaks::{Interior, Root, RootKind, doubts};
use std::ops::Range;

/// Words that are read together.
const CHUNK: usize = 1 << 14;
/// Of ranges that are longer it is asked first what of them is there.
const SHORT: u64 = 1 << 16;
const PAGE: u64 = 4096;

/// The memory of a process.
pub trait Memory {
    /// How long its words are.
    fn width(&self) -> Width;
    /// The parts of a range that have anything in them, in order: others were never touched, and are zero.
    fn present(&mut self, range: Range<u64>) -> Vec<Range<u64>>;
    /// Reads words of its width from an address on, and says how many there are before the first that can't be read.
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
        width: memory.width(),
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
    width: Width,
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
                if scan.holders[hit.block as usize] != NONE
                    || has_chunks && is_next_chunk(block, hit.value, scan.width)
                {
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
        let bytes = self.width.bytes();
        let parts = if short { vec![range] } else { self.memory.present(range) };
        for part in parts {
            let mut at = part.start.next_multiple_of(bytes);
            while let Some(count) = part.end.checked_sub(at).map(|left| left / bytes).filter(|&left| left > 0)
            {
                let mut buffer = std::mem::take(&mut self.buffer);
                let count = buffer.len().min(count as usize);
                let read = self.memory.read(at, &mut buffer[..count]).min(count);
                for (word, &value) in (0..).zip(&buffer[..read]) {
                    let value = value & !self.policy.tags;
                    if let Some(block) = self.blocks.find(value) {
                        take(self, Hit { at: at + bytes * word, value, block });
                    }
                }
                self.buffer = buffer;
                at += bytes * read as u64;
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
fn is_next_chunk(block: &Block, address: u64, width: Width) -> bool {
    let word = width.bytes();
    // Chunks have a word before their blocks, and lie at multiples of two.
    let between = 2 * word;
    let chunk = block.size.saturating_add(word).checked_next_multiple_of(between).unwrap_or(u64::MAX);
    address != block.address && address.wrapping_sub(block.address) == chunk.max(2 * between) - between
}

/// Offsets are kept in 32 bits; further on they are all the same.
fn cut(offset: u64) -> u32 {
    u32::try_from(offset).unwrap_or(u32::MAX)
}

#[cfg(test)]
pub(super) mod tests;
