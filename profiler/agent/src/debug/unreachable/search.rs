//! What the copy does: from all that is known to what can be reached.
//!
//! # Safety
//! As in [`super`]: nothing is allocated, and no lock taken.

use super::regions::{Kind, for_each_mapping};
use super::threads;
use crate::debug::table::{Block, MASK};
use crate::debug::{old, own};
use crate::native::{TAGS, kernel};
use crate::sys::{self, syscall};
use alloc::vec::Vec;
use core::ops::Range;
use core::ptr;
use syscalls::Sysno;

/// What the copy makes of a block.
pub(super) mod state {
    pub(in crate::debug::unreachable) const UNKNOWN: u8 = 0;
    pub(in crate::debug::unreachable) const REACHED: u8 = 1;
    /// Nothing leads to it.
    pub(in crate::debug::unreachable) const LOST: u8 = 2;
    /// Only what is lost leads to it.
    pub(in crate::debug::unreachable) const BELOW: u8 = 3;
}

/// What is looked through, and what comes of it.
pub(super) struct Search {
    /// By their addresses without tags, as mappings have them, which are kept in the table's form.
    pub(super) blocks: Vec<Block>,
    /// Of each block what it is, and for one below a lost one which that is, in memory that is shared with the copy.
    states: *mut u8,
    heads: *mut u32,
    shared: (*mut u8, usize),
    /// Room for the blocks whose words are yet to be looked at.
    queue: *mut u32,
    queue_bytes: usize,
    /// Where the stack of the thread that looks ends, and its alternate one begins; see [`threads::stacks`].
    own_stacks: [usize; 2],
    heap: Range<usize>,
}

impl Drop for Search {
    fn drop(&mut self) {
        sys::unmap(self.shared.0, self.shared.1);
        sys::unmap(self.queue.cast(), self.queue_bytes);
    }
}

impl Search {
    pub(super) fn new(mut blocks: Vec<Block>, own_stacks: [usize; 2]) -> Option<Self> {
        blocks.iter_mut().for_each(|block| block.address &= !TAGS);
        blocks.sort_unstable_by_key(|block| block.address);
        blocks.iter_mut().for_each(|block| block.address ^= MASK);
        let count = blocks.len().max(1);
        let bytes = (5 * count + 8).next_multiple_of(sys::PAGE);
        let queue_bytes = (4 * count).next_multiple_of(sys::PAGE);
        let queue = sys::map_anonymous(queue_bytes)?;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let shared = unsafe { syscall!(kernel::MMAP, 0, bytes, rights, flags, -1isize, 0) };
        let Ok(shared) = shared.map(ptr::with_exposed_provenance_mut::<u8>) else {
            sys::unmap(queue, queue_bytes);
            return None;
        };
        let states = shared.wrapping_add(4 * count);
        Some(Self {
            blocks,
            states,
            heads: shared.cast(),
            shared: (shared, bytes),
            queue: queue.cast(),
            queue_bytes,
            own_stacks,
            heap: old::heap_since_hooks(),
        })
    }

    /// Makes the copy of the process, which does all. Its number.
    pub(super) fn begin(&self) -> Option<usize> {
        // SAFETY: no memory is shared but what is mapped so, and no signal tells of the copy's end. It goes on here, on
        // its own copy of this stack, with all signals blocked.
        let copy = unsafe { syscall!(Sysno::clone, 0, 0, 0, 0, 0) }.ok()?;
        if copy == 0 {
            self.search();
            sys::end_process(0);
        }
        Some(copy)
    }

    pub(super) fn address(&self, number: usize) -> usize {
        self.blocks[number].address ^ MASK
    }

    fn range(&self, number: usize) -> Range<usize> {
        let start = self.address(number);
        start..start + self.blocks[number].size
    }

    pub(super) fn state(&self, number: usize) -> u8 {
        // SAFETY: there is a byte for each block.
        unsafe { self.states.add(number).read() }
    }

    /// Of a block below another, that one.
    pub(super) fn head(&self, number: usize) -> usize {
        // SAFETY: there is a word for each block.
        (unsafe { self.heads.add(number).read() }) as usize
    }

    pub(super) fn set(&self, number: usize, state: u8, head: usize) {
        // SAFETY: as above, and a word.
        unsafe {
            self.states.add(number).write(state);
            self.heads.add(number).write(head as u32);
        }
    }

    /// The block that a word leads to, whatever tag it has.
    fn target(&self, word: usize) -> Option<usize> {
        let word = word & !TAGS;
        let after = self.blocks.partition_point(|block| block.address ^ MASK <= word);
        let number = after.checked_sub(1)?;
        self.range(number).contains(&word).then_some(number)
    }

    /// Whether a word is the address at which libc has the chunk behind a block. Its head overlaps the block's last bytes, and
    /// the allocator's own lists lead there.
    fn is_next_chunk(&self, number: usize, word: usize) -> bool {
        const HEAD: usize = 2 * size_of::<usize>();
        let word = word & !TAGS;
        let Range { start, end } = self.range(number);
        let raw = start - self.blocks[number].offset as usize;
        word >= end.saturating_sub(HEAD) && word.wrapping_sub(raw).is_multiple_of(HEAD)
    }

