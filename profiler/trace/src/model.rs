//! What the records of a block refer to, as writer and reader both keep it. It begins anew in each block.

use alloc::boxed::Box;
use alloc::vec::Vec;

/// Threads that share what is known of their allocator's caches: the bound of what a hostile trace can make us keep.
const CACHES: u32 = 16;
/// Sizes of blocks that are told apart: glibc's, which are 16 bytes apart.
const CLASSES: usize = 64;
/// How many blocks of one size a thread is thought to have freed and not got again: glibc keeps 7.
const DEPTH: usize = 8;

/// A frame as a node has it: pc, module, flags.
pub(crate) type NodeFrame = (u64, u32, u8);

#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) time: u64,
    pub(crate) pc: u64,
    pub(crate) node: u32,
    pub(crate) thread: u32,
    threads: Vec<ThreadDeltas>,
    caches: Vec<Box<FreedBlocks>>,
    /// The blocks that were given out in this block of the trace, in order.
    pub(crate) given: Vec<Given>,
    /// The frames that nodes of this block have, by their numbers.
    pub(crate) frames: Vec<NodeFrame>,
}

/// The last of each that the thread had.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ThreadDeltas {
    pub(crate) stack: u32,
    pub(crate) address: u64,
}

/// A block of the heap that was given out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given {
    pub(crate) address: u64,
    class: u8,
}

/// What an allocator of glibc's kind would give out next, for each class of sizes: what came back last.
#[derive(Debug)]
pub(crate) struct FreedBlocks {
    items: [[u64; DEPTH]; CLASSES],
    tops: [u8; CLASSES],
}

impl Model {
    /// The most threads a trace may number; above it a reader refuses instead of growing without bound.
    pub(crate) const MAX_THREADS: u32 = 1 << 24;

    #[inline]
    pub(crate) fn current(&mut self) -> &mut ThreadDeltas {
        let index = self.thread as usize;
        if self.threads.len() <= index {
            self.threads.resize(index + 1, ThreadDeltas::default());
        }
        &mut self.threads[index]
    }

    pub(crate) fn reset(&mut self, time: u64) {
        self.threads.clear();
        self.given.clear();
        self.frames.clear();
        for cache in &mut self.caches {
            **cache = FreedBlocks::NONE;
        }
        (self.time, self.pc, self.node, self.thread) = (time, 0, 0, 0);
    }

    #[inline]
    fn cache(&mut self) -> &mut FreedBlocks {
        let index = (self.thread % CACHES) as usize;
        while self.caches.len() <= index {
            self.caches.push(Box::new(FreedBlocks::NONE));
        }
        &mut self.caches[index]
    }

    /// The address that the current thread is expected to get for a block of this size; 0 for none.
    #[inline]
    pub(crate) fn expect(&mut self, size: u64) -> u64 {
        self.cache().pop(class(size))
    }

    /// Notes that a block was given out.
    #[inline]
    pub(crate) fn give(&mut self, address: u64, size: u64) {
        self.given.push(Given { address, class: class(size) });
    }

    /// Notes that the current thread gave a block back.
    #[inline]
    pub(crate) fn take_back(&mut self, block: Given) {
        self.cache().push(block.class, block.address);
    }
}

/// The class of a size: glibc rounds a block with its 8 bytes of overhead up to 16.
#[inline]
fn class(size: u64) -> u8 {
    (size.saturating_add(23) >> 4).min(CLASSES as u64 - 1) as u8
}

impl FreedBlocks {
    const NONE: Self = Self { items: [[0; DEPTH]; CLASSES], tops: [0; CLASSES] };

    #[inline]
    fn push(&mut self, class: u8, address: u64) {
        let class = usize::from(class) % CLASSES;
        self.tops[class] = self.tops[class].wrapping_add(1);
        self.items[class][usize::from(self.tops[class]) % DEPTH] = address;
    }

    #[inline]
    fn pop(&mut self, class: u8) -> u64 {
        let class = usize::from(class) % CLASSES;
        let at = usize::from(self.tops[class]) % DEPTH;
        let address = core::mem::take(&mut self.items[class][at]);
        // Where there is none, none was pushed on top of it.
        self.tops[class] = self.tops[class].wrapping_sub(u8::from(address != 0));
        address
    }
}
