//! The agent's own memory: over mmap, never the target's heap.
//!
//! Blocks come from free lists of power-of-two classes, cut from regions that are never given back; very large ones
//! are mappings of their own.
//!
//! Each walk reads tables of which the program has pushed most out of the processor's caches, and of its translation of
//! addresses too: on small pages that costs more than the memory itself. So the first region, in which the first
//! thread's tables lie, and mappings that are large enough are asked to be huge pages. Not where only samples are recorded: few walks
//! touch little of them, and zeroes for all of a huge page would be most of what a short program waits for.
//!
//! # Safety
//! All state is behind [`LOCK`]. A free block's first word links to the next of its class; a block belongs
//! either to one list or to its user.

use crate::lock::Lock;
use crate::{session, sys};
use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const MIN_LOG2: u32 = 4;
const MAX_LOG2: u32 = 19;
const CLASSES: usize = (MAX_LOG2 - MIN_LOG2 + 1) as usize;
/// A huge page of x86-64.
pub(crate) const HUGE: usize = 2 << 20;
const REGION: usize = HUGE;

/// The agent's allocator.
#[derive(Debug)]
pub(crate) struct Heap {
    state: UnsafeCell<State>,
}

#[derive(Debug)]
struct State {
    free: [*mut u8; CLASSES],
    next: *mut u8,
    left: usize,
}

pub(crate) static LOCK: Lock = Lock::whole_in_children();
static MAPPED: AtomicU64 = AtomicU64::new(0);

// SAFETY: `state` is only touched under LOCK.
unsafe impl Sync for Heap {}

impl State {
    const EMPTY: Self = Self { free: [ptr::null_mut(); CLASSES], next: ptr::null_mut(), left: 0 };
}

/// The one heap.
#[cfg_attr(grapnel_cdylib, global_allocator)]
static HEAP: Heap = Heap { state: UnsafeCell::new(State::EMPTY) };

/// Forgets all that was handed out or free. For the child of a fork that happened in the middle of an
/// allocation by a thread that is not there any more: that thread's half-done change is left behind.
pub(crate) fn abandon() {
    LOCK.renew();
    let _guard = LOCK.lock();
    // SAFETY: LOCK is held.
    unsafe { *HEAP.state.get() = State::EMPTY };
}

/// Bytes mapped for the agent's own use.
pub(crate) fn mapped() -> u64 {
    MAPPED.load(Ordering::Relaxed)
}

/// Counts what was mapped for the agent in another way, and stays.
pub(crate) fn count_mapped(len: usize) {
    MAPPED.fetch_add(len as u64, Ordering::Relaxed);
}

/// Whether a thread is in the middle of an allocation.
pub(crate) fn is_busy() -> bool {
    LOCK.is_locked()
}

fn class_of(layout: Layout) -> Option<usize> {
    let size = layout.size().max(layout.align()).max(1 << MIN_LOG2).next_power_of_two();
    let class = size.trailing_zeros() - MIN_LOG2;
    (class < CLASSES as u32).then_some(class as usize)
}

fn whole_pages(len: usize) -> usize {
    len.next_multiple_of(sys::PAGE)
}

fn map(len: usize) -> *mut u8 {
    sys::map_anonymous(len).map_or(ptr::null_mut(), |address| taken_over(address, len))
}

/// New memory, which counts from here on. What a dump of the program's memory says is the program's.
fn taken_over(address: *mut u8, len: usize) -> *mut u8 {
    MAPPED.fetch_add(len as u64, Ordering::Relaxed);
    let _ = sys::advise(address, len, libc::MADV_DONTDUMP);
    address
}

/// As [`map`], in huge pages if the system has them to give.
fn map_huge(len: usize) -> *mut u8 {
    map_aligned_to_huge(len).map_or_else(|| map(len), |address| taken_over(address, len))
}

/// New memory that may be huge pages, and isn't counted yet.
pub(crate) fn map_aligned_to_huge(len: usize) -> Option<*mut u8> {
    let start = sys::map_anonymous(len.checked_add(HUGE)?)?;
    let before = start.align_offset(HUGE);
    let address = start.wrapping_add(before);
    if before != 0 {
        sys::unmap(start, before);
    }
    sys::unmap(address.wrapping_add(len), HUGE - before);
    if !takes_samples() {
        let _ = sys::advise(address, len, libc::MADV_HUGEPAGE);
    }
    Some(address)
}

/// Whether the session records samples only.
fn takes_samples() -> bool {
    session::header().is_some_and(|header| header.sample_bytes.load(Ordering::Relaxed) != 0)
}

/// Whether there was a region yet.
static BEGUN: AtomicBool = AtomicBool::new(false);

fn map_region() -> *mut u8 {
    if BEGUN.swap(true, Ordering::Relaxed) { map(REGION) } else { map_huge(REGION) }
}

impl Heap {
    /// A block, and whether it is known to be all zeroes: its pages were never touched.
    fn take(&self, layout: Layout) -> (*mut u8, bool) {
        if layout.align() > sys::PAGE {
            return (ptr::null_mut(), true);
        }
        let Some(class) = class_of(layout) else {
            let len = whole_pages(layout.size());
            return (if len < HUGE { map(len) } else { map_huge(len) }, true);
        };
        let size = 1usize << (class as u32 + MIN_LOG2);
        let _guard = LOCK.lock();
        // SAFETY: LOCK is held; list entries are free blocks of this class, whose first word is the link; the
        // region's unused rest is `left` bytes from `next`, and nobody's.
        unsafe {
            let state = &mut *self.state.get();
            let head = state.free[class];
            if !head.is_null() {
                state.free[class] = head.cast::<*mut u8>().read();
                return (head, false);
            }
            // Waste at most what brings `next` to the class's alignment (up to a page).
            let pad = state.next.align_offset(size.min(sys::PAGE));
            if state.next.is_null() || pad.saturating_add(size) > state.left {
                let region = map_region();
                if region.is_null() {
                    return (region, true);
                }
                (state.next, state.left) = (region.add(size), REGION - size);
                return (region, true);
            }
            let block = state.next.add(pad);
            (state.next, state.left) = (block.add(size), state.left - pad - size);
            (block, true)
        }
    }
}

// SAFETY: blocks come from mappings of at least the size asked for; a class's blocks are aligned to its size
// since regions are page-aligned and cut from the front in multiples of the smallest class, see `take`.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.take(layout).0
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let (block, zero) = self.take(layout);
        if !block.is_null() && !zero {
            // SAFETY: the block that was just handed out has this size.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some(class) = class_of(layout) else {
            let len = whole_pages(layout.size());
            MAPPED.fetch_sub(len as u64, Ordering::Relaxed);
            return sys::unmap(block, len);
        };
        let _guard = LOCK.lock();
        // SAFETY: LOCK is held; the block is the caller's last use of it, at least one word long and aligned.
        unsafe {
            let state = &mut *self.state.get();
            block.cast::<*mut u8>().write(state.free[class]);
            state.free[class] = block;
        }
    }
}