    /// Looks at the words of a range, and tells of each block that one leads to.
    fn words(&self, range: Range<usize>, each: &mut dyn FnMut(usize, usize)) {
        const WORD: usize = size_of::<usize>();
        let mut at = range.start.next_multiple_of(WORD);
        while at + WORD <= range.end {
            // SAFETY: the range lies in a mapping that can be read, of a process whose only thread this is.
            let word = unsafe { ptr::with_exposed_provenance::<usize>(at).read_volatile() };
            if let Some(number) = self.target(word) {
                each(number, word);
            }
            at += WORD;
        }
    }

    /// Gives blocks that can be reached from those in the queue this state, as far as they are in one that `takes` says.
    fn follow(&self, mut waiting: usize, takes: impl Fn(u8) -> bool, to: u8, head: usize) {
        while waiting != 0 {
            waiting -= 1;
            // SAFETY: each block is in the queue once, and there is room for all.
            let number = unsafe { self.queue.add(waiting).read() } as usize;
            self.words(self.range(number), &mut |target, _| {
                if target != head && takes(self.state(target)) {
                    self.set(target, to, head);
                    // SAFETY: as above.
                    unsafe { self.queue.add(waiting).write(target as u32) };
                    waiting += 1;
                }
            });
        }
    }

    /// In the copy: finds what each block is.
    fn search(&self) {
        let mut waiting = 0;
        let mut reach = |target: usize| {
            if self.state(target) == state::UNKNOWN {
                self.set(target, state::REACHED, 0);
                // SAFETY: as in `follow`.
                unsafe { self.queue.add(waiting).write(target as u32) };
                waiting += 1;
            }
        };
        threads::alternates()
            .chain([self.own_stacks[1]])
            .filter_map(|start| self.target(start))
            .for_each(&mut reach);
        self.for_each_root(&mut |range, kind| {
            self.words(range, &mut |target, word| {
                let is_libcs = matches!(kind, Kind::Libc) && self.is_next_chunk(target, word);
                if !is_libcs {
                    reach(target);
                }
            });
        });
        self.follow(waiting, |found| found == state::UNKNOWN, state::REACHED, usize::MAX);
        // What another block leads to is below it, also if it was come upon before; in a circle the first one stands for
        // all.
        for number in 0..self.blocks.len() {
            if self.state(number) == state::UNKNOWN {
                self.set(number, state::LOST, number);
                // SAFETY: as above.
                unsafe { self.queue.write(number as u32) };
                let takes = |found| matches!(found, state::UNKNOWN | state::LOST);
                self.follow(1, takes, state::BELOW, number);
            }
        }
    }

    /// Tells of all memory that counts as known, without the blocks in it.
    fn for_each_root(&self, each: &mut dyn FnMut(Range<usize>, Kind)) {
        for_each_mapping(&mut |mapping, kind| {
            let each = &mut |range| each(range, kind);
            let shared = self.shared.0.addr()..self.shared.0.addr() + self.shared.1;
            if matches!(kind, Kind::Device) || shared.contains(&mapping.start) {
                return;
            }
            let mut at = mapping.start;
            let ends = threads::ends().chain([self.own_stacks[0]]);
            for end in ends.filter(|end| matches!(kind, Kind::Stack) && mapping.contains(end)) {
                // What lies below is nobody's; what leaf functions keep there is.
                at = at.max(end.saturating_sub(128)).min(mapping.end);
            }
            let mut number = self.blocks.partition_point(|block| (block.address ^ MASK) < at);
            loop {
                let block = (number < self.blocks.len()).then(|| self.range(number));
                let end = block.as_ref().map_or(mapping.end, |block| block.start.min(mapping.end));
                own::without(at..end.max(at), &mut |part| self.without_heap(part, each));
                match block.filter(|block| block.start < mapping.end) {
                    Some(block) => at = block.end,
                    None => break,
                }
                number += 1;
            }
        });
    }

    fn without_heap(&self, range: Range<usize>, each: &mut dyn FnMut(Range<usize>)) {
        let heap = &self.heap;
        for part in [range.start..range.end.min(heap.start), range.start.max(heap.end)..range.end] {
            if part.start < part.end {
                each(part);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks as Android's allocator gives them out, where the processor takes tags; elsewhere without.
    #[test]
    fn a_block_is_where_its_address_leads_whatever_tag_that_has() {
        const TAG: usize = TAGS & 0xb4 << (usize::BITS - 8);
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let memory = unsafe { libc::mmap(ptr::null_mut(), sys::PAGE, rights, flags, -1, 0) };
        assert_ne!(memory, libc::MAP_FAILED);
        let start = memory.addr();
        let block = |at: usize| Block { address: (start + at) | TAG, size: 256, ..Block::default() };
        let search = Search::new([block(0x800), block(0x100)].into(), [0; 2]).expect("memory");
        for (at, right) in [(0x100, Some(0)), (0x1ff, Some(0)), (0x200, None), (0x800, Some(1)), (0xff, None)]
        {
            assert_eq!(search.target(start + at), right, "{at:#x}");
            assert_eq!(search.target((start + at) | TAG), right, "{at:#x} with a tag");
        }
        // What blocks hold is known only where they are.
        let mut roots = Vec::new();
        search.for_each_root(&mut |range, _| {
            let part = range.start.max(start)..range.end.min(start + sys::PAGE);
            if !part.is_empty() {
                roots.push(part.start - start..part.end - start);
            }
        });
        assert_eq!(roots, [0..0x100, 0x200..0x800, 0x900..0x1000]);
        // SAFETY: nothing refers to the mapping any more.
        unsafe { libc::munmap(memory, sys::PAGE) };
    }
}
