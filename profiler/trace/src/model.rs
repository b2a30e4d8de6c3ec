//! What the records of a block refer to, as writer and reader both keep it. It begins anew in each block.

use alloc::vec::Vec;
use core::hint::select_unpredictable;

/// Threads that share what is known of their allocator's caches: the bound of what a hostile trace can make us keep.
const CACHES: usize = 16;
/// Sizes of blocks that are told apart: glibc's, which are 16 bytes apart.
const CLASSES: usize = 64;
/// How many blocks of one size a thread is thought to have freed and not got again: what glibc keeps.
const DEPTH: usize = 7;

/// A frame as a node has it: pc, module, flags.
pub(crate) type NodeFrame = (u64, u32, u8);

#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) time: u64,
    pub(crate) pc: u64,
    pub(crate) node: u32,
    thread: u32,
    /// By thread, at least as far as the current one.
    threads: Vec<ThreadDeltas>,
    /// By thread modulo [`CACHES`], at least as far as the current one.
    caches: Vec<FreedBlocks>,
    /// The frames that nodes of this block have, by their numbers.
    pub(crate) frames: Vec<NodeFrame>,
}

/// The last of each that the thread had.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ThreadDeltas {
    pub(crate) stack: u32,
    pub(crate) address: u64,
}

/// What an allocator of glibc's kind would give out next, for each class of sizes: what came back last.
#[derive(Debug)]
pub(crate) struct FreedBlocks([OfClass; CLASSES]);

/// How many addresses, and these, the last of them last: a processor's line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct OfClass([u64; 1 + DEPTH]);

impl Default for Model {
    fn default() -> Self {
        let (threads, caches) = (Vec::new(), Vec::new());
        let mut model = Self { time: 0, pc: 0, node: 0, thread: 0, threads, caches, frames: Vec::new() };
        model.switch(0);
        model
    }
}

impl Model {
    /// The most threads a trace may number; above it a reader refuses instead of growing without bound.
    pub(crate) const MAX_THREADS: u32 = 1 << 24;

    /// The number of a thread that may be.
    pub(crate) fn thread_of(number: u64) -> Option<u32> {
        u32::try_from(number).ok().filter(|&thread| thread < Self::MAX_THREADS)
    }

    pub(crate) fn reset(&mut self, time: u64) {
        self.threads.clear();
        self.frames.clear();
        for cache in &mut self.caches {
            *cache = FreedBlocks::NONE;
        }
        (self.time, self.pc, self.node) = (time, 0, 0);
        self.switch(0);
    }

    /// The thread of the events that follow.
    #[inline]
    pub(crate) fn thread(&self) -> u32 {
        self.thread
    }

    /// Makes `thread` the one of the events that follow.
    #[inline]
    pub(crate) fn switch(&mut self, thread: u32) {
        self.thread = thread;
        if thread as usize >= self.threads.len() {
            self.make_room();
        }
    }

    #[cold]
    fn make_room(&mut self) {
        let threads = self.thread as usize + 1;
        self.threads.resize(threads, ThreadDeltas::default());
        let caches = threads.min(CACHES).max(self.caches.len());
        self.caches.resize_with(caches, || FreedBlocks::NONE);
    }

    #[inline]
    pub(crate) fn current(&mut self) -> &mut ThreadDeltas {
        &mut self.threads[self.thread as usize]
    }

    /// Both of the current thread: the last of each, and what its allocator is thought to keep.
    #[inline]
    pub(crate) fn current_and_freed(&mut self) -> (&mut ThreadDeltas, &mut FreedBlocks) {
        let thread = self.thread as usize;
        (&mut self.threads[thread], &mut self.caches[thread % CACHES])
    }

    /// What the current thread's allocator is thought to keep.
    #[inline]
    pub(crate) fn freed(&mut self) -> &mut FreedBlocks {
        &mut self.caches[self.thread as usize % CACHES]
    }
}

/// The class of a size, below 64: glibc rounds a block with its 8 bytes of overhead up to 16.
#[inline]
pub(crate) fn class(size: u64) -> u8 {
    (size.saturating_add(23) >> 4).min(CLASSES as u64 - 1) as u8
}

impl FreedBlocks {
    const NONE: Self = Self([OfClass([0; 1 + DEPTH]); CLASSES]);

    #[inline]
    fn of(&mut self, class: u8) -> &mut [u64; 1 + DEPTH] {
        &mut self.0[usize::from(class) % CLASSES].0
    }

    /// Notes that a block came back. Where there are as many as glibc keeps, it goes elsewhere.
    ///
    /// Neither here nor in [`FreedBlocks::pop`] is there a jump: which way it went would be a guess.
    #[inline]
    pub(crate) fn push(&mut self, class: u8, address: u64) {
        let of_class = self.of(class);
        let count = of_class[0] as usize % (1 + DEPTH);
        let last = (count + 1).min(DEPTH);
        of_class[last] = select_unpredictable(count == DEPTH, of_class[last], address);
        of_class[0] = last as u64;
    }

    /// The address that is expected to be given out for a block of this class; 0 for none.
    #[inline]
    pub(crate) fn pop(&mut self, class: u8) -> u64 {
        let of_class = self.of(class);
        let count = of_class[0] as usize % (1 + DEPTH);
        // That of none is their count.
        let last = of_class[count];
        of_class[0] = count.saturating_sub(1) as u64;
        last
    }
}
